"""Exact time-weighted concurrency of half-open intervals: what it is, and its rules. Pure; integers in nanoseconds.

The sweep itself, over arrays, is in `profiles.sweep`; `measure` is the way to it for a list of intervals.

N(t) is the number of intervals [start, end) that hold t, looked at inside the observed windows W only. Two views of it:

    time      T_k = time in W with N = k. What the machine carries.
    arrivals  A_c = arrivals in W that find c − 1 others in flight: c is the operating point that the request sees,
              with itself. What users feel; verdicts weigh by it.

They agree for Poisson arrivals alone (PASTA); bursts and closed loops drive them apart, so both are kept.

Rules, each with an edge case in the tests:

* One that ends at the instant at which another starts does not overlap it.
* Zero length (rejected at once): an arrival, no time.
* Started before its window: time, no arrival.
* No end seen: censored at the end of its window. The last line before a kill is often an arrival, and its window ends
  with it: such a one has no time, and like any start at the close of a window it is no arrival.
* A gap between windows leaves W. It is never counted as time at 0.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from profiles.captures import Interval

type Window = tuple[int, int]

# Levels that carry less than the last 5 % of the arrivals are not worth a cold boot's time.
COVER = 0.95
# The synthetic load of the method, c = 8: whether production ever goes above it is always said.
CROWD = 8


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The levels c to measure at, ascending, and the weight of each: its share of their arrivals. They sum to 1."""

    levels: tuple[int, ...]
    weights: dict[int, float]
    cover: float  # the share of arrivals that was asked for
    reached: float  # the share that these levels hold


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Concurrency over the observed windows. Levels without time or arrivals have no key."""

    time_ns_at: dict[int, int]  # k in flight -> time
    arrivals_at: dict[int, int]  # operating point (k others + itself) -> arrivals
    observed_ns: int  # |W|
    duration_sum_ns: int  # of the clipped intervals; equals the sum of k × time_ns_at[k] (Little)

    @property
    def requests(self) -> int:
        """Arrivals inside the windows."""
        return sum(self.arrivals_at.values())

    @property
    def busy_ns(self) -> int:
        """Time with anything in flight."""
        return self.observed_ns - self.time_ns_at.get(0, 0)

    @property
    def share_wall(self) -> dict[int, float]:
        """Share of the observed time at each k."""
        return {k: time_ns / self.observed_ns for k, time_ns in self.time_ns_at.items()}

    @property
    def share_busy(self) -> dict[int, float]:
        """Share of the busy time at each k ≥ 1. Empty where nothing was in flight."""
        return {k: time_ns / self.busy_ns for k, time_ns in self.time_ns_at.items() if k}

    @property
    def share_arrivals(self) -> dict[int, float]:
        """Share of the arrivals at each operating point. Empty without arrivals."""
        return {c: count / self.requests for c, count in self.arrivals_at.items()}

    @property
    def mean(self) -> float:
        """Time-weighted mean number in flight, L of Little's law."""
        return self.duration_sum_ns / self.observed_ns

    @property
    def max(self) -> int:
        """The most that were ever in flight, an arrival counting itself even if it was turned away at once."""
        return max([0, *self.time_ns_at, *self.arrivals_at])

    def reach(self, c: int) -> float | None:
        """Share of arrivals at the operating point c or above. None without arrivals."""
        if not self.requests:
            return None
        return sum(count for level, count in self.arrivals_at.items() if level >= c) / self.requests

    def operating_point(self, cover: float = COVER) -> OperatingPoint:
        """The lowest levels that together hold at least `cover` of the arrivals. No levels without arrivals."""
        levels: list[int] = []
        held = 0
        for c in sorted(self.arrivals_at):
            if levels and held / self.requests >= cover:
                break
            levels.append(c)
            held += self.arrivals_at[c]
        weights = {c: self.arrivals_at[c] / held for c in levels}
        return OperatingPoint(tuple(levels), weights, cover, held / self.requests if held else 0.0)


