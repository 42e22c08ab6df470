"""What every launcher gives: an `Engine`. What every launcher takes: a `Launch`. And what all of them need."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from profiles.errors import EngineFailed
from profiles.experiment_file import Hooks
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.clock import Clock
from replay.engines import ports
from replay.engines.ports import port_refuses

POLL_NS = 20 * MILLISECOND_NS
LOG_TAIL_LINES = 12


class PortTaken(EngineFailed):
    """Something that is not ours answers on the engine's port. No fault of an arm."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a launcher needs. Placeholders are filled in, except in `hooks`, whose own words they are.

    `env` is what the arm adds to our own environment. `run_id` must be random, for it proves what is ours; `boot_name`
    is unique in its run.
    """

    arm: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    host: str
    port: int
    run_id: str
    boot_name: str
    image: str = ""
    container_args: tuple[str, ...] = ()
    hooks: Hooks | None = None
    url: str = ""
    model: str = ""
    # Hears the identity before anything is started and whenever more is known of it. Written down at once, it lets a
    # later run find what a crash of ours left.
    remember: Callable[[dict[str, Any]], None] | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """How an engine went: `term` after it was told, `kill` by force, `died` before it was told; `left` as it was."""

    how: str
    exit_code: int | None
    gone_ns: int | None  # None: it was left alive
    proof: str  # what was seen, in words
    outlived: str | None = None  # what was still alive when its leader had gone


class Engine(Protocol):
    """A running engine. Whoever has one stops it."""

    @property
    def kind(self) -> str:
        """Its launcher: process, docker, podman, command, external."""
        ...

    @property
    def cold(self) -> bool:
        """It was started by us, from nothing."""
        ...

    @property
    def log(self) -> Path: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def base_url(self) -> str:
        """Without a slash at its end."""
        ...

    @property
    def spawned_ns(self) -> int: ...

    @property
    def exit_code(self) -> int | None:
        """None while it lives and where nobody can know it; negative for a signal."""
        ...

    @property
    def lives(self) -> bool:
        """As last seen. Costs nothing."""
        ...

    @property
    def cause(self) -> str | None:
        """Why it died, where the launcher knows more than an exit code: the kernel killed it for its memory."""
        ...

    @property
    def processes_seen(self) -> int: ...

    def identity(self) -> dict[str, Any]:
        """JSON, enough to find it again after a crash of ours (`stop_leftover`). Nothing secret is in it."""
        ...

    def members(self) -> list[psutil.Process]:
        """Its living processes, as far as they can be seen from here. To look at, not to signal."""
        ...

    def owner(self) -> tuple[int, float] | None:
        """Pid and start of the process of ours that listens. Another one later means that a supervisor restarted it."""
        ...

    def owns_port(self) -> bool | None:
        """One of its processes listens on the port; None where the system does not let us see."""
        ...

    def strangers(self) -> list[str]:
        """Listeners on the port that are not its own, in words. No fault of it."""
        ...

    def twins(self) -> list[str]:
        """Listeners beside its own that it started itself and lost, in words. Its own fault."""
        ...

    def log_tail(self) -> tuple[str, ...]:
        """The last lines of its log."""
        ...

    async def stop(self, patience_ns: int) -> Stopped:
        """Stop it gently, then hard, and prove that it is gone. Raises EngineFailed if anything of it remains."""
        ...


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


def prove_free(host: str, port: int) -> None:
    """Nothing accepts on the port, and nobody has bound it on any address. Raises PortTaken."""
    hint = "Stop it, or let firsttoken pick a port: leave `port` out and write {port} in argv."
    if not ports.port_refuses(host, port):
        raise PortTaken(f"something already answers on {host}:{port}", hint, diagnosis="port_taken")
    others = ports.listeners(port, bound=True)
    if others:
        raise PortTaken(f"something already has the port: {ports.describe(others[0])}", hint, diagnosis="port_taken")


async def wait_listening(engine: Engine, clock: Clock, *, patience_ns: int) -> None:
    """Return when the port accepts. Raises EngineFailed if the engine dies first, or never listens."""
    deadline_ns = clock.now_ns() + patience_ns
    while port_refuses(engine.host, engine.port):
        if not engine.lives or clock.now_ns() > deadline_ns:
            said = "\n  ".join(engine.log_tail()) or "it said nothing"
            raise EngineFailed(
                f"nothing listens on {engine.host}:{engine.port} (log: {engine.log})", said, engine.log_tail()
            )
        await clock.sleep_until_ns(clock.now_ns() + POLL_NS)


async def wait_refused(host: str, port: int, clock: Clock, *, patience_ns: int = 5 * SECOND_NS) -> None:
    """Return when nothing answers there any more. Raises PortTaken."""
    deadline_ns = clock.now_ns() + patience_ns
    while not port_refuses(host, port):
        if clock.now_ns() > deadline_ns:
            raise PortTaken(
                f"the engine is gone and {host}:{port} still answers",
                "Another server took the port.",
                diagnosis="port_taken",
            )
        await clock.sleep_until_ns(clock.now_ns() + POLL_NS)


def tail(log: Path) -> tuple[str, ...]:
    """The last lines of a log file, a bounded read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-LOG_TAIL_LINES:]


def log_size(log: Path) -> int:
    """How many bytes a log has by now; 0 where there is none yet."""
    try:
        return log.stat().st_size
    except OSError:
        return 0
