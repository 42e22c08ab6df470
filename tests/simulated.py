"""The embedded engine as a real process for tests: boot it, ask it, read its counters and its ground truth."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
from prometheus_client.parser import text_string_to_metric_families

from profiles.records import ResponseFacts
from profiles.stream import ResponseReader

K2 = ("--speculative-config", '{"method":"mtp","num_speculative_tokens":2}')
PATIENCE_S = 30.0
ROOT = Path(__file__).parents[1]


@dataclass
class Engine:
    process: subprocess.Popen[bytes]
    log_path: Path
    truth_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def url(self) -> str:
        found = re.search(r"Starting vLLM server on (http://\S+)", self.log)
        assert found, self.log
        return found[1]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    def truth(self) -> list[dict[str, Any]]:
        """The lines of all requests that were answered. The request to /health is served after they are written."""
        with self.client() as client:
            client.get("/health")
        return [orjson.loads(line) for line in self.truth_path.read_bytes().splitlines()[1:]]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def booted(
    folder: Path, *flags: str, ready: bool = True, env: dict[str, str] | None = None, output: int | None = None
) -> Iterator[Engine]:
    """An engine in its own session, and the certainty that all of it is gone afterwards. It prints to `output`, or to
    its log."""
    folder.mkdir(parents=True, exist_ok=True)
    log_path, truth_path = folder / "engine.log", folder / "truth.jsonl"
    code = "from replay.simulator.cli import engine; engine()"
    defaults = ("--port", "0", "--boot-time", "20ms", "--time-scale", "0.2", "--truth", str(truth_path))
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *defaults, *flags],
            stdout=log if output is None else output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        )
    engine = Engine(process, log_path, truth_path)
    try:
        if ready:
            wait_for(lambda: "Application startup complete" in engine.log or process.poll() is not None, "the boot")
        yield engine
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for left in living_in(folder):
            left.kill()
        process.wait()


def living_in(folder: Path) -> list[psutil.Process]:
    """Processes that work in this folder, whatever they are called and whoever is their parent now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def chat(words: str = "What is a prefill?", **fields: Any) -> dict[str, Any]:
    asked = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 30}
    return {"messages": [{"role": "user", "content": words}], **asked, **fields}


def read(engine: Engine, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str) -> ResponseFacts:
    with engine.client() as client, client.stream("POST", path, json=body, headers=headers) as response:
        reader = ResponseReader(response.headers["content-type"])
        for data in response.iter_raw():
            reader.feed(data, time.monotonic_ns())
        return reader.finish()


def raw_events(engine: Engine, body: dict[str, Any]) -> list[bytes]:
    with engine.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    pieces = answer.content.split(b"\n\n")
    assert pieces.pop() == b""
    return [piece.removeprefix(b"data: ") for piece in pieces]


def counters(engine: Engine) -> dict[str, float]:
    """Samples by name and labels, without the two labels that all of them have."""
    with engine.client() as client:
        page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sample.labels.items() if k not in ("engine", "model_name"))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
