"""The pictures of the report: what is drawn where, what is cut, and what is left out."""

import math
from typing import Any

import numpy as np
import pytest

from analysis.crossover import Crossover
from analysis.page.charts.acceptance import Point, acceptance
from analysis.page.charts.blocks import blocks
from analysis.page.charts.concurrency import ADVISES, DECIDES, concurrency, shown_levels
from analysis.page.charts.crossover import MOST_CLASSES, crossover, drawn_classes
from analysis.page.charts.ecdf import POINTS, SHARES, distribution, ecdf
from analysis.page.charts.forest import CLASS, MIX, Effect, forest
from analysis.page.charts.labels import Frame, place_labels
from analysis.page.charts.panel import Panel
from analysis.page.charts.timeline import BootRow, timeline
from analysis.page.svg import lean, picture
from analysis.stats import Estimate
from analysis.sweep import SweepPoint
from profiles.units import SECOND_NS


def marks_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """All data of a specification."""
    inside = [part for name in ("layer", "hconcat", "vconcat") for part in spec.get(name, ())]
    return [*spec.get("data", {}).get("values", ()), *(mark for part in inside for mark in marks_of(part))]


def having(panel: Panel | None, *keys: str) -> list[dict[str, Any]]:
    assert panel is not None
    return [mark for mark in marks_of(panel.spec) if all(key in mark for key in keys)]


def effect(mean: float, half: float | None, name: str = "v1", kind: str = MIX, direction: Any = "open") -> Effect:
    return Effect(name, kind, Estimate(5, mean, half and half / 2, half), direction)


# --- Forest.


def test_a_forest_draws_each_interval_in_per_cent_and_the_lines_that_decide() -> None:
    panel = forest(
        "TTFT", [effect(-0.05, 0.02), effect(0.1, 0.01, "chat", CLASS, "loss")], math.log(0.98), math.log(1.05)
    )
    rows = having(panel, "mean", "cut_low")
    first = next(row for row in rows if row["row"] == 0)
    assert (first["low"], first["mean"], first["high"]) == pytest.approx(
        (100 * math.expm1(-0.07), 100 * math.expm1(-0.05), 100 * math.expm1(-0.03)), abs=1e-3
    )
    lines = {mark["name"]: mark["at"] for mark in having(panel, "at", "name")}
    assert lines == {"": 0.0, "gain −2.0 %": pytest.approx(-2.0), "margin +5.0 %": pytest.approx(5.0)}


def test_an_interval_that_reaches_too_far_ends_with_an_arrow() -> None:
    panel = forest("TTFT", [effect(-0.02, 3.0), effect(-0.03, 0.01, "v2")], -0.02, 0.05)
    far = next(row for row in having(panel, "cut_low") if row["row"] == 0)
    assert far["cut_low"]
    assert far["cut_high"]
    assert [mark["row"] for mark in having(panel, "shape", "at")] == [0, 0]
    assert far["low"] > -30
    assert far["high"] < 30


def test_without_a_line_or_an_interval_a_forest_still_stands() -> None:
    panel = forest("TPOT", [effect(-0.02, None)], -math.inf, 0.05)
    assert {mark["name"] for mark in having(panel, "at", "name")} == {"", "margin +5.1 %"}
    assert "<svg" in picture(panel) if panel else False
    assert forest("TPOT", [Effect("v1", MIX, None, "open")], -0.02, 0.05) is None


# --- TTFT.


def test_a_boot_is_two_hundred_of_its_quantiles_and_the_thick_line_their_geometric_mean() -> None:
    boots = {1: np.linspace(100, 300, 1000), 2: np.linspace(200, 600, 500)}
    found = distribution("v1", boots)
    assert found is not None
    assert {len(values) for values in found.boots.values()} == {POINTS}
    assert found.boots[1][0] == pytest.approx(100 + 200 * SHARES[0])
    assert found.mean == pytest.approx([math.sqrt(a * b) for a, b in zip(*found.boots.values(), strict=True)])
    assert found.median == pytest.approx(200 * math.sqrt(2), rel=1e-3)
    assert distribution("v1", {1: np.array([])}) is None


