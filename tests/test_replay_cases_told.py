"""Public trouble reports that are told in steps, as whole runs against an engine that does what they tell.

The engine keeps the report's own numbers at a twentieth of the time, and writes down what each request met. So nothing
here depends on how fast this machine is.

Where we do otherwise than a report asks, it stands in DEVIATIONS, and nowhere else.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from simulated import wait_for
from test_replay_run import ENVIRONMENT, command, living_in

from profiles.builtin import cli as builtin
from profiles.records import CANCELLED, OK
from profiles.runs import BootFacts, read_run

pytestmark = pytest.mark.process
HERE = Path(__file__).parent

DEVIATIONS = {
    "R07": "a second Ctrl-C does not exit at once: the engine must be gone before firsttoken ends, and it says so. "
    "A second SIGTERM neither. Only SIGKILL is obeyed at once, and --resume stops what it leaves.",
    "R09": "two cells of one boot are never compared with each other, warm or cold: arms are, in the same cell. So no "
    "cell is refused; with passes that are not kept apart the report gives each cell's cached share.",
    "R15": "the first token of all is that by which a boot is ready: it is part of the boot, and shown from there.",
    "S10": "a stream that ends well without a token is `empty`, an outcome of its own, and not `error`.",
}

RULE = """
[rule]
id = "case"
[profile]
path = "profile"
operating_point = {{ basis = "declared", levels = {levels}, reason = "the report's cells" }}
[engine]
argv = ["{python}", "{engine}", "{{port}}", "{case}", "truth.jsonl"]
model = "case"
ready_timeout = "60s"
stop_timeout = "10s"
cache_isolation = "{isolation}"
[load]
requests_per_boot = {requests}
also = {also}
warmup_per_class = 1
warmup_rounds = {rounds}
[design]
blocks = 1
[discard]
when = []
[functional]
prompts = "off"
[[arm]]
name = "v0"
"""


def write(folder: Path, case: str, levels: dict[str, float], requests: int, **more: Any) -> Path:
    """An experiment of the baseline alone, and a profile of generated requests."""
    from click.testing import CliRunner

    made = CliRunner().invoke(builtin.builtin, ["single-stream", "-o", str(folder / "profile"), "--scale", "0.02"])
    assert made.exit_code == 0, made.output
    choice = {"isolation": "salt", "also": [], "rounds": 1} | more
    shares = "{ " + ", ".join(f'"{c}" = {share}' for c, share in levels.items()) + " }"
    text = RULE.format(
        python=sys.executable, engine=HERE / "case_engine.py", case=case, levels=shares, requests=requests, **choice
    )
    (folder / "experiment.toml").write_text(text, encoding="utf-8")
    return folder


def start(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    words = command("replay", "experiment.toml", "-o", "run", *flags)
    return subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def replayed(folder: Path) -> Path:
    process = start(folder)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return folder


def truth_of(folder: Path, *passes: str) -> list[dict[str, Any]]:
    """What the engine did with the requests of passes whose name holds one of these words, over all boots."""
    path = folder / "truth.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if not passes or any(name in (line["salt"] or "") for name in passes)]


def boots(folder: Path) -> list[BootFacts]:
    return [boot.facts for boot in read_run(folder / "run").boots]


def step(facts: BootFacts, name: str) -> dict[str, Any]:
    (found,) = [step.facts for step in facts.steps if step.name == name]
    return found


def report(folder: Path) -> str:
    done = subprocess.run(
        command("report", "run", "--no-html"), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    return " ".join((done.stdout + done.stderr).split())


def test_L03_a_200_while_it_loads_is_not_ready(tmp_path: Path) -> None:
    """0 to 2 s refused, 2 to 5 s 200 with `loading` and a chat of 503, from 5 s on it works."""
    folder = replayed(write(tmp_path, "L03", {"1": 1}, 4))
    asked = truth_of(folder)
    assert any(line["loading"] for line in asked), "nobody asked while it loaded, so this shows nothing"
    measured = [line for line in asked if "ready" not in (line["salt"] or "")]
    assert measured
    assert [line for line in measured if line["loading"]] == []  # measured_requests_before_ready: 0
    for facts in boots(folder):
        assert facts.ready_ns is not None
        assert facts.spawned_ns is not None
        assert facts.ready_ns - facts.spawned_ns >= 5e9 / 20  # ready_at_s: >= 5
        assert step(facts, "ready")["requests"] > 1


def test_R15_what_is_compiled_at_its_first_use_is_shown_apart(tmp_path: Path) -> None:
    """Request 1 takes 12 s, the first two at once 8 s, all others 200 ms; 20 requests at c = 1 and 40 at c = 8."""
    folder = replayed(write(tmp_path, "R15", {"1": 20 / 60, "8": 40 / 60}, 60))
    measured = truth_of(folder, "deciding")
    assert len(measured) == 2 * 60  # the baseline and its copy
    assert {line["wait_ms"] for line in measured} == {200}
    assert median(line["wait_ms"] for line in measured) == 200  # of the steady TTFT
    assert sorted(line["wait_ms"] for line in truth_of(folder, "ready", "warmup") if line["wait_ms"] > 200) == [
        *(8_000, 8_000),
        *(12_000, 12_000),
    ]
    for facts in boots(folder):  # the same rule for all, and nothing is removed in silence
        assert step(facts, "ready")["first_token_ns"] >= 12e9 / 20
        (slowest,) = step(facts, "warm_up")["slowest_ttft_ns_at"]["8"]
        assert slowest >= 8e9 / 20
    shown = report(folder)
    assert "Warm-up first uses, the slowest, in no result: v0" in shown
    assert "before it was ready" in shown
    assert "at c = 8" in shown


@pytest.mark.parametrize("isolation", ["salt", "none"])
def test_R09_the_second_cell_of_a_boot_is_cold_or_said_to_be_warm(tmp_path: Path, isolation: str) -> None:
    """An unseen prompt takes 800 ms, a seen one 20; the same trace at c = 1, then at c = 8, on one boot, warmed up."""
    folder = replayed(write(tmp_path, "R09", {"1": 1}, 8, isolation=isolation, also='["closed c=8 for 50ms"]'))
    for facts in boots(folder):
        first, second = facts.windows
        assert (first.c, second.c) == (1, 8)
        # Prompts of the warm-up are of the trace, in a pass of their own: they are not in the first cell's way.
        cold = isolation == "salt"
        assert (first.cached_tokens == 0) == cold
        assert (second.cached_tokens == 0) == cold
    if isolation == "salt":
        assert {line["wait_ms"] for line in truth_of(folder, "deciding", "closed-c8")} == {800}
    shown = report(folder)
    warm = "passes are not kept apart in the prefix cache: cached prompt tokens"
    assert (warm in shown) == (isolation == "none")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_R07_what_ended_before_a_stop_is_kept(tmp_path: Path, number: signal.Signals) -> None:
    """Three cells of 20 requests, stopped in the second after 10."""
    folder = write(tmp_path, "R07", {"1": 1, "2": 1, "3": 1}, 60)
    process = start(folder)
    wait_for(lambda: len(truth_of(folder, "deciding")) >= 33, "30 requests that ended")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    (partial,) = read_run(folder / "run").interrupted
    lines = (partial / "outcomes.jsonl").read_bytes().splitlines(keepends=True)
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    assert len(lines) - len(whole) <= 1  # at most one cut line
    kept = [line for line in whole if line["window"].startswith("closed") and line["outcome"] == OK]
    assert len(kept) >= 29
    if number == signal.SIGINT:
        assert len(kept) >= 30
        assert [line for line in whole if line["outcome"] == CANCELLED]
        assert not living_in(folder)
        assert "the engine is gone" in said
    assert "no boot of this run was measured to its end" in report(folder)
    resumed = start(folder, "--resume")
    _, said = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, said
    assert not living_in(folder)


def test_R07_a_second_ctrl_c_waits_for_the_engine(tmp_path: Path) -> None:
    assert "engine must be gone" in DEVIATIONS["R07"]
    folder = write(tmp_path, "R07", {"1": 1}, 20)
    process = start(folder)
    wait_for(lambda: bool(truth_of(folder, "deciding")), "the first request")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert not living_in(folder)
    assert "the engine is gone" in said
