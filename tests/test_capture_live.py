"""Running counts against the offline sweep, to the nanosecond; the status line and the summary that show them."""

import io
import os
import pty
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.levels import Levels
from capture.live import KEPT, LATELY, FirstTokens, Live
from capture.status import StatusLine, format_brief, format_count, line, plain, summary
from profiles.captures import Interval
from profiles.concurrency import Concurrency, Window, measure
from profiles.records import CANCELLED_BY_CLIENT, ERROR, OK, Exchange, RequestFacts, ResponseFacts
from profiles.units import MILLISECOND_NS, SECOND_NS

HOLD_NS = 50
BEGIN_NS = 1_000  # of the instants that are drawn


def exchange(
    arrival_ns: int,
    end_ns: int,
    *,
    dispatch_ns: int | None = None,
    endpoint: str = "chat",
    outcome: str = OK,
    ttft_ns: int | None = None,
    prompt: int | None = None,
    output: int | None = None,
    events: int = 0,
    reason: str | None = None,
) -> Exchange:
    first_ns = None if ttft_ns is None else arrival_ns + ttft_ns
    return Exchange(
        id="x",
        endpoint=endpoint,
        method="POST",
        path="/v1/chat/completions",
        arrival_ns=arrival_ns,
        dispatch_ns=dispatch_ns,
        end_ns=end_ns,
        outcome=outcome,
        reason=reason,
        request=RequestFacts(),
        response=ResponseFacts(
            first_token_ns=first_ns,
            token_gaps_ns=[0] * max(0, events - 1),
            prompt_tokens=prompt,
            output_tokens=output,
            output=first_ns is not None,
        ),
    )


# -- levels ----------------------------------------------------------------------------------------------------------


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[tuple[int, int | None]], list[Window], list[tuple[int, int, int]]]:
    """Stays, windows, and what is told of them: (told at, kind, index), each told up to HOLD_NS after its instant.

    Frames keep the order of the loop, so one request's start is told before its end.
    """
    instants = st.integers(BEGIN_NS, BEGIN_NS + 400)
    stays: list[tuple[int, int | None]] = []
    for start in draw(st.lists(instants, max_size=12)):
        length = draw(st.one_of(st.none(), st.integers(0, 200)))
        stays.append((start, None if length is None else start + length))
    # Those that start together are told apart by their ends alone: the first to end is the first that came.
    stays.sort(key=lambda stay: (stay[0], stay[1] if stay[1] is not None else 1 << 60))
    edges = sorted(draw(st.lists(instants, min_size=2, max_size=6)))
    windows = list(zip(edges[::2], edges[1::2], strict=False))
    late = st.integers(0, HOLD_NS - 1)
    told: list[tuple[int, int, int]] = []
    end_told: dict[int, int] = {}
    for index, (start, end) in enumerate(stays):
        started = start + draw(late)
        told.append((started, 1, index))
        if end is not None:
            end_told[start] = max(started, end + draw(late), end_told.get(start, 0))
            told.append((end_told[start], 2, index))
    told_ns = 0
    for index, edge in enumerate(edges[: 2 * len(windows)]):  # opens and closes take turns
        told_ns = max(told_ns, edge + draw(late))
        told.append((told_ns, 0, index))
    told.sort()
    return stays, windows, told


