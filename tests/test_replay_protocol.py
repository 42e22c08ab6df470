"""The protocol of a boot in whole runs on the embedded engine: pilots, caches, memory, engines that are up already."""

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from fake_nvidia_smi import H200, write_tool
from recorded import MODEL
from recorded import write_profile as record
from test_replay_run import ENVIRONMENT, command, engines_of, replay, wait_for, write_experiment

from analysis import course
from firsttoken import cli
from profiles.errors import EngineFailed, RunInvalid, UsageError
from profiles.experiment import load_experiment
from profiles.records import Outcome
from profiles.runs import read_boot_facts, read_run
from replay import memory, surroundings
from replay.client import Planned, Slot, Timeouts
from replay.clock import SystemClock
from replay.engines import free_port, port_refuses
from replay.player import api_client

pytestmark = pytest.mark.process
HOST = "127.0.0.1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    return tmp_path


def change(path: Path, *pairs: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_a_pilot_of_the_baseline_fixes_the_warm_up_and_prewarm_boots_every_arm(folder: Path) -> None:
    cache = folder / "compile-cache"
    path = write_experiment(folder)
    change(
        path,
        ("warmup_rounds = 1\n", ""),
        ('stop_timeout = "5s"\n', f'stop_timeout = "5s"\ncache = "prewarm"\ncache_dirs = ["{cache}"]\n'),
        ('"--boot-time", "10ms"', f'"--boot-time", "10ms", "--compile-cache", "{cache}"'),
    )
    done = replay(folder)
    assert done.returncode == 0, done.stderr
    run = read_run(folder / "run")
    pilots = {name: read_boot_facts(folder / "run" / "pilots" / name) for name in ("v0", "v1")}
    assert all(facts.pilot and facts.status == "done" and not facts.windows for facts in pilots.values())
    assert pilots["v0"].compile_cache == "cold"
    assert {boot.facts.compile_cache for boot in run.boots} == {"warm"}
    (fixed,) = [event for event in run.events if event["event"] == "warm_up_fixed"]
    assert fixed["pilot"] is True
    for boot in run.boots:
        steps = {step.name: step for step in boot.facts.steps}
        assert steps["warm_up"].facts["rounds"] == fixed["rounds"] >= 2
        assert steps["isolation"].proof is not None
        assert list(steps)[-2:] == ["stop", "memory"]
    assert "warm-up: " in done.stderr


def replay_here(folder: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """A replay in this process, whose surroundings a test has changed. Raises what the front door would say."""
    monkeypatch.chdir(folder)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    cli.main(["replay", "experiment.toml", "-o", "run", *flags], standalone_mode=False)


def test_an_engine_that_leaves_too_little_memory_is_stopped_and_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiment(folder)
    monkeypatch.setattr(memory, "MemoryWatch", partial(memory.MemoryWatch, read=lambda: 1024**2))
    with pytest.raises(EngineFailed, match="0 GiB of memory were left, the floor is 1 GiB: the engine was stopped"):
        replay_here(folder, monkeypatch)
    (boot,) = read_run(folder / "run").boots
    assert (boot.facts.status, boot.facts.diagnosis) == ("failed", "memory")
    assert not engines_of(folder)


def test_a_boot_proves_that_the_memory_of_its_gpu_is_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for nvidia-smi on the PATH: what was in use before the spawn is in use again behind the stop."""
    write_experiment(folder)
    write_tool(folder, gpus=H200)
    monkeypatch.setitem(ENVIRONMENT, "PATH", f"{folder}{os.pathsep}{ENVIRONMENT['PATH']}")
    # A process of its own: it adopts what the stand-in leaves when it is killed.
    done = replay(folder)
    assert done.returncode == 0, done.stderr
    for boot in read_run(folder / "run").boots:
        steps = {step.name: step for step in boot.facts.steps}
        assert steps["gpu_free"].facts == {"seen": [], "memory_used_bytes": {"0": 1011 * 1024**2}}
        assert list(steps)[-2:] == ["memory", "gpu_memory"]
        assert steps["gpu_memory"].proof == "in use: GPU 0 0.99 GiB"
        assert boot.facts.diagnosis is None


def test_too_little_memory_before_the_spawn_is_no_fault_of_the_arm_and_nothing_is_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(write_experiment(folder), ("[discard]\n", "[discard]\nreplacement_boots_max = 1\n"))
    left = [8 * 1024**3]  # enough for one boot
    read = lambda: left.pop() if left else 1024**3 // 2  # noqa: E731
    little = partial(memory.memory_floor, timeout_ns=0, read=read)
    with monkeypatch.context() as scarce:
        scarce.setattr(memory, "memory_floor", little)
        for flags in ((), ("--resume",)):  # the rule has spoken: going on changes nothing, and that is said
            with pytest.raises(RunInvalid, match="2 boots were discarded, the rule allows 1") as refused:
                replay_here(folder, scarce, *flags)
            assert "by its rule this run is invalid, and --resume cannot change that" in str(refused.value)
            assert "`firsttoken report run` shows what was measured" in str(refused.value)
    boots = [boot for boot in read_run(folder / "run").boots if boot.facts.status != "done"]
    assert len(boots) == 2
    for boot in boots:
        facts = boot.facts
        assert (facts.status, facts.diagnosis, facts.spawned_ns) == ("discarded", "low_memory", None)
        assert "only 0.5 GiB of memory were available before the engine was started" in str(facts.reason)
        assert not (boot.path / "engine.log").exists()
    report = subprocess.run(
        command("report", "run", "--no-html"), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert report.returncode == 4
    assert "too many replacements: 2 boots of" in report.stdout
    # A higher limit is another rule: the run goes on, post hoc.
    change(folder / "experiment.toml", ("replacement_boots_max = 1", "replacement_boots_max = 9"))
    replay_here(folder, monkeypatch, "--resume", "--amend", "the neighbour has left")


def test_a_boot_says_in_which_environment_it_ran_and_what_it_could_not_wait_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = 'stop_timeout = "5s"\ncool_down_c = 50\napi_key_env = "OUR_KEY"\n'
    arm = '[[arm]]\nname = "v1"\nenv = { OUR_KEY = "k", VLLM_FLAG = "{port}" }\n'
    change(write_experiment(folder, arm), ('stop_timeout = "5s"\n', keys))
    monkeypatch.setattr(surroundings, "cool_down", partial(surroundings.cool_down, read=list))
    monkeypatch.setenv("OUR_KEY", "ours")
    monkeypatch.setenv("VLLM_OURS", "1")
    replay_here(folder, monkeypatch)
    said = capfd.readouterr().err
    assert said.count("no GPU says its temperature") == 1  # once, not for each boot
    run = read_run(folder / "run")
    by_arm = {boot.facts.arm: boot.facts for boot in run.boots}
    assert by_arm["v0"].env.get("VLLM_OURS") == by_arm["v1"].env.get("VLLM_OURS") == "1"
    assert "VLLM_FLAG" not in by_arm["v0"].env
    assert by_arm["v1"].env["OUR_KEY"] is None
    assert str(by_arm["v1"].env["VLLM_FLAG"]).isdigit()  # as the engine got it
    (stated,) = [each for each in run.manifest["arms"] if each["name"] == "v1"]
    assert stated["env"] == {"OUR_KEY": None, "VLLM_FLAG": "{port}"}
    assert {"cwd", "container_args", "port", "ready_timeout", "stop_timeout"} <= stated.keys()
    assert b'"k"' not in (folder / "run" / "manifest.json").read_bytes()
    found = course.not_checked(run, load_experiment(folder / "run" / "experiment.toml"))
    assert found == ("engine.cool_down_c: no GPU says its temperature",)

    monkeypatch.setenv("VLLM_OURS", "2")
    with pytest.raises(UsageError, match="VLLM_OURS was '1' and is '2'"):
        replay_here(folder, monkeypatch, "--resume")


def test_a_salt_that_the_engine_ignores_is_found_before_anything_is_measured(folder: Path) -> None:
    change(write_experiment(folder), ('"--boot-time", "10ms"', '"--boot-time", "10ms", "--ignore-cache-salt"'))
    done = replay(folder)
    assert done.returncode == 1
    assert "in spite of cache_salt" in done.stderr
    (boot,) = read_run(folder / "run").boots
    assert boot.facts.diagnosis == "salt_ignored"
    assert not [item for item in boot.outcomes if item.measured]
    change(folder / "experiment.toml", ('stop_timeout = "5s"\n', 'stop_timeout = "5s"\ncache_isolation = "nonce"\n'))
    again = subprocess.run(
        command("replay", "experiment.toml", "-o", "nonce"),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert again.returncode == 0, again.stderr


def test_a_reset_between_passes_is_proved_by_the_log(folder: Path) -> None:
    reset = 'stop_timeout = "5s"\ncache_isolation = "reset"\nenv = { VLLM_SERVER_DEV_MODE = "1" }\n'
    change(write_experiment(folder, arms=""), ('stop_timeout = "5s"\n', reset))
    done = replay(folder)
    assert done.returncode == 0, done.stderr
    for boot in read_run(folder / "run").boots:
        resets = [step.proof for step in boot.facts.steps if step.name == "reset"]
        assert len(resets) == len({window.name if not window.deciding else "" for window in boot.facts.windows})
        assert all(proof is not None and "Successfully reset prefix cache" in proof for proof in resets)


def test_engines_that_are_up_already_are_measured_and_neither_booted_nor_stopped(folder: Path) -> None:
    ports = [free_port(HOST), free_port(HOST)]
    engines = [
        subprocess.Popen(
            command("engine", "--port", port, "--model", MODEL, "--boot-time", "10ms", "--time-scale", "0.05"),
            cwd="/",
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
        )
        for port in ports
    ]
    try:
        wait_for(lambda: not any(port_refuses(HOST, port) for port in ports))
        path = write_experiment(folder, arms="")
        text = path.read_text()
        start, end = text.index("argv = ["), text.index("model = ")
        text = text[:start] + 'launcher = "external"\n' + text[end:]
        arms = "".join(f'[[arm]]\nname = "v{n}"\nurl = "http://{HOST}:{port}"\n' for n, port in enumerate(ports))
        path.write_text(text[: text.index("[[arm]]")] + arms)
        done = replay(folder)
        assert done.returncode == 0, done.stderr
        run = read_run(folder / "run")
        assert run.manifest["cold"] is False
        assert {boot.facts.cold for boot in run.boots} == {False}
        assert {boot.facts.stop for boot in run.boots} == {"left"}
        assert [engine.poll() for engine in engines] == [None, None]
        shown = subprocess.run(
            command("report", "run", "--json"), cwd=folder, env=ENVIRONMENT, capture_output=True, check=False
        )
        assert orjson.loads(shown.stdout)["cold"] is False
    finally:
        for engine in engines:
            engine.terminate()
            engine.wait()


async def serve(answer: bytes, seen: list[bytes]) -> asyncio.Server:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                seen.append(await reader.readuntil(b"{}"))
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            writer.write(answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_server(connected, HOST, 0)


REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}"


def test_no_request_is_repeated_in_secret_and_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases R05 and R02: ten refusals are ten requests, and the environment's proxy hears of none of them."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{HOST}:9")
    monkeypatch.setenv("NO_PROXY", "localhost,10.0.0.0/8")
    seen: list[bytes] = []

    async def main() -> list[Outcome]:
        server = await serve(REFUSAL, seen)
        url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        slot = Slot(url, SystemClock(), timeouts=Timeouts())
        planned = [Planned("w", 1, at, at, "qa", "/v1/chat/completions", b"{}") for at in range(10)]
        outcomes = [await slot.send(each) for each in planned]
        await slot.close()
        async with api_client(url) as api:
            answer: Any = await api.request("GET", "/health", content=b"{}")
            assert answer.status_code == 503
        server.close()
        await server.wait_closed()
        return outcomes

    outcomes = asyncio.run(main())
    assert [(item.outcome, item.status, item.resent) for item in outcomes] == [("error", 503, 0)] * 10
    assert len(seen) == 11
    from replay.plan import describe_environment

    found = describe_environment()["proxy_variables"]
    assert {"ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"} <= set(found)
    assert "9" not in str(found)
