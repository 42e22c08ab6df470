"""The real `firsttoken replay`: an experiment of one arm on the engine that is already up, and a made profile."""

import sys
from collections.abc import Iterable
from pathlib import Path

import orjson

from benchmarks.children import ROOT, environment
from benchmarks.replay.jobs import request_of
from benchmarks.replay.ours import PATH, read_outcome
from benchmarks.replay.pairs import Pair, Reading, pair_all, reading_of
from benchmarks.replay.processes import Ran, run_program
from benchmarks.replay.schedule import MODEL, Truth
from profiles.build import build_profile
from profiles.capture_folder import FORMAT, MANIFEST, VERSION
from profiles.captures import end_line
from profiles.files import append_line, make_folder, write_document
from profiles.records import Exchange, ResponseFacts
from profiles.requests import describe
from profiles.runs import read_run
from profiles.units import MILLISECOND_NS, SECOND_NS

COMMAND = "firsttoken replay"
EXPERIMENT = """\
[rule]
id = "ten-requests"
[profile]
path = "profile"
[engine]
launcher = "external"
url = "http://127.0.0.1:{port}"
model = "{model}"
cache_isolation = "none"
[load]
deciding = "closed"
requests_per_boot = {requests}
warmup_per_class = 1
warmup_rounds = 1
also = []
[design]
blocks = 1
seed = 1
[discard]
when = []
[functional]
prompts = "off"
[[arm]]
name = "only"
"""


def write_experiment(folder: Path, port: int, requests: int) -> None:
    """An experiment of one boot, and its profile of as many requests, one after another."""
    capture = folder / "capture"
    make_folder(capture)
    write_document(capture / MANIFEST, {"format": FORMAT, "version": VERSION, "tool": "benchmark", "bodies": "full"})
    segment = capture / "segment-000001.jsonl"
    head = {"line": "segment", "format": FORMAT, "version": VERSION, "tool": "benchmark", "bodies": "full"}
    append_line(segment, head | {"wall_ns": 10**18, "mono_ns": 0})
    append_line(segment, {"line": "window", "event": "open", "at_ns": 0})
    for number in range(requests):
        body = orjson.dumps(request_of(number))
        exchange = _exchange(number, body)
        append_line(segment, end_line(exchange, body))
    append_line(segment, {"line": "window", "event": "close", "at_ns": (requests + 2) * SECOND_NS})
    build_profile([capture], folder / "profile")
    (folder / "experiment.toml").write_text(EXPERIMENT.format(port=port, model=MODEL, requests=requests))


def _exchange(number: int, body: bytes) -> Exchange:
    arrival_ns = (number + 1) * SECOND_NS
    facts = ResponseFacts(
        first_token_ns=arrival_ns + 50 * MILLISECOND_NS,
        prompt_tokens=len(body.split()),
        output_tokens=20,
        output=True,
        finish="stop",
        done=True,
    )
    return Exchange(
        id=f"made-{number}",
        endpoint="chat",
        method="POST",
        path=PATH,
        arrival_ns=arrival_ns,
        dispatch_ns=arrival_ns,
        end_ns=arrival_ns + 500 * MILLISECOND_NS,
        status=200,
        outcome="ok",
        request=describe(body),
        response=facts,
    )


def play_command(folder: Path, *, realtime: bool) -> Ran:
    """Run it; what it has written is then in the folder."""
    argv = [sys.executable, "-m", "firsttoken", "replay", "experiment.toml", "-o", "run"]
    own = environment() | {"PYTHONPATH": str(ROOT)}
    return run_program(argv, folder / "log.txt", env=own, cwd=folder, realtime=realtime)


def read_first_boot(folder: Path, served: Iterable[Truth]) -> tuple[list[Truth], list[Pair]]:
    """What the engine served until the end of the first boot, and the measured requests among it.

    The rule always plays the baseline twice. Warm-up sends the same bodies, so a request is the one that the engine
    received right after it was sent.
    """
    boot = read_run(folder / "run").boots[0]
    ended_ns = boot.facts.stopped_ns
    assert ended_ns is not None
    truths = sorted((each for each in served if each.received_ns < ended_ns), key=lambda each: each.received_ns)
    readings: list[tuple[object, Reading]] = []
    for outcome in boot.outcomes:
        sent_ns = outcome.send_started_ns
        if outcome.measured and sent_ns is not None:
            name = next((truth.id for truth in truths if truth.received_ns >= sent_ns), None)
            readings.append((name, reading_of(read_outcome(outcome.index, outcome))))
    return truths, pair_all(readings, ((truth.id, truth) for truth in truths))