def tell(
    levels: Levels,
    stays: list[tuple[int, int | None]],
    windows: list[Window],
    told: list[tuple[int, int, int]],
) -> None:
    for _, kind, index in told:
        if kind == 0:
            levels.window(windows[index // 2][index % 2], ("open", "close")[index % 2])
        elif kind == 1:
            levels.start(stays[index][0])
        else:
            start_ns, end_ns = stays[index]
            assert end_ns is not None
            assert levels.end(start_ns, end_ns)


def held_to_the_end(stays: list[tuple[int, int | None]], until_ns: int) -> list[Interval]:
    """Whoever was not seen to end is in flight up to now, through a gap too: it was told of as in flight."""
    return [Interval(start, max(start, until_ns) if end is None else end) for start, end in stays]


@given(stories())
def test_the_running_counts_are_those_of_the_offline_sweep(
    story: tuple[list[tuple[int, int | None]], list[Window], list[tuple[int, int, int]]],
) -> None:
    stays, windows, told = story
    levels = Levels(HOLD_NS)
    tell(levels, stays, windows, told)
    expected: Concurrency | None = None
    if any(opened < close for opened, close in windows):
        expected = measure(held_to_the_end(stays, levels.latest_ns), windows)
    found = levels.measured()
    assert levels.moved == 0
    if found is None:
        assert expected is None
        return
    assert expected is not None
    assert found == Concurrency(
        {level: time_ns for level, time_ns in expected.time_ns_at.items() if time_ns},
        expected.arrivals_at,
        expected.observed_ns,
        expected.duration_sum_ns,
    )
    assert sum(k * time_ns for k, time_ns in found.time_ns_at.items()) == found.duration_sum_ns
    assert levels.in_flight == sum(end is None for _, end in stays)


@given(stories(), st.integers(0, 200))
def test_what_is_settled_never_falls_and_ends_at_the_whole(
    story: tuple[list[tuple[int, int | None]], list[Window], list[tuple[int, int, int]]], step: int
) -> None:
    stays, windows, told = story
    levels = Levels(HOLD_NS)
    before: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for at in range(len(told)):
        tell(levels, stays, windows, told[at : at + 1])
        now = levels.settled_time_ns_at, levels.settled_arrivals_at
        for was, become in zip(before, now, strict=True):
            assert all(become[level] >= count for level, count in was.items())
        before = now
    levels.passed(levels.latest_ns + HOLD_NS + 1 + step)
    whole = levels.measured()
    settled = {level: time_ns for level, time_ns in levels.settled_time_ns_at.items() if time_ns}
    assert settled == ({} if whole is None else whole.time_ns_at)


@given(stories())
def test_the_most_in_flight_is_the_highest_point_at_which_one_arrived(
    story: tuple[list[tuple[int, int | None]], list[Window], list[tuple[int, int, int]]],
) -> None:
    stays, _, told = story
    levels = Levels(HOLD_NS)
    levels.window(0, "open")
    tell(levels, stays, [], [each for each in told if each[1] != 0])
    assert levels.highest == max(levels.arrivals_at(), default=0)
    levels.passed(levels.latest_ns + HOLD_NS + 1)
    assert levels.highest == max(levels.arrivals_at(), default=0)


def test_an_end_that_is_told_late_takes_its_place() -> None:
    levels = Levels()
    levels.window(0, "open")
    levels.start(10)
    levels.start(30)  # handled first, although the other ended before
    levels.end(10, 20)
    levels.end(30, 60)
    levels.window(100, "close")
    assert levels.measured() == Concurrency({0: 60, 1: 40}, {1: 2}, 100, 40)


def test_an_event_beyond_the_hold_is_moved_and_the_check_says_so() -> None:
    live = Live()
    live.window(0, "open")
    live.arrived(SECOND_NS)
    live.beat(20 * SECOND_NS, 1, 0)
    assert live.check() == []
    live.ended(exchange(SECOND_NS, 5 * SECOND_NS))  # 15 s after the fact; the sweep is settled up to 15 s
    found = live.check()
    assert found[0] == "arrival clock: sum of k x T_k is off the sum of durations by +10.000000000 s"
    assert found[1] == "arrival clock: 1 events were told too late to be put in their place"


def test_a_request_told_again_by_a_new_scribe_counts_from_its_window_on_and_is_no_arrival() -> None:
    live = Live()
    live.window(100 * SECOND_NS, "open")
    live.arrived(3 * SECOND_NS)  # long before
    live.ended(exchange(3 * SECOND_NS, 104 * SECOND_NS))
    live.beat(110 * SECOND_NS, 0, 0)
    assert live.check() == []
    assert live.measured() == Concurrency({0: 6 * SECOND_NS, 1: 4 * SECOND_NS}, {}, 10 * SECOND_NS, 4 * SECOND_NS)


def test_a_gap_between_windows_is_not_time_at_zero() -> None:
    levels = Levels()
    for opened, close in ((0, 8), (10, 20)):
        levels.window(opened, "open")
        levels.window(opened, "open")  # said twice
        levels.window(close, "close")
    assert levels.measured() == Concurrency({0: 18}, {}, 18, 0)
    assert levels.windows == 2


def test_an_end_whose_start_was_lost_is_counted_and_moves_nothing() -> None:
    live = Live()
    live.window(0, "open")
    live.ended(exchange(5, 10))
    live.beat(100, 0, 0)
    assert live.in_flight == 0
    assert live.ended_count == 1
    assert live.check() == ["1 requests ended whose arrival was lost: they are not in the concurrency"]


def test_an_end_that_was_lost_shows_against_the_proxys_own_count() -> None:
    live = Live()
    live.window(0, "open")
    live.arrived(5)
    live.beat(100, 0, 0)
    assert live.check() == ["1 more in flight than the proxy counts"]
    live.left(5, None, 90)
    live.beat(200, 0, 0)
    assert live.check() == []


def test_the_most_in_flight_goes_by_the_instants_not_by_the_order_of_telling() -> None:
    levels = Levels(HOLD_NS)
    levels.start(10)
    levels.start(30)  # handled first, although the other ended before
    assert levels.highest == 2
    levels.end(10, 20)
    assert levels.highest == 1
    levels.start(40)
    levels.end(30, 50)
    levels.end(40, 50)
    levels.passed(1000)
    assert (levels.in_flight, levels.highest) == (0, 2)


# -- counts ----------------------------------------------------------------------------------------------------------


def test_both_clocks_count() -> None:
    live = Live()
    live.window(0, "open")
    live.arrived(10)
    live.arrived(20)
    assert (live.in_flight, live.dispatch.in_flight) == (2, 0)
    live.dispatched(30)
    assert (live.in_flight, live.dispatch.in_flight) == (2, 1)
    live.ended(exchange(10, 60, dispatch_ns=30))
    live.ended(exchange(20, 50, outcome=CANCELLED_BY_CLIENT))  # broke off in its upload
    live.window(100, "close")
    assert (live.in_flight, live.dispatch.in_flight) == (0, 0)
    assert live.measured() == Concurrency({0: 50, 1: 20, 2: 30}, {1: 1, 2: 1}, 100, 80)
    assert live.dispatch.measured() == Concurrency({0: 70, 1: 30}, {1: 1}, 100, 30)
    assert live.check() == []


def test_tokens_come_from_usage_and_events_are_counted_apart() -> None:
    live = Live()
    for each in (
        exchange(1, 9, ttft_ns=2, prompt=100, output=7, events=3),
        exchange(2, 9, ttft_ns=2, events=5),  # no usage
        exchange(3, 9, outcome=ERROR),  # no answer: no usage is missing
        exchange(4, 9, endpoint="embeddings", prompt=11),
    ):
        live.arrived(each.arrival_ns)
        live.ended(each)
    assert (live.prompt_tokens, live.output_tokens, live.token_events, live.without_usage) == (111, 7, 8, 1)
    assert live.outcomes() == {OK: 3, ERROR: 1}
    assert live.ended_by["embeddings", OK] == 1
    assert live.ttft.count == 2


def test_the_median_looks_at_the_latest_and_the_quantiles_at_all() -> None:
    ttft = FirstTokens()
    assert (ttft.median_lately_ns, ttft.quantiles_ns(0.5)) == (None, None)
    for _ in range(LATELY):
        ttft.add(100)
    for _ in range(LATELY // 2 + 1):
        ttft.add(900)
    assert ttft.median_lately_ns == 900
    assert ttft.quantiles_ns(0.5, 0.9) == [100, 900]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200))
def test_the_quantiles_are_exact_as_long_as_all_are_kept(values: list[int]) -> None:
    ttft = FirstTokens()
    for value in values:
        ttft.add(value)
    assert ttft.quantiles_ns(0.5, 1.0) == [sorted(values)[(len(values) - 1) // 2], max(values)]
    assert ttft.every == 1
    assert sum(ttft.buckets) == len(values)
    assert ttft.sum_ns == sum(values)


def test_a_long_recording_keeps_an_even_sample() -> None:
    ttft = FirstTokens(kept=8)
    for value in range(100):
        ttft.add(value)
    assert ttft.every == 16
    assert list(ttft._kept) == list(range(0, 100, 16))
    assert KEPT * 8 <= 1 << 20


def test_a_ttft_on_a_bound_falls_into_its_bucket() -> None:
    ttft = FirstTokens()
    ttft.add(5 * MILLISECOND_NS)
    ttft.add(5 * MILLISECOND_NS + 1)
    ttft.add(121 * SECOND_NS)
    assert (ttft.buckets[0], ttft.buckets[1], ttft.buckets[-1]) == (1, 1, 1)


# -- the live line ---------------------------------------------------------------------------------------------------


@pytest.fixture
def night() -> Live:
    """A recording with these operating points: 71 at c = 1, 22 at 2, 7 at 3."""
    live = Live()
    live.window(0, "open")
    at_ns = 0
    for level, bursts in ((3, 7), (2, 15), (1, 49)):
        for _ in range(bursts):
            at_ns += 10 * SECOND_NS
            for other in range(level):
                live.arrived(at_ns + other)
            for other in range(level):
                live.ended(
                    exchange(
                        at_ns + other,
                        at_ns + SECOND_NS,
                        ttft_ns=182 * MILLISECOND_NS,
                        prompt=4000,
                        output=20,
                        events=19,
                    )
                )
    for each in range(3):
        live.arrived(at_ns + 2 * SECOND_NS + each)
    live.beat(at_ns + 3 * SECOND_NS, 3, 2 * MILLISECOND_NS)
    return live


def test_the_line_shows_all_where_there_is_room(night: Live) -> None:
    assert line(night, 120) == (
        "3 in flight | c=1 70% 2 22% 3 8% | 100 requests 402k tokens | TTFT p50 182ms | drop 0 | lag 2ms"
    )
    assert line(night, 90) == "3 in flight | c=1 70% 2 22% 3 8% | 100 req 402k tok | TTFT p50 182ms | drop 0 | lag 2ms"


@pytest.fixture
def noon(night: Live) -> Live:
    """The same with the usual counts of a day."""
    night.ended_by["chat", OK] = 12_345
    night.prompt_tokens, night.output_tokens = 4_000_000, 200_000
    return night


def test_all_that_is_listed_fits_80_columns_with_usual_values(noon: Live) -> None:
    assert line(noon, 79) == "3 in flight|c 1:70 2:22 3:8%|12,345 req 4.2M tok|TTFT p50 182ms|drop 0|lag 2ms"


def test_decimals_go_before_levels_and_levels_before_parts(noon: Live) -> None:
    parts = "3 in flight|{}|TTFT p50 182ms|drop 0|lag 2ms"
    assert line(noon, 77) == parts.format("c 1:70 2:22 3:8%|12.3k req 4.2M tok")
    assert line(noon, 76) == parts.format("c 1:70 2:22 3:8%|12k req 4M tok")
    assert line(noon, 72) == parts.format("c 1:70 2:22%|12k req 4M tok")
    assert line(noon, 68) == parts.format("c 1:70%|12k req 4M tok")
    assert line(noon, 62) == "3 in flight|c 1:70%|12k req 4M tok|TTFT p50 182ms|drop 0"


def test_the_highest_level_is_told_where_there_is_room() -> None:
    live = Live()
    live.window(0, "open")
    for at, level in enumerate((*(each for each in (1, 2, 3) for _ in range(200)), 12)):
        for other in range(level):
            live.arrived(at * SECOND_NS + other)
        for other in range(level):
            live.ended(exchange(at * SECOND_NS + other, at * SECOND_NS + 1000))
    live.beat(10**13, 0, 0)
    assert "| c=1 50% 2 33% 3 17% max 12 |" in line(live, 120)
    assert "|c 1:50 2:33 3:17% max 12|" in line(live, 67)
    assert "|c 1:50 2:33 3:17%|" in line(live, 66)


def test_a_small_share_is_not_nothing() -> None:
    live = Live()
    live.window(0, "open")
    for at in range(300):
        live.arrived(at * SECOND_NS)
        if at == 299:
            live.arrived(at * SECOND_NS + 1)
            live.ended(exchange(at * SECOND_NS + 1, at * SECOND_NS + 2))
        live.ended(exchange(at * SECOND_NS, at * SECOND_NS + 3))
    live.beat(10**13, 0, 0)
    assert "| c=1 100% 2 <1% |" in line(live, 120)


def test_the_line_fits_every_width_and_keeps_what_matters_most(night: Live) -> None:
    for width in range(1, 130):
        assert len(line(night, width)) <= width
    assert line(night, 30) == "3 in flight|TTFT p50 182ms"
    night.dropped("disk full", 12)
    night.beat(10**13, 3, 250 * MILLISECOND_NS)
    for width in range(34, 130):
        assert "DROPPED 12|LATE 250ms" in line(night, width).replace(" | ", "|")
        assert "drop 0" not in line(night, width)
        assert "lag" not in line(night, width)
    assert line(night, 12) == "DROPPED 12"


def test_the_line_says_nothing_that_is_not_known() -> None:
    assert line(Live(), 120) == "0 in flight | 0 requests 0 tokens | drop 0 | lag 0ms"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (99_940, "99.9k"), (99_960, "100k"), (402_000, "402k"),
     (999_499, "999k"), (999_500, "1.0M"), (12_345_678, "12.3M"), (2 * 10**9, "2.0G")],
)  # fmt: skip
def test_a_count_has_at_most_five_characters(count: int, text: str) -> None:
    assert format_count(count) == text
    assert len(text) <= 5


@pytest.mark.parametrize(("count", "text"), [(999, "999"), (12_345, "12k"), (4_200_000, "4M"), (999_500, "1M")])
def test_a_count_without_decimals(count: int, text: str) -> None:
    assert format_count(count, 0) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0ms"), (1, "<1ms"), (999_999, "<1ms"), (MILLISECOND_NS, "1ms"), (999_499_999, "999ms"),
     (999_500_000, "1.0s"), (99 * SECOND_NS, "99.0s"), (99_960 * MILLISECOND_NS, "100s")],
)  # fmt: skip
def test_a_duration_in_few_characters(ns: int, text: str) -> None:
    assert format_brief(ns) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_is_redrawn_once_a_second_and_erased() -> None:
    stream = Terminal()
    status = StatusLine(stream, columns=lambda: 80)
    live = Live()
    status.draw(live, SECOND_NS)
    status.draw(live, SECOND_NS + 999_999_999)
    status.draw(live, 2 * SECOND_NS)
    status.clear()
    status.clear()
    text = line(live, 79)
    assert stream.getvalue() == f"\r{text}\x1b[K\r{text}\x1b[K\r\x1b[K"


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_nothing_is_drawn_without_a_terminal_or_when_quiet(stream: io.StringIO, quiet: bool) -> None:
    status = StatusLine(stream, quiet=quiet, columns=lambda: 80)
    status.draw(Live(), SECOND_NS)
    status.clear()
    assert stream.getvalue() == ""


