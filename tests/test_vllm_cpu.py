"""vLLM's CPU build, end to end: the ladder of examples/ladder-vllm-cpu in small. `make test-vllm` runs it.

A real client of OpenAI's is recorded, the recording is replayed on cold boots of the real engine, the replay is
interrupted once as with Ctrl-C and goes on, one arm is refused by vLLM. Some seven minutes on two cores, 7 GB of disk.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from profiles.counters import acceptance, acceptance_told
from profiles.records import OK
from profiles.runs import DONE, FAILED, Boot, Run, read_run

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "ladder-vllm-cpu"
VENV = os.environ.get("FIRSTTOKEN_VLLM_VENV")
MODEL = Path(os.environ.get("FIRSTTOKEN_VLLM_MODEL", EXAMPLE / "work" / "smollm2"))
CLASSES = {"short_qa", "chat_hu", "code", "json_extraction", "rag_half_k", "rag_1k"}
PATIENCE_S = 600.0

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(VENV is None, reason="vLLM's environment is 6 GB: `make test-vllm` makes it and names it"),
]


def small(rule: str) -> str:
    """The example's experiment with one block, few requests and three arms."""
    for pattern, text in (
        (r"(?m)^requests_per_boot = .*$", "requests_per_boot = 12"),
        (r"(?m)^single_requests = .*$", "single_requests = 1"),
        (r"(?m)^also = .*$", 'also = ["single", "closed c=8 for 3s"]'),
        (r"(?m)^blocks = .*$", "blocks = 1"),
        # Twelve requests cannot show a ceiling of a hundredth.
        (r'(?s)\[\[guard\]\]\nmetric = "error_rate".*?\n\n', ""),
        (r'(?s)\[\[arm\]\]\nname = "v1_.*?(?=\[\[arm\]\]\nname = "v3_)', ""),
    ):
        rule, count = re.subn(pattern, text, rule)
        assert count == 1, pattern
    return rule


def processes_in(folder: Path) -> list[str]:
    """Living processes that work in this folder. vLLM's workers rename themselves, and keep their folder."""
    found = []
    for process in psutil.process_iter(["pid", "cwd", "status", "cmdline"]):
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and process.info["cwd"] == str(folder):
            found.append(f"{process.info['pid']} {' '.join(process.info['cmdline'] or ())}")
    return found


