"""What a plan promises: chances that agree with the exact distributions, the rule itself and the reference."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from recorded import write_profile
from scipy import special
from synthetic_run import Effect, Synthetic

from analysis import contrasts, stats
from analysis.bench import make_bench
from analysis.plan.chances import EFFECTS, Chance, chances, interval, margins, zones
from analysis.plan.cli import plan as command
from analysis.plan.design import Plan, make_plan
from analysis.plan.noise import Noise, assumed_noise, measured_noise, stated_noise, upper
from analysis.plan.text import format_plan, plan_document
from analysis.plan.trial import Trial, TrialGuard, TrialMeasure, allowed_errors, guard_chance, smallest_gain
from analysis.settle import BOTH_BOOTS
from profiles.errors import RuleError, UsageError
from profiles.experiment import load_experiment
from profiles.files import encode_pretty
from profiles.functional import probe_set
from profiles.planned import read_facts
from profiles.profile import read_profile
from profiles.runs import RULE, read_run
from profiles.starter import starter
from profiles.units import MINUTE_NS

SD = 0.023
LINE = math.log1p(-0.02)
LIMIT = math.log1p(0.05)
CLASSES = {name: 0.25 for name in ("chat", "code", "json", "rag")}


def alone(blocks: int, *, looks: tuple[int, ...] = (), pooled: bool = False, arms: int = 3) -> Trial:
    """One measure, nothing beside it: its verdicts are its zones."""
    return Trial(blocks, (TrialMeasure("ttft", LINE, LIMIT, SD),), looks=looks, pooled=pooled, arms=arms)


def of(found: tuple[Chance, ...], effect: float, measure: str = "ttft", *, mixed: bool = False) -> Chance:
    (one,) = [item for item in found if (item.measure, item.effect, item.mixed) == (measure, effect, mixed)]
    return one


@pytest.mark.parametrize("blocks", [3, 5, 7, 10])
def test_simulated_chances_agree_with_the_noncentral_t(blocks: int) -> None:
    found = chances(alone(blocks))
    for effect in EFFECTS:
        exact = stats.power(blocks, LINE - math.log1p(-effect), SD)
        assert of(found, effect).shares["adopt"] == pytest.approx(exact, abs=0.012)
    exact = stats.power(blocks, -LINE, SD)
    assert of(found, 0.0).shares["reject"] == pytest.approx(exact, abs=0.012)


# Adopt, reject, inconclusive: reference, three-zone rule at sd 2.3 % and a line of 2 %.
@pytest.mark.parametrize(
    ("blocks", "effect", "expected"),
    [
        (3, 0.0, (0.002, 0.28, 0.72)),
        (5, 0.0, (0.0005, 0.49, 0.51)),
        (10, 0.0, (0.0, 0.82, 0.18)),
        (5, 0.03, (0.21, 0.006, 0.79)),
        (3, 0.05, (0.46, 0.0, 0.54)),
        (5, 0.05, (0.80, 0.0, 0.20)),
        (10, 0.05, (0.99, 0.0, 0.01)),
        (3, 0.10, (0.98, 0.0, 0.02)),
    ],
)
def test_chances_are_those_of_the_reference(blocks: int, effect: float, expected: tuple[float, float, float]) -> None:
    shares = of(chances(alone(blocks)), effect).shares
    assert [shares["adopt"], shares["reject"], shares["inconclusive"]] == pytest.approx(list(expected), abs=0.015)


def test_fewer_than_three_blocks_decide_nothing() -> None:
    assert of(chances(alone(2)), 0.10).shares["inconclusive"] == 1.0
    assert of(chances(alone(1)), 0.10).shares["inconclusive"] == 1.0


@given(
    st.lists(st.floats(-0.2, 0.2).map(lambda value: round(value, 6)), min_size=2, max_size=8),
    st.floats(-0.1, 0.1),
    st.sampled_from([0.05, 0.025, 0.0125]),
)
def test_a_draw_is_judged_as_the_rule_judges_it(differences: list[float], line: float, alpha: float) -> None:
    estimate = stats.paired_block_t(differences, alpha)
    assert estimate is not None
    assert estimate.half_width is not None
    mean, half = interval(np.array([differences]), alpha)
    assert mean[0] == pytest.approx(estimate.mean)
    assert half[0] == pytest.approx(estimate.half_width, abs=1e-12)
    if min(abs(mean[0] + half[0] - line), abs(mean[0] - half[0] - line)) < 1e-9:
        return  # on the line itself the last digit decides
    assert ("gain", "no gain", "open")[zones(mean, half, line)[0]] == stats.zone(estimate, line)
    assert ("no worse", "worse", "not shown")[margins(mean, half, line)[0]] == stats.against_limit(estimate, line)


def test_each_look_spends_its_share_of_alpha() -> None:
    both, first, last = (chances(alone(8, looks=looks)) for looks in ((5, 8), (), ()))
    early = stats.power(5, LINE - math.log1p(-0.05), SD, 0.025)
    late = stats.power(8, LINE - math.log1p(-0.05), SD, 0.025)
    adopted = of(both, 0.05).shares["adopt"]
    assert max(early, late) - 0.01 < adopted < min(1.0, early + late)
    assert adopted < of(last, 0.05).shares["adopt"]
    # The whole risk stays below that of one look at the whole alpha.
    wrong = of(chances(Trial(8, (TrialMeasure("ttft", 0.0, LIMIT, SD),), looks=(5, 8))), 0.0)
    assert 0.025 < wrong.shares["adopt"] < 0.052
    assert of(first, 0.0).shares["adopt"] < 0.001


def test_a_pooled_variance_has_the_degrees_of_freedom_of_all_arms() -> None:
    blocks, arms = 3, 6
    df = (arms - 1) * (blocks - 1)
    shift = math.sqrt(blocks) * (LINE - math.log1p(-0.05)) / SD
    exact = 1 - float(special.nctdtr(df, shift, special.stdtrit(df, 0.95)))
    found = of(chances(alone(blocks, pooled=True, arms=arms)), 0.05).shares["adopt"]
    assert found == pytest.approx(exact, abs=0.012)
    assert found > of(chances(alone(blocks)), 0.05).shares["adopt"] + 0.05


def two_measures(blocks: int = 5, **changes: object) -> Trial:
    measures = tuple(
        TrialMeasure(name, math.log1p(-material), LIMIT, 0.01, dict.fromkeys(CLASSES, 0.01))
        for name, material in (("ttft", 0.02), ("tpot", 0.03))
    )
    return replace(Trial(blocks, measures, weights=CLASSES), **changes)  # type: ignore[arg-type]


def test_only_mixed_arms_are_workload_dependent() -> None:
    found = chances(two_measures())
    for chance in found:
        share = chance.shares["workload-dependent"]
        assert sum(chance.shares.values()) == pytest.approx(1)
        if not chance.mixed:
            assert share < 0.002
    assert of(found, 0.10, "tpot", mixed=True).shares["workload-dependent"] > 0.9


def test_classes_share_alpha_over_all_their_intervals() -> None:
    noisy = TrialMeasure("ttft", 0.0, LIMIT, 1e-9, dict.fromkeys(("chat", "code"), 0.02))
    trial = Trial(5, (noisy,), weights={"chat": 0.5, "code": 0.5})
    found = of(chances(trial, draws=100_000), 0.0).shares["workload-dependent"]
    # One gains by luck and the other loses, or the other way round, each at 5 % over two intervals.
    assert found == pytest.approx(2 * 0.025**2, abs=0.0004)


def test_a_gain_on_the_second_measure_needs_the_first_one_shown_no_worse() -> None:
    trial = two_measures()
    noisy = replace(trial, measures=(replace(trial.measures[0], sd=0.05), trial.measures[1]))
    quiet, loud = (of(chances(each), 0.10, "tpot").shares for each in (trial, noisy))
    assert quiet["adopt"] > 0.95
    assert loud["adopt"] < 0.2
    assert loud["inconclusive"] > 0.75


def test_a_guard_that_cannot_be_shown_blocks_what_it_guards() -> None:
    narrow = TrialGuard("ttft_p90", math.log1p(0.02), sd=0.05)
    guarded = of(chances(two_measures(guards=(narrow,))), 0.10)
    passed = guard_chance(narrow, 5, stats.ALPHA)
    assert 0.05 < passed < 0.4
    assert guarded.shares["adopt"] == pytest.approx(passed, abs=0.02)
    # One that shares the effect of the measure is easier to show.
    follows = of(chances(two_measures(guards=(replace(narrow, follows="ttft"),))), 0.10)
    assert follows.shares["adopt"] > 0.9


def test_an_error_guard_counts_requests() -> None:
    assert allowed_errors(298, 0.01) is None
    assert allowed_errors(299, 0.01) == 0
    assert allowed_errors(472, 0.01) == 0
    assert allowed_errors(473, 0.01) == 1
    sure = TrialGuard("error_rate", 0.01, requests=60)
    assert guard_chance(sure, 5, 0.05) == 1.0
    risky = replace(sure, error_rate=0.002)
    assert guard_chance(risky, 5, 0.05) == pytest.approx(0.998**300)
    shares = of(chances(two_measures(guards=(risky,))), 0.10).shares
    assert shares["adopt"] == pytest.approx(0.998**300, abs=0.015)


@pytest.mark.parametrize("blocks", [3, 5, 10])
def test_the_smallest_gain_is_shown_in_four_of_five_runs(blocks: int) -> None:
    measure = TrialMeasure("ttft", LINE, LIMIT, SD)
    gain = smallest_gain(measure, blocks, 0.05)
    assert gain is not None
    assert stats.power(blocks, LINE - math.log1p(-gain), SD) == pytest.approx(0.8, abs=1e-6)


def test_no_gain_is_material_where_the_line_is_infinite() -> None:
    assert smallest_gain(TrialMeasure("ttft", -math.inf, LIMIT, SD), 5, 0.05) is None


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile and a rule that fits it."""
    folder = tmp_path_factory.mktemp("plan")
    write_profile(folder / "profile", ["json", "rag", "qa"] * 14)
    facts = read_facts(read_profile(folder / "profile"))
    (folder / "experiment.toml").write_text(starter(facts, path="profile", engine="vllm"), encoding="utf-8")
    return folder