def test_a_terminal_that_went_away_is_left_alone() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    def no_width() -> int:
        raise OSError

    status = StatusLine(Gone(), columns=no_width)
    status.draw(Live(), SECOND_NS)
    status.draw(Live(), 3 * SECOND_NS)
    status.clear()


def test_a_real_terminal_gets_the_line_and_a_full_one_does_not_block() -> None:
    leader, follower = pty.openpty()
    try:
        with os.fdopen(os.dup(follower), "w", encoding="utf-8") as stream:
            status = StatusLine(stream, columns=lambda: 80)
            status.draw(Live(), SECOND_NS)
            assert b"0 in flight" in os.read(leader, 1000)
            # Nobody reads: with a blocking write this would hang once the terminal's buffer is full.
            for second in range(2, 2000):
                status.draw(Live(), second * SECOND_NS)
    finally:
        os.close(follower)
        os.close(leader)


# -- the summary -----------------------------------------------------------------------------------------------------


def test_the_summary_tells_what_was_recorded(night: Live) -> None:
    night.passed_through, night.upgrades = 14, 1
    text = summary(night, Path("my capture"))
    assert text.startswith("100 requests in 11 min 53 s: 100 ok\n3 still in flight\n")
    assert "tokens by usage: 400,000 prompt, 2,000 output; 1,900 events with tokens" in text
    assert "TTFT p50 182 ms, p90 182 ms (100 requests)" in text
    assert "14 other requests and 1 upgraded connection passed through unrecorded" in text
    assert "dropped nothing" in text
    assert "worst lag of the proxy 2.00 ms" in text
    assert "never above 3 in" in text  # the concurrency table
    assert text.endswith(
        "check: sum of k x T_k = sum of durations, exactly, by arrival and by dispatch\n"
        "Next: firsttoken concurrency 'my capture'"
    )
    assert max(map(len, text.splitlines())) <= 80


