"""Concurrency by hour of day and weekday, by day, and over the whole time. Pure, through the same sweep.

The whole time is cut at every local hour, and at every step of the line N(t); each piece is read off the sweep line and
added to its cell, its day and its span. Gaps between windows belong to none of them.

Hours and days are those of a named time zone. A day of 23 or 25 hours is one day, an hour that comes twice in a night
is one cell with twice the time, and an hour that is skipped has none. Where nobody knows the wall clock there are no
cells, and days are blocks of 24 hours from the zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import numpy as np

from profiles.concurrency import Concurrency
from profiles.errors import UsageError
from profiles.sweep import Counts, Line, added, as_dict
from profiles.units import HOUR_NS, MINUTE_NS, SECOND_NS

DAY_NS = 24 * HOUR_NS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # a Thursday
_MONDAY_NS = 3 * DAY_NS  # from the Monday before it
# Of the steps of N(t), the smallest that gives no more spans than this.
MOST_SPANS = 200
_STEPS_NS = (
    *(each * SECOND_NS for each in (1, 2, 5, 10, 15, 30)),
    *(each * MINUTE_NS for each in (1, 2, 5, 10, 15, 30)),
    *(each * HOUR_NS for each in (1, 2, 3, 6, 12)),
    *(each * DAY_NS for each in (1, 2, 7, 14, 28)),
)


@dataclass(frozen=True, slots=True)
class HourCell:
    """One hour of the day on one weekday, over all weeks."""

    weekday: int  # 0 is Monday
    hour: int  # 0 to 23, local
    observed_ns: int
    time_ns_at: dict[int, int]  # k in flight -> time
    arrivals_at: dict[int, int]  # c with itself -> arrivals

    @property
    def requests(self) -> int:
        return sum(self.arrivals_at.values())

    @property
    def mean(self) -> float:
        """Time-weighted mean number in flight."""
        return sum(k * time_ns for k, time_ns in self.time_ns_at.items()) / self.observed_ns

    @property
    def max(self) -> int:
        return max([0, *self.time_ns_at, *self.arrivals_at])


@dataclass(frozen=True, slots=True)
class Span:
    """N(t) over one step of the whole time. The last four are None where nothing of it was observed."""

    start_ns: int
    end_ns: int
    observed_ns: int
    arrivals: int
    mean: float | None
    p50: int | None  # by time: the lowest k at or below which N(t) was for half of it
    p95: int | None
    max: int | None


@dataclass(frozen=True, slots=True)
class Day:
    """One local day. Its windows may hold only a part of it."""

    label: str  # 2026-11-30, or "day 1" where the wall clock is unknown
    weekday: int | None  # 0 is Monday
    start_ns: int  # from the profile's zero; a day may begin before it
    length_ns: int  # of the whole day: 23, 24 or 25 hours
    measured: Concurrency


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of one day: how much of it was observed, and the most that were in flight then."""

    start_ns: int
    length_ns: int
    observed_ns: int
    max: int


@dataclass(frozen=True, slots=True)
class Calendar:
    """What the whole time is made of. Only what holds observed time is listed; spans are all there."""

    cells: tuple[HourCell, ...]  # empty where the wall clock is unknown
    days: tuple[Day, ...]
    hours: tuple[Hour, ...]
    spans: tuple[Span, ...]
    span_ns: int


