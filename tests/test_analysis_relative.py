"""A relative report tells nothing of the machine, in any of its forms."""

import html
import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import synthetic_run
from click.testing import CliRunner
from synthetic_run import TPOT_MS, Effect, Synthetic
from test_analysis_report import squeeze

from analysis.cli import report
from analysis.document import verdict_document
from analysis.findings import Report
from analysis.judge import judge
from analysis.markdown import format_markdown
from analysis.operating_point import never_above
from analysis.page.figures import effects
from analysis.page.html import render_page
from analysis.relative import relative_document, relative_report
from analysis.scrub import LEFT_OUT, Words, scrub
from analysis.table import format_report
from profiles.experiment import load_experiment
from profiles.runs import FAILED, RULE, BootFacts, LogFinding, read_run
from profiles.units import MILLISECOND_NS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no token for 300 s", "no token for … s"),
        ("GPU 0 ran at 2411 of 3003 MHz", "GPU 0 ran at … MHz"),
        ("tried to allocate 20.00 GiB of 31.4 GB", "tried to allocate … GiB of … GB"),
        ("6 blocks in all = 10 h 00 min of machine time", "6 blocks in all = … h … min of machine time"),
        ("closed-c8-for-60s-chat", "closed-c8-for-…s-chat"),
        ("client_lag_p99_ms > 20", "client_lag_p99_ms > …"),
        ("p99 was 2.00 ms", "p99 was … ms"),
        ("kv cache 65,536 tokens", "kv cache … tokens"),
        ("120 tokens/s → 130 tokens/s", "… tokens/s → … tokens/s"),
        ("read /models/q3/x.gguf, then", "read …, then"),
        ("read '~/my models/a' twice", "read … twice"),
        ("$HOME/x/y and ../z", "… and …"),
        ("see boots/01-01-v1/engine.log", "see …"),
        ("http://spark-12:8000/v1 refused", "… refused"),
        ("10.0.0.3:8000 and spark-1.local:8000", "… and …"),
        ("[fe80::1:2:3]", "…"),
        ("on 2026-11-02T10:11:12Z at 10:11:12", "on … at …"),
        ("pid 4711 on port 8000", "pid … on port …"),
        ("on gpu01.corp.example and spark-1.lan", "on … and …"),
        ("throttled at 87 C, then 88 °C", "throttled at … C, then … °C"),
        ("with 4,096 prompt tokens and 70 cached prompt tokens", "with … prompt tokens and … cached prompt tokens"),
        ("since Nov 30, 3 May 2026 and 30.11.2026", "since …, … and …"),
        ("Qwen/Qwen3-30B or openai/gpt-oss-20b or Llama-3.1-8B-Instruct", "… or … or …"),
        (r"see C:\Users\alice\run, and \\nas\models", "see …, and …"),
        ("vLLM v0.11.2, or CUDA 13.0", "vLLM …, or CUDA …"),
    ],
)
def test_what_is_absolute_goes(text: str, shown: str) -> None:
    assert scrub(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "guard throughput@c=8 −0.0 % [−0.6 %, +0.6 %]: pass (margin 10 %, deciding)",
        "Decided at c=1 60 %, c=2 30 %, c=3 10 %",
        "at c = 1 to 3: 100.0 %; 4 of 5 blocks complete, 25 boots",
        "p90 not reported (n = 12 per boot, 36 needed)",
        "only 3 of 60 requests could be paired and/or kept",
        "setting cudagraph_mode=PIECEWISE",
        "in load.also of experiment.toml; A/A, TTFT/TPOT, v0/v1, v0.aa and p50/p90",
        "firsttoken 0.1.0: it may take 3 of 5 blocks, e.g. 12 % more tokens a step",
        "acceptance length 2.99 → 3.95",
        "unstable: 1 of 1 boots failed: exit code 1",
    ],
)
def test_what_is_relative_stays(text: str) -> None:
    assert scrub(text) == text


def test_names_of_the_rule_stay_whatever_they_look_like() -> None:
    words = Words(keep=("wait 60 s", "v1_2026-12-01", "rag/2k"), drop=("demo-host",))
    text = "v1_2026-12-01 beats wait 60 s on rag/2k; demo-host took 60 s"
    assert scrub(text, words) == "v1_2026-12-01 beats wait 60 s on rag/2k; … took … s"


SECRETS = {
    "path": "/srv/secret/models",
    "host": "spark-4711",
    "model": "secret-labs/tower-9B",
    "user": "adalovelace",
    "container": "tower_blue_moon",
    "flag": "/opt/tower/draft.safetensors",
    "address": "10.11.12.13",
    "date": "2031-03-04",
    "memory": "19.37 GiB",
    "clock": "2411 MHz",
    "url": "tower.internal.example",
}


