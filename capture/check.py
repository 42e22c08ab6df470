"""Is a capture complete, and does it add up? Pure: the state of a directory and its lines in, findings out.

What counts against a capture (`problems`): something is known to be missing, a line cannot be read, the sums do not
agree, or others may read it. What a reader should know and cannot mend is a note: gaps where nobody recorded, records
taken while the event loop was late, what retention took.

Two clocks give two views of what is in flight: from arrival (request headers in) and from dispatch (body complete, the
request goes to the engine). For both, Σ k·T_k over the levels must equal the sum of the durations, to the nanosecond.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from capture.evidence import Folder, Sighting
from capture.walk import LATE_NS, RESUMED, Findings, Gap, Run, View, Walk, Window
from profiles.captures import Interval
from profiles.concurrency import measure, union
from profiles.files import FILE_MODE, FOLDER_MODE
from profiles.units import SECOND_NS, format_duration


def check(folder: Folder, sightings: Iterable[Sighting]) -> Findings:
    """Everything that can be said about a capture from its files."""
    walk = Walk(folder)
    for sighting in sightings:
        walk.take(sighting)
    walk.finish()
    found = walk.found
    found.gaps = gaps_between(found.windows)
    # The windows one by one, as `concurrency` has them: where two touch, an open end reaches to the end of its own.
    windows = [(window.opened_ns, window.closed_ns) for window in found.windows]
    found.arrival, found.dispatch = view(walk.arrivals, windows), view(walk.dispatches, windows)
    found.observed_ns = sum(close - opened for opened, close in union(windows))
    found.dropped = dropped_by_reason((folder.manifest or {}).get("dropped"), walk.dropped)
    _judge_requests(walk, folder)
    _judge_lines(walk, folder)
    _judge_files(found, folder)
    found.sentence = sentence(found, walk.runs)
    return found


def view(intervals: list[Interval], windows: list[tuple[int, int]]) -> View | None:
    """One view of what was in flight; None without windows that hold time."""
    if not union(windows):
        return None
    measured = measure(intervals, windows)
    sum_ns = sum(k * time_ns for k, time_ns in measured.time_ns_at.items())
    return View(sum_ns, measured.duration_sum_ns, measured.mean, measured.max)


def gaps_between(windows: list[Window]) -> list[Gap]:
    """The time between each window and the next, and why nobody recorded then."""
    gaps = []
    for before, after in pairwise(windows):
        reason = after.opened_because.removeprefix(RESUMED) or before.closed_because
        gaps.append(Gap(before.closed_ns, after.opened_ns, reason, bool(after.opened_because)))
    return gaps


def dropped_by_reason(told: Any, counted: int) -> Counter[str]:
    """The manifest's counts by reason. Beats may know of more: after a kill the manifest lags."""
    reasons = Counter({str(reason): number for reason, number in told.items()} if isinstance(told, dict) else {})
    if counted > reasons.total():
        reasons["reason not known"] += counted - reasons.total()
    return +reasons


def _judge_requests(walk: Walk, folder: Folder) -> None:
    found, manifest = walk.found, folder.manifest or {}
    for run in walk.runs:
        if run.open and run.closed:
            found.problems.append(
                f"{_count(run.open, 'request')} never ended, though the recorder was stopped in order"
            )
        elif run.open and not (found.recording and run is walk.runs[-1]):
            found.problems.append(_in_flight_at_kill(run))
    if found.dropped:
        reasons = ", ".join(f"{number:,} ({reason})" for reason, number in found.dropped.items())
        found.problems.append(f"{_count(found.dropped.total(), 'record')} dropped: {reasons}")
    if walk.without_start:
        text = f"{_count(walk.without_start, 'request')} ended without a start line"
        # Retention cuts between the two; nothing else does.
        (found.notes if found.purged.segments else found.problems).append(text)
    if walk.without_request:
        text = f"what {_count(walk.without_request, 'request')} asked for is missing"
        (found.notes if found.purged.segments else found.problems).append(text)
    if walk.told_twice:
        found.problems.append(f"{_count(walk.told_twice, 'end line')} for a request that had ended before")
    counted = manifest.get("requests", 0)
    if counted > found.started and not (found.purged.segments or found.dropped or found.recording):
        found.problems.append(f"the manifest counts {counted:,} requests, the segments {found.started:,}")
    if found.late:
        found.notes.append(
            f"{_count(found.late, 'record')} taken while the event loop was more than "
            f"{format_duration(LATE_NS)} late, the worst {format_duration(found.worst_late_ns)}"
        )
    faults = manifest.get("errors")
    if isinstance(faults, dict) and faults:
        found.notes.append(
            "faults of the recorder: " + ", ".join(f"{number} × {fault}" for fault, number in faults.items())
        )


