"""The whole pipeline on a real engine: llama.cpp's HTTP server with a small generated model.

Traffic that repeats its documents is recorded with bodies, then replayed on cold-booted arms: without the prompt cache,
and with drafts of two kinds. What is reported of them is held against what the engine says of each single request.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest

from analysis.acceptance import acceptance_by_class
from profiles.captures import read_capture
from profiles.counters import acceptance
from profiles.records import ENGINE, ERROR, Outcome
from profiles.runs import Boot, Run, WindowFacts, read_run
from profiles.units import SECOND_NS
from replay.bootlog import scan_log
from replay.client import Planned, Slot, Timeouts
from replay.clock import SystemClock
from replay.engines import EngineProcess, free_port, wait_listening

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
EXAMPLE = ROOT / "examples" / "llamacpp"
# One thread: the client and the recorder need the other core. Without host memory for old prompts only what a slot
# still holds is reused, and that is what we test.
FLAGS = ("--alias", "small", "-np", "2", "-t", "1", "--metrics", "--no-ui", "--cache-ram", "0")

pytestmark = [pytest.mark.process, pytest.mark.e2e]


def server(model: Path, port: object, *flags: str) -> list[str]:
    return [sys.executable, str(EXAMPLE / "llama_server.py"), "-m", str(model), "--port", str(port), *FLAGS, *flags]


def reason_to_skip() -> str | None:
    """Why llama.cpp cannot run here, or None. Asked in a child: an unknown instruction would kill this process."""
    done = subprocess.run([sys.executable, "-c", "import xllamacpp"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    if done.returncode == -signal.SIGILL:
        return "this processor lacks an instruction that llama.cpp's package needs"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"llama.cpp's package cannot be loaded here: {lines[-1]}"


def firsttoken(*arguments: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "firsttoken", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300)


def engines_of(folder: Path) -> list[list[str]]:
    """Command lines of servers that have their model there and are alive."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.startswith(f"{folder}/") for word in words) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(words)
    return found


# -- recorded traffic --------------------------------------------------------------------------------------------------

DOCUMENTS = [
    f"Document {number}. The harbour of town {number} was dredged in spring, and {number} ships a day may enter it. "
    * 4
    for number in range(4)
]
QUESTIONS = ("How many ships may enter?", "When was it dredged?", "Which town is it?")
# A string, which goes on until the answer's limit: what the model says is letters at random.
FORM = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
AS_JSON = {"response_format": {"type": "json_schema", "json_schema": {"name": "town", "schema": FORM}}}
OUTPUT_TOKENS = 24


