"""The shelf: where closed segments are compressed and kept until they have outlived their time.

One thread of low priority tends it when a segment was closed, and once a minute. What it does can be cut off by a kill
between any two steps and is put right at the next pass:

    segment-000003.jsonl                                                closed
    segment-000003.jsonl, .segment-000003.jsonl.zst.PID                 a kill here leaves a file that `sweep` deletes
    segment-000003.jsonl, segment-000003.jsonl.zst                      a kill here leaves a twin; readers take the .zst
    segment-000003.jsonl.zst                                            done

The plain form is deleted only when the compressed one is synced, in its place and read back. On a full disk it stays
and the next pass tries again. The live segment is never touched: the shelf knows which are closed only by being told.
"""

import errno
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import zstandard

from capture.segments import (
    PACKED,
    SEGMENT,
    Purged,
    Segment,
    claim,
    list_segments,
    outlived,
    pack,
    purged,
    read_pieces,
    remove_segment,
    replace_segment,
    sweep,
    sync_folder,
    unpack,
)

TEND_EVERY_S = 60.0
NICE = 19

DAMAGED = "damaged"
SAME = "same"
DIFFERENT = "different"


class Shelf:
    """Compresses and expires the closed segments of one capture directory.

    `keep_ns` and `keep_bytes` are None for keeping all. Its counts may be read from another thread at any time.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_ns: int | None = None,
        keep_bytes: int | None = None,
        wall_clock: Callable[[], int] = time.time_ns,
        tend_every_s: float = TEND_EVERY_S,
    ) -> None:
        self.folder = folder
        self.compressed = 0  # segments
        self.plain_bytes = 0  # of them before
        self.packed_bytes = 0  # and after
        self.gone = Purged()
        self.failed: Counter[str] = Counter()  # what did not work, by step and reason; tried again at every pass
        self._keep_ns = keep_ns
        self._keep_bytes = keep_bytes
        self._wall_clock = wall_clock
        self._tend_every_s = tend_every_s
        self._closed = 0  # all segments up to this number are closed
        self._known: dict[int, list[Segment]] = {}  # closed ones of the last pass, by number
        self._swept = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, live: int) -> None:
        """Tend the shelf from now on. All segments before number `live` are closed: those of earlier recorders too."""
        self._closed = max(self._closed, live - 1)
        self._thread = threading.Thread(target=self._work, name="shelf", daemon=True)
        self._wake.set()
        self._thread.start()

    def take(self, path: Path) -> None:
        """A segment was closed. Returns at once; this is what the journal's `on_closed` calls."""
        if match := SEGMENT.fullmatch(path.name):
            self._closed = max(self._closed, int(match[1]))
        self._wake.set()

    def stop(self, wait_s: float = 2.0) -> None:
        """Give up what is being compressed: it stays plain and is taken up at the next start.

        Call it before the journal closes, so that the last segment stays plain whatever its size.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def purged(self, before: Any = None) -> dict[str, Any]:
        """What the manifest says under `purged`; `before` is what it said when this recorder began."""
        return (Purged.of(before) + self.gone).document()

    def tend(self) -> None:
        """One pass: put right what a kill left, delete what has outlived its time, compress the rest."""
        try:
            if not self._swept:
                sweep(self.folder)
                self._swept = True
            closed = self._closed  # before the listing: what is listed may be live if it closed in between
            segments = list_segments(self.folder)
        except OSError as problem:  # a directory that vanished comes again with the journal
            self._count("list", problem)
            return
        self._notice_purges(segments, closed)
        due = outlived(
            segments,
            closed,
            now_wall_ns=self._wall_clock(),
            keep_ns=self._keep_ns,
            keep_bytes=self._keep_bytes,
        )
        gone = self._delete(due)
        for segment in segments:
            if self._stopping.is_set():
                return
            if segment.number <= closed and not segment.packed and segment not in gone:
                self._compress(segment)

    def _work(self) -> None:
        _be_nice()
        while not self._stopping.is_set():
            self._wake.wait(self._tend_every_s)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self.tend()
            except Exception as problem:  # a pass that fails must not be the last one
                self._count("tend", problem)

    def _compress(self, segment: Segment) -> None:
        target = segment.path.with_name(segment.path.name + PACKED)
        try:
            with claim(segment.path) as source:
                state = os.fstat(source)
                twin = compare(target, source)
                if twin == DIFFERENT:  # not ours to choose between the two
                    self.failed[f"compress: {target.name} holds something else"] += 1
                    return
                if twin == DAMAGED:
                    pieces = pack(self._until_stopped(read_pieces(source)), state.st_size)
                    size = replace_segment(target, pieces, state.st_mtime_ns)
                    if compare(target, source) != SAME:  # the only copy is not deleted on trust
                        self.failed[f"compress: {target.name} reads back wrong"] += 1
                        return
                    self.packed_bytes += size
                    self.plain_bytes += state.st_size
                    self.compressed += 1
                segment.path.unlink()
            sync_folder(self.folder)
        except FileNotFoundError:
            pass  # it was purged by hand
        except _Stopped:
            pass
        except (OSError, zstandard.ZstdError) as problem:
            self._count("compress", problem)

    def _delete(self, due: list[Segment]) -> list[Segment]:
        gone: list[Segment] = []
        for segment in due:
            try:
                remove_segment(segment)
            except FileNotFoundError:
                continue
            except OSError as problem:
                self._count("delete", problem)
                break  # oldest first: a later one stays while an earlier one does
            gone.append(segment)
        self.gone += purged(gone)
        for segment in gone:
            self._known.pop(segment.number, None)
        return gone

    def _notice_purges(self, segments: list[Segment], closed: int) -> None:
        """Count what somebody else deleted meanwhile, `capture purge` for one."""
        there = {segment.number for segment in segments}
        for number, forms in self._known.items():
            if number not in there:
                self.gone += purged(forms)
        self._known = {}
        for segment in segments:
            if segment.number <= closed:
                self._known.setdefault(segment.number, []).append(segment)

    def _until_stopped(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._stopping.is_set():
                raise _Stopped
            yield piece

    def _count(self, step: str, problem: Exception) -> None:
        number = problem.errno if isinstance(problem, OSError) else None
        self.failed[f"{step}: {errno.errorcode.get(number or 0, type(problem).__name__)}"] += 1


class _Stopped(Exception):
    """Work is given up because the recorder stops."""


def compare(packed: Path, plain: int) -> str:
    """What a compressed segment holds, against the open plain one: SAME, DIFFERENT, or DAMAGED (also where it is none).

    The plain one may be shorter: a torn last line of it is cut at the start of a recorder.
    """
    try:
        with claim(packed) as descriptor:
            os.lseek(plain, 0, os.SEEK_SET)
            for text in unpack(descriptor):
                if not text.startswith(os.read(plain, len(text))):
                    return DIFFERENT
            return DIFFERENT if os.read(plain, 1) else SAME
    except (FileNotFoundError, zstandard.ZstdError):
        return DAMAGED


def _be_nice() -> None:
    """Give this thread the lowest priority, where threads have one of their own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
