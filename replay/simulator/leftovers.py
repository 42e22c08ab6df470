"""Processes that the engine makes and does not take along when it goes: a helper, workers, a twin on its port.

A killed vLLM leaves its workers with the memory. They have a session of their own, their parent is gone, they ignore
SIGTERM, and `setproctitle` has written their name over their arguments and their environment alike: neither a process
group, nor a walk over children, nor a name, nor a variable in /proc/PID/environ finds them.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from replay.simulator.faults import LEFTOVER_LIFE_S

RENAMED: Final = "renamed"
# The kernel keeps 15 characters of it.
WORKER_NAME: Final = b"VLLM::EngineCore"
_WORKERS = 2
_PR_SET_NAME = 15
# Fields of /proc/PID/stat behind the name, counted from 0: where arguments and environment begin and end.
_ARG_START, _ARG_END, _ENV_START, _ENV_END = 45, 46, 47, 48
_HELPER = f"import time; time.sleep({LEFTOVER_LIFE_S})"


def spawn_helper() -> int:
    """A child in our process group, which nobody stops. Returns its pid."""
    null = subprocess.DEVNULL  # it must not hold the pipe that somebody reads our log from
    return subprocess.Popen([sys.executable, "-c", _HELPER], stdin=null, stdout=null, stderr=null).pid


def leave_grandchildren(kind: str) -> None:
    """Workers that wait and do nothing. With `renamed` they carry vLLM's name and no environment."""
    for _ in range(_WORKERS):
        detach(lambda: _wait(renamed=kind == RENAMED))


def detach(work: Callable[[], object]) -> None:
    """Run `work` in a process of its own: forked twice, in its own session, without our output, with a limited life.

    Call it before an event loop or a thread exists: a fork takes neither along.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.alarm(LEFTOVER_LIFE_S)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        work()
    finally:
        os._exit(0)


def _wait(*, renamed: bool) -> None:
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    if renamed:
        rename(WORKER_NAME)
    while True:
        signal.pause()


def rename(name: bytes) -> None:
    """Give this process a name as `setproctitle` does: over its arguments, with its environment cleared. Linux only."""
    with contextlib.suppress(OSError, AttributeError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end, env_start, env_end = (int(fields[at]) for at in (_ARG_START, _ARG_END, _ENV_START, _ENV_END))
        ctypes.memset(start, 0, end - start)
        ctypes.memset(env_start, 0, env_end - env_start)
        ctypes.memmove(start, name, min(len(name), end - start - 1))
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)
