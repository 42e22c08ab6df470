"""The whole pipeline on a real engine: llama.cpp's HTTP server with a small generated model.

Traffic that repeats its documents is recorded with bodies, then replayed on two cold-booted arms. One of them turns the
prompt cache off and declares it. That arm computes every document again: slower to the first token, rejected, with the
difference in cached tokens shown.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from profiles.captures import read_capture
from profiles.units import SECOND_NS
from replay.clock import SystemClock
from replay.engines import EngineProcess, free_port, wait_listening

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SERVER = [sys.executable, str(ROOT / "tests" / "llamacpp_server.py")]

pytestmark = [pytest.mark.process, pytest.mark.e2e]


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


DOCUMENTS = [
    f"Document {number}. The harbour of town {number} was dredged in spring, and {number} ships a day may enter it. "
    * 4
    for number in range(4)
]
QUESTIONS = ("How many ships may enter?", "When was it dredged?", "Which town is it?")


async def converse(base_url: str) -> int:
    """Two people, each asking every question about one document, in a conversation of its own each time."""

    async def person(client: httpx.AsyncClient, documents: list[str]) -> int:
        sent = 0
        for document in documents:
            for question in QUESTIONS:
                body = {
                    "model": "small",
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "max_tokens": 24,
                    "temperature": 0,
                    "messages": [{"role": "user", "content": f"{document}\n{question}"}],
                }
                answer = await client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                assert answer.text.endswith("data: [DONE]\n\n")
                sent += 1
                await asyncio.sleep(0.25)
        return sent

    async with httpx.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as client:
        return sum(await asyncio.gather(person(client, DOCUMENTS[:1]), person(client, DOCUMENTS[1:])))


async def record_production(folder: Path, model: Path) -> int:
    clock = SystemClock()
    engine_port, record_port = free_port(HOST), free_port(HOST)
    engine_argv = [*SERVER, str(model), "--port", str(engine_port)]
    record_argv = [sys.executable, "-m", "firsttoken", "record", "--bodies", "full", "--out", str(folder / "capture")]
    record_argv += ["--upstream", f"http://{HOST}:{engine_port}", "--listen", f"{HOST}:{record_port}"]
    started: list[EngineProcess] = []
    try:
        for name, argv, port in (("engine", engine_argv, engine_port), ("record", record_argv, record_port)):
            log = folder / f"{name}.log"
            process = await EngineProcess.start(
                argv, env=ENVIRONMENT, cwd=folder, log=log, host=HOST, port=port, clock=clock
            )
            started.append(process)
            await wait_listening(process, clock, patience_ns=60 * SECOND_NS)
        return await converse(f"http://{HOST}:{record_port}")
    finally:
        for process in reversed(started):
            await process.stop(10 * SECOND_NS)


EXPERIMENT = """
[rule]
id       = "prompt-cache"
question = "What does the prompt cache do for this traffic?"
[profile]
path = "profile"
[engine]
argv            = {argv}
model           = "small"
cache_isolation = "nonce"     # llama.cpp takes no cache_salt
[load]
requests_per_boot = 24
also              = []
warmup_per_class  = 1
[design]
blocks = 3
seed   = 5
[discard]
when = []                     # two shared cores: what is measured here is far above their noise
[[arm]]
name     = "cached"
baseline = true
[[arm]]
name    = "uncached"
args    = ["--no-cache-prompt"]
changes = ["prefix_cache"]
"""


# By verdict of the only arm; adopt is none of them.
EXIT_CODES = {"reject": 0, "inconclusive": 3, "invalid": 4}


def test_an_arm_without_its_prompt_cache_is_slower_to_the_first_token_and_never_adopted(tmp_path: Path) -> None:
    why = reason_to_skip()
    if why is not None:
        pytest.skip(why)
    from small_gguf import write_model

    model = tmp_path / "small.gguf"
    write_model(model)
    sent = asyncio.run(record_production(tmp_path, model))

    capture = read_capture(tmp_path / "capture")
    assert sent == 12
    assert [exchange.outcome for exchange in capture.exchanges] == ["ok"] * 12
    assert all(exchange.response.output_tokens == 24 for exchange in capture.exchanges)
    assert all(body is not None and b"harbour" in body for body in capture.bodies)

    shown = firsttoken("concurrency", "capture", "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    concurrency = orjson.loads(shown.stdout)
    assert concurrency["requests"] == 12
    assert 1 <= concurrency["max"] <= 2

    built = firsttoken("profile", "build", "capture", "-o", "profile", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    argv = [*SERVER, str(model), "--port", "{port}"]
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.replace("{argv}", orjson.dumps(argv).decode()))
    replayed = firsttoken("replay", "experiment.toml", "-o", "run", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr

    reported = firsttoken("report", "run", cwd=tmp_path)
    verdict = orjson.loads((tmp_path / "run" / "verdict.json").read_bytes())
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