def test_the_summary_names_drops_and_what_does_not_add_up(night: Live) -> None:
    night.dropped("disk full", 8)
    night.dropped("scribe behind", 4)
    night.dropped("nothing", 0)
    night.without_usage = 3
    night.beat(10**13, 1, 0)
    text = summary(night, Path("c"))
    assert "DROPPED 12 records: 8 disk full, 4 scribe behind." in text
    assert "3 answers without usage" in text
    assert "check: 2 more in flight than the proxy counts" in text
    assert "exactly" not in text
    assert "firsttoken capture check c" in text


def test_the_summary_of_a_killed_recorder_says_so_first(night: Live) -> None:
    text = summary(night, Path("my capture"), killed=True)
    assert text.startswith(
        "The recorder was killed; 3 requests were in flight. Nothing listens any more.\n"
        "To see what the files hold: firsttoken capture check 'my capture'\n\n"
        "100 requests in 11 min 53 s: 100 ok\n"
    )
    assert "still in flight" not in text
    night.beat(10**13, 1, 0)  # something to check
    assert summary(night, Path("c"), killed=True).count("firsttoken capture check c") == 1


def test_a_recorder_that_was_killed_before_any_request_says_so_too() -> None:
    live = Live()
    live.window(0, "open")
    live.beat(12 * SECOND_NS, 0, 0)
    lines = summary(live, Path("c"), killed=True).splitlines()
    assert lines[0] == "The recorder was killed; 0 requests were in flight. Nothing listens any more."
    live.arrived(12 * SECOND_NS)
    assert "; 1 request was in flight." in summary(live, Path("c"), killed=True)


