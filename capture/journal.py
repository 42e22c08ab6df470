"""The journal of a capture: durable append, each line whole or not at all.

* A line that `append` took is in the kernel: a SIGKILL of this process loses none of them, a power cut loses those of
  the last `sync_ns`.
* A write that fails never raises. The journal is then `broken` with a reason and drops lines at once, without touching
  the disk, until `mend` finds it writable again. The caller counts what was dropped and chooses when to mend.
* A half-written line is cut off, at once where the disk allows it, else when the capture is taken up again. Whatever
  went wrong, what follows begins a new segment.
* Segments end by size and by age, at a line that is there to begin the next one: none holds its head alone.
* One recorder at a time: the directory is locked while the journal is open. The lock dies with the process.

It may block for as long as the disk does, so it is not for a process that carries traffic.
"""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from capture.segments import SEGMENT, TEMPORARY, list_segments
from profiles.capture_folder import MANIFEST, read_manifest, readable
from profiles.errors import FirsttokenError, UsageError
from profiles.files import FILE_MODE, cut_torn_line, lock_folder, make_folder
from profiles.units import HOUR_NS, MILLISECOND_NS, SECOND_NS

# A new segment begins here, so that no file grows without bound and old ones can be compressed while we record.
SEGMENT_BYTES = 256 * 1024 * 1024
SEGMENT_NS = HOUR_NS
SYNC_NS = 5 * SECOND_NS

# Whether the segment still has a name is asked before every line. That is a fifth of what a line costs, and a line into
# a deleted file is lost without an error. Whether the directory is still in its place is asked at this pace: lines into
# one that was moved are not lost, they are only not where the manifest is.
LOOK_EVERY_NS = 250 * MILLISECOND_NS

# `capture check` holds the lock for a moment to see whether we record.
LOCK_TRIES = 4
LOCK_WAIT_S = 0.05

NOT_OPEN = "not open"
VANISHED = "vanished"  # the segment was deleted or its directory moved under us: writes would succeed and go nowhere

# macOS has none; there fsync does the same.
_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def check_folder(folder: Path) -> None:
    """Raise UsageError unless `folder` is a capture of ours, an empty directory, or nothing yet.

    A manifest that the next recorder could not go on from is refused here too.
    """
    with readable(folder, "Record as the user who owns it, or give another path with --out."):
        _check_folder(folder)