def find_zone(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA data. Raises UsageError for one that is not there."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found; not a name; a folder of names
        hint = "Use a name such as UTC, Europe/Budapest or America/New_York."
        raise UsageError(f"{name!r} is not a known time zone", hint) from None


def read_calendar(line: Line, zero_wall_ns: int | None, zone: tzinfo = UTC) -> Calendar:
    """The calendar of all that is observed. `zero_wall_ns` None: days count from the zero, and no cells."""
    low_ns, high_ns = int(line.clock.opens[0]), int(line.clock.closes[-1])
    clock = _LocalClock(zero_wall_ns or 0, UTC if zero_wall_ns is None else zone)
    span_ns, edges = _span_edges(clock, low_ns, high_ns)
    hours: list[Hour] = []
    cells: dict[tuple[int, int], _Sum] = {}
    days: dict[int, _Sum] = {}
    spans = [_Sum() for _ in edges[1:]]
    for hour in _observed_hours(line, clock):
        whole = _Sum()
        for at, start_ns, end_ns in _pieces(edges, max(hour.start_ns, low_ns), min(hour.end_ns, high_ns)):
            piece = _read(line, start_ns, end_ns)
            if piece.observed_ns:
                whole.add(piece)
                spans[at].add(piece)
        hours.append(Hour(hour.start_ns, hour.end_ns - hour.start_ns, whole.observed_ns, whole.max))
        cells.setdefault((hour.weekday, hour.hour), _Sum()).add(whole)
        days.setdefault(hour.day, _Sum()).add(whole)
    return Calendar(
        cells=() if zero_wall_ns is None else tuple(_cell(*key, found) for key, found in sorted(cells.items())),
        days=tuple(_day(day, found, clock, zero_wall_ns is not None) for day, found in days.items()),
        hours=tuple(hours),
        spans=tuple(_span(*piece) for piece in zip(edges, edges[1:], spans, strict=False)),
        span_ns=span_ns,
    )


def quantile_of(time_ns_at: dict[int, int], share: float) -> int | None:
    """The lowest k at or below which N(t) is for at least `share` of the time. None without time."""
    total_ns, held_ns = sum(time_ns_at.values()), 0
    for k in sorted(time_ns_at):
        held_ns += time_ns_at[k]
        if held_ns >= share * total_ns:
            return k
    return None


# --- The local clock.


@dataclass(frozen=True, slots=True)
class _LocalHour:
    start_ns: int
    end_ns: int
    day: int  # since 1970-01-01, local
    hour: int

    @property
    def weekday(self) -> int:
        return _date(self.day).weekday()


class _LocalClock:
    """Local hours and days as instants from the profile's zero."""

    def __init__(self, zero_wall_ns: int, zone: tzinfo) -> None:
        self.zero_wall_ns, self.zone = zero_wall_ns, zone

    def local_ns(self, at_ns: int) -> int:
        """What a local clock shows, in nanoseconds since its 1970-01-01 00:00."""
        return at_ns + self.zero_wall_ns + self._offset_s(at_ns) * SECOND_NS

    def hours(self, low_ns: int, high_ns: int) -> Iterator[_LocalHour]:
        """The local hours from the one that holds `low_ns` to before `high_ns`, whole: they may begin before it.

        A change of the clock in the middle of an hour ends it there.
        """
        start_ns = low_ns - self.local_ns(low_ns) % HOUR_NS
        while start_ns < high_ns:
            local_ns = self.local_ns(start_ns)
            end_ns = self._change_before(start_ns, start_ns + HOUR_NS - local_ns % HOUR_NS)
            yield _LocalHour(start_ns, end_ns, local_ns // DAY_NS, local_ns // HOUR_NS % 24)
            start_ns = end_ns

    def midnight_ns(self, day: int) -> int:
        """The instant at which a local day begins."""
        local = datetime.combine(_date(day), datetime.min.time(), self.zone)
        return (local - _EPOCH) // timedelta(seconds=1) * SECOND_NS - self.zero_wall_ns

    def _offset_s(self, at_ns: int) -> int:
        wall_s = (at_ns + self.zero_wall_ns) // SECOND_NS
        offset = (_EPOCH + timedelta(seconds=wall_s)).astimezone(self.zone).utcoffset()
        return 0 if offset is None else int(offset.total_seconds())

    def _change_before(self, start_ns: int, end_ns: int) -> int:
        """The first instant after `start_ns` with another offset from UTC, to the second; else `end_ns`."""
        offset_s = self._offset_s(start_ns)
        if self._offset_s(end_ns - 1) == offset_s:
            return end_ns
        low_s = (start_ns + self.zero_wall_ns) // SECOND_NS
        high_s = (end_ns - 1 + self.zero_wall_ns) // SECOND_NS
        while high_s - low_s > 1:
            middle_s = (low_s + high_s) // 2
            same = self._offset_s(middle_s * SECOND_NS - self.zero_wall_ns) == offset_s
            low_s, high_s = (middle_s, high_s) if same else (low_s, middle_s)
        return high_s * SECOND_NS - self.zero_wall_ns


def _date(day: int) -> date:
    return date(1970, 1, 1) + timedelta(days=day)


# --- Pieces of the line, and what they are added up to.


@dataclass(slots=True)
class _Sum:
    observed_ns: int = 0
    time_at: Counts = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    arrivals_at: Counts = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # by others found

    def add(self, other: "_Sum") -> None:
        self.observed_ns += other.observed_ns
        self.time_at = added(self.time_at, other.time_at)
        self.arrivals_at = added(self.arrivals_at, other.arrivals_at)

    @property
    def max(self) -> int:
        highest = np.flatnonzero(self.time_at)
        return max(int(highest[-1]) if len(highest) else 0, len(self.arrivals_at))

    def as_concurrency(self) -> Concurrency:
        time_ns_at = as_dict(self.time_at)
        return Concurrency(
            time_ns_at=time_ns_at,
            arrivals_at=as_dict(self.arrivals_at, first=1),
            observed_ns=self.observed_ns,
            duration_sum_ns=sum(k * time_ns for k, time_ns in time_ns_at.items()),
        )


def _observed_hours(line: Line, clock: _LocalClock) -> Iterator[_LocalHour]:
    """The hours that hold observed time, each once. A clock that was wrong for a while leaves no decades to walk."""
    done_ns: int | None = None
    for opened, close in zip(line.clock.opens.tolist(), line.clock.closes.tolist(), strict=True):
        for hour in clock.hours(opened if done_ns is None else max(opened, done_ns), close):
            yield hour
            done_ns = hour.end_ns


def _read(line: Line, start_ns: int, end_ns: int) -> _Sum:
    observed_ns = line.clock.read_one(end_ns) - line.clock.read_one(start_ns)
    if not observed_ns:
        return _Sum()
    return _Sum(observed_ns, *line.read(start_ns, end_ns))


def _span_edges(clock: _LocalClock, low_ns: int, high_ns: int) -> tuple[int, list[int]]:
    """The step of N(t) and its edges, on round local times as they are at the beginning."""
    length_ns = high_ns - low_ns
    fitting = (step for step in _STEPS_NS if -(-length_ns // step) < MOST_SPANS)
    step_ns = next(fitting, -(-length_ns // (MOST_SPANS - 1) // DAY_NS) * DAY_NS)
    first_ns = low_ns - (clock.local_ns(low_ns) + _MONDAY_NS) % step_ns
    return step_ns, [max(low_ns, first_ns), *range(first_ns + step_ns, high_ns, step_ns), high_ns]


def _pieces(edges: list[int], start_ns: int, end_ns: int) -> Iterator[tuple[int, int, int]]:
    """A stretch of time cut at the edges: the index of the span, start and end of each piece."""
    at = int(np.searchsorted(edges, start_ns, side="right")) - 1
    while start_ns < end_ns:
        stop_ns = min(edges[at + 1], end_ns)
        yield at, start_ns, stop_ns
        start_ns, at = stop_ns, at + 1


def _cell(weekday: int, hour: int, found: _Sum) -> HourCell:
    return HourCell(weekday, hour, found.observed_ns, as_dict(found.time_at), as_dict(found.arrivals_at, first=1))


def _day(day: int, found: _Sum, clock: _LocalClock, known: bool) -> Day:
    start_ns = clock.midnight_ns(day)
    return Day(
        label=_date(day).isoformat() if known else f"day {day + 1}",
        weekday=_date(day).weekday() if known else None,
        start_ns=start_ns,
        length_ns=clock.midnight_ns(day + 1) - start_ns,
        measured=found.as_concurrency(),
    )


def _span(start_ns: int, end_ns: int, found: _Sum) -> Span:
    arrivals = int(found.arrivals_at.sum())
    if not found.observed_ns:
        return Span(start_ns, end_ns, 0, arrivals, None, None, None, None)
    time_ns_at = as_dict(found.time_at)
    mean = sum(k * time_ns for k, time_ns in time_ns_at.items()) / found.observed_ns
    p50, p95 = quantile_of(time_ns_at, 0.5), quantile_of(time_ns_at, 0.95)
    return Span(start_ns, end_ns, found.observed_ns, arrivals, mean, p50, p95, found.max)
