"""Time at each concurrency level, kept while it happens: the running twin of `profiles.concurrency.measure`. Pure.

What is told comes in the order in which the proxy's loop did it. Its instants are nearly in order, but not quite: the
end of a request carries the instant at which its last byte was read, and another request may have arrived before that
byte was handled. So a change is held back for `HOLD_NS` and taken in the order of the instants, by the rules of
`measure`. What is younger is added up on request. The result is the same to the nanosecond.

A change that comes later than that is moved to the settled edge and noted in `moved`. Durations are summed apart, from
the instants as they were told, so a moved change shows: the sum of k × T_k is no longer the sum of the durations.

Requests are known by the instant of their start. Of several that start in one nanosecond the first that is said to end
is taken to be the first that came.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from profiles.concurrency import Concurrency
from profiles.units import SECOND_NS

HOLD_NS = 5 * SECOND_NS

# Order at one instant, as in `measure`: who ends at the instant of an arrival is not met by it.
_END: Final = 0
_WINDOW: Final = 1  # opens and closes take turns
_START: Final = 2
_GONE: Final = 3  # the end of one that took no time: in its place among the starts, right after its own

# instant, order at that instant, number of the start or of the window event, kind
type _Change = tuple[int, int, int, int]


@dataclass(slots=True)
class _Sweep:
    """The sweep line, at `at_ns`."""

    at_ns: int = 0
    level: int = 0
    highest: int = 0  # level that was reached, observed or not
    observed: bool = False
    time_ns_at: Counter[int] = field(default_factory=Counter)
    arrivals_at: Counter[int] = field(default_factory=Counter)

    def take(self, change: _Change) -> None:
        at_ns, _, _, kind = change
        self.advance(at_ns)
        if kind == _START:
            self.level += 1
            self.highest = max(self.highest, self.level)
            if self.observed:
                self.arrivals_at[self.level] += 1
        elif kind in (_END, _GONE):
            self.level -= 1
        else:
            self.observed = not self.observed

    def advance(self, at_ns: int) -> None:
        if self.observed and at_ns > self.at_ns:
            self.time_ns_at[self.level] += at_ns - self.at_ns
        self.at_ns = max(self.at_ns, at_ns)

    def copy(self) -> "_Sweep":
        return replace(self, time_ns_at=self.time_ns_at.copy(), arrivals_at=self.arrivals_at.copy())


class Levels:
    """Tell it every start, every end and every window, in the order in which they happened."""

    def __init__(self, hold_ns: int = HOLD_NS) -> None:
        self.in_flight = 0
        self.latest_ns = 0  # the youngest instant that was told
        self.moved = 0  # changes that came too late to be put in their place
        self._hold_ns = hold_ns
        self._settled = _Sweep()
        self._changes: list[_Change] = []  # a heap of what is not settled
        self._open: dict[int, list[int]] = {}  # start -> numbers of those in flight that started then, in order
        self._ended: list[tuple[int, int, int]] = []  # a heap: end, start, and a number that makes them differ
        self._ended_sum_ns = 0  # clipped durations of those that ended before the settled edge
        self._windows: list[_Window] = []
        self._number = 0

    def start(self, at_ns: int) -> None:
        """A request came."""
        self._number += 1
        self._open.setdefault(at_ns, []).append(self._number)
        self.in_flight += 1
        self._put(at_ns, _START, self._number)

    def end(self, start_ns: int, at_ns: int) -> bool:
        """The request that came at `start_ns` ended. False if no such request is in flight: nothing changes then."""
        numbers = self._open.get(start_ns)
        if not numbers:
            return False
        number = numbers.pop(0)
        if not numbers:
            del self._open[start_ns]
        self.in_flight -= 1
        at_ns = max(at_ns, start_ns)
        heappush(self._ended, (at_ns, start_ns, number))
        self._put(at_ns, _END if at_ns > start_ns else _GONE, number)
        return True

    def window(self, at_ns: int, event: str) -> None:
        """Traffic is observed from here on ("open"), or not any more ("close"). Saying it twice changes nothing."""
        last = self._windows[-1] if self._windows else _Window(at_ns, 0, at_ns)
        is_open = last.closed_ns is None
        if is_open == (event == "open"):
            return
        if last.closed_ns is None:
            last.closed_ns = at_ns = max(at_ns, last.opened_ns)
        else:
            at_ns = max(at_ns, last.closed_ns)
            self._windows.append(_Window(at_ns, last.observed_until(last.closed_ns)))
        self._number += 1
        self._put(at_ns, _WINDOW, self._number)

    def passed(self, at_ns: int) -> None:
        """Time went by and nothing changed."""
        self.latest_ns = max(self.latest_ns, at_ns)
        edge_ns = self.latest_ns - self._hold_ns
        # Strictly before the edge: a change at the edge itself can still be put into its order.
        while self._changes and self._changes[0][0] < edge_ns:
            self._settled.take(heappop(self._changes))
        self._settled.advance(edge_ns)
        while self._ended and self._ended[0][0] < edge_ns:
            end_ns, start_ns, _ = heappop(self._ended)
            self._ended_sum_ns += self._observed_ns(end_ns) - self._observed_ns(start_ns)

    @property
    def windows(self) -> int:
        """How many windows were opened."""
        return len(self._windows)

    @property
    def settled_time_ns_at(self) -> dict[int, int]:
        """Time at each level up to `hold_ns` ago. These numbers never fall, so they may be shown as counters."""
        return dict(self._settled.time_ns_at)

    @property
    def settled_arrivals_at(self) -> dict[int, int]:
        """Arrivals at each operating point up to `hold_ns` ago. They never fall."""
        return dict(self._settled.arrivals_at)

    @property
    def highest(self) -> int:
        """The most that were in flight at once, up to now. It can fall back as long as an end may be told late."""
        level, highest = self._settled.level, self._settled.highest
        for _, _, _, kind in sorted(self._changes):
            if kind == _START:
                level += 1
                highest = max(highest, level)
            elif kind != _WINDOW:
                level -= 1
        return highest

    def arrivals_at(self) -> dict[int, int]:
        """Arrivals at each operating point up to now."""
        return dict(sorted(self._sweep().arrivals_at.items()))

    def measured(self) -> Concurrency | None:
        """All of it up to `latest_ns`; those in flight count up to there. None as long as no time was observed.

        `duration_sum_ns` is summed from the durations themselves, so comparing it with the sum of k × T_k is a check.
        """
        sweep = self._sweep()
        time_ns_at = {level: time_ns for level, time_ns in sorted(sweep.time_ns_at.items()) if time_ns}
        observed_ns = sum(time_ns_at.values())
        if not observed_ns:
            return None
        return Concurrency(
            time_ns_at=time_ns_at,
            arrivals_at=dict(sorted(sweep.arrivals_at.items())),
            observed_ns=observed_ns,
            duration_sum_ns=self._ended_sum_ns + sum(self._durations_ns()),
        )

    def _sweep(self) -> _Sweep:
        """The sweep line as it stands with what is not settled yet."""
        sweep = self._settled.copy()
        for change in sorted(self._changes):
            sweep.take(change)
        sweep.advance(self.latest_ns)
        return sweep

    def _durations_ns(self) -> Iterable[int]:
        """Clipped durations of those that ended lately, and of those in flight up to now."""
        for end_ns, start_ns, _ in self._ended:
            yield self._observed_ns(end_ns) - self._observed_ns(start_ns)
        now_ns = self._observed_ns(self.latest_ns)
        for start_ns, numbers in self._open.items():
            yield len(numbers) * (now_ns - self._observed_ns(start_ns))

    def _put(self, at_ns: int, kind: int, number: int) -> None:
        edge_ns = self._settled.at_ns
        if at_ns < edge_ns:
            # A request told again by a new scribe came long before its window, which nobody can see in the result.
            if kind == _WINDOW or self._observed_ns(edge_ns) != self._observed_ns(at_ns):
                self.moved += 1
            at_ns = edge_ns
        heappush(self._changes, (at_ns, min(kind, _START), number, kind))
        self.passed(at_ns)

    def _observed_ns(self, at_ns: int) -> int:
        """How much observed time lies before an instant."""
        windows = self._windows
        if windows and at_ns > windows[-1].opened_ns:  # nearly always
            return windows[-1].observed_until(at_ns)
        at = bisect_left(windows, at_ns, key=lambda window: window.opened_ns) - 1
        return windows[at].observed_until(at_ns) if at >= 0 else 0


@dataclass(slots=True)
class _Window:
    """Observed time. `before_ns` is what the windows before it hold."""

    opened_ns: int
    before_ns: int
    closed_ns: int | None = None

    def observed_until(self, at_ns: int) -> int:
        """Observed time before an instant that is not before this window."""
        until_ns = at_ns if self.closed_ns is None else min(at_ns, self.closed_ns)
        return self.before_ns + until_ns - self.opened_ns
