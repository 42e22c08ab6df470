"""The functional guard of the report: what breaks an arm, what only describes it, and what proves nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact
from synthetic_run import GUARDS, Effect, Synthetic

from analysis.findings import ArmReport
from analysis.functional.guard import FunctionalFinding, functional_document, functional_lines, more_failures_p
from analysis.judge import judge
from analysis.table import format_report
from profiles.experiment import load_experiment
from profiles.files import encode
from profiles.functional import BUILTIN, REPEATS, FunctionalOutcome, Probe, ToolCall, read_probes
from profiles.records import ERROR, OK
from profiles.runs import RULE, read_run

PROBES = read_probes(BUILTIN)
FASTER = Effect(ttft=-0.10, tpot=-0.10)
REFUSED: dict[str, Any] = {
    "outcome": ERROR,
    "reason": "HTTP 400",
    "status": 400,
    "finish": None,
    "calls": [],
    "sha256": None,
}
type Edit = Callable[[str, int, FunctionalOutcome], FunctionalOutcome | None]


def right_answer(probe: Probe, repeat: int, *, streamed: bool) -> FunctionalOutcome:
    tools = bool({"tool_call", "streamed_arguments"} & set(probe.traits))
    calls = [ToolCall(known=True, parses=True, fits=True, deltas=4 * streamed)] * (probe.calls if tools else 0)
    return FunctionalOutcome(
        probe=probe.name,
        repeat=repeat,
        streamed=streamed,
        traits=list(probe.traits),
        status=200,
        outcome=OK,
        finish="tool_calls" if tools else "stop",
        calls=calls,
        wanted_calls=len(calls),
        json=True if "json_schema" in probe.traits else None,
        reasoning_chars=120 if "reasoning_apart" in probe.traits else 0,
        output_tokens=80,
        limit=512,
        text_chars=0 if tools else 400,
        sha256=f"{probe.name}",
    )


def keep(_arm: str, _block: int, answer: FunctionalOutcome) -> FunctionalOutcome | None:
    return answer


def probed(edit: Edit = keep) -> Callable[[str, int], list[FunctionalOutcome]]:
    def answers(arm: str, block: int) -> list[FunctionalOutcome]:
        given = [
            edit(arm, block, right_answer(probe, repeat, streamed=streamed))
            for repeat in range(1, REPEATS + 1)
            for probe in PROBES
            for streamed in probe.ways
        ]
        return [answer for answer in given if answer is not None]

    return answers


def report_of(
    folder: Path, edit: Edit = keep, *, blocks: int = 5, effect: Effect = FASTER, rule: str = GUARDS
) -> ArmReport:
    run = Synthetic({"v1": effect}, blocks=blocks, rule=rule, functional=probed(edit)).write(folder / "run")
    (arm,) = judge(read_run(run), load_experiment(run / RULE)).arms
    return arm


def finding(arm: ArmReport, trait: str) -> FunctionalFinding:
    (found,) = [item for item in arm.functional if item.trait == trait]
    return found


def in_arm(*traits: str, blocks: tuple[int, ...] = (1, 2, 3, 4, 5), arms: str = "v1", **changes: Any) -> Edit:
    """These arms' answers to the probes with one of these traits are changed."""

    def edit(arm: str, block: int, answer: FunctionalOutcome) -> FunctionalOutcome:
        hit = arm in arms.split() and block in blocks and set(traits) & set(answer.traits)
        return msgspec.structs.replace(answer, **changes) if hit else answer

    return edit


def lost_end(arm: str, _block: int, answer: FunctionalOutcome) -> FunctionalOutcome:
    """Streamed arguments of the arm v1 lose their end."""
    if arm != "v1" or not answer.streamed or "streamed_arguments" not in answer.traits:
        return answer
    calls = [msgspec.structs.replace(call, parses=False, fits=False) for call in answer.calls]
    return msgspec.structs.replace(answer, calls=calls, sha256="broken")