def telling(facts: BootFacts) -> BootFacts:
    """A boot that tells all of them: in its command line, its identity, its log and why it failed."""
    ended: dict[str, Any] = {}
    if facts.arm == "v2" and facts.block == 2:
        said = (
            f"CUDA out of memory on {SECRETS['host']} at {SECRETS['date']}: tried {SECRETS['memory']} for "
            f"{SECRETS['path']}/a.gguf as {SECRETS['user']}, {SECRETS['address']}"
        )
        ended = {"status": FAILED, "reason": said, "diagnosis": "died"}
    line = f"WARNING {SECRETS['flag']} not used on {SECRETS['host']}, {SECRETS['memory']} free"
    return msgspec.structs.replace(
        facts,
        argv=["vllm", "serve", SECRETS["model"], "--draft", SECRETS["flag"]],
        model=SECRETS["model"],
        identity={"container": SECRETS["container"], "host": SECRETS["host"], "user": SECRETS["user"]},
        override={"model": SECRETS["model"]},
        kv_tokens=123_457,
        findings=[LogFinding(id="V06", severity="fallback", signature=line)] if facts.arm == "v1" else [],
        checked={"thermal_throttle": f"not checked: no sensor at {SECRETS['url']}:9400, {SECRETS['clock']}"},
        **ended,
    )


