"""The recorded pacing of a window: which requests it sends, and when each is due. Pure; integers in nanoseconds.

1. `lay_out` puts the recorded busy periods on one timeline: idle gaps above the cap are cut to it, and of a profile
   that holds more than a boot sends, whole busy periods are chosen.
2. `Pace` says what is due when, while the window is played.

Idle means that nobody was in flight, by all recorded requests: those that cannot be sent again and those whose end
nobody saw count too. A request without an end counts as in flight until the next one arrives, so nothing beside it is
cut. Time that nobody recorded, between two windows of a recorder, is no load: it is cut to the cap in every mode.

When a request is due (mode C of the reference, replay §5):

* It waited for others (its parent and the requests whose answers it holds, as far as they are in the window and had
  ended): the recorded time after the latest of their ends. Where the parent ended last that is the think time.
* It overlapped its parent: as long after the parent was due as it arrived after it. Both rules together: the later one.
* Anything else (a root, an unknown session, a parent that is not in the window): its place on the timeline, from one
  absolute anchor. A late answer never shifts it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from profiles.captures import Interval
from profiles.concurrency import Window as Span
from profiles.concurrency import others_in_flight, union
from profiles.profile import ProfileRow

# A busy period longer than this part of the plan is cut: one of them must not be the whole sample.
LARGEST_PIECE = 4


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


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive arrivals of one busy period."""

    begin_ns: int
    end_ns: int  # the latest end of those who arrived in it, sent or not
    held: tuple[int, ...]  # positions in the recorded rows
    sent: tuple[int, ...]  # those of them that are sent
    part: int = 0  # of a busy period that was cut
    period: int = 0


def draws(seed: tuple[int, ...]) -> Random:
    """Random numbers that are the same for the same seed on every machine and in every process."""
    return Random(repr(seed))


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
    observed = union(recorded)
    pieces = _busy_periods(rows, wanted, unfinished, idle_cap_ns if cut_idle else None, observed)
    periods, total = len(pieces), sum(len(piece.sent) for piece in pieces)
    whole = most is None or total <= most
    if most is not None and total > most:
        pieces = _choose(_cut([piece for piece in pieces if piece.sent], rows, most), rows, most, seed)

    def pause_ns(before: _Piece, piece: _Piece) -> int:
        gap_ns = piece.begin_ns - before.end_ns
        if piece.period == before.period and piece.part == before.part + 1 and before.held[-1] + 1 == piece.held[0]:
            return gap_ns  # they overlap as they did
        if not whole:
            return idle_cap_ns
        if cut_idle:
            return min(gap_ns, idle_cap_ns)
        unseen_ns = _unseen_ns(observed, before.end_ns, piece.begin_ns)
        return gap_ns - unseen_ns + min(unseen_ns, idle_cap_ns)

    shift_of: dict[int, int] = {}  # by position: what brings its instants to the timeline
    shift_ns = 0
    for before, piece in zip([None, *pieces], pieces, strict=False):
        if before is not None:
            shift_ns += before.end_ns + pause_ns(before, piece) - piece.begin_ns
        shift_of |= dict.fromkeys(piece.sent, shift_ns)
    positions = [position for piece in pieces for position in piece.sent]
    starts = _starts(rows, positions, shift_of)
    chosen = tuple(rows[position] for position in positions)
    facts = {"recorded": len(rows), "replayable": total, "requests": len(chosen), "whole": whole}
    facts |= {"busy_periods": periods, "span_ns": starts[-1].offset_ns} | _facts(chosen, starts)
    return Timeline(chosen, starts, facts)


def _end_ns(rows: Sequence[ProfileRow], at: int) -> int:
    """The end of a request; where nobody knows it, the next arrival."""
    end_ns = rows[at].end_ns
    if end_ns is not None:
        return max(end_ns, rows[at].arrival_ns)
    return rows[at + 1].arrival_ns if at + 1 < len(rows) else rows[at].arrival_ns


