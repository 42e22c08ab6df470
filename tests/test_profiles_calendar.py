"""Hours, weekdays and days in a named zone, and N(t) over the whole time: every nanosecond and arrival once."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.calendar import DAY_NS, MOST_SPANS, Calendar, Span, find_zone, quantile_of, read_calendar
from profiles.concurrency import Window, union
from profiles.errors import UsageError
from profiles.sweep import Line, Stays, merge, sweep
from profiles.units import HOUR_NS, MINUTE_NS, SECOND_NS

BUDAPEST = ZoneInfo("Europe/Budapest")


def stays_of(pairs: list[tuple[int, int]], windows: list[Window], zero_wall_ns: int | None = None) -> Stays:
    pairs = sorted(pairs)
    start_ns, end_ns = (np.array([pair[at] for pair in pairs], dtype=np.int64) for at in range(2))
    return Stays(start_ns, end_ns, np.full(len(pairs), -1, dtype=np.int32), (), union(windows), zero_wall_ns)


def line_of(pairs: list[tuple[int, int]], windows: list[Window]) -> Line:
    return merge(stays_of(pairs, windows))


def wall_ns(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND_NS


def observed_by_hour(calendar: Calendar) -> dict[tuple[int, int], int]:
    return {(cell.weekday, cell.hour): cell.observed_ns for cell in calendar.cells}


def test_an_hour_cell_holds_its_time_and_its_arrivals() -> None:
    """Monday 2026-11-30, 09:30 to 11:15 UTC: one request over the full hour, one at 10:20."""
    half = 30 * MINUTE_NS
    pairs = [(half - MINUTE_NS, half + MINUTE_NS), (50 * MINUTE_NS, 55 * MINUTE_NS)]
    calendar = read_calendar(line_of(pairs, [(0, 105 * MINUTE_NS)]), wall_ns("2026-11-30T09:30"))
    nine, ten, eleven = calendar.cells
    assert [(cell.weekday, cell.hour) for cell in calendar.cells] == [(0, 9), (0, 10), (0, 11)]
    assert (nine.observed_ns, nine.time_ns_at, nine.arrivals_at) == (half, {0: half - MINUTE_NS, 1: MINUTE_NS}, {1: 1})
    assert (ten.observed_ns, ten.time_ns_at, ten.arrivals_at) == (
        HOUR_NS,
        {0: 54 * MINUTE_NS, 1: 6 * MINUTE_NS},
        {1: 1},
    )
    assert (ten.mean, ten.max, ten.requests) == (0.1, 1, 1)
    assert (eleven.observed_ns, eleven.time_ns_at, eleven.arrivals_at) == (15 * MINUTE_NS, {0: 15 * MINUTE_NS}, {})


def test_the_same_hour_of_two_weeks_is_one_cell() -> None:
    windows = [(0, HOUR_NS), (7 * DAY_NS, 7 * DAY_NS + HOUR_NS)]
    calendar = read_calendar(line_of([(0, 1), (7 * DAY_NS, 7 * DAY_NS + 2)], windows), wall_ns("2026-11-30T09:00"))
    (cell,) = calendar.cells
    assert (cell.observed_ns, cell.time_ns_at, cell.arrivals_at) == (2 * HOUR_NS, {0: 2 * HOUR_NS - 3, 1: 3}, {1: 2})
    assert [day.label for day in calendar.days] == ["2026-11-30", "2026-12-07"]


def test_an_hour_that_is_skipped_has_no_cell_and_its_day_has_23_hours() -> None:
    zero = wall_ns("2026-03-29T00:00", "Europe/Budapest")
    calendar = read_calendar(line_of([], [(0, 23 * HOUR_NS)]), zero, BUDAPEST)
    assert observed_by_hour(calendar) == {(6, hour): HOUR_NS for hour in range(24) if hour != 2}
    (day,) = calendar.days
    assert (day.label, day.weekday, day.start_ns, day.length_ns) == ("2026-03-29", 6, 0, 23 * HOUR_NS)
    assert day.measured.observed_ns == 23 * HOUR_NS


def test_an_hour_that_comes_twice_is_one_cell_with_twice_the_time() -> None:
    zero = wall_ns("2026-10-25T00:00", "Europe/Budapest")
    calendar = read_calendar(line_of([], [(0, 25 * HOUR_NS)]), zero, BUDAPEST)
    assert observed_by_hour(calendar) == {(6, hour): HOUR_NS * (1 + (hour == 2)) for hour in range(24)}
    (day,) = calendar.days
    assert (day.length_ns, len(calendar.hours)) == (25 * HOUR_NS, 25)


def test_a_clock_that_changes_by_half_an_hour_ends_an_hour_early() -> None:
    """Lord Howe goes from 02:00 back to 01:30: the hour 1 lasts 90 minutes on that night."""
    zero = wall_ns("2026-04-05T00:00", "Australia/Lord_Howe")
    calendar = read_calendar(line_of([], [(0, 4 * HOUR_NS)]), zero, ZoneInfo("Australia/Lord_Howe"))
    half = 30 * MINUTE_NS
    assert observed_by_hour(calendar) == {(6, 0): HOUR_NS, (6, 1): HOUR_NS + half, (6, 2): HOUR_NS, (6, 3): half}


def test_a_zone_of_half_hours_cuts_in_the_middle_of_an_hour_of_utc() -> None:
    calendar = read_calendar(line_of([], [(0, HOUR_NS)]), wall_ns("2026-11-30T00:00"), ZoneInfo("Asia/Kolkata"))
    assert observed_by_hour(calendar) == {(0, 5): 30 * MINUTE_NS, (0, 6): 30 * MINUTE_NS}


def test_the_zone_decides_the_day() -> None:
    line = line_of([(0, 1)], [(0, HOUR_NS)])
    labels = [
        read_calendar(line, wall_ns("2026-11-30T23:30"), zone).days[0].label
        for zone in (UTC, BUDAPEST, ZoneInfo("America/New_York"))
    ]
    assert labels == ["2026-11-30", "2026-12-01", "2026-11-30"]


def test_without_a_wall_clock_there_are_days_from_the_zero_and_no_cells() -> None:
    calendar = read_calendar(line_of([(DAY_NS, DAY_NS + 5)], [(0, DAY_NS + HOUR_NS)]), None, BUDAPEST)
    assert calendar.cells == ()
    assert [(day.label, day.weekday, day.start_ns, day.length_ns) for day in calendar.days] == [
        ("day 1", None, 0, DAY_NS),
        ("day 2", None, DAY_NS, DAY_NS),
    ]
    assert [day.measured.arrivals_at for day in calendar.days] == [{}, {1: 1}]


def test_a_gap_is_a_span_without_numbers() -> None:
    """Ten spans of a second; nobody looked from 3 s to 6 s."""
    s = SECOND_NS
    calendar = read_calendar(line_of([(0, 2 * s), (s, 9 * s), (9 * s, 9 * s)], [(0, 3 * s), (6 * s, 10 * s)]), 0)
    assert calendar.span_ns == s
    assert [span.observed_ns for span in calendar.spans] == [s, s, s, 0, 0, 0, s, s, s, s]
    assert calendar.spans[1] == Span(s, 2 * s, s, 1, 2.0, 2, 2, 2)
    assert calendar.spans[3] == Span(3 * s, 4 * s, 0, 0, None, None, None, None)
    # A request that was turned away at once has no time, and is still the most that were there.
    assert calendar.spans[9] == Span(9 * s, 10 * s, s, 1, 0.0, 0, 0, 1)


def test_a_clock_that_was_wrong_for_a_while_does_not_walk_through_the_decades() -> None:
    later = 56 * 365 * DAY_NS
    calendar = read_calendar(line_of([], [(0, MINUTE_NS), (later, later + HOUR_NS)]), 0)
    assert len(calendar.hours) == 2
    assert len(calendar.spans) <= MOST_SPANS


@pytest.mark.parametrize(
    ("time_ns_at", "share", "k"),
    [({0: 50, 1: 50}, 0.5, 0), ({0: 49, 1: 51}, 0.5, 1), ({3: 1}, 0.95, 3), ({0: 94, 7: 6}, 0.95, 7), ({}, 0.5, None)],
)
def test_a_quantile_over_time_is_the_lowest_level_that_holds_the_share(
    time_ns_at: dict[int, int], share: float, k: int | None
) -> None:
    assert quantile_of(time_ns_at, share) == k


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "Europe", "../etc/passwd", "/etc/localtime"])
def test_an_unknown_zone_is_said(name: str) -> None:
    with pytest.raises(UsageError, match="is not a known time zone") as caught:
        find_zone(name)
    assert "Europe/Budapest" in caught.value.hint


MINUTES = st.integers(-2_000, 40_000)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(MINUTES, st.integers(0, 600)).map(lambda pair: (pair[0], sum(pair))), max_size=8),
    st.lists(MINUTES, min_size=2, max_size=6, unique=True),
    st.sampled_from(["UTC", "Europe/Budapest", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Sao_Paulo"]),
    st.integers(0, 2**31),
)
def test_cells_days_hours_and_spans_each_hold_everything_once(
    pairs: list[tuple[int, int]], edges: list[int], zone: str, zero_s: int
) -> None:
    windows = [(a * MINUTE_NS, b * MINUTE_NS) for a, b in zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False)]
    stays = stays_of([(start * MINUTE_NS, end * MINUTE_NS) for start, end in pairs], windows)
    total = sweep(stays)
    calendar = read_calendar(merge(stays), zero_s * SECOND_NS, ZoneInfo(zone))
    assert sum(cell.observed_ns for cell in calendar.cells) == total.observed_ns
    assert sum(day.measured.observed_ns for day in calendar.days) == total.observed_ns
    assert sum(hour.observed_ns for hour in calendar.hours) == total.observed_ns
    assert sum(span.observed_ns for span in calendar.spans) == total.observed_ns
    assert (
        sum(cell.requests for cell in calendar.cells) == sum(span.arrivals for span in calendar.spans) == total.requests
    )
    assert max(hour.max for hour in calendar.hours) == max(cell.max for cell in calendar.cells) == total.max
    for k, time_ns in total.time_ns_at.items():
        assert sum(cell.time_ns_at.get(k, 0) for cell in calendar.cells) == time_ns
        assert sum(day.measured.time_ns_at.get(k, 0) for day in calendar.days) == time_ns
    for hour in calendar.hours:
        assert 0 < hour.observed_ns <= hour.length_ns
    for day in calendar.days:
        assert day.measured.observed_ns <= day.length_ns
        assert sum(k * ns for k, ns in day.measured.time_ns_at.items()) == day.measured.duration_sum_ns
    assert len(calendar.spans) <= MOST_SPANS
    assert [span.end_ns for span in calendar.spans[:-1]] == [span.start_ns for span in calendar.spans[1:]]
