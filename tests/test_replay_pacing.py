"""The recorded pace in virtual time: whole replays of hours, with the exact instant of every request."""

import random
from collections import Counter
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Answer, Engine, after, closed, play
from test_replay_schedule import row
from test_replay_timeline import CAP_NS, at, crowd
from virtual import run_virtual

from profiles.concurrency import compare_arrivals
from profiles.profile import ProfileRow
from profiles.records import ERROR
from profiles.units import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from replay.player import AHEAD_NS, Played
from replay.schedule import Pick, Window
from replay.timeline import lay_out


def paced(rows: list[ProfileRow], **cuts: Any) -> Window:
    timeline = lay_out(rows, rows, **({"idle_cap_ns": CAP_NS} | cuts))
    picks = tuple(Pick(sent) for sent in timeline.rows)
    return Window("observed", "observed", 0, True, picks, starts=timeline.starts, facts=timeline.facts)


def due_s(played: Played) -> dict[int, float]:
    """Seconds from the window's first request, by index. Each was sent at the very instant at which it was due."""
    assert all(outcome.due_ns == outcome.send_started_ns for outcome in played.outcomes)
    return {outcome.index: ((outcome.due_ns or 0) - played.started_ns) / SECOND_NS for outcome in played.outcomes}


# A: 0–2, then 6 s of thought, 8–10, then 50 s, of which the whole house is idle from 12 on, 60–62.
# B: 7–12, overlapped from 9 on by a branch 9–11.
SESSIONS = [
    at(0, 0, 2, session=0, turn=0),
    at(1, 7, 12, session=1, turn=0),
    at(2, 8, 10, session=0, turn=1, parent=0, think_ns=6 * SECOND_NS),
    at(3, 9, 11, session=1, turn=1, parent=1, link="branch"),
    at(4, 60, 62, session=0, turn=2, parent=2, think_ns=50 * SECOND_NS),
]


def test_a_profile_of_two_sessions_is_replayed_to_the_nanosecond() -> None:
    """Computed by hand. The engine takes 1 s where 2 s were recorded, and 9 s for request 1 instead of 5."""
    engine = Engine(lambda sent: after(9 if sent.index == 1 else 1))
    played = run_virtual(play(paced(SESSIONS), engine))
    # 0: at once. 1: at its place, 7 s. 2: 1 s + 6 s of thought. 3: 2 s after 1 was due. The 48 s of idle are cut by
    # 43 s, the 50 s of thought with them: 4 comes 7 s after 2 has ended.
    assert due_s(played) == {0: 0, 1: 7, 2: 7, 3: 9, 4: 15}
    ends = {outcome.index: (outcome.end_ns - played.started_ns) / SECOND_NS for outcome in played.outcomes}
    assert ends == {0: 1, 1: 16, 2: 8, 3: 10, 4: 16}
    assert played.arrivals_at == {1: 2, 2: 3}
    assert played.schedule_lag is not None
    assert played.schedule_lag.max_ns == 0
    assert (played.steady_from_ns, played.steady_to_ns) == (played.started_ns, played.ended_ns)
    assert played.in_flight_mean == (1 + 9 + 1 + 1 + 1) / 16
    assert played.started_ns == AHEAD_NS


def test_the_same_engine_gives_the_recorded_timeline_back() -> None:
    engine = Engine(lambda sent: after(((SESSIONS[sent.index].end_ns or 0) - SESSIONS[sent.index].arrival_ns) / 1e9))
    window = paced(SESSIONS)
    played = run_virtual(play(window, engine))
    assert due_s(played) == {0: 0, 1: 7, 2: 8, 3: 9, 4: 17}
    assert {str(c): count for c, count in played.arrivals_at.items()} == window.facts["arrivals_at"]


def test_a_child_goes_on_whatever_became_of_its_parent() -> None:
    rows = [at(0, 0, 2), at(1, 5, 6, parent=0)]
    engine = Engine(lambda sent: Answer(4 * SECOND_NS, (), ERROR) if sent.index == 0 else after(1))
    assert due_s(run_virtual(play(paced(rows), engine))) == {0: 0, 1: 7}


