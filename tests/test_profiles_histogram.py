"""Concurrency as text of 80 columns and as the JSON contract."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.captures import Interval
from profiles.concurrency import Concurrency, measure
from profiles.files import encode
from profiles.histogram import bar, document, format_levels, format_share, format_span, headline, render, table
from profiles.units import HOUR_NS, MINUTE_NS

DAY_NS = 24 * HOUR_NS

SPAN = 2 * HOUR_NS + 10 * MINUTE_NS
QUIET = Concurrency(
    {0: SPAN - 6 * MINUTE_NS, 1: 5 * MINUTE_NS, 3: MINUTE_NS}, {1: 60, 2: 30, 3: 10}, SPAN, 8 * MINUTE_NS
)


def test_the_headline_says_what_to_do() -> None:
    assert headline(QUIET) == (
        "100 % of requests arrive at c = 1–3; above 8 never in 2 h 10 min: measure TTFT at c = 1–3."
    )


def test_the_headline_of_two_weeks() -> None:
    weeks = Concurrency({0: 14 * DAY_NS}, {1: 60, 2: 30, 3: 7, 4: 2, 7: 1}, 14 * DAY_NS, 0)
    assert headline(weeks) == ("97 % of requests arrive at c = 1–3; above 8 never in 14 days: measure TTFT at c = 1–3.")


def test_the_share_in_the_headline_is_rounded_down_and_what_is_rare_is_not_nothing() -> None:
    nearly = Concurrency({0: SPAN}, {1: 99_999, 9: 1}, SPAN, 0)
    assert headline(nearly) == (
        "99 % of requests arrive at c = 1; <0.1 % above 8, at most 9 in 2 h 10 min: measure TTFT at c = 1."
    )


def test_a_crowd_that_no_arrival_met_is_not_called_never() -> None:
    """It came before the window: the clock saw twelve, and no request of the window found so many."""
    left_over = Concurrency({12: HOUR_NS, 0: SPAN - HOUR_NS}, {1: 5}, SPAN, 12 * HOUR_NS)
    assert "; none arrives above 8, at most 12 in flight in 2 h 10 min:" in headline(left_over)


def test_no_arrivals_leave_nothing_to_measure() -> None:
    idle = measure([], [(0, 10)])
    assert headline(idle) == "No request arrived in 10 ns: there is nothing to measure at."
    assert "observed operating point" not in render(idle)


def test_the_whole_text() -> None:
    assert render(QUIET, windows=2) == (
        "100 % of requests arrive at c = 1–3; above 8 never in 2 h 10 min: measure TTFT\n"
        "  at c = 1–3.\n"
        "\n"
        "   c  wall time               busy time               arrivals\n"
        "   0  95.4 % ██████████████\n"
        "   1   3.8 % ▋                83.3 % ██████████████   60.0 % ██████████████\n"
        "   2   0.0 %                   0.0 %                  30.0 % ███████\n"
        "   3   0.8 % ▏                16.7 % ██▊              10.0 % ██▍\n"
        "\n"
        "observed operating point: c = 1 (60.0 %), 2 (30.0 %), 3 (10.0 %)\n"
        "mean 0.06 in flight over the wall time; 100 requests in 2 h 10 min (2 windows)\n"
        "never above 3 in 2 h 10 min observed; at most 77.6 % of hours go higher (95 %,\n"
        "  if hours were independent)"
    )


@settings(max_examples=30)
@given(
    st.lists(
        st.builds(
            lambda start, length: Interval(start, start + length), st.integers(0, 10**13), st.integers(0, 10**13)
        ),
        max_size=12,
    ),
    st.integers(1, 10**14),
)
def test_no_line_is_wider_than_80_columns(stays: list[Interval], close_ns: int) -> None:
    assert max(map(len, render(measure(stays, [(0, close_ns)])).splitlines())) <= 80


def test_a_thousand_levels_fit_a_screen_and_lose_no_arrivals() -> None:
    crowd = measure([Interval(0, 10 + at) for at in range(1000)], [(0, 2000)])
    lines = render(crowd).splitlines()
    assert len(lines) < 40
    assert any("and 942 more up to 950" in line for line in lines)
    assert any(line.strip().startswith("17–32") for line in lines)
    assert any(line.strip().startswith("513–1000") and "48.8 %" in line for line in lines)


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        ((), ""),
        ((2,), "2"),
        ((1, 2), "1–2"),
        ((1, 2, 3), "1–3"),
        ((1, 3), "1, 3"),
        ((1, 2, 4), "1, 2, 4"),
        ((*range(1, 9), 40), "9 levels of 1–40"),
    ],
)
def test_levels_for_people(levels: tuple[int, ...], text: str) -> None:
    assert format_levels(levels) == text


@pytest.mark.parametrize(
    ("observed_ns", "text"),
    [(HOUR_NS, "1 h 00 min"), (47 * HOUR_NS, "2 days"), (60 * HOUR_NS, "2.5 days"), (14 * DAY_NS, "14 days")],
)
def test_a_span_for_people(observed_ns: int, text: str) -> None:
    assert format_span(observed_ns) == text


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0 %"), (0.0001, "<0.1 %"), (0.0005, "0.1 %"), (0.5, "50.0 %")])
def test_a_share_that_is_rare_is_not_nothing(share: float, text: str) -> None:
    assert format_share(share) == text


def test_levels_carry_marks() -> None:
    lines = table(QUIET, {1: "◆", 3: "◇", 8: "◇"}).splitlines()
    assert [line[-1] for line in lines if line[-1] in "◆◇"] == ["◆", "◇"]


@pytest.mark.parametrize(
    ("share", "text"), [(0, ""), (1e-9, "▏"), (0.5, "██"), (0.53125, "██▏"), (1, "████"), (0.99, "████")]
)
def test_a_bar_has_eighths(share: float, text: str) -> None:
    assert bar(share, 4) == text


def test_the_json_contract_has_these_keys_and_every_level() -> None:
    found = json.loads(encode(document(QUIET)))
    assert found == {
        "observed_ns": SPAN,
        "time_ns_at": {"0": SPAN - 6 * MINUTE_NS, "1": 5 * MINUTE_NS, "2": 0, "3": MINUTE_NS},
        "share_wall": {"0": 124 / 130, "1": 5 / 130, "2": 0.0, "3": 1 / 130},
        "share_busy": {"1": 5 / 6, "2": 0.0, "3": 1 / 6},
        "arrivals_at": {"1": 60, "2": 30, "3": 10},
        "share_arrivals": {"1": 0.6, "2": 0.3, "3": 0.1},
        "mean": 8 / 130,
        "max": 3,
        "requests": 100,
    }


def test_the_json_of_an_idle_window_divides_by_nothing() -> None:
    found = document(measure([], [(0, 10)]))
    assert (found["time_ns_at"], found["share_busy"], found["share_arrivals"], found["max"]) == ({"0": 10}, {}, {}, 0)