def test_a_faster_arm_whose_answers_are_the_baselines_is_adopted_and_one_line_says_so(tmp_path: Path) -> None:
    arm = report_of(tmp_path)
    assert arm.verdict.word == "adopt"
    assert {item.status for item in arm.functional} == {"kept"}
    (line,) = functional_lines(arm.functional)
    assert line.startswith("functions kept: finish reasons, tool calls, streamed arguments, JSON, reasoning apart")
    assert line.endswith("14 probes × 5 boots; identical outputs 100 %, the copy 100 %")


def test_a_faster_arm_that_breaks_streamed_arguments_is_rejected_whatever_its_speed(tmp_path: Path) -> None:
    arm = report_of(tmp_path, lost_end)
    assert arm.verdict.word == "reject"
    sentence = "broken function: streamed tool-call arguments do not parse in 5 of 5 boots (baseline 0 of 10)"
    assert arm.verdict.reasons[0] == sentence
    found = finding(arm, "streamed_arguments")
    assert (found.own, found.own_asked, found.copy, found.copy_asked) == (0, 20, 20, 20)
    assert found.probes == ("tool_auto", "tool_required", "tools_parallel", "tool_nested")
    assert finding(arm, "tool_call").status == "kept"
    assert finding(arm, "identical_output").status == "not shown"
    names = "tool_auto, tool_required, tools_parallel, tool_nested"
    shown = f"function broken: streamed arguments, right in 0 of 20, the copy in 20 of 20; probes {names}"
    assert shown in list(functional_lines(arm.functional))


def test_the_rule_can_make_a_broken_function_a_note(tmp_path: Path) -> None:
    arm = report_of(tmp_path, lost_end, rule=GUARDS + '[functional]\non_broken = "note"\n')
    assert arm.verdict.word == "adopt"
    assert finding(arm, "streamed_arguments").status == "broken"


@pytest.mark.parametrize(
    ("trait", "changes", "says"),
    [
        ("finish_reason", {"finish": "length"}, "answers do not end as the baseline's do"),
        ("finish_reason", {"finish": "tool_calls"}, "answers do not end as the baseline's do"),
        ("finish_reason", {"stop_left": True}, "answers do not end as the baseline's do"),
        ("finish_reason", {"outcome": ERROR, "reason": "HTTP 500"}, "answers do not end as the baseline's do"),
        ("tool_call", {"calls": []}, "tool calls are missing"),
        ("tool_call", {"calls": [ToolCall(known=False, parses=True)] * 2}, "tool calls are missing"),
        ("json_schema", {"json": False}, "what was asked for as JSON is not"),
        ("json_schema", {"misfit": "$.rooms: not a integer"}, "what was asked for as JSON is not"),
        ("reasoning_apart", {"leaked": True}, "reasoning is not kept apart"),
        ("reasoning_apart", {"reasoning_chars": 0}, "reasoning is not kept apart"),
        ("output_length", {"output_tokens": 120}, "the length of answers drifts: +50.0 % against the baseline"),
    ],
)
def test_each_function_can_be_broken(tmp_path: Path, trait: str, changes: dict[str, Any], says: str) -> None:
    arm = report_of(tmp_path, in_arm(trait, **changes))
    assert finding(arm, trait).status == "broken"
    assert arm.verdict.word == "reject"
    assert any(reason.startswith(f"broken function: {says}") for reason in arm.verdict.reasons)


def test_an_answer_that_truly_met_its_limit_has_no_wrong_finish_reason(tmp_path: Path) -> None:
    cut = report_of(tmp_path / "cut", in_arm("output_length", finish="length", output_tokens=512))
    assert finding(cut, "finish_reason").status == "kept"
    assert finding(cut, "output_length").status == "broken"

    def said_stop(arm: str, _block: int, answer: FunctionalOutcome) -> FunctionalOutcome:
        if "finish_reason" not in answer.traits or answer.wanted_calls:
            return answer
        finish = "stop" if arm == "v1" else "length"
        return msgspec.structs.replace(answer, finish=finish, output_tokens=512)

    assert finding(report_of(tmp_path / "wrong", said_stop), "finish_reason").status == "broken"


