"""What a report says is true, said once, and the same in each form: lines, roles, reasons, the reference."""

import math
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import GUARDS, Effect, Synthetic
from test_analysis_report import arm_of, judged, squeeze
from test_measures_at_c import TTFT, at_c, scattered

from analysis.arm_points import direction_words, zones
from analysis.findings import Report
from analysis.heading import facts, reference_note
from analysis.judge import judge
from analysis.markdown import format_markdown
from analysis.outcome import outcome
from analysis.page.html import render_page
from analysis.stats import Estimate
from analysis.table import format_report
from analysis.verdict import ClassFinding, MeasureFinding
from profiles.experiment import load_experiment
from profiles.runs import RULE, LogFinding, read_run

MIXED = '[mixed]\naction = "adopt-on-mix"\n'
HALVES = {"chat": 0.10, "json_extraction": -0.25, "rag_long": -0.25, "short_qa": 0.10}


def report_of(path: Path, made: Synthetic) -> Report:
    run = made.write(path / "run")
    return judge(read_run(run), load_experiment(run / RULE))


def forms(report: Report) -> dict[str, str]:
    """Escapes of Markdown aside."""
    return {
        "terminal": squeeze(format_report(report)),
        "markdown": squeeze(format_markdown(report).replace("\\", "")),
        "page": squeeze(render_page(report, static=True)).replace("\N{NO-BREAK SPACE}", " ").replace("&nbsp;", " "),
    }


def line_of(report: Report) -> str:
    return dict(facts(report))["Lines"]


# --- The line that holds at this baseline.


def test_a_line_in_milliseconds_is_told_as_it_lies_here(tmp_path: Path) -> None:
    fast = dict.fromkeys(("chat", "json_extraction", "rag_long", "short_qa"), 10.0)
    report = report_of(tmp_path, Synthetic({"v1": Effect(ttft=-0.3)}, ttft_ms=fast))
    (item, _) = report.arms[0].measures
    here = f"(here −{-100 * math.expm1(item.line):.1f} %)"
    assert f"TTFT: a gain is material from 2.0 % and 5 ms {here}, no worse" in line_of(report)
    assert "TPOT: a gain is material from 3.0 %, no worse" in line_of(report)
    assert item.line < -0.5
    assert all(here in text for text in forms(report).values())


def test_a_baseline_faster_than_the_gain_asked_for_is_told(tmp_path: Path) -> None:
    fast = dict.fromkeys(("chat", "json_extraction", "rag_long", "short_qa"), 3.0)
    report = report_of(tmp_path, Synthetic({"v1": Effect(ttft=-0.5)}, ttft_ms=fast))
    for text in forms(report).values():
        assert "here no gain can be material: the baseline is faster than the gain asked for" in text
        assert "no gain (none can be material), no worse" in text
    assert zones(report.arms[0]).endswith("TPOT no gain, no worse")


def test_a_class_is_judged_by_a_line_of_its_own_and_the_document_holds_it(tmp_path: Path) -> None:
    slow = {"chat": 40.0, "json_extraction": 40.0, "rag_long": 2000.0, "short_qa": 30.0}
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.06)}, ttft_ms=slow))
    (measure, _) = arm_of(document, "v1")["measures"]
    classes = {item["class"]: item for item in measure["classes"]}
    assert classes["rag_long"]["line"] == pytest.approx(-0.02)
    assert classes["short_qa"]["line"] < -0.1
    assert (classes["rag_long"]["direction"], classes["short_qa"]["direction"]) == ("gain", "open")
    # Four classes of two measures share what the mix has alone.
    assert (measure["level"], classes["chat"]["level"]) == (pytest.approx(0.9), pytest.approx(1 - 0.1 / 8))


def test_the_two_intervals_of_a_class_name_their_level(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v3": Effect(tpot=HALVES)}))
    arm = arm_of(document, "v3")
    found = {item["class"]: item for item in arm["measures"][1]["classes"]}["json_extraction"]
    split = {item["class"]: item for item in arm["split"][0]["classes"]}["json_extraction"]
    assert (found["level"], split["level"]) == (pytest.approx(0.9875), pytest.approx(0.9))
    assert found["high"] - found["low"] > split["high"] - split["low"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (math.log(0.98), "open"),
        (math.log(0.95), "open (its own line is −5.0 %)"),
        (-math.inf, "open (no gain of its own can be material)"),
    ],
)
def test_the_line_of_a_class_is_told_where_that_of_the_mix_would_say_another_word(line: float, said: str) -> None:
    near = Estimate(5, -0.025 if said == "open" else -0.045, 0.005, 0.01)
    mix = MeasureFinding("ttft", "open", "no worse", near, math.log(0.98))
    assert direction_words(ClassFinding("short_qa", near, "open", line), mix) == said
    higher = MeasureFinding("throughput@c=8", "open", "no worse", near.negated(), -math.log(0.98))
    assert direction_words(ClassFinding("short_qa", near.negated(), "open", -line), higher).startswith(said[:22])


