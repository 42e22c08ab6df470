"""The segments of a capture as files: which are ours, how one is replaced and removed, which have outlived their time.

* Only a regular file named segment-NNNNNN.jsonl or segment-NNNNNN.jsonl.zst is a segment. Links are never followed.
* Who replaces or removes one holds its lock meanwhile (`claim`). So a segment whose bodies are being purged cannot be
  compressed with them at the same time. The lock dies with its process.
* A replacement is written beside it, as .NAME.PID, synced and renamed: a kill leaves the old one or the new one.
* A segment's age is that of its file's last change, the wall clock of its last line, and every replacement keeps it. A
  file that was copied without its times looks younger than it is and is kept for longer, which is the safe side.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import zstandard

from profiles import files
from profiles.files import FILE_MODE

SEGMENT = re.compile(r"segment-(\d{6,})\.jsonl(\.zst)?")
TEMPORARY = re.compile(r"\.segment-\d{6,}\.jsonl(?:\.zst)?\.(\d+)")
PACKED = ".zst"
LEVEL = 3  # lines that are mostly instants become a third of their size
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file as it was listed. Its live and its compressed form share a number."""

    path: Path
    number: int
    bytes: int
    mtime_ns: int
    mode: int

    @property
    def packed(self) -> bool:
        """Whether it is the compressed form."""
        return self.path.suffix == PACKED


@dataclass(frozen=True, slots=True)
class Purged:
    """What retention took: segments, their bytes on disk, and the wall clock of the newest line among them."""

    segments: int = 0
    bytes: int = 0
    until_wall_ns: int | None = None

    def __add__(self, other: "Purged") -> "Purged":
        untils = [until for until in (self.until_wall_ns, other.until_wall_ns) if until is not None]
        return Purged(self.segments + other.segments, self.bytes + other.bytes, max(untils, default=None))

    def document(self) -> dict[str, Any]:
        """What the manifest says under `purged`."""
        return asdict(self)

    @classmethod
    def of(cls, document: Any) -> "Purged":
        """What a manifest said; nothing where it says nothing."""
        if not isinstance(document, dict):
            return cls()
        return cls(document.get("segments", 0), document.get("bytes", 0), document.get("until_wall_ns"))


def purged(segments: Iterable[Segment]) -> Purged:
    """Segment files as one sum. Both forms of one segment count once, with the bytes of both."""
    files = list(segments)
    return Purged(
        len({file.number for file in files}),
        sum(file.bytes for file in files),
        max((file.mtime_ns for file in files), default=None),
    )


def list_segments(folder: Path) -> list[Segment]:
    """All segments in order, the plain form of one before its compressed form. Raises OSError."""
    found = []
    for path in folder.iterdir():
        if match := SEGMENT.fullmatch(path.name):
            try:
                state = path.lstat()
            except FileNotFoundError:  # it was compressed or purged since
                continue
            if stat.S_ISREG(state.st_mode):
                mode = stat.S_IMODE(state.st_mode)
                found.append(Segment(path, int(match[1]), state.st_size, state.st_mtime_ns, mode))
    return sorted(found, key=lambda segment: (segment.number, segment.packed))


def outlived(
    segments: Sequence[Segment],
    closed: int,
    *,
    now_wall_ns: int,
    keep_ns: int | None = None,
    keep_bytes: int | None = None,
) -> list[Segment]:
    """Which of the ordered `segments` to delete: by age, and until all of them together hold `keep_bytes`. Pure.

    Only up to number `closed`, and oldest first: one goes only where all before it go, so no hole appears.
    """
    due: list[Segment] = []
    total = sum(segment.bytes for segment in segments)
    for number, forms in groupby(segments, key=lambda segment: segment.number):
        files = list(forms)
        aged = keep_ns is not None and all(now_wall_ns - file.mtime_ns > keep_ns for file in files)
        if number > closed or not (aged or (keep_bytes is not None and total > keep_bytes)):
            break
        due += files
        total -= sum(file.bytes for file in files)
    return due


@contextmanager
def claim(path: Path) -> Iterator[int]:
    """Open a segment and hold it. Raises BlockingIOError where another process is at work on it, and OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe of that name must not stop us
    try:
        with suppress_no_locks():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            raise BlockingIOError(errno.EAGAIN, "it was replaced in this moment")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def suppress_no_locks() -> Iterator[None]:
    """Go on where a filesystem has no locks; raise BlockingIOError where one is held."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError:
        pass


def remove_segment(segment: Segment) -> None:
    """Delete one segment file. Raises BlockingIOError where another process is at work on it, and OSError."""
    with claim(segment.path):
        segment.path.unlink()


def replace_segment(target: Path, pieces: Iterable[bytes], mtime_ns: int) -> int:
    """Write a segment whole or not at all, with the age `mtime_ns`. Returns its bytes. Raises OSError."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # of a process that had our id before us
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, FILE_MODE)
    size = 0
    try:
        with suppress_no_locks():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # says to `sweep` that its writer lives
        for piece in pieces:
            write_all(descriptor, piece)
            size += len(piece)
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        os.fsync(descriptor)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(descriptor)
    sync_folder(target.parent)
    return size


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte. A nearly full disk takes a part; the next write then says why."""
    rest = memoryview(data)
    while rest:
        taken = os.write(descriptor, rest)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest = rest[taken:]


def sync_folder(folder: Path) -> None:
    """Make renames in a directory survive a power cut, where its filesystem can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_pieces(descriptor: int, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The bytes of an open file from its beginning."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    while piece := os.read(descriptor, piece_bytes):
        yield piece


def pack(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """`size` bytes as one zstd frame with its size and checksum."""
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True).compressobj(size=size)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


def unpack(descriptor: int) -> Iterator[bytes]:
    """The content of an open compressed segment. Raises zstandard.ZstdError where it is damaged or cut."""
    return files.unpack(read_pieces(descriptor, 1 << 16))  # small, for it may unpack to a thousand times its size


def sweep(folder: Path) -> int:
    """Delete the unfinished files of writers that were killed. Returns how many. Raises OSError."""
    gone = 0
    for path in abandoned(folder):
        with suppress(FileNotFoundError):
            path.unlink()
            gone += 1
    return gone


def abandoned(folder: Path) -> list[Path]:
    """Unfinished files whose writer is dead. Its lock tells; process ids are used again, and differ by container."""
    return [path for path in sorted(folder.iterdir()) if TEMPORARY.fullmatch(path.name) and not _has_writer(path)]


def _has_writer(path: Path) -> bool:
    try:
        with claim(path):
            return False
    except OSError:  # held, gone, or a link, which is not ours
        return True
