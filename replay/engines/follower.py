"""A command whose output is an engine's log: `docker logs`, the hook `logs`. It ends with us, however we end."""

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from profiles.files import FILE_MODE
from profiles.units import SECOND_NS
from replay.engines.ports import find_program
from replay.engines.reaper import ended, starting
from replay.tie import tied

GRACE_NS = SECOND_NS


async def follow(
    argv: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path, anew: bool = False
) -> asyncio.subprocess.Process:
    """Start it, its output as bytes by its own descriptor; with `anew` from the log's byte 0. OSError as from Popen."""
    # What ties it to us would say from inside the child, in the log, that there is no such program.
    if find_program(argv[0], cwd) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if anew else 0), FILE_MODE)
    try:
        with starting() as ours:
            process = await asyncio.create_subprocess_exec(
                *tied(argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
            ours.add(process.pid)
    finally:
        os.close(descriptor)
    return process


async def end_follower(process: asyncio.subprocess.Process) -> None:
    """SIGTERM to its group, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)  # our child and not reaped: the number is its own
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE_NS / SECOND_NS)
    ended(process.pid)
