"""The recorded pacing of a window: which requests it sends, and when each is due. Pure; integers in nanoseconds.

1. `lay_out` puts the recorded busy periods on one timeline: idle gaps above the cap are cut to it. Of a profile that
   holds more than a boot sends, pieces are chosen: whole busy periods, and parts of those that are too long (`pieces`).
2. `Pace` says what is due when, while the window is played.

When a request is due (mode C of the reference, replay §5):

* It waited for others (its parent and the requests whose answers it holds, as far as they are in the window and had
  ended): the recorded time after the latest of their ends. Where the parent ended last that is the think time.
* It overlapped its parent: as long after the parent was due as it arrived after it. Both rules together: the later one.
* Anything else (a root, an unknown session, a parent that is not in the window): its place on the timeline, from one
  absolute anchor. A late answer never shifts it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

from profiles.captures import Interval
from profiles.concurrency import Window as Span
from profiles.concurrency import compare_arrivals, others_in_flight, union
from profiles.profile import ProfileRow
from replay.pieces import Piece, begins_ns, busy_periods, cut, is_next, samples

# Samples that differ by no more than this from the recorded concurrency are alike: the one that leaves the fewest turns
# without the turn before them is played.
ALIKE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Start:
    """When one request of a window is due. Positions are those of the window's list, all before its own."""

    offset_ns: int  # its place on the timeline, from the window's first request
    after: tuple[int, ...] = ()  # these must have ended,
    think_ns: int = 0  # and so long ago
    beside: int | None = None  # the parent that it overlapped: due as long after its due instant as on the timeline


@dataclass(frozen=True, slots=True)
class Timeline:
    """A window's requests with their pacing. `facts` says what was left out, for the plan and for boot.json."""

    rows: tuple[ProfileRow, ...]  # in order of arrival
    starts: tuple[Start, ...]
    facts: dict[str, Any]

    @property
    def met(self) -> dict[int, int]:
        """Requests by the concurrency that they meet as planned, and by the recorded one where an end is not known."""
        planned = self.facts["arrivals_at"]
        if planned is not None:
            return {int(c): count for c, count in planned.items()}
        return Counter((row.in_flight or 0) + 1 for row in self.rows)


def lay_out(
    rows: Sequence[ProfileRow],
    sendable: Sequence[ProfileRow],
    *,
    idle_cap_ns: int,
    cut_idle: bool = True,
    most: int | None = None,
    seed: tuple[int, ...] = (0,),
    unfinished: Sequence[tuple[int, int]] = (),
    recorded: Sequence[Span] = (),
) -> Timeline:
    """The timeline of a window.

    `rows` are all recorded requests in order of arrival, `sendable` those of them that can be sent. Without `cut_idle`
    recorded idle time stays as it was. `most` is how many requests a boot sends; None or enough of them plays
    everything once. `unfinished` are the stays whose end nobody saw, `recorded` the windows in which the recorder saw
    everything, empty where that is not known.
    """
    if not sendable:
        return Timeline((), (), {"requests": 0})
    wanted = {row.request for row in sendable}
    pieces, busy_until = busy_periods(rows, wanted, unfinished, idle_cap_ns, cut_idle, union(recorded))
    total = sum(len(piece.sent) for piece in pieces)
    facts = {"recorded": len(rows), "replayable": total, "whole": True, "busy_periods": len(pieces)}
    if most is None or total <= most:
        return _join(pieces, rows, facts)
    facts["whole"] = False
    parts = cut([piece for piece in pieces if piece.sent], rows, most, busy_until)
    found = (_join(sample, rows, facts) for sample in samples(parts, rows, most, seed))
    # What the whole profile met, at the instants at which it was recorded.
    met = Counter((row.in_flight or 0) + 1 for row in rows)

    def distance(sample: Timeline) -> tuple[int, int]:
        steps = round((compare_arrivals(sample.met, met) or 0.0) / ALIKE)
        return steps, int(sample.facts["parents_missing"])

    return min(found, key=distance)


def _join(pieces: Sequence[Piece], rows: Sequence[ProfileRow], facts: dict[str, Any]) -> Timeline:
    """The timeline of some pieces, one behind the other. `facts` are those of the profile."""
    shift_of: dict[int, int] = {}  # by position: what brings its instants to the timeline
    shift_ns, joins, joined_busy = 0, 0, 0
    for before, piece in zip([None, *pieces], pieces, strict=False):
        if before is not None:
            joined = not is_next(before, piece)
            joins += joined
            joined_busy += joined and piece.idle_ns < 0
            shift_ns += begins_ns(before, piece, rows) - piece.begin_ns
        shift_of |= dict.fromkeys(piece.sent, shift_ns)
    positions = [position for piece in pieces for position in piece.sent]
    starts = _starts(rows, positions, shift_of)
    chosen = tuple(rows[position] for position in positions)
    facts = {**facts, "requests": len(chosen), "span_ns": starts[-1].offset_ns}
    facts |= {"pieces": joins + 1, "joined_busy": joined_busy}
    return Timeline(chosen, starts, facts | _sessions_cut(rows, chosen) | _facts(chosen, starts))