def _check_folder(folder: Path) -> None:
    if folder.is_symlink():
        raise UsageError(
            f"{folder} is a symbolic link, and a capture is not written through one",
            f"Name the directory itself: {os.path.realpath(folder)}",
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; a capture is a directory", "Give another path with --out.")
    names = [path.name for path in folder.iterdir()]
    for name in names:
        if (name == MANIFEST or SEGMENT.fullmatch(name)) and (folder / name).is_symlink():
            raise UsageError(
                f"{folder / name} is a symbolic link, and a capture is not written through one",
                "Move the file itself to this place, or give another directory.",
            )
    if MANIFEST in names:
        read_manifest(folder)
        return
    # A kill in the first instant leaves a segment without a manifest, or the manifest's unfinished sibling.
    if not all(
        SEGMENT.fullmatch(name) or TEMPORARY.fullmatch(name) or name.startswith(f".{MANIFEST}") for name in names
    ):
        raise UsageError(
            f"{folder} holds other files and no {MANIFEST}, so it is not a capture",
            "Give --out a new directory, an empty one, or a capture to go on with.",
        )


class Journal:
    """Appends lines to the segments of one capture directory.

    `head` gives the first line of each segment, made anew because it holds a clock reading. `write` is os.write and
    `sync` is os.fdatasync. `on_closed` gets the path of each segment that takes no more lines. 0 for `sync_ns` leaves
    the moment of writing to the kernel.
    """

    def __init__(
        self,
        folder: Path,
        head: Callable[[], bytes],
        *,
        write: Callable[[int, bytes], int] = os.write,
        segment_bytes: int = SEGMENT_BYTES,
        segment_ns: int = SEGMENT_NS,
        sync_ns: int = SYNC_NS,
        sync: Callable[[int], None] = _sync_data,
        clock: Callable[[], int] = time.monotonic_ns,
        on_closed: Callable[[Path], None] = lambda path: None,
    ) -> None:
        self.folder = folder
        self.broken: str | None = NOT_OPEN
        self.torn = 0  # lines that a kill had left unfinished and `open` cut off
        self._head = head
        self._write = write
        self._sync = sync
        self._clock = clock
        self._on_closed = on_closed
        self._segment_bytes = segment_bytes
        self._segment_ns = segment_ns
        self._sync_ns = sync_ns
        self._lock: int | None = None  # file descriptor of the directory
        self._segment: int | None = None  # file descriptor
        self._number = 0
        self._size = 0
        self._lines = 0  # behind the head
        self._begun_ns = self._look_at_ns = self._sync_at_ns = 0
        self._unsynced = False

    @property
    def number(self) -> int:
        """Number of the segment that was begun last. All before it are closed."""
        return self._number

    def open(self) -> None:
        """Take the directory, cut what a kill left torn, begin a segment. Raises UsageError."""
        check_folder(self.folder)
        try:
            make_folder(self.folder)
            self._take_lock(LOCK_TRIES)
            self.torn = sum(
                cut_torn_line(segment.path) > 0 for segment in list_segments(self.folder) if not segment.packed
            )
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
        now_ns = self._clock()
        try:
            # The next segment begins in a new directory if this one is gone: that is for `mend`.
            if os.fstat(self._segment).st_nlink == 0 or (now_ns >= self._look_at_ns and not self._is_in_place()):
                self._break(VANISHED)
                return False
            if now_ns >= self._look_at_ns:
                self._look_at_ns = now_ns + LOOK_EVERY_NS
            aged = self._size >= self._segment_bytes or now_ns - self._begun_ns >= self._segment_ns
            if aged and self._lines:
                self._begin_segment()
            elif self._sync_ns and self._unsynced and now_ns >= self._sync_at_ns:
                self._sync(self._segment)
                self._sync_at_ns = now_ns + self._sync_ns
            self._size += self._put(self._segment, line)
        except OSError as problem:
            self._break(errno.errorcode.get(problem.errno or 0, type(problem).__name__))
            return False
        self._lines += 1
        self._unsynced = True
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
        """Write a line and return its size. A nearly full disk takes a part; the next write then says why."""
        data = rest = line + b"\n"
        while rest:
            taken = self._write(segment, rest)
            if not taken:
                raise OSError(errno.ENOSPC, "nothing was taken")
            rest = rest[taken:]
        return len(data)

    def _begin_segment(self) -> None:
        with os.scandir(self._lock) as entries:
            numbers = [int(match[1]) for entry in entries if (match := SEGMENT.fullmatch(entry.name))]
        number = max([self._number, *numbers]) + 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        segment = os.open(_name(number), flags, FILE_MODE, dir_fd=self._lock)
        try:
            size = self._put(segment, self._head())
        except OSError:
            os.close(segment)
            os.unlink(_name(number), dir_fd=self._lock)
            raise
        self._close_segment()
        self._segment, self._number, self._size, self._lines = segment, number, size, 0
        self._begun_ns = now_ns = self._clock()
        self._sync_at_ns = now_ns + self._sync_ns
        self._look_at_ns = now_ns + LOOK_EVERY_NS
        if self._sync_ns and self._lock is not None:
            with suppress(OSError):  # its name survives a power cut too, where the filesystem can
                os.fsync(self._lock)

    def _break(self, reason: str) -> None:
        if self._segment is not None:
            with suppress(OSError):  # a torn line is the last of its segment then, which readers expect
                os.ftruncate(self._segment, self._size)
        self._close_segment()
        self.broken = reason

    def _close_segment(self) -> None:
        if self._segment is None:
            return
        segment, self._segment = self._segment, None
        with suppress(OSError):
            if self._sync_ns and self._unsynced:
                self._sync(segment)
        self._unsynced = False
        with suppress(OSError):
            os.close(segment)
        if self._lines:
            self._on_closed(self.folder / _name(self._number))
            return
        with suppress(OSError):
            os.unlink(_name(self._number), dir_fd=self._lock)
            self._number -= 1  # so that no number is missing

    def _is_in_place(self) -> bool:
        """Whether the directory that we hold is the one at our path."""
        try:
            return self._lock is not None and os.path.samestat(os.fstat(self._lock), os.lstat(self.folder))
        except OSError:
            return False

    def _take_lock(self, tries: int = 1) -> None:
        self._release_lock()  # it may hold a directory that was deleted
        for left in reversed(range(tries)):
            self._lock = lock_folder(self.folder)  # where a filesystem has no locks, O_EXCL still keeps segments apart
            if self._lock is not None:
                break
            if left:
                time.sleep(LOCK_WAIT_S)
        if self._lock is None:
            raise UsageError(
                f"another recorder is writing to {self.folder}", "Stop it, or give this one another --out."
            )
        if not self._is_in_place():
            raise UsageError(f"{self.folder} was replaced in this moment", "Start again.")

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _name(number: int) -> str:
    return f"segment-{number:06d}.jsonl"
