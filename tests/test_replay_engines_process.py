"""The life of an engine process: booted, stopped, proven gone. On real processes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import EngineFailed
from profiles.units import SECOND_NS
from replay.clock import SystemClock
from replay.engines import (
    EngineProcess,
    Launch,
    PortTaken,
    Stopped,
    find_program,
    free_port,
    launch,
    port_refuses,
    stop_leftover,
    to_the_end,
    wait_listening,
)
from replay.engines.family import MARKER
from replay.engines.ports import listeners

pytestmark = pytest.mark.process
HOST = "127.0.0.1"
ROOT = Path(__file__).parents[1]
SMALL = [sys.executable, "-IS", str(ROOT / "tests" / "small_engine.py")]
CLOCK = SystemClock()
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="who left its parent is told by /proc")


def alive(pid: int) -> bool:
    """A zombie has ended; an init process that never reaps may keep it listed."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))


def marked(marker: str) -> list[int]:
    """Living processes whose environment holds the marker of a boot."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def escaped() -> list[int]:
    """Living processes of the fault `escape`, which nothing marks but its command line."""
    return [p.pid for p in psutil.process_iter(["cmdline"]) if "signal.pause()" in str(p.info["cmdline"])]


@pytest.fixture(autouse=True)
def _nothing_escapes() -> Iterator[None]:
    before = set(escaped())
    yield
    assert not set(escaped()) - before


def run[T](main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


async def boot(folder: Path, port: int, *faults: str, remember: Callable[[dict[str, Any]], None] | None = None) -> Any:
    plan = Launch(
        arm="v1",
        argv=(*SMALL, str(port), *faults),
        env={"ARM": "v1"},
        cwd=folder,
        log=folder / "engine.log",
        host=HOST,
        port=port,
        run_id=f"run-of-{folder.name}",
        boot_name="01-01-v1",
        remember=remember,
    )
    return await launch("process", plan, CLOCK)


async def until(happened: Callable[[], object], patience_s: float = 10) -> None:
    for _ in range(round(patience_s / 0.02)):
        if happened():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


async def boot_and_stop(
    folder: Path,
    *faults: str,
    patience_s: float = 10,
    meanwhile: Callable[[EngineProcess], Awaitable[None]] | None = None,
) -> tuple[list[int], Stopped]:
    port = free_port(HOST)
    engine = await boot(folder, port, *faults)
    try:
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        assert engine.owns_port()
        assert engine.strangers() == []
        pids = [process.pid for process in engine.members()]
        if meanwhile is not None:
            await meanwhile(engine)
    finally:
        stopped = await engine.stop(round(patience_s * SECOND_NS))
    assert port_refuses(HOST, port)
    assert not any(map(alive, pids))
    assert marked(f"run-of-{folder.name}/01-01-v1") == []
    return pids, stopped


def test_an_engine_that_obeys_ends_by_itself(tmp_path: Path) -> None:
    _, stopped = run(boot_and_stop(tmp_path))
    assert (stopped.how, stopped.exit_code, stopped.outlived) == ("term", -15, None)
    assert "gone" in stopped.proof
    log = (tmp_path / "engine.log").read_text()
    assert log == "loading weights\nserving\n"  # from its first byte to its last
    assert (tmp_path / "engine.log").stat().st_mode & 0o777 == 0o600


def test_the_embedded_engine_goes_with_exit_code_0(tmp_path: Path) -> None:
    async def main() -> Stopped:
        port = free_port(HOST)
        argv = [sys.executable, "-m", "firsttoken", "engine", "--port", str(port), "--boot-time", "10ms"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        log = tmp_path / "engine.log"
        engine = await EngineProcess.start(argv, env=env, cwd=tmp_path, log=log, host=HOST, port=port, clock=CLOCK)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        return await engine.stop(10 * SECOND_NS)

    stopped = run(main())
    assert (stopped.how, stopped.exit_code) == ("term", 0)
    assert "Application startup complete" in (tmp_path / "engine.log").read_text()


def test_an_engine_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    _, stopped = run(boot_and_stop(tmp_path, "ignore-term", patience_s=0.2))
    assert (stopped.how, stopped.exit_code) == ("kill", -9)


def test_a_child_that_outlives_its_leader_goes_too_and_is_named(tmp_path: Path) -> None:
    pids, stopped = run(boot_and_stop(tmp_path, "child"))
    assert len(pids) == 2
    assert stopped.how == "term"  # the leader obeyed
    assert stopped.outlived is not None
    assert stopped.outlived.startswith("1 process outlived the leader: ")
    assert f"(pid {pids[1]})" in stopped.outlived
    assert "had to be killed" not in stopped.outlived


def test_a_child_with_a_session_of_its_own_that_ignores_sigterm_is_gone_before_the_next_boot(tmp_path: Path) -> None:
    """Case L02: the leader is killed from outside, as by the kernel for its memory, and the worker holds the GPU."""

    async def die(engine: EngineProcess) -> None:
        await until(lambda: (tmp_path / "gpu.lock").exists())
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: not engine.lives)
        assert port_refuses(HOST, engine.port)  # the port is free at once

    pids, stopped = run(boot_and_stop(tmp_path, "setsid-child", meanwhile=die, patience_s=0.3))
    assert len(pids) == 2
    assert (stopped.how, stopped.exit_code) == ("died", -9)
    assert stopped.outlived is not None
    assert "1 had to be killed" in stopped.outlived
    # The next engine finds the lock free, or it would be killed by its child.
    _, stopped = run(boot_and_stop(tmp_path, "setsid-child", "ignore-term", patience_s=0.2))
    assert stopped.how == "kill"


@needs_proc
def test_a_grandchild_that_left_session_parent_environment_and_log_is_found(tmp_path: Path) -> None:
    pids, stopped = run(boot_and_stop(tmp_path, "escape", patience_s=0.3))
    assert len(pids) == 2
    assert stopped.outlived is not None
    assert "1 had to be killed" in stopped.outlived


def test_two_engines_at_once_do_not_take_each_other_for_an_orphan(tmp_path: Path) -> None:
    async def main() -> None:
        folders = [tmp_path / "a", tmp_path / "b"]
        for folder in folders:
            folder.mkdir()
        first, second = await asyncio.gather(*(boot(folder, free_port(HOST)) for folder in folders))
        await wait_listening(first, CLOCK, patience_ns=30 * SECOND_NS)
        await wait_listening(second, CLOCK, patience_ns=30 * SECOND_NS)
        await first.stop(5 * SECOND_NS)
        assert second.lives
        assert not port_refuses(HOST, second.port)
        assert [process.pid for process in second.members()] == [second.pid]
        await second.stop(5 * SECOND_NS)

    run(main())


@needs_proc
def test_a_server_restarted_by_its_supervisor_is_another_owner_of_the_port(tmp_path: Path) -> None:
    async def restart(engine: EngineProcess) -> None:
        ready = engine.owner()
        assert ready is not None
        assert ready[0] != engine.pid
        assert engine.owner() == ready
        os.kill(ready[0], signal.SIGKILL)
        await until(lambda: engine.owner() not in (None, ready))
        assert engine.lives  # which nothing else tells

    run(boot_and_stop(tmp_path, "supervisor", meanwhile=restart))


@needs_proc
def test_a_twin_on_the_port_is_named(tmp_path: Path) -> None:
    async def twin(engine: EngineProcess) -> None:
        assert engine.twins() == []
        argv = [*SMALL, str(engine.port), "reuseport"]
        other = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
        try:
            await until(engine.strangers)
            (said,) = engine.strangers()
            assert f"(pid {other.pid}) on {HOST}:{engine.port}" in said
            assert engine.owns_port()
        finally:
            other.kill()
            await other.wait()

    run(boot_and_stop(tmp_path, "reuseport", meanwhile=twin))


@needs_proc
def test_a_second_server_that_left_the_engine_is_a_twin_and_goes_with_it(tmp_path: Path) -> None:
    async def twin(engine: EngineProcess) -> None:
        await until(engine.twins)
        (said,) = engine.twins()
        assert f"on {HOST}:{engine.port}" in said
        assert f"(pid {engine.pid})" not in said
        assert engine.strangers() == []

    _, stopped = run(boot_and_stop(tmp_path, "reuseport", "twin", meanwhile=twin))
    assert stopped.outlived is not None


def test_a_foreign_server_on_the_port_is_refused_before_anything_is_spawned_or_sent(tmp_path: Path) -> None:
    """Case L01."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        taken.settimeout(5)
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"something already answers on {HOST}:{port}"):
            run(boot(tmp_path, port))
        connection, _ = taken.accept()  # of the question whether somebody is there
        with connection:
            assert connection.recv(1) == b""  # nothing was sent to it
    assert not (tmp_path / "engine.log").exists()


