"""The sweep of `profiles.concurrency` over arrays: 10 million requests in seconds, exact to the nanosecond. Pure.

1. `merge`        starts in order and ends in order: the sweep line
2. `Line`         time at each level and arrivals at each operating point, over all of it or any part of it
3. `sweep`        the concurrency of everything
4. `sweep_groups` the concurrency of each class

How it is exact without a heap and without big numbers:

* The line is walked in stretches that fit a processor's cache. The level at the beginning of a stretch is the starts
  before it less the ends before it. Inside, an end at t has the key 2t and a start at t the key 2t + 1, so that a sort
  puts an end before a start of the same instant, and a running sum gives the level after each event.
* Instants become observed time, a clock that stands still between windows. A gap has no length on it, so it cannot be
  counted, and what stays through a gap is in flight on both of its sides.
* Time is added up in float64, whose sums of integers are exact up to 2^53 ns (104 days); beyond, low and high bits are
  added up apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from profiles.concurrency import Concurrency, Window

type Instants = NDArray[np.int64]
type Counts = NDArray[np.int64]  # indexed by level

# A stretch holds about this many starts and as many ends. More of one instant are not torn apart.
_CHUNK = 1 << 15
_EXACT_NS = 1 << 53
_LOW_BITS = 27  # up to 2^26 numbers below 2^27 sum to less than 2^53


@dataclass(frozen=True, slots=True)
class Stays:
    """Requests in the system as arrays, in order of arrival. Instants in nanoseconds, below 2^62 in size."""

    start_ns: Instants  # ascending; those of one instant in the order in which they arrived
    end_ns: Instants  # known for all: censored where nobody saw it
    group: NDArray[np.int32]  # index into `names`; −1 where it is unknown
    names: tuple[str, ...]
    windows: list[Window]  # disjoint and in order, as `union` makes them
    zero_wall_ns: int | None  # wall clock of instant 0; None where nobody knows it


def in_order_of_start(
    start_ns: Instants, end_ns: Instants, unfinished: Sequence[tuple[int, int]]
) -> tuple[Instants, Instants, NDArray[np.int64]]:
    """Requests and, behind them, those whose end nobody saw: starts and ends in order, and the place of each before.

    Of one instant, requests come first.
    """
    others_ns = np.array(unfinished, dtype=np.int64).reshape(-1, 2)
    start_ns, end_ns = np.concatenate([start_ns, others_ns[:, 0]]), np.concatenate([end_ns, others_ns[:, 1]])
    order = np.argsort(start_ns, kind="stable")
    return start_ns[order], end_ns[order], order


class ObservedClock:
    """How much observed time lies before an instant. `windows` are disjoint and in order."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.opens = np.array([opened for opened, _ in windows], dtype=np.int64)
        self.closes = np.array([close for _, close in windows], dtype=np.int64)
        lengths = self.closes - self.opens
        self.total_ns = int(lengths.sum())
        self._before = np.cumsum(lengths) - lengths

    def read(self, instants: Instants) -> Instants:
        """The observed time before each instant."""
        if not len(instants):
            return instants
        first, last = self._window_of(instants.min()), self._window_of(instants.max())
        if first == last:  # nearly always: a chunk lies in one window
            if first < 0:
                return np.zeros(len(instants), dtype=np.int64)
            one: Instants = np.minimum(instants, self.closes[first]) + (self._before[first] - self.opens[first])
            return one
        at = np.searchsorted(self.opens, instants, side="right") - 1
        inside = np.minimum(instants, self.closes[at]) - self.opens[at] + self._before[at]
        return np.where(at < 0, 0, inside)

    def read_one(self, at_ns: int) -> int:
        """The observed time before one instant."""
        window = self._window_of(np.int64(at_ns))
        if window < 0:
            return 0
        return int(self._before[window]) + min(at_ns, int(self.closes[window])) - int(self.opens[window])

    def holds(self, ascending: Instants) -> NDArray[np.bool_]:
        """Whether each of some ascending instants is observed."""
        edges = np.ravel(np.column_stack([self.opens, self.closes]))
        counts = np.diff(np.searchsorted(ascending, edges), prepend=0, append=len(ascending))
        return np.repeat(np.arange(len(counts)) % 2 == 1, counts)

    def _window_of(self, at_ns: np.int64) -> int:
        """The last window that opened at an instant or before. −1 before the first."""
        return int(np.searchsorted(self.opens, at_ns, side="right")) - 1


