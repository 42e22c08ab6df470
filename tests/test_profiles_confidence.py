"""How sure a share of arrivals is, and what "never above c" is worth: exact bounds, and a bootstrap that covers."""

import numpy as np
import pytest

from profiles.calendar import DAY_NS, Day, Hour
from profiles.concurrency import Concurrency
from profiles.confidence import BOOTSTRAP, ONE_DAY, RANGE, Bound, Reach, read_bounds, read_reach, share_at_most
from profiles.units import HOUR_NS


def day_of(arrivals_at: dict[int, int], observed_ns: int = DAY_NS, highest: int | None = None) -> Day:
    time_ns_at = {highest if highest is not None else max(arrivals_at, default=0): observed_ns}
    return Day("day", None, 0, DAY_NS, Concurrency(time_ns_at, arrivals_at, observed_ns, 0))


def total_of(days: list[Day]) -> Concurrency:
    arrivals_at: dict[int, int] = {}
    for day in days:
        for c, count in day.measured.arrivals_at.items():
            arrivals_at[c] = arrivals_at.get(c, 0) + count
    return Concurrency({0: DAY_NS}, dict(sorted(arrivals_at.items())), DAY_NS, 0)


# --- "Never above".


@pytest.mark.parametrize(
    ("events", "trials", "bound"),
    [
        # Zero events: 1 − 0.05^(1/n).
        (0, 14, 0.192636),
        (0, 336, 0.008876),
        (0, 1, 0.95),
        # Clopper and Pearson, one-sided: tables of the exact binomial limits.
        (1, 10, 0.394163),
        (2, 336, 0.018618),
        (10, 10, 1.0),
    ],
)
def test_the_exact_bound(events: int, trials: int, bound: float) -> None:
    assert share_at_most(events, trials) == pytest.approx(bound, abs=1e-6)


@pytest.mark.parametrize(("events", "trials"), [(0, 14), (1, 10), (3, 40)])
def test_at_the_bound_so_few_events_have_a_chance_of_5_percent(events: int, trials: int) -> None:
    from math import comb

    p = share_at_most(events, trials)
    chance = sum(comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(events + 1))
    assert chance == pytest.approx(0.05, abs=1e-9)


def test_14_clean_days_and_336_clean_hours() -> None:
    days = [day_of({1: 5, 3: 1}) for _ in range(14)]
    hours = [Hour(at * HOUR_NS, HOUR_NS, HOUR_NS, 3) for at in range(336)]
    found = read_bounds(3, days, hours)
    assert [(bound.c, bound.unit, bound.counted, bound.above) for bound in found] == [
        (3, "day", 14, 0),
        (3, "hour", 336, 0),
        (8, "day", 14, 0),
        (8, "hour", 336, 0),
    ]
    assert [bound.share_high for bound in found] == pytest.approx([0.192636, 0.008876] * 2, abs=1e-6)


def test_a_day_counts_if_more_than_half_of_it_was_observed() -> None:
    days = [day_of({1: 1}), day_of({1: 1}, DAY_NS // 2), day_of({9: 1}, DAY_NS // 2 + 1)]
    hours = [Hour(0, HOUR_NS, HOUR_NS // 2, 12), Hour(0, HOUR_NS, HOUR_NS // 2 + 1, 8)]
    day, hour, *_ = read_bounds(8, days, hours)
    assert (day.counted, day.left_out, day.above) == (2, 1, 1)
    assert day.share_high == pytest.approx(share_at_most(1, 2))
    assert hour == Bound(8, "hour", 1, 1, 0, share_at_most(0, 1))


def test_without_a_counted_day_there_is_no_bound() -> None:
    day, hour, *_ = read_bounds(2, [day_of({2: 1}, HOUR_NS)], [])
    assert (day.counted, day.left_out, day.share_high) == (0, 1, None)
    assert (hour.counted, hour.share_high) == (0, None)


# --- Reach.


def test_with_one_day_there_is_no_bound() -> None:
    days = [day_of({1: 6, 2: 3, 3: 1}), day_of({}, HOUR_NS)]
    assert read_reach(total_of(days), days) == (
        Reach(1, 1.0, None, None, ONE_DAY, 1),
        Reach(2, 0.4, None, None, ONE_DAY, 1),
        Reach(3, 0.1, None, None, ONE_DAY, 1),
    )


def test_with_few_days_there_is_their_range() -> None:
    days = [day_of({1: 90, 2: 10}), day_of({1: 50, 2: 50}), day_of({1: 10})]
    first, second = read_reach(total_of(days), days)
    assert first == Reach(1, 1.0, 1.0, 1.0, RANGE, 3)
    assert second == Reach(2, 60 / 210, 0.0, 0.5, RANGE, 3)


def test_from_ten_days_on_whole_days_are_resampled() -> None:
    days = [day_of({1: 100 - at, 2: at}) for at in range(10)]
    total = total_of(days)
    first, second = read_reach(total, days, seed=3)
    assert (first.low, first.high, first.how, first.days) == (1.0, 1.0, BOOTSTRAP, 10)
    assert second.share == 0.045
    # The mean of ten of the numbers 0 to 9 has a standard deviation of 2.87/√10: ± 1.8 points at 95 %.
    assert second.low == pytest.approx(0.045 - 0.0178, abs=0.003)
    assert second.high == pytest.approx(0.045 + 0.0178, abs=0.003)
    assert read_reach(total, days, seed=3) == (first, second)
    assert read_reach(total, days, seed=4) != (first, second)


def test_days_that_differ_widen_the_bound_that_requests_alone_would_not() -> None:
    """Ten quiet days and ten busy ones: resampled requests would claim to know the share to half a point."""
    days = [day_of({1: 1000 if at % 2 else 500, 2: 0 if at % 2 else 500}) for at in range(20)]
    _, second = read_reach(total_of(days), days)
    assert second.low is not None
    assert second.high is not None
    assert second.high - second.low > 0.15


def test_the_bootstrap_covers() -> None:
    """Over 200 weeks-long recordings of a known load the interval holds the true share nearly as often as it says."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        shares = rng.beta(2, 8, 20)  # of arrivals at c ≥ 2 on each day; 20 % on average
        days = [day_of({1: 1000 - int(1000 * share), 2: int(1000 * share)}) for share in shares]
        _, second = read_reach(total_of(days), days)
        held += second.low is not None and second.high is not None and second.low <= 0.2 <= second.high
    assert 0.87 <= held / 200 <= 0.98


def test_many_levels_are_listed_sparsely_and_the_highest_is_among_them() -> None:
    days = [day_of({c: 1 for c in range(1, 101)})]
    rows = read_reach(total_of(days), days)
    assert [row.c for row in rows] == [*range(1, 17), 24, 32, 48, 64, 96, 100]
    assert rows[-1].share == 0.01


def test_no_arrivals_have_no_reach() -> None:
    assert read_reach(total_of([]), []) == ()
