"""What would settle an inconclusive arm: blocks and hours where more of them can, else what else would."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from synthetic_run import GUARDS, Effect, Synthetic, failed
from test_analysis_report import arm_of, judged, squeeze

from analysis.judge import judge
from analysis.settle import (
    ASSUMED_QUANTILE_SD,
    assumed_sd,
    blocks_for_guard,
    blocks_for_measure,
    how_often,
    one_boot_notes,
    one_boot_statement,
    planned_effect,
    planning_sd,
    settle,
    settle_otherwise,
)
from analysis.stats import MOST_BLOCKS, Estimate, critical_t, paired_block_t, power, required_blocks, sd_upper
from analysis.verdict import GuardFinding, MeasureFinding
from profiles.experiment import load_experiment
from profiles.records import Outcome
from profiles.runs import BootFacts, read_run

LINE = math.log(0.98)


def open_at(mean: float, blocks: int = 5, sd: float | None = 0.023, line: float = LINE) -> MeasureFinding:
    return MeasureFinding("ttft", "open", "not shown", Estimate(blocks, mean, sd, sd and 2 * sd), line, 0.05)


DECIDED = MeasureFinding("ttft", "gain", "no worse", Estimate(5, -0.1, 0.01, 0.01), LINE, 0.05)


def otherwise(*measures: MeasureFinding, guards: tuple[GuardFinding, ...] = (), blockers: tuple[str, ...] = ()) -> str:
    found = settle_otherwise(measures, guards, blockers, cold=True, blocks=5, alpha=0.05)
    return found or ""


def test_one_block_plans_its_guards_by_an_assumed_spread() -> None:
    after_one = GuardFinding("ttft_p90", "deciding", "not shown", 0.10, value=0.02)
    assert blocks_for_guard(after_one, 0.05) == 4  # 9.5 % in logs at an assumed 5.5 %
    tighter = GuardFinding("ttft_p90", "deciding", "not shown", 0.05, value=0.02)
    assert (blocks_for_guard(tighter, 0.05) or 0) > 4
    rate = GuardFinding("throughput@c=8", "deciding", "not shown", 0.05, value=-0.01)
    assert blocks_for_guard(rate, 0.05) == 4
    found = settle([open_at(-0.02, 1, None)], [after_one], blocks=1, hours_per_block=1, alpha=0.05)
    assert found is not None
    assert found.blocks == 6


@pytest.mark.parametrize(("metric", "half_width"), [("ttft_p95", 0.066), ("ttft_p99", 0.099)])
def test_the_assumed_spread_of_a_quantile_is_the_simulated_one(metric: str, half_width: float) -> None:
    """Half widths of the 90 % interval over five blocks; p90 lies between the median's 3.8 % and p95's 6.6 %."""
    assert critical_t(5, 0.05) * ASSUMED_QUANTILE_SD[metric] / math.sqrt(5) == pytest.approx(half_width, abs=5e-4)
    assert 0.038 < critical_t(5, 0.05) * ASSUMED_QUANTILE_SD["ttft_p90"] / math.sqrt(5) < 0.066


def test_a_run_of_one_block_with_a_guard_says_how_many_more(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.1)}, blocks=1, rule=GUARDS))
    arm = arm_of(document, "v1")
    assert arm["settle"]["blocks"] == 5
    assert arm["settle_otherwise"] is None
    assert "would settle it: 5 blocks in all = 5 h 00 min of machine time" in squeeze(result.stdout)
    alone, _ = judged(tmp_path / "alone", Synthetic({"v1": Effect(ttft=-0.1)}, blocks=1, rule=GUARDS, aa=False))
    assert arm_of(alone, "v1")["settle"]["blocks"] == 6


def test_a_measure_that_shares_its_alpha_over_arms_needs_more_blocks() -> None:
    alone = open_at(-0.02, 1, None, 0.0)
    shared = replace(alone, alpha=0.05 / 4)
    assert (blocks_for_measure(alone, 0.05), blocks_for_measure(shared, 0.05)) == (6, 9)


def test_a_line_that_no_gain_can_reach_needs_an_interval_and_no_more() -> None:
    assert blocks_for_measure(open_at(-0.02, 1, None, -math.inf), 0.05) == 4  # for the margin alone
    harmless = MeasureFinding("ttft", "open", "no worse", Estimate(1, -0.02), -math.inf, 0.05)
    assert blocks_for_measure(harmless, 0.05) == 3


def test_a_run_under_way_is_settled_by_its_next_look(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.2)}, blocks=8, done_blocks=4, finished=False, design="looks = [6, 8]\n")
    document, result = judged(tmp_path, run)
    assert arm_of(document, "v1")["settle"] == {"blocks": 6, "hours": 6.0}
    assert "may I stop early? Valid after any number of blocks: TTFT −19.7 %" in squeeze(result.stdout)
    _, finished = judged(tmp_path / "done", Synthetic({"v1": Effect(ttft=-0.2)}))
    assert "may I stop early" not in finished.stdout
    assert measure_anytime(document) < -0.02


def measure_anytime(document: dict[str, object]) -> float:
    arm = arm_of(document, "v1")
    ttft = arm["measures"][0]
    low, high = ttft["anytime"]["low"], ttft["anytime"]["high"]
    assert low < ttft["low"]
    assert high > ttft["high"]
    return float(high)


def test_too_much_noise_is_settled_by_less_of_it() -> None:
    noisy = open_at(-0.02, 5, 0.5)
    assert settle([noisy], [], blocks=5, hours_per_block=1, alpha=0.05) is None
    assert otherwise(noisy).startswith("a calmer machine: TTFT scatters by 50.0 % from block to block, and 60 blocks")


def test_an_arm_without_a_usable_block_is_settled_by_blocks_and_one_without_a_number_by_none() -> None:
    unmeasured = MeasureFinding("tpot", "open", "not shown", None, LINE, 0.05)
    guard = GuardFinding("ttft_p90", "deciding", "not shown", 0.1, reason="not measured")
    lost = settle([unmeasured], [guard], blocks=0, hours_per_block=2, alpha=0.05)
    assert lost is not None
    assert (lost.blocks, lost.hours) == (3, 6.0)
    assert settle_otherwise([unmeasured], [guard], [], cold=True, blocks=0, alpha=0.05) is None
    assert settle([open_at(-0.02), unmeasured], [], blocks=5, hours_per_block=2, alpha=0.05) is None
    assert otherwise(open_at(-0.02), unmeasured).startswith("a load on which TPOT can be measured")


def test_what_blocks_adopt_has_to_go_however_many_blocks_there_are() -> None:
    said = otherwise(DECIDED, blockers=("cached tokens differ",))
    assert said == "a new run without what blocks adopt"
    assert otherwise(open_at(-0.02), blockers=("cached tokens differ",)) == said
    assert otherwise(open_at(-0.02)) == ""


def test_a_guard_without_a_number_has_to_be_measured() -> None:
    thin = GuardFinding(
        "ttft_p99", "deciding", "not shown", 0.1, reason="p99 not reported (n = 40 per boot, 368 needed)"
    )
    assert otherwise(DECIDED, guards=(thin,)) == (
        "a new run that measures ttft_p99 (p99 not reported (n = 40 per boot, 368 needed))"
    )
    wide = GuardFinding("ttft_p99", "deciding", "not shown", 0.1, value=0.0, low=-0.9, high=2.0)
    assert otherwise(DECIDED, guards=(wide,)).startswith("ttft_p99 with more requests per boot or a wider margin: 60")
    advisory = GuardFinding("ttft_p99", "advisory", "not shown", 0.1)
    assert otherwise(DECIDED, guards=(advisory,)) == ""


def test_a_measure_that_no_request_has_needs_another_load(tmp_path: Path) -> None:
    def short(arm: str, block: int, outcome: Outcome) -> Outcome:
        response = msgspec.structs.replace(outcome.response, output_tokens=3)
        return msgspec.structs.replace(outcome, response=response)

    rule = GUARDS + '\n[[measure]]\nname = "tpot"\nmaterial = { relative = 0.03 }\n'
    document, _ = judged(tmp_path, Synthetic({"v1": Effect()}, edit_outcome=short, rule=rule))
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["settle"]) == ("inconclusive", None)
    assert arm["settle_otherwise"].startswith("a load on which TPOT can be measured")


def test_an_engine_that_was_up_already_is_settled_by_cold_boots(tmp_path: Path) -> None:
    def warm(facts: BootFacts) -> BootFacts:
        return msgspec.structs.replace(facts, cold=False)

    arm = arm_of(judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=warm))[0], "v1")
    assert (arm["verdict"], arm["settle"]) == ("inconclusive", None)
    assert arm["settle_otherwise"].startswith("cold boots: ")


def test_an_undeclared_cache_and_failed_requests_name_themselves(tmp_path: Path) -> None:
    def some_fail(arm: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if arm == "v1" and block < 4 and outcome.request < 2 else outcome

    run = Synthetic({"v1": Effect(ttft=-0.2, cached=400)}, baseline=Effect(cached=100), edit_outcome=some_fail)
    arm = arm_of(judged(tmp_path, run)[0], "v1")
    assert arm["verdict"] == "inconclusive"
    assert "a new run without what blocks adopt" in arm["settle_otherwise"]
    assert "adopt is blocked: cached tokens differ without being declared" in arm["reasons"][0]


def test_every_word_but_inconclusive_settles_nothing(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2), "v2": Effect()}))
    for arm in document["arms"]:
        assert (arm["settle"], arm["settle_otherwise"]) == (None, None)


def test_the_other_numbers_of_one_boot_are_told_with_their_chance() -> None:
    tpot = MeasureFinding("tpot", "open", "not shown", Estimate(1, math.log1p(-0.02)), math.log(0.97), 0.05)
    errors = GuardFinding("error_rate", "deciding", "pass", 0.01, value=0.0)
    rate = GuardFinding("throughput@c=8", "advisory", "not shown", 0.05, value=-0.036)
    assert one_boot_notes([open_at(-0.1, 1, None), tpot], [errors, rate]) == [
        "n=1 too, each with how often identical boots differ as much: TPOT −2.0 % (39 %), throughput@c=8 −3.6 % (12 %)"
    ]
    assert one_boot_notes([tpot], []) == []


@pytest.mark.parametrize(("line", "boots", "blocks"), [(LINE, 1, 6), (LINE, 2, 5), (math.log(0.9), 2, 4)])
def test_an_effect_three_points_beyond_its_line_needs_the_planned_blocks(line: float, boots: int, blocks: int) -> None:
    assert blocks_for_measure(open_at(0.0, 1, None, line), 0.05, boots) == blocks


def test_an_observed_spread_is_taken_at_its_upper_limit() -> None:
    """Five blocks with a spread of 2.3 % may well come from one of 3.6 % (4 degrees of freedom, 80 %)."""
    sd = planning_sd(Estimate(5, 0.0, 0.023, 0.02), 0.02)
    assert sd == pytest.approx(0.023 * 1.557, rel=1e-3)
    assert blocks_for_measure(open_at(0.0, 5, 0.023), 0.05) == required_blocks(planned_distance(), sd) == 10
    assert planning_sd(Estimate(5, 0.0, 0.023, 0.02, df=12), 0.02) == pytest.approx(0.023 * 1.240, rel=1e-3)


def planned_distance() -> float:
    return LINE - math.log1p(-planned_effect(LINE))


def test_two_blocks_are_held_to_the_assumed_spread_at_least() -> None:
    assert planning_sd(Estimate(2, 0.0, 0.001, 0.01), 0.0232) == 0.0232
    assert planning_sd(Estimate(2, 0.0, 0.04, 0.01), 0.0232) == 0.04
    assert planning_sd(Estimate(1, 0.0), 0.0232) == planning_sd(None, 0.0232) == 0.0232


def test_a_run_of_two_blocks_is_told_blocks_that_would_decide_it() -> None:
    """Identical boots whose block differences scatter by 2 %: what is told after two of them has its power in most."""
    draw = np.random.default_rng(1)
    chances = []
    for _ in range(300):
        estimate = paired_block_t(list(draw.normal(0, 0.02, 2)))
        assert estimate is not None
        finding = MeasureFinding("ttft", "open", "no worse", estimate, LINE, 0.05)
        told = blocks_for_measure(finding, 0.05, 2) or MOST_BLOCKS
        chances.append(power(told, planned_distance(), 0.02))
    assert np.median(chances) >= 0.8
    assert min(chances) >= 0.75


def test_a_guard_is_planned_at_the_upper_limit_too(tmp_path: Path) -> None:
    def scatter(arm: str, block: int, outcome: Outcome) -> Outcome:
        if arm != "v1" or outcome.response.first_token_ns is None or outcome.send_started_ns is None:
            return outcome
        ttft_ns = outcome.response.first_token_ns - outcome.send_started_ns
        moved = outcome.send_started_ns + round(ttft_ns * (1.0, 1.2, 0.85, 1.15, 0.95)[block - 1])
        return msgspec.structs.replace(
            outcome, response=msgspec.structs.replace(outcome.response, first_token_ns=moved)
        )

    run = Synthetic({"v1": Effect()}, edit_outcome=scatter).write(tmp_path / "run")
    report = judge(read_run(run), load_experiment(run / "experiment.toml"))
    guard = next(item for item in report.arms[0].guards if item.metric == "ttft_p90")
    assert guard.status == "not shown"
    assert guard.high is not None
    assert guard.low is not None
    sd = (math.log1p(guard.high) - math.log1p(guard.low)) / 2 * math.sqrt(5) / critical_t(5, 0.05)
    assert guard.settle_blocks == required_blocks(math.log(1.1), sd_upper(sd, 4))
    assert (guard.settle_blocks or 0) > (required_blocks(math.log(1.1), sd) or 0)


def test_one_boot_against_two_of_the_baseline_differs_less_by_chance() -> None:
    """Arm − mean of two boots: 3/2 of a boot's variance, against 2 of one boot − another."""
    assert assumed_sd("ttft", 2) == pytest.approx(math.sqrt(0.75) * assumed_sd("ttft"))
    assert how_often(-0.036, assumed_sd("ttft", 2)) == "7 %"
    said = one_boot_statement(open_at(math.log1p(-0.036), 1, None), "v3", 0.05, 2) or ""
    assert "an identical boot differs at least this much from the mean of the baseline's two 7 % of the time" in said
    assert said.endswith("5 blocks.")
    tpot = MeasureFinding("tpot", "open", "not shown", Estimate(1, math.log1p(-0.036)), math.log(0.97), 0.05)
    p90 = GuardFinding("ttft_p90", "deciding", "not shown", 0.10, value=0.06)
    alone, both = (one_boot_notes([open_at(-0.1, 1, None), tpot], [p90], boots)[0] for boots in (1, 2))
    assert alone.endswith("TPOT −3.6 % (12 %), ttft_p90 +6.0 % (27 %)")
    assert both.endswith("TPOT −3.6 % (7 %), ttft_p90 +6.0 % (21 %)")
    assert (blocks_for_guard(p90, 0.05, 1), blocks_for_guard(replace(p90, limit=0.08), 0.05, 2)) == (4, 5)