def chat(text: str, **fields: Any) -> dict[str, Any]:
    asked = {"model": "small", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    return asked | {"max_tokens": OUTPUT_TOKENS, "messages": [{"role": "user", "content": text}]} | fields


async def converse(base_url: str) -> int:
    """Two people, each asking every question about two documents, one of them for JSON."""

    async def person(client: httpx.AsyncClient, documents: list[str], fields: dict[str, Any]) -> int:
        sent = 0
        for document in documents:
            for question in QUESTIONS:
                answer = await client.post("/v1/chat/completions", json=chat(f"{document}\n{question}", **fields))
                assert answer.status_code == 200, answer.text
                assert answer.text.endswith("data: [DONE]\n\n")
                sent += 1
                await asyncio.sleep(0.25)
        return sent

    async with httpx.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as client:
        return sum(await asyncio.gather(person(client, DOCUMENTS[:2], {}), person(client, DOCUMENTS[2:], AS_JSON)))


@asynccontextmanager
async def engine_and_recorder(folder: Path, model: Path, *flags: str) -> AsyncIterator[tuple[str, str]]:
    """The addresses of an engine and of a recorder in front of it, which writes `capture`."""
    clock = SystemClock()
    engine_port, record_port = free_port(HOST), free_port(HOST)
    record_argv = [sys.executable, "-m", "firsttoken", "record", "--bodies", "full", "--out", str(folder / "capture")]
    record_argv += ["--upstream", f"http://{HOST}:{engine_port}", "--listen", f"{HOST}:{record_port}"]
    engine_argv = server(model, engine_port, *flags)
    started: list[EngineProcess] = []
    try:
        for name, argv, port in (("engine", engine_argv, engine_port), ("record", record_argv, record_port)):
            process = await EngineProcess.start(
                argv, env=ENVIRONMENT, cwd=folder, log=folder / f"{name}.log", host=HOST, port=port, clock=clock
            )
            started.append(process)
            await wait_listening(process, clock, patience_ns=60 * SECOND_NS)
        yield f"http://{HOST}:{engine_port}", f"http://{HOST}:{record_port}"
    finally:
        for process in reversed(started):
            await process.stop(10 * SECOND_NS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `small.gguf`, `capture` and `profile`."""
    why = reason_to_skip()
    if why is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("llamacpp")
    model = folder / "small.gguf"
    make = [sys.executable, str(EXAMPLE / "make_model.py"), str(model), "--width", "192", "--layers", "4"]
    subprocess.run(make, check=True)

    async def record() -> int:
        async with engine_and_recorder(folder, model, "-c", "8192") as (_, recorder):
            return await converse(recorder)

    assert asyncio.run(record()) == 12
    built = firsttoken("profile", "build", "capture", "-o", "profile", cwd=folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_what_a_real_client_asks_is_recorded_with_its_concurrency(folder: Path) -> None:
    capture = read_capture(folder / "capture")
    assert [exchange.outcome for exchange in capture.exchanges] == ["ok"] * 12
    assert all(exchange.response.output_tokens == OUTPUT_TOKENS for exchange in capture.exchanges)
    assert all(body is not None and b"harbour" in body for body in capture.bodies)
    shown = firsttoken("concurrency", "capture", "--json", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    concurrency = orjson.loads(shown.stdout)
    assert concurrency["requests"] == 12
    assert 1 <= concurrency["max"] <= 2
    assert engines_of(folder) == []


# -- replays -----------------------------------------------------------------------------------------------------------

EXPERIMENT = """
[rule]
id       = "{id}"
question = "What does it do for this traffic?"
[profile]
path = "profile"
[engine]
argv            = {argv}
model           = "small"
cache_isolation = "nonce"     # llama.cpp takes no cache_salt
[discard]
when = []                     # two shared cores: what is measured here is far above their noise
[[arm]]
name     = "plain"
baseline = true
"""
NO_CACHE = """
[load]
requests_per_boot = 24
also              = []
warmup_per_class  = 1
[design]
blocks = 3
seed   = 5
[[arm]]
name    = "uncached"
args    = ["--no-cache-prompt"]
changes = ["prefix_cache"]
"""
DRAFTS = """
[load]
requests_per_boot = 12
also              = ["single"]
single_requests   = 4
warmup_per_class  = 1
warmup_rounds     = 1
[design]
blocks = 1
ladder = "flat"
[functional]
prompts = "off"
[[arm]]
name = "self_draft"
args = ["--spec-type", "draft-simple", "-md", {model}, "--spec-draft-n-max", "4"]
[[arm]]
name = "ngram"
args = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"]
"""


def replay(folder: Path, id: str, rest: str) -> Run:
    """Replay the profile on these arms, and prove that no engine is left."""
    model = folder / "small.gguf"
    argv = orjson.dumps(server(model, "{port}", "-c", "8192")).decode()
    text = EXPERIMENT.replace("{id}", id).replace("{argv}", argv)
    (folder / f"{id}.toml").write_text(text + rest.replace("{model}", orjson.dumps(str(model)).decode()))
    done = firsttoken("replay", f"{id}.toml", "-o", id, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert engines_of(folder) == []
    run = read_run(folder / id)
    for boot in run.boots:
        facts = boot.facts
        assert (facts.status, facts.stop, facts.exit_code, facts.diagnosis) == ("done", "term", 0, None)
        (stopped,) = [step for step in facts.steps if step.name == "stop"]
        assert stopped.proof is not None
        assert facts.gone_ns is not None
    return run


# By verdict of the only arm; adopt is none of them.
EXIT_CODES = {"reject": 0, "inconclusive": 3, "invalid": 4}


def test_an_arm_without_its_prompt_cache_is_slower_to_the_first_token_and_never_adopted(folder: Path) -> None:
    run = replay(folder, "prompt-cache", NO_CACHE)
    for boot in run.boots:
        cached = sum(window.cached_tokens or 0 for window in boot.facts.windows)
        assert (cached == 0) == (boot.facts.arm == "uncached")
    reported = firsttoken("report", "prompt-cache", cwd=folder)
    verdict = orjson.loads((folder / "prompt-cache" / "verdict.json").read_bytes())
    (arm,) = verdict["arms"]
    assert reported.returncode == EXIT_CODES[arm["verdict"]], reported.stdout + reported.stderr
    check_verdict(verdict)
    assert "uncached" in reported.stdout
    assert "cached prompt tokens 0.0 %, baseline" in reported.stdout


def check_verdict(verdict: dict[str, Any]) -> None:
    assert verdict["engine_kind"] == "real"
    (arm,) = verdict["arms"]
    assert (arm["arm"], arm["blocks"]) == ("uncached", 3)
    # The small model speaks in letters at random: it calls no tool, and its JSON is what the grammar makes of them.
    functions = {item["trait"]: item["status"] for item in arm["functional"]}
    assert (functions["json_schema"], functions["finish_reason"]) == ("kept", "kept")
    assert (functions["tool_call"], functions["reasoning_apart"]) == ("not offered", "not offered")
    (ttft,) = [measure for measure in arm["measures"] if measure["measure"] == "ttft"]
    # The cache saves nearly all of the prefill of most requests. How sure three blocks can be of it depends on what
    # else the machine does: the words of verdicts are tested on runs of known effect.
    assert ttft["change"] > 0.3
    assert ttft["zone"] != "gain"
    if arm["verdict"] == "reject":
        assert any("ttft" in reason.lower() for reason in arm["reasons"])


@pytest.fixture(scope="module")
def drafts(folder: Path) -> Run:
    return replay(folder, "drafts", DRAFTS)


def windows(run: Run) -> list[tuple[Boot, WindowFacts, list[Outcome]]]:
    """Each window with what was sent in it."""
    return [
        (boot, window, [item for item in boot.outcomes if item.window == window.name])
        for boot in run.boots
        for window in boot.facts.windows
    ]


def total(counts: list[int | None]) -> int:
    return sum(count or 0 for count in counts)


def test_the_counters_of_a_window_are_those_of_its_requests_and_of_no_other(drafts: Run) -> None:
    played = windows(drafts)
    assert {window.name for _, window, _ in played} == {"observed", "single-chat_single", "single-json_extraction"}
    for boot, window, sent in played:
        assert (window.requests, window.counters_void) == (len(sent), None)
        answers = [item.response for item in sent]
        counters = {name.removeprefix("llamacpp:"): value for name, value in (window.counters or {}).items()}
        cached = total([answer.cached_tokens for answer in answers])
        assert counters["tokens_predicted_total"] == total([answer.output_tokens for answer in answers])
        assert counters["prompt_tokens_cached_total"] == cached == window.cached_tokens
        assert counters["prompt_tokens_total"] == total([answer.prompt_tokens for answer in answers]) - cached
        drafted = total([answer.draft_tokens for answer in answers])
        assert counters["spec_decode_num_draft_tokens_total"] == drafted
        assert counters["spec_decode_num_accepted_tokens_total"] == total([item.accepted_tokens for item in answers])
        assert (drafted == 0) == (boot.facts.arm.startswith("plain") or counters["spec_decode_num_drafts_total"] == 0)


def test_accepted_tokens_by_position_add_up_and_never_rise(drafts: Run) -> None:
    seen = 0
    for boot, window, _ in windows(drafts):
        found = acceptance(window.counters or {})
        if found is not None and found.per_position is not None:
            seen += 1
            assert found.problem is None
            assert sum(found.per_position) == found.accepted
            assert len(found.per_position) == {"self_draft": 4, "ngram": 8}[boot.facts.arm]
            assert list(found.per_position) == sorted(found.per_position, reverse=True)
    assert seen >= 3  # of the arm that drafts for itself, each


def test_a_model_that_drafts_for_itself_is_right_until_a_grammar_forbids_what_it_would_say(drafts: Run) -> None:
    """The draft knows nothing of the schema. Acceptance is told by class, so both are seen."""
    found = acceptance_by_class([boot for boot in drafts.boots if boot.facts.arm == "self_draft"])
    assert {name: finding.source for name, finding in found.items()} == {
        "chat_single": "counters",
        "json_extraction": "counters",
    }
    assert found["chat_single"].rate == 1.0
    length = found["chat_single"].length
    assert length is not None
    assert 4.0 < length <= 5.0
    in_json = found["json_extraction"].rate
    assert in_json is not None
    assert in_json < 1.0
    assert acceptance_by_class([boot for boot in drafts.boots if boot.facts.arm.startswith("plain")]) == {}


def test_the_report_tells_the_acceptance_of_each_class(folder: Path, drafts: Run) -> None:
    assert len(drafts.boots) == 4
    reported = firsttoken("report", "drafts", cwd=folder)
    assert reported.returncode == 3, reported.stdout + reported.stderr  # one block decides nothing
    arms = {arm["arm"]: arm for arm in orjson.loads((folder / "drafts" / "verdict.json").read_bytes())["arms"]}
    told = {item["class"]: item for item in arms["self_draft"]["acceptance"]}
    assert set(told) == {"chat_single", "json_extraction"}
    found = acceptance_by_class([boot for boot in drafts.boots if boot.facts.arm == "self_draft"])
    assert {name: item["arm"] for name, item in told.items()} == {name: item.length for name, item in found.items()}
    assert {item["baseline"] for item in told.values()} == {None}


# -- a stream that breaks off ------------------------------------------------------------------------------------------


def test_a_stream_that_the_engine_breaks_off_is_an_error_with_its_cause(folder: Path, tmp_path: Path) -> None:
    """Two answers share a KV cache that holds neither to its end: after HTTP 200 and many tokens both break off."""
    body = orjson.dumps(chat(DOCUMENTS[0], max_tokens=500))

    async def ask(url: str, number: int) -> Outcome:
        slot = Slot(url, SystemClock(), timeouts=Timeouts())
        asked = Planned("w", 2, number, number, "chat_single", "/v1/chat/completions", body)
        try:
            return await slot.send(asked)
        finally:
            await slot.close()

    async def break_off() -> tuple[list[Outcome], str]:
        flags = ("-c", "1024", "--kv-unified")
        async with engine_and_recorder(tmp_path, folder / "small.gguf", *flags) as (engine, recorder):
            broken = await asyncio.gather(*(ask(recorder, number) for number in range(2)))
            return list(broken), (await ask(engine, 2)).outcome

    broken, afterwards = asyncio.run(break_off())
    for item in broken:
        answer = item.response
        assert (item.outcome, item.origin, item.status) == (ERROR, ENGINE, 200)
        assert (item.reason, answer.error_code) == ("server_error", 500)
        assert len(answer.token_gaps_ns) > 50
        assert (answer.done, answer.finish, answer.output_tokens) == (False, None, None)
    assert afterwards == "ok"  # with the cache for itself
    assert engines_of(folder) == []

    # The engine's message may quote a prompt, so only its kind is kept; its log has the cause.
    findings = scan_log(tmp_path / "engine.log").findings
    assert "L13" in {finding.id for finding in findings}
    seen = read_capture(tmp_path / "capture").exchanges
    assert len(seen) == 2
    for exchange in seen:
        assert (exchange.outcome, exchange.status, exchange.response.error_code) == (ERROR, 200, 500)
        assert exchange.response.output_tokens is None