def _busy_periods(
    rows: Sequence[ProfileRow],
    wanted: set[int],
    unfinished: Sequence[tuple[int, int]],
    idle_cap_ns: int | None,
    observed: Sequence[Span],
) -> list[_Piece]:
    """Busy periods in order. Between two of them is a gap that is cut: idle above the cap, or not recorded."""
    stays = [(row.arrival_ns, _end_ns(rows, at), at) for at, row in enumerate(rows)]
    stays += [(start_ns, max(start_ns, end_ns), -1) for start_ns, end_ns in unfinished]
    stays.sort(key=lambda stay: (stay[0], stay[2]))
    found: list[_Piece] = []

    def close() -> None:
        sent = tuple(at for at in held if rows[at].request in wanted)
        found.append(_Piece(begin_ns, end_ns, tuple(held), sent, period=len(found)))

    held: list[int] = []
    begin_ns = end_ns = stays[0][0]
    for start_ns, stay_end_ns, at in stays:
        idle = idle_cap_ns is not None and start_ns - end_ns > idle_cap_ns
        if idle or _unseen_ns(observed, end_ns, start_ns):
            close()
            held, begin_ns, end_ns = [], start_ns, start_ns
        end_ns = max(end_ns, stay_end_ns)
        if at >= 0:
            held.append(at)
    close()
    return found


def _unseen_ns(observed: Sequence[Span], low_ns: int, high_ns: int) -> int:
    """How much of a gap nobody recorded. 0 where the windows are not known."""
    if not observed or high_ns <= low_ns:
        return 0
    seen_ns = 0
    for opened, close in observed[max(0, bisect_right(observed, low_ns, key=lambda span: span[0]) - 1) :]:
        if opened >= high_ns:
            break
        seen_ns += max(0, min(close, high_ns) - max(opened, low_ns))
    return high_ns - low_ns - seen_ns


def _cut(pieces: Sequence[_Piece], rows: Sequence[ProfileRow], most: int) -> list[_Piece]:
    """The same, with busy periods of more than a quarter of the plan in parts of about equal size."""
    largest = max(1, most // LARGEST_PIECE)
    found: list[_Piece] = []
    for piece in pieces:
        parts = -(-len(piece.sent) // largest)
        first = piece.held[0]
        for part in range(parts):
            low, high = len(piece.sent) * part // parts, len(piece.sent) * (part + 1) // parts
            last = piece.sent[high] if part < parts - 1 else piece.held[-1] + 1  # behind it
            found.append(_part(piece, rows, range(first, last), piece.sent[low:high], part))
            first = last
    return found


def _part(piece: _Piece, rows: Sequence[ProfileRow], held: Sequence[int], sent: tuple[int, ...], part: int) -> _Piece:
    """Some consecutive arrivals of a piece."""
    own = tuple(held)
    begin_ns = piece.begin_ns if own[0] == piece.held[0] else rows[own[0]].arrival_ns
    # Where it is all of it, somebody whose end nobody saw may have been in flight longer.
    end_ns = piece.end_ns if own[-1] == piece.held[-1] else max(_end_ns(rows, at) for at in own)
    return _Piece(begin_ns, end_ns, own, sent, part, piece.period)


def _choose(pieces: Sequence[_Piece], rows: Sequence[ProfileRow], most: int, seed: tuple[int, ...]) -> list[_Piece]:
    """Pieces that together send `most` requests: a systematic sample with a random start, each piece equally likely.

    It goes through the pieces of each concurrency in the order of time, so that neither the concurrency nor the hours
    are left to chance. What is too much is cut from the end of the largest.
    """

    def place(at: int) -> tuple[int, int]:
        met = sum(rows[position].in_flight or 0 for position in pieces[at].sent)
        return round(met / len(pieces[at].sent)), at

    order = sorted(range(len(pieces)), key=place)
    total = sum(len(piece.sent) for piece in pieces)
    start = draws(seed).random()
    count = -(-len(pieces) * most // total)
    while True:
        taken = [order[int((step + start) * len(pieces) / count)] for step in range(count)]
        surplus = sum(len(pieces[at].sent) for at in taken) - most
        if surplus >= 0:
            break
        count += 1
    kept = {at: pieces[at] for at in sorted(taken)}
    while surplus > 0:
        at = max(kept, key=lambda place: (len(kept[place].sent), place))
        piece = kept.pop(at)
        if len(piece.sent) > surplus:
            left = len(piece.sent) - surplus
            kept[at] = _part(piece, rows, range(piece.held[0], piece.sent[left]), piece.sent[:left], piece.part)
        surplus -= min(surplus, len(piece.sent))
    return [kept[at] for at in sorted(kept)]


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
