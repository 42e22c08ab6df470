"""What is refused before the first boot, and who is told that we are gone."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import fake_docker
import psutil
import pytest

from profiles.errors import RuleError
from profiles.experiment import load_experiment
from replay.engines import check_launcher, free_port, port_refuses
from replay.engines.ports import Listener, describe, listeners

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[1]
HEAD = '[rule]\nid = "r"\n[profile]\npath = "profile"\n[engine]\n'
ARM = '[[arm]]\nname = "v0"\n'
TRUE = "/bin/sh"


def check(folder: Path, text: str) -> str:
    """What the check says; empty if it lets the experiment pass."""
    path = folder / "experiment.toml"
    path.write_text(HEAD + text)
    try:
        check_launcher(load_experiment(path))
    except RuleError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'argv = ["{TRUE}"]\n{ARM}', ""),
        (f'argv = ["{TRUE}"]\ncwd = "no"\n{ARM}', ":7: engine.cwd: 'no' is not a directory"),
        (f'argv = ["{TRUE}"]\n{ARM}cwd = "no"\n', ":9: arm[0].cwd: 'no' is not a directory"),
        (f'argv = ["no-engine"]\n{ARM}', ":6: engine.argv: v0: the command 'no-engine' does not exist"),
        (f'argv = ["{TRUE}"]\n{ARM}argv = ["./no"]\n', ":9: arm[0].argv: v0: the command './no' does not exist"),
        (
            f'launcher = "command"\n[engine.hooks]\nstart = ["sh"]\nstop = ["no-hook"]\n{ARM}',
            ":9: engine.hooks.stop: the command 'no-hook' does not exist",
        ),
        (f'launcher = "command"\n[engine.hooks]\nstart = ["{{arm}}/up"]\nstop = ["sh"]\n{ARM}', ""),
        (f'argv = ["{TRUE}"]\nhost = "localhost"\n{ARM}', ""),
        (
            f'argv = ["{TRUE}"]\nhost = "no.such.host.invalid"\n{ARM}',
            ":7: engine.host: 'no.such.host.invalid' cannot be",
        ),
        (f'argv = ["{TRUE}"]\nhost = "a..b"\n{ARM}', ":7: engine.host: 'a..b' cannot be used: label empty"),
        # Not an address of this machine: only where the port is given is it none of our business.
        (f'argv = ["{TRUE}"]\nhost = "192.0.2.7"\n{ARM}', ":7: engine.host: '192.0.2.7' cannot be used: Cannot assign"),
        (f'argv = ["{TRUE}"]\nhost = "192.0.2.7"\nport = 8000\n{ARM}', ""),
        (
            f'argv = ["{TRUE}"]\nhost = "no.host.invalid"\nport = 8000\n{ARM}',
            ":7: engine.host: 'no.host.invalid' cannot",
        ),
        (f'argv = ["{TRUE}"]\nmin_available_gib = 9e6\n{ARM}', ":7: engine.min_available_gib: 9e+06 GiB can never be"),
    ],
)
def test_what_is_not_there_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    found = check(tmp_path, text)
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.process
def test_an_image_that_is_not_here_is_refused_and_nothing_is_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'launcher = "podman"\nimage = "small:1"\n{ARM}[[arm]]\nname = "v1"\n'
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert ":6: engine.launcher: there is no podman on PATH" in check(tmp_path, text)
    program = fake_docker.install(tmp_path / "bin", "podman")
    state = tmp_path / "daemon"
    state.mkdir()
    monkeypatch.setenv("FAKE_DOCKER", str(state))
    assert check(tmp_path, text) == ""
    said = check(tmp_path, f'{text}image = "missing:1"\n')
    assert ":12: arm[1].image: podman has no image 'missing:1' here: Error: No such image: missing:1" in said
    assert "podman pull missing:1" in said
    asked = [json.loads(line)[0] for line in (state / "calls.jsonl").read_text().splitlines()]
    assert set(asked) == {"version", "image"}
    program.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n")
    assert ":6: engine.launcher: podman does not answer: Cannot connect to the daemon" in check(tmp_path, text)


def test_an_external_engine_must_be_up(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        url = f"http://{HOST}:{server.getsockname()[1]}"
        assert check(tmp_path, f'launcher = "external"\nurl = "{url}"\n{ARM}') == ""
    assert f":7: engine.url: v0: nothing answers at {url}" in check(
        tmp_path, f'launcher = "external"\nurl = "{url}"\n{ARM}'
    )


def test_a_listener_is_found_by_either_way_and_described(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as server:
        try:
            server.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        server.listen()
        port = server.getsockname()[1]
        found = listeners(port)
        if found is None:
            pytest.skip("who listens is not shown here")
        assert found == [Listener("::1", port, os.fstat(server.fileno()).st_ino, os.getuid())]
        assert f"(pid {os.getpid()}) on [::1]:{port}" in describe(found[0])
        # The text that the kernel prints, as another network namespace is read.
        assert listeners(port, Path("/proc/self/net")) == found
    (tmp_path / "tcp").write_text(
        "  sl  local_address ...\n   0: 0100007F:1F40 00000000:0000 0A 0:0 0:0 0 1000 0 77 1\n"
    )
    assert listeners(8000, tmp_path) == [Listener(HOST, 8000, 77, 1000)]
    assert listeners(8001, tmp_path) == []
    assert listeners(8000, tmp_path / "none") is None


CRASH = """
import asyncio, pathlib, sys
sys.path.insert(0, {root!r})
from replay.clock import SystemClock
from replay.engines import EngineProcess, wait_listening
async def main():
    folder = pathlib.Path({folder!r})
    argv = [sys.executable, "-IS", {script!r}, "{port}"]
    engine = await EngineProcess.start(
        argv, env={{}}, cwd=folder, log=folder / "engine.log", host="127.0.0.1", port={port}, clock=SystemClock())
    await wait_listening(engine, SystemClock(), patience_ns=30 * 10**9)
    print(engine.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="nothing here ties a child to us")
def test_an_engine_is_told_to_stop_when_we_are_killed(tmp_path: Path) -> None:
    port = free_port(HOST)
    script = str(ROOT / "tests" / "small_engine.py")
    code = CRASH.format(root=str(ROOT), folder=str(tmp_path), script=script, port=port)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None
        engine = psutil.Process(int(ours.stdout.readline()))
        assert engine.cmdline()[1:3] == ["-IS", script]  # it is the engine itself, nothing stands in between
        ours.kill()

    async def gone() -> None:
        for _ in range(500):
            if port_refuses(HOST, port):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("it lives on")

    asyncio.run(gone())
