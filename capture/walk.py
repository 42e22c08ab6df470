"""The lines of a capture one by one, to what was seen: windows, requests, drops, lateness. Pure.

The rules are those of `profiles.captures.read_capture`, which a test holds side by side with this. What is kept here
and not there is what only a check needs: why windows ended, which recorder a request was left open by, who is late.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from capture.evidence import Flaw, Folder, Sighting
from capture.segments import Purged
from profiles.captures import BeatLine, EndLine, Interval, Line, RequestLine, SegmentLine, StartLine, WindowLine
from profiles.records import UNASKED
from profiles.units import MILLISECOND_NS, SECOND_NS

LATE_NS = 50 * MILLISECOND_NS
SILENT_NS = 5 * SECOND_NS  # a beat is due each second
FLAWS_KEPT = 1000

STOPPED = "stopped"
KILLED = "killed or crashed"
GOING_ON = "still recording"
RESUMED = "resumed after "


@dataclass(slots=True)
class Window:
    """A stretch that was observed, on the wall clock. Without a close line it ends at its last line."""

    opened_ns: int
    closed_ns: int
    opened_because: str = ""  # empty for a recorder that started
    closed_because: str = KILLED

    @property
    def closed(self) -> bool:
        """Whether the recorder said that it ends."""
        return self.closed_because not in (KILLED, GOING_ON)


@dataclass(frozen=True, slots=True)
class Gap:
    """The time between two windows. `missed` says that traffic passed a recorder which could not write."""

    from_ns: int
    to_ns: int
    reason: str
    missed: bool


@dataclass(frozen=True, slots=True)
class View:
    """What was in flight by one clock. `sum_ns` and `duration_sum_ns` are equal, or something is very wrong."""

    sum_ns: int  # Σ k·T_k
    duration_sum_ns: int  # of the requests, clipped to the windows
    mean: float
    max: int


@dataclass(slots=True)
class Findings:
    """What a capture holds and what is wrong with it. Instants are on the wall clock."""

    recording: bool
    started: int = 0
    ended: int = 0
    open: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    windows: list[Window] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    observed_ns: int = 0
    late: int = 0  # records taken while the loop was late by more than LATE_NS
    worst_late_ns: int = 0
    worst_lag_ns: int = 0
    torn: int = 0
    undecodable: int = 0
    flaws: list[tuple[str, str]] = field(default_factory=list)  # place and problem of the first FLAWS_KEPT
    purged: Purged = field(default_factory=Purged)
    arrival: View | None = None  # None where no time was observed
    dispatch: View | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sentence: str = ""

    @property
    def sound(self) -> bool:
        """Nothing is missing or wrong."""
        return not self.problems

    def document(self) -> dict[str, Any]:
        """The findings as one JSON document."""
        counts = {"outcomes": dict(self.outcomes), "dropped": dict(self.dropped)}  # asdict does not know a Counter
        return {"format": "firsttoken/check", "version": 1, "sound": self.sound, **asdict(self), **counts}


@dataclass(slots=True)
class Run:
    """One recorder, from its start to its stop or its death. It may have had several windows."""

    ended_ns: int = 0
    closed: bool = False
    open: int = 0


@dataclass(slots=True)
class _Stay:
    start: StartLine
    shift_ns: int
    run: Run
    dispatch_ns: int | None = None  # by the recorder's clock


class Walk:
    """Where we are in the lines: the open window, and who is in flight. The rules are those of `read_capture`."""

    def __init__(self, folder: Folder) -> None:
        self.found = Findings(folder.recording, purged=Purged.of((folder.manifest or {}).get("purged")))
        self.arrivals: list[Interval] = []
        self.dispatches: list[Interval] = []
        self.runs = [Run()]
        self.without_start = self.without_request = self.told_twice = self.dropped = 0
        self.silences: list[tuple[int, int]] = []
        self._from_the_middle = bool(folder.numbers) and folder.numbers[0] > 1
        self._shift_ns: int | None = None
        self._window: Window | None = None
        self._last_ns = 0
        self._dropped = 0  # the running count of the last beat
        self._stays: dict[str, _Stay] = {}
        self._asked: set[str] = set()
        self._ended: set[str] = set()

    def take(self, sighting: Sighting) -> None:
        """Go on by one line."""
        line = sighting.line
        if isinstance(line, Flaw):
            self._take_flaw(sighting.place, line)
            return
        opens = isinstance(line, WindowLine) and line.event == "open"
        if opens or self._shift_ns is None:
            self._shift_ns = sighting.shift_ns
        if isinstance(line, WindowLine):
            at_ns = line.at_ns + self._shift_ns
            self._open(at_ns, line.reason) if opens else self._close(at_ns, line.reason or STOPPED)
        elif not isinstance(line, SegmentLine):
            self._take_line(line, self._shift_ns)

    def finish(self) -> None:
        """No more lines: who was not seen to end is open, and an open window ends with its last line."""
        self._close(self._last_ns, GOING_ON if self.found.recording else KILLED)
        for stay in self._stays.values():
            self._leave_open(stay)

    def _take_line(self, line: Line, shift_ns: int) -> None:
        match line:
            case StartLine():
                self._see(line.at_ns + shift_ns)
                before = self._stays.get(line.id)
                if before is not None and before.start.at_ns == line.at_ns:
                    before.shift_ns = shift_ns
                    return  # told again, after the writer was replaced
                if before is not None:
                    self._leave_open(before)
                self.found.started += 1
                self._stays[line.id] = _Stay(line, shift_ns, self.runs[-1])
            case RequestLine():
                self._see(line.at_ns + shift_ns)
                self._asked.add(line.id)
                if line.id in self._stays:
                    self._stays[line.id].dispatch_ns = line.at_ns
            case EndLine():
                self._see(line.end_ns + shift_ns)
                self._take_end(line, shift_ns)
            case BeatLine():
                self._see(line.at_ns + shift_ns)
                # A lower count is a new recorder that counts from 0.
                self.dropped += line.dropped - (self._dropped if line.dropped >= self._dropped else 0)
                self._dropped = line.dropped
                self.found.worst_lag_ns = max(self.found.worst_lag_ns, line.lag_ns)

    def _take_end(self, line: EndLine, shift_ns: int) -> None:
        found = self.found
        if line.id in self._ended:
            self.told_twice += 1
        self._ended.add(line.id)
        found.ended += 1
        found.outcomes[line.outcome] += 1
        if self._stays.pop(line.id, None) is None:
            self.without_start += 1
        if line.id in self._asked:
            self._asked.remove(line.id)
        elif line.request == UNASKED and line.dispatch_ns is not None:
            self.without_request += 1
        found.late += line.late_ns > LATE_NS
        found.worst_late_ns = max(found.worst_late_ns, line.late_ns)
        end_ns = line.end_ns + shift_ns
        self.arrivals.append(Interval(line.arrival_ns + shift_ns, end_ns))
        if line.dispatch_ns is not None:
            self.dispatches.append(Interval(line.dispatch_ns + shift_ns, end_ns))

    def _take_flaw(self, place: str, flaw: Flaw) -> None:
        self.found.torn += flaw.torn
        self.found.undecodable += not flaw.torn
        if len(self.found.flaws) < FLAWS_KEPT:
            self.found.flaws.append((place, flaw.problem))

    def _leave_open(self, stay: _Stay) -> None:
        self.found.open += 1
        stay.run.open += 1
        self.arrivals.append(Interval(stay.start.at_ns + stay.shift_ns, None))
        if stay.dispatch_ns is not None:
            self.dispatches.append(Interval(stay.dispatch_ns + stay.shift_ns, None))

    def _see(self, at_ns: int) -> None:
        if self._from_the_middle and self._window is None and not self.found.windows:
            self._open(at_ns, "what was before is gone")
        if self._window is not None and at_ns - self._last_ns > SILENT_NS:
            self.silences.append((self._last_ns, at_ns))
        self._last_ns = max(self._last_ns, at_ns)

    def _open(self, at_ns: int, reason: str) -> None:
        self._close(self._last_ns, reason.removeprefix(RESUMED) or KILLED)
        if not reason and self.found.windows:
            self.runs.append(Run())  # with a reason it is the same recorder that goes on
        self._window, self._last_ns = Window(at_ns, at_ns, reason), at_ns

    def _close(self, at_ns: int, reason: str) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        window.closed_ns, window.closed_because = max(window.opened_ns, at_ns), reason
        self.found.windows.append(window)
        self.runs[-1].ended_ns, self.runs[-1].closed = window.closed_ns, window.closed