def _starts(rows: Sequence[ProfileRow], positions: Sequence[int], shift_of: dict[int, int]) -> tuple[Start, ...]:
    """The pacing of the chosen positions, in their order."""
    place_of = {rows[position].request: at for at, position in enumerate(positions)}
    zero_ns = rows[positions[0]].arrival_ns + shift_of[positions[0]]
    starts: list[Start] = []
    for at, position in enumerate(positions):
        row = rows[position]
        arrival_ns = row.arrival_ns + shift_of[position]
        ended: dict[int, int] = {}
        beside: int | None = None
        for request in dict.fromkeys((row.parent, *(row.deps or ()))):
            other = place_of.get(-1 if request is None else request)
            if other is None or other >= at:
                continue  # not in the window; what comes later cannot be waited for
            end_ns = rows[positions[other]].end_ns
            if end_ns is not None and end_ns <= row.arrival_ns:
                ended[other] = end_ns + shift_of[positions[other]]
            elif request == row.parent:
                beside = other
        think_ns = max(0, arrival_ns - max(ended.values())) if ended else 0
        starts.append(Start(arrival_ns - zero_ns, tuple(sorted(ended)), think_ns, beside))
    return tuple(starts)


def _sessions_cut(rows: Sequence[ProfileRow], chosen: Sequence[ProfileRow]) -> dict[str, int]:
    """How many of the sessions that are sent lack turns that were recorded."""
    recorded = Counter(row.session for row in rows if row.session is not None)
    sent = Counter(row.session for row in chosen if row.session is not None)
    return {"sessions": len(sent), "sessions_cut": sum(count < recorded[session] for session, count in sent.items())}


def _facts(chosen: Sequence[ProfileRow], starts: Sequence[Start]) -> dict[str, Any]:
    """What a reader must know of a window with recorded pacing. Shares are of its requests."""
    inside = {row.request for row in chosen}
    facts: dict[str, Any] = {
        "sessions_unknown": sum(row.session is None for row in chosen) / len(chosen),
        "parents_missing": sum(row.parent is not None and row.parent not in inside for row in chosen),
        "waiting": sum(bool(start.after) for start in starts),
        "overlapping": sum(start.beside is not None for start in starts),
        "ends_unknown": sum(row.end_ns is None for row in chosen),
        "arrivals_at": None,  # as planned: at the recorded pace and with the recorded service times
        "peak": None,
    }
    if not facts["ends_unknown"]:
        stays = [
            Interval(start.offset_ns, start.offset_ns + max(0, (row.end_ns or 0) - row.arrival_ns))
            for row, start in zip(chosen, starts, strict=True)
        ]
        met = Counter(others + 1 for others in others_in_flight(stays))
        facts |= {"arrivals_at": {str(c): met[c] for c in sorted(met)}, "peak": max(met)}
    return facts


class Pace:
    """What is due when, as the window goes on: sans-I/O. The anchor is the instant of offset 0."""

    def __init__(self, starts: Sequence[Start], anchor_ns: int) -> None:
        self._starts = starts
        self._anchor_ns = anchor_ns
        self._missing = [len(start.after) for start in starts]
        self._latest_ns = [0] * len(starts)  # end of those that it waits for
        self._due_ns: list[int | None] = [None] * len(starts)
        self._after: dict[int, list[int]] = {}
        self._beside: dict[int, list[int]] = {}
        self._queue: list[tuple[int, int]] = []
        self.left = len(starts)  # not taken yet
        for index, start in enumerate(starts):
            for other in start.after:
                self._after.setdefault(other, []).append(index)
            if start.beside is not None:
                self._beside.setdefault(start.beside, []).append(index)
        for index in range(len(starts)):
            self._settle(index)

    def next_due_ns(self) -> int | None:
        """The earliest due instant that is known. None where everything waits for an end, or nothing is left."""
        return self._queue[0][0] if self._queue else None

    def take(self, until_ns: int) -> list[tuple[int, list[int]]]:
        """Due instants up to `until_ns` and the positions that are due at each, in order. Each is taken once."""
        taken: list[tuple[int, list[int]]] = []
        while self._queue and self._queue[0][0] <= until_ns:
            due_ns, index = heappop(self._queue)
            if not taken or taken[-1][0] != due_ns:
                taken.append((due_ns, []))
            taken[-1][1].append(index)
            self.left -= 1
        return taken

    def ended(self, index: int, end_ns: int) -> None:
        """A request has ended, well or not: those that wait for it go on."""
        for waiting in self._after.get(index, ()):
            self._missing[waiting] -= 1
            self._latest_ns[waiting] = max(self._latest_ns[waiting], end_ns)
            self._settle(waiting)

    def _settle(self, index: int) -> None:
        """Put it and those beside it into the queue, where all that their due instants need is known."""
        unsettled = [index]
        while unsettled:
            at = unsettled.pop()
            start = self._starts[at]
            parent_ns = None if start.beside is None else self._due_ns[start.beside]
            if self._due_ns[at] is not None or self._missing[at] or (start.beside is not None and parent_ns is None):
                continue
            known: list[int] = []
            if start.after:
                known.append(self._latest_ns[at] + start.think_ns)
            if start.beside is not None and parent_ns is not None:
                known.append(parent_ns + start.offset_ns - self._starts[start.beside].offset_ns)
            due_ns = max(known, default=self._anchor_ns + start.offset_ns)
            self._due_ns[at] = due_ns
            heappush(self._queue, (due_ns, at))
            unsettled += self._beside.get(at, ())