def test_a_stream_that_has_another_shape_than_the_whole_answer_is_broken(tmp_path: Path) -> None:
    def edit(arm: str, _block: int, answer: FunctionalOutcome) -> FunctionalOutcome:
        hit = arm == "v1" and answer.streamed and answer.probe == "tools_parallel"
        return msgspec.structs.replace(answer, text_chars=30) if hit else answer

    found = finding(report_of(tmp_path, edit), "stream_agrees")
    assert (found.status, found.probes) == ("broken", ("tools_parallel",))


def test_what_the_baseline_cannot_do_is_not_offered_and_rejects_nobody(tmp_path: Path) -> None:
    arm = report_of(tmp_path, in_arm("tool_call", "streamed_arguments", arms="v0 v0.aa v1", **REFUSED))
    assert finding(arm, "tool_call").status == finding(arm, "streamed_arguments").status == "not offered"
    assert arm.verdict.word == "adopt"
    assert "functions not offered: tool calls, streamed arguments" in list(functional_lines(arm.functional))


def test_an_arm_that_refuses_what_the_baseline_offers_is_broken(tmp_path: Path) -> None:
    assert finding(report_of(tmp_path, in_arm("tool_call", **REFUSED)), "tool_call").status == "broken"


def test_one_bad_boot_of_five_proves_nothing_and_is_shown(tmp_path: Path) -> None:
    arm = report_of(tmp_path, in_arm("json_schema", blocks=(2,), json=False))
    found = finding(arm, "json_schema")
    assert found.status == "not shown"
    assert "wrong in 1 of 5 boots (baseline 0 of 10)" in found.sentence
    assert arm.verdict.word == "adopt"


def test_what_the_copy_fails_at_as_well_is_no_fault_of_the_arm(tmp_path: Path) -> None:
    arm = report_of(tmp_path, in_arm("json_schema", arms="v1 v0.aa", blocks=(1, 3, 4), json=False))
    assert finding(arm, "json_schema").status == "kept"
    assert arm.verdict.word == "adopt"
    arm = report_of(tmp_path / "all", in_arm("json_schema", arms="v1 v0.aa", json=False))
    assert finding(arm, "json_schema").status == "not offered"


def test_a_baseline_that_failed_once_makes_an_arm_that_always_fails_no_proof_yet(tmp_path: Path) -> None:
    def edit(arm: str, block: int, answer: FunctionalOutcome) -> FunctionalOutcome:
        hit = "json_schema" in answer.traits and (arm == "v1" or (arm, block) == ("v0", 3))
        return msgspec.structs.replace(answer, json=False) if hit else answer

    found = finding(report_of(tmp_path, edit), "json_schema")
    assert found.status == "not shown"
    assert "wrong in 5 of 5 boots (baseline 1 of 10)" in found.sentence


def test_a_function_that_fails_in_most_boots_of_many_is_broken_by_the_exact_test(tmp_path: Path) -> None:
    arm = report_of(tmp_path, in_arm("json_schema", blocks=(1, 2, 4, 5, 7, 8, 9), json=False), blocks=10)
    found = finding(arm, "json_schema")
    assert found.status == "broken"
    assert "in 7 of 10 boots (baseline 0 of 20)" in found.sentence


def test_one_failing_pass_of_a_boot_makes_the_boot_a_failure(tmp_path: Path) -> None:
    def edit(arm: str, _block: int, answer: FunctionalOutcome) -> FunctionalOutcome:
        hit = arm == "v1" and answer.probe == "json_object" and answer.repeat == 2
        return msgspec.structs.replace(answer, json=False) if hit else answer

    found = finding(report_of(tmp_path, edit), "json_schema")
    assert (found.status, found.probes, found.own, found.own_asked) == ("broken", ("json_object",), 5, 10)


