"""The whole concurrency report as text of 80 columns and as JSON: classes, how sure, when, and what an experiment
measures of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.concurrency import Window, union
from profiles.files import encode
from profiles.histogram import document as contract
from profiles.load_report import document, headline, render
from profiles.sweep import Stays
from profiles.units import HOUR_NS, MINUTE_NS, SECOND_NS
from profiles.view import DECIDING, NO_WALL_CLOCK, SYNTHETIC, LoadView, read_view

DAY_NS = 24 * HOUR_NS
MONDAY_NS = 1_796_000_400 * SECOND_NS  # 2026-11-30 01:00 UTC


def stays_of(rows: list[tuple[int, int, int]], windows: list[Window], zero_wall_ns: int | None = MONDAY_NS) -> Stays:
    """Stays of (start, end, class)."""
    rows = sorted(rows, key=lambda row: row[0])
    start_ns, end_ns, group = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    return Stays(start_ns, end_ns, group.astype(np.int32), ("chat", "rag_8k"), union(windows), zero_wall_ns)


def two_days(zero_wall_ns: int | None = MONDAY_NS) -> Stays:
    """Every hour of 50 a chat of ten minutes, every third hour a rag of a minute inside it; hour 24 is a gap."""
    rows = []
    for hour in range(50):
        at = hour * HOUR_NS
        rows.append((at, at + 10 * MINUTE_NS, 0))
        if hour % 3 == 0:
            rows.append((at + MINUTE_NS, at + 2 * MINUTE_NS, 1))
    return stays_of(rows, [(0, 24 * HOUR_NS), (25 * HOUR_NS, 50 * HOUR_NS)], zero_wall_ns)


@pytest.fixture(scope="module")
def view() -> LoadView:
    return read_view(two_days(), "Europe/Budapest")


def test_the_order_is_that_of_the_questions(view: LoadView) -> None:
    text = render(view)
    heads = [
        "100 % of requests arrive at c = 1–2; above 8 never in 2 days: measure TTFT at",
        "   c  wall time               busy time               arrivals",
        "observed operating point: c = 1 (75.4 %), 2 (24.6 %)",
        "arrivals of each class by the c that they meet, all classes together",
        " c ≥  of arrivals  lowest to highest of 3 days: too few for a bound",
        "never above 2 in 2 days observed: 0 of 2 days and 0 of 49 hours above it, so at",
        "N(t): p95 of each 1 h 00 min",
        "hour × weekday: the most in flight; shade: mean in flight, up to 0.18; blank",
        "hours and days are those of Europe/Budapest",
    ]
    at = [text.find(head) for head in heads]
    assert -1 not in at, heads[at.index(-1)]
    assert at == sorted(at)


def test_a_class_is_shown_by_the_total_that_it_meets(view: LoadView) -> None:
    lines = render(view).splitlines()
    assert "class        n   share     1     2" in lines
    assert "chat        49    75 % 100 %     –" in lines
    assert "rag_8k      16    25 %     – 100 %" in lines


def test_the_bound_names_what_was_left_out(view: LoadView) -> None:
    """Monday has 22 h of local time and Wednesday 4: Wednesday says nothing about days."""
    text = " ".join(render(view).split())
    assert (
        "0 of 2 days and 0 of 49 hours above it, so at most 78 % of days and 5.9 % of hours go higher (95 %, if they"
        " were independent); left out, as half observed or less: 1 day" in text
    )


def test_the_heat_map_has_a_blank_where_nobody_looked(view: LoadView) -> None:
    lines = render(view).splitlines()
    monday, tuesday, wednesday = (line for line in lines if line[:4] in ("Mon ", "Tue ", "Wed "))
    assert monday == "Mon " + "      " + "".join(f"█ {1 + (hour % 3 == 2)}" for hour in range(2, 24))
    assert tuesday[4 + 3 * 2 : 4 + 3 * 3] == "   "  # the gap, from 02:00 to 03:00
    assert len(wednesday) == 4 + 3 * 4


def test_a_day_or_less_has_no_heat_map_and_still_names_its_zone() -> None:
    text = render(read_view(stays_of([(0, MINUTE_NS, 0)], [(0, 24 * HOUR_NS)])))
    assert "hour × weekday" not in text
    assert text.endswith("hours and days are those of UTC")


def test_without_a_wall_clock_the_report_says_why_there_are_no_hours() -> None:
    text = render(read_view(two_days(None), "Europe/Budapest"))
    assert "Budapest" not in text
    assert "hour × weekday" not in text
    assert text.splitlines()[-2].startswith("no hours and weekdays: nobody knows the wall clock of this load")
    assert "+0 ns" in text
    assert "+50 h 00 min" in text


def test_the_levels_of_an_experiment_are_marked(view: LoadView) -> None:
    marked = replace(view, marked={1: DECIDING, 2: DECIDING, 8: SYNTHETIC})
    text = render(marked)
    assert [line.split()[0] for line in text.splitlines() if line.endswith("◆")] == ["1", "2"]
    assert "◆ the experiment decides at c = 1–2\n◇ it also measures a synthetic c = 8; no arrival reaches it" in text


def test_synthetic_and_estimated_load_say_so_first(view: LoadView) -> None:
    assert headline(replace(view, synthetic=True)).startswith("Synthetic load, nobody's production: 0.2 in flight on")
    assert "measure TTFT" not in headline(replace(view, synthetic=True))
    estimate = replace(view, estimate="50.0 ms + prompt tokens / 8000 per s")
    assert headline(estimate).startswith("Estimate, with a stated service time: 100 % of")
    assert "they are taken to last 50.0 ms + prompt" in render(estimate)


def test_numbers_above_99_are_shown_in_tens() -> None:
    rows = [(at, 30 * HOUR_NS, 0) for at in range(250)]
    text = render(read_view(stays_of(rows, [(0, 30 * HOUR_NS)])))
    assert "the most in flight in units of 10" in text
    assert "█25█25" in text


def test_many_classes_keep_the_text_short() -> None:
    stays = two_days()
    names = tuple(f"a class with quite a long name, number {at}" for at in range(40))
    group = np.arange(len(stays.start_ns), dtype=np.int32) % 40
    text = render(read_view(replace(stays, group=group, names=names)))
    assert "and 26 more classes with 41 requests" in text
    assert max(map(len, text.splitlines())) <= 80


ROWS = st.lists(
    st.tuples(st.integers(-3 * HOUR_NS, 80 * HOUR_NS), st.integers(0, 20 * HOUR_NS), st.integers(-1, 1)).map(
        lambda row: (row[0], row[0] + row[1], row[2])
    ),
    max_size=12,
)
EDGES = st.lists(st.integers(0, 90 * HOUR_NS), min_size=2, max_size=6, unique=True)


@settings(max_examples=25, deadline=None)
@given(ROWS, EDGES, st.sampled_from([None, MONDAY_NS]), st.integers(1, 400))
def test_no_line_is_wider_than_80_columns_and_the_json_is_strict(
    rows: list[tuple[int, int, int]], edges: list[int], zero_wall_ns: int | None, copies: int
) -> None:
    windows = list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
    view = read_view(stays_of(rows * copies, windows, zero_wall_ns), "Europe/Budapest")
    marked = replace(view, marked={1: DECIDING, 8: SYNTHETIC}, synthetic=True)
    assert max(map(len, render(marked).splitlines())) <= 80
    encode(document(marked))


def test_the_json_holds_the_contract_and_the_rest(view: LoadView) -> None:
    found = json.loads(encode(document(view)))
    assert contract(view.total).items() <= found.items()
    assert found["headline"] == headline(view)
    assert found["operating_point"] == {
        "levels": [1, 2], "weights": {"1": 49 / 65, "2": 16 / 65}, "cover": 0.95, "reached": 1.0
    }  # fmt: skip
    assert found["classes"]["rag_8k"]["arrivals_at"] == {"1": 0, "2": 16}
    assert found["reach"][1] == {
        "c": 2, "share": 16 / 65, "low": 0.2, "high": 8 / 30, "how": "range", "days": 3
    }  # fmt: skip
    assert [(bound["c"], bound["unit"], bound["above"]) for bound in found["bounds"]] == [
        (2, "day", 0),
        (2, "hour", 0),
        (8, "day", 0),
        (8, "hour", 0),
    ]
    assert (found["zone"], found["no_calendar"], found["synthetic"], found["estimate"]) == (
        "Europe/Budapest", None, False, None
    )  # fmt: skip
    assert [day["day"] for day in found["days"]] == ["2026-11-30", "2026-12-01", "2026-12-02"]
    assert sum(day["observed_ns"] for day in found["days"]) == found["observed_ns"] == 49 * HOUR_NS
    cell = next(cell for cell in found["by_hour"] if (cell["weekday"], cell["hour"]) == (0, 2))
    assert cell == {
        "weekday": 0, "hour": 2, "observed_ns": HOUR_NS, "mean": 11 / 60, "max": 2,
        "time_ns_at": {"0": 50 * MINUTE_NS, "1": 9 * MINUTE_NS, "2": MINUTE_NS}, "arrivals_at": {"1": 1, "2": 1},
    }  # fmt: skip


def test_the_json_without_a_wall_clock_gives_the_reason() -> None:
    found = json.loads(encode(document(read_view(two_days(None)))))
    assert (found["zone"], found["zero_wall_ns"], found["by_hour"]) == (None, None, [])
    assert found["no_calendar"] == NO_WALL_CLOCK
    assert [day["day"] for day in found["days"]] == ["day 1", "day 2", "day 3"]
