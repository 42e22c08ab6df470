"""The recorded pacing of a window: what is cut, what waits for what, and what stands for a long profile."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_replay_schedule import row

from profiles.profile import ProfileRow
from profiles.units import HOUR_NS, SECOND_NS
from replay.timeline import Pace, Start, Timeline, lay_out

CAP_NS = 5 * SECOND_NS


def at(request: int, begin_s: float, end_s: float | None, **changes: Any) -> ProfileRow:
    """A request from one second to another."""
    end_ns = None if end_s is None else round(end_s * SECOND_NS)
    return row(request, arrival_ns=round(begin_s * SECOND_NS), end_ns=end_ns, **changes)


def offsets(timeline: Timeline) -> list[float]:
    return [start.offset_ns / SECOND_NS for start in timeline.starts]


def test_idle_gaps_stay_up_to_the_cap_and_are_cut_to_it_beyond() -> None:
    rows = [at(0, 100, 102), at(1, 107, 108), at(2, 113.5, 114), at(3, 7200, 7201)]
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS)
    # Gaps of 5, 5.5 and nearly 7086 s: the first stays, the others become exactly 5 s.
    assert offsets(timeline) == [0, 7, 13, 18.5]
    assert timeline.facts["busy_periods"] == 3
    assert offsets(lay_out(rows, rows, idle_cap_ns=CAP_NS, cut_idle=False)) == [0, 7, 13.5, 7100]


def test_nobody_is_idle_while_a_request_that_cannot_be_sent_is_in_flight() -> None:
    rows = [at(0, 0, 1), at(1, 2, 50, outcome="error"), at(2, 51, 52)]
    sendable = [rows[0], rows[2]]
    assert offsets(lay_out(rows, sendable, idle_cap_ns=CAP_NS)) == [0, 51]
    unfinished = [(SECOND_NS, 48 * SECOND_NS)]
    assert offsets(lay_out(sendable, sendable, idle_cap_ns=CAP_NS, unfinished=unfinished)) == [0, 51]
    assert offsets(lay_out(sendable, sendable, idle_cap_ns=CAP_NS)) == [0, 6]


def test_a_busy_period_of_which_nothing_can_be_sent_keeps_its_time() -> None:
    rows = [at(0, 0, 1), at(1, 100, 120, body=False), at(2, 300, 301)]
    # 1 s, 5 s of idle, the 20 s of the other one, 5 s of idle.
    assert offsets(lay_out(rows, [rows[0], rows[2]], idle_cap_ns=CAP_NS)) == [0, 31]


def test_think_time_that_holds_a_cut_gap_is_cut_by_the_same() -> None:
    rows = [at(0, 0, 2), at(1, 62, 64, parent=0, think_ns=60 * SECOND_NS), at(2, 66, 67, parent=1)]
    assert lay_out(rows, rows, idle_cap_ns=CAP_NS).starts == (
        Start(0),
        Start(7 * SECOND_NS, after=(0,), think_ns=5 * SECOND_NS),
        Start(11 * SECOND_NS, after=(1,), think_ns=2 * SECOND_NS),
    )


def test_think_time_through_the_work_of_others_stays() -> None:
    rows = [at(0, 0, 2), at(1, 3, 30), at(2, 31, 32, parent=0)]
    assert lay_out(rows, rows, idle_cap_ns=CAP_NS).starts[2] == Start(31 * SECOND_NS, (0,), 29 * SECOND_NS)


def test_an_answer_that_is_waited_for_beside_the_parent_starts_the_clock_where_it_ended_last() -> None:
    # Two sub-agents run after the parent; the turn that holds their answers comes 1 s after the later one.
    rows = [at(0, 0, 2), at(1, 2, 6), at(2, 2, 9), at(3, 10, 11, parent=0, deps=[1, 2])]
    assert lay_out(rows, rows, idle_cap_ns=CAP_NS).starts[3] == Start(10 * SECOND_NS, (0, 1, 2), SECOND_NS)


def test_a_turn_that_overlaps_its_parent_goes_by_when_the_parent_was_due() -> None:
    rows = [at(0, 0, 5), at(1, 2, 8, parent=0, link="branch"), at(2, 6, 9, parent=1, deps=[0])]
    starts = lay_out(rows, rows, idle_cap_ns=CAP_NS).starts
    assert starts[1] == Start(2 * SECOND_NS, beside=0)
    assert starts[2] == Start(6 * SECOND_NS, after=(0,), think_ns=SECOND_NS, beside=1)
    pace = Pace(starts, 0)
    assert pace.take(2 * SECOND_NS) == [(0, [0]), (2 * SECOND_NS, [1])]
    pace.ended(0, 20 * SECOND_NS)
    # 4 s after the parent was due, or 1 s after the end that it waited for: the later one.
    assert pace.take(99 * SECOND_NS) == [(21 * SECOND_NS, [2])]


def test_a_parent_that_is_not_in_the_window_leaves_the_recorded_offset_and_is_counted() -> None:
    rows = [at(0, 0, 1), at(1, 1, 2, outcome="error", parent=0), at(2, 4, 5, parent=1, session=0)]
    timeline = lay_out(rows, [rows[0], rows[2]], idle_cap_ns=CAP_NS)
    assert timeline.starts == (Start(0), Start(4 * SECOND_NS))
    assert timeline.facts["parents_missing"] == 1
    assert timeline.facts["sessions_unknown"] == 0.5
    assert (timeline.facts["recorded"], timeline.facts["replayable"]) == (3, 2)


def test_without_ends_arrivals_are_kept_and_nothing_is_cut() -> None:
    rows = [at(0, 0, None), at(1, 40, None, parent=0), at(2, 41, None)]
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS)
    assert timeline.starts == (Start(0), Start(40 * SECOND_NS, beside=0), Start(41 * SECOND_NS))
    assert (timeline.facts["ends_unknown"], timeline.facts["arrivals_at"], timeline.facts["peak"]) == (3, None, None)


def test_time_that_nobody_recorded_is_cut_even_from_an_uncut_timeline() -> None:
    rows = [at(0, 0, 1), at(1, 100, 101), at(2, HOUR_NS / SECOND_NS, None)]
    windows = [(0, 110 * SECOND_NS), (HOUR_NS - 10 * SECOND_NS, HOUR_NS + SECOND_NS)]
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS, cut_idle=False, recorded=windows)
    # 9 s and 10 s were seen to be idle; what lies between is as much as the cap.
    assert offsets(timeline) == [0, 100, 101 + 9 + 5 + 10]


def test_the_plan_tells_which_concurrency_it_makes() -> None:
    rows = [at(0, 0, 4), at(1, 1, 4), at(2, 5, 6), at(3, 5.5, 6)]
    facts = lay_out(rows, rows, idle_cap_ns=CAP_NS).facts
    assert (facts["arrivals_at"], facts["peak"], facts["whole"]) == ({"1": 2, "2": 2}, 2, True)


def bursts(sizes: list[int], apart_s: int = 600) -> list[ProfileRow]:
    """One busy period per size, of a request a second."""
    rows: list[ProfileRow] = []
    for number, size in enumerate(sizes):
        for place in range(size):
            begin_s = number * apart_s + place
            rows.append(at(len(rows), begin_s, begin_s + 0.9, in_flight=0))
    return rows


def test_a_profile_smaller_than_the_plan_is_played_once_and_whole() -> None:
    rows = bursts([3, 4])
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=100)
    assert [sent.request for sent in timeline.rows] == list(range(7))
    assert timeline.facts["whole"] is True


def test_a_long_profile_is_sampled_through_all_of_its_hours() -> None:
    rows = bursts([5] * 144)  # a day, a burst every ten minutes
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=120, seed=(7,))
    assert len(timeline.rows) == 120
    hours = Counter(sent.arrival_ns // HOUR_NS for sent in timeline.rows)
    assert set(hours) == set(range(24))
    assert set(hours.values()) == {5}
    assert timeline.facts["whole"] is False
    # Each burst lasts 4.9 s and then there are 5 s of idle.
    assert offsets(timeline) == pytest.approx([9.9 * (k // 5) + k % 5 for k in range(120)])


def test_a_busy_period_of_more_than_a_quarter_of_the_plan_is_cut_into_consecutive_arrivals() -> None:
    rows = bursts([4000])
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=40)
    requests = [sent.request for sent in timeline.rows]
    assert len(requests) == 40
    runs = sum(later != earlier + 1 for earlier, later in pairwise(requests)) + 1
    assert 4 <= runs <= 5
    breaks = [b - a for a, b in pairwise(offsets(timeline))]
    assert {round(gap, 6) for gap in breaks} == {1.0, 5.9}


@given(st.data())
def test_a_choice_is_of_the_planned_size_in_recorded_order_and_the_same_for_a_seed(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=25))
    rows = bursts(sizes)
    most = data.draw(st.integers(1, len(rows) + 3))
    seed = (data.draw(st.integers(0, 1000)),)
    sendable = [sent for sent in rows if data.draw(st.booleans())] or rows[:1]
    one = lay_out(rows, sendable, idle_cap_ns=CAP_NS, most=most, seed=seed)
    requests = [sent.request for sent in one.rows]
    assert requests == sorted(set(requests))
    assert set(requests) <= {sent.request for sent in sendable}
    assert len(requests) == min(most, len(sendable))
    assert one == lay_out(rows, sendable, idle_cap_ns=CAP_NS, most=most, seed=seed)
    assert offsets(one) == sorted(offsets(one))


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), min_size=1, max_size=40), st.integers(0, 10**5)
)
def test_at_the_recorded_speed_everything_comes_back_at_its_offset(stays: list[tuple[int, int]], cap_ns: int) -> None:
    begun = sorted(stays)
    rows = [
        row(k, arrival_ns=begin, end_ns=begin + lasts, parent=k // 2 if k else None)
        for k, (begin, lasts) in enumerate(begun)
    ]
    timeline = lay_out(rows, rows, idle_cap_ns=cap_ns)
    pace = Pace(timeline.starts, 0)
    due: dict[int, int] = {}
    ends: list[tuple[int, int]] = []
    while pace.left:
        for due_ns, indices in pace.take(min([end for end, _ in ends], default=1 << 60)):
            for index in indices:
                due[index] = due_ns
                ends.append((due_ns + begun[index][1], index))
        if pace.left:
            ends.sort()
            end_ns, index = ends.pop(0)
            pace.ended(index, end_ns)
    assert [due[index] for index in range(len(rows))] == [start.offset_ns for start in timeline.starts]
    # Between two requests no more is idle than the cap.
    busy_until = 0
    for index, start in enumerate(timeline.starts):
        assert start.offset_ns - busy_until <= cap_ns
        busy_until = max(busy_until, start.offset_ns + begun[index][1])


def test_concurrency_is_sampled_with_the_hours() -> None:
    """Every fifth burst met others, and every fifth burst is taken: by time alone that would be all of them or none."""
    rows: list[ProfileRow] = []
    for number in range(240):
        for place in range(5):
            begin_s = number * 360 + place
            rows.append(at(len(rows), begin_s, begin_s + 0.9, in_flight=0 if number % 5 else 3))
    for seed in range(20):
        chosen = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=240, seed=(seed,)).rows
        crowded = {sent.arrival_ns // HOUR_NS for sent in chosen if sent.in_flight == 3}
        assert sum(sent.in_flight == 3 for sent in chosen) in (45, 50)  # a fifth of 240, in whole bursts
        assert max(crowded) - min(crowded) >= 20  # of the day
        assert len({sent.arrival_ns // HOUR_NS for sent in chosen}) >= 20


def test_what_is_beside_a_turn_that_waits_is_due_when_that_is_known() -> None:
    rows = [at(0, 0, 2), at(1, 3, 9, parent=0), at(2, 5, 8, parent=1, link="branch")]
    pace = Pace(lay_out(rows, rows, idle_cap_ns=CAP_NS).starts, 0)
    assert pace.take(99 * SECOND_NS) == [(0, [0])]
    assert (pace.next_due_ns(), pace.left) == (None, 2)
    pace.ended(0, 10 * SECOND_NS)
    assert pace.take(99 * SECOND_NS) == [(11 * SECOND_NS, [1]), (13 * SECOND_NS, [2])]
    assert pace.left == 0