@needs_proc
def test_a_port_that_somebody_has_bound_and_not_opened_is_refused(tmp_path: Path) -> None:
    """An old server that loads its model does so: a connection is refused, and with SO_REUSEPORT both would start."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        if not listeners(port, bound=True):
            pytest.skip("this kernel does not show what is bound and does not listen")
        with pytest.raises(PortTaken, match="something already has the port"):
            run(boot(tmp_path, port, "reuseport"))


@needs_proc
def test_a_listener_on_another_address_of_the_port_is_refused_too(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            PortTaken, match=rf"something already has the port: .* \(pid {os.getpid()}\) on 127.0.0.2:{port}"
        ):
            run(boot(tmp_path, port))


def test_an_engine_that_dies_in_boot_is_seen_at_once_with_its_last_words(tmp_path: Path) -> None:
    """Case L04."""

    async def main() -> None:
        engine = await boot(tmp_path, free_port(HOST), "bad-flag")
        began_ns = CLOCK.now_ns()
        try:
            await wait_listening(engine, CLOCK, patience_ns=900 * SECOND_NS)
        finally:
            assert CLOCK.now_ns() - began_ns < 30 * SECOND_NS  # of 900
            stopped = await engine.stop(SECOND_NS)
            assert (stopped.how, stopped.exit_code) == ("died", 1)

    with pytest.raises(EngineFailed) as failed:
        run(main())
    assert failed.value.log_tail[-1] == "torch.OutOfMemoryError: CUDA out of memory."


def test_a_log_of_any_bytes_does_not_hold_the_engine_up(tmp_path: Path) -> None:
    """Case L07: more than a pipe holds, none of it UTF-8."""
    run(boot_and_stop(tmp_path, "flood"))
    log = (tmp_path / "engine.log").read_bytes()
    assert log.count(b"\xff\xfe progress") == 600
    assert log.endswith(b"serving\n")


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


def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(boot(tmp_path, free_port(HOST), "child"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert marked(f"run-of-{tmp_path.name}/01-01-v1") == []

    run(main())


@needs_proc
@pytest.mark.parametrize("fault", ["setsid-child", "escape"])
def test_what_a_crash_of_ours_left_is_found_again_and_nothing_else_is_touched(tmp_path: Path, fault: str) -> None:
    async def main() -> None:
        written: list[dict[str, Any]] = []
        engine = await boot(tmp_path, free_port(HOST), fault, remember=written.append)
        await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
        await until(lambda: len(written[-1]["members"]) == 2)  # as the watcher wrote it down
        identity = engine.identity()
        assert written[0]["members"] == []  # before it was started
        assert written[-1] == identity
        pids = [pid for pid, _ in identity["members"]]

        # Another boot of the host, or the same numbers given to other processes: nobody is touched.
        strange = [[pid, started - 1] for pid, started in identity["members"]]
        unmarked = {**identity, "marker": "another", "log": str(tmp_path / "elsewhere")}
        assert not await stop_leftover({**identity, "host_boot": "another"}, CLOCK)
        assert not await stop_leftover({**unmarked, "members": strange}, CLOCK)
        assert all(map(alive, pids))

        assert await stop_leftover(identity, CLOCK, patience_ns=SECOND_NS // 10)
        await until(partial(gone, pids))
        assert not await stop_leftover(identity, CLOCK, patience_ns=SECOND_NS // 10)
        await engine.stop(SECOND_NS)

    run(main())


@needs_proc
def test_a_leftover_is_found_by_marker_or_log_where_its_number_was_never_written(tmp_path: Path) -> None:
    async def main() -> None:
        for kept in ("marker", "log"):
            written: list[dict[str, Any]] = []
            engine = await boot(tmp_path, free_port(HOST), "setsid-child", "ignore-term", remember=written.append)
            await wait_listening(engine, CLOCK, patience_ns=30 * SECOND_NS)
            assert engine.owns_port()
            pids = [process.pid for process in engine.members()]
            assert len(pids) == 2
            first = written[0]  # of the moment before the start
            identity = {**first, "marker": first["marker"] if kept == "marker" else "another"}
            if kept == "marker":
                identity["log"] = str(tmp_path / "elsewhere")
            assert await stop_leftover(identity, CLOCK, patience_ns=SECOND_NS // 10)
            await until(partial(gone, pids))
            await engine.stop(SECOND_NS)

    run(main())
