"""The articles' ladder as data: what the authors learned only afterwards, the tool must say at once.

The published numbers are in data/article_ladder.toml. They are written as RUN directories, once with one boot per arm,
as it was measured, and once with ten; the rule puts TTFT first, as a production at c = 1 to 3 needs it.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from synthetic_run import GUARDS, Effect, Synthetic
from test_analysis_report import arm_of, judged, measure_of, squeeze, words

from profiles.concurrency import OperatingPoint
from profiles.errors import RuleError
from profiles.experiment import LoadFacts, check_against_profile, load_experiment
from profiles.runs import BootFacts
from profiles.units import MINUTE_NS

GAINING, LOSING = {"json_extraction", "rag_32k", "code"}, "short_qa"


@cache
def ladder() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "data" / "article_ladder.toml").read_text(encoding="utf-8"))


def skipped_as_toml() -> str:
    return "".join(
        f'\n[[skipped]]\narm = "{item["arm"]}"\nreason = "{item["reason"]}"\n' for item in ladder()["skipped"]
    )


def drafts(shares: Mapping[str, float], length: int) -> dict[str, float]:
    """Accepted tokens per draft of this length."""
    return {name: share * length for name, share in shares.items()}


def selection_of(draft: int) -> dict[str, Any]:
    """What the boot log shows. The default picks the backend that v1 asks for."""
    config = {"speculative_config": f"num_speculative_tokens={draft}"}
    return {"attention_backends": ["FLASHINFER"], "async_scheduling": False, "config": config}


def effect_of(arm: Mapping[str, Any]) -> Effect:
    # More tokens per second is less time per token; TTFT was not seen to move.
    tpot = {name: 1 / (1 + change) - 1 for name, change in arm.get("decode_rate", {}).items()}
    length = arm.get("draft", ladder()["base_draft"])
    selection = selection_of(length) | ({"async_scheduling": True} if arm["name"] != "v1_flashinfer" else {})
    return Effect(
        tpot=tpot,
        throughput=arm["throughput"],
        draft=length,
        acceptance=drafts(arm.get("share", base_shares()), length),
        selection=selection,
    )


def base_shares() -> dict[str, float]:
    return {name: item["share"] for name, item in ladder()["classes"].items() if "share" in item}


def the_run(blocks: int, *, seed: int = 1, boot_sd: float = 0.008, requests: int = 120, aa: bool = True) -> Synthetic:
    """The ladder with the published effects. Every boot takes the articles' 20 minutes."""
    numbers = ladder()
    noise = np.random.default_rng(seed)

    def edit_boot(facts: BootFacts) -> BootFacts:
        *others, last = facts.windows
        # With one boot per arm the published difference is the observed one, its noise in it.
        tokens = round(last.output_tokens * float(np.exp(noise.normal(0, boot_sd if blocks > 1 else 0))))
        gone_ns = (facts.spawned_ns or 0) + numbers["boot_minutes"] * MINUTE_NS
        windows = [*others, msgspec.structs.replace(last, output_tokens=tokens)]
        return msgspec.structs.replace(facts, windows=windows, gone_ns=gone_ns)

    def edit_manifest(manifest: dict[str, Any]) -> None:
        manifest["skipped"] = numbers["skipped"]
        manifest["profile"]["arrivals_at"] = numbers["production"]["arrivals_at"]

    short = numbers["base_draft"]
    return Synthetic(
        {arm["name"]: effect_of(arm) for arm in numbers["arm"]},
        blocks=blocks,
        requests=requests,
        seed=seed,
        boot_sd=boot_sd,
        aa=aa,
        baseline=Effect(acceptance=drafts(base_shares(), short), draft=short, selection=selection_of(short)),
        rule=GUARDS + skipped_as_toml(),
        classes=tuple(numbers["classes"]),
        ttft_ms={name: item["ttft_ms"] for name, item in numbers["classes"].items()},
        edit_boot=edit_boot,
        edit_manifest=edit_manifest,
    )


