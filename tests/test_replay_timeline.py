"""The recorded pacing of a window: what is cut, what waits for what, and what stands for a long profile."""

from collections import Counter
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_replay_schedule import row

from profiles.captures import Interval
from profiles.concurrency import compare_arrivals, others_in_flight
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


def test_a_busy_period_of_more_than_a_quarter_of_the_plan_is_played_in_pieces_without_a_pause() -> None:
    rows = bursts([4000])
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=80)
    requests = [sent.request for sent in timeline.rows]
    assert len(requests) == 80
    runs = sum(later != earlier + 1 for earlier, later in pairwise(requests)) + 1
    assert runs in (4, 5)
    assert (timeline.facts["pieces"], timeline.facts["joined_busy"]) == (runs, 0)
    # Nobody was idle for more than 0.1 s in those hours, and nobody is now.
    assert offsets(timeline) == list(range(80))


def crowd(count: int, seed: int, apart_s: float = 2.0, lasts_s: float = 3.0) -> list[ProfileRow]:
    """Requests of many users, each a session with think time, that overlap as they come."""
    random = Random(seed)
    begins = list(accumulate(random.expovariate(1 / apart_s) for _ in range(count)))
    stays = [(begin, begin + random.lognormvariate(0, 0.8) * lasts_s) for begin in begins]
    met = others_in_flight([Interval(round(begin * 1e9), round(end * 1e9)) for begin, end in stays])
    last: dict[int, int] = {}  # by session: its last request
    rows: list[ProfileRow] = []
    for number, (begin, end) in enumerate(stays):
        free = [session for session, turn in last.items() if stays[turn][1] <= begin <= stays[turn][1] + 60]
        session = random.choice(free) if free and random.random() < 0.6 else number
        parent = last.get(session)
        last[session] = number
        rows.append(at(number, begin, end, in_flight=met[number], session=session, parent=parent))
    return rows


def variation(timeline: Timeline, rows: list[ProfileRow]) -> float:
    """Between the concurrency that the plan makes and the recorded one."""
    found = compare_arrivals(timeline.met, Counter((sent.in_flight or 0) + 1 for sent in rows))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(8))
def test_a_small_part_of_one_busy_period_is_as_dense_as_the_whole(seed: int) -> None:
    """16 of 42 requests that came within 10 s: they last about 4 s, and no pause is among them."""
    rows = crowd(42, seed=5, apart_s=0.25, lasts_s=0.6)
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=16, seed=(seed,))
    assert len(timeline.rows) == 16
    assert timeline.facts["busy_periods"] == 1
    assert timeline.facts["span_ns"] < 6 * SECOND_NS
    longest_ns = max(later.arrival_ns - earlier.arrival_ns for earlier, later in pairwise(rows))
    starts = [start.offset_ns for start in timeline.starts]
    assert max(later - earlier for earlier, later in pairwise(starts)) <= longest_ns


@pytest.mark.parametrize(("count", "apart_s", "lasts_s"), [(3000, 2.0, 3.0), (6000, 4.0, 3.0), (3000, 0.5, 2.0)])
def test_the_pieces_meet_the_concurrency_of_the_whole_profile(count: int, apart_s: float, lasts_s: float) -> None:
    rows = crowd(count, 11, apart_s, lasts_s)
    whole = lay_out(rows, rows, idle_cap_ns=CAP_NS)
    for seed in range(6):
        timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=400, seed=(seed,))
        assert variation(timeline, rows) < 0.07
        share = timeline.facts["span_ns"] / whole.facts["span_ns"]
        assert share == pytest.approx(400 / count, rel=0.25)


def test_a_piece_that_begins_among_others_follows_at_the_recorded_distance() -> None:
    # Somebody is always in flight: each request lasts 2.5 s, one comes each second.
    rows = [at(k, k, k + 2.5, in_flight=min(k, 2)) for k in range(400)]
    timeline = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=80)
    assert timeline.facts["joined_busy"] == timeline.facts["pieces"] - 1 >= 3
    assert offsets(timeline) == list(range(80))
    assert timeline.facts["arrivals_at"] == {"1": 1, "2": 1, "3": 78}


