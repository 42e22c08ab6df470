"""Docker and Podman: the command that is built, and the life of a container under a fake daemon."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_docker
import pytest

from profiles.errors import EngineFailed
from profiles.experiment_file import Arm
from profiles.units import SECOND_NS
from replay.clock import SystemClock
from replay.engines import (
    Launch,
    PortTaken,
    bind_address,
    free_port,
    launch,
    port_refuses,
    stop_leftover,
    wait_listening,
)
from replay.engines.container_client import client_environment, instant_of, run_command
from replay.engines.proc_stat import read_stat

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[1]
CLOCK = SystemClock()
SMALL = (sys.executable, "-IS", str(ROOT / "tests" / "small_engine.py"))
KEY = "sk-not-in-any-argument"


def plan(folder: Path, port: int = 8000, *faults: str, **changes: Any) -> Launch:
    made = Launch(
        arm="v1",
        argv=(*SMALL, str(port), *faults),
        env={"BIND": HOST, "VLLM_API_KEY": KEY, "HOME": "/root"},
        cwd=folder,
        log=folder / "engine.log",
        host=HOST,
        port=port,
        image="small:1",
        run_id="0123456789abcdef",
        boot_name="01-02-v0.aa-r2",
    )
    return replace(made, **changes)


def test_the_command_names_labels_publishes_on_loopback_and_holds_no_key(tmp_path: Path) -> None:
    made = plan(tmp_path, argv=("--model", "m", "--port", "8000"), container_args=("--gpus", "all", "--ipc=host"))
    assert run_command("docker", made) == [
        *("docker", "run", "--detach", "--pull", "never"),
        *("--name", "firsttoken-01234567-01-02-v0.aa-r2"),
        *("--label", "firsttoken.run=0123456789abcdef", "--label", "firsttoken.boot=01-02-v0.aa-r2"),
        *("--publish", "127.0.0.1:8000:8000"),
        # HOME would steer the client itself, so it goes as an argument and not through its environment.
        *("--env", "BIND", "--env", "VLLM_API_KEY", "--env", "HOME=/root"),
        *("--gpus", "all", "--ipc=host"),
        *("small:1", "--model", "m", "--port", "8000"),
    ]
    assert run_command("podman", made)[0] == "podman"
    assert run_command("podman", made)[1:] == run_command("docker", made)[1:]
    assert client_environment(made)["VLLM_API_KEY"] == KEY
    assert client_environment(made).get("HOME") == os.environ.get("HOME")


@pytest.mark.parametrize("given", [("--network", "host"), ("--network=host",), ("--net", "host"), ("--net=host",)])
def test_with_the_network_of_the_host_nothing_is_published_and_the_engine_binds_the_host(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    assert "--publish" not in run_command("docker", plan(tmp_path, container_args=given))
    arm = Arm(name="v1", argv=(), env={}, extends=None, changes=frozenset(), container_args=given)
    assert bind_address("docker", arm, HOST) == HOST
    own_network = replace(arm, container_args=("--network", "host-like"))
    assert bind_address("podman", own_network, HOST) == "0.0.0.0"
    assert bind_address("podman", own_network, "::1") == "::"
    assert bind_address("process", own_network, HOST) == HOST


def test_an_ipv6_host_is_published_in_brackets(tmp_path: Path) -> None:
    assert "[::1]:8000:8000" in run_command("docker", plan(tmp_path, host="::1"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:10.5Z", 10.5),
        ("1970-01-01T00:00:10.123456789Z", 10.123456789),
        ("1970-01-01T01:00:10+01:00", 10.0),
        ("1970-01-01 01:00:10.5 +0100 CET", 10.5),
        ("0001-01-01", None),
        ("", None),
    ],
)
def test_the_daemons_dates_are_read_to_the_nanosecond(text: str, seconds: float | None) -> None:
    assert instant_of(text) == (pytest.approx(seconds) if seconds is not None else None)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state of a fake daemon, whose client is the first `docker` and `podman` on PATH."""
    state = tmp_path / "daemon"
    state.mkdir()
    for name in ("docker", "podman"):
        fake_docker.install(tmp_path / "bin", name)
    monkeypatch.setenv("FAKE_DOCKER", str(state))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    yield state
    for pid in state.glob("*/pid"):
        if not (pid.parent / "code").exists():
            os.kill(int(pid.read_text()), signal.SIGKILL)