@pytest.fixture(scope="module")
def as_measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """One boot per arm and no second one of the baseline, as in the articles: the document, and what the terminal
    shows."""
    run = the_run(ladder()["boots_per_arm"], boot_sd=0.002, aa=False)
    document, result = judged(tmp_path_factory.mktemp("article"), run)
    assert result.exit_code == 3
    return document, squeeze(result.stdout)


def test_one_boot_per_arm_decides_nothing_and_says_so(as_measured: tuple[dict[str, Any], str]) -> None:
    document, text = as_measured
    assert set(words(document).values()) == {"inconclusive"}
    for arm in document["arms"]:
        assert arm["action"] == "keep v0 until more is known"
        assert arm["reasons"][0].startswith(f"n=1: {arm['arm']} TTFT ")
        assert "One boot per arm: no between-boot variance known." in arm["reasons"][0]
        assert {measure["zone"] for measure in arm["measures"]} == {"open"}
    assert "Outcome: keep v0; undecided: v1_flashinfer, v2_async, v3_spec3" in text


def test_differences_of_two_to_four_per_cent_are_told_as_the_noise_that_they_may_be(
    as_measured: tuple[dict[str, Any], str],
) -> None:
    """Near the noise floor, as the authors say: identical boots differ as much in a third or an eighth of the cases."""
    document, _ = as_measured
    for arm in ladder()["arm"]:
        (told,) = [reason for reason in arm_of(document, arm["name"])["reasons"] if reason.startswith("n=1 too")]
        often = {"v1_flashinfer": 34, "v2_async": 30, "v3_spec3": 12}[arm["name"]]
        change = f"{100 * arm['throughput']:.1f}".replace("-", "−")
        assert told.endswith(f"throughput@c=8 {change} % ({often} %)")


def test_the_mix_at_c_8_is_told_to_be_no_place_of_production(as_measured: tuple[dict[str, Any], str]) -> None:
    document, text = as_measured
    for arm in document["arms"]:
        guards = {guard["metric"]: guard for guard in arm["guards"]}
        at_8 = guards["throughput@c=8"]
        assert (at_8["role"], at_8["reason"]) == ("advisory", "production never reaches c = 8")
    assert document["operating_point"]["levels"] == [1, 2, 3]
    assert "never above 3" in text


def test_skipped_arms_are_shown_with_their_reasons(as_measured: tuple[dict[str, Any], str]) -> None:
    document, text = as_measured
    assert document["skipped"] == ladder()["skipped"]
    for item in ladder()["skipped"]:
        assert f"{item['arm']}: {item['reason']}" in text


def test_what_would_settle_it_is_told_in_blocks_and_hours_of_20_minutes_a_boot(
    as_measured: tuple[dict[str, Any], str],
) -> None:
    document, text = as_measured
    boots = len(ladder()["arm"]) + 1  # the baseline was booted once
    for arm in document["arms"]:
        assert arm["settle"] == {"blocks": 6, "hours": pytest.approx(6 * boots / 3)}
        assert arm["settle_otherwise"] is None
        assert "To decide a 5 % effect against a 2 % line: 6 blocks." in arm["reasons"][0]
    assert text.count("would settle it: 6 blocks in all = 8 h 00 min of machine time") == 3


def test_a_second_boot_of_the_baseline_tells_more_from_the_same_numbers(tmp_path: Path) -> None:
    """Against the mean of two boots an ordinary difference is smaller: 7 % for 3.6 % less, where one boot has 12 %."""
    document, result = judged(tmp_path, the_run(1, boot_sd=0.002))
    (told,) = [reason for reason in arm_of(document, "v3_spec3")["reasons"] if reason.startswith("n=1 too")]
    assert told.endswith("throughput@c=8 −3.6 % (7 %)")
    for arm in document["arms"]:
        assert arm["settle"]["blocks"] == 5
        assert "To decide a 5 % effect against a 2 % line: 5 blocks." in arm["reasons"][0]
    assert squeeze(result.stdout).count("would settle it: 5 blocks in all = 8 h 20 min of machine time") == 3


SEEDS = range(1, 7)


