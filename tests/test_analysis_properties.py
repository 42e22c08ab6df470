"""Properties of a report that no number may break."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import Effect, Synthetic

from analysis import contrasts
from analysis.bench import make_bench
from analysis.document import verdict_document
from analysis.findings import Report
from analysis.judge import judge
from analysis.lines import CELL, format_cell
from analysis.stats import Estimate, no_worse, paired_block_t, zone
from analysis.verdict import Evidence, MeasureFinding, decide
from profiles.experiment import load_experiment
from profiles.runs import read_run

FEW = settings(max_examples=4)
# Relative lines only: an absolute one rightly does not scale.
RELATIVE = '\n[[measure]]\nname = "ttft"\n[[measure]]\nname = "tpot"\n'


def report_of(run: Synthetic) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        path = run.write(Path(folder) / "run")
        return judge(read_run(path), load_experiment(path / "experiment.toml"))


def small(effect: Effect, seed: int, **changed: Any) -> Synthetic:
    return Synthetic({"v1": effect}, blocks=3, requests=20, rule=RELATIVE, seed=seed, **changed)


@FEW
@given(st.integers(0, 1000))
def test_an_arm_equal_to_the_baseline_is_never_adopted(seed: int) -> None:
    (arm,) = report_of(small(Effect(), seed, boot_sd=0.0, noise_sd=0.0)).arms
    assert [finding.estimate.mean for finding in arm.measures if finding.estimate] == [0.0, 0.0]
    assert arm.verdict.word == "reject"


@FEW
@given(st.integers(0, 1000), st.sampled_from([2, 10, 60]))
def test_a_machine_that_is_slower_throughout_changes_no_relative_number(seed: int, scale: int) -> None:
    effect = Effect(ttft=-0.1, tpot=0.02)
    plain, slow = (report_of(small(effect, seed, scale=factor)).arms[0] for factor in (1, scale))
    assert plain.verdict == slow.verdict
    for left, right in zip(plain.measures, slow.measures, strict=True):
        assert left.estimate is not None
        assert right.estimate is not None
        assert right.estimate.mean == pytest.approx(left.estimate.mean, abs=1e-9)
        assert right.estimate.half_width == pytest.approx(left.estimate.half_width, abs=1e-9)
        assert right.line == left.line


@FEW
@given(st.integers(0, 1000), st.floats(-0.2, 0.2))
def test_swapping_arm_and_baseline_mirrors_the_estimate(seed: int, change: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = small(Effect(ttft=change), seed).write(Path(folder) / "run")
        bench = make_bench(read_run(path), load_experiment(path / "experiment.toml"))
    for measure in ("ttft", "tpot"):
        there, back = (
            paired_block_t(list(contrasts.block_means(pairs.pairs)[measure].differences.values()))
            for pairs in (contrasts.contrast(bench.frame, *sides, 0) for sides in (("v1", "v0"), ("v0", "v1")))
        )
        assert there is not None
        assert back is not None
        assert back.mean == pytest.approx(-there.mean, abs=1e-12)
        assert back.half_width == pytest.approx(there.half_width, abs=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=0, max_size=8), st.floats(-0.5, 0))
def test_no_set_of_blocks_is_both_a_gain_and_worse(differences: list[float], line: float) -> None:
    estimate = paired_block_t(differences)
    finding = MeasureFinding("ttft", zone(estimate, line), no_worse(estimate, 0.05), estimate, line, 0.05)
    assert not (finding.zone == "gain" and finding.no_worse != "no worse")
    word = decide(Evidence("v1", "v0", (finding,))).word
    assert (word == "adopt") == (estimate is not None and estimate.high is not None and estimate.high < line)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8), st.floats(-1, 1))
def test_an_interval_shifts_with_its_blocks(differences: list[float], shift: float) -> None:
    plain = paired_block_t(differences)
    moved = paired_block_t([value + shift for value in differences])
    assert plain is not None
    assert moved is not None
    assert moved.mean == pytest.approx(plain.mean + shift, abs=1e-9)
    assert moved.half_width == pytest.approx(plain.half_width, abs=1e-7)


@given(st.floats(-20, 20), st.none() | st.floats(0, 1e6))
def test_a_cell_of_the_table_keeps_to_its_column(mean: float, half_width: float | None) -> None:
    assert len(format_cell(Estimate(3, mean, 0.01, half_width))) <= CELL


@FEW
@given(st.integers(0, 1000), st.integers(1, 3))
def test_a_report_made_twice_is_the_same(seed: int, blocks: int) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.05)}, blocks=blocks, requests=20, rule=RELATIVE, seed=seed)
    assert verdict_document(report_of(run)) == verdict_document(report_of(run))
