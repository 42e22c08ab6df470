"""The launchers `docker` and `podman`: a container of our own, by the command line that both have in common.

    prove the port free → run, detached, with our labels → follow its log → ... → stop → kill → proven dead → removed

Killing a client leaves its container, and a crash of ours leaves it for hours. So it carries the run and the boot in
labels, and only a container whose labels say that it is ours is ever stopped or removed. A value of the environment is
in the client's environment and never in an argument, where everybody could read it.
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson
import psutil

from profiles.errors import EngineFailed
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.engines import ports
from replay.engines.commands import Called, Caller
from replay.engines.container_client import Client, client_environment, host_network, instant_of, run_command
from replay.engines.contract import Launch, PortTaken, Stopped, prove_free, tail, to_the_end, wait_refused
from replay.engines.family import Family
from replay.engines.follower import end_follower, follow
from replay.engines.listening import beside_container, owner_of, owns
from replay.engines.proc_stat import host_boot, read_stat
from replay.engines.reaper import ended

RUN_LIMIT_NS: Final = 300 * SECOND_NS
DRAIN_NS: Final = 10 * SECOND_NS
CLEAR_PATIENCE_NS: Final = 10 * SECOND_NS
KILLED: Final = 137  # 128 + SIGKILL


class ContainerEngine:
    """A container of ours. Make it with `launch`; always `stop` it."""

    cold: ClassVar[bool] = True

    def __init__(self, kind: str, launch: Launch, clock: Clock) -> None:
        self.kind = kind
        self.log = launch.log
        self.host = launch.host
        self.port = launch.port
        self.spawned_ns = clock.now_ns()
        self.exit_code: int | None = None
        self.cause: str | None = None
        self.lives = True
        self._launch = launch
        self._clock = clock
        self._client = Client(kind, client_environment(launch), launch.cwd)
        self._container = ""
        self._caller: Caller | None = None  # the client that makes the container
        self._facts: dict[str, Any] = {}
        self._leader: tuple[int, float] | None = None
        self._family: Family | None = None
        self._follower: asyncio.Future[None] | None = None
        self._logs: asyncio.subprocess.Process | None = None
        self._published = not host_network(launch.container_args)

    @classmethod
    async def launch(cls, kind: str, launch: Launch, clock: Clock) -> "ContainerEngine":
        """Run it on a port that is proven free. Raises EngineFailed, and leaves nothing behind then."""
        prove_free(launch.host, launch.port)
        engine = cls(kind, launch, clock)
        engine._tell()
        # To its end: a client that is cut off may still have made its container.
        started, cancelled = await to_the_end(engine._run())
        if started is not None or cancelled:
            await to_the_end(engine._clear())
            if started is not None:
                raise started
            raise asyncio.CancelledError
        return engine

    async def _run(self) -> EngineFailed | None:
        """Why it could not be started, or None."""
        try:
            command = run_command(self.kind, self._launch)[1:]
            asked = await self._client.ask(*command, limit_ns=RUN_LIMIT_NS, began=self._note_caller)
            self._caller = None
            if asked.code != 0:
                return self._not_started(asked)
            self._container = asked.out.split()[-1] if asked.out.split() else ""
            info = await self._client.inspect(self._container)
            if info is None:
                return EngineFailed(f"{self.kind} run left no container", asked.said, diagnosis="not_started")
            await self._learn(info)
            await self._follow()
        except EngineFailed as error:
            return error
        self._follower = asyncio.ensure_future(self._await_end())
        return None

    def _note_caller(self, caller: Caller) -> None:
        """A client that outlives us may still make its container."""
        self._caller = caller
        self._tell()

    def _not_started(self, asked: Called) -> EngineFailed:
        taken = re.search(r"port is already allocated|address already in use", asked.err, re.IGNORECASE)
        if taken:
            return PortTaken(f"{self.host}:{self.port} is taken: {asked.said}", diagnosis="port_taken")
        how = "took too long" if asked.code is None else f"failed (exit code {asked.code})"
        return EngineFailed(
            f"{self.kind} run {how}: {asked.said}",
            "Try the container by hand: `image`, `container_args` and `argv` of the arm stand in this order.",
            diagnosis="not_started",
        )

    async def _clear(self) -> None:
        """Take back a start that did not come to its end."""
        if self._logs is not None:
            await end_follower(self._logs)
        for container in await self._client.ours(self._launch.run_id, self._launch.boot_name):
            await self._client.end(container, self._launch.run_id, self._launch.boot_name, CLEAR_PATIENCE_NS)
            await self._client.remove(container)

    async def _learn(self, info: Mapping[str, Any]) -> None:
        """Which container, from which image; `latest` is another one every week."""
        image = str(info.get("Image") or "")
        asked = await self._client.ask("image", "inspect", image or self._launch.image)
        digests: list[str] = []
        if asked.code == 0:
            with contextlib.suppress(orjson.JSONDecodeError, LookupError, TypeError):
                digests = [str(item) for item in orjson.loads(asked.out)[0].get("RepoDigests") or ()]
        state = info["State"]
        self._facts = {
            "container": self._container,
            "name": str(info.get("Name") or "").lstrip("/"),
            "image_id": image,
            "image_digests": digests,
            "started": state.get("StartedAt"),
            "pid": state.get("Pid"),
        }
        self._find_processes(state)
        self._tell()

    def _find_processes(self, state: Mapping[str, Any]) -> None:
        """Its processes as the host shows them, where the daemon is on this host: its start must agree."""
        pid, began = int(state.get("Pid") or 0), instant_of(str(state.get("StartedAt") or ""))
        if not pid or began is None:
            return
        self._leader = (pid, began)
        try:
            same = abs(psutil.Process(pid).create_time() - began) < 5
        except psutil.Error:
            return
        stat = read_stat(pid)
        if same and stat is not None:
            self._family = Family(since=stat.started)
            self._family.add(pid, stat.started)

    async def _follow(self) -> None:
        """Its log from byte 0."""
        words = [self.kind, "logs", "--follow", self._container]
        try:
            self._logs = await follow(words, log=self.log, env=self._client.env, cwd=self._client.cwd, anew=True)
        except OSError as error:
            raise EngineFailed(f"cannot run {self.kind}: {error.strerror}", diagnosis="not_started") from None

    async def _await_end(self) -> None:
        """The log ends with its container, so nothing is polled. A client that ends before is started anew."""
        while True:
            assert self._logs is not None
            await self._logs.wait()
            ended(self._logs.pid)
            with contextlib.suppress(EngineFailed):  # a daemon that restarts answers again
                info = await self._client.inspect(self._container)
                if info is None or not info["State"].get("Running"):
                    self._note_end(info)
                    return
                await self._follow()
            await self._clock.sleep_until_ns(self._clock.now_ns() + SECOND_NS)

    def _note_end(self, info: Mapping[str, Any] | None) -> None:
        if info is not None:
            self.exit_code = int(info["State"].get("ExitCode") or 0)
            if info["State"].get("OOMKilled"):
                self.cause = "the kernel killed it for its memory (OOMKilled)"
        else:
            self.cause = "its container was removed"
        self.lives = False

    @property
    def base_url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def processes_seen(self) -> int:
        return len(self._family.seen) if self._family is not None else 1 if self._container else 0

    def identity(self) -> dict[str, Any]:
        making = {"host_boot": host_boot(), "calling": list(self._caller)} if self._caller is not None else {}
        oom = {"oom_killed": True} if self.cause and "OOM" in self.cause else {}
        return {
            "launcher": self.kind,
            "run": self._launch.run_id,
            "boot": self._launch.boot_name,
            "image": self._launch.image,
            "host": self.host,
            "port": self.port,
            **self._facts,
            **making,
            **oom,
        }

    def _tell(self) -> None:
        if self._launch.remember is not None:
            self._launch.remember(self.identity())

    def members(self) -> list[psutil.Process]:
        return [member.process for member in self._family.look()] if self._family is not None else []

    def _listeners(self) -> list[ports.Listener] | None:
        """As its own network shows them, where we may look into it."""
        if not self._published:
            return ports.listeners(self.port)
        return ports.listeners(self.port, Path(f"/proc/{self._leader[0]}/net")) if self._leader is not None else None

    def owner(self) -> tuple[int, float] | None:
        """The process that listens; its first one, as the daemon names it, where we may not see that."""
        found = self._listeners()
        owner = owner_of(self.port, self._family, found) if self._family is not None and found else None
        return owner or self._leader

    def owns_port(self) -> bool | None:
        if self._published:  # the daemon gives a port to one container only
            return True if self.lives else None
        found = self._listeners()
        return owns(self.port, self._family, found) if self._family is not None and found is not None else None

    def strangers(self) -> list[str]:
        """Listeners beside the container's own, and beside what forwards a published port to it."""
        return beside_container(self.port, self._family, published=self._published)

    def twins(self) -> list[str]:
        return []

    def log_tail(self) -> tuple[str, ...]:
        """The last lines of its log."""
        return tail(self.log)

    async def stop(self, patience_ns: int) -> Stopped:
        """Stop and remove it. Raises EngineFailed if it stays."""
        died = not self.lives
        run_id, boot_name = self._launch.run_id, self._launch.boot_name
        try:
            info = await self._client.end(self._container, run_id, boot_name, patience_ns)
        except EngineFailed:
            await self._drain(0)
            raise
        await self._drain(DRAIN_NS)
        self._note_end(info)
        how = "died" if died else "kill" if self.exit_code == KILLED else "term"
        if info is not None:
            await self._client.remove(self._container)
        await wait_refused(self.host, self.port, self._clock)
        cause = f" ({self.cause})" if self.cause else ""
        return Stopped(
            how=how,
            exit_code=self.exit_code,
            gone_ns=self._clock.now_ns(),
            proof=f"the container is stopped{cause} and removed, {self.host}:{self.port} refuses",
        )

    async def _drain(self, patience_ns: int) -> None:
        """The rest of the log, before the container is removed and the log with it."""
        if self._follower is not None:
            await asyncio.wait((self._follower,), timeout=patience_ns / SECOND_NS)
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower
        if self._logs is not None:
            await end_follower(self._logs)