def calls(daemon: Path, command: str) -> list[list[str]]:
    lines = [json.loads(line) for line in (daemon / "calls.jsonl").read_text().splitlines()]
    return [words for words in lines if words[0] == command]


def containers(daemon: Path) -> list[Path]:
    return [folder for folder in sorted(daemon.glob("c*")) if folder.is_dir()]


async def until(happened: Callable[[], object], patience_s: float = 20) -> None:
    for _ in range(round(patience_s / 0.02)):
        if happened():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


@pytest.mark.process
@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_a_container_runs_is_followed_stopped_and_removed(tmp_path: Path, daemon: Path, kind: str) -> None:
    async def main() -> None:
        port = free_port(HOST)
        written: list[dict[str, Any]] = []
        engine: Any = await launch(kind, plan(tmp_path, port, "flood", remember=written.append), CLOCK)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        assert engine.lives
        assert engine.owns_port()
        assert engine.strangers() == []
        identity = engine.identity()
        assert written[0] == {key: identity[key] for key in written[0]}  # labels, before it was run
        assert written[-1] == identity
        assert identity["image_digests"] == ["registry.example/small@sha256:abc"]
        assert identity["container"] == containers(daemon)[0].name[1:]
        assert KEY not in json.dumps(identity)
        leader = int((containers(daemon)[0] / "pid").read_text())
        stat = read_stat(leader)
        assert stat is not None
        assert engine.owner() == (leader, stat.started)
        assert [process.pid for process in engine.members()] == [leader]
        stopped = await engine.stop(5 * SECOND_NS)
        assert (stopped.how, stopped.exit_code) == ("term", 143)
        assert not engine.lives
        assert port_refuses(HOST, port)

    asyncio.run(main())
    assert containers(daemon) == []
    assert all(KEY not in word for call in calls(daemon, "run") for word in call)
    (stop,) = calls(daemon, "stop")
    assert stop[1:3] == ["--time", "5"]
    log = (tmp_path / "engine.log").read_bytes()
    assert log.startswith(b"loading weights\n")
    assert log.count(b"\xff\xfe progress") == 600
    assert log.endswith(b"serving\n")


@pytest.mark.process
def test_a_container_that_ignores_sigterm_is_killed_and_one_that_died_says_so(tmp_path: Path, daemon: Path) -> None:
    async def main() -> None:
        port = free_port(HOST)
        engine = await launch("docker", plan(tmp_path, port, "ignore-term"), CLOCK)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        stopped = await engine.stop(SECOND_NS)
        assert (stopped.how, stopped.exit_code) == ("kill", 137)

        engine = await launch("docker", plan(tmp_path, port, "bad-flag"), CLOCK)
        (folder,) = containers(daemon)
        (folder / "oom").touch()
        with pytest.raises(EngineFailed, match="nothing listens") as failed:
            await wait_listening(engine, CLOCK, patience_ns=900 * SECOND_NS)
        assert failed.value.log_tail[-1] == "torch.OutOfMemoryError: CUDA out of memory."
        assert engine.exit_code == 1
        assert engine.cause == "the kernel killed it for its memory (OOMKilled)"
        assert engine.identity()["oom_killed"] is True
        stopped = await engine.stop(SECOND_NS)
        assert (stopped.how, stopped.exit_code) == ("died", 1)

    asyncio.run(main())
    assert containers(daemon) == []


