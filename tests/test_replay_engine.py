"""The life of an engine process: booted, stopped, proven gone. On real processes."""

import asyncio
import os
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import EngineFailed
from profiles.units import SECOND_NS
from replay.clock import SystemClock
from replay.engine import (
    EngineProcess,
    Stopped,
    find_program,
    free_port,
    port_refuses,
    stop_leftover,
    to_the_end,
    wait_listening,
)

pytestmark = pytest.mark.process
HOST = "127.0.0.1"
ROOT = Path(__file__).parents[1]
CLOCK = SystemClock()


def alive(pid: int) -> bool:
    """A zombie has ended; an init process that never reaps may keep it listed."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run[T](main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


async def boot(tmp_path: Path, port: int, *flags: str) -> EngineProcess:
    argv = [sys.executable, "-m", "firsttoken", "engine", "--port", str(port), "--boot-time", "10ms", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return await EngineProcess.start(
        argv, env=environment, cwd=tmp_path, log=tmp_path / "engine.log", host=HOST, port=port, clock=CLOCK
    )


async def boot_and_stop(tmp_path: Path, *flags: str, patience_s: float = 10) -> tuple[list[int], Stopped]:
    port = free_port(HOST)
    engine = await boot(tmp_path, port, *flags)
    await wait_listening(engine, HOST, port, CLOCK, patience_ns=30 * SECOND_NS)
    assert engine.listens_on(port)
    pids = [process.pid for process in engine.members()]
    stopped = await engine.stop(host=HOST, port=port, patience_ns=round(patience_s * SECOND_NS))
    assert port_refuses(HOST, port)
    return pids, stopped


def test_an_engine_that_obeys_ends_by_itself(tmp_path: Path) -> None:
    pids, stopped = run(boot_and_stop(tmp_path))
    assert (stopped.how, stopped.exit_code) == ("term", 0)
    assert not any(map(alive, pids))
    log = (tmp_path / "engine.log").read_text()
    assert "Application startup complete" in log  # from its first byte to its last
    assert (tmp_path / "engine.log").stat().st_mode & 0o777 == 0o600


def test_an_engine_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    pids, stopped = run(boot_and_stop(tmp_path, "--ignore-sigterm", patience_s=0.3))
    assert (stopped.how, stopped.exit_code) == ("kill", -9)
    assert not any(map(alive, pids))


def test_a_child_that_would_outlive_its_leader_goes_too(tmp_path: Path) -> None:
    pids, _ = run(boot_and_stop(tmp_path, "--spawn-child"))
    assert len(pids) >= 2
    assert not any(map(alive, pids))


def test_a_taken_port_is_refused_before_anything_is_spawned(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineFailed, match=f"something already answers on {HOST}:{port}"):
            run(boot(tmp_path, port))
    assert not (tmp_path / "engine.log").exists()


def test_a_program_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    async def start() -> None:
        await EngineProcess.start(
            ["./no-such-engine"], env={}, cwd=tmp_path, log=tmp_path / "l", host=HOST, port=free_port(HOST), clock=CLOCK
        )

    with pytest.raises(EngineFailed, match=r"cannot run ./no-such-engine: No such file"):
        run(start())
    assert find_program("./no-such-engine", tmp_path) is None
    assert find_program("no-such-engine-on-path", tmp_path) is None
    assert find_program("sh", tmp_path) is not None


def test_an_engine_that_dies_in_boot_says_its_last_words(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port(HOST)
        engine = await boot(tmp_path, port, "--die-in-boot", "3")
        try:
            await wait_listening(engine, HOST, port, CLOCK, patience_ns=30 * SECOND_NS)
        finally:
            stopped = await engine.stop(host=HOST, port=port, patience_ns=SECOND_NS)
            assert (stopped.how, stopped.exit_code) == ("died", 3)

    with pytest.raises(EngineFailed) as failed:
        run(main())
    assert failed.value.log_tail


def test_work_that_must_end_ends_although_its_caller_is_cancelled() -> None:
    """Ctrl-C while an engine stops: a shield alone let the loop end, and the engine stayed."""

    async def main() -> tuple[str, bool]:
        started = asyncio.Event()

        async def stop() -> str:
            started.set()
            await asyncio.sleep(0.05)
            return "gone"

        task = asyncio.ensure_future(to_the_end(stop()))
        await started.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # an impatient second one
        return await task

    assert run(main()) == ("gone", True)


def test_a_leftover_is_stopped_only_if_it_is_the_same_process(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port(HOST)
        engine = await boot(tmp_path, port)
        await wait_listening(engine, HOST, port, CLOCK, patience_ns=30 * SECOND_NS)
        started_at = engine.started_at()
        assert started_at is not None
        assert not await stop_leftover(engine.pid, started_at - 1, CLOCK)  # another process had this pid before
        assert not port_refuses(HOST, port)
        assert await stop_leftover(engine.pid, started_at, CLOCK)
        assert port_refuses(HOST, port)
        await engine.stop(host=HOST, port=port, patience_ns=SECOND_NS)

    run(main())
