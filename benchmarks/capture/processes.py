"""The engine and the client as child processes of the benchmark. Both end when their stdin closes."""

import os
import platform
import select
import subprocess
import sys
from importlib.metadata import version
from types import TracebackType
from typing import IO, Self

import msgspec

from benchmarks.capture.jobs import Batch, Job
from benchmarks.capture.loops import HAS_UVLOOP
from benchmarks.capture.variants import ROOT, environment, find_nginx

START_LIMIT_S = 60.0
GRACE_S = 30.0


class Helper:
    """A Python module that runs as a child and speaks lines."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __enter__(self) -> Self:
        argv = [sys.executable, "-m", self._module]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe(self._process.stdin).close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe(self._process.stdout).close()

    def say(self, line: bytes) -> None:
        stream = self._pipe(self._process.stdin)
        stream.write(line + b"\n")
        stream.flush()

    def hear(self, limit_s: float) -> bytes:
        """The next line. Raises TimeoutError, or ChildProcessError where the helper has ended."""
        stream = self._pipe(self._process.stdout)
        # One line per answer, so nothing of it waits in the buffer while the pipe is empty.
        if not select.select([stream], [], [], limit_s)[0]:
            raise TimeoutError(f"{self._module} has said nothing for {limit_s:.0f} s")
        line = stream.readline()
        if not line:
            raise ChildProcessError(f"{self._module} has ended")
        return line

    @staticmethod
    def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream


class Engine(Helper):
    """The mock engine. `port` is known once it is entered."""

    def __init__(self) -> None:
        super().__init__("benchmarks.capture.engine")
        self.port = 0

    def __enter__(self) -> Self:
        super().__enter__()
        self.port = int(self.hear(START_LIMIT_S).split()[1])
        return self


class Player(Helper):
    """The client process."""

    def __init__(self) -> None:
        super().__init__("benchmarks.capture.client")

    def play(self, job: Job) -> Batch:
        self.say(msgspec.json.encode(job))
        return msgspec.json.decode(self.hear(job.limit_s + GRACE_S), type=Batch)


def describe_machine() -> dict[str, str | int]:
    """What a reader must know to place the figures. No names of hosts or folders."""
    return {
        "cpus": os.cpu_count() or 0,
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "mitmproxy": version("mitmproxy"),
        "uvloop": version("uvloop") if HAS_UVLOOP else "absent",
        "nginx": nginx_version(),
        "load_1min_x100": round(os.getloadavg()[0] * 100),
    }


def nginx_version() -> str:
    program = find_nginx()
    if program is None:
        return "absent"
    shown = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
    return shown.rpartition("/")[2].strip() or "unknown"
