"""Measures at a concurrency of their own: when a rule may have them, and how they are judged."""

import math
from pathlib import Path
from typing import Any

import pytest
from recorded import MODEL, write_profile
from synthetic_run import CLASSES, GUARDS, Effect, Synthetic, with_windows
from virtual import VirtualClock

from analysis.course import reached_share
from analysis.document import verdict_document
from analysis.findings import Report
from analysis.guards import reached
from analysis.judge import judge
from analysis.measured import pairs_at
from analysis.measures import higher_is_better, title_of
from analysis.table import format_report
from analysis.verdict import Evidence, MeasureFinding, decide, table
from profiles.concurrency import OperatingPoint
from profiles.errors import RuleError
from profiles.experiment import load_experiment
from profiles.experiment_checks import LoadFacts, check_against_profile, measure_parts, requests_for_error_rate
from profiles.profile import read_profile
from profiles.runs import RULE, BootFacts, read_run
from replay.plan import plan_run

TTFT = '\n[[measure]]\nname = "ttft"\nmaterial = { relative = 0.02, absolute_ms = 5 }\n'
HEADROOM = 'headroom_reason = "we will double the users in spring"\n'


def at_c(name: str, *, material: float = 0.03, margin: float = 0.05, headroom: bool = True) -> str:
    text = f'\n[[measure]]\nname = "{name}"\nmaterial = {{ relative = {material} }}\nmargin = {margin}\n'
    return text + (HEADROOM if headroom else "")


def rule_of(tmp_path: Path, measures: str, *, load: str = "", more: str = "") -> Path:
    path = tmp_path / "experiment.toml"
    engine = f'[engine]\nargv = ["python3", "-c", "pass"]\nmodel = "{MODEL}"\n'
    text = '[rule]\nid = "r"\n[profile]\npath = "profile"\n' + engine + f"[load]\nrequests_per_boot = 8\n{load}"
    path.write_text(text + '[design]\nblocks = 3\n[[arm]]\nname = "v0"\n[[arm]]\nname = "v1"\n' + measures + more)
    return path


def production(**arrivals: int) -> LoadFacts:
    """A load that lives at c = 1 to 3."""
    found = {int(name[1:]): count for name, count in arrivals.items()} or {1: 700, 2: 250, 3: 50}
    return LoadFacts(OperatingPoint((1, 2, 3), {1: 0.7, 2: 0.25, 3: 0.05}, 0.95, 1.0), found, 10**15, max(found))


def check(path: Path, load: LoadFacts) -> None:
    check_against_profile(load_experiment(path), load=load, content="full")


@pytest.mark.parametrize("name", ["throughput@c=8", "ttft@c=8", "tpot@c=8"])
def test_a_measure_where_production_never_is_may_not_decide(tmp_path: Path, name: str) -> None:
    path = rule_of(tmp_path, at_c(name, headroom=False) + TTFT)
    with pytest.raises(RuleError) as refused:
        check(path, production())
    said = str(refused.value)
    line = path.read_text().splitlines().index(f'name = "{name}"') + 1
    assert said.startswith(f"{path}:{line}: measure[0].name: {name} may not decide: production lives at c = 1–3, and ")
    assert "0.0 % of the arrivals reach c = 8 (0 of 1000)" in said
    assert 'role = "advisory"' in said
    assert "headroom_reason" in said


def test_a_headroom_reason_or_enough_arrivals_let_it_decide(tmp_path: Path) -> None:
    check(rule_of(tmp_path, at_c("throughput@c=8")), production())
    bare = rule_of(tmp_path, at_c("throughput@c=8", headroom=False))
    check(bare, production(c1=900, c9=10, c2=90))  # one in a hundred meets 8 or more
    with pytest.raises(RuleError, match=r"0\.9 % of the arrivals"):
        check(bare, production(c1=900, c9=9, c2=91))


