"""The directory of a capture: what is in it, its manifest, and what is said where it cannot be read."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from profiles.errors import FormatError
from profiles.files import read_document
from profiles.records import Record

FORMAT = "firsttoken/capture"
VERSION = 1
MANIFEST = "manifest.json"
HASH_KEY = "hash.key"
IS_A_CAPTURE = "A capture is the directory that `firsttoken record --out` wrote."
AS_ITS_OWNER = "Do it as the user who recorded it."
# A recorder that was killed while it made the key may have left a second name of it.
_KEY_FILE = re.compile(r"hash\.key(\.\d+)?")

Count = Annotated[int, msgspec.Meta(ge=0)]


class PurgedFacts(Record, frozen=True, kw_only=True):
    """What a manifest says under `purged`."""

    segments: Count = 0
    bytes: Count = 0
    until_wall_ns: int | None = None


class CountedFacts(Record, frozen=True, kw_only=True):
    """What a manifest counts over all its windows."""

    bodies: str = ""
    started_wall_ns: int = 0
    windows: Count = 0
    requests: Count = 0
    written: Count = 0
    passed_through: Count = 0
    upgrades: Count = 0
    max_in_flight: Count = 0
    dropped: dict[str, Count] = {}
    errors: dict[str, Count] = {}
    purged: PurgedFacts = PurgedFacts()


class RecorderFacts(Record, frozen=True, kw_only=True):
    """What a manifest says of the recorder that wrote it last."""

    prefix: str = ""
    before: CountedFacts = CountedFacts()
    dropped: dict[str, Count] = {}


class ManifestFacts(CountedFacts, frozen=True, kw_only=True):
    """The keys of a manifest that are read again. There may be others."""

    recorder: RecorderFacts = RecorderFacts()


def segment_paths(folder: Path) -> list[Path]:
    """The segments in order. A closed one replaces its live twin, which a kill may have left beside it.

    Raises OSError where the directory cannot be listed.
    """
    named: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):  # a glob would take a directory that may not be listed for an empty one
        if path.name.startswith("segment-") and path.name.endswith((".jsonl", ".jsonl.zst")):
            named[path.name.split(".")[0]] = path  # .jsonl sorts before .jsonl.zst
    return [named[name] for name in sorted(named)]


@contextmanager
def readable(path: Path, hint: str = AS_ITS_OWNER) -> Iterator[None]:
    """Turn what the system refuses in the block into a FormatError that names the file. `path` is where it names none.

    Even to ask whether a file exists may be refused: below a directory that this user may not enter.
    """
    try:
        yield
    except OSError as problem:
        named = problem.filename
        where = Path(os.fsdecode(named)) if isinstance(named, str | bytes | os.PathLike) else path
        if isinstance(problem, PermissionError):
            raise FormatError(where, "may not be read by this user", hint=hint) from None
        raise FormatError(where, f"cannot be read ({problem.strerror or type(problem).__name__})") from None


def require_folder(folder: Path) -> None:
    """Raise FormatError unless `folder` is a directory. Raises OSError where this user may not ask."""
    if not folder.is_dir():
        raise FormatError(folder, "not a directory" if folder.exists() else "no such directory", hint=IS_A_CAPTURE)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a capture, whole. Raises FormatError that names the key where one of ours has a wrong type."""
    path = folder / MANIFEST
    with readable(path):
        if not path.exists():
            raise FormatError(path, "no such file", hint=IS_A_CAPTURE)
        document = read_document(path, FORMAT, (VERSION,))
    try:
        msgspec.convert(document, ManifestFacts)
    except msgspec.ValidationError as error:
        raise FormatError(path, str(error), hint="Correct this key by hand; the segments do not need it.") from None
    return document


def key_files(folder: Path) -> list[Path]:
    """The files that hold the capture's own hash key. Raises OSError.

    Who deletes them holds the lock of the directory: a recorder that goes on needs its key.
    """
    named = [path for path in sorted(folder.iterdir()) if _KEY_FILE.fullmatch(path.name)]
    return [path for path in named if stat.S_ISREG(path.lstat().st_mode)]
