"""The engine and the client as child processes of the benchmark. Both end when their stdin closes."""

import os
import platform
import subprocess
from importlib.metadata import version
from typing import Self

import msgspec

from benchmarks.capture.jobs import Batch, Job
from benchmarks.capture.loops import HAS_UVLOOP
from benchmarks.capture.variants import find_nginx
from benchmarks.children import GRACE_S, START_LIMIT_S, Helper


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