def _judge_lines(walk: Walk, folder: Folder) -> None:
    found = walk.found
    if found.undecodable:
        found.problems.append(f"{_count(found.undecodable, 'line')} cannot be read")
    # While we record, the last line may be on its way.
    torn = found.torn - (found.recording and bool(found.torn))
    if torn > 0:
        found.problems.append(f"{_count(torn, 'torn last line')}, left by a kill or a full disk")
    for name, seen in (("arrival", found.arrival), ("dispatch", found.dispatch)):
        if seen is not None and seen.sum_ns != seen.duration_sum_ns:
            found.problems.append(
                f"Σ k·T_k = {seen.sum_ns} ns is not Σ durations = {seen.duration_sum_ns} ns by the clock of {name}"
            )
    for gap in found.gaps:
        if gap.to_ns < gap.from_ns:
            back = format_duration(gap.from_ns - gap.to_ns)
            found.notes.append(f"the window at {format_instant(gap.to_ns)} begins {back} before the one before it ends")
        elif gap.missed:
            length = format_duration(gap.to_ns - gap.from_ns)
            found.problems.append(
                f"traffic passed unseen for {length} from {format_instant(gap.from_ns)} ({gap.reason})"
            )
    for run in walk.runs[:-1] if found.recording else walk.runs:
        if not run.closed and not run.open and found.windows:
            found.notes.append(f"the recorder was killed at {format_instant(run.ended_ns)}; nothing was in flight")
    if walk.silences:
        longest = max(to_ns - from_ns for from_ns, to_ns in walk.silences)
        at = format_instant(walk.silences[0][0])
        found.notes.append(
            f"{_count(len(walk.silences), 'stretch', 'stretches')} without a beat, the first at {at}, "
            f"the longest {format_duration(longest)}"
        )
    if not found.windows:
        found.problems.append("no window was opened")


def _judge_files(found: Findings, folder: Folder) -> None:
    if folder.manifest is None:
        found.problems.append("manifest.json is missing")
    numbers = folder.numbers
    missing = numbers[-1] - min(numbers[0], 1) + 1 - len(numbers) if numbers else 0
    if missing > found.purged.segments:
        found.problems.append(f"{_count(missing - found.purged.segments, 'segment')} missing from the row of numbers")
    if found.purged.segments:
        until = found.purged.until_wall_ns
        found.notes.append(
            f"{_count(found.purged.segments, 'segment')} purged"
            + (f", until {format_instant(until)}" if until is not None else "")
        )
    for name in folder.links:
        found.problems.append(f"{name} is a symbolic link and is not read")
    if folder.mode & ~FOLDER_MODE:
        found.problems.append(f"others may enter the directory (mode {folder.mode:04o}); chmod 0700 mends it")
    wide = [name for name, mode in folder.modes.items() if mode & ~FILE_MODE]
    if wide:
        found.problems.append(
            f"others may read {_count(len(wide), 'file')} (such as {wide[0]}, mode {folder.modes[wide[0]]:04o}); "
            "chmod 0600 mends it"
        )
    if folder.abandoned:
        found.notes.append(
            f"{_count(len(folder.abandoned), 'unfinished file')} of a killed process; the next recorder removes them"
        )


def sentence(found: Findings, runs: list[Run]) -> str:
    """The findings in one plain sentence."""
    size = f"{_count(found.ended + found.open, 'request')}, {_count(len(found.windows), 'window')}"
    if found.recording and found.sound:
        size = f"{_count(found.ended + found.open, 'request')} so far, {found.open:,} in flight"
        return f"recording: {size}, {_count(len(found.windows), 'window')}, nothing dropped"
    if found.sound:
        return f"complete: {size}, nothing dropped"
    killed = [run for run in runs if run.open and not run.closed]
    if len(killed) == len(found.problems) == 1 and not found.recording:
        return _in_flight_at_kill(killed[0])
    more = len(found.problems) - 1
    others = f", and {_count(more, 'other problem')}" if more else ""
    return f"not sound: {size}; {found.problems[0]}{others}"


def format_instant(wall_ns: int) -> str:
    """A wall-clock instant for people, in UTC."""
    try:
        return datetime.fromtimestamp(wall_ns // SECOND_NS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{wall_ns} ns"


def _in_flight_at_kill(run: Run) -> str:
    verb = "was" if run.open == 1 else "were"
    when = format_instant(run.ended_ns)
    return f"{_count(run.open, 'request')} {verb} in flight when the recorder was killed at {when}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