def test_the_baseline_meets_the_concurrency_of_the_profile_of_which_it_plays_a_part() -> None:
    """Two hours of trace, of which a boot sends 400 requests, on an engine as fast as the recorded one."""
    rows = crowd(3600, seed=3)
    window = paced(rows, most=400)
    lasts = {place: pick.row.end_ns - pick.row.arrival_ns for place, pick in enumerate(window.picks) if pick.row.end_ns}
    played = run_virtual(play(window, Engine(lambda sent: after(lasts[sent.index] / SECOND_NS))))
    found = compare_arrivals(played.arrivals_at, Counter((sent.in_flight or 0) + 1 for sent in rows))
    assert found is not None
    assert found < 0.07  # the bench check allows 0.1
    assert played.ended_ns - played.started_ns < 1200 * SECOND_NS


def test_a_day_of_trace_takes_no_time() -> None:
    rows = [at(k, 300 * k, 300 * k + 2, parent=k - 1 if k % 3 else None) for k in range(288)]
    engine = Engine(lambda _: after(3))
    played = run_virtual(play(paced(rows, cut_idle=False), engine))
    # A root stays where it was. Its children are 1 s late each, since each answer takes 1 s longer.
    assert due_s(played) == {k: 300 * k + k % 3 for k in range(288)}
    assert played.ended_ns - played.started_ns == (300 * 287 + 2 + 3) * SECOND_NS
    assert engine.slots == 1


def test_one_late_answer_shifts_no_independent_arrival() -> None:
    rows = [at(k, k, k + 0.5) for k in range(50)]
    engine = Engine(lambda sent: after(30 if sent.index == 3 else 0.25))
    assert due_s(run_virtual(play(paced(rows), engine))) == {k: k for k in range(50)}


def test_a_burst_is_sent_at_once_in_its_order_and_no_pool_caps_it() -> None:
    """R01: 128 requests at one instant reach the engine as 128; a closed loop of 8 as 8."""
    rows = [at(k, 10, 12) for k in range(128)]
    engine = Engine(lambda _: after(2))
    played = run_virtual(play(paced(rows), engine))
    assert engine.most == engine.slots == 128
    assert engine.seen == list(range(128))
    assert {outcome.end_ns - (outcome.send_started_ns or 0) for outcome in played.outcomes} == {2 * SECOND_NS}
    assert played.invalid is not None
    assert "128 at once is above 32, up to which this client was measured" in played.invalid
    engine = Engine(lambda _: after(2))
    run_virtual(play(closed(8, rows), engine))
    assert engine.most == 8


def test_time_in_a_queue_is_seen_from_the_due_instant() -> None:
    """R03: arrivals 100 ms apart, 500 ms of service, one at a time. What the engine makes wait is its own latency; with
    every instant kept, service and response are both there."""
    rows = [row(k, arrival_ns=k * 100 * MILLISECOND_NS, end_ns=k * 100 * MILLISECOND_NS + 1) for k in range(8)]
    free_ns = 0

    def queue(sent: Any) -> Answer:
        nonlocal free_ns
        now_ns = engine.clock.now_ns()
        free_ns = max(free_ns, now_ns) + 500 * MILLISECOND_NS
        return Answer(free_ns - now_ns, (free_ns - now_ns,))

    engine = Engine(queue)
    played = run_virtual(play(paced(rows), engine))
    waits = [outcome.end_ns - (outcome.due_ns or 0) for outcome in played.outcomes]
    assert sum(waits) / len(waits) == 1900 * MILLISECOND_NS
    assert engine.most == 7


def test_an_engine_that_dies_while_everybody_thinks_is_noticed_before_the_next_request() -> None:
    rows = [at(0, 0, 1), at(1, 3600, 3601)]
    engine = Engine(lambda _: after(1))
    window = paced(rows, cut_idle=False)
    played = run_virtual(play(window, engine, alive=lambda: engine.clock.now_ns() < 60 * SECOND_NS))
    assert len(played.outcomes) == 1
    assert played.ended_ns <= 75 * SECOND_NS


