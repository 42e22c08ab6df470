"""The launchers `docker` and `podman`: a container of our own, by the command line that both have in common.

    prove the port free → run, detached, with our labels → follow its log → ... → stop → kill → proven dead → removed

Killing a client leaves its container, and a crash of ours leaves it for hours. So it carries the run and the boot in
labels, and only a container whose labels say that it is ours is ever stopped or removed. A value of the environment is
in the client's environment and never in an argument, where everybody could read it.
"""

import asyncio
import contextlib
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson
import psutil

from profiles.errors import EngineFailed
from profiles.files import FILE_MODE
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.engines import ports
from replay.engines.commands import Called, call
from replay.engines.contract import Launch, PortTaken, Stopped, tail, to_the_end, wait_refused
from replay.engines.family import Family, ended, read_stat, starting
from replay.engines.process import prove_free

LABEL_RUN: Final = "firsttoken.run"
LABEL_BOOT: Final = "firsttoken.boot"
NAME_PREFIX: Final = "firsttoken"
RUN_LIMIT_NS: Final = 300 * SECOND_NS
ASK_LIMIT_NS: Final = 60 * SECOND_NS
DRAIN_NS: Final = 10 * SECOND_NS
CLEAR_PATIENCE_NS: Final = 10 * SECOND_NS
KILLED: Final = 137  # 128 + SIGKILL
# What forwards a published port, where it can be seen.
_FORWARDERS = frozenset("docker-proxy rootlesskit rootlessport slirp4netns pasta pasta.avx2 conmon exe".split())
# Variables that steer the client itself. Their values go into arguments, for they hold no keys.
_STEERING = re.compile(r"PATH|HOME|XDG_\w+|DOCKER_\w+|CONTAINERS?_\w+|TMPDIR|LD_\w+|SSH_AUTH_SOCK")


def host_network(container_args: Sequence[str]) -> bool:
    """The container has the network of the host, by its own arguments."""
    joined = {f"{first}={second}" for first, second in itertools.pairwise(container_args)} | set(container_args)
    return bool(joined & {"--network=host", "--net=host"})


def bind_address(kind: str, arm: Any, host: str) -> str:
    """`{bind}`: where the engine has to listen to be reached at `host`. `arm` is what has `container_args`."""
    if kind not in ("docker", "podman") or host_network(arm.container_args):
        return host
    return "::" if ":" in host else "0.0.0.0"  # of the container's own network; published on `host` alone


