"""The journal of a capture: durable append, one line in one write.

* A line that `append` took is in the kernel: a SIGKILL of this process loses none of them, a power cut may.
* A write that fails never raises. The journal is then `broken` with a reason and drops lines at once, without touching
  the disk, until `mend` finds it writable again. The caller counts what was dropped and chooses when to mend.
* A half-written line is cut off, at once where the disk allows it, else when the capture is taken up again. Whatever
  went wrong, what follows begins a new segment.
* One recorder at a time: the directory is locked while the journal is open. The lock dies with the process.
"""

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from profiles.captures import FORMAT, MANIFEST, VERSION
from profiles.errors import FirsttokenError, UsageError
from profiles.files import FILE_MODE, cut_torn_line, lock_folder, make_folder, read_document

# A new segment begins here, so that no file grows without bound and old ones can be moved away while we record.
SEGMENT_BYTES = 256 * 1024 * 1024

NOT_OPEN = "not open"
VANISHED = "vanished"  # the segment was deleted under us: writes would succeed and go nowhere

_SEGMENT = re.compile(r"segment-(\d+)\.jsonl(?:\.zst)?")


def check_folder(folder: Path) -> None:
    """Raise UsageError unless `folder` is a capture of ours, an empty directory, or nothing yet."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; a capture is a directory", "Give another path with --out.")
    if (folder / MANIFEST).exists():
        read_document(folder / MANIFEST, FORMAT, (VERSION,))
        return
    # A kill in the first instant leaves at most the manifest's unfinished sibling.
    if any(not path.name.startswith(f".{MANIFEST}") for path in folder.iterdir()):
        raise UsageError(
            f"{folder} holds other files and no {MANIFEST}, so it is not a capture",
            "Give --out a new directory, an empty one, or a capture to go on with.",
        )


class Journal:
    """Appends lines to the segments of one capture directory.

    `head` gives the first line of each segment, made anew because it holds a clock reading. `write` is os.write.
    """

    def __init__(
        self,
        folder: Path,
        head: Callable[[], bytes],
        *,
        write: Callable[[int, bytes], int] = os.write,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.folder = folder
        self.broken: str | None = NOT_OPEN
        self._head = head
        self._write = write
        self._segment_bytes = segment_bytes
        self._segment: int | None = None  # file descriptor
        self._size = 0
        self._number = 0
        self._lock: int | None = None  # file descriptor of the directory

    def open(self) -> None:
        """Take the directory, cut what a kill left torn, begin a segment. Raises UsageError."""
        check_folder(self.folder)
        try:
            make_folder(self.folder)
            self._take_lock()
            for path in self.folder.glob("segment-*.jsonl"):
                cut_torn_line(path)
            self._begin_segment()
        except OSError as problem:
            self.close()
            raise UsageError(f"{self.folder}: cannot record here ({problem.strerror})") from None
        except FirsttokenError:
            self.close()
            raise
        self.broken = None

    def append(self, line: bytes) -> bool:
        """Hand one line, without its newline, to the kernel. False if it was dropped; `broken` says why."""
        if self.broken is not None or self._segment is None:
            return False
        try:
            if self._size >= self._segment_bytes:
                self._begin_segment()
            if os.fstat(self._segment).st_nlink == 0:
                self._break(VANISHED)
                return False
            self._size += self._put(self._segment, line)
        except OSError as problem:
            self._break(errno.errorcode.get(problem.errno or 0, type(problem).__name__))
            return False
        return True

    def mend(self) -> bool:
        """Try to write again, in a new segment. True if the journal takes lines."""
        if self.broken is None:
            return True
        if self.broken == NOT_OPEN:
            return False
        try:
            make_folder(self.folder)
            self._take_lock()
            self._begin_segment()
        except (OSError, FirsttokenError):
            return False
        self.broken = None
        return True

    def close(self) -> None:
        """Close the segment and give the directory back. Nothing is taken after it."""
        self.broken = NOT_OPEN
        self._close_segment()
        self._release_lock()

    def _put(self, segment: int, line: bytes) -> int:
        data = line + b"\n"
        if self._write(segment, data) != len(data):
            raise OSError(errno.ENOSPC, "short write")
        return len(data)

    def _begin_segment(self) -> None:
        number = max([self._number, *_numbers(self.folder)]) + 1
        path = self.folder / f"segment-{number:06d}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        segment = os.open(path, flags, FILE_MODE)
        try:
            size = self._put(segment, self._head())
        except OSError:
            os.close(segment)
            path.unlink(missing_ok=True)
            raise
        self._close_segment()
        self._segment, self._size, self._number = segment, size, number

    def _break(self, reason: str) -> None:
        if self._segment is not None:
            with suppress(OSError):  # a torn line is the last of its segment then, which readers expect
                os.ftruncate(self._segment, self._size)
        self._close_segment()
        self.broken = reason

    def _close_segment(self) -> None:
        if self._segment is not None:
            with suppress(OSError):
                os.close(self._segment)
            self._segment = None

    def _take_lock(self) -> None:
        self._release_lock()  # it may hold a directory that was deleted
        self._lock = lock_folder(self.folder)  # where a filesystem has no locks, O_EXCL still keeps segments apart
        if self._lock is None:
            raise UsageError(
                f"another recorder is writing to {self.folder}", "Stop it, or give this one another --out."
            )

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _numbers(folder: Path) -> list[int]:
    """The numbers of the segments in a directory."""
    return [int(match[1]) for path in folder.iterdir() if (match := _SEGMENT.fullmatch(path.name))]
