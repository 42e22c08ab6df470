"""One command at a time, off the event loop: a client of a container daemon, a hook.

A command runs in a session of its own, so that Ctrl-C in our terminal does not reach it, and is ended with that session
when its time is over or when its caller is cancelled.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.files import FILE_MODE
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.clock import Clock
from replay.engines.proc_stat import lives, read_stat
from replay.engines.reaper import ended, starting

OUTPUT_LIMIT = 16 * 1024 * 1024
POLL_NS = 50 * MILLISECOND_NS

type Caller = tuple[int, float]  # pid and start of a command's process


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
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    limit_ns: int,
    output: Path | None = None,
    began: Callable[[Caller], None] | None = None,
) -> Called:
    """Run a command to its end. With `output` both its streams are appended there. OSError as from Popen.

    `began` hears in another thread who runs it, so that `end_left` can find it after a crash of ours.
    """
    running: list[subprocess.Popen[bytes]] = []
    work = asyncio.ensure_future(
        asyncio.to_thread(_run, list(argv), dict(env), cwd, limit_ns / SECOND_NS, output, running, began)
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
    began: Callable[[Caller], None] | None = None,
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
    if began is not None and (stat := read_stat(process.pid)) is not None:
        began((process.pid, stat.started))
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


def end_left(caller: Caller) -> bool:
    """SIGKILL to a command that a killed program of ours left running, and to its group. True if it was there."""
    pid, started = caller
    if not lives(pid, started):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return True


async def wait_left(caller: Caller, limit_ns: int, clock: Clock) -> None:
    """Let such a command come to its end, and end it when its time is over."""
    deadline_ns = clock.now_ns() + limit_ns
    while lives(*caller) and clock.now_ns() < deadline_ns:
        await clock.sleep_until_ns(clock.now_ns() + POLL_NS)
    end_left(caller)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to its group. Its number is its own as long as we have not asked for its end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _text(raw: bytes) -> str:
    return raw[:OUTPUT_LIMIT].decode("utf-8", "replace")