def rule(bench: Path, name: str, *changes: tuple[str, str]) -> Path:
    text = (bench / "experiment.toml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = bench / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def made(path: Path, noise: Noise | None = None, boot_ns: int | None = None) -> Plan:
    experiment = load_experiment(path)
    facts = read_facts(read_profile(experiment.profile_path))
    return make_plan(experiment, facts, noise if noise is not None else assumed_noise(), boot_ns)


def test_boots_are_arms_and_the_copy_in_blocks_and_a_pilot(bench: Path) -> None:
    plan = made(rule(bench, "arm", ("# [[arm]] ", "[[arm]] "), ('# name = "v1', 'name = "v1')))
    assert (plan.boots.arms, plan.boots.blocks, plan.boots.pilots, plan.boots.total) == (3, 5, 1, 16)
    fixed = made(rule(bench, "fixed", ("[load]", "[load]\nwarmup_rounds = 2")))
    assert fixed.boots.pilots == 0
    prewarmed = rule(
        bench, "prewarm", ('stop_timeout = "60s"', 'cache = "prewarm"'), ("[load]", "[load]\nwarmup_rounds = 2")
    )
    assert made(prewarmed).boots.pilots == 1


def test_hours_say_where_they_come_from(bench: Path, tmp_path: Path) -> None:
    path = bench / "experiment.toml"
    stated = made(path, boot_ns=20 * MINUTE_NS)
    assert stated.hours.source == "stated"
    assert stated.hours.of(11) == pytest.approx(11 / 3)
    estimated = made(path)
    assert estimated.hours.source == "estimated"
    # 95 requests of half a second at c = 1 and 2, 42 alone, 32 at each c of the sweep, a minute of c = 8.
    seconds = 360 + 0.5 * (63 + 32 / 2) + 0.5 * 42 + 0.5 * 32 * sum(1 / c for c in range(1, 9)) + 60.5
    assert estimated.hours.per_boot == pytest.approx(seconds / 3600, rel=1e-3)
    run = Synthetic({}, requests=40).write(tmp_path / "run")
    noise = measured_noise(read_run(run), load_experiment(path))
    measured = made(path, noise)
    assert measured.hours.source == "run"
    assert measured.hours.per_boot == pytest.approx(1 / 3)
    assert made(path, noise, 6 * MINUTE_NS).hours.source == "stated"


def test_measured_noise_is_that_of_arms_against_both_boots(bench: Path, tmp_path: Path) -> None:
    synthetic = Synthetic({"v1": Effect()}, blocks=60, requests=8, boot_sd=0.02, noise_sd=0.001, rule="", seed=3)
    run = read_run(synthetic.write(tmp_path / "run"))
    noise = measured_noise(run, load_experiment(bench / "experiment.toml"))
    judged = make_bench(run, load_experiment(run.path / RULE))
    pairs = contrasts.deciding_pairs(judged.contrast("v1", judged.baseline).pairs)
    for name, means in contrasts.block_means(pairs).items():
        own = float(np.std(list(means.differences.values()), ddof=1))
        assert BOTH_BOOTS * noise.observed[name] == pytest.approx(own, rel=0.15), name
        assert noise.by_measure[name] > noise.observed[name]
    assert noise.blocks == 60
    assert noise.baseline_ms["tpot"] == pytest.approx(17, rel=0.05)


def test_a_few_blocks_are_planned_with_their_upper_limit() -> None:
    spread = [0.0, 0.01, 0.02]
    assert upper(spread) == pytest.approx(2.12 * 0.01, rel=0.002)
    assert upper([0.01]) is None
    assert upper([0.01, 0.01]) is None


def test_a_run_without_two_blocks_measured_no_noise(bench: Path, tmp_path: Path) -> None:
    run = read_run(Synthetic({}, blocks=1, requests=40).write(tmp_path / "run"))
    with pytest.raises(UsageError, match="1 usable block, so no noise was measured"):
        measured_noise(run, load_experiment(bench / "experiment.toml"))


def test_a_stated_noise_is_between_copies_of_the_baseline() -> None:
    noise = stated_noise(0.02)
    assert noise.of("ttft") == pytest.approx(0.02 * math.sqrt(0.75))
    assert noise.of_guard("ttft_p90") == pytest.approx(0.055 / 0.0232 * noise.of("ttft"))
    assert noise.of_guard("throughput@c=8") == noise.of("tpot")
    assert noise.of_class("ttft", "chat", 16) > noise.of_class("ttft", "chat", 100)


def test_guards_that_the_profile_cannot_support_are_refused(bench: Path) -> None:
    path = rule(bench, "observed", ('deciding = "closed"', 'deciding = "observed"'))
    with pytest.raises(RuleError, match="error_rate needs 299 requests per arm, and this profile gives 210") as caught:
        made(path)
    assert caught.value.exit_code == 2
    assert caught.value.line > 0


def test_a_design_that_decides_nothing_says_what_would_help(bench: Path) -> None:
    path = rule(bench, "weak", ("blocks = 5 ", "blocks = 3 "), ("requests_per_boot = 95", "requests_per_boot = 300"),
                ("absolute_ms = 2", "absolute_ms = 0"))  # fmt: skip
    (text,) = [text for text in made(path, stated_noise(0.06)).warnings if "next to nothing" in text]
    needed = stats.required_blocks(LINE - math.log1p(-0.05), 0.06 * BOTH_BOOTS)
    assert f"A gain of 5 % on TTFT needs {needed} blocks" in text
    assert not any("next to nothing" in text for text in made(path, stated_noise(0.005)).warnings)


def test_a_line_above_the_baseline_is_told(bench: Path) -> None:
    plan = made(rule(bench, "line", ("absolute_ms = 2", "absolute_ms = 25")))
    assert any("No gain on TTFT can be material" in text for text in plan.warnings)
    assert plan_document(plan)["measures"][0]["line"] is None
    assert "never" in format_plan(plan)


def test_the_text_fits_a_terminal_and_the_document_is_strict(bench: Path, tmp_path: Path) -> None:
    run = Synthetic({}, requests=40).write(tmp_path / "run")
    looked = rule(bench, "looks", ("blocks = 5 ", "looks = [3, 5]\nblocks = 5 "))
    experiment = load_experiment(looked)
    for noise in (assumed_noise(), stated_noise(0.01), measured_noise(read_run(run), experiment)):
        plan = made(looked, noise)
        text = format_plan(plan)
        assert max(map(len, text.splitlines())) <= 80
        document = json.loads(encode_pretty(plan_document(plan)))
        assert document["format"] == "firsttoken/plan"
        assert document["boots"]["total"] == 11
        assert f"{len(probe_set(experiment).probes)} of the functional guard" in text
        assert [window["requests"] for window in document["windows"] if window["deciding"]] == [63, 32]
        assert ("ASSUMPTION" in text) == (noise.source == "assumed") == document["noise"]["assumed"]


def invoke(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(command, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_the_command_prints_the_plan(bench: Path) -> None:
    code, text = invoke(bench / "experiment.toml", "--sd", "2", "--boot-time", "20min")
    assert code == 0
    assert "3 h 40 min of this machine, 20 min 00 s a boot, as you say" in text
    assert "2.00 % between two copies of the baseline, as you say" in text
    code, text = invoke(bench / "experiment.toml", "--json")
    assert json.loads(text)["rule"]["id"] == "profile-1"


def test_the_command_refuses_what_does_not_go_together(bench: Path) -> None:
    with pytest.raises(UsageError, match="--run and --sd"):
        invoke(bench / "experiment.toml", "--sd", "2", "--run", bench)
    with pytest.raises(UsageError, match="--boot-time '20' is not a duration"):
        invoke(bench / "experiment.toml", "--boot-time", "20")
    assert invoke(bench / "experiment.toml", "--sd", "0")[0] == 2


def test_a_measure_of_which_more_is_better_is_planned_with_its_sign(bench: Path) -> None:
    measure = TrialMeasure("throughput@c=2", -math.log1p(0.03), -math.log1p(-0.05), 0.01, higher=True)
    gain = smallest_gain(measure, 5, 0.05)
    assert gain is not None
    assert stats.power(5, -math.log1p(0.03) + math.log1p(gain), 0.01) == pytest.approx(0.8, abs=1e-6)
    table = '[[measure]]\nname = "throughput@c=2"\nmaterial = { relative = 0.03 }\n[[guard]]\nmetric = "ttft_p90"'
    also = ('"closed c=8 for 60s"', '"closed c=8 for 60s", "closed c=2 for 60s"')
    plan = made(
        rule(
            bench,
            "rate",
            ('[[guard]]                   # what an arm must be shown not to break\nmetric = "ttft_p90"', table),
            also,
        )
    )
    text = format_plan(plan)
    assert "throughput at c = 2 +10 %" in text
    assert plan.measures[2].line == pytest.approx(-math.log1p(0.03))


def test_a_line_of_nothing_has_no_sign(bench: Path) -> None:
    found = re.search(r"material = \{[^}]*\}", (bench / "experiment.toml").read_text(encoding="utf-8"))
    assert found is not None
    text = format_plan(made(rule(bench, "bare", (found[0], "material = { relative = 0.0 }"))))
    assert "−0.0 %" not in text
    assert re.search(r"TTFT, sd 2\.\d\d % +0\.0 %", text)


def test_without_a_material_line_all_arms_share_alpha() -> None:
    bare = TrialMeasure("ttft", 0.0, LIMIT, SD, share=1 / 3)
    found = of(chances(Trial(5, (bare,))), 0.0).shares["adopt"]
    assert found == pytest.approx(0.05 / 3, abs=0.004)