def test_the_summary_of_a_scribe_that_replaced_another_does_not_pass_as_the_whole(night: Live) -> None:
    since_wall_ns = 1_790_000_000 * SECOND_NS
    lines = summary(night, Path("c"), before=12_345, since_wall_ns=since_wall_ns).splitlines()
    assert lines[:2] == ["Scribe replaced: counts begin at 14:13:20 UTC; 12,345 requests recorded before", ""]
    assert lines[2].startswith("100 requests in ")
    assert "counts begin later; 1 request recorded before" in summary(night, Path("c"), before=1)
    assert "; 0 requests recorded before" in summary(night, Path("c"), since_wall_ns=since_wall_ns)
    assert "Scribe" not in summary(night, Path("c"))
    text = summary(night, Path("c"), killed=True, before=2)
    assert text.index("was killed") < text.index("Scribe replaced") < text.index("100 requests")


def test_a_replaced_scribe_without_requests_does_not_doubt_the_clients() -> None:
    live = Live()
    live.window(0, "open")
    live.window(12 * SECOND_NS, "close")
    text = summary(live, Path("c"), listen="127.0.0.1:8100", before=7)
    assert "7 requests recorded before" in text
    assert "No request" in text
    assert "pointed at" not in text


def test_the_summary_names_the_reasons_of_errors_that_no_answer_tells(night: Live) -> None:
    assert "unanswered" not in summary(night, Path("c"))
    for reason in ("engine unreachable", "kept connection closed while sending", "engine unreachable", None):
        night.arrived(10**13)
        night.ended(exchange(10**13, 10**13 + 1, outcome=ERROR, reason=reason))
    text = " ".join(summary(night, Path("c")).split())
    assert "unanswered by the engine: 2 engine unreachable, 1 kept connection closed while sending 3 still" in text