def tell_in_manifest(manifest: dict[str, Any]) -> None:
    manifest["profile"]["path"] = SECRETS["path"] + "/profile"
    manifest["environment"] = {"hostname": SECRETS["host"], "kernel": "6.8.0", "boot_id": "feed-beef-0001"}
    manifest["skipped"][0]["reason"] = f"needs {SECRETS['memory']} in {SECRETS['path']}, see http://{SECRETS['url']}/x"
    manifest["operating_point"]["mode_reason"] = f"no arrivals in {SECRETS['path']} on {SECRETS['host']}"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every form of the relative report of a run that tells everything, as text."""
    mixed = {"json_extraction": -0.16, "rag_long": -0.15, "short_qa": 0.09}
    run = Synthetic(
        {"v1": Effect(ttft=-0.1), "v2": Effect(), "v3": Effect(tpot=mixed, acceptance={"short_qa": 1.3})},
        baseline=Effect(acceptance={"short_qa": 1.2}),
        sweep=(1, 2),
        per_class=True,
        edit_boot=telling,
        edit_manifest=tell_in_manifest,
    )
    long = f"{SECRETS['path']}/{'deep/' * 20}{SECRETS['user']}-model"
    question = f"Since {SECRETS['date']}, does {long} help on {SECRETS['url']}:8000 within {SECRETS['memory']}?"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_run, "RULE_HEAD", synthetic_run.RULE_HEAD.replace("Do the flags help?", question))
        path = run.write(tmp_path_factory.mktemp("adalovelace-home") / "run-of-tower")
    assert "run-of-tower" in str(path)
    forms = {}
    for name, options in {"table": [], "markdown": ["--markdown"], "json": ["--json"]}.items():
        given = [str(path), "--relative", *options, "--no-html"]
        result = CliRunner().invoke(report, given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        forms[name] = result.stdout
    for name, options in {"page": [], "static page": ["--static"]}.items():
        CliRunner().invoke(report, [str(path), "--relative", *options], catch_exceptions=False)
        forms[name] = html.unescape((path / "report-relative.html").read_text(encoding="utf-8"))
    assert not (path / "verdict.json").exists()
    assert not (path / "report.html").exists()
    forms["verdict-relative.json"] = (path / "verdict-relative.json").read_text(encoding="utf-8")
    return forms


FORMS = ["table", "markdown", "json", "verdict-relative.json", "page", "static page"]


@pytest.mark.parametrize("form", FORMS)
def test_no_form_tells_of_the_machine(published: dict[str, str], form: str) -> None:
    """Escapes of Markdown aside, so that nothing hides behind a backslash."""
    text = published[form].replace("\\_", "_")
    for kind, secret in SECRETS.items():
        assert secret not in text, kind
    for word in ("run-of-tower", "adalovelace-home", "feed-beef", "123457", "123,457", "tower-9B"):
        assert word not in text
    assert "19.37" not in shown(text)  # a drawing may have a coordinate like it
    assert LEFT_OUT in text or "relative" in text


def shown(text: str) -> str:
    """What a reader sees of a page: no style, script or drawing."""
    for element in ("style", "script", "svg"):
        text = re.sub(rf"<{element}\b.*?</{element}>", "", text, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", text)


@pytest.mark.parametrize("form", FORMS)
def test_no_form_holds_a_duration_or_a_rate(published: dict[str, str], form: str) -> None:
    text = shown(published[form]) if "page" in form else published[form]
    assert not re.findall(r"(?<![\w.])\d[\d.,]*\s?(?:ms|s|min|h|GiB|MHz|tokens/s)\b", text)
    assert f"{TPOT_MS:.1f}" not in text
    assert "100 → 1" not in text  # rates of the limited windows


@pytest.mark.parametrize("form", ["table", "markdown", "json", "page", "static page"])
def test_verdicts_names_and_changes_stay(published: dict[str, str], form: str) -> None:
    text = published[form].replace("\\_", "_")
    for word in ("v1", "v2", "v3", "workload-dependent", "json_extraction", "short_qa", "fastsafetensors"):
        assert word in text


def test_numbers_of_latency_appear_nowhere_in_the_document(published: dict[str, str]) -> None:
    document = json.loads(published["json"])
    assert document["relative"] is True
    assert document["machine_time_s"] is None
    assert document["rule_fixed_before_s"] is None

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            assert abs(value) < MILLISECOND_NS

    walk(document)
    (arm,) = [arm for arm in document["arms"] if arm["arm"] == "v3"]
    assert {measure["baseline_ms"] for measure in arm["measures"]} == {None}
    assert {item["tokens_per_s"] for item in arm["throughput"]} == {None}
    assert arm["output_lengths"]["tokens"] is None
    assert arm["measures"][1]["change"] < -0.02


def test_the_run_behind_a_relative_report_holds_no_secret_to_print(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect()}, edit_boot=telling, edit_manifest=tell_in_manifest).write(tmp_path / "run")
    made = relative_report(judge(read_run(run), load_experiment(run / RULE)))
    assert made.relative
    assert relative_report(made) is made
    for boot in made.run.boots:
        assert (boot.facts.argv, boot.facts.identity, boot.facts.override) == ([], {}, {})
        assert (boot.facts.model, boot.facts.kv_tokens, boot.facts.boot_id) == (None, None, None)
    assert "environment" not in made.run.manifest
    told = repr((made.run.manifest, [boot.facts for boot in made.run.boots], made.arms, made.warnings))
    assert not [secret for secret in SECRETS.values() if secret in told]


# --- Lines that rest on milliseconds tell the latency.

NEAR = {"chat": 8.0, "json_extraction": 8.0, "rag_long": 9.0, "short_qa": 7.0}
SPLIT = {"chat": -0.9, "json_extraction": -0.9, "rag_long": -0.2, "short_qa": 4.0}


@pytest.mark.parametrize("blocks", [1, 5])
def test_a_line_that_rests_on_milliseconds_is_left_out_with_what_follows_from_it(tmp_path: Path, blocks: int) -> None:
    """5 ms at a baseline of 8 ms are a line of −63 %, and 5 ms / 0.63 is the latency."""
    path = Synthetic({"v1": Effect(ttft=SPLIT)}, ttft_ms=NEAR, blocks=blocks, rule="").write(tmp_path / "run")
    whole = judge(read_run(path), load_experiment(path / RULE))
    item = whole.arms[0].measures[0]
    assert item.line < math.log(0.5)
    known = [item.line, *(part.line for part in item.classes)]
    lines = {f"{-100 * math.expm1(line):.{digits}f}" for line in known for digits in (1, 2)}
    forms = [format_report(whole, relative=True), format_markdown(whole, relative=True)]
    forms += [shown(render_page(whole, static=True, relative=True)), *_texts(relative_report(whole))]
    document = relative_document(verdict_document(whole), whole)
    forms.append(json.dumps(document))
    assert not [line for line in lines for form in forms if line in form]
    measure = document["arms"][0]["measures"][0]
    assert (measure["line"], measure["p_not_material"]) == (None, None)
    assert {part["line"] for part in measure["classes"]} == {None}
    assert all(split["line"]["share"] is None for split in document["arms"][0]["split"])
    assert document["arms"][0]["measures"][1]["line"] == pytest.approx(-0.03)  # a share, and nobody's latency
    if blocks > 1:
        assert [split["measure"] for split in document["arms"][0]["split"]] == ["ttft"]
        assert "the line: " not in squeeze(forms[0])
        assert "here …, as it would tell the latency" in squeeze(forms[0])
        assert "the line: v1 alone" in squeeze(format_report(whole))


def _texts(report: Report) -> list[str]:
    arms = [text for arm in report.arms for text in arm.verdict.reasons]
    charts = [panel.alt + json.dumps(panel.spec) for panel in effects(report).panels]
    return [*arms, *(re.sub(r"gain −3\.0", "", chart) for chart in charts)]


def test_a_line_that_is_a_share_stays(tmp_path: Path) -> None:
    path = Synthetic({"v1": Effect(ttft=-0.1)}).write(tmp_path / "run")
    whole = judge(read_run(path), load_experiment(path / RULE))
    rag = next(part for part in relative_report(whole).arms[0].measures[0].classes if part.name == "rag_long")
    assert (rag.line_left_out, rag.line) == (False, math.log1p(-0.02))  # at 1.5 s milliseconds ask for less


def test_every_form_says_that_the_words_of_people_are_printed(published: dict[str, str]) -> None:
    for form in ("table", "markdown", "page", "static page"):
        assert "that people wrote are printed" in squeeze(shown(published[form]))


def test_what_was_never_seen_is_bounded_and_a_bound_tells_the_number_of_arrivals() -> None:
    seen = {1: 40.0, 2: 20.0, 3: 10.0}
    assert never_above(seen) == "never above 3 (0 of 70 arrivals, so at most 4.2 %)"
    assert never_above(seen, relative=True) == "never above 3 in what was recorded"
    assert never_above({1: 0.6, 3: 0.4}) == "never above 3"
    assert never_above({1: 10**6}) == "never above 1 (0 of 1000000 arrivals, so at most 0.000 %)"
