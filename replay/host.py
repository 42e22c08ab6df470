"""The host as /proc tells it: memory, load, and how much of the load is neither ours nor the engine's.

The load of others is what the kernel counts as busy less our own and the engine's processes, so that no list of all
processes is read. Only while others are busy it is, to name them. Where there is no /proc everything is None.
"""

import os
import resource
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Has a look that may block taken off the event loop, as asyncio.to_thread does.
type OffLoop = Callable[..., Awaitable[Any]]

PROC = Path("/proc")
# Others are named from here on: half of what `surroundings` calls a foreign load. It takes two looks at all processes,
# at up to 0.1 ms each, so it is done once in so many looks.
NAME_FROM_CORES = 0.5
NAME_EVERY = 10
NAMED = 3


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes, by its own names: MemAvailable, MemFree, SwapTotal, SwapFree, ..."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        parts = rest.split()
        if colon and parts and parts[0].isdigit():
            found[name] = int(parts[0]) * (1024 if parts[1:] == ["kB"] else 1)
    return found


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks of all cores since the host started. What a hypervisor took is busy: somebody else had it."""

    busy: int
    total: int


def parse_cpu(text: str) -> CpuTimes | None:
    """The first line of /proc/stat. Guests are counted in `user` already."""
    head = text.partition("\n")[0].split()
    if len(head) < 5 or head[0] != "cpu" or not all(part.isdigit() for part in head[1:]):
        return None
    ticks = [int(part) for part in head[1:9]]
    idle = ticks[3] + (ticks[4] if len(ticks) > 4 else 0)  # and waiting for a disk
    return CpuTimes(sum(ticks) - idle, sum(ticks))


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """One process: its program, its parent, when it started, its ticks, those of its reaped children, its pages."""

    name: str
    parent: int
    started: int
    ticks: int
    reaped: int
    pages: int


def parse_process(text: str) -> ProcessTimes | None:
    """/proc/PID/stat. The program's name stands in brackets and may hold brackets and spaces."""
    head, _, rest = text.rpartition(")")
    parts = rest.split()
    try:
        name = head.split("(", 1)[1]
        own, reaped = int(parts[11]) + int(parts[12]), int(parts[13]) + int(parts[14])
        return ProcessTimes(name, int(parts[1]), int(parts[19]), own, reaped, int(parts[21]))
    except (IndexError, ValueError):
        return None


def cores_of_others(before: CpuTimes, after: CpuTimes, ours: int, cores: int) -> float | None:
    """Cores that neither we nor the engine used between two looks, which used `ours` ticks. None if no tick passed.

    The kernel counts the whole by ticks and each process exactly, so that a little less than 0 is 0.
    """
    passed = after.total - before.total
    if passed <= 0:
        return None
    return round(max(0, after.busy - before.busy - ours) * cores / passed, 3)


