"""Processes of the benchmark: their priority, the CPU and memory of a tree of them, and the machine in words."""

import contextlib
import os
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import psutil

from benchmarks.children import ROOT, START_LIMIT_S, Helper
from benchmarks.replay.jobs import Batch, Job
from benchmarks.replay.schedule import Order, Record, Schedule

REALTIME = "BENCHMARK_REALTIME"  # set to 1: the children of the benchmark take real-time priority
ENGINE_PRIORITY, CLIENT_PRIORITY = 10, 5  # of SCHED_RR: the engine must not wait for a client
SAMPLE_S = 0.4
TOOL_LIMIT_S = 420.0
ANSWER_LIMIT_S = 30.0


def go_first(priority: int) -> bool:
    """Take real-time priority: on a busy machine the scheduler is what gets measured otherwise. Needs privilege."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))
    except (OSError, AttributeError):
        return False
    return True


def realtime_allowed() -> bool:
    """Whether this process may start others with real-time priority."""
    child = os.fork()
    if child == 0:
        os._exit(0 if go_first(CLIENT_PRIORITY) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Engine(Helper):
    """The engine as a child. `port` is known once it is entered."""

    def __init__(self) -> None:
        super().__init__("benchmarks.replay.engine")
        self.port = 0

    def __enter__(self) -> Self:
        super().__enter__()
        self.port = int(self.hear(START_LIMIT_S).split()[1])
        return self

    def play(self, schedule: Schedule) -> None:
        """Begin a schedule with an empty record."""
        self.say(msgspec.json.encode(Order(schedule)))
        self.hear(ANSWER_LIMIT_S)

    def record(self) -> Record:
        self.say(msgspec.json.encode(Order()))
        return msgspec.json.decode(self.hear(ANSWER_LIMIT_S), type=Record)


class Client(Helper):
    """One of our own clients as a child. It lives from round to round, and runs only while a job is played."""

    def __init__(self, kind: str) -> None:
        super().__init__("benchmarks.replay.clients", kind)

    def play(self, job: Job) -> Batch:
        self.say(msgspec.json.encode(job))
        return msgspec.json.decode(self.hear(job.limit_s + ANSWER_LIMIT_S), type=Batch)


class Ran(NamedTuple):
    """How a program ran. Instants are of CLOCK_MONOTONIC, sizes peaks over samples of the whole tree.

    `cpu_ns` covers the program and the children that it has waited for, or what was seen of the tree if that is more.
    """

    code: int
    started_ns: int
    wall_ns: int
    cpu_ns: int
    rss_bytes: int
    processes: int


def run_program(
    argv: list[str],
    log: Path,
    *,
    env: Mapping[str, str],
    cwd: Path = ROOT,
    limit_s: float = TOOL_LIMIT_S,
    realtime: bool = False,
) -> Ran:
    """Run a program to its end in a session of its own. What is left of it is killed."""
    prepare = (lambda: go_first(CLIENT_PRIORITY)) if realtime else None
    with log.open("wb") as out:
        started_ns = time.monotonic_ns()
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,
        )
    watch = _Watch(process.pid)
    watch.start()
    killer = threading.Timer(limit_s, _kill_session, (process.pid,))
    killer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        killer.cancel()
        watch.end()
        _kill_session(process.pid)
    wall_ns = time.monotonic_ns() - started_ns
    process.returncode = os.waitstatus_to_exitcode(status)
    waited_ns = round((usage.ru_utime + usage.ru_stime) * 1e9)
    return Ran(
        process.returncode, started_ns, wall_ns, max(waited_ns, watch.cpu_ns()), watch.rss_bytes, watch.processes
    )


def _kill_session(session: int) -> None:
    """The session was made for the program, so nothing else is in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


class _Watch(threading.Thread):
    """Samples a tree of processes until it is ended."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._ended = threading.Event()
        self._spent_ns: dict[int, int] = {}
        self.rss_bytes = 0
        self.processes = 0

    def end(self) -> None:
        self._ended.set()
        self.join()

    def cpu_ns(self) -> int:
        return sum(self._spent_ns.values())

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            with contextlib.suppress(psutil.Error):
                self._sample(psutil.Process(self._pid))

    def _sample(self, root: psutil.Process) -> None:
        rss_bytes = processes = 0
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                with process.oneshot():
                    rss_bytes += process.memory_info().rss
                    spent = process.cpu_times()
                self._spent_ns[process.pid] = round((spent.user + spent.system) * 1e9)
                processes += 1
        self.rss_bytes, self.processes = max(self.rss_bytes, rss_bytes), max(self.processes, processes)


def describe_machine() -> dict[str, Any]:
    """What a reader must know to place the figures. No names of hosts or folders."""
    begun_s = time.perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number
    return {
        "cpus": os.cpu_count() or 0,
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "a_million_additions_ms": round((time.perf_counter() - begun_s) * 1e3),
        "load_1min": round(os.getloadavg()[0], 2),
    }
