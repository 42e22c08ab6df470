"""Whole runs on the embedded engine, as a user types them: cold boots, interruption, resume, bad input."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import orjson
import psutil
import pytest
from recorded import MODEL, write_profile

from profiles.files import lock_folder
from profiles.runs import Run, read_run

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

HEAD = """
[rule]
id = "test"
[profile]
path = "profile"
[engine]
argv = ["{python}", "-m", "firsttoken", "engine", "--port", "{{port}}", "--model", "{{model}}",
        "--boot-time", "10ms", "--time-scale", "0.05"]
model = "{model}"
ready_timeout = "30s"
stop_timeout = "5s"
[load]
requests_per_boot = 8
also = ["single", "closed c=8 for 100ms"]
single_requests = 1
warmup_per_class = 1
warmup_rounds = 1
[design]
blocks = {blocks}
seed = 2
[discard]
when = []
[functional]
prompts = "off"
[[arm]]
name = "v0"
"""


def write_experiment(folder: Path, arms: str = '[[arm]]\nname = "v1"\n', *, blocks: int = 1, also: str = "") -> Path:
    path = folder / "experiment.toml"
    text = HEAD.replace("{python}", sys.executable).replace("{model}", MODEL).replace("{blocks}", str(blocks))
    path.write_text(text.replace("{{port}}", "{port}").replace(f"{{{MODEL}}}", "{model}") + arms + also)
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "firsttoken", *map(str, arguments)]


def replay(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    arguments = command("replay", "experiment.toml", "-o", "run", *flags)
    return subprocess.run(
        arguments, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120
    )


def engines_of(folder: Path) -> list[psutil.Process]:
    """Engines that were started for this folder and still live."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cwd"] == str(folder) and "engine" in (process.info["cmdline"] or ()):
            found.append(process)
    return found


def living_in(folder: Path) -> list[psutil.Process]:
    """Everything that works in this folder and lives."""
    found = psutil.process_iter(["cwd", "status"])
    return [p for p in found if p.info["cwd"] == str(folder) and p.info["status"] != psutil.STATUS_ZOMBIE]


