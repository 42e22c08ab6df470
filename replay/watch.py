"""What stops a boot from outside its requests, watched once a second or faster while the engine lives.

An engine that eats the memory of a GB10 does not get killed: the host freezes. So it is stopped before. A log that
grows without end and a disk that fills up end a boot too, each with its own diagnosis.
"""

from collections.abc import Callable
from dataclasses import dataclass

from profiles.errors import EngineFailed, FirsttokenError
from replay.clock import Clock
from replay.engines import Engine, log_size
from replay.memory import MemoryWatch

MIB = 1024**2


@dataclass(slots=True)
class Watch:
    """The limits of one boot. `disk` returns the sentence of a breach, or None."""

    engine: Engine
    log_limit_bytes: int
    memory: MemoryWatch
    disk: Callable[[], str | None]
    clock: Clock

    async def until_breached(self) -> FirsttokenError:
        """Wait until a limit is broken. Cancel it when the engine has been stopped."""
        while True:
            broken = self.look()
            if broken is not None:
                return broken
            await self.clock.sleep_until_ns(self.clock.now_ns() + self.memory.pause_ns())

    def look(self) -> FirsttokenError | None:
        """The first limit that is broken now."""
        written = log_size(self.engine.log)
        if written > self.log_limit_bytes:
            said = f"{written / MIB:.0f} MiB, the limit is {self.log_limit_bytes / MIB:.0f} MiB"
            return EngineFailed(
                f"the engine floods its log: {said}",
                "Raise engine.log_limit_mib if it is meant to.",
                diagnosis="log_flood",
            )
        full = self.disk()
        if full is not None:
            # Without its outcomes a run is nothing (DESIGN §10.1). It goes on at this boot.
            return FirsttokenError(full, "Make room, then go on with --resume.")
        low = self.memory.look()
        if low is not None:
            return EngineFailed(
                f"{low}: the engine was stopped before the host would freeze",
                "Lower what the engine may take (--gpu-memory-utilization), or engine.min_available_gib.",
                diagnosis="memory",
            )
        return None
