"""What a replay leaves when it is killed with SIGKILL, which it cannot answer: nothing. Real kills, real processes."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_docker
import orjson
import psutil
import pytest
from recorded import write_profile
from test_replay_engines_container import containers
from test_replay_engines_hooks import scripts
from test_replay_run import ENVIRONMENT, ROOT, command, living_in, wait_for, write_experiment

from profiles.files import lock_folder, make_folder
from replay.clock import SystemClock
from replay.engines import free_port
from replay.engines.proc_stat import host_boot, lives, read_stat
from replay.guard import Guard, acting, stop_left, wait_guards
from replay.rundir import ENDED, ENGINE

pytestmark = pytest.mark.process
HOST = "127.0.0.1"
STUBBORN = '"--ignore-sigterm", "--leave-grandchildren", "renamed", "--boot-time"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profile(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    return tmp_path


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "events.jsonl"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def named(folder: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in events(folder) if line["event"] == event]


def identity_of_boot(folder: Path) -> dict[str, Any]:
    (engine,) = (folder / "run").glob(f"boots/*/{ENGINE}")
    found: dict[str, Any] = orjson.loads(engine.read_bytes())
    return found


def killed_when_ready(folder: Path, members: int = 1) -> list[tuple[int, float]]:
    """Kill a replay in its first boot, when so many processes of it are known. Returns what it had started."""
    started = subprocess.Popen(command("replay", "experiment.toml", "-o", "run"), cwd=folder, env=ENVIRONMENT)
    wait_for(lambda: named(folder, "boot_ready"))
    helpers = [process.pid for process in psutil.Process(started.pid).children(recursive=True)]
    beside = [(pid, stat.started) for pid in helpers if (stat := read_stat(pid)) is not None]
    wait_for(lambda: len(identity_of_boot(folder)["members"]) >= members)
    started.kill()
    started.wait()
    return [(int(pid), float(began)) for pid, began in identity_of_boot(folder)["members"]] + beside


def test_a_stubborn_engine_and_its_renamed_workers_do_not_outlive_a_kill_of_ours(folder: Path) -> None:
    path = write_experiment(folder)
    path.write_text(path.read_text().replace('"--boot-time"', STUBBORN))
    left = killed_when_ready(folder, 3)
    assert len(left) >= 3
    assert any(lives(*each) for each in left)  # SIGTERM from the kernel is not enough
    wait_for(lambda: not any(lives(*each) for each in left))
    assert not living_in(folder)
    wait_for(lambda: named(folder, "leftover_stopped"))
    (said,) = named(folder, "leftover_stopped")
    assert (said["by"], said["launcher"]) == ("guard", "process")
    assert identity_of_boot(folder)[ENDED] is True


def test_hooks_and_what_prints_the_log_do_not_outlive_a_kill_of_ours(folder: Path) -> None:
    scripts(folder)
    # `stop` needs what the arm sets, and the log is printed by two processes of which one ignores SIGTERM.
    (folder / "stop").write_text('#!/bin/sh\ntest "$ARM" = mine && kill $(cat engine.pid)\n')
    (folder / "logs").write_text("#!/bin/sh\ntouch journal\ntrap '' TERM\ntail -n +1 -F journal\ntrue\n")
    engine = f'"./start", "{sys.executable}", "-m", "firsttoken", "engine", "--boot-time", "10ms"'
    path = write_experiment(folder)
    text = path.read_text()
    start, end = text.index("argv ="), text.index("model =")
    hooks = f'[engine.hooks]\nstart = [{engine}, "--port", "{{port}}", "--model", "{{model}}"]\nstop = ["./stop"]\n'
    text = text[:start] + 'launcher = "command"\nenv = { ARM = "mine" }\n' + text[end:]
    path.write_text(text + hooks + 'logs = ["./logs"]\n')
    left = killed_when_ready(folder)
    assert len(left) >= 3  # the hook `logs`, its tail, and the guard itself
    wait_for(lambda: not living_in(folder))
    assert not any(lives(*each) for each in left)
    assert [line["launcher"] for line in named(folder, "leftover_stopped")] == ["command"]


HARNESS = """
import asyncio, json, sys, pathlib
sys.path[:0] = [{root!r}, {tests!r}]
from test_replay_engines_container import plan, CLOCK
from replay.engines import launch
from replay.guard import Guard
boot = pathlib.Path({boot!r})
async def main():
    written = lambda identity: (boot / "engine.json").write_text(json.dumps(identity))
    Guard.start(boot, {{}})
    await launch("docker", plan(boot, {port}, remember=written), CLOCK)
    print("up", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "daemon"
    state.mkdir()
    fake_docker.install(tmp_path / "bin")
    monkeypatch.setenv("FAKE_DOCKER", str(state))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{ENVIRONMENT['PATH']}")
    return state


def test_a_container_does_not_outlive_a_kill_of_ours(tmp_path: Path, daemon: Path) -> None:
    boot = tmp_path / "run" / "boots" / "01-01-v1"
    make_folder(boot)
    words = {"root": str(ROOT), "tests": str(ROOT / "tests"), "boot": str(boot), "port": free_port(HOST)}
    with subprocess.Popen([sys.executable, "-c", HARNESS.format(**words)], stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == b"up\n"
        assert containers(daemon)
        harness.kill()
    wait_for(lambda: not containers(daemon))  # stopped and removed
    wait_for(lambda: named(tmp_path, "leftover_stopped"))


# The guard itself


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Path]:
    """A boot that was interrupted, with a sleeper as its engine."""
    folder = tmp_path / "run" / "boots" / "01-01-v1"
    make_folder(folder)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:
        stat = read_stat(sleeper.pid)
        assert stat is not None
        identity = {"launcher": "process", "host_boot": host_boot(), "marker": "none", "since": 0}
        (folder / ENGINE).write_text(json.dumps({**identity, "members": [[sleeper.pid, stat.started]]}))
        yield folder
        sleeper.kill()


def sleeps(boot: Path) -> bool:
    ((pid, started),) = orjson.loads((boot / ENGINE).read_bytes())["members"]
    return lives(pid, started)


def test_a_guard_that_is_dismissed_is_gone_and_has_touched_nothing(boot: Path) -> None:
    guard = Guard.start(boot, {})
    assert guard is not None
    shell = psutil.Process(guard._process.pid)
    assert shell.memory_info().rss < 8e6  # a shell and not another Python
    guard.dismiss()
    assert not psutil.pid_exists(shell.pid)
    assert sleeps(boot)


def test_a_guard_leaves_alone_what_has_ended_and_what_a_resumed_run_looks_after(boot: Path) -> None:
    run = boot.parent.parent
    taken = lock_folder(run)
    assert taken is not None
    stop_left(boot / ENGINE)
    assert sleeps(boot)
    os.close(taken)
    (boot / "boot.json").touch()
    stop_left(boot / ENGINE)
    assert sleeps(boot)
    (boot / "boot.json").unlink()
    stop_left(boot / ENGINE)
    assert not sleeps(boot)
    assert len(events(run.parent)) == 1
    assert orjson.loads((boot / ENGINE).read_bytes())[ENDED] is True  # once is enough
    stop_left(boot / ENGINE)
    assert len(events(run.parent)) == 1


def test_a_run_is_taken_up_when_its_guard_has_finished(boot: Path) -> None:
    run = boot.parent.parent
    assert not acting(run)
    held = lock_folder(boot)
    assert held is not None
    assert acting(run)

    async def main() -> float:
        began = time.monotonic()
        asyncio.get_running_loop().call_later(0.3, os.close, held)
        await wait_guards(run, SystemClock())
        return time.monotonic() - began

    assert asyncio.run(main()) >= 0.25
    assert not acting(run)