def _read(path: str) -> str:
    """A file of /proc in one read: half the time of a file object. "" where it is gone or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 65536).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Look:
    """What one look at /proc leaves for the next one to subtract from."""

    cpu: CpuTimes | None = None
    processes: dict[int, ProcessTimes] = field(default_factory=dict)  # ours and the engine's
    everybody: dict[int, ProcessTimes] | None = None  # read only while others are busy


class Host:
    """/proc, read once a second from one thread."""

    def __init__(self, proc: Path = PROC, cores: int | None = None) -> None:
        self._proc = str(proc)
        self._cores = cores or os.cpu_count() or 1
        self._last = Look()
        self._looks_unnamed = NAME_EVERY

    def process(self, pid: int) -> ProcessTimes | None:
        """One process, None if it is gone."""
        return parse_process(_read(f"{self._proc}/{pid}/stat"))

    def look(self, engine: Sequence[int] | None) -> dict[str, Any]:
        """The fields of `Telemetry` that /proc knows. `engine` holds its pids; None: they are not known."""
        memory = parse_meminfo(_read(f"{self._proc}/meminfo"))
        cpu = parse_cpu(_read(f"{self._proc}/stat"))
        last, here = self._last, Look(cpu)
        known = [os.getpid(), *(engine or ())]
        here.processes = {pid: times for pid in known if (times := self.process(pid)) is not None}
        found: dict[str, Any] = {"mem_available_bytes": memory.get("MemAvailable")}
        if "SwapTotal" in memory and "SwapFree" in memory:
            found["swap_used_bytes"] = memory["SwapTotal"] - memory["SwapFree"]
        if engine:
            pages = [here.processes[pid].pages for pid in engine if pid in here.processes]
            found["engine_rss_bytes"] = sum(pages) * resource.getpagesize() if pages else None
        if cpu is not None and last.cpu is not None and cpu.total > last.cpu.total:
            found["cpu_busy"] = round((cpu.busy - last.cpu.busy) / (cpu.total - last.cpu.total), 4)
            # Without the engine's own processes its load would look like somebody else's.
            if engine:
                # A child that ends moves its ticks to its parent: counted twice for one look, missed by none.
                ours = sum(spent(last.processes, here.processes, reaped=True).values())
                others = cores_of_others(last.cpu, cpu, ours, self._cores)
                found["others_busy"] = others
                if others is not None and others >= NAME_FROM_CORES:
                    found["others"] = self._name_others(last, here, cpu.total - last.cpu.total)
        self._last = here
        return found

    def _name_others(self, last: Look, here: Look, passed: int) -> list[str]:
        """The busiest of the others with their cores, now and then; [] between."""
        self._looks_unnamed += 1
        if last.everybody is None and self._looks_unnamed < NAME_EVERY:
            return []
        everybody = self.everybody()
        if last.everybody is None:
            here.everybody = everybody
            return []
        self._looks_unnamed = 0
        used = spent(last.everybody, everybody)
        rest = sorted(((ticks, pid) for pid, ticks in used.items() if pid not in here.processes), reverse=True)
        tops = [(everybody[pid].name, pid, ticks * self._cores / passed) for ticks, pid in rest[:NAMED]]
        return [f"{name} (pid {pid}) {cores:.1f}" for name, pid, cores in tops if cores >= NAME_FROM_CORES / 5]

    def everybody(self) -> dict[int, ProcessTimes]:
        """Every process that we may see."""
        try:
            pids = [int(path.name) for path in Path(self._proc).iterdir() if path.name.isdigit()]
        except OSError:
            return {}
        return {pid: times for pid in pids if (times := self.process(pid)) is not None}

    def descends(self, pid: int, known: Sequence[int]) -> bool | None:
        """The process or an ancestor is known; None for a pid that we cannot see: it counts in another container."""
        for _ in range(64):
            if pid in known:
                return True
            times = self.process(pid)
            if times is None:
                return None
            if times.parent <= 1:
                return times.parent in known
            pid = times.parent
        return False


def spent(before: dict[int, ProcessTimes], after: dict[int, ProcessTimes], *, reaped: bool = False) -> dict[int, int]:
    """Ticks of each process between two looks, with `reaped` also those of children that ended meanwhile.

    What was not there at the first one, or was another process with the same pid, counts from the next look on: it may
    only have been found late.
    """
    return {
        pid: max(0, times.ticks - old.ticks + (times.reaped - old.reaped if reaped else 0))
        for pid, times in after.items()
        if (old := before.get(pid)) is not None and old.started == times.started
    }


def memory_available_bytes(proc: Path = PROC) -> int | None:
    """MemAvailable now: what may be had without swapping."""
    return parse_meminfo(_read(f"{proc}/meminfo")).get("MemAvailable")


def memory_total_bytes(proc: Path = PROC) -> int | None:
    """MemTotal: more is never available."""
    return parse_meminfo(_read(f"{proc}/meminfo")).get("MemTotal")


def memory_free_bytes(proc: Path = PROC) -> int | None:
    """MemFree now: what not even the page cache uses."""
    return parse_meminfo(_read(f"{proc}/meminfo")).get("MemFree")
