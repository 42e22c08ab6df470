"""What the system refuses, as the front door says it: a sentence and an exit code, and no traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firsttoken import say_refused

ROOT = Path(__file__).parents[1]


def refused(number: int, path: str | bytes | None) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (refused(errno.ENOTDIR, "a/b"), ("a/b: Not a directory", 2)),
        (refused(errno.EROFS, b"a/b"), ("a/b: Read-only file system", 2)),
        (refused(errno.EACCES, "a"), ("a: Permission denied", 2)),
        (refused(errno.ENAMETOOLONG, "a"), ("a: File name too long", 2)),
        (refused(errno.EIO, "a"), ("a: Input/output error", 1)),
        (refused(errno.ENOSPC, "a"), ("a: No space left on device", 1)),
        (refused(errno.ENOSPC, None), ("No space left on device", 1)),  # a write names no path
        (refused(errno.EMFILE, None), ("Too many open files", 1)),
        (refused(errno.ECONNREFUSED, None), None),  # our own fault: it keeps its traceback
        (OSError("made up"), None),
    ],
)
def test_what_the_system_refuses_names_its_path(error: OSError, said: tuple[str, int] | None) -> None:
    assert say_refused(error) == said


@pytest.mark.process
@pytest.mark.parametrize("place", ["file/x", "/proc/none/x", "x" * 300])
@pytest.mark.parametrize(
    "words",
    [
        ["engine", "--port", "1", "--boot-time", "10ms", "--compile-cache"],
        ["profile", "builtin", "single-stream", "-o"],
        ["record", "--upstream", "http://127.0.0.1:2", "--listen", "127.0.0.1:1", "--out"],
        ["demo", "--out"],
    ],
)
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, words: list[str], place: str) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "firsttoken", *words, place],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = [line for line in done.stderr.splitlines() if line.startswith("firsttoken: ")][-1]
    assert place in last
