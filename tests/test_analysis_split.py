"""A workload split: what an engine for each class is worth, chosen honestly, and where the line lies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from synthetic_run import Effect, Synthetic
from test_analysis_report import FALLBACK, arm_of, judged, measure_of, squeeze, words

from analysis import stats
from analysis.bench import Bench, make_bench
from analysis.split.held_out import Floats, choice, chosen_values, held_out_estimate, mix_values, picks
from analysis.split.line import MixLine, mix_line
from analysis.split.shown import split_lines
from analysis.split.worth import ClassChoice, WorkloadSplit, splits
from analysis.stats import Estimate
from analysis.verdict import ClassFinding, MeasureFinding
from profiles.experiment import load_experiment
from profiles.records import Outcome
from profiles.runs import read_run

LONGER = {"chat": 0.03, "json_extraction": -0.15, "rag_long": -0.12, "short_qa": 0.09}
LINE = math.log(0.97)


def mixed(tpot: Mapping[str, float] = LONGER, **more: Any) -> Synthetic:
    return Synthetic({"v3": Effect(tpot=tpot)}, **more)


def only(document: dict[str, Any], arm: str = "v3") -> dict[str, Any]:
    (found,) = arm_of(document, arm)["split"]
    assert isinstance(found, dict)
    return found


def bench_of(path: Path, run: Synthetic) -> Bench:
    folder = run.write(path / "run")
    return make_bench(read_run(folder), load_experiment(folder / "experiment.toml"))


def finding(measure: str, line: float = LINE, **directions: Any) -> MeasureFinding:
    classes = tuple(ClassFinding(name, None, direction) for name, direction in directions.items())
    return MeasureFinding(measure, "open", "no worse", Estimate(5, 0.0, 0.01, 0.01), line, classes=classes)


def test_a_split_is_worth_the_better_of_both_in_every_class(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, mixed())
    split = only(document)
    truth = math.exp(sum(math.log1p(min(change, 0.0)) for change in LONGER.values()) / 4) - 1
    assert split["low"] < truth < split["high"]
    assert split["high"] - split["low"] < 0.03
    assert {item["class"]: item["arm"] for item in split["classes"]} == {
        "chat": "v0",
        "json_extraction": "v3",
        "rag_long": "v3",
        "short_qa": "v0",
    }
    assert [item["share"] for item in split["classes"]] == [0.25] * 4
    assert {item["same_choice_in_blocks"] for item in split["classes"]} == {5}
    tpot = measure_of(arm_of(document, "v3"), "tpot")
    assert split["arm_for_all"] == {key: tpot[key] for key in ("change", "low", "high")}
    (ttft,) = split["beside"]
    assert ttft["measure"] == "ttft"
    assert ttft["low"] < 0 < ttft["high"]


def test_the_line_is_the_share_at_which_the_mix_gains(tmp_path: Path) -> None:
    line = only(judged(tmp_path, mixed())[0])["line"]
    gain, rest = math.log(0.85 * 0.88) / 2, math.log(1.03 * 1.09) / 2
    assert line["classes"] == ["json_extraction", "rag_long"]
    assert line["low"] < (LINE - rest) / (gain - rest) < line["high"]
    assert line["low"] < line["share"] < line["high"]
    assert line["share_no_slower"] == pytest.approx(rest / (rest - gain), abs=0.03)
    assert (line["share_now"], line["change"]) == (0.5, pytest.approx(-0.03))


def test_shares_are_those_of_the_recorded_requests(tmp_path: Path) -> None:
    def relabel(arm: str, block: int, outcome: Outcome) -> Outcome:
        moved = outcome.request % 8 == 3  # every other one of short_qa
        return msgspec.structs.replace(outcome, workload="json_extraction") if moved else outcome

    run = mixed({"json_extraction": -0.15, "short_qa": 0.09}, requests=80, edit_outcome=relabel)
    run.boot_sd = run.noise_sd = 0.0
    split = only(judged(tmp_path, run)[0])
    assert {item["class"]: item["share"] for item in split["classes"]} == {
        "chat": 0.25,
        "json_extraction": 0.375,
        "rag_long": 0.25,
        "short_qa": 0.125,
    }
    assert split["line"]["share_now"] == 0.375
    # Those that were moved still decode 9 % slower.
    assert split["change"] == pytest.approx(math.exp(0.25 * math.log(0.85) + 0.125 * math.log(1.09)) - 1, abs=1e-6)


def test_the_terminal_says_who_goes_where_what_it_is_worth_and_where_the_line_lies(tmp_path: Path) -> None:
    document, result = judged(tmp_path, mixed())
    text = squeeze(result.stdout)
    assert "split: json_extraction and rag_long on v3, the rest on v0: TPOT −7." in text
    assert "on the recorded mix, if each had a machine of its own; v3 for all −4." in text
    assert "; TTFT " in text.partition("for all")[2]
    assert "the line: v3 alone would gain 3 % on the mix from 43 % [" in text
    assert "of requests in those classes on; now 50 %" in text
    assert "an upper bound, not measured: on one chip two engines share its compute" in text
    assert max(map(len, result.stdout.splitlines())) <= 80
    # Ten requests: three meet one other in flight, one meets two. Half of them go to each instance.
    assert "(mean c 1.2 and 1.2, now 1.5)" in text
    assert only(document)["limits"][-1] == "a router has to know the class"


def test_limits_name_the_kv_cache_that_two_engines_would_have_to_share(tmp_path: Path) -> None:
    run = Synthetic({"v3": Effect(tpot=LONGER, kv_tokens=90_000)}, baseline=Effect(kv_tokens=100_000))
    run.edit_manifest = lambda manifest: manifest["profile"].pop("arrivals_at")
    limits = only(judged(tmp_path, run)[0])["limits"]
    assert (
        limits[1]
        == "each holds the weights, so that less is left for the KV cache than the 90,000 tokens of one engine"
    )
    assert limits[2] == "each meets fewer requests at once, with a prefix cache of its own"


@pytest.mark.parametrize(
    "effect",
    [
        pytest.param(Effect(tpot=-0.1), id="adopted"),
        pytest.param(Effect(ttft=0.2, tpot=LONGER), id="rejected for its first token"),
        pytest.param(
            Effect(tpot=LONGER, findings=(FALLBACK,)),
            id="rejected for its boot log",
        ),
    ],
)
def test_only_a_workload_dependent_arm_has_a_split(tmp_path: Path, effect: Effect) -> None:
    document, result = judged(tmp_path, Synthetic({"v3": effect}))
    assert words(document)["v3"] in ("adopt", "reject")
    assert arm_of(document, "v3")["split"] == []
    assert "split:" not in result.stdout


def test_two_blocks_give_a_line_without_a_worth(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, mixed(blocks=2))
    (split,) = splits(bench, "v3", [finding("tpot", json_extraction="gain", short_qa="loss", chat="open")])
    assert split.worth is None
    assert split.line is not None
    assert "TPOT needs 3 blocks on the recorded mix" in next(iter(split_lines([split])))


def test_a_line_in_milliseconds_moves_with_the_mix(tmp_path: Path) -> None:
    """5 ms are 2.5 % of a short answer and nothing of a long one: the more short ones, the stricter the line."""
    effect = Effect(ttft={"short_qa": -0.2, "rag_long": 0.15})
    run = Synthetic({"v3": effect}, boot_sd=0.0, noise_sd=0.0)
    bench = bench_of(tmp_path, run)
    found = finding("ttft", short_qa="gain", rag_long="loss", chat="open", json_extraction="open")
    (split,) = splits(bench, "v3", [found])
    base = {name: math.log(value) for name, value in geomeans(bench).items()}
    share = split.line
    assert share is not None
    others = [name for name in base if name != "short_qa"]
    level = share * base["short_qa"] + (1 - share) * sum(base[name] for name in others) / 3
    effects = share * math.log(0.8) + (1 - share) * math.log(1.15) / 3
    assert effects == pytest.approx(math.log1p(-5 / math.exp(level)), abs=1e-4)
    assert effects < math.log(0.98)
    assert (split.line_low, split.line_high) == pytest.approx((share, share), abs=1e-6)


def geomeans(bench: Bench) -> dict[str, float]:
    rows = bench.frame.filter((pl.col("arm") == "v0") & pl.col("deciding"))
    means = rows.group_by("workload").agg((pl.col("ttft_ns") / 1e6).log().mean().exp())
    return dict(means.iter_rows())


def test_where_several_arms_split_every_class_gets_the_best_of_them(tmp_path: Path) -> None:
    other = Effect(tpot={"chat": -0.08, "json_extraction": 0.09, "rag_long": 0.0, "short_qa": -0.06})
    run = Synthetic({"v3": Effect(tpot=LONGER), "v4": other})
    document, result = judged(tmp_path, run)
    (best,) = document["best_split"]
    assert {item["class"]: item["arm"] for item in best["classes"]} == {
        "chat": "v4",
        "json_extraction": "v3",
        "rag_long": "v3",
        "short_qa": "v4",
    }
    truth = math.exp(math.log(0.92 * 0.85 * 0.88 * 0.94) / 4) - 1
    assert best["low"] < truth < best["high"]
    said = "best split over all arms: json_extraction and rag_long on v3, the rest on v4: TPOT −1"
    assert said in squeeze(result.stdout)
    assert judged(tmp_path / "one", mixed())[0]["best_split"] == []


def split_of(**changed: Any) -> WorkloadSplit:
    worth = Estimate(5, -0.05, 0.01, 0.01)
    choices = (
        ClassChoice("code", "v3", 0.25, worth, 5, 5),
        ClassChoice("json", "v3", 0.25, worth, 5, 5),
        ClassChoice("chat", "v0", 0.5, None, 3, 5),
    )
    whole = WorkloadSplit(
        arm="v3",
        measure="tpot",
        choices=choices,
        worth=worth,
        whole=Estimate(5, 0.01, 0.01, 0.01),
        beside=(),
        gaining=("code", "json"),
        line=0.61,
        line_low=0.55,
        line_high=0.68,
        even=0.4,
        share_now=0.42,
        material=-0.03,
        limits=("a router has to know the class",),
    )
    return replace(whole, **changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {},
            "v3 alone would gain 3 % on the mix from 61 % [55 %, 68 %] of requests in those classes on; now 42 %",
        ),
        ({"share_now": 0.7}, "; now 70 %, beyond it"),
        ({"share_now": 0.6}, "on; now 60 %"),
        ({"gaining": ("json",)}, "of requests in json on; now"),
        ({"material": -0.0241}, "v3 alone would gain 2.4 % on the mix"),
        ({"line": None}, "v3 alone would gain 3 % on the mix at no share of requests in those classes; now 42 %"),
        ({"line": 0.0}, "at any share of requests in those classes; now 42 %"),
        ({"line_low": None, "line_high": None}, "from 61 % of requests"),
        ({"material": None}, "no gain of v3 on the mix can be material"),
    ],
)
def test_the_line_in_words(changed: dict[str, Any], said: str) -> None:
    _, line, limits = split_lines([split_of(**changed)])
    assert said in line
    assert limits == "limits of the split: a router has to know the class"


def test_a_choice_that_hangs_on_one_block_is_called_unsure() -> None:
    first, *_ = split_lines([split_of()])
    assert first.startswith("split: code and json on v3, the rest on v0: TPOT −4.9 % [−5.8 %, −3.9 %] on the recorded")
    assert first.endswith("cannot tell which arm suits chat")
    assert list(split_lines([])) == []


def test_each_block_is_valued_with_the_choice_of_the_others() -> None:
    differences = np.array([[[0.0, 0.0, 0.0]], [[-3.0, 1.0, 1.0]], [[1.0, np.nan, np.nan]]])
    # Without the first block arm 1 loses; without another one it wins. Arm 2 is known in one block alone.
    assert picks(differences).tolist() == [[0, 1, 1]]
    assert choice(differences).tolist() == [1]
    assert chosen_values(differences, picks(differences)).tolist() == [[0.0, 1.0, 1.0]]
    # The means decide, whatever the number of blocks behind them: −2.5 against −2.
    gaps = np.array([[[0.0, 0.0, 0.0]], [[-2.0, -2.0, -2.0]], [[-1.0, -2.5, np.nan]]])
    assert picks(gaps).tolist() == [[2, 1, 1]]
    assert choice(gaps).tolist() == [1]


def test_the_mix_weighs_by_requests_and_leaves_out_what_is_not_known() -> None:
    values = np.array([[-0.1, np.nan, np.nan], [0.2, 0.2, np.nan]])
    counts = np.array([[30.0, 0.0, 0.0], [10.0, 10.0, 0.0]])
    assert mix_values(values, counts)[:2].tolist() == [pytest.approx(-0.025), pytest.approx(0.2)]
    assert np.isnan(mix_values(values, counts)[2])
    assert mix_values(values, counts, np.array([False, True]))[:2].tolist() == [pytest.approx(0.05), pytest.approx(0.2)]


def honest(differences: Floats) -> Estimate:
    chosen = picks(differences)
    weights = np.ones(chosen.shape)
    unsure = (chosen != choice(differences)[:, None]).any(axis=1)
    moved = chosen_values(differences, chosen)
    found = held_out_estimate(mix_values(moved, weights), mix_values(moved, weights, unsure), stats.ALPHA)
    assert found is not None
    return found


def flattered(differences: Floats) -> Estimate:
    chosen = np.repeat(choice(differences)[:, None], differences.shape[2], axis=1)
    found = stats.paired_block_t(mix_values(chosen_values(differences, chosen), np.ones(chosen.shape)).tolist())
    assert found is not None
    return found


VALUES = npst.arrays(np.float64, (1, 4, 5), elements=st.floats(-0.3, 0.3, allow_subnormal=False))


@settings(max_examples=60)
@given(VALUES, st.permutations(range(5)))
def test_the_order_of_the_blocks_changes_nothing(values: Floats, order: Sequence[int]) -> None:
    both = np.concatenate([np.zeros((1, 4, 5)), np.round(values, 4)])
    ours, theirs = honest(both), honest(both[:, :, list(order)])
    assert theirs.mean == pytest.approx(ours.mean, abs=1e-12)
    assert theirs.half_width == pytest.approx(ours.half_width, abs=1e-12)


@settings(max_examples=60)
@given(VALUES)
def test_a_choice_by_other_blocks_never_looks_better_than_one_by_the_same(values: Floats) -> None:
    both = np.concatenate([np.zeros((1, 4, 5)), values])
    assert honest(both).mean >= flattered(both).mean - 1e-12


def simulated(arms: int, blocks: int, effects: Sequence[float], seed: int) -> list[Floats]:
    """300 data sets: boots with a factor of their own, and one for each class; every arm has these effects."""
    draw = np.random.default_rng(seed)
    classes = len(effects)
    found = []
    for _ in range(300):
        boots = draw.normal(0, 0.0042, (arms + 1, 1, blocks)) + draw.normal(0, 0.006, (arms + 1, classes, blocks))
        ours = np.array(effects)[:, None] + boots[1:] - boots[:1]
        found.append(np.concatenate([np.zeros((1, classes, blocks)), ours]))
    return found


@pytest.mark.parametrize(("arms", "blocks"), [(1, 3), (1, 5), (3, 5)])
def test_choosing_among_arms_that_do_nothing_is_worth_nothing(arms: int, blocks: int) -> None:
    data = simulated(arms, blocks, [0.0] * 5, seed=blocks)
    ours = [honest(differences) for differences in data]
    covered = [item.low <= 0 <= item.high for item in ours if item.low is not None and item.high is not None]
    assert np.mean(covered) >= 0.88
    means = [item.mean for item in ours]
    assert abs(np.mean(means)) < 3 * np.std(means) / math.sqrt(len(means))
    flattering = [flattered(differences).mean for differences in data]
    assert np.mean(flattering) < -10 * np.std(flattering) / math.sqrt(len(flattering))


def test_the_worth_of_clear_effects_is_covered_as_any_estimate() -> None:
    ours = [honest(differences) for differences in simulated(1, 5, [-0.15, -0.1, -0.05, 0.05, 0.1], seed=7)]
    covered = [item.low <= -0.06 <= item.high for item in ours if item.low is not None and item.high is not None]
    assert 0.86 <= np.mean(covered) <= 0.94


@settings(max_examples=60)
@given(
    st.lists(st.floats(-0.3, -0.04), min_size=3, max_size=3),
    st.lists(st.floats(-0.05, 0.3), min_size=3, max_size=3),
)
def test_the_interval_of_the_line_holds_its_estimate(gaining: list[float], others: list[float]) -> None:
    found = mix_line(gaining, others, lambda share: LINE, stats.ALPHA)
    if found.share is not None:
        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low <= found.share <= found.high <= 1


@pytest.mark.parametrize(
    ("gaining", "others", "line", "expected"),
    [
        ([-0.1] * 3, [0.1] * 3, -0.05, MixLine(0.75, 0.75, 0.75)),
        ([-0.1] * 3, [-0.06] * 3, -0.05, MixLine(0.0, 0.0, 0.0)),
        ([-0.04] * 3, [0.1] * 3, -0.05, MixLine(None, None, None)),
        ([-0.1] * 3, [0.1] * 3, -math.inf, MixLine(None, None, None)),
        ([-0.1], [0.1], -0.05, MixLine(0.75, None, None)),
    ],
)
def test_the_line_where_blocks_agree(gaining: list[float], others: list[float], line: float, expected: MixLine) -> None:
    found = mix_line(gaining, others, lambda share: line, stats.ALPHA)
    for ours, theirs in ((found.share, expected.share), (found.low, expected.low), (found.high, expected.high)):
        assert ours == (None if theirs is None else pytest.approx(theirs, abs=1e-6))


def test_the_bounds_of_the_line_are_where_the_block_interval_just_holds_it() -> None:
    gaining, others = np.array([-0.12, -0.10, -0.13, -0.09]), np.array([0.05, 0.08, 0.04, 0.06])
    found = mix_line(gaining.tolist(), others.tolist(), lambda share: LINE, stats.ALPHA)
    assert found.low is not None
    assert found.high is not None
    mixes = [share * gaining + (1 - share) * others for share in (found.low, found.high)]
    below, above = (stats.paired_block_t(values.tolist()) for values in mixes)
    assert below is not None
    assert above is not None
    assert below.low == pytest.approx(LINE, abs=1e-9)  # at a smaller share the mix is shown to gain less than asked
    assert above.high == pytest.approx(LINE, abs=1e-9)


def test_a_line_that_no_share_is_shown_to_cross_reaches_to_the_end() -> None:
    found = mix_line([-0.2, 0.1, -0.1], [0.05, 0.06, 0.04], lambda share: LINE, stats.ALPHA)
    assert found.high == 1.0
    assert found.low is not None
    assert 0 < found.low < 1


@pytest.mark.parametrize("blocks", [3, 5])
def test_the_interval_of_the_line_covers_the_truth_nine_times_in_ten(blocks: int) -> None:
    draw = np.random.default_rng(blocks)
    truth = (LINE - 0.06) / (-0.12 - 0.06)
    hits = []
    for _ in range(250):
        shared, own = draw.normal(0, 0.012, blocks), draw.normal(0, 0.012, blocks)
        found = mix_line((-0.12 + shared).tolist(), (0.06 + (shared + own) / 2).tolist(), lambda share: LINE, 0.05)
        hits.append(found.low is not None and found.high is not None and found.low <= truth <= found.high)
    assert 0.86 <= np.mean(hits) <= 0.95