def run_command(program: str, launch: Launch) -> list[str]:
    """The whole `run`. Names of variables only; their values are in the environment of the client."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{NAME_PREFIX}-{launch.run_id[:8]}-{launch.boot_name}")
    command = [program, "run", "--detach", "--pull", "never", "--name", name]
    command += ["--label", f"{LABEL_RUN}={launch.run_id}", "--label", f"{LABEL_BOOT}={launch.boot_name}"]
    if not host_network(launch.container_args):
        host = f"[{launch.host}]" if ":" in launch.host else launch.host
        command += ["--publish", f"{host}:{launch.port}:{launch.port}"]
    for variable, value in launch.env.items():
        command += ["--env", f"{variable}={value}" if _STEERING.fullmatch(variable) else variable]
    return [*command, *launch.container_args, launch.image, *launch.argv]


def client_environment(launch: Launch) -> dict[str, str]:
    """Ours, with the values that `--env NAME` takes."""
    return {**os.environ, **{name: value for name, value in launch.env.items() if not _STEERING.fullmatch(name)}}


class Client:
    """The command line of docker or podman."""

    def __init__(self, program: str, env: Mapping[str, str], cwd: Path) -> None:
        self.program = program
        self.env = env
        self.cwd = cwd

    async def ask(self, *words: str, limit_ns: int = ASK_LIMIT_NS) -> Called:
        """Run it. Raises EngineFailed where there is no such program."""
        try:
            return await call([self.program, *words], env=self.env, cwd=self.cwd, limit_ns=limit_ns)
        except OSError as error:
            raise EngineFailed(f"cannot run {self.program}: {error.strerror}", diagnosis="not_started") from None

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """What the daemon knows of a container, None where there is none. Raises EngineFailed if it does not answer."""
        asked = await self.ask("inspect", "--type", "container", container)
        if asked.code == 0:
            with contextlib.suppress(orjson.JSONDecodeError):
                found = orjson.loads(asked.out)
                if isinstance(found, list) and found and isinstance(found[0], dict):
                    return found[0]
        if asked.code is not None and re.search(r"no such (container|object)", asked.err, re.IGNORECASE):
            return None
        raise EngineFailed(
            f"{self.program} does not say what became of {container[:12]}: {asked.said}", diagnosis="not_stopped"
        )

    async def ours(self, run_id: str, boot_name: str) -> list[str]:
        """Ids of the containers with these labels, dead ones too."""
        labels = ("--filter", f"label={LABEL_RUN}={run_id}", "--filter", f"label={LABEL_BOOT}={boot_name}")
        listed = await self.ask("ps", "--all", "--no-trunc", "--quiet", *labels)
        if listed.code != 0:
            raise EngineFailed(f"{self.program} cannot list its containers: {listed.said}", diagnosis="not_stopped")
        return listed.out.split()

    async def end(self, container: str, run_id: str, boot_name: str, patience_ns: int) -> dict[str, Any] | None:
        """Stop, then kill. Returns its last state, None where it is gone already. Raises EngineFailed."""
        info = await self.inspect(container)
        if info is not None:  # an id is for good, and so are the labels of its container
            labels = (info.get("Config") or {}).get("Labels") or {}
            if (labels.get(LABEL_RUN), labels.get(LABEL_BOOT)) != (run_id, boot_name):
                raise EngineFailed(
                    f"the container {container[:12]} is not ours: it was left alone", diagnosis="not_ours"
                )
        seconds = math.ceil(patience_ns / SECOND_NS)
        for words, limit_ns in (
            (("stop", "--time", str(seconds)), patience_ns + ASK_LIMIT_NS),
            (("kill",), ASK_LIMIT_NS),
        ):
            if info is None or not info["State"].get("Running"):
                return info
            asked = await self.ask(*words, container, limit_ns=limit_ns)
            info = await self.inspect(container)
        if info is not None and info["State"].get("Running"):
            raise EngineFailed(
                f"the container {container[:12]} is still running after {self.program} kill: {asked.said}",
                f"Look at it with `{self.program} inspect {container[:12]}`.",
                diagnosis="not_stopped",
            )
        return info

    async def remove(self, container: str) -> None:
        """Remove what `end` found to be ours, with its anonymous volumes, and prove it. Raises EngineFailed."""
        removed = await self.ask("rm", "--volumes", container)
        if await self.inspect(container) is not None:
            raise EngineFailed(
                f"{self.program} cannot remove {container[:12]}: {removed.said}", diagnosis="not_stopped"
            )


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
            asked = await self._client.ask(*run_command(self.kind, self._launch)[1:], limit_ns=RUN_LIMIT_NS)
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
            await self._end_logs()
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
        pid, began = int(state.get("Pid") or 0), _instant(str(state.get("StartedAt") or ""))
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
        """Its log from byte 0, as bytes, by the client's own descriptor."""
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, FILE_MODE)
        try:
            with starting() as ours:
                self._logs = await asyncio.create_subprocess_exec(
                    self.kind,
                    "logs",
                    "--follow",
                    self._container,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=descriptor,
                    env=dict(self._client.env),
                    cwd=self._client.cwd,
                    start_new_session=True,
                )
                ours.add(self._logs.pid)
        except OSError as error:
            raise EngineFailed(f"cannot run {self.kind}: {error.strerror}", diagnosis="not_started") from None
        finally:
            os.close(descriptor)

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

    async def _end_logs(self) -> None:
        logs = self._logs
        if logs is None:
            return
        if logs.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                logs.kill()
        await logs.wait()
        ended(logs.pid)

    @property
    def base_url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def processes_seen(self) -> int:
        return len(self._family.seen) if self._family is not None else 1 if self._container else 0

    def identity(self) -> dict[str, Any]:
        oom = {"oom_killed": True} if self.cause and "OOM" in self.cause else {}
        return {
            "launcher": self.kind,
            "run": self._launch.run_id,
            "boot": self._launch.boot_name,
            "image": self._launch.image,
            "host": self.host,
            "port": self.port,
            **self._facts,
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
        if self._family is not None and found:
            members = self._family.look()
            pid, _ = ports.listening_pid(found, [member.pid for member in members])
            for member in members:
                if member.pid == pid:
                    return member.pid, member.started
        return self._leader

    def owns_port(self) -> bool | None:
        if self._published:  # the daemon gives a port to one container only
            return True if self.lives else None
        found = self._listeners()
        if self._family is None or found is None:
            return None
        pid, all_seen = ports.listening_pid(found, [member.pid for member in self._family.look()])
        return True if pid is not None else False if all_seen else None

    def strangers(self) -> list[str]:
        """Listeners beside the container's own, and beside what forwards a published port to it."""
        held = [ports.sockets_of(member.pid) for member in self._family.look()] if self._family is not None else []
        unseen = self._family is None or None in held
        if unseen and not self._published:  # one of ours that we may not see could have any of them
            return []
        ours = {inode for sockets in held if sockets is not None for inode in sockets}
        others = [ports.describe(item) for item in ports.listeners(self.port) or [] if item.inode not in ours]
        if self._published:
            return [said for said in others if "may not see" not in said and said.split(" (pid ")[0] not in _FORWARDERS]
        return others

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
        await self._end_logs()


def _instant(text: str) -> float | None:
    """Seconds since 1970 of the daemon's date, which may have nanoseconds."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))? ?(Z|[+-]\d\d:?\d\d)(?: \w+)?", text)
    if match is None:
        return None
    zone = "+00:00" if match[3] == "Z" else match[3]
    whole = datetime.fromisoformat(f"{match[1].replace(' ', 'T')}{zone}").timestamp()
    return whole + (float(f"0.{match[2]}") if match[2] else 0.0)


async def stop_leftover(identity: Mapping[str, Any], clock: Clock, *, patience_ns: int) -> bool:
    """End and remove what an interrupted boot left, by its labels. True if there was any. Raises EngineFailed."""
    run_id, boot_name = str(identity.get("run") or ""), str(identity.get("boot") or "")
    if not run_id or not boot_name:
        return False
    client = Client(str(identity["launcher"]), os.environ, Path.cwd())
    left = await client.ours(run_id, boot_name)
    for container in left:
        await client.end(container, run_id, boot_name, patience_ns)
        await client.remove(container)
    return bool(left)
