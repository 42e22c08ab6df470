"""A directory that this user may not read: below one that may not be entered, not enterable, or not listable."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534

# The modes of the directory and of the one above it. Owner and others alike, so that it holds for any user.
LOCKS = {"below": (0o755, 0o000), "closed": (0o000, 0o755), "not listed": (0o111, 0o755), "only listed": (0o444, 0o755)}


@contextmanager
def locked(folder: Path, lock: str) -> Iterator[None]:
    """`folder` under one of LOCKS, with its files open to all; as nobody where we are root, who may read everything."""
    for path in folder.iterdir():
        path.chmod(0o666)
    modes = folder.stat().st_mode, folder.parent.stat().st_mode
    folder.chmod(LOCKS[lock][0])
    folder.parent.chmod(LOCKS[lock][1])
    is_root = os.geteuid() == 0
    try:
        if is_root:
            try:
                os.seteuid(NOBODY)
            except OSError:
                pytest.skip("cannot become another user here")
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.parent.chmod(modes[1])
        folder.chmod(modes[0])
