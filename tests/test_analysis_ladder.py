"""A cumulative ladder: the stack is judged against the baseline, the step tells what the last flag did."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_run import Effect, Synthetic
from test_analysis_report import arm_of, judged, squeeze, words


def stack_of(document: dict[str, Any], arm: str) -> list[str]:
    return [reason for reason in arm_of(document, arm)["reasons"] if reason.startswith("stack")]


def step_change(document: dict[str, Any], arm: str) -> float:
    (ttft,) = [item for item in arm_of(document, arm)["step"]["measures"] if item["measure"] == "ttft"]
    return float(ttft["change"])


def test_an_adopted_stack_on_a_rejected_step_says_what_to_run_again(tmp_path: Path) -> None:
    """v1 costs 4 %, v2 makes up for more than that: the stack gains, and would gain more without v1."""
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=0.04), "v2": Effect(ttft=-0.10)}))
    assert words(document) == {"v1": "reject", "v2": "adopt"}
    assert stack_of(document, "v2") == ["stack adopt: contains rejected v1; re-run without it"]
    assert step_change(document, "v2") == pytest.approx(0.9 / 1.04 - 1, abs=0.01)
    assert "this step alone, against v1: TTFT −13" in squeeze(result.stdout)


def test_an_adopted_stack_whose_last_step_does_nothing_shows_that(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.10), "v2": Effect(ttft=-0.10)}))
    assert words(document) == {"v1": "adopt", "v2": "adopt"}
    (ttft,) = [item for item in arm_of(document, "v2")["step"]["measures"] if item["measure"] == "ttft"]
    assert (ttft["zone"], ttft["change"]) == ("no gain", pytest.approx(0, abs=0.01))
    assert stack_of(document, "v2") == []


def test_every_rejected_step_below_is_named_in_order(tmp_path: Path) -> None:
    arms = {"v1": Effect(), "v2": Effect(), "v3": Effect(ttft=-0.10)}
    document, _ = judged(tmp_path, Synthetic(arms))
    assert stack_of(document, "v3") == ["stack adopt: contains rejected v1, v2; re-run without them"]
    assert stack_of(document, "v2") == ["stack: contains rejected v1; re-run without it"]


def test_an_undecided_step_below_is_no_rejected_one(tmp_path: Path) -> None:
    noisy = Synthetic({"v1": Effect(ttft=-0.02), "v2": Effect(ttft=-0.30)}, boot_sd=0.01, blocks=3)
    document, _ = judged(tmp_path, noisy)
    assert words(document) == {"v1": "inconclusive", "v2": "adopt"}
    assert stack_of(document, "v2") == []


@pytest.mark.parametrize("design", ['ladder = "flat"\n', 'contrast = { attribute = "baseline" }\n'])
def test_without_a_ladder_or_its_attribution_there_is_no_step(tmp_path: Path, design: str) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(), "v2": Effect(ttft=-0.10)}, design=design))
    assert arm_of(document, "v2")["step"] is None
    # A flat arm stands on the engine alone; a ladder stays one, however its steps are attributed.
    assert bool(stack_of(document, "v2")) is ("ladder" not in design)


def test_the_first_step_of_a_ladder_is_its_own_stack(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.10)}))
    assert (arm_of(document, "v1")["step"], stack_of(document, "v1")) == (None, [])