@pytest.mark.parametrize(
    ("listen", "where"),
    [
        ("127.0.0.1:8100", "http://127.0.0.1:8100"),
        ("http://127.0.0.1:8100", "http://127.0.0.1:8100"),
        ("https://[::1]:8100", "https://[::1]:8100"),
    ],
)
def test_the_hint_has_the_scheme_that_clients_speak(listen: str, where: str) -> None:
    text = " ".join(summary(Live(), Path("c"), listen=listen).split())
    assert f"Are the clients pointed at {where}?" in text
    assert f"curl {where}/v1/models" in text
    assert "Are the clients pointed at the address of --listen?" in summary(Live(), Path("c"))


def test_a_summary_without_requests_says_what_to_look_at() -> None:
    live = Live()
    live.window(0, "open")
    live.window(12 * SECOND_NS, "close")
    text = summary(live, Path("c"), listen="127.0.0.1:8100")
    assert "No request to an endpoint that is recorded came in 12.0 s." in text
    assert "Are the clients pointed at http://127.0.0.1:8100?" in text
    assert "Next" not in text
    live.passed_through = 2
    text = summary(live, Path("c"), listen="127.0.0.1:8100")
    assert "2 other requests passed through unrecorded, so clients do reach the recorder." in text
    assert "pointed at" not in text


def test_a_summary_before_any_window_is_no_crash() -> None:
    live = Live()
    live.arrived(5)
    assert "none ended" in summary(live, Path("c"))


def test_a_terminal_without_utf8_gets_ascii(night: Live) -> None:
    assert "█" in summary(night, Path("c"))
    text = summary(night, Path("c"), encoding="ISO-8859-1")
    assert text.isascii()
    assert "?" not in text
    assert "####" in text
    assert plain("µ–−×▍", None) == "u--x#"
    assert plain("µ", "UTF8") == "µ"
