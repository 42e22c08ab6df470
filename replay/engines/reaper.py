"""Whose parent this program is: of what it starts, and while an engine lives of all orphans that descend from it.

A child in a session of its own is one of ours that `starting` made, or an orphan of an engine.
"""

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Final

from replay.engines.proc_stat import LINUX

_PR_SET_CHILD_SUBREAPER: Final = 36

# Our own children in sessions of their own. While one is being made its pid is not known yet, and nothing is adopted.
_started: set[int] = set()
_starting = 0
_reaping = 0  # engines that live
_counting = threading.Lock()


def become_reaper() -> None:
    """From now on what descends from us and loses its parent becomes our child, not init's. Linux; else nothing."""
    _set_reaper(1)


def be_no_reaper() -> None:
    """The engine is gone: who would adopt other orphans would have to reap them too, or they stay as zombies."""
    _set_reaper(-1)


def _set_reaper(change: int) -> None:
    global _reaping
    with _counting:
        _reaping = max(0, _reaping + change)
        if LINUX:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(_reaping > 0), 0, 0, 0)


@contextlib.contextmanager
def starting() -> Iterator[set[int]]:
    """Around the start of a child in a session of its own: put its pid into the set that this yields."""
    global _starting
    with _counting:
        _starting += 1
    try:
        yield _started
    finally:
        with _counting:
            _starting -= 1


def ended(pid: int) -> None:
    """A child that came from `starting` has been reaped: its number may be given away."""
    _started.discard(pid)


def started_by_us(pid: int) -> bool:
    """It came from `starting` and has not been reaped."""
    return pid in _started


def may_adopt(pid: int) -> bool:
    """A child of ours in a session of its own is an orphan of an engine; while one is being made nobody can tell."""
    return not _starting and pid not in _started
