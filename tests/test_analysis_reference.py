"""The reference of a block: which boots of the baseline serve in it, and what is said where one does not."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic_run import Effect, Synthetic, failed, with_windows
from test_analysis_report import arm_of, judged, measure_of, squeeze

from analysis import contrasts
from analysis.arm_points import discard_lines
from analysis.bench import make_bench
from analysis.judge import judge
from analysis.throughput import throughput_differences, unsound_blocks
from profiles.experiment import load_experiment
from profiles.records import Outcome
from profiles.runs import BootFacts, read_run

COPY = "v0.aa"
EVERY = (1, 2, 3, 4, 5)
DECIDING_AT_8 = """
[[guard]]
metric = "throughput@c=8"
direction = "higher"
margin = 0.05
headroom_reason = "growth"
"""


def losing(arm: str, blocks: tuple[int, ...], workload: str = "rag_long") -> Callable[[str, int, Outcome], Outcome]:
    """An engine that fails a class, a quarter of the requests, in these blocks."""

    def edit(name: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if name == arm and block in blocks and outcome.workload == workload else outcome

    return edit


def without(arm: str, *blocks: int) -> Callable[[BootFacts], BootFacts | None]:
    return lambda facts: None if facts.arm == arm and facts.block in blocks else facts


def shaped(*boots: tuple[str, int]) -> Callable[[BootFacts], BootFacts]:
    """The client would have shaped the window at c = 8 of these boots."""

    def edit(facts: BootFacts) -> BootFacts:
        spoilt = (facts.arm, facts.block) in boots
        return with_windows(facts, "closed-c8", invalid="the client was late") if spoilt else facts

    return edit


def guard_of(arm: dict[str, Any], metric: str) -> dict[str, Any]:
    (guard,) = [item for item in arm["guards"] if item["metric"] == metric]
    return dict(guard)


def test_a_copy_that_lost_a_class_proves_nothing_against_an_arm(tmp_path: Path) -> None:
    """Its quantile over other requests is another quantile: p90 without the long prompts is far lower."""
    run = Synthetic({"v1": Effect()}, edit_outcome=losing(COPY, EVERY))
    document, _ = judged(tmp_path, run)
    arm = arm_of(document, "v1")
    p90 = guard_of(arm, "ttft_p90")
    assert p90["status"] == "pass"
    assert abs(p90["value"]) < 0.02
    assert abs(measure_of(arm, "ttft")["change"]) < 0.01
    assert (arm["verdict"], arm["reasons"]) == ("reject", ["no material gain on TTFT or TPOT"])


def test_quantiles_are_those_of_the_requests_that_all_boots_have(tmp_path: Path) -> None:
    """One long request that a whole copy lacks moves its p90 by itself."""

    def edit(name: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if name == COPY and outcome.request == 2 else outcome

    folder = Synthetic({"v1": Effect()}, edit_outcome=edit, noise_sd=0.0, boot_sd=0.0).write(tmp_path / "run")
    bench = make_bench(read_run(folder), load_experiment(folder / "experiment.toml"))
    against = bench.contrast("v1", "v0")
    assert against.served == dict.fromkeys(EVERY, ("v0", COPY))
    assert against.pairs.filter("deciding").height == 5 * 59
    found = contrasts.quantile_differences(contrasts.deciding_pairs(against.pairs), "ttft", 0.9)
    assert list(found.values()) == pytest.approx([0.0] * 5, abs=1e-6)


@pytest.mark.parametrize(
    ("run", "why", "blocks"),
    [
        (
            Synthetic({"v1": Effect(ttft=-0.2)}, edit_outcome=losing(COPY, EVERY)),
            "blocks 1, 2, 3, 4 and 5: v0.aa answered only 45 of 60 requests",
            0,
        ),
        (
            Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=without(COPY, 2, 3, 5)),
            "blocks 2, 3 and 5: no boot of v0.aa was measured there",
            2,
        ),
        (
            Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=without(COPY, *EVERY)),
            "blocks 1, 2, 3, 4 and 5: no boot of v0.aa was measured there",
            0,
        ),
        (
            Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=without("v0", 1, 2, 4)),
            "blocks 1, 2 and 4: no boot of v0 was measured there",
            2,
        ),
    ],
)
def test_without_three_blocks_of_a_a_nothing_is_adopted_and_the_report_says_why(
    tmp_path: Path, run: Synthetic, why: str, blocks: int
) -> None:
    document, result = judged(tmp_path, run)
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["blocks"], result.exit_code) == ("inconclusive", 5, 3)
    have = f"{blocks} blocks of at least 3"
    assert f"adopt is blocked: A/A on TTFT has {have}, so the noise floor of this bench is unknown" in arm["reasons"][0]
    assert f"the reference is one boot of the baseline instead of two in {why}" in squeeze(result.stdout)
    assert any(why in warning for warning in document["warnings"])


def test_three_blocks_of_a_a_are_enough_and_one_boot_is_still_told(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=without(COPY, 2, 5)))
    assert (arm_of(document, "v1")["verdict"], result.exit_code) == ("adopt", 0)
    assert "instead of two in blocks 2 and 5: no boot of v0.aa" in squeeze(result.stdout)
    _, result = judged(tmp_path / "one", Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=without(COPY, 4)))
    assert "instead of two in block 4: no boot" in squeeze(result.stdout)
    _, result = judged(tmp_path / "whole", Synthetic({"v1": Effect(ttft=-0.2)}))
    assert "one boot of the baseline" not in result.stdout


def test_an_arm_with_too_few_blocks_of_its_own_is_open_by_that_alone(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, blocks=2))
    arm = arm_of(document, "v1")
    assert not any("noise floor" in reason for reason in arm["reasons"])
    assert arm["settle_otherwise"] is None


def test_a_rule_without_a_copy_adopts_and_says_what_is_unknown(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, aa=False))
    assert arm_of(document, "v1")["verdict"] == "adopt"
    assert "no second copy of the baseline was booted" in squeeze(result.stdout)
    assert "one boot of the baseline" not in result.stdout


def test_a_failing_baseline_leaves_its_whole_copy_as_the_reference(tmp_path: Path) -> None:
    """Blocks stay, the arm is judged; only the noise floor is not known."""

    def edit(name: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if name == "v0" and outcome.request < 3 else outcome

    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2), "v2": Effect()}, edit_outcome=edit))
    arm = arm_of(document, "v1")
    assert (arm["blocks"], arm["discarded_blocks"]) == (5, [])
    assert measure_of(arm, "ttft")["change"] == pytest.approx(-0.2, abs=0.01)
    assert arm_of(document, "v2")["verdict"] == "reject"
    told = "requests that the baseline itself failed or let run into the time-out: v0 15 of 300 (5.0 %), v0.aa 0 of 300"
    assert told in squeeze(result.stdout)
    assert arm["settle_otherwise"] == "a new run without what blocks adopt"
    tokens = 5 * sum(40 + request % 50 for request in range(60))
    assert (arm["output_lengths"]["tokens"], arm["output_lengths"]["baseline_tokens"]) == (tokens, tokens)


def test_a_baseline_that_fails_in_both_boots_is_not_settled_by_blocks(tmp_path: Path) -> None:
    def edit(name: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if name in ("v0", COPY) and outcome.request < 3 else outcome

    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, edit_outcome=edit))
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["blocks"], arm["settle"]) == ("inconclusive", 0, None)
    assert arm["settle_otherwise"] == (
        "a baseline that answers what it is asked: v0 itself fails 5.0 % of its requests"
    )
    said = "blocks 1, 2, 3, 4 and 5 discarded: v0 answered only 57 of 60 requests and v0.aa answered only 57 of 60"
    assert said in squeeze(result.stdout)
    assert "would settle it: 3 blocks" not in squeeze(result.stdout)


def test_a_baseline_that_failed_in_one_block_is_settled_by_another_one(tmp_path: Path) -> None:
    def edit(name: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if name in ("v0", COPY) and block == 3 and outcome.request < 3 else outcome

    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, edit_outcome=edit, blocks=3))
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["blocks"]) == ("inconclusive", 2)
    assert arm["settle"]["blocks"] >= 3
    assert arm["settle_otherwise"] is None


def test_the_failures_of_an_arm_are_held_against_both_boots_of_the_baseline(tmp_path: Path) -> None:
    """6 of 240 against 0 of 480 is more than chance; against 0 of 240 it would not be, nor if the copy fails too."""

    def edit(name: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if name == "v1" and block < 4 and outcome.request < 2 else outcome

    def both(name: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if name == COPY and outcome.request == 5 else edit(name, block, outcome)

    arms = {"v1": Effect(ttft=-0.1)}
    document, _ = judged(tmp_path / "alone", Synthetic(arms, edit_outcome=edit, blocks=4))
    reasons = arm_of(document, "v1")["reasons"]
    assert reasons[0] == "unstable: 2.5 % of its requests failed or timed out, 0.0 % of the baseline's"
    document, _ = judged(tmp_path / "both", Synthetic(arms, edit_outcome=both, blocks=4))
    assert arm_of(document, "v1")["verdict"] == "inconclusive"


def test_what_the_client_lost_is_said_to_be_the_arm_s_and_not_the_baseline_s(tmp_path: Path) -> None:
    def cancel(name: str, block: int, outcome: Outcome) -> Outcome:
        lost = name == "v1" and ((block in (1, 4) and outcome.request < 3) or (block == 2 and outcome.request < 4))
        return msgspec.structs.replace(outcome, outcome="cancelled", origin="client") if lost else outcome

    folder = Synthetic({"v1": Effect()}, edit_outcome=cancel).write(tmp_path / "run")
    report = judge(read_run(folder), load_experiment(folder / "experiment.toml"))
    assert list(discard_lines(report.arms[0])) == [
        "blocks 1 and 4 discarded: v1 lost 3 of 60 requests through no fault of its engine",
        "block 2 discarded: v1 lost 4 of 60 requests through no fault of its engine",
    ]


@pytest.mark.parametrize(
    ("boots", "said", "blocks"),
    [
        ([("v0", 1), ("v0", 2)], "in 2 of 5 blocks the reference is one boot, the client would have shaped", EVERY),
        ([(COPY, 3)], "in 1 of 5 blocks the reference is one boot, the client would have shaped the other", EVERY),
        ([("v0", 1), (COPY, 1)], "1 of 5 blocks left out, the client would have shaped them", (2, 3, 4, 5)),
        ([("v1", 1), ("v0", 2)], "1 of 5 blocks left out, the client would have shaped them; in 1 of 5", (2, 3, 4, 5)),
    ],
)
def test_a_window_that_the_client_shaped_is_told_as_what_became_of_its_block(
    tmp_path: Path, boots: list[tuple[str, int]], said: str, blocks: tuple[int, ...]
) -> None:
    run = Synthetic({"v1": Effect(throughput=0.1)}, edit_boot=shaped(*boots), rule=DECIDING_AT_8)
    folder = run.write(tmp_path / "run")
    bench = make_bench(read_run(folder), load_experiment(folder / "experiment.toml"))
    against = bench.contrast("v1", "v0")
    found = throughput_differences(bench.run, against, 8)
    assert tuple(found) == blocks
    assert list(found.values()) == pytest.approx([math.log(1.1)] * len(blocks), abs=1e-3)
    assert set(blocks) | set(unsound_blocks(bench.run, against, 8)[0]) == set(EVERY)
    guard = next(item for item in judge(bench.run, bench.experiment).arms[0].guards if item.metric == "throughput@c=8")
    assert said in guard.reason


def test_requests_at_c_fall_back_to_the_other_boot_as_rates_do(tmp_path: Path) -> None:
    """A sweep window that one boot of the baseline lacks is held against the other one alone."""

    def edit(facts: BootFacts) -> BootFacts:
        return with_windows(facts, "sweep-c4", invalid="late") if (facts.arm, facts.block) == ("v0", 1) else facts

    folder = Synthetic({"v1": Effect()}, sweep=(4,), edit_boot=edit).write(tmp_path / "run")
    bench = make_bench(read_run(folder), load_experiment(folder / "experiment.toml"))
    pairs = bench.contrast("v1", "v0").pairs
    at_4 = pairs.filter(pairs["window"] == "sweep-c4")
    boots = dict(at_4.select("block", "boots").unique().sort("block").iter_rows())
    assert boots == {1: 1, 2: 2, 3: 2, 4: 2, 5: 2}
    assert contrasts.block_means(at_4)["ttft"].differences.keys() == set(EVERY)


def test_weights_are_tried_with_the_spread_that_the_rule_uses(tmp_path: Path) -> None:
    """Two blocks: the pooled interval decides, the paired one could not; the weights must not differ by that alone."""
    arms = {"v1": Effect(ttft=-0.1), "v2": Effect(), "v3": Effect()}
    run = Synthetic(arms, blocks=2, design='variance = "pooled"\n', boot_sd=0.01, seed=3)
    folder = run.write(tmp_path / "run")
    report = judge(read_run(folder), load_experiment(folder / "experiment.toml"))
    arm = report.arms[0]
    ttft = [item for item in arm.shown.sensitivity if item.measure == "ttft"]
    assert arm.measures[0].zone == "gain"
    assert ttft
    assert all(item.same for item in ttft)
    widths = {item.estimate.half_width for item in ttft if item.estimate}
    assert {round(width or 0.0, 12) for width in widths} == {round(arm.measures[0].estimate.half_width or 0.0, 12)}  # type: ignore[union-attr]


def test_whole_blocks_behind_a_gap_are_counted(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=without(COPY, 1, 3)))
    assert document["blocks"] == {"planned": 5, "complete": 0, "whole": 3, "finished": True}
    assert "3 of 5 blocks complete, none of them before the first gap" in squeeze(result.stdout)
    document, result = judged(tmp_path / "late", Synthetic({"v1": Effect()}, edit_boot=without("v1", 3)))
    assert "4 of 5 blocks complete, 2 of them before the first gap" in squeeze(result.stdout)
    document, result = judged(tmp_path / "whole", Synthetic({"v1": Effect()}))
    assert "5 of 5 blocks complete" in squeeze(result.stdout)
    assert "gap" not in result.stdout