def test_a_piece_that_begins_among_others_never_waits_for_an_arrival_that_took_longer_than_they_did() -> None:
    # The request before the second half began 100 s before it and lasted through it; that of the first half lasts 1 s.
    rows = [at(k, k, k + 1.5, in_flight=1) for k in range(32)]
    rows += [at(32, 40, 180, in_flight=0)]
    rows += [at(33 + k, 140 + k, 141.5 + k, in_flight=2) for k in range(32)]
    joined = 0
    for seed in range(12):
        timeline = lay_out(rows, rows, idle_cap_ns=20 * SECOND_NS, most=32, seed=(seed,))
        sent = [chosen.request for chosen in timeline.rows]
        for (before, earlier), (request, later) in pairwise(zip(sent, offsets(timeline), strict=True)):
            if request != before + 1 and request > 32:
                joined += 1
                assert later - earlier <= 1.5
    assert joined


def test_what_is_cut_out_of_sessions_is_counted() -> None:
    rows = crowd(400, seed=2)
    facts = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=100).facts
    sent = lay_out(rows, rows, idle_cap_ns=CAP_NS, most=100).rows
    held = {chosen.request for chosen in sent}
    lacking = {chosen.session for chosen in sent} & {row.session for row in rows if row.request not in held}
    assert facts["sessions"] == len({chosen.session for chosen in sent})
    assert facts["sessions_cut"] == len(lacking) > 0
    whole = lay_out(rows, rows, idle_cap_ns=CAP_NS).facts
    assert (whole["sessions_cut"], whole["pieces"], whole["joined_busy"], whole["parents_missing"]) == (0, 1, 0, 0)


def test_of_samples_that_are_alike_the_one_that_cuts_the_fewest_sessions_is_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = crowd(1200, 4, 4.0, 3.0)

    def missing() -> int:
        timelines = (lay_out(rows, rows, idle_cap_ns=CAP_NS, most=200, seed=(seed,)) for seed in range(6))
        return sum(timeline.facts["parents_missing"] for timeline in timelines)

    alike = missing()
    monkeypatch.setattr("replay.timeline.ALIKE", 1e-9)
    assert alike < missing()


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 900)), min_size=2, max_size=60),
    st.integers(0, 300),
    st.integers(1, 40),
    st.integers(0, 5),
)
def test_gaps_inside_a_piece_are_the_recorded_ones_and_no_join_makes_a_pause(
    stays: list[tuple[int, int]], cap_ns: int, most: int, seed: int
) -> None:
    begun = sorted(stays)
    rows = [row(k, arrival_ns=begin, end_ns=begin + lasts) for k, (begin, lasts) in enumerate(begun)]
    idle: dict[int, int] = {}  # nobody was in flight so long before it
    busy_until = begun[0][0]
    for k, (begin, lasts) in enumerate(begun):
        idle[k] = begin - busy_until
        busy_until = max(busy_until, begin + lasts)
    timeline = lay_out(rows, rows, idle_cap_ns=cap_ns, most=most, seed=(seed,))
    places = zip(timeline.rows, timeline.starts, strict=True)
    placed = [(sent.request, start.offset_ns) for sent, start in places]
    busy_until = placed[0][1] + begun[placed[0][0]][1]
    for (before, earlier_ns), (request, later_ns) in pairwise(placed):
        if request == before + 1 and idle[request] <= cap_ns:
            assert later_ns - earlier_ns == begun[request][0] - begun[before][0]
        else:
            assert later_ns - busy_until <= max(0, min(idle[request], cap_ns))
        busy_until = max(busy_until, later_ns + begun[request][1])


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