class Line:
    """The sweep line of stays, from which any part of the time can be read. Made by `merge`.

    Raises ValueError where the windows hold no time, or where the starts do not ascend.
    """

    def __init__(self, start_ns: Instants, end_ns: Instants, windows: Sequence[Window]) -> None:
        self.clock = ObservedClock(windows)
        if not self.clock.total_ns:
            raise ValueError("the windows hold no time")
        self.start_ns, self.end_ns = start_ns, end_ns
        self._starts, self._ends = _sorted(start_ns, end_ns)

    @cached_property
    def others(self) -> Counts:
        """Others in flight at each start."""
        return _others(self._starts, self._ends, self.start_ns, self.end_ns)

    @cached_property
    def _at_once(self) -> tuple[Instants, Counts]:
        """The starts of stays without a length, and the others that they find."""
        if len(self._starts) == len(self.start_ns):
            nobody = np.zeros(0, dtype=np.int64)
            return nobody, nobody
        return _found_at_once(self._ends, self.start_ns, self.end_ns)

    def read(self, low_ns: int | None = None, high_ns: int | None = None) -> tuple[Counts, Counts]:
        """Observed time at each level, and observed arrivals by the others that they find: from `low_ns` to before
        `high_ns`, or all of it."""
        at_ns = 0 if low_ns is None else self.clock.read_one(low_ns)
        close_ns = self.clock.total_ns if high_ns is None else self.clock.read_one(high_ns)
        level = _index(self._starts, low_ns, 0) - _index(self._ends, low_ns, 0)
        times, arrivals = np.zeros(1, dtype=np.int64), self._arrived_at_once(low_ns, high_ns)
        for keys, first_level in _stretches(self._starts, self._ends, low_ns, high_ns):
            levels = _levels(keys, first_level)
            of_starts = np.flatnonzero(keys & 1)
            keys >>= 1
            arrivals = added(arrivals, self._arrived(keys[of_starts], levels[of_starts] - 1))
            instants = self.clock.read(keys)
            elapsed_ns = np.diff(instants, prepend=at_ns)
            level, at_ns = int(levels[-1]), int(instants[-1])
            levels[1:] = levels[:-1]  # before each event, not after it
            levels[0] = first_level
            times = added(times, _sums(levels, elapsed_ns, self.clock.total_ns))
        return added(times, _unit(level, close_ns - at_ns)), arrivals

    def _arrived_at_once(self, low_ns: int | None, high_ns: int | None) -> Counts:
        starts, others = self._at_once
        first, last = _index(starts, low_ns, 0), _index(starts, high_ns, len(starts))
        return self._arrived(starts[first:last], others[first:last])

    def _arrived(self, starts: Instants, others: Counts) -> Counts:
        """Only a start in a window is an arrival."""
        inside = self.clock.holds(starts)
        return np.bincount(others if inside.all() else others[inside])

    def duration_sum_ns(self) -> int:
        """Sum of the clipped durations, from each stay by itself: held against the levels by Little's law."""
        total = 0
        for at in range(0, len(self.start_ns), _CHUNK):
            start_ns, end_ns = self.start_ns[at : at + _CHUNK], self.end_ns[at : at + _CHUNK]
            lasted = np.maximum(self.clock.read(end_ns) - self.clock.read(start_ns), 0)
            total += (int((lasted >> _LOW_BITS).sum()) << _LOW_BITS) + int((lasted & ((1 << _LOW_BITS) - 1)).sum())
        return total


def merge(stays: Stays) -> Line:
    """The sweep line of all stays. Raises ValueError where the windows hold no time or the starts do not ascend."""
    return Line(stays.start_ns, stays.end_ns, stays.windows)


def sweep(stays: Stays, line: Line | None = None) -> Concurrency:
    """Concurrency of all stays over the windows. `line` is what `merge` made of them. Raises as `merge`."""
    line = line or merge(stays)
    times, arrivals = line.read()
    return Concurrency(
        time_ns_at=as_dict(times),
        arrivals_at=as_dict(arrivals, first=1),
        observed_ns=line.clock.total_ns,
        duration_sum_ns=line.duration_sum_ns(),
    )


def sweep_groups(stays: Stays, line: Line | None = None) -> dict[str, Concurrency]:
    """Concurrency of each class, in the order of `names`: time counts its own requests in flight, arrivals count its
    requests by the total that they met. The arrivals of all classes are the joint table class × total c.

    Raises as `merge`.
    """
    line = line or merge(stays)
    return {name: _sweep_group(stays, line, code) for code, name in enumerate(stays.names)}


def _sweep_group(stays: Stays, line: Line, code: int) -> Concurrency:
    members = np.flatnonzero(stays.group == code)
    alone = len(members) == len(stays.group)  # the line of all is its own
    own = line if alone else Line(stays.start_ns[members], stays.end_ns[members], stays.windows)
    met = line.others[members[own.clock.holds(own.start_ns)]]
    times, _ = own.read()
    return Concurrency(
        time_ns_at=as_dict(times),
        arrivals_at=as_dict(np.bincount(met), first=1),
        observed_ns=own.clock.total_ns,
        duration_sum_ns=own.duration_sum_ns(),
    )