# --- What arms are held against.


def test_every_form_says_what_an_arm_is_held_against(tmp_path: Path) -> None:
    report = report_of(tmp_path, Synthetic({"v1": Effect()}))
    assert reference_note(report) == "An arm is held against the mean of both boots of v0 in its block"
    for text in forms(report).values():
        assert "An arm is held against the mean of both boots of v0 in its block." in text
    assert "v0.aa against the other one alone: its marks scatter more." in forms(report)["page"]
    assert "(99 % over all measures)" in forms(report)["page"]


def test_without_a_copy_nothing_is_said_of_two_boots(tmp_path: Path) -> None:
    def alone(manifest: dict[str, Any]) -> None:
        manifest["aa"] = None

    report = report_of(tmp_path, Synthetic({"v1": Effect()}, edit_manifest=alone))
    assert reference_note(report) is None
    assert "both boots" not in " ".join(forms(report).values())


# --- What decides, and what is only shown.


def test_rates_that_decide_are_never_said_to_decide_nothing(tmp_path: Path) -> None:
    rule = at_c("throughput@c=8") + TTFT
    made = Synthetic({"v1": Effect(throughput=0.1)}, rule=rule, per_class=True, edit_boot=scattered)
    report = report_of(tmp_path, made)
    texts = forms(report)
    assert "(the rates of throughput@c=8, which decides)" in texts["terminal"]
    assert "at a fixed c; the rates of throughput@c=8, which decides" in texts["page"]
    assert "The run decides at c = 1, 2, 3, 8." in texts["page"]
    for text in texts.values():
        assert "change in % (describes, decides nothing)" not in text


def test_rates_beside_a_guard_say_whether_it_decides(tmp_path: Path) -> None:
    for role, more, said in (
        ("deciding", 'headroom_reason = "x"\n', "beside the guard throughput@c=8, which decides by the mix"),
        ("advisory", "", "describes, decides nothing"),
    ):
        rule = GUARDS.replace('role = "advisory"\n', f'role = "{role}"\n{more}')
        made = Synthetic({"v1": Effect()}, rule=rule, per_class=True, edit_boot=scattered)
        texts = forms(report_of(tmp_path / role, made))
        assert f"change in % ({said})" in texts["terminal"]
        assert f"per second at a fixed c; {said}" in texts["page"]


def test_an_arm_adopted_by_its_mix_is_named_once(tmp_path: Path) -> None:
    effect = {"chat": 0.06, "json_extraction": -0.25, "rag_long": -0.25, "short_qa": 0.06}
    report = report_of(tmp_path, Synthetic({"v3": Effect(tpot=effect)}, rule=GUARDS + MIXED))
    assert report.arms[0].verdict.word == "workload-dependent"
    assert outcome(report) == "adopt v3 (workload-dependent, by its mix)"


# --- Said once, and as it is.


def test_a_log_whose_new_lines_the_rule_allows_is_not_said_to_have_none(tmp_path: Path) -> None:
    allowed = '[[boot_log.allow]]\nsignature = "falling back"\nreason = "known"\n'
    odd = Effect(findings=(LogFinding(id="x", severity="fallback", signature="WARNING falling back to eager"),))
    texts = forms(report_of(tmp_path / "allowed", Synthetic({"v1": odd}, rule=GUARDS + allowed)))
    for text in texts.values():
        assert "no fallback line that the baseline lacks but those that the rule allows" in text
    texts = forms(report_of(tmp_path / "clean", Synthetic({"v1": Effect()})))
    assert "lacks but those" not in " ".join(texts.values())


def test_a_blocker_is_told_once_in_full_and_named_where_it_matters(tmp_path: Path) -> None:
    made = Synthetic({"v1": Effect(ttft=-0.2, cached=400)}, baseline=Effect(cached=100))
    for name, text in forms(report_of(tmp_path, made)).items():
        assert text.count("cached tokens differ without being declared") == 1, name
        assert "would settle it: a new run without what blocks adopt" in text
        assert "to decide v1: a new run without what blocks adopt" in text


def test_a_page_without_a_sweep_does_not_say_that_the_rule_asks_for_one(tmp_path: Path) -> None:
    page = forms(report_of(tmp_path, Synthetic({"v1": Effect()})))["page"]
    assert "This run has no sweep. With also = [&#34;sweep c=1..8&#34;] in [load], a rule asks for one." in page
    assert "the rule asks for one" not in page
