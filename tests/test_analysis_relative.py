"""A relative report tells nothing of the machine, in any of its forms."""

import html
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import synthetic_run
from click.testing import CliRunner
from synthetic_run import TPOT_MS, Effect, Synthetic

from analysis.cli import report
from analysis.judge import judge
from analysis.relative import LEFT_OUT, Words, relative_report, scrub
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
