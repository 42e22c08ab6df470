"""What the recordings of the examples share: a server of their own on loopback, from its first connection to its end.

Needs nothing but Python, since one of them runs in the engine's environment.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

HOST = "127.0.0.1"
STOP_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def takes_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@contextlib.contextmanager
def running(
    argv: list[str],
    log: Path,
    port: int,
    stop: signal.Signals,
    *,
    folder: Path,
    boot_s: float,
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """A server in a session of its own, from when it takes connections until it has ended with its workers.

    It works in `folder`; `env` is added to its environment.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv, cwd=folder, stdout=file, stderr=file, env={**os.environ, **(env or {})}, start_new_session=True
        )
    try:
        limit = time.monotonic() + boot_s
        while not takes_connections(port):
            if process.poll() is not None or time.monotonic() > limit:
                sys.exit(f"{argv[0]} does not listen on port {port}: see {log}")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(stop)
        process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # workers that outlived their parent