def test_a_closed_terminal_leaves_no_engine_behind(folder: Path) -> None:
    write_experiment(folder)
    started = subprocess.Popen(command("replay", "experiment.toml", "-o", "run"), cwd=folder, env=ENVIRONMENT)
    events = folder / "run" / "events.jsonl"
    wait_for(lambda: events.exists() and b'"boot_ready"' in events.read_bytes())
    started.send_signal(signal.SIGHUP)
    assert started.wait(timeout=60) == 130
    assert not engines_of(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profile(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    return tmp_path


def assert_whole(run: Run, arms: set[str], blocks: int) -> None:
    done = [boot for boot in run.boots if boot.facts.status == "done"]
    assert Counter(boot.facts.arm for boot in done) == dict.fromkeys(arms, blocks)
    lists = {}
    for boot in done:
        assert boot.facts.simulated
        assert boot.facts.stop == "term"
        facts = boot.facts
        instants = [facts.spawned_ns, facts.ready_ns, facts.stopped_ns, facts.gone_ns]
        assert [at for at in instants if at is not None] == sorted(at or 0 for at in instants)
        names = {window["name"] for window in run.manifest["windows"] if window["deciding"]}
        deciding = [item for item in boot.outcomes if item.measured and item.window in names]
        assert deciding
        assert all(item.outcome == "ok" for item in deciding)
        lists[boot.path.name] = sorted((item.window, item.index, item.request) for item in deciding)
        assert boot.facts.windows[-1].name == "closed-c8-for-0.1s"
        for window in boot.facts.windows:
            assert window.counters is not None
            sent = [item for item in boot.outcomes if item.window == window.name]
            assert window.counters["vllm:request_success_total"] == len(sent) == window.requests
            tokens = sum(item.response.output_tokens or 0 for item in sent)
            assert window.counters["vllm:generation_tokens_total"] == tokens
    first = next(iter(lists.values()))
    assert first
    assert all(other == first for other in lists.values())  # the same requests in every arm


def test_a_run_boots_every_arm_once_per_block_and_keeps_everything(folder: Path) -> None:
    path = write_experiment(folder, blocks=2)
    done = replay(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "run\n"
    assert not engines_of(folder)
    run = read_run(folder / "run")
    assert_whole(run, {"v0", "v0.aa", "v1"}, 2)
    assert run.manifest["order"] == [[boot.facts.arm for boot in run.boots if boot.facts.block == at] for at in (1, 2)]
    assert (folder / "run" / "experiment.toml").read_bytes() == path.read_bytes()
    events = [event["event"] for event in run.events]
    assert (events[0], events[-1]) == ("rule_fixed", "run_done")
    assert events.count("boot_done") == 6
    for file in (folder / "run").rglob("*"):
        assert file.stat().st_mode & 0o077 == 0, file
    # Without a terminal progress is plain lines, one per boot.
    assert len(re.findall(r"^\[\d/6\] block \d v\S+: done in ", done.stderr, re.MULTILINE)) == 6
    again = replay(folder)
    assert again.returncode == 2
    assert "run: already exists" in again.stderr
    assert "--resume" in again.stderr


def test_ctrl_c_leaves_no_orphan_and_a_run_that_resumes(folder: Path) -> None:
    write_experiment(folder, blocks=2)
    started = subprocess.Popen(
        command("replay", "experiment.toml", "-o", "run"),
        cwd=folder,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    events = folder / "run" / "events.jsonl"
    wait_for(lambda: events.exists() and events.read_bytes().count(b'"boot_ready"') >= 2)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "the engine is gone" in said
    assert "--resume" in said
    assert "Traceback" not in said
    assert not engines_of(folder)

    partial = read_run(folder / "run")
    assert [boot.facts.status for boot in partial.boots] == ["done"]
    assert len(partial.interrupted) == 1
    resumed = replay(folder, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    whole = read_run(folder / "run")
    assert_whole(whole, {"v0", "v0.aa", "v1"}, 2)
    assert whole.boots[0].facts == partial.boots[0].facts
    assert whole.interrupted == partial.interrupted  # kept, not used


def test_a_killed_run_resumes_and_stops_the_orphan_that_the_kill_left(folder: Path) -> None:
    path = write_experiment(folder, blocks=1)
    path.write_text(path.read_text().replace('"--boot-time"', '"--spawn-child", "--boot-time"'))
    started = subprocess.Popen(command("replay", "experiment.toml", "-o", "run"), cwd=folder, env=ENVIRONMENT)
    events = folder / "run" / "events.jsonl"
    wait_for(lambda: events.exists() and b'"boot_ready"' in events.read_bytes())
    started.kill()
    started.wait()
    # The engine is told by the kernel, where it does that; its helper is told by nobody.
    assert living_in(folder)
    resumed = replay(folder, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert not living_in(folder)
    run = read_run(folder / "run")
    assert_whole(run, {"v0", "v0.aa", "v1"}, 1)
    # By the guard or by --resume, whichever came first; never by both.
    assert [event["event"] for event in run.events].count("leftover_stopped") == 1


def test_a_rule_that_changed_after_the_first_boot_is_refused_a_reformatted_one_is_not(folder: Path) -> None:
    path = write_experiment(folder)
    assert replay(folder).returncode == 0
    path.write_text(path.read_text() + "\n# a comment\n")
    assert replay(folder, "--resume").returncode == 0
    path.write_text(path.read_text().replace("requests_per_boot = 8", "requests_per_boot = 9"))
    refused = replay(folder, "--resume")
    assert refused.returncode == 2
    assert "the rule has changed since this run's first boot" in refused.stderr


def test_an_arm_that_dies_in_boot_fails_and_the_others_go_on(folder: Path) -> None:
    write_experiment(folder, '[[arm]]\nname = "v1"\nargs = ["--die-in-boot", "3"]\n', blocks=2)
    done = replay(folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert "An arm failed and counts as rejected: v1: the engine died while it booted (exit code 3)" in said
    assert done.stderr.count("engine.log") == 1
    assert max(map(len, done.stderr.splitlines())) <= 80
    run = read_run(folder / "run")
    statuses = Counter((boot.facts.arm, boot.facts.status) for boot in run.boots)
    assert statuses == {("v0", "done"): 2, ("v0.aa", "done"): 2, ("v1", "failed"): 1}  # not booted again


def test_an_engine_that_dies_while_it_serves_fails(folder: Path) -> None:
    write_experiment(folder, '[[arm]]\nname = "v1"\nargs = ["--die-after", "9"]\n')
    done = replay(folder)
    assert done.returncode == 1
    (failed,) = [boot for boot in read_run(folder / "run").boots if boot.facts.status == "failed"]
    assert failed.facts.arm == "v1"
    assert failed.facts.reason is not None
    assert "the engine died while it served" in failed.facts.reason
    assert failed.outcomes  # what it answered before is kept


def test_a_port_that_somebody_else_has_is_no_fault_of_an_arm(folder: Path) -> None:
    path = write_experiment(folder)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path.write_text(path.read_text().replace(f'model = "{MODEL}"', f'model = "{MODEL}"\nport = {port}'))
        done = replay(folder)
    assert done.returncode == 1
    assert f"something already answers on 127.0.0.1:{port}" in done.stderr
    assert "let firsttoken pick a port" in done.stderr
    assert read_run(folder / "run").boots == ()


@pytest.mark.parametrize("place", ["profile/manifest.json/run", "/proc/none/run", "x" * 300])
def test_a_place_where_no_run_can_be_is_one_sentence(folder: Path, place: str) -> None:
    write_experiment(folder)
    done = subprocess.run(
        command("replay", "experiment.toml", "-o", place),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"firsttoken: {place}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_without_its_manifest_is_named_for_what_it_is(folder: Path) -> None:
    write_experiment(folder)
    made = folder / "run"
    made.mkdir()
    (made / "events.jsonl").touch()
    for flags in ((), ("--resume",)):
        done = replay(folder, *flags)
        assert done.returncode == 2
        assert "run: a run is there, and its manifest.json is missing" in done.stderr


def test_a_run_has_one_writer(folder: Path) -> None:
    first = lock_folder(folder)
    assert first is not None
    assert lock_folder(folder) is None  # a second replay would take the first one's engine for an orphan
    os.close(first)
    second = lock_folder(folder)
    assert second is not None
    os.close(second)


def test_a_baseline_that_does_not_boot_stops_the_run(folder: Path) -> None:
    path = write_experiment(folder)
    path.write_text(path.read_text().replace('"--boot-time"', '"--die-in-boot", "4", "--boot-time"'))
    done = replay(folder)
    assert done.returncode == 1
    assert "exit code 4" in done.stderr
    assert "Without its baseline a run cannot go on" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "v1"', 'name = "v1"\nagrs = ["--x"]'), ":29: arm[1].agrs: unknown key\n  Did you mean 'args'?"),
        (('name = "v1"', 'name = "v1"\nargv = ["no-engine"]'), "arm[1].argv: v1: the command 'no-engine' does not"),
        (('path = "profile"', 'path = "elsewhere"'), "elsewhere: no such directory"),
        (("blocks = 1", "blocks = 0"), ": design.blocks: must be at least 1"),
        (("[discard]", '[[guard]]\nmetric = "ttft_p90"\nmargin = 0.1\n[discard]'), "it needs 36"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_with_its_place(folder: Path, change: tuple[str, str], said: str) -> None:
    path = write_experiment(folder)
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    done = replay(folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "run").exists()


def test_a_profile_of_another_version_or_without_bodies_is_refused(folder: Path) -> None:
    write_experiment(folder)
    manifest = folder / "profile" / "manifest.json"
    document = orjson.loads(manifest.read_bytes())
    manifest.write_bytes(orjson.dumps(document | {"version": 9}))
    done = replay(folder)
    assert done.returncode == 2
    assert "firsttoken/profile version 9 cannot be read" in done.stderr
    manifest.write_bytes(orjson.dumps(document | {"content": "none"}))
    done = replay(folder)
    assert done.returncode == 2
    assert "the profile holds no request bodies" in done.stderr
    assert "--bodies full" in done.stderr


def wait_for(happened: "object", patience_s: float = 60) -> None:
    assert callable(happened)
    deadline = time.monotonic() + patience_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
