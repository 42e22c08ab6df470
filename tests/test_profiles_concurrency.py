"""Concurrency to the nanosecond: the seven edge cases with exact values, and the properties behind them."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.captures import Interval
from profiles.concurrency import Concurrency, Window, censor, is_observed, measure, others_in_flight, union

type Pairs = list[tuple[int, int | None]]


def measured(pairs: Pairs, windows: list[Window]) -> Concurrency:
    return measure([Interval(start, end) for start, end in pairs], windows)


# name, intervals, windows, T_k, arrivals by operating point (k others + 1), sum of clipped durations
EDGES: list[tuple[str, Pairs, list[Window], dict[int, int], dict[int, int], int]] = [
    (
        "overlaps, a zero length, an open end",
        [(0, 10), (2, 5), (4, 12), (12, 12), (15, None)],
        [(0, 20)],
        {0: 3, 1: 9, 2: 7, 3: 1},
        {1: 3, 2: 1, 3: 1},
        26,
    ),
    ("back to back", [(0, 5), (5, 10)], [(0, 10)], {1: 10}, {1: 2}, 10),
    ("left-truncated", [(-4, 3), (1, 4)], [(0, 10)], {0: 6, 1: 2, 2: 2}, {2: 1}, 6),
    ("open end before a gap", [(0, 6), (2, None), (12, 15)], [(0, 8), (10, 20)], {0: 7, 1: 7, 2: 4}, {1: 2, 2: 1}, 15),
    ("spans a gap", [(0, 14)], [(0, 8), (10, 20)], {0: 6, 1: 12}, {1: 1}, 12),
    ("together", [(0, 4), (0, 4), (0, 2)], [(0, 8)], {0: 4, 2: 2, 3: 2}, {1: 1, 2: 1, 3: 1}, 10),
    ("none", [], [(0, 10)], {0: 10}, {}, 0),
    # The last line before a kill: its window ends with it, and the next one knows nothing of it.
    ("open at the end", [(9, 10), (10, None), (25, 26)], [(0, 10), (20, 30)], {0: 18, 1: 2}, {1: 2}, 2),
    ("open at the end of an empty window", [(10, None)], [(10, 10), (20, 30)], {0: 10}, {}, 0),
    ("open where two windows touch", [(10, None)], [(0, 10), (10, 20), (30, 40)], {0: 20, 1: 10}, {1: 1}, 10),
    ("open at the end of the inner of two", [(10, None)], [(0, 20), (5, 10), (30, 40)], {0: 20, 1: 10}, {1: 1}, 10),
]


@pytest.mark.parametrize(
    ("pairs", "windows", "time_ns_at", "arrivals_at", "duration_sum_ns"), [pytest.param(*e[1:], id=e[0]) for e in EDGES]
)
def test_edge_case(
    pairs: Pairs,
    windows: list[Window],
    time_ns_at: dict[int, int],
    arrivals_at: dict[int, int],
    duration_sum_ns: int,
) -> None:
    found = measured(pairs, windows)
    assert found == Concurrency(time_ns_at, arrivals_at, sum(b - a for a, b in union(windows)), duration_sum_ns)


def test_the_shares_of_the_first_edge_case() -> None:
    found = measured(*EDGES[0][1:3])
    assert found.mean == 1.3
    assert found.share_wall == {0: 3 / 20, 1: 9 / 20, 2: 7 / 20, 3: 1 / 20}
    assert found.share_busy == {1: 9 / 17, 2: 7 / 17, 3: 1 / 17}
    assert found.share_arrivals == {1: 0.6, 2: 0.2, 3: 0.2}
    assert (found.requests, found.max, found.busy_ns) == (5, 3, 17)
    assert [found.reach(c) for c in (1, 2, 3, 4)] == [1.0, 0.4, 0.2, 0.0]


@pytest.mark.parametrize(
    ("edge", "mean"), [(0, 1.3), (1, 1.0), (2, 0.6), (3, 0.8333333333333334), (4, 12 / 18), (5, 1.25), (6, 0.0)]
)
def test_the_mean_of_each_edge_case(edge: int, mean: float) -> None:
    assert measured(*EDGES[edge][1:3]).mean == mean


def test_an_idle_window_has_no_busy_share_and_divides_by_nothing() -> None:
    found = measured([], [(0, 10)])
    assert (found.share_wall, found.share_busy, found.share_arrivals) == ({0: 1.0}, {}, {})
    assert (found.mean, found.max, found.requests, found.reach(1)) == (0.0, 0, 0, None)
    assert found.operating_point().levels == ()


def test_windows_without_time_are_refused() -> None:
    for windows in ([], [(5, 5)]):
        with pytest.raises(ValueError, match="hold no time"):
            measured([(0, 1)], windows)


def test_an_arrival_at_the_close_of_a_window_is_outside() -> None:
    assert measured([(0, 5), (10, 12)], [(0, 10)]).arrivals_at == {1: 1}


def test_a_zero_length_request_raises_the_maximum_that_it_saw() -> None:
    found = measured([(0, 5), (2, 2)], [(0, 10)])
    assert (found.time_ns_at, found.arrivals_at, found.max) == ({0: 5, 1: 5}, {1: 1, 2: 1}, 2)


def test_an_open_end_in_a_gap_reaches_to_the_end_of_the_next_window_and_after_the_last_one_nowhere() -> None:
    windows = [(0, 8), (10, 20)]
    assert [stay.end_ns for stay in censor([Interval(9, None), Interval(20, None), Interval(-3, None)], windows)] == [
        20,
        20,
        8,
    ]


def test_open_ends_must_be_censored_before_others_are_counted() -> None:
    with pytest.raises(ValueError, match="censor"):
        others_in_flight([Interval(0, None)])


@pytest.mark.parametrize(
    ("arrivals_at", "cover", "levels", "weights", "reached"),
    [
        ({1: 60, 2: 30, 3: 7, 4: 3}, 0.95, (1, 2, 3), {1: 60 / 97, 2: 30 / 97, 3: 7 / 97}, 0.97),
        ({1: 60, 2: 35, 3: 5}, 0.95, (1, 2), {1: 60 / 95, 2: 35 / 95}, 0.95),
        ({1: 1, 3: 1}, 1.0, (1, 3), {1: 0.5, 3: 0.5}, 1.0),
        ({2: 5}, 0.95, (2,), {2: 1.0}, 1.0),
        ({1: 99, 8: 1}, 0.0, (1,), {1: 1.0}, 0.99),
    ],
)
def test_the_operating_point_is_the_lowest_levels_that_cover_the_arrivals(
    arrivals_at: dict[int, int], cover: float, levels: tuple[int, ...], weights: dict[int, float], reached: float
) -> None:
    point = Concurrency({0: 1}, arrivals_at, 1, 0).operating_point(cover)
    assert (point.levels, point.weights, point.cover, point.reached) == (levels, weights, cover, reached)


SMALL = st.integers(-5, 30)
LASTING = st.builds(lambda start, length: (start, start + length), SMALL, st.integers(1, 15))
ANY_PAIR = LASTING | st.tuples(SMALL, st.none()) | SMALL.map(lambda start: (start, start))
SOME_PAIRS = st.lists(ANY_PAIR, max_size=8)
# Disjoint windows with real gaps, from pairs of distinct edges.
WINDOWS = st.lists(SMALL, min_size=2, max_size=8, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)


@settings(max_examples=40)
@given(SOME_PAIRS, WINDOWS)
def test_littles_identity_is_exact(pairs: Pairs, windows: list[Window]) -> None:
    found = measured(pairs, windows)
    assert sum(k * time_ns for k, time_ns in found.time_ns_at.items()) == found.duration_sum_ns


@settings(max_examples=40)
@given(SOME_PAIRS, WINDOWS)
def test_the_times_sum_to_the_observed_time(pairs: Pairs, windows: list[Window]) -> None:
    found = measured(pairs, windows)
    assert sum(found.time_ns_at.values()) == found.observed_ns == sum(b - a for a, b in windows)
    assert all(time_ns > 0 for time_ns in found.time_ns_at.values())


@settings(max_examples=40)
@given(SOME_PAIRS, WINDOWS)
def test_a_count_at_every_instant_agrees(pairs: Pairs, windows: list[Window]) -> None:
    def end_of(start: int, end: int | None) -> int:
        if end is not None or start in [close for _, close in windows]:
            return start if end is None else end
        return next((close for _, close in windows if close > start), start)

    closed = [(start, end_of(start, end)) for start, end in pairs]
    time_ns_at: dict[int, int] = {}
    arrivals_at: dict[int, int] = {}
    for instant in (at for opened, close in windows for at in range(opened, close)):
        level = sum(start <= instant < end for start, end in closed)
        time_ns_at[level] = time_ns_at.get(level, 0) + 1
    for at, (start, _) in enumerate(closed):
        if any(opened <= start < close for opened, close in windows):
            before = [other for other in closed if other[0] < start] + [o for o in closed[:at] if o[0] == start]
            c = 1 + sum(end > start for _, end in before)
            arrivals_at[c] = arrivals_at.get(c, 0) + 1
    found = measured(pairs, windows)
    assert (found.time_ns_at, found.arrivals_at) == (time_ns_at, arrivals_at)


@settings(max_examples=40)
@given(SMALL, st.lists(st.tuples(SMALL, st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))), max_size=6))
def test_an_open_end_stays_in_the_windows_that_hold_or_touch_its_start(start: int, windows: list[Window]) -> None:
    touching = [window for window in windows if window[0] <= start <= window[1]]
    (stay,) = censor([Interval(start, None)], windows)
    assert stay.end_ns is not None
    assert stay.end_ns >= start
    if touching:
        assert stay.end_ns <= max(close for _, close in touching)


@settings(max_examples=40)
@given(st.lists(LASTING, max_size=8), WINDOWS, st.randoms())
def test_the_order_of_the_input_does_not_matter(pairs: Pairs, windows: list[Window], rng: random.Random) -> None:
    shuffled, around = pairs[:], windows[:]
    rng.shuffle(shuffled)
    rng.shuffle(around)
    assert measured(shuffled, around) == measured(pairs, windows)


@settings(max_examples=40)
@given(st.lists(st.tuples(SMALL, SMALL), max_size=6))
def test_a_union_holds_the_same_instants_in_disjoint_windows(windows: list[Window]) -> None:
    merged = union(windows)
    assert all(a[1] < b[0] for a, b in pairwise(merged))
    for instant in range(-6, 32):
        assert is_observed(instant, merged) == any(opened <= instant < close for opened, close in windows)


def test_bursts_are_felt_by_arrivals_more_than_the_clock_shows() -> None:
    """The same work in bursts of three: the wall clock is idle more often, and most arrivals find company."""
    rng = random.Random(7)
    at, pairs = 0, []
    for _ in range(2_000):
        at += round(rng.expovariate(1 / 3e9))
        pairs += [(at + 10_000_000 * step, at + 10_000_000 * step + round(rng.expovariate(1e-9))) for step in range(3)]
    found = measured(list(pairs), [(0, at)])
    assert found.share_wall[0] == pytest.approx(0.543, abs=0.03)
    assert found.share_arrivals[1] == pytest.approx(0.182, abs=0.03)
