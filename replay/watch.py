"""What stops a boot from outside its requests, watched once a second while the engine lives.

An engine that eats the memory of a GB10 does not get killed: the host freezes. So it is stopped before. A log that grows
without end and a disk that fills up are stopped too, each with its own diagnosis.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from profiles.errors import EngineFailed, FirsttokenError
from profiles.runs import Telemetry
from profiles.units import SECOND_NS, format_bytes
from replay.clock import Clock
from replay.engines import Engine

LOOK_EVERY_NS = SECOND_NS


@dataclass(slots=True)
class Watch:
    """The limits of one boot. `memory` and `disk` return the sentence of a breach, or None."""

    engine: Engine
    log_limit_bytes: int
    memory: Callable[[Telemetry], str | None]
    disk: Callable[[], str | None]
    samples: Callable[[], Telemetry | None]  # the latest of telemetry
    clock: Clock
    breach: FirsttokenError | None = field(default=None, init=False)

    async def until_breached(self) -> FirsttokenError:
        """Wait until a limit is broken. Cancel it when the engine has been stopped."""
        while True:
            broken = self.look()
            if broken is not None:
                return broken
            await self.clock.sleep_until_ns(self.clock.now_ns() + LOOK_EVERY_NS)

    def look(self) -> FirsttokenError | None:
        """The first limit that is broken now."""
        written = _size(self.engine.log)
        if written > self.log_limit_bytes:
            return EngineFailed(
                f"the engine floods its log: {format_bytes(written)}, the limit is {format_bytes(self.log_limit_bytes)}",
                "Raise engine.log_limit_mib if it is meant to.",
                diagnosis="log_flood",
            )
        full = self.disk()
        if full is not None:
            # Without its outcomes a run is nothing (DESIGN §10.1). It goes on at this boot.
            return FirsttokenError(full, "Make room, then go on with --resume.")
        sample = self.samples()
        low = self.memory(sample) if sample is not None else None
        if low is not None:
            return EngineFailed(
                f"{low}: the engine was stopped before the host would freeze",
                "Lower what the engine may take (--gpu-memory-utilization), or engine.min_available_gib.",
                diagnosis="memory",
            )
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