def test_an_arm_is_drawn_over_the_mean_of_the_baseline_and_the_copy_with_its_boots() -> None:
    base, own = (distribution(name, {1: np.arange(1e6, 2e6, 1e4)}) for name in ("v0", "v1"))
    assert base is not None
    assert own is not None
    lines = [(mark["arm"], mark["boot"]) for mark in having(ecdf(own, base, (1e6, 2e6)), "boot")]
    assert lines == [("v1", "block 1"), ("v1", "mean of the boots"), ("v0", "mean of the boots")]
    both = having(ecdf(own, base, (1e6, 2e6), both=True), "boot")
    assert ("v0", "block 1") in [(mark["arm"], mark["boot"]) for mark in both]
    assert both[0]["x"][0] == pytest.approx(base.boots[1][0] / 1e6, rel=1e-3)  # ms


def test_a_class_has_ticks_at_lines_of_its_own_where_it_has_any() -> None:
    estimate = Estimate(5, -0.05, 0.005, 0.01)
    rows = [
        effect(-0.05, 0.02),
        Effect("short_qa", CLASS, estimate, "open", math.log(0.93)),
        Effect("chat", CLASS, estimate, "open", -math.inf),
        Effect("rag", CLASS, estimate, "open", None),
    ]
    panel = forest("TTFT", rows, math.log(0.98), math.log(1.1))
    ticks = [mark for mark in having(panel, "row", "at", "hue", "tip") if "shape" not in mark]
    assert [(mark["row"], mark["at"]) for mark in ticks] == [(1, pytest.approx(-7.0)), (1, pytest.approx(7.527))]
    assert "short_qa: its line of a gain −7.0 %" in ticks[0]["tip"]


# --- Blocks, load, acceptance.


def test_each_block_has_its_mark() -> None:
    panel = blocks("v1", "v0", {"TTFT": {1: -0.1, 3: 0.05}, "TPOT": {}}, 5)
    assert [(mark["block"], mark["change"]) for mark in having(panel, "block")][:2] == [
        (1, pytest.approx(-9.516)),
        (3, pytest.approx(5.127)),
    ]
    assert blocks("v1", "v0", {"TTFT": {}}, 5) is None


def test_levels_that_were_measured_have_their_row_even_if_nobody_reached_them() -> None:
    panel = concurrency({1: 60, 2: 40}, {}, {1: DECIDES, 8: ADVISES})
    assert {mark["c"] for mark in having(panel, "share")} == set(range(1, 9))
    assert [(mark["c"], mark["role"]) for mark in having(panel, "role")][:2] == [(1, DECIDES), (8, ADVISES)]
    assert concurrency({}, {}, {}) is None
    assert shown_levels({1: 5, 400: 1}, {}, {8: ADVISES}) == [1, 8, 400]


def points_of(count: int) -> list[Point]:
    return [Point(f"class {at}", 1 + at / 4, Estimate(5, -0.03 * at, 0.01, 0.01)) for at in range(count)]


def test_a_scatter_needs_four_classes_and_a_line_six() -> None:
    assert acceptance("v1", points_of(3)) is None
    assert len(having(acceptance("v1", points_of(4)), "length")) == 2 * 4
    fitted = [mark for mark in having(acceptance("v1", points_of(6)), "length") if "tip" not in mark]
    assert [mark["length"] for mark in fitted] == [1.0, 2.25]
    assert fitted[1]["change"] == pytest.approx(100 * math.expm1(-0.15), abs=1e-3)


FRAME = Frame(0.0, 100.0, 0.0, 100.0, 400.0, 200.0)


def test_labels_of_near_points_hide_neither_each_other_nor_a_point() -> None:
    near = [(20.0 + 2 * at, 50.0 + at, f"class number {at}") for at in range(4)]
    boxes = []
    for x, y, name, align in place_labels(near, FRAME):
        across, down = FRAME.pixels(x, y)
        left = across if align == "left" else across - 6 * len(name)
        boxes.append((left, left + 6 * len(name), down - 6.5, down + 6.5))
    marks = [FRAME.pixels(x, y) for x, y, _ in near]
    for at, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[at + 1 :]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] + 1e-9 or other[3] <= top + 1e-9
        assert not any(left < across < right and top < down < bottom for across, down in marks)
        assert left >= 0
        assert right <= FRAME.width


