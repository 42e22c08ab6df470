"""The calibration of the verdict: its noise is what it states, its draws are what the judge sees, and it can fail."""

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from analysis import contrasts
from analysis.judge import judge_bench
from benchmarks.verdict.calibrate import RUNS, Counts, calibrate, claim_table, claims, count, table
from benchmarks.verdict.drawn import BASELINE, CLASSES, Design, Effect, draw_bench, rule, rule_text
from benchmarks.verdict.noise import Noise, draw_boots, draw_requests

ROOT = Path(__file__).parents[1]
QUIET = Noise(boot=0.0, boot_by_class=0.0, drift=0.0, wander=0.0, request=0.0, stalls=0.0)


def written(folder: Path, design: Design) -> Path:
    path = folder / "experiment.toml"
    path.write_text(rule_text(design), encoding="utf-8")
    return path


def test_two_boots_of_one_arm_differ_as_much_as_the_reference_says(tmp_path: Path) -> None:
    design = Design({"a": Effect(), "b": Effect(), "c": Effect()})
    experiment = rule(written(tmp_path, design))
    variances = []
    for seed in range(60):
        bench = draw_bench(design, experiment, seed)
        pairs = bench.contrast("v0.aa", BASELINE).pairs
        for measure in ("ttft", "tpot"):
            variances.append(np.var(list(contrasts.block_means(pairs)[measure].differences.values()), ddof=1))
    assert math.sqrt(np.mean(variances)) == pytest.approx(0.0235, abs=0.0025)


def test_the_second_boot_of_the_baseline_takes_a_quarter_off_the_variance(tmp_path: Path) -> None:
    noise = Noise(boot_by_class=0.0, drift=0.0, wander=0.0, request=0.0, stalls=0.0)
    design = Design({"a": Effect()}, requests=40, noise=noise)
    experiment = rule(written(tmp_path, design))
    found: dict[str | None, list[float]] = {None: [], "v0.aa": []}
    for seed in range(150):
        frame = draw_bench(design, experiment, seed).frame
        for copy, variances in found.items():
            pairs = contrasts.contrast(frame, "a", BASELINE, 0, copy).pairs
            differences = list(contrasts.block_means(pairs)["ttft"].differences.values())
            variances.append(float(np.var(differences, ddof=1)))
    assert np.mean(found["v0.aa"]) / np.mean(found[None]) == pytest.approx(0.75, abs=0.05)


def test_without_noise_the_judge_sees_the_true_effects(tmp_path: Path) -> None:
    design = Design({"a": Effect(ttft=-0.05, tpot={"json": 0.2})}, blocks=3, requests=100, noise=QUIET)
    report = judge_bench(draw_bench(design, rule(written(tmp_path, design)), 1))
    ttft, tpot = report.arms[0].measures
    assert ttft.estimate is not None
    assert math.expm1(ttft.estimate.mean) == pytest.approx(-0.05, abs=1e-6)
    assert tpot.estimate is not None
    assert tpot.estimate.mean == pytest.approx(design.mixed("a", "tpot"), abs=1e-6)
    by_class = {item.name: item.estimate for item in tpot.classes}
    assert set(by_class) == set(CLASSES)
    assert math.expm1(by_class["json"].mean) == pytest.approx(0.2, abs=1e-6)  # type: ignore[union-attr]


def test_the_noise_has_the_standard_deviations_that_it_states() -> None:
    rng = np.random.default_rng(1)
    only_boots = Noise(boot_by_class=0.0, drift=0.0, wander=0.0)
    assert draw_boots(only_boots, 4000, 1, rng).std() == pytest.approx(0.015, rel=0.05)
    only_walk = Noise(boot=0.0, boot_by_class=0.0, drift=0.0)
    assert draw_boots(only_walk, 20_000, 1, rng).std() == pytest.approx(0.006, rel=0.1)
    drift = draw_boots(Noise(boot=0.0, boot_by_class=0.0, wander=0.0), 11, 2, rng)
    assert drift[10] - drift[0] == pytest.approx(0.015)
    requests = draw_requests(Noise(), 100, 400, rng)
    assert np.median(requests) == pytest.approx(0.0, abs=0.01)
    assert (requests > 0.3).mean() > 0.01  # the stalls


def test_the_same_seed_gives_the_same_counts_in_any_number_of_processes() -> None:
    one = calibrate(3, 60, 30, 4, 1)
    assert one.sets == 30 * len(RUNS)
    assert sum(one.words.values()) == sum(map(one.judged, (name for arms in RUNS for name in arms)))
    # The command, in a process of its own: a pool of processes leaves its resource tracker behind until its maker ends.
    words = ["--blocks", "3", "--requests", "60", "--sets", "30", "--seed", "4", "--workers", "2"]
    command = [sys.executable, "-m", "benchmarks.verdict.calibrate", *words]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "\n".join(table(one)) in done.stdout


def test_a_small_calibration_finds_large_effects_and_no_null_arm(tmp_path: Path) -> None:
    arms = {"null": Effect(), "faster": Effect(ttft=-0.2), "slower": Effect(ttft=0.2)}
    path = written(tmp_path, Design(arms, 5, 100))
    found = count(arms, 5, 100, range(20), path)
    valid = found.sets - found.invalid
    assert found.words["faster", "adopt"] >= 0.8 * valid  # TPOT must be shown no worse, and a guard
    assert found.words["slower", "reject"] == valid
    assert found.words["null", "adopt"] == 0


def test_a_claim_that_does_not_hold_is_said_so() -> None:
    found = Counts(sets=100, invalid=5, words=Counter({("null", "adopt"): 9, ("null", "reject"): 86}))
    made = {claim.text: claim for claim in claims(found)}
    assert not made["a null arm is adopted"].holds
    assert not made["A/A calls a sound run invalid"].holds
    shown = "\n".join(claim_table(list(made.values())))
    assert "| a null arm is adopted | ≤ 0.5 % | 9.47 % of 95 | 4.42–17.22 % | NO |" in shown
    assert "of 0 |" in shown  # nothing was counted: no claim holds by that


def test_the_table_has_a_row_for_each_true_effect() -> None:
    names = [name for arms in RUNS for name in arms]
    found = Counts(sets=3, words=Counter({(name, "reject"): 3 for name in names}))
    lines = table(found)
    assert len(lines) == 2 + len(names)
    assert lines[2] == "| null | 0.0 | 100.0 | 0.0 | 0.0 |"
