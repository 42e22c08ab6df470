"""Acceptance against gain: lengths rather than rates, the cost of a step, and the order over classes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import Effect, Synthetic
from test_analysis_report import arm_of, judged, squeeze

from analysis.acceptance import AcceptanceFinding, acceptance_by_class
from analysis.acceptance_gain import (
    AcceptanceGain,
    acceptance_gain_document,
    acceptance_gain_lines,
    acceptance_gains,
    draftless_classes,
    rank_correlation,
)
from analysis.stats import Estimate
from analysis.verdict import ClassFinding, MeasureFinding
from profiles.runs import Boot, BootFacts, WindowFacts

type Drafts = dict[str, tuple[AcceptanceFinding | None, AcceptanceFinding | None]]

# The article's acceptance rates of two and of three draft tokens, as lengths: 1 + rate × draft length.
LENGTHS = {
    "json": (2.99, 3.949),
    "rag": (2.8, 3.6),
    "code": (2.6, 3.2),
    "short_qa": (2.292, 2.314),
    "chat": (2.164, 2.296),
}
CHANGES = {"json": -0.155, "rag": -0.14, "code": -0.115, "short_qa": 0.1, "chat": 0.031}


def accepted(length: float | None, draft: int = 2, source: Any = "counters") -> AcceptanceFinding:
    return AcceptanceFinding(length, None if length is None else (length - 1) / draft, None, source)


def drafts_of(lengths: dict[str, tuple[float, float]]) -> Drafts:
    return {name: (accepted(base), accepted(own, 3)) for name, (base, own) in lengths.items()}


def tpot_of(changes: dict[str, float], half_width: float = 0.01) -> list[MeasureFinding]:
    classes = tuple(
        ClassFinding(name, Estimate(5, math.log1p(change), 0.01, half_width), "open")
        for name, change in changes.items()
    )
    return [MeasureFinding("ttft", "open", "no worse"), MeasureFinding("tpot", "open", "no worse", classes=classes)]


def gains_of(lengths: dict[str, tuple[float, float]] = LENGTHS, **changes: float) -> tuple[AcceptanceGain, ...]:
    return acceptance_gains(drafts_of(lengths), tpot_of(CHANGES | changes))


def test_classes_come_by_the_length_of_the_baseline_with_their_gain() -> None:
    found = gains_of()
    assert [item.workload for item in found] == ["chat", "short_qa", "code", "rag", "json"]
    json = found[-1]
    assert (json.base_length, json.own_length) == (2.99, 3.949)
    assert (json.base_rate, json.own_rate) == pytest.approx((0.995, 0.983))
    assert json.estimate is not None
    assert json.estimate.mean == pytest.approx(math.log(0.845))


def test_a_step_costs_what_tpot_and_length_say_with_the_interval_of_tpot() -> None:
    json = gains_of()[-1]
    assert json.step is not None
    assert math.exp(json.step.mean) == pytest.approx(0.845 * 3.949 / 2.99)
    assert json.step.half_width == 0.01
    assert json.more_tokens == pytest.approx(math.log(3.949 / 2.99))


@given(st.floats(1.0, 4.0), st.floats(1.0, 5.0), st.floats(-0.5, 0.5))
def test_a_class_gains_exactly_where_its_tokens_outweigh_the_cost_of_a_step(
    base: float, own: float, change: float
) -> None:
    (item,) = acceptance_gains(drafts_of({"a": (base, own)}), tpot_of({"a": change}))
    assert item.step is not None
    assert item.more_tokens is not None
    assert item.step.mean - item.more_tokens == pytest.approx(math.log1p(change))


def test_what_one_side_does_not_tell_is_never_made_up() -> None:
    drafts: Drafts = {
        "a": (None, accepted(3.0)),
        "b": (accepted(2.0), None),
        "c": (None, None),
        "d": (accepted(None, source="answers"), accepted(None, source="answers")),
        "e": (AcceptanceFinding(None, 0.7, None, "answers"), AcceptanceFinding(None, 0.6, None, "answers")),
        "f": (accepted(2.0), accepted(3.0)),
    }
    found = {item.workload: item for item in acceptance_gains(drafts, tpot_of({"a": 0.1, "b": 0.1, "e": 0.1}))}
    assert found.keys() == {"a", "b", "e", "f"}
    assert all(item.step is None and item.more_tokens is None for name, item in found.items() if name != "f")
    assert (found["e"].base_rate, found["e"].own_rate) == (0.7, 0.6)
    assert (found["f"].step, found["f"].estimate) == (None, None)
    assert list(acceptance_gain_lines(tuple(found.values()))) == []
    assert acceptance_gain_document(()) is None


def window(workload: str, counters: dict[str, float] | None, void: str | None = None) -> WindowFacts:
    return WindowFacts(
        name=f"single-{workload}",
        kind="single",
        c=1,
        deciding=False,
        workload=workload,
        started_ns=0,
        ended_ns=1,
        requests=5,
        counters=counters,
        counters_void=void,
    )


def boot(*windows: WindowFacts) -> Boot:
    facts = BootFacts(arm="v0", block=1, slot=1, status="done", argv=[], wall_ns=0, mono_ns=0, windows=list(windows))
    return Boot(Path("boot"), facts, ())


PLAIN = {"vllm:generation_tokens_total": 90.0}


def test_an_engine_drafts_nothing_if_its_counters_are_there_and_show_none() -> None:
    drafting = PLAIN | {"vllm:spec_decode_num_drafts_total": 9.0}
    idle = PLAIN | {"llamacpp:spec_decode_num_drafts_total": 0.0}
    boots = [
        boot(window("a", PLAIN), window("b", PLAIN), window("c", None), window("d", PLAIN, "restarted")),
        boot(window("a", idle), window("b", drafting), window("c", PLAIN), window("e", {})),
    ]
    assert draftless_classes(boots) == {"a"}


def test_a_baseline_without_drafts_brings_one_token_a_step() -> None:
    drafts: Drafts = {"a": (None, accepted(2.0)), "b": (None, accepted(3.0, source="gauge")), "c": (None, None)}
    found = acceptance_gains(drafts, tpot_of({"a": -0.4, "b": -0.5, "c": 0.0}), frozenset("abc"))
    assert {item.workload: item.base_length for item in found} == {"a": 1.0, "b": None}
    step = next(item.step for item in found if item.workload == "a")
    assert step is not None
    assert math.exp(step.mean) == pytest.approx(1.2)


def drafting(generated: float, drafts: float, drafted: float, accepted_tokens: float) -> dict[str, float]:
    return {
        "llamacpp:tokens_predicted_total": generated,
        "llamacpp:spec_decode_num_drafts_total": drafts,
        "llamacpp:spec_decode_num_draft_tokens_total": drafted,
        "llamacpp:spec_decode_num_accepted_tokens_total": accepted_tokens,
    }


def test_a_step_without_a_draft_is_a_step_too() -> None:
    """llama.cpp with n-grams: 41 drafts in 207 steps brought 44 tokens. That is not two tokens a step."""
    found = acceptance_by_class([boot(window("a", drafting(256, 41, 280, 44)))])["a"]
    assert found.length == pytest.approx(1 + 44 / 41)
    assert found.tokens == pytest.approx((256 - 5) / (256 - 5 - 44))  # 5 requests, whose first tokens are prefill
    (gain,) = acceptance_gains({"a": (None, found)}, tpot_of({"a": -0.1}), frozenset("a"))
    assert gain.step is not None
    assert math.exp(gain.step.mean) == pytest.approx(0.9 * 251 / 207)
    assert next(acceptance_gain_lines((gain,))).endswith("a 1.00 → 1.21, TPOT −10.0 %")
    # A window of the same class in which nothing was drafted is 95 steps of one token.
    both = acceptance_by_class([boot(window("a", drafting(256, 41, 280, 44)), window("a", drafting(100, 0, 0, 0)))])[
        "a"
    ]
    assert both.length == found.length
    assert both.tokens == pytest.approx((256 - 5 + 95) / (256 - 5 - 44 + 95))


def test_where_every_step_has_a_draft_the_length_is_what_a_step_brings() -> None:
    found = acceptance_by_class([boot(window("a", drafting(256, 60, 240, 190)))])["a"]  # one step of 61 had none
    assert found.tokens == found.length == pytest.approx(1 + 190 / 60)


def test_the_rank_correlation_needs_four_classes_and_says_whose_length_it_takes() -> None:
    ranks = rank_correlation(gains_of())
    assert ranks is not None
    # Gains rise with the length but for chat and short Q&A, which change places: 1 − 6 · 2 / (5 · 24).
    assert (ranks.classes, ranks.by) == (5, "baseline")
    assert ranks.value == pytest.approx(0.9)
    assert ranks.shown
    assert rank_correlation(gains_of(dict(list(LENGTHS.items())[:3]))) is None
    flat = {name: (1.0, own) for name, (_, own) in LENGTHS.items()}
    by_arm = rank_correlation(gains_of(flat))
    assert by_arm is not None
    assert by_arm.by == "arm"
    assert by_arm.value == pytest.approx(0.9)
    assert rank_correlation(gains_of({name: (1.0, 2.0) for name in LENGTHS})) is None


def test_the_lines_name_the_ends_the_order_and_the_break_even() -> None:
    first, second = acceptance_gain_lines(gains_of())
    assert first == (
        "acceptance (tokens a step; rates of other draft lengths do not compare): "
        "json 2.99 → 3.95, TPOT −15.5 %; short_qa 2.29 → 2.31, TPOT +10.0 %; "
        "the gain follows the baseline's length (rank correlation +0.90 over 5 classes)"
    )
    assert second == (
        "a step costs +10.6 % (by class +8.9 % to +11.6 %), so a draft pays from 11 % more tokens a step on: "
        "json +32 %, rag +29 %, code +23 %, chat +6 %, short_qa +1 %"
    )


def test_an_order_that_chance_explains_is_not_claimed() -> None:
    first, _ = acceptance_gain_lines(gains_of(json=0.2, rag=-0.1, code=0.05))
    assert "no order by the baseline's length is shown (rank correlation " in first
    turned, _ = acceptance_gain_lines(gains_of(json=0.3, rag=0.2, code=0.15, short_qa=0.1, chat=0.05))
    assert "the gain runs against the baseline's length (rank correlation −1.00 over 5 classes)" in turned


def test_one_class_has_an_interval_and_few_have_no_order() -> None:
    first, second = acceptance_gain_lines(gains_of({"json": LENGTHS["json"]}))
    assert first.endswith("json 2.99 → 3.95, TPOT −15.5 %")
    assert second.startswith("a step costs +11.6 % [+10.5 %, +12.7 %], so a draft pays")
    cheaper = list(acceptance_gain_lines(acceptance_gains(drafts_of({"a": (2.0, 2.2)}), tpot_of({"a": -0.3}))))
    assert cheaper[1] == "a step costs −23.0 % [−23.8 %, −22.2 %]"


def test_classes_whose_steps_differ_in_cost_have_a_break_even_of_their_own() -> None:
    """8 % more tokens are short of the usual cost, yet the class gains: its own step is cheaper."""
    odd = LENGTHS | {"rag": (2.5, 2.7)}
    _, second = acceptance_gain_lines(gains_of(odd, rag=-0.133))
    assert "so a draft pays from" not in second
    assert second.startswith("a step costs +9.4 % (by class −6.4 % to +11.6 %), so each class has a break-even of its")
    assert "json +32 % for +12 %" in second
    assert "rag +8 % for −6 %" in second


def test_one_block_tells_nothing_of_what_a_step_costs() -> None:
    bare = [replace(item, classes=tuple(_without_interval(part) for part in item.classes)) for item in tpot_of(CHANGES)]
    found = acceptance_gains(drafts_of(LENGTHS), bare)
    assert found[0].estimate is not None
    assert list(acceptance_gain_lines(found)) == []


def _without_interval(item: ClassFinding) -> ClassFinding:
    assert item.estimate is not None
    return replace(item, estimate=Estimate(1, item.estimate.mean))


def test_an_arm_that_drafts_as_the_baseline_has_nothing_to_say() -> None:
    same = {name: (base, 1.01 * base) for name, (base, _) in LENGTHS.items()}
    assert list(acceptance_gain_lines(gains_of(same))) == []
    assert len(gains_of(same)) == 5


def run_of(baseline: Effect, arm: Effect, **more: Any) -> Synthetic:
    return Synthetic({"v3": arm}, baseline=baseline, **more)


ARM = Effect(
    tpot={"json_extraction": -0.16, "rag_long": -0.15, "short_qa": 0.09, "chat": 0.03},
    acceptance={"json_extraction": 2.949, "rag_long": 2.6, "short_qa": 1.314, "chat": 1.4},
)
BASE = Effect(acceptance={"json_extraction": 1.99, "rag_long": 1.9, "short_qa": 1.292, "chat": 1.25})


def test_a_run_shows_acceptance_against_gain(tmp_path: Path) -> None:
    document, result = judged(tmp_path, run_of(BASE, ARM))
    gain = arm_of(document, "v3")["acceptance_gain"]
    assert [item["class"] for item in gain["classes"]] == ["chat", "short_qa", "rag_long", "json_extraction"]
    json = gain["classes"][-1]
    assert (json["baseline_length"], json["arm_length"]) == (pytest.approx(2.99), pytest.approx(3.949))
    assert (json["baseline_rate"], json["arm_rate"]) == (pytest.approx(1.99 / 3), pytest.approx(2.949 / 3))
    assert json["more_tokens"] == pytest.approx(3.949 / 2.99 - 1)
    assert json["tpot"]["low"] < -0.16 < json["tpot"]["high"]
    assert json["step"]["low"] < 0.84 * 3.949 / 2.99 - 1 < json["step"]["high"]
    # Chat and short Q&A change places, which a rank correlation over four classes cannot tell from chance.
    assert gain["rank_correlation"] == {
        "value": pytest.approx(0.8),
        "p": pytest.approx(1 / 3),
        "classes": 4,
        "length_of": "baseline",
    }
    text = squeeze(result.stdout)
    assert "json_extraction 2.99 → 3.95, TPOT −1" in text
    assert "so a draft pays from 1" in text
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_baseline_that_does_not_draft_counts_one_token_in_a_run(tmp_path: Path) -> None:
    def count(facts: BootFacts) -> BootFacts:
        if facts.arm == "v3":
            return facts
        plain = [window(name, PLAIN) for name in ARM.acceptance]
        return msgspec.structs.replace(facts, windows=[*facts.windows, *plain])

    document, _ = judged(tmp_path, run_of(Effect(), ARM, edit_boot=count))
    gain = arm_of(document, "v3")["acceptance_gain"]
    assert {item["baseline_length"] for item in gain["classes"]} == {1.0}
    assert gain["rank_correlation"]["length_of"] == "arm"


def test_an_engine_whose_counters_are_missing_says_nothing(tmp_path: Path) -> None:
    document, result = judged(tmp_path, run_of(Effect(), Effect(tpot=-0.1)))
    assert arm_of(document, "v3")["acceptance_gain"] is None
    assert "acceptance" not in result.stdout
    document, result = judged(tmp_path / "half", run_of(Effect(), ARM))
    assert {item["baseline_length"] for item in arm_of(document, "v3")["acceptance_gain"]["classes"]} == {None}
    assert "a step costs" not in result.stdout
