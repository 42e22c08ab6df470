"""Closed loops in virtual time: concurrency, when each request was due, early stops, and what is kept of it."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Answer, Engine, after, closed, planned_by, play
from test_replay_schedule import row
from virtual import VirtualClock, run_virtual

from profiles.records import CANCELLED, ERROR, OK, TIMEOUT, Outcome
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.client import Planned
from replay.loop_lag import LoopLag
from replay.player import play_window
from replay.schedule import Window
from replay.slots import Ahead, Silence, SlotPool


def rows(count: int) -> list[object]:
    return [row(index) for index in range(count)]


def window(c: int, count: int, limit_ns: int | None = None) -> Window:
    return closed(c, [row(index) for index in range(count)], limit_ns)


def test_a_request_of_a_closed_loop_is_due_when_its_slot_becomes_free() -> None:
    engine = Engine(lambda sent: after((3, 1, 1, 1, 1)[sent.index]))
    played = run_virtual(play(window(2, 5), engine))
    facts = [
        (outcome.index, (outcome.due_ns or 0) // SECOND_NS, outcome.end_ns // SECOND_NS) for outcome in played.outcomes
    ]
    assert facts == [(1, 0, 1), (2, 1, 2), (0, 0, 3), (3, 2, 3), (4, 3, 4)]
    assert engine.most == engine.slots == 2
    # All slots were busy from the first instant on; the first that found nothing more ended at 3 s.
    assert (played.steady_from_ns, played.steady_to_ns) == (0, 3 * SECOND_NS)
    assert played.in_flight_mean == 2.0
    assert played.arrivals_at == {1: 2, 2: 3}  # at 3 s both slots became free, and whoever came first found nobody
    assert (played.started_ns, played.ended_ns) == (0, 4 * SECOND_NS)
    assert (played.stopped_early, played.invalid) == (None, None)


@given(
    st.integers(1, 9),
    st.lists(st.integers(1, 50), min_size=0, max_size=40),
    st.sampled_from([None, 60 * MILLISECOND_NS]),
)
def test_a_closed_loop_holds_c_and_sends_each_request_once(c: int, service_ms: list[int], limit_ns: int | None) -> None:
    count = len(service_ms)
    engine = Engine(lambda sent: after(service_ms[sent.index % count] / 1000))
    played = run_virtual(play(window(c, count, limit_ns), engine))
    assert engine.most == (min(c, count) if limit_ns is None else c if count else 0)
    assert engine.seen == list(range(len(engine.seen)))
    assert Counter(outcome.index for outcome in played.outcomes) == Counter(engine.seen)
    if limit_ns is None:
        assert len(played.outcomes) == count
    else:
        # What was started before the limit runs to its end.
        assert all((outcome.send_started_ns or 0) < limit_ns for outcome in played.outcomes)
        assert not played.outcomes or played.ended_ns >= limit_ns


def test_a_list_that_is_shorter_than_the_loop_is_wide_is_never_steady() -> None:
    played = run_virtual(play(window(4, 3), Engine(lambda _: after(1))))
    assert (played.steady_from_ns, played.steady_to_ns, played.in_flight_mean) == (None, None, None)


def test_a_stall_is_no_token_from_anybody_and_cuts_them_all() -> None:
    """L06: the engine hangs in mid-run while it still accepts requests."""

    def answer(sent: Planned) -> Answer:
        if sent.index < 10:
            return after(1)
        return Answer(10**15, (2 * SECOND_NS,) if sent.index == 10 else ())

    engine = Engine(answer)
    played = run_virtual(play(window(2, 200), engine, stall_ns=60 * SECOND_NS))
    # Ten answers in 5 s, then one more token at 7 s, and never again.
    assert played.ended_ns == 67 * SECOND_NS
    assert played.stalled
    assert played.stopped_early == "no token from any of 2 requests in flight for 60.0 s"
    cut = [outcome for outcome in played.outcomes if outcome.outcome == TIMEOUT]
    assert [(outcome.index, outcome.reason) for outcome in cut] == [
        (10, played.stopped_early),
        (11, played.stopped_early),
    ]
    assert len(played.outcomes) == 12  # what had ended is kept, and nothing more was sent


def test_one_that_waits_long_is_no_stall_while_others_get_tokens() -> None:
    slow = Answer(500 * SECOND_NS, (500 * SECOND_NS,))
    quick = Answer(90 * SECOND_NS, (30 * SECOND_NS, 59 * SECOND_NS, 90 * SECOND_NS))
    engine = Engine(lambda sent: slow if sent.index == 0 else quick)
    played = run_virtual(play(window(2, 7), engine, stall_ns=60 * SECOND_NS))
    assert played.stopped_early is None
    assert len(played.outcomes) == 7


def test_new_requests_and_timeouts_of_a_hung_engine_are_no_signs_of_life() -> None:
    """Each request is given up after 30 s: the next one must not start the clock again."""
    engine = Engine(lambda _: Answer(30 * SECOND_NS, (), TIMEOUT))
    played = run_virtual(play(window(1, 50), engine, stall_ns=100 * SECOND_NS))
    assert played.stalled
    assert played.ended_ns == 100 * SECOND_NS


def test_silence_counts_only_while_somebody_is_in_flight() -> None:
    silence = Silence()
    silence.begin(10)
    silence.begin(12)
    assert silence.lasted_ns(15) == 5
    silence.rest(20)
    assert silence.lasted_ns(100) == 10
    silence.begin(200)
    assert silence.lasted_ns(205) == 15
    silence.sign(203)
    assert silence.lasted_ns(205) == 2


def test_too_many_errors_end_a_window_but_not_before_twenty() -> None:
    """R11: 512 requests to a model that nobody serves are 512 fast errors."""
    engine = Engine(lambda _: Answer(MILLISECOND_NS, (), ERROR))
    played = run_virtual(play(window(1, 512), engine, max_error_share=0.5))
    assert played.stopped_early == "20 of 20 requests failed (100 %)"
    assert not played.stalled
    assert len(played.outcomes) == 20


def test_errors_up_to_the_share_are_kept_and_go_on() -> None:
    engine = Engine(lambda sent: Answer(MILLISECOND_NS, (), ERROR if sent.index % 2 else OK))
    played = run_virtual(play(window(2, 101), engine, max_error_share=0.5))
    assert played.stopped_early is None
    assert len(played.outcomes) == 101


def test_nothing_more_is_sent_to_an_engine_that_is_dead() -> None:
    engine = Engine(lambda _: after(1))
    played = run_virtual(play(window(2, 100), engine, alive=lambda: len(engine.seen) < 6))
    assert len(played.outcomes) == 6


def test_a_window_that_is_interrupted_tells_of_those_in_flight() -> None:
    """R07: what ended is on disk already, what was in flight is marked."""
    heard: list[Outcome] = []

    async def main() -> None:
        engine = Engine(lambda _: after(10))
        task = asyncio.ensure_future(play(window(2, 20), engine, on_outcome=heard.append))
        await asyncio.sleep(35)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    assert Counter(outcome.outcome for outcome in heard) == {OK: 6, CANCELLED: 2}
    assert [(item.end_ns, item.due_ns) for item in heard[-2:]] == [(35 * SECOND_NS, 30 * SECOND_NS)] * 2


def test_outcomes_that_cannot_be_written_end_the_window_with_that_problem() -> None:
    def full(_: Outcome) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        run_virtual(play(window(2, 20), Engine(lambda _: after(1)), on_outcome=full))


def test_requests_are_made_before_they_are_due_and_not_between_due_and_send() -> None:
    made: list[tuple[int, int]] = []
    clock = VirtualClock()
    engine = Engine(lambda _: after(1))
    loop = window(2, 3, limit_ns=4 * SECOND_NS)

    def plan(index: int) -> Planned:
        made.append((index, clock.now_ns()))
        return planned_by(loop)(index)

    async def main() -> None:
        await play_window(
            loop, plan, SlotPool(engine.new_slot), clock, lambda _: None, stall_ns=10**18, max_error_share=1
        )

    run_virtual(main())
    made_at = dict(made)
    assert [made_at[index] // SECOND_NS for index in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert len(made) == len(made_at)  # each was made once


def test_what_was_not_made_ahead_is_made_when_it_is_asked_for() -> None:
    ahead = Ahead(planned_by(window(1, 5)), depth=2, count=5)
    assert [ahead.take(index).index for index in (0, 1)] == [0, 1]
    ahead.fill()
    assert sorted(ahead._made) == [2, 3]
    assert ahead.take(2).index == 2
    ahead.take(3)
    ahead.fill()
    assert sorted(ahead._made) == [4]


def test_a_slow_sender_shows_as_lag_and_as_drift() -> None:
    """Each request is sent 3 ms later than the one before: the client falls behind."""
    engine = Engine(lambda _: after(1), late_ns=lambda sent: 3 * MILLISECOND_NS * sent.index)
    played = run_virtual(play(window(1, 40), engine))
    lag = played.schedule_lag
    assert lag is not None
    assert (lag.max_ns, lag.requests) == (117 * MILLISECOND_NS, 40)
    assert lag.late_share == 0.9  # the first four are at most 9 ms late
    assert lag.slope == pytest.approx(0.003, rel=0.06)
    assert played.invalid is not None
    assert "requests were sent 116 ms late (p99), the limit is 20.0 ms" in played.invalid


def test_a_blocked_loop_is_seen_while_requests_are_in_flight_and_not_diluted_by_rest() -> None:
    class Stalling(VirtualClock):
        """Every sleep of the probe comes back 30 ms late."""

        async def sleep_until_ns(self, instant_ns: int) -> None:
            await super().sleep_until_ns(instant_ns + 30 * MILLISECOND_NS)

    async def main() -> LoopLag:
        lag = LoopLag(Stalling())
        watcher = asyncio.ensure_future(lag.watch())
        await asyncio.sleep(1)
        lag.pause()
        await asyncio.sleep(3600)
        lag.go_on()
        await asyncio.sleep(1)
        watcher.cancel()
        return lag

    facts = run_virtual(main()).facts()
    assert facts is not None
    assert (facts.p50_ns, facts.p99_ns, facts.max_ns) == (30 * MILLISECOND_NS,) * 3
    assert 40 <= facts.samples <= 60


def test_a_pool_gives_out_what_was_used_last_and_grows_only_when_it_must() -> None:
    async def main() -> int:
        engine = Engine(lambda _: after(1))
        pool = SlotPool(engine.new_slot)
        one, two = await pool.take(2)
        pool.give_back(one)
        pool.give_back(two)
        assert await pool.take() == [two]
        assert await pool.take() == [one]
        await pool.take(3)
        await pool.close()
        return engine.slots

    assert run_virtual(main()) == 5
