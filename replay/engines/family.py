"""Which processes are an engine's, whatever they do to get away, and the only place that signals any.

A killed vLLM leaves workers with the memory while the port is free at once. They have a session of their own, their
parent is gone, and `setproctitle` has written their name over their arguments and environment. So a process is the
engine's if any of this holds, and it started after the engine:

    its parent is one of them            seen while both lived
    its session was made by one of them
    its environment carries our marker   also after a crash of ours
    its output is the engine's log       also after a crash of ours, and after `setproctitle`
    it was orphaned and became our child we are the reaper of all that descends from us (Linux), and this program starts
                                         nothing in a session of its own but through `starting`

Each is remembered by pid and start, and is signalled only if both still agree.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.clock import Clock
from replay.engines.proc_stat import LINUX, Stat, read_stat
from replay.engines.reaper import may_adopt, started_by_us

MARKER: Final = "FIRSTTOKEN_BOOT"
POLL_NS: Final = 25 * MILLISECOND_NS
# Workers that follow their leader down need a moment; what is left then has outlived it.
GRACE_NS: Final = SECOND_NS
LAST_PATIENCE_NS: Final = 5 * SECOND_NS
# The kernel takes its time to give back a hundred gigabytes.
KILL_PATIENCE_NS: Final = 30 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the engine, for good: a pid alone may be given to somebody else."""

    pid: int
    started: float
    name: str
    process: psutil.Process

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


class Family:
    """The processes of one engine. `look` finds new ones, `members` are those alive at the last look."""

    def __init__(
        self, *, since: float, marker: str | None = None, log: Path | None = None, adopt: bool = False
    ) -> None:
        self._since = since
        self._marker = f"{MARKER}={marker}".encode() if marker else None
        self._log = log
        self._adopt = adopt
        self._leader: int | None = None
        self._seen: dict[int, Member] = {}
        self._living: set[int] = set()
        self._sessions: set[int] = set()
        self._strange: set[int] = set()
        self._looking = threading.Lock()

    def add(self, pid: int, started: float | None = None, *, leader: bool = False) -> Member | None:
        """Take in a process that is known to be the engine's. None if it is gone, or started at another time."""
        stat = read_stat(pid)
        if stat is None or (started is not None and stat.started != started):
            return None
        if leader:
            self._leader = pid  # whoever started it reaps it
        return self._take_in(pid, stat)

    @property
    def seen(self) -> list[Member]:
        """All that ever were its own."""
        return list(self._seen.values())

    def members(self) -> list[Member]:
        """Those alive at the last look."""
        return [self._seen[pid] for pid in sorted(self._living)]

    def look(self, *, thorough: bool = False) -> list[Member]:
        """Look for new processes of the engine and return the living ones.

        A process that was found to be a stranger stays one, so a look reads little more than what is new. A thorough
        look asks all again. May be called from another thread.
        """
        with self._looking:
            return self._look(thorough=thorough)

    def _look(self, *, thorough: bool) -> list[Member]:
        if thorough:
            self._strange.clear()
        listed = set(psutil.pids())
        self._strange &= listed
        fresh: dict[int, Stat] = {}
        living: set[int] = set()
        for pid in listed - self._strange:
            stat = read_stat(pid)
            if stat is None:
                continue
            member = self._seen.get(pid)
            if member is None or member.started != stat.started:
                fresh[pid] = stat
            elif stat.state in "ZX":
                self._reap(pid, stat)
            else:
                living.add(pid)
        self._living = living
        self._sort(fresh, listed)
        return self.members()

    def _sort(self, fresh: dict[int, Stat], listed: set[int]) -> None:
        """Ours or strange, until nothing changes: a parent may stand behind its child in the table."""
        me = os.getpid()
        found = True
        while found:
            ours = [pid for pid, stat in fresh.items() if self._is_ours(pid, stat, listed, me)]
            for pid in ours:
                self._take_in(pid, fresh.pop(pid))
            found = bool(ours)
        # A child of ours is asked again each time: it may be an orphan that was adopted while we started something.
        self._strange |= {pid for pid, stat in fresh.items() if stat.parent != me}

    def _is_ours(self, pid: int, stat: Stat, listed: set[int], me: int) -> bool:
        if stat.started < self._since or pid == me:
            return False
        if stat.parent in self._living:
            return True
        # A dead session leader's number is not given away while its session lasts.
        if stat.session in self._sessions and (stat.session not in listed or stat.session in self._living):
            return True
        if self._adopt and stat.parent == me and may_adopt(pid):
            session = os.getsid(0)
            if stat.session != session:
                return True
        return stat.state not in "ZX" and (self._is_marked(pid) or self._writes_log(pid))

    def _is_marked(self, pid: int) -> bool:
        if self._marker is None:
            return False
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  as above
                return self._marker in file.read().split(b"\0")
        except OSError:
            return False

    def _writes_log(self, pid: int) -> bool:
        """Its output goes to the engine's log, as it does for nobody else: inherited, through every fork."""
        if self._log is None:
            return False
        for number in (1, 2):
            with contextlib.suppress(OSError):
                if self._log.samefile(f"/proc/{pid}/fd/{number}"):
                    return True
        return False

    def _take_in(self, pid: int, stat: Stat) -> Member | None:
        if stat.state in "ZX":
            self._reap(pid, stat)
            if pid != self._leader:
                return None
        try:
            member = Member(pid, stat.started, _name(pid), psutil.Process(pid))
        except psutil.NoSuchProcess:
            return None
        self._seen[pid] = member
        if stat.session == pid:
            self._sessions.add(pid)
        if stat.state not in "ZX":
            self._living.add(pid)
        return member

    def _reap(self, pid: int, stat: Stat) -> None:
        """An orphan that became our child stays a zombie until we ask for its end."""
        if stat.parent == os.getpid() and not started_by_us(pid) and pid != self._leader:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _name(pid: int) -> str:
    if LINUX:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    return "a process"