def test_a_label_at_the_edge_stands_on_the_other_side_and_one_without_room_beside_its_point() -> None:
    assert place_labels([(98.0, 50.0, "json")], FRAME)[0][3] == "right"
    assert place_labels([(10.0, 50.0, "json")], FRAME)[0][3] == "left"
    crowd = [(50.0, 50.0, "x" * 60)] * 9
    assert len(place_labels(crowd, FRAME)) == 9


# --- The sweep.


def sweep_of(name: str | None, scale: float = 1.0) -> list[SweepPoint]:
    return [SweepPoint(name, c, "ttft", Estimate(5, scale * 0.02 * (c - 4), 0.01, 0.01)) for c in range(1, 9)]


def test_a_sweep_stands_in_bands_and_marks_where_the_sign_turns() -> None:
    turn = Crossover(None, "ttft", tuple(range(1, 9)), 4.0, 3.5, 4.5, "gains below, loses above")
    panel = crossover("v1", [*sweep_of(None), *sweep_of("chat")], [turn])
    assert panel is not None
    at = {(mark["row"], mark["c"]): mark["at"] for mark in having(panel, "row", "c", "low")}
    assert {math.floor(place) for (row, _), place in at.items() if row == 1} == {1}
    assert at[0, 1] > at[0, 4] > at[0, 8]  # more change stands higher, for the axis runs down
    assert all(view["layer"][0]["encoding"]["y"]["scale"]["reverse"] for view in panel.spec["hconcat"])
    assert at[0, 4] == pytest.approx(0.62)
    assert [mark["c"] for mark in having(panel, "c", "from", "to")] == [4.0]
    assert "the mix, turns at c ≈ 4.0" in [mark["name"] for mark in having(panel, "row", "name")]
    assert "gains below, loses above" in panel.alt
    assert crossover("v1", [], []) is None


def test_of_many_classes_those_that_change_most_are_drawn() -> None:
    found = drawn_classes([point for at in range(12) for point in sweep_of(f"class_{at:02}", at + 1)])
    assert found == [f"class_{at:02}" for at in range(12 - MOST_CLASSES, 12)]


# --- The boots.


def boot(name: str, status: str = "done", spent_s: int | None = 100, block: bool = False) -> BootRow:
    spent_ns = None if spent_s is None else spent_s * SECOND_NS
    return BootRow(name, status, 20 * SECOND_NS, 60 * SECOND_NS, spent_ns, "8 ms", "", block)


def test_a_boot_that_does_not_count_is_one_grey_bar() -> None:
    panel = timeline(
        [boot("1·1 v0", block=True), boot("1·2 v1", "discarded"), boot("2·1 v1", spent_s=None, block=True)]
    )
    bars = [(mark["row"], mark["kind"], mark["from"], mark["to"]) for mark in having(panel, "kind")]
    assert bars == [
        (0, "booting", 0, 20),
        (0, "in windows", 20, 80),
        (0, "warm-up and stop", 80, 100),
        (1, "not counted", 0, 100),
        (2, "booting", 0, 20),
    ]
    assert timeline([]) is None


def test_a_relative_timeline_is_in_shares_of_the_longest_boot() -> None:
    panel = timeline([boot("1·1 v0", spent_s=50), boot("1·2 v1")], relative=True)
    assert [mark["to"] for mark in having(panel, "kind") if mark["kind"] == "warm-up and stop"] == [1.0]
    assert "ns" not in (panel.alt if panel else "ns")


# --- SVG.


def test_a_lean_picture_keeps_its_texts_and_what_it_draws() -> None:
    svg = (
        '<svg viewBox="0 0 9.123 9" role="img" aria-label="a &gt; b"><g class="x" role="graphics-object">'
        '<path class="background" aria-hidden="true" d="M0,0h1.234v9Z"/><path class="background" d="M0,0" fill="#fff"/>'
        '<text font-family="Arial" transform="translate(1.2345,6)" opacity="1"> class="x" 1.2345</text></g></svg>'
    )
    assert lean(svg) == (
        '<svg viewBox="0 0 9.123 9" role="img" aria-label="a &gt; b"><g>'
        '<path d="M0,0" fill="#fff"/><text transform="translate(1.2,6)"> class="x" 1.2345</text></g></svg>'
    )