def test_the_replay_refuses_it_before_anything_is_booted(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    loaded = load_experiment(rule_of(tmp_path, at_c("throughput@c=8", headroom=False)))
    with pytest.raises(RuleError, match="may not decide: production lives at c = 1"):
        plan_run(loaded, read_profile(loaded.profile_path), VirtualClock())


@pytest.mark.parametrize(
    ("measures", "load", "said"),
    [
        (at_c("throughput@c=4"), "", r"measure\[0\].name: nothing measures c = 4\n.*closed c=4 for 60s"),
        (at_c("ttft@c=8"), 'also = ["sweep c=1..8"]\n', "nothing measures c = 8"),  # a sweep describes
        (at_c("throughput"), "", r"'throughput' is unknown\n.*throughput@c=N"),
        (at_c("ttft@c=x"), "", "'ttft@c=x' is unknown"),
        (at_c("ttft"), "", "a headroom_reason is for a measure at a concurrency of its own"),
        (at_c("throughput@c=8").replace("relative = 0.03", "absolute_ms = 5"), "", "a throughput has no milliseconds"),
        (at_c("throughput@c=8", margin=1.0), "", r"measure\[0\].margin: a throughput cannot fall by 100 %"),
        (at_c("tpot@c=8").replace(HEADROOM, 'headroom_reason = " "\n'), "", r"headroom_reason: is empty"),
        (at_c("ttft@c=8") * 2, "", "each measure must appear once"),
    ],
)
def test_what_no_window_could_say_is_refused(tmp_path: Path, measures: str, load: str, said: str) -> None:
    with pytest.raises(RuleError, match=said):
        load_experiment(rule_of(tmp_path, measures, load=load))


def test_names_and_titles() -> None:
    assert measure_parts("ttft") == {"measure": "ttft"}
    assert measure_parts("throughput@c=8") == {"measure": "throughput", "c": "8"}
    assert measure_parts("ttft@c=") is None
    assert [title_of(name) for name in ("ttft", "tpot@c=2", "throughput@c=8")] == [
        "TTFT",
        "TPOT at c = 2",
        "throughput at c = 8",
    ]
    assert [higher_is_better(name) for name in ("ttft@c=8", "throughput@c=8")] == [False, True]


def test_an_error_rate_needs_more_requests_where_looks_share_alpha(tmp_path: Path) -> None:
    assert (requests_for_error_rate(0.01), requests_for_error_rate(0.01, 2)) == (299, 368)
    guard = '[[guard]]\nmetric = "error_rate"\nmax = 0.01\n'
    text = rule_of(tmp_path, TTFT, more=guard).read_text().replace("requests_per_boot = 8", "requests_per_boot = 75")
    path = tmp_path / "experiment.toml"
    path.write_text(text.replace("blocks = 3", "blocks = 4"))
    load_experiment(path)
    path.write_text(text.replace("blocks = 3", "blocks = 4\nlooks = [3, 4]"))
    with pytest.raises(RuleError, match="by 300 requests per arm; it needs 368"):
        load_experiment(path)


@pytest.mark.parametrize("looks", [[2, 5], [0, 5], [-1, 5]])
def test_a_look_that_could_decide_nothing_is_refused(tmp_path: Path, looks: list[int]) -> None:
    path = rule_of(tmp_path, TTFT)
    path.write_text(path.read_text().replace("blocks = 3", f"blocks = 5\nlooks = {looks}"))
    with pytest.raises(RuleError, match=r"design.looks: a look after -?\d of the blocks cannot decide"):
        load_experiment(path)


# How they are judged.
def report_of(path: Path) -> Report:
    return judge(read_run(path), load_experiment(path / RULE))


def run_of(tmp_path: Path, effect: Effect, measures: str, **more: Any) -> Report:
    return report_of(Synthetic({"v1": effect}, rule=measures + GUARDS, **more).write(tmp_path / "run"))


def scattered(facts: BootFacts) -> BootFacts:
    """Rates that differ a little from boot to boot."""
    windows = {window.name: window.output_tokens for window in facts.windows}
    noise = 1 + 0.004 * math.sin(7 * facts.block + 3 * facts.slot)
    return with_windows(facts, "closed-c8", output_tokens=round(windows["closed-c8"] * noise))


@pytest.mark.parametrize(
    ("change", "zone", "no_worse", "word"),
    [
        (0.10, "gain", "no worse", "adopt"),
        (0.0, "no gain", "no worse", "reject"),
        (-0.10, "no gain", "worse", "reject"),
    ],
)
def test_more_throughput_is_a_gain_and_less_is_a_loss(
    tmp_path: Path, change: float, zone: str, no_worse: str, word: str
) -> None:
    report = run_of(tmp_path, Effect(throughput=change), at_c("throughput@c=8"), edit_boot=scattered)
    (arm,) = report.arms
    (finding,) = arm.measures
    assert (arm.verdict.word, finding.zone, finding.no_worse) == (word, zone, no_worse)
    assert finding.estimate is not None
    assert math.expm1(finding.estimate.mean) == pytest.approx(change, abs=0.01)  # as the measure itself changes
    assert math.expm1(finding.line) == pytest.approx(0.03)
    assert finding.coverage is finding.baseline_ms is None
    assert finding.classes == ()
    document = verdict_document(report)["arms"][0]["measures"][0]
    assert document["change"] == pytest.approx(change, abs=0.01)
    assert document["line"] == pytest.approx(0.03)
    assert document["p_not_material"] < 0.001 if change > 0 else document["p_not_material"] > 0.99
    assert "throughput at c = 8: a gain is material from 3.0 %" in " ".join(format_report(report).split())


def test_a_throughput_of_classes_that_were_played_alone_makes_a_split(tmp_path: Path) -> None:
    effect = Effect(tokens={"chat": 0.2, "short_qa": -0.2})

    def noisy(facts: BootFacts) -> BootFacts:
        for name in CLASSES:
            window = f"closed-c8-for-60s-{name}"
            (own,) = [item for item in facts.windows if item.name == window]
            noise = 1 + 0.004 * math.sin(7 * facts.block + 3 * facts.slot + len(name))
            facts = with_windows(facts, window, output_tokens=round(own.output_tokens * noise))
        return facts

    report = run_of(tmp_path, effect, at_c("throughput@c=8"), per_class=True, edit_boot=noisy)
    (arm,) = report.arms
    directions = {item.name: item.direction for item in arm.measures[0].classes}
    assert directions == {"chat": "gain", "json_extraction": "open", "rag_long": "open", "short_qa": "loss"}
    assert arm.verdict.word == "workload-dependent"
    assert arm.verdict.reasons[0] == "throughput at c = 8: chat gains, short_qa loses"
    gains = next(item for item in arm.measures[0].classes if item.name == "chat")
    assert gains.estimate is not None
    assert gains.estimate.mean > 0.1


def test_ttft_at_c_is_judged_by_the_pairs_of_its_window_alone(tmp_path: Path) -> None:
    """The deciding windows hold c = 1 to 3; only the one at c = 2 is slower."""

    def slower(arm: str, block: int, outcome: Any) -> Any:
        if arm != "v1" or outcome.window != "closed-c2":
            return outcome
        from msgspec.structs import replace

        late_ns = round(0.2 * (outcome.response.first_token_ns - outcome.send_started_ns))
        moved = {name: getattr(outcome.response, name) + late_ns for name in ("first_token_ns", "last_token_ns")}
        return replace(outcome, end_ns=outcome.end_ns + late_ns, response=replace(outcome.response, **moved))

    made = Synthetic(
        {"v1": Effect()},
        rule=at_c("ttft@c=2", headroom=False) + TTFT,
        load='also = ["closed c=2 for 60s"]\n',
        edit_outcome=slower,
    )
    report = report_of(made.write(tmp_path / "run"))
    at_two, mix = report.arms[0].measures
    assert at_two.estimate is not None
    assert mix.estimate is not None
    assert at_two.estimate.mean == pytest.approx(math.log(1.2), abs=0.02)
    assert mix.estimate.mean == pytest.approx(0.3 * math.log(1.2), abs=0.02)  # three requests in ten
    assert at_two.coverage == 1.0
    assert {item.name for item in at_two.classes} == set(CLASSES)
    pairs = pairs_at(report.run, report.data.contrast("v1", "v0"), 2)
    assert set(pairs["window"].unique()) == {"closed-c2"}


def test_a_run_whose_rule_decides_where_production_never_is_is_invalid(tmp_path: Path) -> None:
    report = run_of(tmp_path, Effect(throughput=0.1), at_c("throughput@c=8", headroom=False), edit_boot=scattered)
    assert report.invalid == ("throughput@c=8 decides, and production never reaches c = 8 (0.0 % of its arrivals)",)
    assert report.exit_code == 4


def test_where_nobody_recorded_arrivals_the_declared_levels_say_what_is_reached(tmp_path: Path) -> None:
    def declared(manifest: dict[str, Any]) -> None:
        manifest["profile"]["arrivals_at"] = {}

    run = read_run(Synthetic({"v1": Effect()}, edit_manifest=declared).write(tmp_path / "run"))
    assert [reached_share(run, c) for c in (1, 2, 3, 4)] == pytest.approx([1.0, 0.4, 0.1, 0.0])
    assert reached(run, 3)
    assert not reached(run, 4)


def test_a_bench_that_cannot_tell_the_baseline_from_itself_at_c_is_invalid(tmp_path: Path) -> None:
    report = run_of(
        tmp_path, Effect(), at_c("throughput@c=8") + TTFT, copy=Effect(throughput=0.08), edit_boot=scattered
    )
    assert len(report.invalid) == 1
    said = "A/A failed: the bench sees a difference between v0 and itself (throughput at c = 8 +"
    assert report.invalid[0].startswith(said)
    assert [item.measure for item in report.aa] == ["throughput@c=8", "ttft"]


def test_a_measure_that_most_blocks_lack_decides_nothing(tmp_path: Path) -> None:
    def unsound(facts: BootFacts) -> BootFacts:
        facts = scattered(facts)
        return with_windows(facts, "closed-c8", invalid="the client was late") if facts.block > 2 else facts

    report = run_of(tmp_path, Effect(throughput=0.2), at_c("throughput@c=8"), edit_boot=unsound)
    (arm,) = report.arms
    assert arm.blocks == 5
    assert (arm.measures[0].zone, arm.measures[0].no_worse) == ("open", "not shown")
    assert arm.verdict.word == "inconclusive"
    assert arm.verdict.reasons[0] == "throughput at c = 8 is open: only 2 blocks have it, at least 3 are needed"


def test_without_a_material_line_the_arms_share_alpha(tmp_path: Path) -> None:
    bare = '\n[[measure]]\nname = "ttft"\nmaterial = { relative = 0.0 }\n[[measure]]\nname = "tpot"\n'
    arms = {f"v{number}": Effect() for number in (1, 2, 3)}
    report = report_of(Synthetic(arms, rule=bare).write(tmp_path / "run"))
    ttft, tpot = report.arms[0].measures
    assert (ttft.line, tpot.alpha) == (0.0, 0.05)
    assert ttft.alpha == pytest.approx(0.05 / 3)
    alone = report_of(Synthetic({"v1": Effect()}, rule=bare).write(tmp_path / "alone"))
    assert alone.arms[0].measures[0].alpha == 0.05
    assert not [note for note in report.warnings if "the mean alone is beyond the material line" in note]


# More than two measures.
def finding(name: str, zone: str, no_worse: str = "no worse") -> MeasureFinding:
    return MeasureFinding(name, zone, no_worse)  # type: ignore[arg-type]


FLAT = finding("ttft", "no gain")


@pytest.mark.parametrize(
    ("findings", "word", "reason"),
    [
        ([FLAT, finding("tpot", "no gain"), finding("throughput@c=8", "gain")], "adopt",
         "TTFT is no worse, TPOT is no worse, throughput at c = 8 gains materially"),
        ([FLAT, finding("tpot", "no gain"), finding("throughput@c=8", "no gain")], "reject",
         "no material gain on TTFT, TPOT or throughput at c = 8"),
        ([FLAT, finding("tpot", "no gain", "worse"), finding("throughput@c=8", "gain")], "reject",
         "the gain on throughput at c = 8 is bought with TPOT"),
        ([FLAT, finding("tpot", "gain"), finding("throughput@c=8", "no gain", "worse")], "reject",
         "the gain on TPOT is bought with throughput at c = 8"),
        ([finding("ttft", "gain"), finding("tpot", "no gain"), finding("throughput@c=8", "open", "not shown")],
         "inconclusive", "TTFT gains, but throughput at c = 8 is not shown to be no worse"),
        ([finding("ttft", "gain"), finding("tpot", "open"), finding("throughput@c=8", "open")], "adopt",
         "TTFT gains materially, TPOT and throughput at c = 8 are no worse"),
        ([finding("ttft", "no gain", "not shown"), finding("tpot", "gain"), finding("throughput@c=8", "gain")],
         "inconclusive", "no material gain on TTFT, which is not shown to be no worse"),
    ],
)  # fmt: skip
def test_every_measure_has_its_say(findings: list[MeasureFinding], word: str, reason: str) -> None:
    assert table(*findings) == (word, reason)
    assert decide(Evidence("v1", "v0", tuple(findings))).word == word