def measure(intervals: Sequence[Interval], windows: Sequence[Window]) -> Concurrency:
    """Concurrency of `intervals` over `windows`. Raises ValueError where the windows hold no time.

    Intervals that start at the same instant are taken to have arrived in the order given.
    """
    # numpy is loaded here, not above: whoever only names a Concurrency does without it.
    import numpy as np

    from profiles.sweep import Stays, sweep

    stays = censor(intervals, windows)
    start_ns = np.array([stay.start_ns for stay in stays], dtype=np.int64)
    end_ns = np.array([stay.end_ns for stay in stays], dtype=np.int64)
    order = np.argsort(start_ns, kind="stable")
    nobody = np.full(len(stays), -1, dtype=np.int32)
    return sweep(Stays(start_ns[order], end_ns[order], nobody, (), union(windows), None))


def compare_arrivals(achieved: Mapping[int, int], recorded: Mapping[int, int]) -> float | None:
    """Total variation between two histograms of arrivals: half the sum of the differences of their shares.

    0 where they have the same shape, 1 where they share no level; None where one of them is empty.
    """
    one, other = sum(achieved.values()), sum(recorded.values())
    if not one or not other:
        return None
    levels = {*achieved, *recorded}
    return sum(abs(achieved.get(c, 0) / one - recorded.get(c, 0) / other) for c in levels) / 2


def union(windows: Iterable[Window]) -> list[Window]:
    """The same time as disjoint windows in order; those that touch or overlap become one, empty ones vanish."""
    merged: list[Window] = []
    for opened, close in sorted(windows):
        if opened >= close:
            continue
        if merged and opened <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], close))
        else:
            merged.append((opened, close))
    return merged


def censor(intervals: Iterable[Interval], windows: Iterable[Window]) -> list[Interval]:
    """The same intervals, every open end set to the end of its window: the first one that closes after its start.

    Nobody saw what it did later, so it does not reach into the next window. It has no time at all where it starts at
    the end of its window and no other window holds that instant, or where no window closes after its start. Only one
    that starts between two windows belongs to the next: a recorder that could not write tells in its new window who
    has come meanwhile and is still there.
    """
    spans = list(windows)
    ends, observed = sorted(close for _, close in spans), union(spans)
    return [stay if stay.end_ns is not None else _ended(stay, ends, observed) for stay in intervals]


def _ended(stay: Interval, ends: list[int], observed: Sequence[Window]) -> Interval:
    start_ns = stay.start_ns
    at = bisect_right(ends, start_ns)
    closes_now = at > 0 and ends[at - 1] == start_ns
    if at == len(ends) or (closes_now and not is_observed(start_ns, observed)):
        return Interval(start_ns, start_ns, stay.workload)
    return Interval(start_ns, ends[at], stay.workload)


def others_in_flight(intervals: Sequence[Interval]) -> list[int]:
    """How many others each interval finds at its start, at its position in `intervals`. Ends must be known.

    Taken in order of start, ties in the order given: of three that arrive together the first finds none.
    """
    # Without numpy, on purpose: a replay, which has few intervals, keeps its memory to itself.
    order = sorted(range(len(intervals)), key=lambda at: intervals[at].start_ns)
    found = [0] * len(intervals)
    ends: list[int] = []
    for at in order:
        stay = intervals[at]
        if stay.end_ns is None:
            raise ValueError("an interval without an end: censor the intervals first")
        while ends and ends[0] <= stay.start_ns:
            heappop(ends)
        found[at] = len(ends)
        heappush(ends, stay.end_ns)
    return found


def is_observed(at_ns: int, observed: Sequence[Window]) -> bool:
    """Whether an instant lies in the disjoint, ordered windows of `union`."""
    at = bisect_right(observed, at_ns, key=lambda window: window[0]) - 1
    return at >= 0 and at_ns < observed[at][1]
