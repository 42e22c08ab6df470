"""The launcher `process`: a program on this machine, from its first byte to the proof that it is gone.

    prove the port free → spawn in its own session, log from byte 0 → ... → SIGTERM to the leader → SIGTERM to what is
    left → SIGKILL to what is left → every process gone and the port refused

The log is the child's own descriptor: no reader of ours stands between, so nothing in it can block the engine.
"""

import asyncio
import os
import signal
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
from replay.engines.contract import Launch, Stopped, prove_free, tail, to_the_end, wait_refused
from replay.engines.family import (
    GRACE_NS,
    LAST_PATIENCE_NS,
    MARKER,
    POLL_NS,
    Family,
    Member,
    end,
    send,
)
from replay.engines.leftover import identity_of
from replay.engines.listening import beside, owner_of, owns
from replay.engines.proc_stat import read_stat, start_now
from replay.engines.reaper import be_no_reaper, become_reaper, ended, starting
from replay.tie import tied

# A descendant that leaves must be seen before it does: often while the engine boots, seldom while it serves.
BOOT_LOOK_NS = 100 * MILLISECOND_NS
BOOT_LOOKS = 100
LOOK_NS = SECOND_NS


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
            remember(identity_of(marker, log, since, host, port, ()))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        family = Family(since=since, marker=marker, log=log, adopt=True)
        try:
            with starting() as ours:
                spawning = asyncio.create_subprocess_exec(
                    *tied(argv),
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
        return identity_of(self._marker, self.log, self._since, self.host, self.port, members)

    def members(self) -> list[psutil.Process]:
        """The engine's living processes, however far they went; as of a second ago at most."""
        fresh = self._clock.now_ns() - self._looked_ns < LOOK_NS
        return [member.process for member in (self._family.members() if fresh else self._family.look())]

    def owner(self) -> tuple[int, float] | None:
        """Pid and start of the process of ours that listens; None where none does or none can be seen."""
        return owner_of(self.port, self._family)

    def owns_port(self) -> bool | None:
        """One of its processes listens on the port; None where the system does not let us see."""
        return owns(self.port, self._family)

    def strangers(self) -> list[str]:
        """Listeners on the port that are not the engine's: with SO_REUSEPORT the kernel deals connections to both."""
        return [ports.describe(item) for item, ours in beside(self.port, self._family, self.pid) if not ours]

    def twins(self) -> list[str]:
        """Listeners beside the engine's that came from it and left it, out of its leader's reach.

        Workers that share the port below one leader are none.
        """
        return [ports.describe(item) for item, ours in beside(self.port, self._family, self.pid) if ours]

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
