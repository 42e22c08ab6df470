"""One window of recording, from the start of the proxy to its end.

It opens the journal, beats once a second so that a kill or a gap has an end, mends the journal when the disk refused,
keeps the manifest, and closes all of it. Its counts go on from those of the capture that it takes up; after a kill they
may lag by `MANIFEST_EVERY_NS`, the segments are what holds.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from capture.journal import Journal
from capture.recorder import Loop, Recorder
from profiles.captures import FORMAT, MANIFEST, VERSION, BeatLine, SegmentLine, WindowLine
from profiles.files import read_document, tool_version, write_document
from profiles.units import MILLISECOND_NS, SECOND_NS

NONE = "none"
FULL = "full"

BEAT_EVERY_NS = SECOND_NS
MEND_EVERY_NS = 5 * SECOND_NS
MANIFEST_EVERY_NS = 10 * SECOND_NS
# How often the loop's lateness is looked at: often enough that a stall of a tenth of a second cannot hide.
LAG_EVERY_NS = 50 * MILLISECOND_NS


class Session:
    """A mitmproxy addon that holds the recorder. Make it inside a running event loop, or give it a `loop`."""

    def __init__(
        self,
        folder: Path,
        *,
        upstream: str,
        listen: str = "",
        bodies: str = NONE,
        release_content: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], int] = time.time_ns,
        loop: Loop | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.folder = folder
        self.upstream = upstream
        self.listen = listen
        self.bodies = bodies
        self._clock = clock
        self._wall_clock = wall_clock
        self._tool = tool_version()
        self._started_wall_ns = wall_clock()
        self.journal = journal or Journal(folder, self.head)
        self.recorder = Recorder(
            self.journal,
            prefix=f"{self._started_wall_ns:x}",
            clock=clock,
            loop=loop or asyncio.get_running_loop(),
            keep_bodies=bodies == FULL,
            release_content=release_content,
        )
        self.addons = [self.recorder]
        self._before: dict[str, Any] = {}  # the manifest of the capture that was taken up
        self._manifest_lock = threading.Lock()
        self._opened = False
        self._pulse: asyncio.Task[None] | None = None
        self._worst_lag_ns = 0  # since the last beat
        self._beat_at_ns = self._mend_at_ns = self._manifest_at_ns = 0

    def head(self) -> bytes:
        """The first line of a segment, with the two clocks read together."""
        line = SegmentLine(
            format=FORMAT,
            version=VERSION,
            tool=self._tool,
            wall_ns=self._wall_clock(),
            mono_ns=self._clock(),
            bodies=self.bodies,
        )
        return msgspec.json.encode(line)

    def open(self) -> None:
        """Begin the window. Raises UsageError where the directory cannot be written or is not a capture."""
        self.journal.open()
        self._opened = True
        if (self.folder / MANIFEST).exists():
            self._before = read_document(self.folder / MANIFEST, FORMAT, (VERSION,))
        now_ns = self._clock()
        self._append(WindowLine(event="open", at_ns=now_ns))
        self._beat_at_ns = now_ns + BEAT_EVERY_NS
        self._manifest_at_ns = now_ns + MANIFEST_EVERY_NS
        self._save_manifest(self.manifest())

    def start(self) -> None:
        """Begin the window and beat until `done`. Raises what `open` raises."""
        self.open()
        # The loop keeps only a weak reference to a task; this attribute is the strong one.
        self._pulse = asyncio.get_running_loop().create_task(self._beat_on(), name="beats of the recorder")

    def done(self) -> None:
        """mitmproxy stops: finalise what is in flight, close the window. Safe to call twice or without a start."""
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        if not self._opened:
            return
        self._opened = False
        self._mend()
        self.recorder.stop()
        self.beat()  # the last counts
        self._append(WindowLine(event="close", at_ns=self._clock(), reason="stopped"))
        self.journal.close()
        self._save_manifest(self.manifest(closed=True))

    def beat(self) -> None:
        """Say that the recorder is alive, once a second, and mend the journal every few."""
        now_ns = self._clock()
        if self.journal.broken is not None and now_ns >= self._mend_at_ns:
            self._mend_at_ns = now_ns + MEND_EVERY_NS
            self._mend()
        counts = self.recorder.counts
        line = BeatLine(
            at_ns=now_ns,
            in_flight=self.recorder.in_flight,
            lag_ns=self._worst_lag_ns,
            written=counts.written,
            dropped=counts.dropped.total(),
        )
        self._worst_lag_ns = 0
        self._append(line)

    def manifest(self, *, closed: bool = False) -> dict[str, Any]:
        """What manifest.json says now."""
        counts, before = self.recorder.counts, self._before
        return {
            "format": FORMAT,
            "version": VERSION,
            "tool": self._tool,
            "upstream": self.upstream,
            "listen": self.listen,
            # One body on disk makes it a capture with bodies, whatever later windows keep.
            "bodies": FULL if FULL in (self.bodies, before.get("bodies")) else NONE,
            "started_wall_ns": before.get("started_wall_ns", self._started_wall_ns),
            "updated_wall_ns": self._wall_clock(),
            "closed": closed,
            "windows": before.get("windows", 0) + 1,
            "requests": before.get("requests", 0) + counts.requests,
            "written": before.get("written", 0) + counts.written,
            "dropped": dict(Counter(before.get("dropped", {})) + counts.dropped),
            "passed_through": before.get("passed_through", 0) + counts.passed_through,
            "max_in_flight": max(before.get("max_in_flight", 0), counts.max_in_flight),
            "errors": dict(Counter(before.get("errors", {})) + counts.errors),
        }

    def _append(self, line: msgspec.Struct) -> None:
        self.journal.append(msgspec.json.encode(line))

    def _mend(self) -> None:
        """Write again after a failure. What passed in between was not seen, so a new window begins."""
        reason = self.journal.broken
        if reason is not None and self.journal.mend():
            self._append(WindowLine(event="open", at_ns=self._clock(), reason=f"resumed after {reason}"))
            self._manifest_at_ns = 0  # the directory may be a new one

    def _save_manifest(self, document: dict[str, Any]) -> None:
        # The lock keeps the last document last: one may still be on its way to the disk in a thread.
        with self._manifest_lock:
            try:
                write_document(self.folder / MANIFEST, document)
            except OSError as problem:
                self.recorder.counts.errors[f"manifest: {type(problem).__name__}"] += 1

    async def _beat_on(self) -> None:
        while True:
            due_ns = self._clock() + LAG_EVERY_NS
            await asyncio.sleep(LAG_EVERY_NS / SECOND_NS)
            now_ns = self._clock()
            try:
                lag_ns = max(0, now_ns - due_ns)
                self._worst_lag_ns = max(self._worst_lag_ns, lag_ns)
                self.recorder.observe_lag(lag_ns)
                if now_ns >= self._beat_at_ns:
                    self._beat_at_ns = now_ns + BEAT_EVERY_NS
                    self.beat()
                if now_ns >= self._manifest_at_ns and self.journal.broken is None:
                    self._manifest_at_ns = now_ns + MANIFEST_EVERY_NS
                    # It syncs, and a disk may take its time: off the loop that carries the traffic.
                    await asyncio.to_thread(self._save_manifest, self.manifest())
            except Exception as problem:  # a beat that fails must not be the last one
                self.recorder.counts.errors[f"beat: {type(problem).__name__}"] += 1
