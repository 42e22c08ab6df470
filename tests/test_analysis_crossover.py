"""The crossover of a sweep: where the sign of a change turns over c = 1..8, how surely, and in which words."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import Effect, Synthetic
from test_analysis_report import arm_of, judged, squeeze

from analysis import stats
from analysis.crossover import Crossover, crossover, crossover_document, crossover_lines

CLASSES = ("chat", "json_extraction", "rag_long", "short_qa")
RISING = {1: -0.06, 2: -0.05, 3: -0.03, 4: -0.002, 5: 0.006, 6: 0.03, 7: 0.04, 8: 0.05}


def levels_of(means: Mapping[int, float], spread: float = 0.004, blocks: int = 5) -> dict[int, list[float]]:
    """Block values with this mean and this half range at each level."""
    around = np.linspace(-spread, spread, blocks) if blocks > 1 else np.zeros(1)
    return {c: [float(value) for value in mean + around] for c, mean in means.items()}


def found(means: Mapping[int, float], measure: Literal["ttft", "decode_rate"] = "ttft", **more: Any) -> Crossover:
    return crossover("chat", measure, levels_of(means, **more))


def sweep_of(document: dict[str, Any], measure: str) -> dict[str | None, dict[str, Any]]:
    return {item["class"]: item for item in arm_of(document, "v3")["crossover"] if item["measure"] == measure}


def test_the_turn_lies_between_the_last_level_that_gains_and_the_first_that_loses() -> None:
    turn = found(RISING)
    assert turn.shown == ("gain", "gain", "gain", "open", "open", "loss", "loss", "loss")
    assert (turn.low, turn.high) == (3.0, 6.0)
    assert turn.turn == pytest.approx(4.25)  # −0.002 at 4, +0.006 at 5: a quarter of the way
    assert turn.sides == "gains up to c = 3, loses from c = 6 on"
    assert turn.estimates[0].mean == pytest.approx(-0.06)


def test_the_decode_rate_is_shown_as_a_rate_and_turns_at_the_same_place() -> None:
    turn = found(RISING, "decode_rate")
    assert (turn.turn, turn.low, turn.high) == pytest.approx((4.25, 3.0, 6.0))
    assert turn.sides == "gains up to c = 3, loses from c = 6 on"
    assert turn.estimates[0].mean == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("means", "sides", "bounds"),
    [
        pytest.param({1: -0.1, 2: -0.1, 8: -0.1}, "gains at every c", (None, None), id="gains"),
        pytest.param({1: 0.1, 2: 0.1, 8: 0.1}, "loses at every c", (None, None), id="loses"),
        pytest.param({1: 0.001, 2: -0.001, 8: 0.0}, "cannot tell at any c", (None, None), id="nothing"),
        pytest.param(
            {1: -0.1, 2: -0.1, 3: 0.1, 4: 0.1, 5: -0.1, 6: -0.1},
            "gains up to c = 2, loses at c = 3 and 4, gains from c = 5 on: more than one turn",
            (None, None),
            id="twice",
        ),
        pytest.param(
            {1: -0.1, 2: -0.1, 3: -0.002, 4: 0.002},
            "gains up to c = 2, cannot tell elsewhere",
            (2.0, None),
            id="open above",
        ),
        pytest.param(
            {1: -0.002, 2: 0.002, 3: 0.1, 4: 0.1},
            "loses from c = 3 on, cannot tell elsewhere",
            (None, 3.0),
            id="below",
        ),
        pytest.param(
            {1: 0.002, 2: -0.1, 3: 0.002}, "gains at c = 2, cannot tell elsewhere", (None, None), id="one in the middle"
        ),
        pytest.param(
            {1: 0.1, 2: 0.001, 3: 0.1, 4: -0.1, 5: 0.001, 6: -0.1},
            "loses at c = 1 and 3, gains at c = 4 and 6",
            (3.0, 4.0),
            id="holes",
        ),
        pytest.param({1: -0.1, 2: 0.1}, "gains at c = 1, loses at c = 2", (1.0, 2.0), id="two levels"),
    ],
)
def test_each_course_has_its_own_words(
    means: dict[int, float], sides: str, bounds: tuple[float | None, float | None]
) -> None:
    item = found(means)
    assert item.sides == sides
    assert (item.low, item.high) == bounds
    assert (item.turn is not None) == (bounds != (None, None))


def test_noise_around_nothing_crosses_often_and_counts_once() -> None:
    item = found({1: -0.1, 2: -0.001, 3: 0.001, 4: -0.001, 5: 0.001, 6: 0.1})
    assert (item.low, item.turn, item.high) == pytest.approx((1.0, 3.5, 6.0))


def test_one_block_shows_no_side() -> None:
    item = found(RISING, blocks=1)
    assert set(item.shown) == {"open"}
    assert item.turn is None
    assert item.reach is None
    assert list(crossover_lines([item])) == ["crossover, TTFT: chat: cannot tell at any c"]


def test_intervals_are_simultaneous_over_the_levels() -> None:
    by_level = levels_of(RISING)
    alone = stats.paired_block_t(by_level[4], stats.ALPHA / 8)
    assert crossover(None, "ttft", by_level).estimates[3] == alone
    two = crossover(None, "ttft", {4: by_level[4], 5: by_level[5]})
    assert two.estimates[0] == stats.paired_block_t(by_level[4], stats.ALPHA / 2)


def test_a_sweep_of_a_run_turns_class_by_class(tmp_path: Path) -> None:
    ttft_at = {c: {"chat": change, "rag_long": -0.2} for c, change in RISING.items()}
    tpot_at = {c: {"short_qa": 0.03 * (c - 3.5)} for c in RISING}
    effect = Effect(tpot={"json_extraction": -0.2}, ttft_at=ttft_at, tpot_at=tpot_at)
    document, result = judged(tmp_path, Synthetic({"v3": effect}, sweep=tuple(RISING), boot_sd=0.002))
    ttft, rate = sweep_of(document, "ttft"), sweep_of(document, "decode_rate")
    assert list(ttft) == [None, *CLASSES]
    assert ttft["chat"]["low"] <= 4.25 <= ttft["chat"]["high"]
    assert ttft["chat"]["turn"] == pytest.approx(4.25, abs=0.5)
    assert ttft["rag_long"]["text"] == "rag_long gains at every c"
    assert ttft["json_extraction"]["turn"] is None
    assert (rate["short_qa"]["low"], rate["short_qa"]["high"]) == (3.0, 4.0)
    assert rate["short_qa"]["turn"] == pytest.approx(3.5, abs=0.1)
    assert rate["json_extraction"]["text"] == "json_extraction gains at every c"
    first = rate["json_extraction"]["levels"][0]
    assert (first["c"], first["shown"]) == (1, "gain")
    assert first["low"] < 0.25 < first["high"]
    swept = {(p["class"], p["c"], p["measure"]): p for p in arm_of(document, "v3")["sweep"]}
    assert swept["json_extraction", 1, "decode_rate"]["change"] == pytest.approx(first["change"])
    text = squeeze(result.stdout)
    assert "short_qa gains up to c = 3, loses from c = 4 on, the turn at about c = 3.5" in text
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_sweep_of_one_level_or_none_has_no_crossover(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v3": Effect(ttft=-0.1)}, sweep=(1,)))
    assert arm_of(document, "v3")["crossover"] == []
    assert "crossover" not in result.stdout
    document, _ = judged(tmp_path / "none", Synthetic({"v3": Effect(ttft=-0.1)}))
    assert arm_of(document, "v3")["crossover"] == []


def test_classes_of_which_the_same_is_true_share_a_sentence() -> None:
    names: Sequence[str | None] = (None, "chat", "code")
    same = [crossover(name, "ttft", levels_of(RISING)) for name in names]
    assert list(crossover_lines(same)) == [
        "crossover, TTFT: the mix and every class gain up to c = 3, lose from c = 6 on, the turn at about c = 4.2"
    ]
    rates = [crossover(name, "decode_rate", levels_of({1: -0.1, 2: -0.1})) for name in names[:2]]
    open_ones = [crossover(name, "decode_rate", levels_of({1: 0.0, 2: 0.001})) for name in names[2:]]
    _, second = crossover_lines([*same, *rates, *open_ones])
    assert second == (
        "crossover, the decode rate: the mix and chat gain at every c; code: cannot tell at any c, within ±0.5 %"
    )
    shifted = crossover("code", "ttft", levels_of({c: mean - 0.004 for c, mean in RISING.items()}))
    (range_of_turns,) = crossover_lines([*same[:2], shifted])
    assert range_of_turns.endswith("the turn at about c = 4.2 to 4.8")


def test_a_turn_of_which_one_side_is_not_shown_is_only_that_of_the_mean() -> None:
    (line,) = crossover_lines([found({1: -0.1, 2: -0.1, 3: -0.002, 4: 0.002})])
    assert line == ("crossover, TTFT: chat gains up to c = 2, cannot tell elsewhere, the mean turning at about c = 3.5")


MEANS = st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=8)


@settings(max_examples=80)
@given(MEANS, st.floats(0.0005, 0.03), st.permutations(range(4)))
def test_bounds_hold_the_turn_and_the_order_of_blocks_does_not_matter(
    means: list[float], spread: float, order: list[int]
) -> None:
    by_level = levels_of(dict(enumerate(means, start=1)), spread, blocks=4)
    item = crossover(None, "ttft", by_level)
    mixed = crossover(None, "ttft", {c: [values[at] for at in order] for c, values in by_level.items()})
    assert (mixed.shown, mixed.sides) == (item.shown, item.sides)
    if item.turn is not None:
        assert (item.low or 1) <= item.turn <= (item.high or len(means))
        assert item.low is not None or item.high is not None
    if item.low is not None and item.high is not None:
        assert {item.shown[int(item.low) - 1], item.shown[int(item.high) - 1]} == {"gain", "loss"}


def test_the_turn_is_covered_at_least_nine_times_in_ten() -> None:
    draw = np.random.default_rng(3)
    truth, hits, turns = 4.3, 0, []
    for _ in range(400):
        by_level = {c: (0.004 * (c - truth) + draw.normal(0, 0.004, 5)).tolist() for c in range(1, 9)}
        item = crossover(None, "ttft", by_level)
        hits += (item.low or 0) <= truth <= (item.high or 9)
        turns += [item.turn] if item.turn is not None else []
    assert hits / 400 >= 0.9
    assert len(turns) > 300
    assert np.mean(turns) == pytest.approx(truth, abs=0.1)


def test_the_document_holds_every_level_for_a_chart() -> None:
    (plain,) = crossover_document([found(RISING)])
    assert plain["text"] == "chat gains up to c = 3, loses from c = 6 on, the turn at about c = 4.2"
    assert [level["c"] for level in plain["levels"]] == list(RISING)
    assert plain["levels"][0]["change"] == pytest.approx(math.expm1(-0.06))
