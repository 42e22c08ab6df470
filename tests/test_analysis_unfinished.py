"""A run of which the first boots are there: what has not been compared yet is not said to agree or to differ."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_run import Effect, Synthetic
from test_analysis_replay_modes import captured, checks
from test_analysis_report import arm_of, judged, squeeze

from profiles.runs import BootFacts, LogFinding

CHRONIC = LogFinding(id="V06", severity="chronic-fallback", signature="Using default MoE config")
NOT_YET = "no boot of the baseline has ended well yet"


def only(*arms: str, **more: Any) -> Synthetic:
    """The boots of these arms in the first block; every arm prints the same line, and reads 300 tokens of its cache."""

    def keep(facts: BootFacts) -> BootFacts | None:
        return facts if facts.block == 1 and facts.arm in arms else None

    effect = Effect(findings=(CHRONIC,), cached=300)
    return Synthetic({"v1": effect}, baseline=effect, mode="observed", finished=False, edit_boot=keep, **more)


def test_without_a_boot_of_the_baseline_no_line_of_an_arm_is_new(tmp_path: Path) -> None:
    document, result = judged(tmp_path, only("v1"))
    log, shown = arm_of(document, "v1")["boot_log"], squeeze(result.stdout)
    assert (log["clean"], log["new"], log["noted"], log["changes_nothing"]) == (None, [], [], False)
    assert "boot log: not compared, no boot of v0 has ended well yet" in shown
    assert "functions: not compared yet" in shown
    for untrue in ("new fallback line", "no fallback line that the baseline lacks", "no engine tells them"):
        assert untrue not in shown
    assert not any("fallback" in reason for reason in arm_of(document, "v1")["reasons"])


def test_without_a_boot_of_the_arm_its_log_is_not_clean(tmp_path: Path) -> None:
    document, result = judged(tmp_path, only("v0"))
    assert arm_of(document, "v1")["boot_log"]["clean"] is None
    assert "boot log: not compared, no boot of v1 has ended well yet" in squeeze(result.stdout)


@pytest.mark.parametrize("base", ["v0", "v0.aa"])
def test_with_one_boot_of_either_copy_the_lines_are_compared(tmp_path: Path, base: str) -> None:
    document, result = judged(tmp_path, only("v1", base))
    assert arm_of(document, "v1")["boot_log"]["clean"] is True
    assert "boot log: no fallback line that the baseline lacks" in squeeze(result.stdout)


def test_a_bench_without_a_boot_of_the_baseline_says_that_it_has_none(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, only("v1", edit_manifest=captured()))
    assert set(checks(document).values()) == {"not checked"}
    assert [check["text"] for check in document["bench"]["checks"]] == [
        f"{name} not checked: {NOT_YET}" for name in ("arrivals", "cached tokens", "TTFT")
    ]


def test_a_guard_without_a_pair_of_boots_is_not_measured(tmp_path: Path) -> None:
    _, result = judged(tmp_path, only("v1"))
    assert "guard ttft_p90: not shown (margin 10 %, deciding; not measured)" in squeeze(result.stdout)
