"""One command at a time, off the event loop: a client of a container daemon, a hook.

A command runs in a session of its own, so that Ctrl-C in our terminal does not reach it, and is ended with that session
when its time is over or when its caller is cancelled.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.files import FILE_MODE
from profiles.units import SECOND_NS
from replay.engines.family import ended, starting

OUTPUT_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Called:
    """How a command ended. `code` is None where its time was over; output that went to a file is not here."""

    code: int | None
    out: str = ""
    err: str = ""

    @property
    def said(self) -> str:
        """The last line of what it said, for an error."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


async def call(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, limit_ns: int, output: Path | None = None
) -> Called:
    """Run a command to its end. With `output` both its streams are appended there. OSError as from Popen."""
    running: list[subprocess.Popen[bytes]] = []
    work = asyncio.ensure_future(
        asyncio.to_thread(_run, list(argv), dict(env), cwd, limit_ns / SECOND_NS, output, running)
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            for process in running:
                _end(process)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((work,), timeout=0.05)
        if not work.cancelled():
            work.exception()  # heard
        raise


def call_now(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, limit_ns: int) -> Called:
    """The same for who has no event loop. OSError as from Popen."""
    return _run(list(argv), dict(env), cwd, limit_ns / SECOND_NS, None, [])


def _run(
    argv: list[str],
    env: dict[str, str],
    cwd: Path,
    limit_s: float,
    output: Path | None,
    running: list[subprocess.Popen[bytes]],
) -> Called:
    descriptor = None if output is None else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    stream = subprocess.PIPE if descriptor is None else descriptor
    try:
        with starting() as ours:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
            ours.add(process.pid)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    running.append(process)
    code: int | None
    out = err = b""
    try:
        # Not its output but its end is waited for where a file takes it: what it leaves running holds that open.
        if descriptor is None:
            out, err = process.communicate(timeout=limit_s)
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = None
        _end(process)
        if process.stdout is not None and process.stderr is not None:
            process.stdout.close()
            process.stderr.close()
        process.wait()
    ended(process.pid)
    return Called(code, _text(out), _text(err))


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to its group. Its number is its own as long as we have not asked for its end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _text(raw: bytes) -> str:
    return raw[:OUTPUT_LIMIT].decode("utf-8", "replace")
