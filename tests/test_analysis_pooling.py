"""`variance = "pooled"`: one spread for all arms, said in the report, and named where an arm does not fit under it."""

import math
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import Effect, Synthetic
from test_analysis_report import arm_of, judged, measure_of, squeeze
from test_analysis_sensitivity import slower

from analysis.bench import Bench, make_bench
from analysis.pooling import pool
from analysis.stats import critical_t
from profiles.experiment import load_experiment
from profiles.records import Outcome
from profiles.runs import BootFacts, read_run

POOLED = 'variance = "pooled"\n'
ARMS = {"v1": Effect(ttft=-0.1), "v2": Effect(), "v3": Effect()}


def bench_of(path: Path, run: Synthetic) -> Bench:
    folder = run.write(path / "run")
    return make_bench(read_run(folder), load_experiment(folder / "experiment.toml"))


def width(document: dict[str, Any], arm: str) -> float:
    ttft = measure_of(arm_of(document, arm), "ttft")
    return math.log1p(ttft["high"]) - math.log1p(ttft["low"])


def test_all_arms_have_intervals_of_the_same_width_and_the_report_says_why(tmp_path: Path) -> None:
    document, result = judged(tmp_path / "pooled", Synthetic(ARMS, blocks=3, design=POOLED))
    widths = {width(document, name) for name in ARMS}
    assert max(widths) == pytest.approx(min(widths), rel=1e-9)
    assert document["variance"] == "pooled"
    text = squeeze(result.stdout)
    assert "the variance is pooled over all arms, as the rule asks" in text
    assert "with 8 degrees of freedom" in text  # five arms, three blocks
    assert "are too narrow" in text

    paired, plain = judged(tmp_path / "paired", Synthetic(ARMS, blocks=3))
    assert len({round(width(paired, name), 9) for name in ARMS}) == 3
    assert paired["variance"] == "paired"
    assert "pooled" not in plain.stdout
    for name in ARMS:
        changes = [measure_of(arm_of(found, name), "ttft")["change"] for found in (document, paired)]
        assert changes[0] == changes[1]


def test_the_interval_is_the_one_of_the_randomised_complete_block(tmp_path: Path) -> None:
    """An arm's boot against both of the baseline's: mse · (1 + 1/2) is the variance of a block difference."""
    bench = bench_of(tmp_path, Synthetic(ARMS, blocks=4, design=POOLED))
    spreads, _ = pool(bench)
    pooled = spreads[None, "ttft"]
    assert pooled.df == (5 - 1) * (4 - 1)
    document, _ = judged(tmp_path / "again", Synthetic(ARMS, blocks=4, design=POOLED))
    half_width = critical_t(pooled.df + 1, 0.05) * math.sqrt(1.5 * pooled.mse / 4)
    assert width(document, "v2") == pytest.approx(2 * half_width, rel=1e-9)
    # One boot against one boot, as a step of the ladder is: mse · 2.
    (own,) = [item for item in arm_of(document, "v2")["step"]["measures"] if item["measure"] == "ttft"]
    step = math.log1p(own["high"]) - math.log1p(own["low"])
    assert step == pytest.approx(2 * half_width * math.sqrt(2 / 1.5), rel=1e-9)
    assert bench.contrast("v2", "v0").references == 2
    assert bench.contrast("v2", "v1").references == 1


def test_the_spread_of_boots_is_found_whatever_their_blocks_and_effects_are(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, Synthetic(ARMS, blocks=12, design=POOLED, boot_sd=0.02, noise_sd=0.001, drift=0.001))
    spreads, _ = pool(bench)
    # Drift over the slots of a block is part of it: five slots of 0.1 % are 0.14 % more.
    assert math.sqrt(spreads[None, "ttft"].mse) == pytest.approx(0.02, rel=0.2)
    assert set(spreads) == {
        (name, measure)
        for name in (None, "chat", "json_extraction", "rag_long", "short_qa")
        for measure in ("ttft", "tpot")
    }


def test_an_arm_that_scatters_more_than_the_others_is_named(tmp_path: Path) -> None:
    def scatter(arm: str, block: int, outcome: Outcome) -> Outcome:
        return slower(lambda item: True, 1 + (0.05, -0.04, 0.06, -0.05, 0.0)[block - 1])(arm, block, outcome)

    _, result = judged(tmp_path / "noisy", Synthetic(ARMS, design=POOLED, edit_outcome=scatter))
    assert "TTFT of v1 scatters " in squeeze(result.stdout)
    assert 'variance = "paired" takes each arm by itself' in squeeze(result.stdout)
    _, calm = judged(tmp_path / "calm", Synthetic(ARMS, design=POOLED))
    assert "scatters" not in squeeze(calm.stdout).replace("scatters more than the others are too narrow", "")


def test_an_arm_that_lost_a_block_and_a_missing_copy_still_pool(tmp_path: Path) -> None:
    def lose(facts: BootFacts) -> BootFacts | None:
        return None if (facts.arm, facts.block) in (("v2", 2), ("v0.aa", 4)) else facts

    bench = bench_of(tmp_path, Synthetic(ARMS, design=POOLED, edit_boot=lose))
    spreads, _ = pool(bench)
    assert spreads[None, "ttft"].df == 4 * 4 - 2
    assert bench.contrast("v1", "v0").references == 1


def test_one_block_has_nothing_to_pool_and_says_so(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic(ARMS, blocks=1, design=POOLED))
    assert measure_of(arm_of(document, "v1"), "ttft")["low"] is None
    assert "there are too few blocks to do so" in squeeze(result.stdout)