def test_other_words_at_temperature_0_are_shown_and_break_nothing(tmp_path: Path) -> None:
    arm = report_of(tmp_path, in_arm("output_length", sha256="other words"))
    found = finding(arm, "identical_output")
    assert found.status == "not shown"
    assert found.sentence == "identical outputs 82.4 %, the copy 100 %"
    assert found.probes == ("plain_english", "plain_hungarian", "tool_result")
    assert arm.verdict.word == "adopt"


def test_an_engine_that_says_something_else_each_time_shows_it_in_its_copy(tmp_path: Path) -> None:
    def edit(arm: str, block: int, answer: FunctionalOutcome) -> FunctionalOutcome:
        return msgspec.structs.replace(answer, sha256=f"{arm} {block} {answer.repeat}")

    found = finding(report_of(tmp_path, edit), "identical_output")
    assert found.status == "kept"
    assert found.sentence == "identical outputs 0 %, the copy 0 %; twice in one boot 0 %"


def test_one_long_answer_is_no_drift_and_a_declared_one_rejects_nobody(tmp_path: Path) -> None:
    def one(arm: str, _block: int, answer: FunctionalOutcome) -> FunctionalOutcome:
        hit = arm == "v1" and answer.probe == "plain_english"
        return msgspec.structs.replace(answer, output_tokens=190) if hit else answer

    found = finding(report_of(tmp_path / "one", one), "output_length")
    assert (found.status, found.probes) == ("not shown", ("plain_english",))
    longer = Effect(ttft=-0.10, tpot=-0.10, changes=("output",))
    arm = report_of(tmp_path / "declared", in_arm("output_length", output_tokens=120), effect=longer)
    assert finding(arm, "output_length").status == "not shown"
    assert arm.verdict.word == "adopt"


def test_a_length_that_the_copy_drifts_by_as_well_is_not_the_arms(tmp_path: Path) -> None:
    arm = report_of(tmp_path, in_arm("output_length", arms="v1 v0.aa", output_tokens=120))
    assert finding(arm, "output_length").status == "not shown"
    assert arm.verdict.word == "adopt"


def test_an_arm_with_too_few_blocks_stays_inconclusive_and_names_the_broken_function(tmp_path: Path) -> None:
    arm = report_of(tmp_path, lost_end, blocks=2)
    assert arm.verdict.word == "inconclusive"
    assert any("streamed tool-call arguments" in reason for reason in arm.verdict.reasons)
    single = report_of(tmp_path / "one", lost_end, blocks=1)
    assert finding(single, "streamed_arguments").status == "not shown"


def test_a_run_without_probes_says_so(tmp_path: Path) -> None:
    run = Synthetic({"v1": FASTER}).write(tmp_path / "run")
    report = judge(read_run(run), load_experiment(run / RULE))
    assert report.arms[0].functional == ()
    assert "  - functions: not probed" in format_report(report).splitlines()


def test_the_findings_are_strict_json_with_every_field(tmp_path: Path) -> None:
    document = functional_document(report_of(tmp_path, lost_end).functional)
    assert encode(document)
    assert {key for item in document for key in item} == set(FunctionalFinding.__slots__) - {"asked"}


@given(
    boots=st.integers(1, 12), base_boots=st.integers(1, 24), failed=st.integers(0, 12), base_failed=st.integers(0, 24)
)
def test_the_exact_test_is_fishers(boots: int, base_boots: int, failed: int, base_failed: int) -> None:
    failed, base_failed = min(failed, boots), min(base_failed, base_boots)
    table = [[failed, boots - failed], [base_failed, base_boots - base_failed]]
    expected = float(fisher_exact(table, alternative="greater").pvalue)
    assert more_failures_p(failed, boots, base_failed, base_boots) == pytest.approx(expected)


def test_the_chances_that_the_documentation_names() -> None:
    assert more_failures_p(5, 5, 0, 10) == pytest.approx(1 / 3003)
    assert more_failures_p(3, 3, 0, 6) == pytest.approx(1 / 84)
