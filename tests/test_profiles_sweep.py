"""The sweep over arrays against a sweep by hand: the same numbers to the nanosecond, for every part of the time."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.captures import Interval
from profiles.concurrency import Concurrency, Window, censor, measure, union
from profiles.sweep import ObservedClock, Stays, as_dict, merge, others_at_start, sweep, sweep_groups
from profiles.units import HOUR_NS, MILLISECOND_NS, SECOND_NS

NAMES = ("chat", "rag", "never")


def stays_of(rows: list[tuple[int, int, int]], windows: list[Window]) -> Stays:
    """Stays of (start, end, class)."""
    start_ns, end_ns, group = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    order = np.argsort(start_ns, kind="stable")
    return Stays(start_ns[order], end_ns[order], group[order].astype(np.int32), NAMES, union(windows), None)


# --- The reference: instant after instant, and each arrival against all others.


def by_hand(rows: list[tuple[int, int, int]], windows: list[Window], only: int | None = None) -> Concurrency:
    """Concurrency by definition, of all rows or of one class. Instants must be small."""
    rows = sorted(rows, key=lambda row: row[0])
    counted = [row for row in rows if only in (None, row[2])]
    observed = [at for opened, close in windows for at in range(opened, close)]
    time_ns_at = Counter(sum(start <= at < end for start, end, _ in counted) for at in observed)
    arrivals_at = Counter(
        1 + sum(end > start for _, end, _ in rows[:nth])
        for nth, (start, _, group) in enumerate(rows)
        if start in observed and only in (None, group)
    )
    lasted = sum(start <= at < end for start, end, _ in counted for at in observed)
    return Concurrency(dict(sorted(time_ns_at.items())), dict(sorted(arrivals_at.items())), len(observed), lasted)


SMALL = st.integers(-5, 40)
ROWS = st.lists(
    st.tuples(SMALL, st.integers(0, 15), st.integers(-1, 1)).map(lambda row: (row[0], row[0] + row[1], row[2])),
    max_size=10,
)
WINDOWS = st.lists(SMALL, min_size=2, max_size=8, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)


@settings(max_examples=100)
@given(ROWS, WINDOWS)
def test_the_sweep_is_what_a_count_at_every_instant_gives(
    rows: list[tuple[int, int, int]], windows: list[Window]
) -> None:
    assert sweep(stays_of(rows, windows)) == by_hand(rows, windows)


@settings(max_examples=60)
@given(ROWS, WINDOWS)
def test_a_class_has_its_own_time_and_its_arrivals_by_the_total(
    rows: list[tuple[int, int, int]], windows: list[Window]
) -> None:
    found = sweep_groups(stays_of(rows, windows))
    assert found == {name: by_hand(rows, windows, only=code) for code, name in enumerate(NAMES)}


@settings(max_examples=60)
@given(ROWS, WINDOWS, st.lists(SMALL, max_size=5))
def test_the_parts_of_the_time_are_the_whole(
    rows: list[tuple[int, int, int]], windows: list[Window], cuts: list[int]
) -> None:
    line = merge(stays_of(rows, windows))
    edges = [None, *sorted(cuts), None]
    time_ns_at: Counter[int] = Counter()
    arrivals_at: Counter[int] = Counter()
    for low, high in itertools.pairwise(edges):
        times, arrivals = line.read(low, high)
        time_ns_at.update(as_dict(times))
        arrivals_at.update(as_dict(arrivals))
    assert (time_ns_at, arrivals_at) == tuple(map(as_dict, line.read()))


@settings(max_examples=60)
@given(ROWS, WINDOWS, SMALL, SMALL)
def test_a_part_of_the_time_is_the_same_as_windows_cut_to_it(
    rows: list[tuple[int, int, int]], windows: list[Window], low: int, high: int
) -> None:
    line = merge(stays_of(rows, windows))
    cut = [(max(opened, low), min(close, high)) for opened, close in windows]
    expected = by_hand(rows, cut)
    times, arrivals = line.read(low, max(low, high))
    assert as_dict(times) == expected.time_ns_at
    assert as_dict(arrivals, first=1) == expected.arrivals_at


@settings(max_examples=40)
@given(WINDOWS, st.lists(SMALL, max_size=12))
def test_the_observed_clock_stands_still_between_windows(windows: list[Window], instants: list[int]) -> None:
    clock = ObservedClock(windows)
    ascending = np.array(sorted(instants), dtype=np.int64)
    expected = [sum(max(0, min(at, close) - opened) for opened, close in windows) for at in sorted(instants)]
    assert clock.read(ascending).tolist() == [clock.read_one(at) for at in sorted(instants)] == expected
    assert clock.holds(ascending).tolist() == [any(a <= at < b for a, b in windows) for at in sorted(instants)]


# --- Cases by hand.


def test_three_gaps_and_a_kill() -> None:
    """Two stay through a gap, one is cut off by a kill, one comes and goes while nobody looks."""
    windows = [(0, 10), (12, 20), (25, 30), (40, 50)]
    pairs = [(1, 4), (3, 14), (10, 11), (18, None), (22, 23), (26, 28), (26, 27), (29, 45), (45, 47)]
    found = measure([Interval(start, end) for start, end in pairs], windows)
    assert found == Concurrency({0: 10, 1: 21, 2: 2}, {1: 5, 2: 2}, 33, 25)
    assert (found.mean, found.max) == (25 / 33, 2)
    (killed,) = censor([Interval(18, None)], windows)
    assert killed.end_ns == 20


def test_of_three_that_come_together_the_first_finds_nobody() -> None:
    start_ns, end_ns = np.array([0, 0, 0, 4]), np.array([4, 4, 0, 5])
    assert others_at_start(start_ns, end_ns).tolist() == [0, 1, 2, 0]


def test_a_zero_length_arrival_finds_others_and_is_found_by_nobody() -> None:
    start_ns, end_ns = np.array([0, 2, 2, 2, 3]), np.array([5, 2, 4, 2, 3])
    assert others_at_start(start_ns, end_ns).tolist() == [0, 1, 1, 2, 2]


def test_an_end_before_its_start_counts_as_no_time() -> None:
    found = sweep(stays_of([(5, 3, 0), (6, 8, 0)], [(0, 10)]))
    assert found == Concurrency({0: 8, 1: 2}, {1: 2}, 10, 2)


def test_starts_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        others_at_start(np.array([2, 1]), np.array([3, 3]))


def test_windows_without_time_are_refused() -> None:
    with pytest.raises(ValueError, match="hold no time"):
        merge(stays_of([(0, 1, 0)], []))


def test_nanoseconds_of_a_year_are_not_rounded() -> None:
    """A year is more nanoseconds than a float can tell apart, and so are the durations of many long stays."""
    year_ns = 366 * 24 * HOUR_NS + 1
    count = 300
    start_ns = np.arange(count, dtype=np.int64)
    end_ns = np.full(count, year_ns, dtype=np.int64)
    nobody = np.full(count, -1, dtype=np.int32)
    found = sweep(Stays(start_ns, end_ns, nobody, (), [(0, year_ns)], None))
    assert found.time_ns_at[count] == year_ns - count + 1
    assert [found.time_ns_at[k] for k in range(1, count)] == [1] * (count - 1)
    assert found.duration_sum_ns == sum(k * time_ns for k, time_ns in found.time_ns_at.items()) > 2**63


def test_more_events_than_fit_one_piece_of_work() -> None:
    """Ten in flight at any time, so that levels are carried from piece to piece."""
    count = 200_000
    start_ns = np.arange(count, dtype=np.int64) * 10
    nobody = np.full(count, -1, dtype=np.int32)
    found = sweep(Stays(start_ns, start_ns + 95, nobody, (), [(0, 10 * count)], None))
    assert {k: n for k, n in found.arrivals_at.items() if k != 10} == dict.fromkeys(range(1, 10), 1)
    assert found.arrivals_at[10] == count - 9
    assert found.time_ns_at == {
        **{k: 10 for k in range(1, 9)},
        9: 10 + 5 * (count - 9),
        10: 5 * (count - 9),
    }


# --- What users feel and what the machine carries.


def poisson_or_bursts(burst: int, requests: int = 200_000) -> Concurrency:
    """One arrival per second on average, exponential service of mean 1 s; bursts are 10 ms apart inside."""
    rng = np.random.default_rng(8)
    first_s = np.cumsum(rng.exponential(burst, requests // burst))
    start_ns = np.rint(first_s * SECOND_NS).astype(np.int64)[:, None] + np.arange(burst) * 10 * MILLISECOND_NS
    start_ns = np.sort(start_ns.ravel())
    end_ns = start_ns + np.rint(rng.exponential(1, len(start_ns)) * SECOND_NS).astype(np.int64)
    nobody = np.full(len(start_ns), -1, dtype=np.int32)
    return sweep(Stays(start_ns, end_ns, nobody, (), [(0, int(start_ns[-1]))], None))


@pytest.mark.parametrize(
    ("burst", "wall", "arrivals"),
    [
        pytest.param(1, (0.3676, 0.3670, 0.1843), (0.3673, 0.3677, 0.1833), id="Poisson arrivals see time averages"),
        pytest.param(3, (0.543, 0.182, 0.122), (0.182, 0.245, 0.278), id="bursts see more than the clock shows"),
    ],
)
def test_shares_of_time_and_of_arrivals(
    burst: int, wall: tuple[float, float, float], arrivals: tuple[float, float, float]
) -> None:
    found = poisson_or_bursts(burst)
    assert [found.share_wall[k] for k in range(3)] == pytest.approx(wall, abs=0.006)
    assert [found.share_arrivals[c] for c in range(1, 4)] == pytest.approx(arrivals, abs=0.006)
    assert found.mean == pytest.approx(1.0, abs=0.02)