def send(members: Iterable[Member], number: signal.Signals) -> None:
    """Signal processes that are proven to be the ones that were seen: a pid given to somebody else is not hit."""
    for member in members:
        # A descriptor of the process holds it between the check and the signal.
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if not hasattr(os, "pidfd_open"):
                member.process.send_signal(number)  # compares the start, too
                continue
            descriptor = os.pidfd_open(member.pid)
            try:
                stat = read_stat(member.pid)
                if stat is not None and stat.started == member.started:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


async def end(family: Family, clock: Clock, *, patience_ns: int = LAST_PATIENCE_NS) -> list[Member]:
    """SIGTERM to all of them, then SIGKILL to all of them, new ones too. Returns those that had to be killed.

    Raises nothing: who is still in `family.look()` afterwards could not be ended.
    """
    killed: dict[int, Member] = {}
    for number, wait_ns in ((signal.SIGTERM, patience_ns), (signal.SIGKILL, KILL_PATIENCE_NS)):
        told: set[tuple[int, float]] = set()
        deadline_ns = clock.now_ns() + wait_ns
        while left := family.look(thorough=not told):
            new = [member for member in left if (member.pid, member.started) not in told]
            send(new, number)
            told |= {(member.pid, member.started) for member in new}
            if number is signal.SIGKILL:
                killed |= {member.pid: member for member in new}
            if clock.now_ns() > deadline_ns:
                break
            await clock.sleep_until_ns(clock.now_ns() + POLL_NS)
        if not left and not family.look(thorough=True):
            break
    return list(killed.values())


def recall(identity: Mapping[str, Any]) -> Family:
    """The family that an interrupted boot wrote down, as far as it lives: by pid and start, by marker, by log."""
    log = Path(str(identity["log"])) if identity.get("log") else None
    family = Family(since=identity.get("since") or 0, marker=identity.get("marker") or None, log=log)
    for pid, started in identity.get("members", ()):
        family.add(int(pid), started)
    family.look(thorough=True)
    return family
