"""The recorded busy periods of a profile, and pieces of them that stand for all. Pure; integers in nanoseconds.

Idle means that nobody was in flight, by all recorded requests: those that cannot be sent again and those whose end
nobody saw count too. A request without an end counts as in flight until the next one arrives, so nothing beside it is
cut. Time that nobody recorded, between two windows of a recorder, is no load: it is cut to the cap in every mode.

A piece keeps what stood before it in the record. Where nobody was in flight it follows the piece before after that
idle time, cut to the cap. Where somebody was, it follows at the recorded distance from the arrival before it, while the
last requests of the piece before stand for those that were in flight. So no pause is made up, and nobody is idle where
production was not.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from profiles.concurrency import Window as Span
from profiles.profile import ProfileRow

# A busy period longer than this part of the plan is cut: one of them must not be the whole sample. A part shorter than
# the least piece would hold hardly more than its own beginning.
LARGEST_PIECE = 4
LEAST_PIECE = 16
# So many samples are drawn, and the one that is most like the whole profile is played.
SAMPLES = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive arrivals of one busy period."""

    begin_ns: int
    end_ns: int  # the latest end of those who arrived in it, sent or not
    held: tuple[int, ...]  # positions in the recorded rows
    sent: tuple[int, ...]  # those of them that are sent
    idle_ns: int  # nobody was in flight so long before it, cut to the cap; below 0: somebody was
    since_ns: int = 0  # from the arrival before it
    part: int = 0  # of a busy period that was cut
    period: int = 0


def draws(seed: tuple[int, ...]) -> Random:
    """Random numbers that are the same for the same seed on every machine and in every process."""
    return Random(repr(seed))


def is_next(before: Piece, piece: Piece) -> bool:
    """Whether the record has nothing between the two."""
    return not before.held or not piece.held or before.held[-1] + 1 == piece.held[0]


def begins_ns(before: Piece, piece: Piece, rows: Sequence[ProfileRow]) -> int:
    """When a piece begins on the timeline of the piece before it."""
    if piece.period == before.period and is_next(before, piece):
        return piece.begin_ns  # they overlap as they did
    if piece.idle_ns >= 0:
        return before.end_ns + piece.idle_ns
    return min(before.end_ns, rows[before.held[-1]].arrival_ns + piece.since_ns)


def end_of(rows: Sequence[ProfileRow], at: int) -> int:
    """The end of a request; where nobody knows it, the next arrival."""
    end_ns = rows[at].end_ns
    if end_ns is not None:
        return max(end_ns, rows[at].arrival_ns)
    return rows[at + 1].arrival_ns if at + 1 < len(rows) else rows[at].arrival_ns


def busy_periods(
    rows: Sequence[ProfileRow],
    wanted: set[int],
    unfinished: Sequence[tuple[int, int]],
    idle_cap_ns: int,
    cut_idle: bool,
    observed: Sequence[Span],
) -> tuple[list[Piece], dict[int, int]]:
    """Busy periods in order, and for each position the instant until which others kept the engine busy before it.

    Between two periods is a gap that is cut: idle above the cap, or not recorded.
    """
    stays = [(row.arrival_ns, end_of(rows, at), at) for at, row in enumerate(rows)]
    stays += [(start_ns, max(start_ns, end_ns), -1) for start_ns, end_ns in unfinished]
    stays.sort(key=lambda stay: (stay[0], stay[2]))
    found: list[Piece] = []
    busy_until: dict[int, int] = {}

    def close() -> None:
        sent = tuple(at for at in held if rows[at].request in wanted)
        found.append(Piece(begin_ns, end_ns, tuple(held), sent, idle_ns, period=len(found)))

    held: list[int] = []
    begin_ns = end_ns = stays[0][0]
    idle_ns = 0
    for start_ns, stay_end_ns, at in stays:
        unseen_ns = _unseen_ns(observed, end_ns, start_ns)
        if unseen_ns or (cut_idle and start_ns - end_ns > idle_cap_ns):
            close()
            gap_ns = start_ns - end_ns
            idle_ns = min(gap_ns, idle_cap_ns) if cut_idle else gap_ns - unseen_ns + min(unseen_ns, idle_cap_ns)
            held, begin_ns, end_ns = [], start_ns, start_ns
        if at >= 0:
            held.append(at)
            busy_until[at] = end_ns
        end_ns = max(end_ns, stay_end_ns)
    close()
    return found, busy_until


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


def cut(pieces: Sequence[Piece], rows: Sequence[ProfileRow], most: int, busy_until: dict[int, int]) -> list[Piece]:
    """The same, with busy periods of more than a quarter of the plan in parts of about equal size.

    They are cut where nobody was in flight, as far as there is such a place near.
    """
    largest = max(1, most // LARGEST_PIECE, min(most, LEAST_PIECE))

    def idle_ns(at: int) -> int:
        return rows[at].arrival_ns - busy_until[at]

    found: list[Piece] = []
    for piece in pieces:
        parts = -(-len(piece.sent) // largest)
        size = len(piece.sent) / parts
        edges = [0]  # of the parts, among those that are sent
        for part in range(1, parts):
            low = max(edges[-1] + 1, math.ceil((part - 0.5) * size))
            near = [at for at in range(low, math.ceil((part + 0.5) * size)) if idle_ns(piece.sent[at]) >= 0]
            edges.append(min(near, key=lambda at: abs(at - part * size), default=max(low, round(part * size))))
        first = piece.held[0]
        for part, (low, high) in enumerate(pairwise([*edges, len(piece.sent)])):
            last = piece.sent[high] if part < parts - 1 else piece.held[-1] + 1  # behind it
            own = _part(piece, rows, range(first, last), piece.sent[low:high], part)
            if part:
                since_ns = rows[first].arrival_ns - rows[first - 1].arrival_ns
                own = replace(own, idle_ns=idle_ns(first), since_ns=since_ns)
            found.append(own)
            first = last
    return found


def _part(piece: Piece, rows: Sequence[ProfileRow], held: Sequence[int], sent: tuple[int, ...], part: int) -> Piece:
    """Some consecutive arrivals of a piece, what stood before it unchanged."""
    own = tuple(held)
    begin_ns = piece.begin_ns if own[0] == piece.held[0] else rows[own[0]].arrival_ns
    # Where it is all of it, somebody whose end nobody saw may have been in flight longer.
    end_ns = piece.end_ns if own == piece.held else max(end_of(rows, at) for at in own)
    return replace(piece, begin_ns=begin_ns, end_ns=end_ns, held=own, sent=sent, part=part)


def samples(
    pieces: Sequence[Piece], rows: Sequence[ProfileRow], most: int, seed: tuple[int, ...]
) -> Iterator[list[Piece]]:
    """Pieces that together send `most` requests: systematic samples with random starts, each piece equally likely.

    They go through the pieces of each concurrency in the order of time, so that neither the concurrency nor the hours
    are left to chance.
    """

    def place(at: int) -> tuple[int, int]:
        met = sum(rows[position].in_flight or 0 for position in pieces[at].sent)
        return round(met / len(pieces[at].sent)), at

    order, random = sorted(range(len(pieces)), key=place), draws(seed)
    return (_draw(pieces, order, rows, most, random.random()) for _ in range(SAMPLES))


def _draw(
    pieces: Sequence[Piece], order: Sequence[int], rows: Sequence[ProfileRow], most: int, start: float
) -> list[Piece]:
    """Every n-th piece of the order from a start in 0..1 on. What is too much is cut from the end of the largest."""
    total = sum(len(piece.sent) for piece in pieces)
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
