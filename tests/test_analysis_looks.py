"""Arms that a declared look decided, and runs whose rule was amended: what the report makes of them."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import GUARDS, WALL_NS, Effect, Synthetic

from analysis.bench import make_bench
from analysis.document import verdict_document
from analysis.findings import ArmReport, Report
from analysis.judge import judge
from analysis.looks import Stopped, bench_at, post_hoc_reason, stopped_arms
from analysis.table import format_report
from profiles.experiment import load_experiment
from profiles.files import encode_pretty, write_whole
from profiles.runs import FAILED, RULE, BootFacts, read_run
from profiles.units import HOUR_NS

LOOKS = "looks = [5, 8]\n"
GOOD, BAD = Effect(ttft=-0.2, tpot=-0.1), Effect(ttft=0.2)


def report_of(path: Path) -> Report:
    return judge(read_run(path), load_experiment(path / RULE))


def arm_of(report: Report, name: str) -> ArmReport:
    return next(arm for arm in report.arms if arm.arm == name)


def decided(arm: str, look: int, verdict: str) -> dict[str, Any]:
    return {"event": "arm_decided", "arm": arm, "look": look, "verdict": verdict, "needed_by": []}


def without(arm: str, after: int) -> Any:
    """No boot of this arm behind the block."""
    return lambda facts: None if facts.arm == arm and facts.block > after else facts


def run_with_looks(tmp_path: Path, **changes: Any) -> Path:
    made: dict[str, Any] = {
        "arms": {"v1": BAD, "v2": GOOD},
        "blocks": 8,
        "design": LOOKS,
        "events": [decided("v1", 5, "reject")],
        "edit_boot": without("v1", 5),
        **changes,
    }
    tmp_path.mkdir(exist_ok=True)
    return Synthetic(**made).write(tmp_path / "run")


def test_an_arm_that_a_look_decided_is_complete_without_its_later_boots(tmp_path: Path) -> None:
    report = report_of(run_with_looks(tmp_path, finished=False))
    assert (report.course.complete, report.course.finished) == (8, True)
    stopped, live = arm_of(report, "v1"), arm_of(report, "v2")
    assert (stopped.verdict.word, stopped.blocks) == ("reject", 5)
    assert (live.verdict.word, live.blocks) == ("adopt", 8)
    assert stopped.stopped == Stopped("v1", 5, "reject")
    assert live.stopped is None
    text = " ".join(format_report(report).split())
    assert "stopped early: decided after 5 blocks and not booted again; its estimate leans outward" in text
    document = next(arm for arm in verdict_document(report)["arms"] if arm["arm"] == "v1")
    assert document["stopped"] == {"look": 5, "verdict": "reject", "later_boots": 0}


def test_a_block_without_an_arm_that_nobody_decided_is_not_complete(tmp_path: Path) -> None:
    report = report_of(run_with_looks(tmp_path, finished=False, events=[]))
    assert (report.course.complete, report.course.finished) == (5, False)
    assert report.course.blocks == frozenset(range(1, 6))  # the look after 5 covers no more


@pytest.mark.parametrize("variance", ["paired", "pooled"])
def test_the_look_that_decides_is_the_last_word_even_where_the_arm_was_booted_on(tmp_path: Path, variance: str) -> None:
    design = f'{LOOKS}variance = "{variance}"\n'
    whole: dict[str, Any] = {"design": design, "edit_boot": lambda facts: facts}
    at_look = run_with_looks(tmp_path / "then", done_blocks=5, finished=False, events=[], **whole)
    now = report_of(run_with_looks(tmp_path, **whole))
    then, stopped = arm_of(report_of(at_look), "v1"), arm_of(now, "v1")
    assert (stopped.boots, stopped.blocks) == (8, 5)
    assert stopped.stopped == Stopped("v1", 5, "reject", later_boots=3)
    assert stopped.measures == then.measures
    assert stopped.guards == then.guards
    assert stopped.verdict == then.verdict
    everything = report_of(run_with_looks(tmp_path / "all", events=[], **whole))
    assert arm_of(everything, "v1").measures != stopped.measures
    assert "booted on because a later arm leans on it" in " ".join(format_report(now).split())


def test_what_an_arm_breaks_after_its_look_still_counts_against_it(tmp_path: Path) -> None:
    def dies(facts: BootFacts) -> BootFacts:
        if (facts.arm, facts.block) == ("v1", 7):
            return BootFacts(
                **{name: getattr(facts, name) for name in facts.__struct_fields__}
                | {"status": FAILED, "reason": "the engine died while it served", "diagnosis": "died"}
            )
        return facts

    path = run_with_looks(tmp_path, arms={"v1": GOOD}, events=[decided("v1", 5, "adopt")], edit_boot=dies)
    arm = arm_of(report_of(path), "v1")
    assert arm.verdict.word == "reject"
    assert arm.verdict.reasons[0].startswith("unstable: 1 of 6 boots failed")
    assert arm.blocks == 5
    assert any("v1 was stopped as adopt after 5 blocks" in note for note in report_of(path).warnings)


def test_a_verdict_that_stands_is_no_note(tmp_path: Path) -> None:
    assert not [note for note in report_of(run_with_looks(tmp_path)).warnings if "was stopped as" in note]


def test_each_look_has_its_share_of_alpha_in_measures_classes_guards_and_error_rates(tmp_path: Path) -> None:
    guards = GUARDS + '[[guard]]\nmetric = "error_rate"\nmax = 0.05\n'
    one = report_of(Synthetic({"v1": GOOD}, blocks=8, rule=guards).write(tmp_path / "one"))
    two = report_of(Synthetic({"v1": GOOD}, blocks=8, rule=guards, design=LOOKS).write(tmp_path / "two"))
    once, twice = one.arms[0], two.arms[0]
    for ours, theirs in zip(twice.measures, once.measures, strict=True):
        assert (ours.alpha, theirs.alpha) == (0.025, 0.05)
        pairs = [(ours.estimate, theirs.estimate)]
        pairs += [(a.estimate, b.estimate) for a, b in zip(ours.classes, theirs.classes, strict=True)]
        for a, b in pairs:
            assert a is not None
            assert b is not None
            assert a.mean == pytest.approx(b.mean)
            assert (a.half_width or 0) > (b.half_width or 0) > 0
    for wide, narrow in zip(twice.guards, once.guards, strict=True):
        assert (wide.high or 0) > (narrow.high or 0), wide.metric
    # The A/A check ends nothing, so it has no share: only the last one stands.
    assert [item.estimate for item in two.aa] == [item.estimate for item in one.aa]


def test_a_run_that_looks_ended_early_is_finished(tmp_path: Path) -> None:
    events = [decided("v1", 5, "reject"), decided("v2", 5, "adopt")]
    report = report_of(run_with_looks(tmp_path, done_blocks=5, events=events))
    assert report.course.finished
    assert [arm.verdict.word for arm in report.arms] == ["reject", "adopt"]
    assert report.exit_code == 0


def test_what_a_look_saw_holds_no_later_block(tmp_path: Path) -> None:
    path = run_with_looks(tmp_path)
    bench = make_bench(read_run(path), load_experiment(path / RULE))
    seen = bench_at(bench, stopped_arms(bench.run)["v1"])
    assert set(seen.frame["block"].unique()) == set(range(1, 6)) == set(seen.course.blocks)
    assert {boot.facts.block for boot in seen.run.boots} == set(range(1, 6))


# What an amendment leaves in a run, as `replay --amend` writes it.
def amend(path: Path, *, before: int, reason: str = "three more blocks", told: bool = True) -> Path:
    run = read_run(path)
    old = (path / RULE).read_bytes()
    new = old.replace(b"margin = 0.10", b"margin = 0.11")
    assert new != old
    write_whole(path / f"{RULE}.1", old)
    write_whole(path / RULE, new)
    experiment = load_experiment(path / RULE)
    amendment = {
        "reason": reason,
        "boots_before": before,
        "kept_as": f"{RULE}.1",
        "old": {"bytes_sha256": hashlib.sha256(old).hexdigest()},
        "new": {"bytes_sha256": experiment.bytes_sha256, "semantic_sha256": experiment.semantic_sha256},
    }
    rule = {**run.manifest["rule"], **amendment["new"], "amendments": [amendment]}  # type: ignore[dict-item]
    write_whole(path / "manifest.json", encode_pretty({**run.manifest, "rule": rule}))
    events = list(run.events)
    if told:
        events.insert(1, {"event": "rule_amended", "wall_ns": WALL_NS + HOUR_NS, **amendment})
    events[0] = {**events[0], "rule_sha256": amendment["old"]["bytes_sha256"]}  # type: ignore[index]
    write_whole(path / "events.jsonl", b"".join(encode_pretty(event).replace(b"\n", b"") + b"\n" for event in events))
    return path


def test_boots_before_an_amendment_make_the_run_post_hoc_and_nothing_is_adopted(tmp_path: Path) -> None:
    path = amend(Synthetic({"v1": GOOD, "v2": BAD}).write(tmp_path / "run"), before=6)
    report = report_of(path)
    assert report.invalid == ()
    assert report.post_hoc is not None
    assert "after 6 boots (three more blocks)" in report.post_hoc
    good, bad = report.arms
    assert good.verdict.word == "inconclusive"
    assert "adopt is blocked: the rule was amended after 6 boots" in good.verdict.reasons[0]
    assert good.measures[0].zone == "gain"  # shown all the same
    assert bad.verdict.word == "reject"
    text = " ".join(format_report(report).split())
    assert "POST HOC: the rule was amended after 6 boots (three more blocks)" in text
    assert "fixed 1 h 00 min AFTER the first boot" in text  # the rule of this hash was


def test_an_amendment_before_the_first_boot_costs_nothing(tmp_path: Path) -> None:
    report = report_of(amend(Synthetic({"v1": GOOD}).write(tmp_path / "run"), before=0))
    assert (report.post_hoc, report.arms[0].verdict.word) == (None, "adopt")


def test_a_rule_to_which_no_amendment_leads_makes_the_run_invalid(tmp_path: Path) -> None:
    report = report_of(amend(Synthetic({"v1": GOOD}).write(tmp_path / "run"), before=6, told=False))
    assert report.invalid == (
        "rule changed after the first boot: no amendment in events.jsonl leads to the one in the manifest",
    )


def test_a_lost_or_changed_old_rule_is_a_note(tmp_path: Path) -> None:
    path = amend(Synthetic({"v1": GOOD}).write(tmp_path / "run"), before=6)
    assert not [note for note in report_of(path).warnings if "before an amendment" in note]
    write_whole(path / f"{RULE}.1", b"[rule]\n")
    assert [note for note in report_of(path).warnings if f"{RULE}.1, the rule before an amendment" in note]


def test_a_run_that_was_done_is_not_finished_once_an_amendment_adds_blocks(tmp_path: Path) -> None:
    path = Synthetic({"v1": GOOD}, blocks=8, done_blocks=5).write(tmp_path / "run")
    run, experiment = read_run(path), load_experiment(path / RULE)
    amended = replace(run, events=(*run.events, {"event": "rule_amended", "boots_before": 15, "reason": "more"}))
    assert judge(run, experiment).course.finished
    assert not judge(amended, experiment).course.finished
    assert post_hoc_reason(amended, experiment) is not None


def test_a_reformatted_rule_is_a_note_and_nothing_else(tmp_path: Path) -> None:
    path = Synthetic({"v1": GOOD}, events=[{"event": "rule_reformatted"}]).write(tmp_path / "run")
    report = report_of(path)
    assert "experiment.toml was reformatted after the run started; its meaning is unchanged" in report.warnings
    assert report.arms[0].verdict.word == "adopt"