def test_a_hung_engine_is_given_up_though_new_requests_arrive() -> None:
    rows = [at(k, 10 * k, 10 * k + 8) for k in range(100)]
    engine = Engine(lambda sent: after(8) if sent.index < 3 else Answer(10**15))
    played = run_virtual(play(paced(rows), engine, stall_ns=95 * SECOND_NS))
    # The last sign of life is the end of request 2 at 28 s; request 3 is sent at 30 s.
    assert played.stalled
    assert played.ended_ns - played.started_ns == (30 + 95) * SECOND_NS


@st.composite
def _traces(draw: st.DrawFn) -> list[ProfileRow]:
    """Requests in order of arrival; some continue an earlier one, some hold answers of others."""
    arrivals = sorted(draw(st.lists(st.integers(0, 120_000), min_size=1, max_size=25)))
    rows: list[ProfileRow] = []
    for number, arrival_ms in enumerate(arrivals):
        lasted_ms = draw(st.integers(1, 20_000))
        earlier = st.none() | st.integers(0, number - 1) if number else st.none()
        deps = draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        rows.append(
            row(
                number,
                arrival_ns=arrival_ms * MILLISECOND_NS,
                end_ns=(arrival_ms + lasted_ms) * MILLISECOND_NS,
                parent=draw(earlier),
                deps=deps or None,
            )
        )
    return rows


@settings(max_examples=60)
@given(_traces(), st.integers(0, 2**32), st.integers(0, 8000), st.booleans())
def test_everything_is_sent_once_and_nothing_before_what_it_waits_for(
    rows: list[ProfileRow], seed: int, cap_ms: int, cut_idle: bool
) -> None:
    random_ = random.Random(seed)
    service_ns = [random_.randrange(1, 30_000_000) * MICROSECOND_NS for _ in rows]
    window = paced(rows, idle_cap_ns=cap_ms * MILLISECOND_NS, cut_idle=cut_idle)
    assert window.starts is not None
    engine = Engine(lambda sent: Answer(service_ns[sent.index], (service_ns[sent.index],)))
    played = run_virtual(play(window, engine))
    by_index = {outcome.index: outcome for outcome in played.outcomes}
    assert sorted(engine.seen) == list(range(len(rows)))
    for index, (sent, start) in enumerate(zip(rows, window.starts, strict=True)):
        due_ns = by_index[index].due_ns
        assert due_ns is not None
        assert by_index[index].send_started_ns == due_ns
        bounds = []
        others = [k for k in (sent.parent, *(sent.deps or ())) if k is not None]
        waited = [k for k in others if (rows[k].end_ns or 0) <= sent.arrival_ns]
        if waited:
            latest_ns = max(by_index[k].end_ns for k in waited)
            think_ns = sent.arrival_ns - max(rows[k].end_ns or 0 for k in waited)
            assert start.think_ns <= think_ns if cut_idle else start.think_ns == think_ns
            bounds.append(latest_ns + start.think_ns)
        if sent.parent is not None and sent.parent not in waited:
            parent_ns = by_index[sent.parent].due_ns
            assert parent_ns is not None
            bounds.append(parent_ns + start.offset_ns - window.starts[sent.parent].offset_ns)
        # A root, and whatever nobody waits for, keeps its place from the one anchor.
        assert due_ns == max(bounds, default=played.started_ns + start.offset_ns)


@settings(max_examples=20)
@given(_traces(), st.integers(1, 5), st.integers(6, 30))
def test_what_is_sent_does_not_depend_on_the_speed_of_the_engine(rows: list[ProfileRow], fast: int, slow: int) -> None:
    window = paced(rows)
    engines = [Engine(partial(lambda seconds, _: after(seconds), seconds)) for seconds in (fast, slow)]
    sent = [
        {(outcome.index, outcome.request) for outcome in run_virtual(play(window, engine)).outcomes}
        for engine in engines
    ]
    assert sent[0] == sent[1] == {(index, index) for index in range(len(rows))}
