"""A PROFILE directory that is there whole or not at all, and what may be replaced by it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiles.capture_folder import readable
from profiles.errors import FormatError, UsageError
from profiles.files import FOLDER_MODE, read_document, writable
from profiles.profile import FILES, FORMAT, MANIFEST


@contextmanager
def replacing(out: Path, *, force: bool) -> Iterator[Path]:
    """A directory to fill, which becomes `out` when the block ends well. See `write_profile` for what it raises."""
    with readable(out, "Give another path with -o."):
        check_free(out, force=force)
    with writable(out):
        out.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        unfinished = out.with_name(f".{out.name}.{os.getpid()}")
        unfinished.mkdir(mode=FOLDER_MODE)
        try:
            yield unfinished
            if out.exists():
                _remove_profile(out)
            unfinished.rename(out)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def check_free(out: Path, *, force: bool) -> None:
    """Raise UsageError where `out` exists and is not a profile that `force` may replace. Raises OSError."""
    if not out.exists() and not out.is_symlink():
        return
    other_name = "Give another name with -o."
    try:
        read_document(out / MANIFEST, FORMAT)
    except FormatError:
        raise UsageError(f"{out} exists and is not a profile", other_name) from None
    if not force:
        raise UsageError(f"{out} exists", "Give another name with -o, or --force to replace this profile.")
    foreign = sorted(entry.name for entry in out.iterdir() if entry.name not in FILES or not entry.is_file())
    if foreign or out.is_symlink():
        what = f"holds {foreign[0]}, which no profile has" if foreign else "is a symbolic link"
        raise UsageError(f"{out} {what}: it is not replaced", other_name)


def _remove_profile(out: Path) -> None:
    """Moved aside first, so that a kill in between leaves no half of the old one under its name."""
    aside = out.with_name(f".{out.name}.{os.getpid()}.old")
    out.rename(aside)
    for name in FILES:
        (aside / name).unlink(missing_ok=True)
    aside.rmdir()
