"""CPU time and memory of a process and of its children, from the kernel (Linux).

CPU is the clock of a process: what its threads have run, in nanoseconds, threads that have ended included. It is the
same counter that /proc/PID/task/*/schedstat shows for the threads that live.
"""

import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

SETTLE_STEP_S = 0.02
SETTLE_LIMIT_S = 2.0
QUIET_NS = 1_000_000  # of CPU in one step: a process that only beats


class Cpu(NamedTuple):
    """CPU nanoseconds since their start: of the proxy process, and of each of its children by pid."""

    proxy_ns: int
    children_ns: dict[int, int]

    @property
    def total_ns(self) -> int:
        return self.proxy_ns + sum(self.children_ns.values())

    def since(self, before: "Cpu") -> tuple[int, int]:
        """What the proxy, and what proxy and children, have spent since. A child that has ended is left out."""
        proxy_ns = self.proxy_ns - before.proxy_ns
        children_ns = sum(spent - before.children_ns.get(pid, 0) for pid, spent in self.children_ns.items())
        return proxy_ns, proxy_ns + children_ns


class Memory(msgspec.Struct, frozen=True):
    """Bytes in memory of the proxy, and of proxy and children. Pss shares out what processes share; None if unknown."""

    rss_bytes: int
    rss_all_bytes: int
    pss_all_bytes: int | None


def cpu_ns(pid: int) -> int:
    """CPU time of a process. Raises ProcessLookupError where there is none."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)  # clock_getcpuclockid(3), which Python does not offer
    except OSError:
        raise ProcessLookupError(pid) from None


def children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def read_cpu(pid: int) -> Cpu:
    """Raises ProcessLookupError where the process has ended; a child that ends meanwhile is left out."""
    spent: dict[int, int] = {}
    for child in children(pid):
        try:
            spent[child] = cpu_ns(child)
        except ProcessLookupError:
            continue
    return Cpu(cpu_ns(pid), spent)


def settled_cpu(pid: int) -> Cpu:
    """CPU once the process and its children have finished what is left of the batch: they work behind the traffic."""
    limit_s = time.monotonic() + SETTLE_LIMIT_S
    now = read_cpu(pid)
    # Two steps: a child of low priority may seem quiet for one because it waits for a core.
    quiet = 0
    while quiet < 2 and time.monotonic() < limit_s:
        time.sleep(SETTLE_STEP_S)
        before, now = now, read_cpu(pid)
        quiet = quiet + 1 if now.total_ns - before.total_ns < QUIET_NS else 0
    return now


def read_memory(pid: int) -> Memory:
    """Raises OSError where the process has ended."""
    family = [pid, *children(pid)]
    rss = [_field_bytes(Path(f"/proc/{one}/status"), "VmRSS") or 0 for one in family]
    pss = [_field_bytes(Path(f"/proc/{one}/smaps_rollup"), "Pss") for one in family]
    known = [value for value in pss if value is not None]
    return Memory(rss[0], sum(rss), sum(known) if len(known) == len(family) else None)


def _field_bytes(file: Path, name: str) -> int | None:
    try:
        for line in file.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    return None
