"""An engine from its first byte to the proof that it is gone.

    prove the port free → spawn in its own session, log from byte 0 → ... → SIGTERM to the leader → SIGTERM to what is
    left → SIGKILL to what is left → every process gone and the port refused

A killed vLLM leaves workers with the memory while the port is free at once, and some children leave the session. So
every process of the session is looked up, those that were seen as descendants are remembered by pid and start time, and
nothing else is ever signalled.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from profiles.errors import EngineFailed
from profiles.files import FILE_MODE
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.clock import Clock

# After the leader is told to stop its processes get its whole patience; what a signal to all of them leaves gets this.
LAST_PATIENCE_NS = 5 * SECOND_NS
POLL_NS = 20 * MILLISECOND_NS
LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Stopped:
    """How an engine went: `term` by itself after SIGTERM, `kill` by force, `died` before it was told."""

    how: str
    exit_code: int | None
    gone_ns: int


def free_port(host: str) -> int:
    """A port of this host that nothing listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_refuses(host: str, port: int) -> bool:
    """Nothing accepts connections there. A bind would not prove it: servers with SO_REUSEPORT share a port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) != 0


def find_program(program: str, cwd: Path) -> str | None:
    """The file that would be run for argv[0], or None: on PATH, or a path from `cwd`."""
    if "/" in program:
        path = cwd / program
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(program)


class PortTaken(EngineFailed):
    """Something that is not ours answers on the engine's port. No fault of an arm."""


async def to_the_end[T](work: Coroutine[Any, Any, T]) -> tuple[T, bool]:
    """Await `work` to its end whatever cancels the caller meanwhile. Returns its result, and whether it was cancelled.

    A shield alone is not enough: it lets the caller go on at once, and the loop's end then cuts the work off.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    return task.result(), cancelled


class EngineProcess:
    """A running engine. Make it with `start`; always `stop` it."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, clock: Clock, spawned_ns: int) -> None:
        self._process = process
        self._clock = clock
        self._seen: dict[int, psutil.Process] = {}
        self.log = log
        self.spawned_ns = spawned_ns
        self.members()

    @classmethod
    async def start(
        cls, argv: list[str], *, env: Mapping[str, str], cwd: Path, log: Path, host: str, port: int, clock: Clock
    ) -> "EngineProcess":
        """Spawn an engine on a port that is proven free. Raises EngineFailed."""
        if not port_refuses(host, port):
            raise PortTaken(
                f"something already answers on {host}:{port}",
                "Stop it, or let firsttoken pick a port: leave `port` out and write {port} in argv.",
            )
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        spawned_ns = clock.now_ns()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineFailed(f"cannot run {argv[0]}: {error.strerror}") from None
        finally:
            os.close(descriptor)
        return cls(process, log, clock, spawned_ns)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The leader's exit code, None while it lives; negative for a signal."""
        return self._process.returncode

    @property
    def processes_seen(self) -> int:
        return len(self._seen)

    def started_at(self) -> float | None:
        """When the leader started, as the kernel says it: with the pid it names one process for good."""
        leader = self._seen.get(self.pid)
        return leader.create_time() if leader is not None and leader.is_running() else None

    def members(self) -> list[psutil.Process]:
        """The engine's living processes: of its session, and every descendant ever seen."""
        for pid in psutil.pids():
            if pid not in self._seen and _session_of(pid) == self.pid:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._seen[pid] = psutil.Process(pid)
        for process in list(self._seen.values()):
            with contextlib.suppress(psutil.Error):
                for child in process.children(recursive=True):
                    self._seen.setdefault(child.pid, child)
        return [process for process in self._seen.values() if _lives(process)]

    def listens_on(self, port: int) -> bool | None:
        """One of its processes owns the port; None where the system does not let us see."""
        for process in self.members():
            try:
                connections = process.net_connections(kind="inet")
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                return None
            if any(item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in connections):
                return True
        return False

    def log_tail(self) -> tuple[str, ...]:
        """The last lines of its log."""
        return tail(self.log)

    async def stop(self, *, host: str, port: int, patience_ns: int) -> Stopped:
        """Stop it gently, then hard, and prove that it is gone. Raises EngineFailed if anything of it remains."""
        died = self.exit_code is not None
        how = "died" if died else "term"
        if not died:
            self.members()
            _signal([self._seen[self.pid]] if self.pid in self._seen else [], signal.SIGTERM)
            await self._wait_gone(patience_ns, leader_only=True)
        left = self.members()
        if left:
            # The leader is gone, or ignores us. Workers that follow it down need a moment.
            _signal(left, signal.SIGTERM)
            await self._wait_gone(min(patience_ns, LAST_PATIENCE_NS))
        if self.members():
            how = "kill"
            _signal(self.members(), signal.SIGKILL)
            await self._wait_gone(LAST_PATIENCE_NS)
        left = self.members()
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            raise EngineFailed(f"processes of the engine are still alive after SIGKILL: pid {pids}")
        if self._process.returncode is None:
            await self._process.wait()
        deadline_ns = self._clock.now_ns() + LAST_PATIENCE_NS
        while not port_refuses(host, port):
            if self._clock.now_ns() > deadline_ns:
                raise EngineFailed(
                    f"the engine is gone and {host}:{port} still answers", "Another server took the port."
                )
            await self._clock.sleep_until_ns(self._clock.now_ns() + POLL_NS)
        return Stopped(how, self.exit_code, self._clock.now_ns())

    async def _wait_gone(self, patience_ns: int, *, leader_only: bool = False) -> None:
        deadline_ns = self._clock.now_ns() + patience_ns
        while self._clock.now_ns() < deadline_ns:
            if self.exit_code is not None if leader_only else not self.members():
                return
            await self._clock.sleep_until_ns(self._clock.now_ns() + POLL_NS)


async def wait_listening(process: EngineProcess, host: str, port: int, clock: Clock, *, patience_ns: int) -> None:
    """Return when the port accepts. Raises EngineFailed if the process dies first, or never listens."""
    deadline_ns = clock.now_ns() + patience_ns
    while port_refuses(host, port):
        if process.exit_code is not None or clock.now_ns() > deadline_ns:
            said = "\n  ".join(process.log_tail()) or "it said nothing"
            raise EngineFailed(f"nothing listens on {host}:{port} (log: {process.log})", said, process.log_tail())
        await clock.sleep_until_ns(clock.now_ns() + POLL_NS)


async def stop_leftover(pid: int, started_at: float, clock: Clock) -> bool:
    """Stop what an interrupted boot left behind, if the pid still names the same process. True if it was there."""
    try:
        leader = psutil.Process(pid)
        if leader.create_time() != started_at:
            return False
        left = [leader, *leader.children(recursive=True)]
    except psutil.NoSuchProcess:
        return False
    left += [process for process in psutil.process_iter() if _session_of(process.pid) == pid and process not in left]
    for sent in (signal.SIGTERM, signal.SIGKILL):
        _signal(left, sent)
        deadline_ns = clock.now_ns() + LAST_PATIENCE_NS
        while any(map(_lives, left)) and clock.now_ns() < deadline_ns:
            await clock.sleep_until_ns(clock.now_ns() + POLL_NS)
    return True


def tail(log: Path) -> tuple[str, ...]:
    """The last lines of a log file, a bounded read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-LOG_TAIL_LINES:]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        # psutil compares the start time first: a pid that was given to somebody else is not hit.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)
