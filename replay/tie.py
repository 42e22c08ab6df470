"""A child that ends when we are killed: the kernel sends it a signal, so nothing of ours has to be alive for that.

PR_SET_PDEATHSIG holds for the child alone and not for its children, is sent when the thread ends that started it, and
is forgotten when a program with the rights of another user is run (setuid). So it is set by `setpriv` of util-linux,
which becomes the command that it is given, and only in the main thread or for a tool whose end does no harm. What it
cannot reach is for `guard`.
"""

import contextlib
import functools
import shutil
import subprocess
import threading
from collections.abc import Sequence
from typing import Literal

type Told = Literal["TERM", "KILL"]


def tied(argv: Sequence[str], told: Told = "TERM", *, any_thread: bool = False) -> list[str]:
    """The command, told to end when we are killed; as it is where that cannot be done.

    `told` is TERM for what has something to put in order, KILL for what has not. `any_thread` is for a child that is of
    no more use when the thread ends that starts it.
    """
    if not any_thread and threading.current_thread() is not threading.main_thread():
        return list(argv)
    return [*(_tie(told) or ()), *argv]


@functools.cache
def _tie(told: Told) -> tuple[str, ...] | None:
    """None where there is no `setpriv` that can do it."""
    program, true = shutil.which("setpriv"), shutil.which("true")
    if program is None or true is None:
        return None
    tie = (program, "--pdeathsig", told)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([*tie, true], capture_output=True, timeout=5, check=False)
        return (*tie, "--") if done.returncode == 0 else None
    return None
