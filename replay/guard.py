"""Who stops an engine when we are killed and can do nothing any more: by SIGKILL, for want of memory, by a fault.

The kernel tells the engine's first process (`tie`). One that ignores SIGTERM, workers that left it, a container and
what hooks started hear of nothing. So beside each boot a shell sleeps in the read of a pipe whose other end only we
hold. At the boot's end we tell it to go. If we die the kernel closes the pipe, and the shell becomes this module, which
stops what the boot left, as --resume would, and writes that into the run.

    replay ──pipe──> sh (read) ──our death──> stop_left(RUN/boots/B/engine.json)

A shell, for a sleeping Python would weigh 10 MB and take CPU while an engine boots. Who kills it too, or everything at
once, is beyond it: then --resume stops what is left.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from profiles.errors import FirsttokenError
from profiles.files import append_line, cut_torn_line, encode, lock_folder, write_whole
from profiles.runs import BOOT, EVENTS
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.clock import Clock, SystemClock
from replay.engines import stop_leftover
from replay.engines.reaper import ended, starting
from replay.rundir import ENDED, ENGINE

SCRIPT: Final = 'read -r _ || exec "$@"'
# Its environment is that of the user's hooks, so the way to this package is no part of it.
CODE: Final = "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n" + (
    "from replay.guard import stop_left; stop_left(Path(sys.argv[2]))"
)
# What the arm adds to our environment, for its hooks. A pipe of a shell could not carry it.
HOOKS_ENV: Final = "FIRSTTOKEN_HOOKS_ENV"
# Longer than any engine is waited for: `stop` of hooks is the slowest.
PATIENCE_NS: Final = 180 * SECOND_NS
POLL_NS: Final = 50 * MILLISECOND_NS


class Guard:
    """The sleeping shell of one boot. Make it with `start` before the engine; `dismiss` it when the boot has ended."""

    def __init__(self, process: subprocess.Popen[bytes], line: int) -> None:
        self._process = process
        self._line = line

    @classmethod
    def start(cls, boot: Path, hooks_env: Mapping[str, str]) -> "Guard | None":
        """None where the system has no shell, or refuses another process: the boot goes on unguarded."""
        shell = shutil.which("sh")
        if shell is None or not sys.executable:
            return None
        sleeping, line = os.pipe()
        words = [sys.executable, "-c", CODE, str(Path(__file__).parents[1]), str((boot / ENGINE).absolute())]
        env = {**os.environ, HOOKS_ENV: orjson.dumps(dict(hooks_env)).decode()}
        try:
            with starting() as ours:
                process = subprocess.Popen(
                    [shell, "-c", SCRIPT, "firsttoken-guard", *words],
                    stdin=sleeping,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=env,
                    start_new_session=True,  # Ctrl-C and a hangup are for us
                )
                ours.add(process.pid)
        except OSError:
            os.close(line)
            return None
        finally:
            os.close(sleeping)
        return cls(process, line)

    def dismiss(self) -> None:
        """The boot has ended, and nothing of it is alive."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._line, b"ended\n")
        os.close(self._line)
        self._process.wait()
        ended(self._process.pid)


def acting(run: Path) -> bool:
    """A guard is stopping what a killed replay of this run left."""
    for engine in run.glob(f"*/*/{ENGINE}"):
        held = lock_folder(engine.parent)
        if held is None:
            return True
        os.close(held)
    return False


async def wait_guards(run: Path, clock: Clock) -> None:
    """Let guards finish before a run is taken up again: both would stop the same engine, and one of them a new one."""
    deadline_ns = clock.now_ns() + PATIENCE_NS
    while acting(run) and clock.now_ns() < deadline_ns:
        await clock.sleep_until_ns(clock.now_ns() + POLL_NS)


def stop_left(engine: Path) -> None:
    """Stop what the boot of this engine.json left, and write it into the run. Whoever has taken the run up does it."""
    boot = engine.parent
    run = boot.parent.parent
    locks = [lock_folder(boot), lock_folder(run)]
    try:
        if None not in locks and engine.exists() and not (boot / BOOT).exists():
            _stop(run, boot, engine)
    finally:
        for lock in locks:
            if lock is not None:
                os.close(lock)


def _stop(run: Path, boot: Path, engine: Path) -> None:
    identity = orjson.loads(engine.read_bytes())
    if identity.get(ENDED):
        return
    if identity.get("launcher") == "command":
        os.environ.update(orjson.loads(os.environ.get(HOOKS_ENV, "{}")))
    clock = SystemClock()
    line = {"at_ns": clock.now_ns(), "wall_ns": clock.wall_ns(), "boot": boot.name, "by": "guard"}
    try:
        found = asyncio.run(stop_leftover(identity, clock))
    except FirsttokenError as error:
        line |= {"event": "leftover_remains", "reason": error.problem}
    else:
        write_whole(engine, encode({**identity, ENDED: True}))
        if not found:
            return
        line |= {"event": "leftover_stopped", "launcher": identity.get("launcher")}
    cut_torn_line(run / EVENTS)
    append_line(run / EVENTS, line, sync=True)