def firsttoken(*words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "firsttoken", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@dataclass(frozen=True)
class Interrupted:
    """What there was right before Ctrl-C, what was left after it, and how it ended."""

    before: list[str]
    left: list[str]
    code: int


def interrupt_while_serving(folder: Path) -> Interrupted:
    """Start the replay, and press Ctrl-C when the first boot has answered in a measured window."""
    command = [sys.executable, "-m", "firsttoken", "replay", "experiment.toml", "-o", "run"]
    with (folder / "replay.log").open("wb") as log:
        # A group of its own, as a shell gives it: Ctrl-C reaches the group, and not the engine's session.
        replay = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, process_group=0)
    try:
        limit = time.monotonic() + PATIENCE_S
        while not any('"measured":true' in file.read_text() for file in folder.glob("run/boots/*/outcomes.jsonl")):
            assert replay.poll() is None, (folder / "replay.log").read_text()
            assert time.monotonic() < limit, "no request was measured"
            time.sleep(0.2)
        before = processes_in(folder)
        os.killpg(replay.pid, signal.SIGINT)
        code = replay.wait(90)
        return Interrupted(before, processes_in(folder), code)
    finally:
        if replay.poll() is None:
            replay.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with two prompts of each class, recorded by its own script, and its profile."""
    assert VENV is not None
    folder = tmp_path_factory.mktemp("ladder")
    for name in ("record_traffic.py", "check.py", "classes.toml", "probes.jsonl"):
        shutil.copy(EXAMPLE / name, folder / name)
    shutil.copy(EXAMPLE.parent / "served.py", folder.parent / "served.py")
    (folder / "experiment.toml").write_text(small((EXAMPLE / "experiment.toml").read_text(encoding="utf-8")))
    lines = (EXAMPLE / "prompts.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    prompts = [line for line in lines if "class" in json.loads(line)]
    (folder / "prompts.jsonl").write_text("".join([*(set(lines) - set(prompts)), *prompts[:12]]), encoding="utf-8")
    work = folder / "work"
    work.mkdir()
    (work / "smollm2").symlink_to(MODEL.resolve(), target_is_directory=True)
    (work / "vllm").write_text(f'#!/bin/sh\nexec "{Path(VENV).resolve()}/bin/vllm" "$@"\n')
    (work / "vllm").chmod(0o755)
    environment = {**os.environ, "FIRSTTOKEN_PYTHON": sys.executable}
    recording = subprocess.run(
        [f"{VENV}/bin/python", "record_traffic.py"], cwd=folder, env=environment, capture_output=True, text=True,
        check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert recording.returncode == 0, recording.stderr
    assert "12 of 12 answers came whole" in recording.stderr
    assert processes_in(folder) == []
    built = firsttoken(
        "profile", "build", "work/capture", "-o", "work/profile", "--classes", "classes.toml", folder=folder
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def interrupted(folder: Path) -> Interrupted:
    return interrupt_while_serving(folder)


@pytest.fixture(scope="module")
def run(folder: Path, interrupted: Interrupted) -> Run:
    """The run that was interrupted, resumed to its end."""
    resumed = firsttoken("replay", "experiment.toml", "-o", "run", "--resume", folder=folder)
    assert resumed.returncode == 1, resumed.stderr  # an arm did not boot
    assert "v4_async: dropped" in resumed.stderr
    return read_run(folder / "run")


def boot_of(run: Run, arm: str) -> Boot:
    (boot,) = (boot for boot in run.boots if boot.facts.arm == arm)
    return boot


def test_ctrl_c_leaves_no_engine_and_no_worker(interrupted: Interrupted) -> None:
    assert len(interrupted.before) >= 3, "the replay, vLLM's server and its engine were to be seen"
    assert interrupted.left == []
    assert interrupted.code != 0


def test_a_resumed_run_boots_the_interrupted_arm_again_and_finishes(run: Run) -> None:
    assert len(run.interrupted) == 1
    done = {boot.facts.arm for boot in run.boots if boot.facts.status == DONE}
    assert done == {"v0_baseline", "v0_baseline.aa", "v3_spec3"}
    for arm in done:
        boot = boot_of(run, arm)
        assert boot.facts.engine_version == "0.32.0"
        assert all(outcome.outcome == OK for outcome in boot.outcomes if outcome.window == "observed")


def test_every_boot_is_proved_dead(run: Run, folder: Path) -> None:
    for boot in run.boots:
        assert boot.facts.gone_ns is not None, boot.path.name
        words = boot.facts.argv
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(words[words.index("--port") + 1]))) != 0
        if boot.facts.status == DONE:
            assert boot.facts.diagnosis is None  # nothing of not_stopped, workers_left, memory_held
            (stop,) = (step for step in boot.facts.steps if step.name == "stop")
            assert stop.proof is not None
    assert processes_in(folder) == []


def test_the_refused_arm_is_diagnosed_by_its_cause(run: Run, folder: Path) -> None:
    boots = [boot for boot in run.boots if boot.facts.arm == "v4_async"]
    assert {(boot.facts.status, boot.facts.diagnosis) for boot in boots} == {(FAILED, "died_in_boot")}
    for boot in boots:
        assert "async scheduling is only supported" in (boot.facts.reason or "")
    report = firsttoken("report", "run", "--no-html", folder=folder)
    said = " ".join(report.stdout.split())
    assert "async scheduling is only supported" in said


@pytest.mark.parametrize(("arm", "draft_tokens"), [("v0_baseline", 2), ("v0_baseline.aa", 2), ("v3_spec3", 3)])
def test_drafts_by_the_answers_are_those_of_the_counters_in_every_class(run: Run, arm: str, draft_tokens: int) -> None:
    boot = boot_of(run, arm)
    singles = {window.workload: window for window in boot.facts.windows if window.kind == "single"}
    assert set(singles) == CLASSES
    drafts = 0.0
    for window in [*singles.values(), *(w for w in boot.facts.windows if w.kind == "observed")]:
        answers = [outcome.response for outcome in boot.outcomes if outcome.window == window.name]
        counted, told = acceptance(window.counters or {}), acceptance_told(answers)
        assert counted == told, window.name
        if counted is not None:
            assert counted.problem is None
            assert counted.per_position is not None
            assert len(counted.per_position) == draft_tokens
            drafts += counted.drafts
        # A step without a draft brings a token and is no draft; the prefill brings the first token.
        tokens = sum(answer.output_tokens or 0 for answer in answers)
        if counted is not None:
            assert counted.accepted + counted.drafts <= tokens - len(answers)
    assert drafts > 0


def test_what_greedy_drafts_do_is_the_same_in_two_boots(run: Run) -> None:
    def counts(arm: str) -> dict[str, object]:
        return {
            window.name: acceptance(window.counters or {})
            for window in boot_of(run, arm).facts.windows
            if window.kind == "single"
        }

    assert counts("v0_baseline") == counts("v0_baseline.aa")


def test_first_tokens_as_recorded_agree_with_the_engines_own_histogram(run: Run, folder: Path) -> None:
    check = subprocess.run(
        [sys.executable, "check.py", "run"], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert check.returncode == 0, check.stdout + check.stderr
    assert "answers and /metrics agree" in check.stdout
    assert re.search(r"first tokens: [\d.]+ s as recorded of 12 requests, [\d.]+ s by the engine of 12", check.stdout)
