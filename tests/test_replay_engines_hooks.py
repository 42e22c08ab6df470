"""Engines that hooks start and stop, and engines that are up already. Real small scripts, real small servers."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import EngineFailed
from profiles.experiment_file import Hooks
from profiles.units import SECOND_NS
from replay.clock import SystemClock
from replay.engines import (
    Launch,
    PortTaken,
    free_port,
    hooks,
    launch,
    port_refuses,
    stop_leftover,
    wait_listening,
    wipe,
)
from replay.engines.hooks import fill_hook
from replay.engines.proc_stat import read_stat

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[1]
CLOCK = SystemClock()
SMALL = [sys.executable, "-IS", str(ROOT / "tests" / "small_engine.py")]

# What systemd does: an engine that is nobody's child, its output in a journal, its pid in a file.
START = '#!/bin/sh\necho "starting for $ARM"\nsetsid "$@" >>journal 2>&1 </dev/null &\necho $! >engine.pid\n'
STOP = "#!/bin/sh\nkill $(cat engine.pid)\n"
ALIVE = "#!/bin/sh\nkill -0 $(cat engine.pid) 2>/dev/null\n"
LOGS = "#!/bin/sh\ntouch journal\nexec tail -n +1 -f journal\n"
FAILS = "#!/bin/sh\necho unit not found >&2\nexit 5\n"


def scripts(folder: Path) -> None:
    for name, text in (("start", START), ("stop", STOP), ("alive", ALIVE), ("logs", LOGS), ("fails", FAILS)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def plan(folder: Path, port: int, **changes: Any) -> Launch:
    given = Hooks(start=["./start", *SMALL, "{port}"], stop=["./stop"], alive=["./alive"], logs=["./logs"])
    made: dict[str, Any] = {
        "arm": "v1",
        "argv": ("--a", "two words"),
        "env": {"ARM": "v1"},
        "cwd": folder,
        "log": folder / "boot" / "engine.log",
        "host": HOST,
        "port": port,
        "run_id": "0123456789abcdef",
        "boot_name": "01-01-v1",
        "hooks": given,
        "model": "m",
        **changes,
    }
    made["log"].parent.mkdir(exist_ok=True)
    return Launch(**made)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    scripts(tmp_path)
    monkeypatch.setattr(hooks, "ALIVE_EVERY_NS", SECOND_NS // 20)
    yield tmp_path
    pid = tmp_path / "engine.pid"
    if pid.exists() and psutil.pid_exists(int(pid.read_text())):
        assert psutil.Process(int(pid.read_text())).status() == psutil.STATUS_ZOMBIE, "an engine was left"


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


async def until(happened: Callable[[], object], patience_s: float = 20) -> None:
    for _ in range(round(patience_s / 0.02)):
        if happened():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


def test_placeholders_are_words_of_argv_and_quoted_for_a_shell_inside_a_word(tmp_path: Path) -> None:
    made = plan(tmp_path, 8000)
    hook = ["ssh", "gpu", "vllm serve {model} --host {bind} --port {port} {args}", "{args}", "{arm}", '{"json": 1}']
    assert fill_hook(hook, made, "0.0.0.0", 12) == [
        *("ssh", "gpu", "vllm serve m --host 0.0.0.0 --port 8000 --a 'two words'"),
        *("--a", "two words", "v1", '{"json": 1}'),
    ]
    assert fill_hook(["{since}", "{log}"], made, HOST, 12) == ["@12", str(tmp_path / "boot" / "engine.log")]


@pytest.mark.process
def test_hooks_start_follow_and_stop_an_engine(folder: Path) -> None:
    async def main() -> None:
        port = free_port(HOST)
        written: list[dict[str, Any]] = []
        engine: Any = await launch("command", plan(folder, port, remember=written.append), CLOCK)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        assert written[0]["members"] == []  # before anything was started
        assert written[-1] == engine.identity()
        assert [pid for pid, _ in written[-1]["members"]] == [engine._logs.pid]
        assert any(told["calling"] for told in written)  # while `start` ran
        assert engine.cold
        assert engine.lives
        assert engine.strangers() == []
        owner = engine.owner()
        assert owner[0] == int((folder / "engine.pid").read_text())
        assert [process.pid for process in engine.members()] == [owner[0]]
        await until(lambda: engine.log.read_bytes() == b"loading weights\nserving\n")
        stopped = await engine.stop(5 * SECOND_NS)
        assert (stopped.how, stopped.exit_code) == ("term", None)
        assert "`alive` says that it is gone" in stopped.proof
        assert port_refuses(HOST, port)
        assert engine._logs.returncode is not None

    asyncio.run(main())
    # What the hooks say is kept apart from the engine's log. The arm's environment is theirs.
    assert (folder / "boot" / "hooks.log").read_text().startswith("starting for v1\n")


@pytest.mark.process
@pytest.mark.parametrize("with_alive", [True, False])
def test_an_engine_that_dies_is_noticed_by_alive_or_by_its_port(folder: Path, with_alive: bool) -> None:
    async def main() -> None:
        port = free_port(HOST)
        alive = ["./alive"] if with_alive else []
        given = Hooks(start=["./start", *SMALL, "{port}"], stop=["./stop"], alive=alive)
        engine: Any = await launch("command", plan(folder, port, hooks=given), CLOCK)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        await asyncio.sleep(0.3)
        assert engine.lives
        os.kill(int((folder / "engine.pid").read_text()), signal.SIGKILL)
        await until(lambda: not engine.lives)
        assert engine.cause == ("`alive` says so" if with_alive else "its port refuses")
        assert (await engine.stop(SECOND_NS)).how == "died"

    asyncio.run(main())


@pytest.mark.process
def test_a_hook_that_fails_says_how_and_what_it_said(folder: Path) -> None:
    async def start(**changes: list[str]) -> None:
        given = Hooks(**{"start": ["./start", *SMALL, "{port}"], "stop": ["./fails"], **changes})
        await launch("command", plan(folder, free_port(HOST), hooks=given), CLOCK)

    with pytest.raises(
        EngineFailed, match=r'the hook start failed \(exit code 5\); it said: "unit not found"'
    ) as failed:
        asyncio.run(start(start=["./fails"]))
    assert failed.value.diagnosis == "hook_failed"
    with pytest.raises(EngineFailed, match=r"cannot run the hook start \(./nothing\): No such file"):
        asyncio.run(start(start=["./nothing"]))
    with pytest.raises(EngineFailed, match="the hook wipe failed"):
        asyncio.run(wipe(plan(folder, 8000, hooks=Hooks(start=["x"], stop=["x"], wipe=["./fails"])), CLOCK))


@pytest.mark.process
def test_a_hook_has_a_time_limit_and_its_children_go_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "START_LIMIT_NS", SECOND_NS // 3)
    (folder / "hangs").write_text("#!/bin/sh\nsleep 61 & echo $! >sleeper; wait\n")
    (folder / "hangs").chmod(0o755)
    given = Hooks(start=["./hangs"], stop=["true"])
    with pytest.raises(EngineFailed, match=r"the hook start failed \(cut after 333 ms\)"):
        asyncio.run(launch("command", plan(folder, free_port(HOST), hooks=given), CLOCK))
    sleeper = int((folder / "sleeper").read_text())
    asyncio.run(until(lambda: not psutil.pid_exists(sleeper) or psutil.Process(sleeper).status() == "zombie"))


@pytest.mark.process
def test_a_cancelled_start_runs_stop(folder: Path) -> None:
    (folder / "hangs").write_text('#!/bin/sh\n./start "$@"\ntouch started\nsleep 60\n')
    (folder / "hangs").chmod(0o755)

    async def main() -> None:
        given = Hooks(start=["./hangs", *SMALL, "{port}"], stop=["./stop"])
        port = free_port(HOST)
        task = asyncio.ensure_future(launch("command", plan(folder, port, hooks=given), CLOCK))
        await until(lambda: (folder / "started").exists())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: port_refuses(HOST, port))

    asyncio.run(main())


@pytest.mark.process
def test_a_stop_that_does_not_stop_is_an_error_and_a_later_run_can_stop_it(folder: Path) -> None:
    async def main() -> None:
        port = free_port(HOST)
        good = plan(folder, port)
        assert good.hooks is not None
        lazy = Hooks(start=good.hooks.start, stop=["true"], alive=["./alive"])
        engine: Any = await launch("command", plan(folder, port, hooks=lazy), CLOCK)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        with pytest.raises(EngineFailed, match="ended with exit code 0 and `alive` still says that the engine lives"):
            await engine.stop(SECOND_NS // 2)
        identity = {**engine.identity(), "stop": ["./stop"]}
        assert await stop_leftover(identity, CLOCK)
        assert port_refuses(HOST, port)
        assert not await stop_leftover(identity, CLOCK)

    asyncio.run(main())


@pytest.mark.process
def test_what_a_kill_left_of_hooks_is_ended_the_start_and_the_log_too(folder: Path) -> None:
    async def main() -> None:
        port = free_port(HOST)
        engine: Any = await launch("command", plan(folder, port), CLOCK)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        logs = psutil.Process(engine._logs.pid)
        with sleeper() as starting:  # a hook that had not returned
            stat = read_stat(starting.pid)
            assert stat is not None
            identity = {**engine.identity(), "calling": [starting.pid, stat.started]}
            assert await stop_leftover(identity, CLOCK)
            assert starting.wait(5) == -signal.SIGKILL
        assert port_refuses(HOST, port)
        assert not logs.is_running() or logs.status() == psutil.STATUS_ZOMBIE
        engine._watcher.cancel()
        await engine._end_logs()

    asyncio.run(main())


@pytest.mark.process
def test_an_engine_that_answers_nowhere_yet_is_told_to_stop_too(folder: Path) -> None:
    """A kill while it loads its model: no port answers, and nothing asks whether it lives."""

    async def main() -> None:
        good = plan(folder, free_port(HOST))
        assert good.hooks is not None
        mute = Hooks(start=[*good.hooks.start, "slow"], stop=["./stop"])
        engine: Any = await launch("command", plan(folder, good.port, hooks=mute), CLOCK)
        await until(lambda: (folder / "engine.pid").exists())
        loading = psutil.Process(int((folder / "engine.pid").read_text()))
        assert not await stop_leftover(engine.identity(), CLOCK)  # nothing could be seen of it
        await until(lambda: not loading.is_running() or loading.status() == psutil.STATUS_ZOMBIE)
        engine._watcher.cancel()

    asyncio.run(main())


@pytest.mark.process
def test_a_taken_port_is_refused_before_any_hook_runs(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(PortTaken):
            asyncio.run(launch("command", plan(folder, taken.getsockname()[1]), CLOCK))
    assert not (folder / "boot" / "hooks.log").exists()


@pytest.mark.process
def test_an_external_engine_is_found_and_left_as_it_is(tmp_path: Path) -> None:
    port = free_port(HOST)
    with subprocess.Popen([*SMALL, str(port)], stdout=subprocess.DEVNULL) as server:
        try:

            async def main() -> None:
                await until(lambda: not port_refuses(HOST, port))
                made = plan(tmp_path, 0, url=f"http://{HOST}:{port}/gateway/")
                engine = await launch("external", made, CLOCK)
                assert (engine.base_url, engine.host, engine.port) == (f"http://{HOST}:{port}/gateway", HOST, port)
                assert not engine.cold
                assert engine.lives
                assert engine.identity() == {"launcher": "external", "url": engine.base_url, "cold": False}
                assert engine.members() == []
                assert engine.owner() is None
                assert engine.owns_port() is None
                stopped = await engine.stop(SECOND_NS)
                assert (stopped.how, stopped.gone_ns) == ("left", None)
                assert not await stop_leftover(engine.identity(), CLOCK)

            asyncio.run(main())
            assert server.poll() is None
            assert not port_refuses(HOST, port)
        finally:
            server.kill()


@pytest.mark.process
def test_an_external_engine_that_is_not_up_is_one_sentence(tmp_path: Path) -> None:
    url = f"http://{HOST}:{free_port(HOST)}"
    with pytest.raises(EngineFailed, match=f"nothing answers at {url}"):
        asyncio.run(launch("external", plan(tmp_path, 0, url=url), CLOCK))
