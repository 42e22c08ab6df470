"""How far a window can be trusted: exact numbers on tables, and each limit on both of its sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.concurrency import compare_arrivals
from profiles.records import Outcome, ResponseFacts
from profiles.runs import LagFacts, ScheduleLag
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.doubt import arrivals_at, in_flight_mean, schedule_lag, started_within, why_invalid


def outcome(due_ns: int | None, sent_ns: int | None, end_ns: int) -> Outcome:
    return Outcome(
        window="w",
        c=1,
        index=0,
        request=0,
        workload="chat",
        due_ns=due_ns,
        send_started_ns=sent_ns,
        end_ns=end_ns,
        outcome="ok",
        response=ResponseFacts(),
    )


def test_lag_is_absolute_so_a_constant_lateness_is_seen() -> None:
    lag = schedule_lag([outcome(k * SECOND_NS, k * SECOND_NS + 15 * MILLISECOND_NS, 10**12) for k in range(20)])
    assert lag is not None
    assert (lag.p50_ns, lag.p99_ns, lag.max_ns) == (15 * MILLISECOND_NS,) * 3
    assert (lag.late_share, lag.slope, lag.requests) == (1.0, 0.0, 20)


def test_the_slope_is_the_lag_gained_per_time() -> None:
    lag = schedule_lag([outcome(k * SECOND_NS, k * SECOND_NS + k * 2 * MILLISECOND_NS, 10**12) for k in range(10)])
    assert lag is not None
    assert lag.slope == pytest.approx(0.002)
    assert lag.late_share == 0.4  # 12, 14, 16 and 18 ms


def test_few_points_have_no_slope_and_none_have_no_lag() -> None:
    few = schedule_lag([outcome(0, 1, 2)] * 9)
    assert few is not None
    assert few.slope is None
    same = schedule_lag([outcome(0, 1, 2)] * 10)
    assert same is not None
    assert same.slope is None  # all due at one instant
    assert schedule_lag([outcome(None, 1, 2), outcome(5, None, 6)]) is None


def test_the_mean_in_flight_is_weighted_by_time_and_clipped() -> None:
    stays = [outcome(None, 0, 10), outcome(None, 5, 20), outcome(None, 30, 40)]
    assert in_flight_mean(stays, 5, 15) == 1.5
    assert in_flight_mean(stays, 0, 40) == 35 / 40
    assert in_flight_mean(stays, 7, 7) is None
    assert in_flight_mean(stays, None, 7) is None
    assert started_within(stays, 0, 30) == 2


def test_arrivals_count_themselves_and_one_that_ends_then_is_gone() -> None:
    assert arrivals_at([outcome(None, 5, 9), outcome(None, 0, 5), outcome(None, 6, 7)]) == {1: 2, 2: 1}
    assert arrivals_at([]) == {}


LOOP = LagFacts(p50_ns=0, p99_ns=20 * MILLISECOND_NS, max_ns=10**9, samples=100)
LAG = ScheduleLag(p50_ns=0, p99_ns=20 * MILLISECOND_NS, max_ns=10**9, late_share=0, requests=20)


def judge(
    loop_ns: int = 0,
    lag_ns: int = 0,
    in_flight: float | None = 4.0,
    c: int = 4,
    steady: int = 100,
    peak: int = 4,
    samples: int = 100,
    requests: int = 20,
) -> str | None:
    loop = LagFacts(p50_ns=0, p99_ns=loop_ns, max_ns=loop_ns, samples=samples)
    lag = ScheduleLag(p50_ns=0, p99_ns=lag_ns, max_ns=lag_ns, late_share=0, requests=requests)
    return why_invalid(
        c=c,
        loop_lag=loop,
        lag=lag,
        in_flight=in_flight,
        steady_requests=steady,
        measured_to_c=32,
        planned_peak=peak,
    )


def test_a_window_within_every_limit_is_valid() -> None:
    limit_ns = 20 * MILLISECOND_NS
    assert judge(loop_ns=limit_ns, lag_ns=limit_ns, in_flight=3.6, peak=32) is None


def test_each_limit_is_named_when_it_is_broken() -> None:
    late_ns = 21 * MILLISECOND_NS
    assert "event loop was 21.0 ms late (p99), the limit is 20.0 ms" in (judge(loop_ns=late_ns) or "")
    assert "requests were sent 21.0 ms late (p99)" in (judge(lag_ns=late_ns) or "")
    assert judge(in_flight=3.59) == "only 3.59 of c = 4 were in flight in the steady part"
    assert "33 at once is above 32, up to which this client was measured" in (judge(peak=33) or "")
    assert len((judge(loop_ns=late_ns, lag_ns=late_ns, in_flight=1, peak=33) or "").split("; ")) == 4


def test_too_little_to_tell_breaks_no_limit() -> None:
    late_ns = 500 * MILLISECOND_NS
    assert judge(loop_ns=late_ns, samples=99) is None
    assert judge(lag_ns=late_ns, requests=19) is None
    assert judge(in_flight=0.5, steady=19) is None
    assert judge(in_flight=None) is None
    assert judge(in_flight=0.1, c=0) is None  # at the recorded pace the number in flight is the result


def test_arrivals_are_compared_by_their_shares() -> None:
    assert compare_arrivals({1: 50, 2: 50}, {1: 1, 2: 1}) == 0
    assert compare_arrivals({1: 10}, {2: 10}) == 1
    assert compare_arrivals({1: 60, 2: 40}, {1: 50, 2: 40, 3: 10}) == pytest.approx(0.1)
    assert compare_arrivals({}, {1: 1}) is None
    assert compare_arrivals({1: 1}, {}) is None


@given(*[st.dictionaries(st.integers(1, 9), st.integers(1, 1000), min_size=1)] * 2)
def test_total_variation_is_a_distance(one: dict[int, int], other: dict[int, int]) -> None:
    there, back = compare_arrivals(one, other), compare_arrivals(other, one)
    assert there is not None
    assert there == pytest.approx(back)
    assert -1e-9 <= there <= 1 + 1e-9
    assert compare_arrivals(one, one) == pytest.approx(0)
