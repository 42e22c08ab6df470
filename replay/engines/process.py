"""The launcher `process`: a program on this machine, from its first byte to the proof that it is gone.

    prove the port free → spawn in its own session, log from byte 0 → ... → SIGTERM to the leader → SIGTERM to what is
    left → SIGKILL to what is left → every process gone and the port refused

The log is the child's own descriptor: no reader of ours stands between, so nothing in it can block the engine.
"""

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import psutil

from profiles.errors import EngineFailed
from profiles.files import FILE_MODE
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.clock import Clock
from replay.engines import ports
from replay.engines.contract import Launch, PortTaken, Stopped, tail, to_the_end, wait_refused
from replay.engines.family import (
    GRACE_NS,
    LAST_PATIENCE_NS,
    MARKER,
    POLL_NS,
    Family,
    Member,
    be_no_reaper,
    become_reaper,
    end,
    ended,
    read_stat,
    recall,
    send,
    start_now,
    starting,
)

# A descendant that leaves must be seen before it does: often while the engine boots, seldom while it serves.
BOOT_LOOK_NS = 100 * MILLISECOND_NS
BOOT_LOOKS = 100
LOOK_NS = SECOND_NS


def prove_free(host: str, port: int) -> None:
    """Nothing accepts on the port, and nobody has bound it on any address. Raises PortTaken."""
    hint = "Stop it, or let firsttoken pick a port: leave `port` out and write {port} in argv."
    if not ports.port_refuses(host, port):
        raise PortTaken(f"something already answers on {host}:{port}", hint, diagnosis="port_taken")
    others = ports.listeners(port, bound=True)
    if others:
        raise PortTaken(f"something already has the port: {ports.describe(others[0])}", hint, diagnosis="port_taken")


