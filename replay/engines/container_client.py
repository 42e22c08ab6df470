"""The command line that docker and podman have in common: how an engine is run, and what a daemon is asked of it.

A container carries the run and the boot in labels, and only one whose labels say that it is ours is stopped or removed.
A value of the environment is in the client's environment and never in an argument, where everybody could read it.
"""

import contextlib
import itertools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from profiles.errors import EngineFailed
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.engines.commands import Called, Caller, call, wait_left
from replay.engines.contract import Launch
from replay.engines.proc_stat import host_boot

LABEL_RUN: Final = "firsttoken.run"
LABEL_BOOT: Final = "firsttoken.boot"
NAME_PREFIX: Final = "firsttoken"
ASK_LIMIT_NS: Final = 60 * SECOND_NS
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

    async def ask(
        self, *words: str, limit_ns: int = ASK_LIMIT_NS, began: Callable[[Caller], None] | None = None
    ) -> Called:
        """Run it. Raises EngineFailed where there is no such program."""
        try:
            return await call([self.program, *words], env=self.env, cwd=self.cwd, limit_ns=limit_ns, began=began)
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


def instant_of(text: str) -> float | None:
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
    if identity.get("calling") and identity.get("host_boot") == host_boot():
        pid, started = identity["calling"]
        await wait_left((pid, started), ASK_LIMIT_NS, clock)
    client = Client(str(identity["launcher"]), os.environ, Path.cwd())
    left = await client.ours(run_id, boot_name)
    for container in left:
        await client.end(container, run_id, boot_name, patience_ns)
        await client.remove(container)
    return bool(left)
