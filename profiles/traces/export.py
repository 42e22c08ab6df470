"""A profile as a trace of others. Each writer says what its format cannot hold: nothing gets lost in silence."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from profiles.errors import FirsttokenError, UsageError
from profiles.files import FILE_MODE
from profiles.profile import Profile

_FLUSH_LINES: Final = 5_000


@dataclass(frozen=True, slots=True)
class ExportAsked:
    """The options of an export."""

    block: int | None = None  # tokens of a block id; None: that of the format
    payload: bool = False  # whole bodies instead of lengths
    force: bool = False


@dataclass(slots=True)
class Written:
    """What was written, and what is to be said of it."""

    rows: int
    lost: list[str]  # what the format cannot hold
    use: str = ""  # how the other tool has to be called


Writer = Callable[[Profile, Path, ExportAsked], Written]


@contextmanager
def new_file(out: Path, *, force: bool) -> Iterator[Path]:
    """The path of an empty file beside `out`, 0600, which becomes `out` when the block ends well.

    Raises UsageError where `out` exists and `force` is not given, and FirsttokenError where it cannot be written.
    """
    if out.is_dir() or ((out.exists() or out.is_symlink()) and not force):
        hint = "Give another name with -o." if out.is_dir() else "Give another name with -o, or --force to replace it."
        raise UsageError(f"{out} exists", hint)
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        try:
            yield beside
            with beside.open("rb+") as file:
                os.fsync(file.fileno())
            beside.replace(out)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise FirsttokenError(
            f"{problem.filename or out}: cannot be written ({problem.strerror})", "Give another path with -o."
        ) from None


def write_lines(out: Path, lines: Iterable[bytes], *, force: bool) -> int:
    """A new file of these lines, and how many they were."""
    count = 0
    with new_file(out, force=force) as path, path.open("wb") as file:
        waiting: list[bytes] = []
        for line in lines:
            waiting.append(line)
            count += 1
            if len(waiting) >= _FLUSH_LINES:
                _put(file, waiting)
        _put(file, waiting)
    return count


def _put(file: BinaryIO, lines: list[bytes]) -> None:
    if lines:
        file.write(b"\n".join(lines) + b"\n")
        lines.clear()