@pytest.fixture(scope="module", params=SEEDS)
def of_ten_blocks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same effects with ten boots of every arm."""
    document, result = judged(tmp_path_factory.mktemp("ten"), the_run(10, seed=request.param))
    assert result.exit_code == 0
    return document


def test_the_two_flags_that_do_nothing_are_rejected(of_ten_blocks: dict[str, Any]) -> None:
    for name in ("v1_flashinfer", "v2_async"):
        arm = arm_of(of_ten_blocks, name)
        assert (arm["verdict"], arm["action"]) == ("reject", "keep v0")
        assert arm["reasons"][0] == "no material gain on TTFT or TPOT"
    nothing = {arm["arm"]: arm["boot_log"]["changes_nothing"] for arm in of_ten_blocks["arms"]}
    assert nothing == {"v1_flashinfer": True, "v2_async": False, "v3_spec3": False}


def test_the_longer_draft_depends_on_the_workload(of_ten_blocks: dict[str, Any]) -> None:
    arm = arm_of(of_ten_blocks, "v3_spec3")
    assert (arm["verdict"], arm["action"]) == (
        "workload-dependent",
        "keep v0: on a mixed profile the worse case decides",
    )
    assert arm["reasons"][0].startswith("TPOT: ")
    tpot = {item["class"]: item["direction"] for item in measure_of(arm, "tpot")["classes"]}
    assert {tpot[name] for name in GAINING} == {"gain"}
    assert tpot[LOSING] == "loss"
    assert tpot["hungarian_chat"] != "gain"
    for name in GAINING:
        assert name in arm["reasons"][0].split(" gain")[0]
    assert LOSING in arm["reasons"][0].split(" gain")[1]
    ttft = measure_of(arm, "ttft")
    assert (ttft["zone"], ttft["no_worse"]) == ("no gain", "no worse")


def test_the_stack_is_told_from_its_last_step(of_ten_blocks: dict[str, Any]) -> None:
    arm = arm_of(of_ten_blocks, "v3_spec3")
    assert "stack: contains rejected v1_flashinfer, v2_async; re-run without them" in arm["reasons"]
    assert arm["step"]["against"] == "v2_async"
    (own,) = [item for item in arm["step"]["measures"] if item["measure"] == "tpot"]
    # Neither step below it does anything, so the last step is the whole stack.
    assert own["change"] == pytest.approx(measure_of(arm, "tpot")["change"], abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_the_noise_that_the_reference_assumes_nothing_is_adopted_and_the_draft_still_found(
    tmp_path: Path, seed: int
) -> None:
    document, _ = judged(tmp_path, the_run(10, seed=seed, boot_sd=0.015))
    found = words(document)
    assert found["v3_spec3"] == "workload-dependent"
    assert {found["v1_flashinfer"], found["v2_async"]} <= {"reject", "inconclusive"}


AT_8 = """
[[measure]]
name = "throughput@c=8"
material = { relative = 0.02 }
margin = 0.05
"""


def test_throughput_at_c_8_may_not_decide_for_a_production_at_1_to_3(tmp_path: Path) -> None:
    """The rule of the articles, refused before the first boot: nobody had looked where production is."""
    arrivals = {int(c): count for c, count in ladder()["production"]["arrivals_at"].items()}
    weights = {c: count / sum(arrivals.values()) for c, count in arrivals.items()}
    load = LoadFacts(OperatingPoint((1, 2, 3), weights, 0.95, 1.0), arrivals, 0, 3)
    rule = tmp_path / "experiment.toml"
    rule.write_text(the_run(5).toml() + AT_8, encoding="utf-8")
    with pytest.raises(RuleError) as refused:
        check_against_profile(load_experiment(rule), load=load, content="full")
    assert "throughput@c=8" in str(refused.value)
    assert "c = 8" in str(refused.value)

    rule.write_text(the_run(5).toml() + AT_8 + 'headroom_reason = "the load doubles in spring"\n', encoding="utf-8")
    check_against_profile(load_experiment(rule), load=load, content="full")


def test_a_run_that_was_decided_at_c_8_all_the_same_is_invalid(tmp_path: Path) -> None:
    run = the_run(5)
    run.rule += AT_8
    document, result = judged(tmp_path, run)
    assert (set(words(document).values()), result.exit_code) == ({"invalid"}, 4)
    assert "throughput@c=8" in document["invalid"][0]
