"""Runs at the recorded pace, of an engine that was up already, and with windows or boots that are doubtful."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic_run import GUARDS, Effect, Synthetic, failed, timed_out, with_windows
from test_analysis_report import arm_of, judged, measure_of, squeeze, words

from analysis.operating_point import format_levels
from profiles.records import Outcome
from profiles.runs import BootFacts, LagFacts
from profiles.units import MILLISECOND_NS, SECOND_NS

LATE = "the client's event loop was 31.0 ms late (p99), the limit is 20.0 ms"
CAPTURED = {"requests": 240, "ttft_requests": 240, "ttft_p50_ns": 165 * MILLISECOND_NS, "cached_share": 0.32}


def captured(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["profile"]["captured"] = CAPTURED | changes

    return edit


def observed(ttft: float = -0.1, **more: Any) -> Synthetic:
    return Synthetic({"v1": Effect(ttft=ttft, cached=300)}, baseline=Effect(cached=300), mode="observed", **more)


def checks(document: dict[str, Any]) -> dict[str, str]:
    return {check["check"]: check["status"] for check in document["bench"]["checks"]}


@pytest.mark.parametrize("mode", ["observed", "timed"])
def test_a_window_at_the_recorded_pace_decides_as_any_other(tmp_path: Path, mode: str) -> None:
    run = observed()
    run.mode = mode
    document, result = judged(tmp_path, run)
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["blocks"], result.exit_code) == ("adopt", 5, 0)
    assert measure_of(arm, "ttft")["coverage"] == 1.0
    assert {item["class"] for item in measure_of(arm, "ttft")["classes"]} == set(
        "chat json_extraction rag_long short_qa".split()
    )
    assert [guard["status"] for guard in arm["guards"]] == ["pass", "pass"]
    assert arm["arrivals_at"] == {"1": 180, "2": 90, "3": 30}  # of five boots
    assert document["bench"]["mode"] == mode


def test_a_recorded_pace_is_never_shown_as_c_0(tmp_path: Path) -> None:
    document, result = judged(tmp_path, observed())
    for text in ("c = 0", "c=0"):
        assert text not in result.stdout
    assert document["own_lateness"]["schedule"]["c"] is None
    assert "requests sent at most 500 µs late (" in squeeze(result.stdout)
    assert "block 5, observed, as recorded)" in squeeze(result.stdout)


def test_the_load_is_told_as_it_was_played(tmp_path: Path) -> None:
    shown = squeeze(judged(tmp_path, observed())[1].stdout)
    assert (
        "Load observed: recorded busy periods, 60 of 1200 requests per boot, idle gaps cut to 5.00 s; arrivals at "
        "c = 1 to 3 as planned: c=1 60 %, c=2 30 %, c=3 10 %. The profile's: c=1 60 %, c=2 30 %, c=3 10 %, never above "
        "3 (0 of 1000 arrivals, so at most 0.3 %). 12 % of the requests have no known session and arrive on their own "
        "Lines"
    ) in shown


def test_pieces_and_cut_sessions_are_part_of_the_load(tmp_path: Path) -> None:
    def cut(manifest: dict[str, Any]) -> None:
        facts = {"pieces": 4, "joined_busy": 2, "sessions": 20, "sessions_cut": 7, "parents_missing": 9}
        manifest["operating_point"]["pace"] |= facts

    shown = squeeze(judged(tmp_path, observed(edit_manifest=cut))[1].stdout)
    assert "60 of 1200 requests per boot in 4 pieces, idle gaps cut to 5.00 s; " in shown
    assert (
        "Each piece keeps the gap that was recorded before it, no pause is added; 2 of them begin while others are in "
        "flight, as recorded. 7 of 20 sessions are cut. 9 requests come without the turn before them, each at its "
        "recorded place. 12 % of the requests have no known session"
    ) in shown

    def whole(manifest: dict[str, Any]) -> None:
        manifest["operating_point"]["pace"] |= {"whole": True, "pieces": 1, "sessions_cut": 0, "parents_missing": 0}

    shown = squeeze(judged(tmp_path / "whole", observed(edit_manifest=whole))[1].stdout)
    assert "piece" not in shown.split("Lines")[0]


def test_a_timeline_without_ends_says_that_its_plan_is_not_known(tmp_path: Path) -> None:
    def no_ends(manifest: dict[str, Any]) -> None:
        manifest["operating_point"]["pace"] |= {"requests": 1200, "arrivals_at": None, "sessions_unknown": 0.0}
        manifest["operating_point"] |= {"levels": [], "weights": {}}
        manifest["profile"]["arrivals_at"] = {}

    run = observed(edit_manifest=no_ends)
    run.mode = "timed"
    document, result = judged(tmp_path, run)
    assert (
        "Load timed: the recorded timeline uncut, 1200 requests per boot; the planned concurrency is not known, the "
        "profile lacks ends of requests Lines"
    ) in squeeze(result.stdout)
    assert checks(document)["arrivals"] == "not checked"


def test_closed_loops_that_stand_in_for_the_recorded_pace_say_why(tmp_path: Path) -> None:
    reason = "nobody recorded these arrivals, so there are no busy periods: closed loops decide"

    def fall_back(manifest: dict[str, Any]) -> None:
        manifest["operating_point"]["mode_reason"] = reason

    document, result = judged(tmp_path, Synthetic({"v1": Effect()}, edit_manifest=fall_back))
    assert f"c=3 10 %. Not at the recorded pace: {reason} Lines" in squeeze(result.stdout)
    assert document["bench"] == {"mode": "closed", "checks": []}
    assert "Bench" not in result.stdout


def test_a_wide_histogram_is_told_in_six_parts() -> None:
    assert format_levels({1: 50, 2: 20, 3: 10}) == "c=1 62 %, c=2 25 %, c=3 12 %"
    assert format_levels(dict.fromkeys(range(1, 7), 10)).count("17 %") == 6
    assert (
        format_levels(dict.fromkeys(range(1, 11), 10)) == "c=1 10 %, c=2 10 %, c=3 10 %, c=4 10 %, c=5 10 %, c≥6 50 %"
    )


def test_the_bench_is_checked_on_the_baseline(tmp_path: Path) -> None:
    document, result = judged(tmp_path, observed(requests=240, edit_manifest=captured()))
    assert checks(document) == {"arrivals": "pass", "cached": "pass", "ttft": "pass"}
    arrivals, cached, ttft = document["bench"]["checks"]
    assert (arrivals["difference"], arrivals["limit"]) == (0.0, 0.1)
    assert arrivals["baseline"] == {"1": 1440, "2": 720, "3": 240}  # two copies in five blocks
    assert cached["difference"] == pytest.approx(-0.02)
    assert abs(ttft["difference"]) < 0.05
    assert "Bench v0 and its copy: 0.0 % of the arrivals met another c" in squeeze(result.stdout)


@pytest.mark.parametrize(
    ("recorded", "difference", "status"),
    [
        ({"1": 500, "2": 400, "3": 100}, 0.1, "pass"),
        ({"1": 490, "2": 410, "3": 100}, 0.11, "fail"),
        ({"1": 300, "2": 300, "3": 300, "4": 100}, 0.3, "fail"),
    ],
)
def test_arrivals_are_held_against_the_profile_s(
    tmp_path: Path, recorded: dict[str, int], difference: float, status: str
) -> None:
    def other(manifest: dict[str, Any]) -> None:
        captured()(manifest)
        manifest["profile"]["arrivals_at"] = recorded

    document, result = judged(tmp_path, observed(requests=240, edit_manifest=other))
    check = document["bench"]["checks"][0]
    assert (check["status"], check["difference"]) == (status, pytest.approx(difference))
    warned = any("bench check failed on v0 (arrivals)" in warning for warning in document["warnings"])
    assert warned is (status == "fail")
    # A warning beside the verdict: the arms were compared under one plan.
    assert (words(document), result.exit_code, document["invalid"]) == ({"v1": "adopt"}, 0, [])
    outcome = squeeze(result.stdout).split("Outcome: ")[1]
    assert outcome == (
        "adopt v1" if status == "pass" else "adopt v1. For the load that was met here: the bench check failed"
    )


def test_a_failed_check_says_what_the_plan_alone_makes_of_it(tmp_path: Path) -> None:
    def pile_up(facts: BootFacts) -> BootFacts:
        return with_windows(facts, "observed", arrivals_at={"3": 120, "4": 120})

    document, _ = judged(tmp_path, observed(requests=240, edit_boot=pile_up))
    assert document["bench"]["checks"][0]["text"] == (
        "90.0 % of the arrivals met another c than the profile's (limit 10 %), 0.0 % by the plan alone"
    )


def test_too_few_arrivals_of_a_boot_check_nothing_however_many_boots_there_are(tmp_path: Path) -> None:
    document, result = judged(tmp_path, observed(requests=60, edit_manifest=captured()))
    assert checks(document)["arrivals"] == "not checked"
    assert "arrivals not checked: 60 of 200 arrivals" in squeeze(result.stdout)


def test_an_arm_that_piles_up_requests_is_shown_and_not_judged(tmp_path: Path) -> None:
    def pile_up(facts: BootFacts) -> BootFacts:
        return with_windows(facts, "observed", arrivals_at={"1": 60, "8": 180}) if facts.arm == "v1" else facts

    document, result = judged(tmp_path, observed(requests=240, edit_boot=pile_up, edit_manifest=captured()))
    assert checks(document)["arrivals"] == "pass"
    assert words(document) == {"v1": "adopt"}
    assert "its requests met c=1 25 %, c=8 75 %; those of v0 c=1 60 %, c=2 30 %, c=3 10 %" in squeeze(result.stdout)


@pytest.mark.parametrize(
    ("changes", "check", "status", "text"),
    [
        ({"cached_share": 0.351}, "cached", "fail", "cached prompt tokens 30.0 %, recorded 35.1 % (limit 5 points)"),
        ({"cached_share": None}, "cached", "not checked", "cached tokens not checked: the profile does not hold them"),
        ({"ttft_p50_ns": 90 * MILLISECOND_NS}, "ttft", "fail", "captured 90.0 ms: +"),
        ({"ttft_p50_ns": 300 * MILLISECOND_NS}, "ttft", "fail", "captured 300 ms: −"),
        ({"ttft_p50_ns": None, "ttft_requests": 0}, "ttft", "not checked", "the profile does not hold it"),
        ({"ttft_requests": 100}, "ttft", "not checked", "the profile holds it for 100 of 240 requests"),
        ({"ttft_requests": 19, "requests": 19}, "ttft", "not checked", "TTFT not checked: 19 requests, 20 needed"),
    ],
)
def test_cached_tokens_and_ttft_are_held_against_the_capture(
    tmp_path: Path, changes: dict[str, Any], check: str, status: str, text: str
) -> None:
    run = observed(requests=240, blocks=3, edit_manifest=captured(**changes))
    document, _ = judged(tmp_path, run)
    (found,) = [item for item in document["bench"]["checks"] if item["check"] == check]
    assert (found["status"], text in found["text"]) == (status, True)


def test_a_profile_that_says_nothing_of_the_capture_is_no_failure(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, observed(requests=240, blocks=3))
    assert checks(document) == {"arrivals": "pass", "cached": "not checked", "ttft": "not checked"}


@pytest.mark.parametrize(("captured_ms", "status"), [(2.2, "pass"), (7.2, "fail")])
def test_a_quarter_of_next_to_nothing_is_no_failure(tmp_path: Path, captured_ms: float, status: str) -> None:
    def quick(arm: str, block: int, outcome: Outcome) -> Outcome:
        assert outcome.send_started_ns is not None
        response = msgspec.structs.replace(outcome.response, first_token_ns=outcome.send_started_ns + MILLISECOND_NS)
        return msgspec.structs.replace(outcome, response=response)

    edit = captured(ttft_p50_ns=round(captured_ms * MILLISECOND_NS))
    document, _ = judged(tmp_path, observed(requests=240, blocks=3, edit_manifest=edit, edit_outcome=quick))
    assert checks(document)["ttft"] == status


def test_a_client_that_was_late_shows_in_the_ttft_from_due(tmp_path: Path) -> None:
    def late(arm: str, block: int, outcome: Outcome) -> Outcome:
        assert outcome.send_started_ns is not None
        return msgspec.structs.replace(outcome, due_ns=outcome.send_started_ns - 100 * MILLISECOND_NS)

    run = observed(requests=240, blocks=3, edit_manifest=captured(), edit_outcome=late)
    document, _ = judged(tmp_path, run)
    found = document["bench"]["checks"][2]
    assert found["status"] == "fail"
    assert found["text"].startswith("TTFT p50 275 ms from due, 175 ms from sending, captured 165 ms: +66.9 %")


def test_a_deciding_window_that_the_client_would_shape_is_named_where_the_rule_keeps_it(tmp_path: Path) -> None:
    def spoil(facts: BootFacts) -> BootFacts:
        return with_windows(facts, "observed", invalid=LATE) if (facts.arm, facts.block) == ("v1", 2) else facts

    rule = GUARDS + '\n[discard]\nwhen = ["client_lag_p99_ms > 200"]\n'
    document, _ = judged(tmp_path, observed(edit_boot=spoil, rule=rule))
    assert document["warnings"][0] == (
        "a deciding window is doubtful and counts, for discard.when does not list invalid_window: v1, block 2, "
        f"observed: {LATE}"
    )
    assert document["doubtful_windows"] == [
        {"arm": "v1", "block": 2, "window": "observed", "c": None, "deciding": True, "reason": LATE}
    ]
    assert arm_of(document, "v1")["blocks"] == 5


def test_a_window_that_only_describes_is_left_out_where_the_client_would_shape_it(tmp_path: Path) -> None:
    def spoil(facts: BootFacts) -> BootFacts:
        shaped = facts.block in spoilt and facts.arm == "v1"
        return with_windows(facts, "closed-c8", invalid=LATE, output_tokens=1) if shaped else facts

    spoilt = {2, 4}
    document, result = judged(tmp_path / "some", Synthetic({"v1": Effect(ttft=-0.1)}, edit_boot=spoil))
    guard = arm_of(document, "v1")["guards"][1]
    assert (guard["metric"], guard["status"]) == ("throughput@c=8", "pass")
    assert guard["value"] == pytest.approx(0.0, abs=1e-12)
    assert guard["reason"].endswith("; 2 of 5 blocks left out, the client would have shaped them")
    (rate,) = arm_of(document, "v1")["throughput"]
    assert (rate["blocks"], rate["change"]) == (3, pytest.approx(0.0, abs=1e-12))
    shown = squeeze(result.stdout)
    assert f"shaped the number closed-c8 in 2 boots, such as v1, block 2: {LATE}" in shown

    spoilt = {1, 2, 3, 4, 5}
    document, _ = judged(tmp_path / "all", Synthetic({"v1": Effect(ttft=-0.1)}, edit_boot=spoil))
    arm = arm_of(document, "v1")
    assert (arm["guards"][1]["status"], arm["guards"][1]["value"], arm["throughput"]) == ("not shown", None, [])
    assert arm["verdict"] == "adopt"  # an advisory guard


def test_a_failed_boot_is_told_in_the_words_of_its_diagnosis(tmp_path: Path) -> None:
    reason = "no token from any of 3 requests in flight for 5 min 00 s; /health still answers 200"

    def stall(facts: BootFacts) -> BootFacts | None:
        if facts.arm != "v1" or facts.block < 2:
            return facts
        if facts.block > 2:
            return None
        return msgspec.structs.replace(facts, status="failed", diagnosis="stalled", reason=reason)

    document, result = judged(tmp_path, observed(edit_boot=stall))
    arm = arm_of(document, "v1")
    assert arm["reasons"][0] == f"unstable: 1 of 2 boots failed, not booted again: stalled: {reason}"
    assert document["failed"][0]["diagnosis"] == "stalled"
    assert f"Failed boots v1, block 2: stalled: {reason}" in squeeze(result.stdout)


def test_what_a_measured_boot_left_behind_is_a_remark_without_effect(tmp_path: Path) -> None:
    def leave(facts: BootFacts) -> BootFacts:
        if facts.arm == "v1" and facts.block < 3:
            return msgspec.structs.replace(facts, diagnosis="workers_left", reason="2 workers outlived it: 71, 72")
        if facts.arm == "v0" and facts.block == 1:
            return msgspec.structs.replace(facts, diagnosis="not_stopped", reason="it ignored SIGTERM")
        return facts

    document, result = judged(tmp_path, observed(edit_boot=leave))
    arm = arm_of(document, "v1")
    assert (arm["verdict"], document["failed"], result.exit_code) == ("adopt", [], 0)
    assert arm["remarks"] == ["workers left in 2 of 5 boots: 2 workers outlived it: 71, 72"]
    assert "remark: workers left in 2 of 5 boots" in squeeze(result.stdout)
    assert "v0: not stopped in 1 of 5 boots: it ignored SIGTERM" in document["warnings"]


def make_external(facts: BootFacts) -> BootFacts:
    return msgspec.structs.replace(facts, cold=False, launcher="external", stop="left")


@pytest.mark.parametrize("said_by", ["manifest", "boots"])
def test_an_engine_that_was_up_already_is_never_adopted(tmp_path: Path, said_by: str) -> None:
    def say(manifest: dict[str, Any]) -> None:
        if said_by == "manifest":
            manifest |= {"launcher": "external", "cold": False}

    run = observed(-0.5, edit_manifest=say)
    if said_by == "boots":
        run.edit_boot = make_external
    document, result = judged(tmp_path, run)
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["action"], arm["settle"]) == ("inconclusive", "keep v0 until more is known", None)
    assert arm["reasons"] == [
        "nothing was cold-booted: each block is one more visit to an engine that was up already, and a cold boot is "
        "the replicate"
    ]
    assert (document["cold"], result.exit_code) == (False, 3)
    top = squeeze(result.stdout.split("Load")[0])
    assert "NO COLD BOOT: the engine was up already." in top
    assert "15 visits, none of them a boot" in squeeze(result.stdout)
    assert "boot log: not seen, the engine was up already" in result.stdout


def test_what_an_engine_that_was_up_already_broke_is_still_listed(tmp_path: Path) -> None:
    def break_all(arm: str, block: int, outcome: Outcome) -> Outcome:
        return failed(outcome) if arm == "v1" and outcome.index % 2 else outcome

    run = observed(edit_boot=make_external, edit_outcome=break_all)
    arm = arm_of(judged(tmp_path, run)[0], "v1")
    assert arm["verdict"] == "inconclusive"
    assert "unstable: 50.0 % of its requests failed or timed out, 0.0 % of the baseline's" in arm["reasons"]


def test_cold_boots_say_nothing_about_it(tmp_path: Path) -> None:
    document, result = judged(tmp_path, observed())
    assert document["cold"] is True
    assert "COLD BOOT" not in result.stdout


def test_a_timeout_at_the_recorded_pace_is_censored_at_its_limit(tmp_path: Path) -> None:
    """One request of sixty, every other one the same in both arms."""
    base_ns: dict[int, int] = {}

    def hang(arm: str, block: int, outcome: Outcome) -> Outcome:
        if outcome.request != 7:
            return outcome
        if arm == "v0" and outcome.response.first_token_ns is not None and outcome.send_started_ns is not None:
            base_ns[block] = outcome.response.first_token_ns - outcome.send_started_ns
        return timed_out(outcome, 30 * SECOND_NS) if arm == "v1" else outcome

    run = observed(0.0, boot_sd=0.0, noise_sd=0.0, edit_outcome=hang)
    document, _ = judged(tmp_path, run)
    ttft = measure_of(arm_of(document, "v1"), "ttft")
    assert ttft["coverage"] == 1.0
    (base,) = set(base_ns.values())
    assert ttft["change"] == pytest.approx(math.expm1(math.log(30 * SECOND_NS / base) / 60))
    assert ttft["low"] == pytest.approx(ttft["high"])
    tpot = measure_of(arm_of(document, "v1"), "tpot")
    assert (tpot["change"], tpot["coverage"] < 1) == (pytest.approx(0.0, abs=1e-12), True)


def test_the_lateness_of_the_worst_deciding_window_stands_beside_the_result(tmp_path: Path) -> None:
    def lag(facts: BootFacts) -> BootFacts:
        late_ns = 9 * MILLISECOND_NS if (facts.arm, facts.block) == ("v1", 3) else MILLISECOND_NS
        lags = LagFacts(p50_ns=late_ns, p99_ns=late_ns, max_ns=2 * late_ns, samples=500)
        huge = LagFacts(p50_ns=SECOND_NS, p99_ns=SECOND_NS, max_ns=SECOND_NS, samples=500)
        return with_windows(with_windows(facts, "closed-c2", loop_lag=lags), "closed-c8", loop_lag=huge)

    document, result = judged(tmp_path, Synthetic({"v1": Effect()}, edit_boot=lag))
    assert document["own_lateness"] == {
        "schedule": None,
        "event_loop": {
            "p99_ns": 9 * MILLISECOND_NS,
            "max_ns": 18 * MILLISECOND_NS,
            "arm": "v1",
            "block": 3,
            "window": "closed-c2",
            "c": 2,
        },
    }
    line = "own lateness, p99 of the worst deciding window: event loop at most 9.00 ms late (v1, block 3, closed-c2)"
    assert line in squeeze(result.stdout)


def test_the_table_of_an_observed_run_fits_into_80_columns(tmp_path: Path) -> None:
    run = observed(requests=240, edit_manifest=captured(cached_share=0.9), sweep=tuple(range(1, 12)), per_class=True)
    run.arms["v2_a_name_that_is_rather_long_for_a_column_of_a_table"] = Effect(ttft=90.0, tokens={"chat": 1e6})
    run.edit_boot = lambda facts: with_windows(make_external(facts), "sweep-c3", invalid=LATE)
    _, result = judged(tmp_path, run)
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