@pytest.mark.process
def test_a_client_of_the_log_that_ends_is_started_anew_and_no_byte_is_doubled(tmp_path: Path, daemon: Path) -> None:
    async def main() -> None:
        engine: Any = await launch("docker", plan(tmp_path, free_port(HOST)), CLOCK)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        await until(lambda: (tmp_path / "engine.log").read_bytes().endswith(b"serving\n"))
        engine._logs.kill()
        await until(lambda: len(calls(daemon, "logs")) == 2)
        assert engine.lives
        await engine.stop(5 * SECOND_NS)

    asyncio.run(main())
    assert (tmp_path / "engine.log").read_bytes() == b"loading weights\nserving\n"


@pytest.mark.process
def test_a_container_that_cannot_be_run_is_one_sentence(tmp_path: Path, daemon: Path) -> None:
    with pytest.raises(EngineFailed, match=r"docker run failed \(exit code 125\): .*No such image: missing:2"):
        asyncio.run(launch("docker", plan(tmp_path, free_port(HOST), image="missing:2"), CLOCK))
    assert containers(daemon) == []


@pytest.mark.process
def test_a_cancelled_start_leaves_no_container(tmp_path: Path, daemon: Path) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(launch("docker", plan(tmp_path, free_port(HOST)), CLOCK))
        await until(lambda: (daemon / "calls.jsonl").exists())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(calls(daemon, "run")) == 1
    assert containers(daemon) == []


# What a replay does as far as its engine goes, to be killed in the middle of it.
HARNESS = """
import asyncio, json, sys, pathlib
sys.path[:0] = [{root!r}, {tests!r}]
from test_replay_engines_container import plan, CLOCK
from replay.engines import launch
folder = pathlib.Path({folder!r})
async def main():
    written = lambda identity: (folder / "engine.json").write_text(json.dumps(identity))
    await launch("docker", plan(folder, {port}, remember=written), CLOCK)
    print("up", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.process
def test_after_a_kill_of_ours_the_container_is_found_by_its_labels_and_no_other_is_touched(
    tmp_path: Path, daemon: Path
) -> None:
    """Case L12."""
    port = free_port(HOST)
    code = HARNESS.format(root=str(ROOT), tests=str(ROOT / "tests"), folder=str(tmp_path), port=port)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == b"up\n"
        harness.kill()

    async def main() -> None:
        left = containers(daemon)
        assert len(left) == 1
        assert not (left[0] / "code").exists()  # it lives on
        other = plan(tmp_path, free_port(HOST), run_id="another run", log=tmp_path / "other.log")
        foreign = await launch("docker", other, CLOCK)
        await until(lambda: not port_refuses(HOST, port))

        with pytest.raises(PortTaken):  # as it would be without looking for what is left
            await launch("docker", plan(tmp_path, port), CLOCK)
        identity = json.loads((tmp_path / "engine.json").read_text())
        # A kill between `run` and its answer: only the labels are known.
        labels = {key: identity[key] for key in ("launcher", "run", "boot")}
        assert await stop_leftover(labels, CLOCK)
        assert not await stop_leftover(identity, CLOCK)
        assert foreign.lives
        assert [folder.name for folder in containers(daemon)] == [f"c{foreign.identity()['container']}"]

        second = await launch("docker", plan(tmp_path, port), CLOCK)
        await wait_listening(second, CLOCK, patience_ns=30 * SECOND_NS)
        await second.stop(5 * SECOND_NS)
        await foreign.stop(5 * SECOND_NS)

    asyncio.run(main())
    assert containers(daemon) == []


@pytest.mark.process
def test_a_container_whose_labels_say_another_run_is_left_alone(tmp_path: Path, daemon: Path) -> None:
    async def main() -> None:
        engine: Any = await launch("docker", plan(tmp_path, free_port(HOST)), CLOCK)
        mine = engine._launch
        engine._launch = replace(mine, run_id="another run")
        with pytest.raises(EngineFailed, match="is not ours: it was left alone"):
            await engine.stop(SECOND_NS)
        assert calls(daemon, "stop") == calls(daemon, "rm") == []
        assert engine._logs.returncode is not None
        engine._launch = mine
        await engine.stop(5 * SECOND_NS)

    asyncio.run(main())
