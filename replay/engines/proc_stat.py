"""One line of the process table, and when a process that starts now would have started."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

LINUX: Final = Path("/proc/self/stat").exists()


@dataclass(frozen=True, slots=True)
class Stat:
    """A line of the process table. `started` counts clock ticks since the host booted (Linux), else seconds."""

    state: str
    parent: int
    session: int
    started: float


def read_stat(pid: int) -> Stat | None:
    """None where there is no such process."""
    if not LINUX:
        return _portable_stat(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  a hundred of these a second: no Path
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def _portable_stat(pid: int) -> Stat | None:
    try:
        process = psutil.Process(pid)
        state = "Z" if process.status() == psutil.STATUS_ZOMBIE else "S"
        return Stat(state, process.ppid(), os.getsid(pid), process.create_time())
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


def start_now() -> float:
    """What the start of a process that began now would be, at the latest; 0 where it cannot be known."""
    try:
        seconds = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0
    return int(seconds * os.sysconf("SC_CLK_TCK")) - 1


def host_boot() -> str | None:
    """The kernel's id of this boot of the host: pids of another one name nobody."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def lives(pid: int, started: float) -> bool:
    """This very process is there and has not ended."""
    stat = read_stat(pid)
    return stat is not None and stat.started == started and stat.state not in "ZX"
