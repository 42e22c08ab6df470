"""Memory before, during and after a boot: a floor below which no engine is started or goes on, and what comes back.

All limits are keys in GiB, and so are the sentences about them.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from profiles.runs import Step, Telemetry
from profiles.units import MILLISECOND_NS, SECOND_NS, format_duration
from replay.clock import Clock
from replay.gpus import gpu_memory_used
from replay.host import OffLoop, memory_available_bytes

# How fast memory can go: weights are read at up to 10 GB/s, and memory is cleared faster.
FASTEST_FALL = 16 * 1024**3
SOONEST_NS = 50 * MILLISECOND_NS
# A driver frees what a dead process held within seconds; it never takes longer.
MEMORY_PATIENCE_NS = 30 * SECOND_NS
# What the last boot held has been waited for already.
FLOOR_PATIENCE_NS = 10 * SECOND_NS
POLL_NS = 250 * MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class MemoryWatch:
    """The floor of MemAvailable. On unified memory an engine that goes below it is not killed: the host freezes."""

    floor_bytes: int
    read: Callable[[], int | None] = memory_available_bytes

    def breach(self, sample: Telemetry) -> str | None:
        """The sentence, if the sample is below the floor."""
        return self._judge(sample.mem_available_bytes)

    def look(self) -> str | None:
        """The same for this very moment, without waiting for the next sample."""
        return self._judge(self.read())

    def pause_ns(self) -> int:
        """Until when to look again: no later than the memory could be at its floor. 50 ms to 1 s."""
        available = self.read()
        if available is None:
            return SECOND_NS
        left_ns = (available - self.floor_bytes) * SECOND_NS // FASTEST_FALL
        return max(SOONEST_NS, min(left_ns, SECOND_NS))

    def _judge(self, available: int | None) -> str | None:
        if available is None or available >= self.floor_bytes:
            return None
        return f"only {format_gib(available)} of memory were left, the floor is {format_gib(self.floor_bytes)}"


def format_gib(count: int) -> str:
    """Bytes in the unit of the keys that limit memory, such as engine.min_available_gib."""
    return f"{count / 1024**3:.2f}".rstrip("0").rstrip(".") + " GiB"


async def memory_floor(
    floor_bytes: int,
    clock: Clock,
    *,
    timeout_ns: int = FLOOR_PATIENCE_NS,
    read: Callable[[], int | None] = memory_available_bytes,
) -> Step:
    """Wait until MemAvailable is at the floor before anything is started: below it an engine would be stopped at once,
    for what others hold. Facts: available, floor bytes.

    Without a proof it stayed below, and `missing` says so; or the system does not say.
    """
    began_ns = clock.now_ns()
    while True:
        available, now_ns = read(), clock.now_ns()
        enough = available is None or available >= floor_bytes
        if enough or now_ns - began_ns >= timeout_ns:
            break
        await clock.sleep_until_ns(now_ns + POLL_NS)
    facts: dict[str, Any] = {"available_bytes": available, "floor_bytes": floor_bytes}
    proof = None
    if available is not None and enough:
        proof = f"{format_gib(available)} are available, the floor is {format_gib(floor_bytes)}"
    elif available is not None:
        facts["missing"] = (
            f"only {format_gib(available)} of memory were available before the engine was started, the floor is "
            f"{format_gib(floor_bytes)} (engine.min_available_gib)"
        )
    return Step(name="memory_floor", began_ns=began_ns, ended_ns=now_ns, proof=proof, facts=facts)


async def memory_back(
    before_bytes: int | None,
    tolerance_bytes: int,
    clock: Clock,
    *,
    timeout_ns: int = MEMORY_PATIENCE_NS,
    read: Callable[[], int | None] = memory_available_bytes,
) -> Step:
    """Wait until MemAvailable is what it was before the spawn, less the tolerance. Facts: before, after, missing bytes.

    Without a proof it did not come back: something of the engine still holds it.
    """
    began_ns = clock.now_ns()
    while True:
        after, now_ns = read(), clock.now_ns()
        if before_bytes is None or after is None:
            facts = {"before_bytes": before_bytes, "after_bytes": after, "missing_bytes": None}
            return Step(name="memory", began_ns=began_ns, ended_ns=now_ns, facts=facts)
        missing = max(0, before_bytes - after)
        if missing <= tolerance_bytes or now_ns - began_ns >= timeout_ns:
            break
        await clock.sleep_until_ns(now_ns + POLL_NS)
    back = f"{format_gib(after)} are available, {format_gib(before_bytes)} were before"
    return Step(
        name="memory",
        began_ns=began_ns,
        ended_ns=now_ns,
        proof=back if missing <= tolerance_bytes else None,
        facts={"before_bytes": before_bytes, "after_bytes": after, "missing_bytes": missing},
    )


async def gpu_memory_back(
    before_bytes: Mapping[int, int],
    tolerance_bytes: int,
    clock: Clock,
    *,
    timeout_ns: int = MEMORY_PATIENCE_NS,
    read: Callable[[], dict[int, int]] = gpu_memory_used,
    off_loop: OffLoop = asyncio.to_thread,
) -> Step:
    """Wait until no GPU has more memory in use than before the spawn, but for the tolerance. A worker that nobody sees
    in the process tree still holds it, and the next engine would get what is left.

    Facts: before and after by GPU, and missing bytes of the fullest. Without a proof it did not come back.
    """
    began_ns = clock.now_ns()
    while True:
        after: dict[int, int] = await off_loop(read)
        now_ns = clock.now_ns()
        held = [after[gpu] - count for gpu, count in before_bytes.items() if gpu in after]
        missing = max(0, *held) if held else None
        if missing is None or missing <= tolerance_bytes or now_ns - began_ns >= timeout_ns:
            break
        await clock.sleep_until_ns(now_ns + POLL_NS)
    used = ", ".join(f"GPU {gpu} {format_gib(count)}" for gpu, count in sorted(after.items()))
    return Step(
        name="gpu_memory",
        began_ns=began_ns,
        ended_ns=now_ns,
        proof=f"in use: {used}" if missing is not None and missing <= tolerance_bytes else None,
        facts={
            "before_bytes": {str(gpu): count for gpu, count in before_bytes.items()},
            "after_bytes": {str(gpu): count for gpu, count in after.items()},
            "missing_bytes": missing,
        },
    )


def memory_held(step: Step) -> str | None:
    """The sentence for memory that did not come back, the host's or a GPU's; None where it did, or nobody can tell."""
    missing = step.facts.get("missing_bytes")
    if step.proof is not None or missing is None:
        return None
    waited = format_duration(step.ended_ns - step.began_ns)
    whose = "GPU memory" if step.name == "gpu_memory" else "memory"
    return f"{format_gib(missing)} of {whose} did not come back within {waited} after the engine was gone"