def host_boot() -> str | None:
    """The kernel's id of this boot of the host: pids of another one name nobody."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


class EngineProcess:
    """A running engine. Make it with `start`; always `stop` it."""

    kind: ClassVar[str] = "process"
    cold: ClassVar[bool] = True
    cause: ClassVar[None] = None

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        family: Family,
        *,
        log: Path,
        host: str,
        port: int,
        clock: Clock,
        spawned_ns: int,
        since: float,
        marker: str,
        remember: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._process = process
        self._family = family
        self._clock = clock
        self._since = since
        self._marker = marker
        self._remember = remember
        self.log = log
        self.host = host
        self.port = port
        self.spawned_ns = spawned_ns
        self._looked_ns = 0
        self._leader = family.add(process.pid, leader=True)
        self._adopts = True  # until it is gone
        self._watcher = asyncio.ensure_future(self._watch())

    @classmethod
    async def start(
        cls,
        argv: list[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        host: str,
        port: int,
        clock: Clock,
        marker: str | None = None,
        remember: Callable[[dict[str, Any]], None] | None = None,
    ) -> "EngineProcess":
        """Spawn an engine on a port that is proven free. `env` is its whole environment. Raises EngineFailed."""
        prove_free(host, port)
        # `execvp` would say it from inside the child, after the log has begun.
        if ports.find_program(argv[0], cwd) is None:
            raise EngineFailed(f"cannot run {argv[0]}: No such file or no permission", diagnosis="not_started")
        marker = marker or uuid.uuid4().hex
        become_reaper()
        since, spawned_ns = start_now(), clock.now_ns()
        log = _absolute(log)
        if remember is not None:
            remember(_identity(marker, log, since, host, port, ()))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        family = Family(since=since, marker=marker, log=log, adopt=True)
        try:
            with starting() as ours:
                spawning = asyncio.create_subprocess_exec(
                    *_tied_to_us(argv),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=descriptor,
                    env={**env, MARKER: marker},
                    cwd=cwd,
                    start_new_session=True,
                )
                process, cancelled = await to_the_end(spawning)
                ours.add(process.pid)
        except OSError as error:
            be_no_reaper()
            raise EngineFailed(f"cannot run {argv[0]}: {error.strerror}", diagnosis="not_started") from None
        finally:
            os.close(descriptor)
        engine = cls(
            process,
            family,
            log=log,
            host=host,
            port=port,
            clock=clock,
            spawned_ns=spawned_ns,
            since=since,
            marker=marker,
            remember=remember,
        )
        engine._tell()
        if cancelled:
            await to_the_end(engine.stop(LAST_PATIENCE_NS))
            raise asyncio.CancelledError
        return engine

    @classmethod
    async def launch(cls, launch: Launch, clock: Clock) -> "EngineProcess":
        """Spawn an arm's engine."""
        return await cls.start(
            list(launch.argv),
            env={**os.environ, **launch.env},
            cwd=launch.cwd,
            log=launch.log,
            host=launch.host,
            port=launch.port,
            clock=clock,
            marker=f"{launch.run_id}/{launch.boot_name}",
            remember=launch.remember,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def base_url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def exit_code(self) -> int | None:
        """The leader's exit code, None while it lives; negative for a signal."""
        return self._process.returncode

    @property
    def lives(self) -> bool:
        return self._process.returncode is None

    @property
    def processes_seen(self) -> int:
        return len(self._family.seen)

    def identity(self) -> dict[str, Any]:
        members = tuple((member.pid, member.started) for member in self._family.seen)
        return _identity(self._marker, self.log, self._since, self.host, self.port, members)

    def members(self) -> list[psutil.Process]:
        """The engine's living processes, however far they went; as of a second ago at most."""
        fresh = self._clock.now_ns() - self._looked_ns < LOOK_NS
        return [member.process for member in (self._family.members() if fresh else self._family.look())]

    def owner(self) -> tuple[int, float] | None:
        """Pid and start of the process of ours that listens; None where none does or none can be seen."""
        found = ports.listeners(self.port)
        if not found:
            return None
        members = self._family.look()
        pid, _ = ports.listening_pid(found, [member.pid for member in members])
        return next(((member.pid, member.started) for member in members if member.pid == pid), None)

    def owns_port(self) -> bool | None:
        """One of its processes listens on the port; None where the system does not let us see."""
        found = ports.listeners(self.port)
        if found is None:
            return _owns_by_psutil(self.members(), self.port)
        pid, all_seen = ports.listening_pid(found, [member.pid for member in self._family.look()])
        return True if pid is not None else False if all_seen else None

    def strangers(self) -> list[str]:
        """Listeners on the port that are not the engine's: with SO_REUSEPORT the kernel deals connections to both."""
        return [ports.describe(item) for item, came_from_us in self._others() if not came_from_us]

    def twins(self) -> list[str]:
        """Listeners beside the engine's that came from it and left it, out of its leader's reach.

        Workers that share the port below one leader are none.
        """
        return [ports.describe(item) for item, came_from_us in self._others() if came_from_us]

    def _others(self) -> list[tuple[ports.Listener, bool]]:
        """Listeners beside the engine's, and whether they came from it."""
        found = ports.listeners(self.port) or []
        members = self._family.look()
        held = {member.pid: ports.sockets_of(member.pid) for member in members}
        if None in held.values():  # one of ours that we may not see could have any of them
            return []
        attached = _below(self.pid, members)
        near = {inode for pid, sockets in held.items() if pid in attached for inode in sockets or ()}
        far = {inode for sockets in held.values() for inode in sockets or ()} - near
        # The only listener is the engine's, wherever it went.
        ours = near if any(item.inode in near for item in found) else near | far
        # A member may have left between the two reads: a stranger is still there at the second look.
        again = {item.inode for item in ports.listeners(self.port) or []}
        return [(item, item.inode in far) for item in found if item.inode not in ours and item.inode in again]

    def log_tail(self) -> tuple[str, ...]:
        """The last lines of its log."""
        return tail(self.log)

    async def stop(self, patience_ns: int) -> Stopped:
        """Stop it gently, then hard, and prove that it is gone. Raises EngineFailed if anything of it remains."""
        self._watcher.cancel()
        how = "died" if not self.lives else "term"
        self._family.look(thorough=True)
        if self.lives and self._leader is not None:
            send([self._leader], signal.SIGTERM)
            await self._wait(lambda: not self.lives, patience_ns)
        outlived: list[Member] = []
        if not self.lives:
            await self._wait(lambda: not self._family.look(), min(GRACE_NS, patience_ns))
            # Under the names that they have now: `setproctitle` comes long after the fork.
            outlived = [replace(member, name=ports.name_of(member.pid)) for member in self._family.look(thorough=True)]
        killed = await end(self._family, self._clock, patience_ns=min(patience_ns, LAST_PATIENCE_NS))
        left = self._family.look(thorough=True)
        if left:
            who = ", ".join(f"{member}, state {_state(member)}" for member in left)
            raise EngineFailed(
                f"processes of the engine are still alive after SIGKILL: {who}",
                "A process in state D waits for the kernel or a driver; it ends when that does, or with a reboot.",
                self.log_tail(),
                diagnosis="not_stopped",
            )
        if any(member.pid == self.pid for member in killed):
            how = "kill"
        await self._process.wait()
        ended(self.pid)
        if self._adopts:
            self._adopts = False
            be_no_reaper()
        await wait_refused(self.host, self.port, self._clock)
        count = self.processes_seen
        return Stopped(
            how=how,
            exit_code=self.exit_code,
            gone_ns=self._clock.now_ns(),
            proof=f"{count} process{'es' if count != 1 else ''} gone, {self.host}:{self.port} refuses",
            outlived=_say_outlived(outlived, killed),
        )

    async def _wait(self, happened: Callable[[], bool], patience_ns: int) -> None:
        deadline_ns = self._clock.now_ns() + patience_ns
        while not happened() and self._clock.now_ns() < deadline_ns:
            await self._clock.sleep_until_ns(self._clock.now_ns() + POLL_NS)

    async def _watch(self) -> None:
        """Note descendants while they can still be told, and write down who they are.

        In a thread: a look waits for the kernel most of its time (2 ms for 100 processes), and a request may be due.
        """
        known, looks = self.processes_seen, 0
        while True:
            pause_ns = BOOT_LOOK_NS if looks < BOOT_LOOKS else LOOK_NS
            await self._clock.sleep_until_ns(self._clock.now_ns() + pause_ns)
            looks += 1
            await asyncio.to_thread(self._family.look)
            self._looked_ns = self._clock.now_ns()
            if self.processes_seen != known:
                known = self.processes_seen
                self._tell()

    def _tell(self) -> None:
        if self._remember is not None:
            self._remember(self.identity())


def _absolute(path: Path) -> Path:
    return path.absolute()


def _identity(
    marker: str, log: Path, since: float, host: str, port: int, members: tuple[tuple[int, float], ...]
) -> dict[str, Any]:
    return {
        "launcher": "process",
        "host_boot": host_boot(),
        "marker": marker,
        "log": str(log),
        "since": since,
        "host": host,
        "port": port,
        "members": [list(member) for member in members],
    }


def _below(leader: int, members: list[Member]) -> set[int]:
    """Those whose parents lead up to the leader."""
    parents = {member.pid: stat.parent for member in members if (stat := read_stat(member.pid)) is not None}
    found = {leader}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return found


def _say_outlived(outlived: list[Member], killed: list[Member]) -> str | None:
    if not outlived:
        return None
    names = ", ".join(map(str, outlived[:4])) + (f" and {len(outlived) - 4} more" if len(outlived) > 4 else "")
    many = f"{len(outlived)} processes" if len(outlived) > 1 else "1 process"
    forced = len({member.pid for member in outlived} & {member.pid for member in killed})
    hard = f"; {forced} had to be killed" if forced else ""
    return f"{many} outlived the leader: {names}{hard}"


def _state(member: Member) -> str:
    stat = read_stat(member.pid)
    return stat.state if stat is not None else "gone"


def _owns_by_psutil(members: list[psutil.Process], port: int) -> bool | None:
    for process in members:
        try:
            connections = process.net_connections(kind="inet")
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            return None
        if any(item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in connections):
            return True
    return False


def _tied_to_us(argv: list[str]) -> list[str]:
    """The command, told to stop when we are killed: nobody else would tell it before the run is taken up again.

    The kernel sends that signal when the thread that spawned it ends, so only the main thread ties.
    """
    tie = _tie() if threading.current_thread() is threading.main_thread() else None
    return [*tie, *argv] if tie else argv


@functools.cache
def _tie() -> tuple[str, ...] | None:
    """`setpriv` of util-linux, which becomes the command that it is given. None where there is none that can do it."""
    program = shutil.which("setpriv")
    true = shutil.which("true")
    if program is None or true is None:
        return None
    tie = (program, "--pdeathsig", "TERM")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([*tie, true], capture_output=True, timeout=5, check=False)
        return (*tie, "--") if done.returncode == 0 else None
    return None


async def stop_leftover(identity: Mapping[str, Any], clock: Clock, *, patience_ns: int) -> bool:
    """End what an interrupted boot left alive. True if there was anything. Raises EngineFailed if it will not go."""
    if identity.get("host_boot") != host_boot():
        return False
    family = recall(identity)
    if not family.members():
        return False
    await end(family, clock, patience_ns=patience_ns)
    left = family.look(thorough=True)
    if left:
        raise EngineFailed(
            f"what an interrupted boot left will not go: {', '.join(map(str, left))}", diagnosis="not_stopped"
        )
    return True