def others_at_start(start_ns: Instants, end_ns: Instants) -> Counts:
    """How many others each stay finds at its start.

    Starts ascend, ties in order of arrival: of three that arrive together the first finds none. One that ends at the
    instant of a start is gone. A stay of zero length finds others, and nobody finds it. Raises ValueError where the
    starts do not ascend.
    """
    return _others(*_sorted(start_ns, end_ns), start_ns, end_ns)


def as_dict(counts: Counts, first: int = 0) -> dict[int, int]:
    """Counts by level as a dict without the levels at 0. `first` is the level of the first count."""
    return {int(at) + first: int(counts[at]) for at in np.flatnonzero(counts)}


def _sorted(start_ns: Instants, end_ns: Instants) -> tuple[Instants, Instants]:
    """The starts and the ends, each ascending. Stays without a length leave no trace on the line."""
    if (start_ns[1:] < start_ns[:-1]).any():
        raise ValueError("the starts do not ascend")
    lasting = end_ns > start_ns
    if lasting.all():
        return start_ns, np.sort(end_ns)
    return start_ns[lasting], np.sort(end_ns[lasting])


def _index(ascending: Instants, at_ns: int | None, otherwise: int) -> int:
    """How many lie before an instant."""
    return otherwise if at_ns is None else int(np.searchsorted(ascending, np.int64(at_ns)))


def _stretches(
    starts: Instants, ends: Instants, low_ns: int | None = None, high_ns: int | None = None
) -> Iterator[tuple[Instants, int]]:
    """The events from `low_ns` to before `high_ns` piece by piece: their keys in order, and the level before them."""
    first, last = _index(starts, low_ns, 0), _index(starts, high_ns, len(starts))
    first_end, last_end = _index(ends, low_ns, 0), _index(ends, high_ns, len(ends))
    cuts = np.unique(np.concatenate([starts[first:last:_CHUNK], ends[first_end:last_end:_CHUNK]]))
    of_starts = [*np.searchsorted(starts, cuts).tolist(), last]
    of_ends = [*np.searchsorted(ends, cuts).tolist(), last_end]
    for at in range(len(cuts)):
        some = starts[of_starts[at] : of_starts[at + 1]]
        ended = ends[of_ends[at] : of_ends[at + 1]]
        keys = np.concatenate([ended, some])
        keys <<= 1
        keys[len(ended) :] += 1
        keys.sort()
        yield keys, of_starts[at] - of_ends[at]


def _levels(keys: Instants, first_level: int) -> Counts:
    """The level after each event."""
    steps = keys & 1
    steps <<= 1
    steps -= 1
    levels = np.cumsum(steps)
    levels += first_level
    return levels


def _others(starts: Instants, ends: Instants, start_ns: Instants, end_ns: Instants) -> Counts:
    found = np.empty(len(starts), dtype=np.int64)
    done = 0
    for keys, first_level in _stretches(starts, ends):
        met = _levels(keys, first_level)[np.flatnonzero(keys & 1)]  # faster than by a mask
        found[done : done + len(met)] = met
        done += len(met)
    found -= 1  # itself
    if len(starts) == len(start_ns):
        return found
    lasting = end_ns > start_ns
    everyone = np.empty(len(start_ns), dtype=np.int64)
    everyone[lasting] = found
    _, everyone[~lasting] = _found_at_once(ends, start_ns, end_ns)
    return everyone


def _found_at_once(ends: Instants, start_ns: Instants, end_ns: Instants) -> tuple[Instants, Counts]:
    """The starts of stays without a length, and the others that they find: who lasts, came before, is not gone."""
    lasting = end_ns > start_ns
    starts = start_ns[~lasting]
    return starts, np.cumsum(lasting)[~lasting] - np.searchsorted(ends, starts, side="right")


def _sums(levels: Counts, elapsed_ns: Instants, at_most_ns: int) -> Counts:
    """Exact sums of `elapsed_ns` by level. All of it together is at most `at_most_ns`."""
    if at_most_ns <= _EXACT_NS:
        return np.bincount(levels, weights=elapsed_ns).astype(np.int64)
    low = np.bincount(levels, weights=elapsed_ns & ((1 << _LOW_BITS) - 1)).astype(np.int64)
    return low + (np.bincount(levels, weights=elapsed_ns >> _LOW_BITS).astype(np.int64) << _LOW_BITS)


def _unit(level: int, count: int) -> Counts:
    counts = np.zeros(level + 1, dtype=np.int64)
    counts[level] = count
    return counts


def added(one: Counts, other: Counts) -> Counts:
    """The sum of counts whose highest levels differ."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
