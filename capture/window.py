"""The capture directory during one recording: journal, manifest, and what mends them. It runs in the scribe.

Its counts go on from those of the capture that it takes up. After a kill they may lag by `MANIFEST_EVERY_NS`; the
segments are what holds.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from capture.frames import Pulse
from capture.journal import Journal
from capture.outbox import GONE
from capture.settings import FULL, HASHED, NONE, Settings
from capture.shelf import Shelf
from profiles.capture_folder import FORMAT, MANIFEST, VERSION, read_manifest
from profiles.captures import BeatLine, SegmentLine, WindowLine
from profiles.errors import FirsttokenError
from profiles.files import tool_version, write_document
from profiles.units import SECOND_NS

MEND_EVERY_NS = 5 * SECOND_NS
MANIFEST_EVERY_NS = 10 * SECOND_NS

_NO_PULSE = Pulse(0, 0, 0, 0, 0, 0, 0, {}, {})


class Window:
    """Takes lines for the journal. A line that it could not write is counted, with the reason."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], int] = time.time_ns,
        journal: Journal | None = None,
    ) -> None:
        self.folder = Path(settings.folder)
        self.written = 0  # ends
        self.dropped: Counter[str] = Counter()  # ends that could not be written, by reason
        self.errors: Counter[str] = Counter()  # by place and type; a message could quote a prompt
        self._settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._tool = tool_version()
        self._started_wall_ns = wall_clock()
        self.shelf = Shelf(self.folder, keep_ns=settings.keep_ns, keep_bytes=settings.keep_bytes)
        self.journal = journal or Journal(
            self.folder,
            self.head,
            segment_bytes=settings.rotate_bytes,
            segment_ns=settings.rotate_ns,
            clock=clock,
            on_closed=self.shelf.take,
        )
        self._before: dict[str, Any] = {}  # the counts of the capture before this recorder
        self._pulse = _NO_PULSE
        self.listen = settings.listen
        self._purged_before: Any = None
        self._compressed_before = 0
        self._mend_at_ns = self._manifest_at_ns = 0

    def head(self) -> bytes:
        """The first line of a segment, with the two clocks read together."""
        line = SegmentLine(
            format=FORMAT,
            version=VERSION,
            tool=self._tool,
            wall_ns=self._wall_clock(),
            mono_ns=self._clock(),
            bodies=self._settings.bodies,
        )
        return msgspec.json.encode(line)

    def open(self) -> None:
        """Take the directory. Raises UsageError where it cannot be written or is not a capture.

        A scribe that replaces another goes on all the same, and mends when it can.
        """
        try:
            self.journal.open()
        except FirsttokenError:
            if not self._settings.again:
                raise
            self.journal.broken = "cannot open"
        self._read_before()
        self.written = self._settings.written
        # The manifest is up to ten seconds old: of what the scribe before dropped since, the reasons are lost.
        unsaid = self._settings.taken - self._settings.written - self.dropped.total()
        if unsaid > 0:
            self.dropped[GONE] += unsaid
        self.shelf.start(self.journal.number)
        self._save_manifest()

    def _read_before(self) -> None:
        try:
            found = read_manifest(self.folder)
        except (FirsttokenError, OSError):
            return
        # Of these the manifest's own value is the start, whoever wrote it: they are counted here alone.
        self._purged_before = found.get("purged")
        self._compressed_before = found.get("compressed", 0)
        self._started_wall_ns = found.get("started_wall_ns", self._started_wall_ns)
        recorder = found.get("recorder", {})
        if recorder.get("prefix") == self._settings.prefix:  # ours: the scribe before this one wrote it
            self._before = recorder.get("before", {})
            self.dropped.update(recorder.get("dropped", {}))
            self.errors.update(recorder.get("errors", {}))
        else:
            self._before = {key: found[key] for key in (*_SUMS, *_BY_REASON, *_OTHERS) if key in found}

    def opened(self, at_ns: int, reason: str = "", listen: str = "") -> None:
        """The proxy takes traffic from here on, at the address `listen`."""
        self.listen = listen or self.listen
        self.append(msgspec.json.encode(WindowLine(event="open", at_ns=at_ns, reason=reason)))

    def append(self, line: bytes) -> bool:
        """Write a line. What is dropped is for the caller to count."""
        return self.journal.append(line)

    def end(self, line: bytes) -> None:
        """Write the end of a request, and count it."""
        if self.journal.append(line):
            self.written += 1
        else:
            self.drop(self.journal.broken or "unknown")

    def drop(self, reason: str) -> None:
        """Count a request whose end could not be told or written."""
        self.dropped[reason] += 1

    def beat(self, at_ns: int, pulse: Pulse) -> None:
        """The proxy lives. Mend the journal every few seconds, keep the manifest every ten."""
        self._pulse = pulse
        now_ns = self._clock()
        if self.journal.broken is not None and now_ns >= self._mend_at_ns:
            self._mend_at_ns = now_ns + MEND_EVERY_NS
            self._mend(at_ns)
        line = BeatLine(
            at_ns=at_ns,
            in_flight=pulse.in_flight,
            lag_ns=pulse.lag_ns,
            written=self.written,
            dropped=self.dropped.total() + sum(pulse.dropped.values()),
        )
        self.append(msgspec.json.encode(line))
        if now_ns >= self._manifest_at_ns and self.journal.broken is None:
            self._save_manifest()

    def closed(self, at_ns: int, reason: str) -> None:
        """The proxy takes no more traffic."""
        if self.journal.broken is not None:
            self._mend(at_ns)
        self.append(msgspec.json.encode(WindowLine(event="close", at_ns=at_ns, reason=reason)))

    def close(self, *, clean: bool) -> None:
        """Nothing more comes. Not clean is after a kill of the proxy."""
        self.shelf.stop()  # first, so that the last segment stays as it is until somebody records again
        self.journal.close()
        self._save_manifest(closed=clean)

    def _mend(self, at_ns: int) -> None:
        """Write again after a failure. What passed in between was not seen, so a new window begins."""
        reason = self.journal.broken
        if reason is not None and self.journal.mend():
            self.opened(at_ns, f"resumed after {reason}")
            self._manifest_at_ns = 0  # the directory may be a new one

    def manifest(self, *, closed: bool = False) -> dict[str, Any]:
        """What manifest.json says now."""
        before, pulse = self._before, self._pulse
        now = {
            "windows": 1,
            "requests": pulse.requests,
            "written": self.written,
            "passed_through": pulse.passed_through,
            "upgrades": pulse.upgrades,
            "refused": pulse.refused,
        }
        by_reason = {
            "dropped": self.dropped + Counter(pulse.dropped),
            "errors": self.errors + Counter(pulse.errors),
        }
        kept = {self._settings.bodies, before.get("bodies", NONE)}
        return {
            "format": FORMAT,
            "version": VERSION,
            "tool": self._tool,
            "upstream": self._settings.upstream,
            "listen": self.listen,
            # One body on disk makes it a capture with bodies, whatever later windows keep.
            "bodies": next(mode for mode in (FULL, HASHED, NONE) if mode in kept),
            "started_wall_ns": self._started_wall_ns,
            "updated_wall_ns": self._wall_clock(),
            "closed": closed,
            **{key: before.get(key, 0) + count for key, count in now.items()},
            **{key: dict(Counter(before.get(key, {})) + counts) for key, counts in by_reason.items()},
            "max_in_flight": max(before.get("max_in_flight", 0), pulse.max_in_flight),
            "compressed": self._compressed_before + self.shelf.compressed,
            "not_compressed": dict(self.shelf.failed),  # by step and reason; tried again
            "purged": self.shelf.purged(self._purged_before),
            "recorder": {
                "prefix": self._settings.prefix,
                "before": before,
                "dropped": dict(self.dropped),
                "errors": dict(self.errors),
            },
        }

    def _save_manifest(self, *, closed: bool = False) -> None:
        self._manifest_at_ns = self._clock() + MANIFEST_EVERY_NS
        try:
            write_document(self.folder / MANIFEST, self.manifest(closed=closed))
        except OSError as problem:
            self.errors[f"manifest: {type(problem).__name__}"] += 1


_SUMS = ("windows", "requests", "written", "passed_through", "upgrades", "refused")
_BY_REASON = ("dropped", "errors")
_OTHERS = ("bodies", "max_in_flight")
