"""Whole reports of runs with known effects: the verdict, its reasons, the document, the table, the exit code."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from synthetic_run import GUARDS, Effect, Synthetic, failed, timed_out

from analysis.cli import report
from profiles.errors import FirsttokenError, FormatError
from profiles.records import Outcome
from profiles.runs import NOT_CHECKED, BootFacts, LogFinding
from profiles.units import MILLISECOND_NS, SECOND_NS

ARM_KEYS = set("arm verdict action reasons measures blocks guards boot_log settle".split())
DOCUMENT_KEYS = set(
    "format version rule_sha256 engine_kind operating_point aa machine_time_s arms skipped discarded".split()
)


def invoke(path: Path, *options: str) -> Result:
    """Without the page, which takes a second to draw and has tests of its own."""
    return CliRunner().invoke(report, [str(path), "--no-html", *options], catch_exceptions=False)


def judged(path: Path, run: Synthetic) -> tuple[dict[str, Any], Result]:
    """verdict.json of a run, read strictly, and what the command printed."""
    result = invoke(run.write(path / "run"))
    return document_of(path / "run"), result


def document_of(folder: Path) -> dict[str, Any]:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in verdict.json")

    document: dict[str, Any] = json.loads((folder / "verdict.json").read_bytes(), parse_constant=refuse)
    return document


def arm_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    (arm,) = [arm for arm in document["arms"] if arm["arm"] == name]
    return dict(arm)


def measure_of(arm: dict[str, Any], name: str) -> dict[str, Any]:
    (measure,) = [measure for measure in arm["measures"] if measure["measure"] == name]
    return dict(measure)


def words(document: dict[str, Any]) -> dict[str, str]:
    return {arm["arm"]: arm["verdict"] for arm in document["arms"]}


def squeeze(text: str) -> str:
    """The table without its line breaks."""
    return " ".join(text.split())


def test_a_clear_gain_is_adopted(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.10)}))
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["action"], result.exit_code) == ("adopt", "adopt v1", 0)
    ttft = measure_of(arm, "ttft")
    assert (ttft["zone"], ttft["no_worse"], arm["blocks"]) == ("gain", "no worse", 5)
    assert ttft["low"] < -0.10 < ttft["high"] < -0.08
    assert ttft["p_not_material"] < 0.05
    assert arm["settle"] is None
    assert "Outcome: adopt v1" in result.stdout


def test_an_arm_that_does_nothing_is_rejected_for_lack_of_a_gain(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect()}))
    arm = arm_of(document, "v1")
    assert arm["verdict"] == "reject"
    assert arm["reasons"] == ["no material gain on TTFT or TPOT"]
    assert result.exit_code == 0
    assert "Outcome: nothing survived; keep v0" in result.stdout


def test_an_arm_with_a_later_first_token_is_rejected_as_slower(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=0.09, tpot=-0.10)}))
    arm = arm_of(document, "v1")
    assert arm["verdict"] == "reject"
    assert arm["reasons"][0] == "slower: TTFT of the mix is proven worse than the margin"


def test_a_first_token_bought_with_the_decode_rate_is_rejected(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.10, tpot=0.10)}))
    assert arm_of(document, "v1")["reasons"] == ["the gain on TTFT is bought with TPOT"]


def test_a_longer_draft_is_workload_dependent(tmp_path: Path) -> None:
    """The model case: TTFT does not move; JSON and long RAG decode faster, short Q&A slower."""
    drafts = {"json_extraction": 1.99, "short_qa": 1.292}
    longer = Effect(
        tpot={"json_extraction": -0.16, "rag_long": -0.15, "short_qa": 0.09, "chat": 0.03},
        acceptance={"json_extraction": 2.949, "short_qa": 1.314},
    )
    run = Synthetic({"v1_flashinfer": Effect(ttft=0.08), "v3_spec3": longer}, baseline=Effect(acceptance=drafts))
    document, result = judged(tmp_path, run)
    arm = arm_of(document, "v3_spec3")
    assert arm["verdict"] == "workload-dependent"
    assert arm["action"] == "keep v0: on a mixed profile the worse case decides"
    assert arm["reasons"][0] == "TPOT: json_extraction, rag_long gain, short_qa loses"
    assert arm["reasons"][-1] == "stack: contains rejected v1_flashinfer; re-run without it"
    ttft, tpot = measure_of(arm, "ttft"), measure_of(arm, "tpot")
    assert (ttft["zone"], ttft["no_worse"]) == ("no gain", "no worse")
    classes = {item["class"]: item for item in tpot["classes"]}
    assert {name: item["direction"] for name, item in classes.items()} == {
        "chat": "open",
        "json_extraction": "gain",
        "rag_long": "gain",
        "short_qa": "loss",
    }
    assert classes["json_extraction"]["low"] < -0.16 < classes["json_extraction"]["high"]
    assert classes["short_qa"]["low"] < 0.09 < classes["short_qa"]["high"]
    assert arm["step"]["against"] == "v1_flashinfer"
    assert arm["step"]["measures"][0]["change"] == pytest.approx(1 / 1.08 - 1, abs=0.02)
    text = squeeze(result.stdout)
    assert "json_extraction −1" in text
    assert "gain, acceptance length 2.99 → 3.95" in text
    assert "loss, acceptance length 2.29 → 2.31" in text
    assert result.exit_code == 0


def test_noise_leaves_an_arm_inconclusive_and_says_what_would_settle_it(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.03)}, boot_sd=0.02))
    arm = arm_of(document, "v1")
    assert (arm["verdict"], measure_of(arm, "ttft")["zone"], result.exit_code) == ("inconclusive", "open", 3)
    assert arm["settle"]["blocks"] > 5
    assert arm["settle"]["hours"] == pytest.approx(arm["settle"]["blocks"])  # three boots of 20 min in a block
    assert f"would settle it: {arm['settle']['blocks']} blocks in all" in squeeze(result.stdout)
    assert "Outcome: keep v0; undecided: v1" in result.stdout


def test_one_boot_per_arm_cannot_tell(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.10)}, blocks=1))
    arm = arm_of(document, "v1")
    assert arm["verdict"] == "inconclusive"
    assert arm["reasons"][0].startswith("n=1: v1 TTFT −10.0 % observed")
    assert "descriptive only. One boot per arm: no between-boot variance known." in arm["reasons"][0]
    ttft = measure_of(arm, "ttft")
    assert (ttft["low"], ttft["high"], ttft["zone"], ttft["no_worse"]) == (None, None, "open", "not shown")
    assert document["aa"] | {"measures": None} == {
        "low": None,
        "high": None,
        "smallest_visible_bias": None,
        "measures": None,
    }
    assert result.exit_code == 3


def test_two_blocks_have_an_interval_and_no_verdict(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.5)}, blocks=2))
    arm = arm_of(document, "v1")
    assert measure_of(arm, "ttft")["zone"] == "gain"
    assert arm["verdict"] == "inconclusive"
    assert arm["reasons"][0] == "too few blocks: 2 usable blocks, at least 3 are needed"
    assert arm["settle"]["blocks"] >= 3


def test_a_bench_that_cannot_tell_the_baseline_from_itself_is_invalid(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, copy=Effect(ttft=0.06)))
    assert words(document) == {"v1": "invalid"}
    assert result.exit_code == 4
    assert "A/A failed: the bench sees a difference between v0 and itself" in arm_of(document, "v1")["reasons"][0]
    assert "INVALID RUN: A/A failed" in result.stdout
    assert "Outcome" not in result.stdout
    assert document["aa"]["low"] > 0


def test_the_noise_floor_is_printed(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect()}))
    aa = document["aa"]
    assert aa["low"] < 0 < aa["high"]
    assert aa["smallest_visible_bias"] == pytest.approx((aa["high"] - aa["low"]) / 2, rel=0.05)
    assert [item["measure"] for item in aa["measures"]] == ["ttft", "tpot"]
    assert "smallest visible bias" in squeeze(result.stdout)


FALLBACK = LogFinding(id="V06", severity="fallback", signature="setting cudagraph_mode=PIECEWISE")
CHRONIC = LogFinding(id="V01", severity="chronic-fallback", signature="WARNING Using default MoE config for this chip")


def test_a_new_fallback_line_rejects_an_arm_however_fast_it_is(tmp_path: Path) -> None:
    baseline = Effect(findings=(CHRONIC,))
    run = Synthetic({"v1": Effect(ttft=-0.2, findings=(CHRONIC, FALLBACK))}, baseline=baseline)
    arm = arm_of(judged(tmp_path, run)[0], "v1")
    assert arm["verdict"] == "reject"
    assert arm["reasons"][0] == "new fallback line in the boot log: setting cudagraph_mode=PIECEWISE"
    assert arm["reasons"][1].startswith("on the mix alone: adopt")
    assert arm["boot_log"]["new"] == ["setting cudagraph_mode=PIECEWISE"]


@pytest.mark.parametrize(
    "section",
    [
        '[boot_log]\nallow = [{ signature = "cudagraph_mode", reason = "known here" }]\n',
        '[boot_log]\non_dirty = "note"\n',
    ],
)
def test_an_allowed_or_noted_line_does_not_reject(tmp_path: Path, section: str) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.2, findings=(FALLBACK,))}, rule=GUARDS + section)
    document, result = judged(tmp_path, run)
    assert words(document) == {"v1": "adopt"}
    assert ("noted by the rule" in result.stdout) is ("note" in section)


def fail_boots(arm: str, *blocks: int) -> Any:
    def edit(facts: BootFacts) -> BootFacts | None:
        if facts.arm != arm or facts.block not in blocks:
            return facts
        if facts.block != blocks[0]:
            return None  # it is not booted again
        return msgspec.structs.replace(facts, status="failed", reason="exit code 1: CUDA out of memory", stop="died")

    return edit


def test_an_arm_that_does_not_boot_is_rejected_and_not_ranked(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.2), "v2": Effect(ttft=-0.2)}, edit_boot=fail_boots("v1", 1, 2, 3, 4, 5))
    document, result = judged(tmp_path, run)
    arm = arm_of(document, "v1")
    assert words(document) == {"v1": "reject", "v2": "adopt"}
    assert arm["reasons"][0] == "unstable: 1 of 1 boots failed, not booted again: exit code 1: CUDA out of memory"
    assert measure_of(arm, "ttft")["change"] is None
    (dead,) = document["failed"]
    assert (dead["arm"], dead["block"], dead["reason"]) == ("v1", 1, "exit code 1: CUDA out of memory")
    assert "stack adopt: contains rejected v1; re-run without it" in arm_of(document, "v2")["reasons"]
    assert "Failed boots v1, block 1: exit code 1: CUDA out of memory" in squeeze(result.stdout)
    assert result.exit_code == 0


def test_an_arm_that_dies_in_the_last_block_is_unstable(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=fail_boots("v1", 5)))
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["blocks"]) == ("reject", 4)
    assert arm["reasons"][0].startswith("unstable: 1 of 5 boots failed")


ERRORS = '\n[[guard]]\nmetric = "error_rate"\nmax = 0.02\n'


def test_a_dead_boot_counts_its_unanswered_requests_as_errors(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=fail_boots("v1", 5), rule=GUARDS + ERRORS)
    guards = {guard["metric"]: guard for guard in arm_of(judged(tmp_path, run)[0], "v1")["guards"]}
    # The builder answers every request of the dead boot too, so nothing is unanswered there.
    assert guards["error_rate"]["value"] == 0.0

    def unanswered(arm: str, block: int, outcome: Outcome) -> Outcome | None:
        return None if (arm, block) == ("v1", 5) and outcome.window != "closed-c1" else outcome

    run = Synthetic(
        {"v1": Effect(ttft=-0.2)}, edit_boot=fail_boots("v1", 5), edit_outcome=unanswered, rule=GUARDS + ERRORS
    )
    arm = arm_of(judged(tmp_path / "again", run)[0], "v1")
    guards = {guard["metric"]: guard for guard in arm["guards"]}
    assert guards["error_rate"]["value"] == pytest.approx(24 / 300)
    assert guards["error_rate"]["status"] == "fail"
    assert "guard error_rate is proven worse" in arm["reasons"]


def test_an_arm_that_fails_its_long_requests_is_not_faster(tmp_path: Path) -> None:
    """Survivors: without its failures the arm looks good."""

    def break_long(arm: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if arm == "v1" and outcome.workload == "rag_long" else outcome

    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.1)}, edit_outcome=break_long))
    arm = arm_of(document, "v1")
    assert arm["verdict"] == "reject"
    assert arm["reasons"][0] == "unstable: 25.0 % of its requests failed or timed out, 0.0 % of the baseline's"


def test_a_few_failures_block_adopt_without_proving_anything(tmp_path: Path) -> None:
    def break_some(arm: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if arm == "v1" and block < 4 and outcome.request < 2 else outcome

    def break_base(arm: str, block: int, outcome: Outcome) -> Outcome:
        own = break_some(arm, block, outcome)
        return failed(own) if arm == "v0" and block < 3 and outcome.request == 7 else own

    run = Synthetic({"v1": Effect(ttft=-0.1)}, edit_outcome=break_base, blocks=4)
    arm = arm_of(judged(tmp_path, run)[0], "v1")
    assert arm["verdict"] == "inconclusive"
    assert "adopt is blocked: 2.5 % of its requests failed" in arm["reasons"][0]


def test_timeouts_enter_at_their_limit(tmp_path: Path) -> None:
    def hang(arm: str, block: int, outcome: Outcome) -> Outcome:
        return timed_out(outcome, 30 * SECOND_NS) if arm == "v1" and outcome.request == 3 else outcome

    document, _ = judged(tmp_path, Synthetic({"v1": Effect()}, edit_outcome=hang))
    ttft = measure_of(arm_of(document, "v1"), "ttft")
    assert ttft["coverage"] == 1.0
    assert ttft["change"] > 0.05


def test_an_undeclared_difference_in_cached_tokens_blocks_adopt(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.2, cached=400)}, baseline=Effect(cached=100))
    document, result = judged(tmp_path, run)
    arm = arm_of(document, "v1")
    assert (arm["verdict"], result.exit_code) == ("inconclusive", 3)
    assert "cached tokens differ without being declared (40.0 % of the prompt against 10.0 %)" in arm["reasons"][0]
    assert arm["cached_share"] == {"arm": 0.4, "baseline": 0.1}
    assert arm["settle"] is None


def test_a_declared_difference_in_cached_tokens_is_only_shown(tmp_path: Path) -> None:
    effect = Effect(ttft=-0.2, cached=400, changes=("prefix_cache",))
    document, result = judged(tmp_path, Synthetic({"v1": effect}, baseline=Effect(cached=100)))
    assert words(document) == {"v1": "adopt"}
    assert "cached prompt tokens 40.0 %, baseline 10.0 %" in result.stdout


def test_a_guard_at_a_concurrency_that_production_never_reaches_only_advises(tmp_path: Path) -> None:
    deciding = '\n[[guard]]\nmetric = "throughput@c=8"\ndirection = "higher"\nmargin = 0.05\n'

    def slow_at_eight(facts: BootFacts) -> BootFacts:
        if facts.arm != "v1":
            return facts
        *others, last = facts.windows
        return msgspec.structs.replace(facts, windows=[*others, msgspec.structs.replace(last, output_tokens=3000)])

    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.1)}, edit_boot=slow_at_eight, rule=deciding))
    arm = arm_of(document, "v1")
    (guard,) = arm["guards"]
    assert (guard["role"], guard["status"]) == ("advisory", "fail")
    assert guard["value"] == pytest.approx(-0.5, abs=0.01)
    assert guard["reason"] == "production never reaches c = 8"
    assert arm["verdict"] == "adopt"
    assert "production never reaches c = 8" in squeeze(result.stdout)

    reasoned = deciding + 'headroom_reason = "the load doubles in spring"\n'
    run = Synthetic({"v1": Effect(ttft=-0.1)}, edit_boot=slow_at_eight, rule=reasoned)
    assert words(judged(tmp_path / "reasoned", run)[0]) == {"v1": "reject"}


def test_a_guard_that_is_proven_worse_rejects(tmp_path: Path) -> None:
    def long_tail(arm: str, block: int, outcome: Outcome) -> Outcome:
        if arm != "v1" or outcome.workload != "rag_long":
            return outcome
        first_ns = outcome.response.first_token_ns
        assert first_ns is not None
        response = msgspec.structs.replace(outcome.response, first_token_ns=first_ns + 900 * MILLISECOND_NS)
        return msgspec.structs.replace(outcome, response=response)

    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.25)}, edit_outcome=long_tail))
    arm = arm_of(document, "v1")
    assert arm["verdict"] == "reject"
    assert "guard ttft_p90 is proven worse" in arm["reasons"]


def test_the_p90_of_too_few_requests_is_not_reported(tmp_path: Path) -> None:
    def thin(arm: str, block: int, outcome: Outcome) -> Outcome | None:
        return outcome if outcome.request < 30 else None

    def plan_thin(manifest: dict[str, Any]) -> None:
        manifest["windows"] = [window | {"requests": 10} for window in manifest["windows"]]

    run = Synthetic({"v1": Effect(ttft=-0.2)}, edit_outcome=thin, edit_manifest=plan_thin)
    arm = arm_of(judged(tmp_path, run)[0], "v1")
    guard = arm["guards"][0]
    assert (guard["status"], guard["value"]) == ("not shown", None)
    assert guard["reason"] == "p90 not reported (n = 30 per boot, 36 needed)"
    assert arm["verdict"] == "inconclusive"


def test_a_rule_that_changed_after_the_first_boot_makes_the_run_invalid(tmp_path: Path) -> None:
    path = Synthetic({"v1": Effect(ttft=-0.2)}).write(tmp_path / "run")
    rule = path / "experiment.toml"
    rule.write_text(rule.read_text().replace("margin = 0.10", "margin = 0.50"))
    assert invoke(path).exit_code == 4
    assert "rule changed after the first boot" in arm_of(document_of(path), "v1")["reasons"][0]


def test_a_reformatted_rule_is_only_noted(tmp_path: Path) -> None:
    path = Synthetic({"v1": Effect(ttft=-0.2)}).write(tmp_path / "run")
    rule = path / "experiment.toml"
    rule.write_text("# a comment\n" + rule.read_text())
    result = invoke(path)
    assert result.exit_code == 0
    assert "reformatted after the run started" in squeeze(result.stdout)


def test_too_many_replacements_make_the_run_invalid_and_few_are_shown(tmp_path: Path) -> None:
    def spoil(facts: BootFacts) -> BootFacts:
        reason = "client_lag_p99_ms > 20: it was 31.0 ms"
        spoilt = facts.arm == "v1" and facts.block > most
        return msgspec.structs.replace(facts, status="discarded", reason=reason) if spoilt else facts

    most = 4
    document, result = judged(tmp_path / "few", Synthetic({"v1": Effect(ttft=-0.1)}, edit_boot=spoil))
    assert (words(document), arm_of(document, "v1")["blocks"]) == ({"v1": "adopt"}, 4)
    assert document["discarded"][0]["reason"] == "client_lag_p99_ms > 20: it was 31.0 ms"
    assert "Discarded boots v1, block 5: client_lag_p99_ms > 20" in squeeze(result.stdout)
    most = 2
    document, result = judged(tmp_path / "many", Synthetic({"v1": Effect(ttft=-0.1)}, edit_boot=spoil))
    assert (words(document), result.exit_code) == ({"v1": "invalid"}, 4)


def test_an_unfinished_run_is_shown_and_not_decided_before_a_declared_look(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.2)}, done_blocks=4, finished=False)
    document, result = judged(tmp_path, run)
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["blocks"], result.exit_code) == ("inconclusive", 4, 3)
    assert arm["reasons"][0].startswith("the run is unfinished: 4 of 5 blocks are complete, and the rule looks after 5")
    assert measure_of(arm, "ttft")["zone"] == "gain"
    assert document["blocks"] == {"planned": 5, "complete": 4, "whole": 4, "finished": False}


def test_a_declared_look_decides_an_unfinished_run_with_its_share_of_alpha(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.2)}, done_blocks=4, finished=False, design="looks = [3, 5]\n")
    document, result = judged(tmp_path, run)
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["blocks"]) == ("adopt", 3)
    assert "TTFT % [95 %]" in result.stdout


def test_a_run_without_a_whole_boot_is_an_error_with_a_hint(tmp_path: Path) -> None:
    path = Synthetic({"v1": Effect()}, done_blocks=0, finished=False).write(tmp_path / "run")
    with pytest.raises(FirsttokenError) as caught:
        invoke(path)
    assert caught.value.exit_code == 1
    assert "--resume" in caught.value.hint


def test_something_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such directory"):
        invoke(tmp_path / "nothing")


def test_the_document_keeps_its_contract(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.2), "v2": Effect(tpot=0.1)})
    document, result = judged(tmp_path, run)
    assert document.keys() >= DOCUMENT_KEYS
    assert (document["format"], document["version"], document["engine_kind"]) == ("firsttoken/verdict", 1, "simulated")
    assert document["machine_time_s"] == 20 * 60 * 20
    assert document["aa"].keys() >= {"low", "high", "smallest_visible_bias"}
    assert document["skipped"] == [
        {"arm": "fastsafetensors", "reason": "runs out of memory on this platform while loading"}
    ]
    for arm in document["arms"]:
        assert arm.keys() >= ARM_KEYS
        for measure in arm["measures"]:
            assert measure.keys() >= {"measure", "change", "low", "high", "zone", "no_worse", "classes"}
            for item in measure["classes"]:
                assert item.keys() == {"class", "change", "low", "high", "level", "line", "direction"}
    assert "SIMULATED ENGINE: no number here is about hardware" in result.stdout
    assert "fixed 12 h 00 min before the first boot" in squeeze(result.stdout)


def test_json_goes_to_stdout_and_paths_to_stderr(tmp_path: Path) -> None:
    path = Synthetic({"v1": Effect()}).write(tmp_path / "run")
    result = invoke(path, "--json", "--out", str(tmp_path / "elsewhere"))
    assert json.loads(result.stdout) == document_of(tmp_path / "elsewhere")
    assert result.stderr.strip() == str(tmp_path / "elsewhere" / "verdict.json")
    assert not (path / "verdict.json").exists()


def test_a_real_engine_carries_no_banner(tmp_path: Path) -> None:
    def real(facts: BootFacts) -> BootFacts:
        return msgspec.structs.replace(facts, simulated=False)

    document, result = judged(tmp_path, Synthetic({"v1": Effect()}, edit_boot=real))
    assert document["engine_kind"] == "real"
    assert "SIMULATED" not in result.stdout


def test_a_condition_that_no_sensor_saw_is_told_with_its_reason_and_the_boots(tmp_path: Path) -> None:
    def seen(facts: BootFacts) -> BootFacts:
        gpu = f"{NOT_CHECKED}no GPU sensor answers" if facts.arm == "v1" else "GPU 0 ran at 2411 of 3003 MHz"
        lag = "p99 was 2.00 ms"
        return msgspec.structs.replace(facts, checked={"thermal_throttle": gpu, "client_lag_p99_ms": lag})

    rule = '\n[discard]\nwhen = ["thermal_throttle", "client_lag_p99_ms > 20"]\n'
    document, _ = judged(tmp_path, Synthetic({"v1": Effect()}, edit_boot=seen, rule=rule))
    assert document["not_checked"] == ["thermal_throttle: no GPU sensor answers (in 5 of 15 boots)"]


def test_the_table_fits_into_80_columns_whatever_the_names_and_numbers(tmp_path: Path) -> None:
    def hang(arm: str, block: int, outcome: Outcome) -> Outcome:
        return timed_out(outcome, 600 * SECOND_NS) if arm.startswith("v2") else outcome

    name = "v2_a_name_that_is_rather_long_for_a_column_of_a_table"
    rule = GUARDS + '\n[discard]\nwhen = ["thermal_throttle", "foreign_load", "client_lag_p99_ms > 20"]\n'
    run = Synthetic({"v1": Effect(ttft=9.0, tpot=-0.9), name: Effect()}, edit_outcome=hang, rule=rule)
    _, result = judged(tmp_path, run)
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    unsaid = "thermal_throttle: the run does not say foreign_load: the run does not say"
    assert f"Not checked {unsaid}" in squeeze(result.stdout)
    assert "\x1b" not in result.stdout
