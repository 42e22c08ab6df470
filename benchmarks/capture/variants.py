"""What stands between client and engine: how each variant is started, found and stopped.

All of them listen on loopback and stay up for the whole benchmark. Stock mitmdump gets the options of ours that decide
how it connects, so the difference is the chain of addons and the recording, not the configuration.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.children import ROOT, environment

HOST = "127.0.0.1"
START_LIMIT_S = 90.0
STOP_LIMIT_S = 15.0

NGINX = """\
daemon off;
master_process off;
pid nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_timeout 1h;
    keepalive_requests 100000000;
    client_max_body_size 0;
    client_body_buffer_size 2m;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream engine {{
        server {engine};
        keepalive 64;
        keepalive_timeout 1h;
        keepalive_requests 100000000;
    }}
    server {{
        listen {door} backlog=1024;
        location / {{
            proxy_pass http://engine;
            proxy_buffering off;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
        }}
    }}
}}
"""
MITMDUMP_OPTIONS = ("connection_strategy=lazy", "http2=false", "keep_host_header=true", "tcp_timeout=86400")


class Unavailable(Exception):
    """A variant cannot run here; its text says why."""


class Place(NamedTuple):
    """Where a variant runs: the engine's port, the port it takes, and a folder of its own."""

    engine_port: int
    port: int
    folder: Path

    @property
    def door(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def upstream(self) -> str:
        return f"http://{HOST}:{self.engine_port}"


def nginx(place: Place) -> list[str]:
    program = find_nginx()
    if program is None:
        raise Unavailable("nginx is not installed")
    engine = f"{HOST}:{place.engine_port}"
    (place.folder / "nginx.conf").write_text(NGINX.format(engine=engine, door=place.door), encoding="ascii")
    return [program, "-p", str(place.folder), "-c", "nginx.conf", "-e", "stderr"]


def find_nginx() -> str | None:
    # Its folder is often on the path of root alone.
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def mitmdump(place: Place) -> list[str]:
    program = Path(sys.executable).with_name("mitmdump")
    if not program.exists():
        raise Unavailable("mitmdump is not installed beside this Python")
    mode = ["--mode", f"reverse:{place.upstream}", "--listen-host", HOST, "--listen-port", str(place.port)]
    options = [text for option in (*MITMDUMP_OPTIONS, f"confdir={place.folder}") for text in ("--set", option)]
    return [str(program), "-q", *mode, *options]


def stock(place: Place) -> list[str]:
    return [*mitmdump(place), "-s", str(Path(__file__).with_name("stream_all.py"))]


def lean_pass(place: Place) -> list[str]:
    where = ["--upstream", place.upstream, "--listen", place.door]
    return [sys.executable, "-m", "benchmarks.capture.pass_only", *where]


def record(place: Place, bodies: str = "none") -> list[str]:
    where = ["--upstream", place.upstream, "--listen", place.door, "--out", str(place.folder / "capture")]
    return [sys.executable, "-m", "firsttoken", "record", *where, "--bodies", bodies]


# Name to command line. `direct` is the client on the engine itself and has none.
VARIANTS: dict[str, Callable[[Place], list[str]] | None] = {
    "direct": None,
    "nginx": nginx,
    "stock": stock,
    "mitmdump": mitmdump,
    "pass": lean_pass,
    "record": record,
    "record_hashed": lambda place: record(place, "hashed"),
    "record_full": lambda place: record(place, "full"),
}


class Running:
    """A variant that answers on `port`. `process` is None for `direct`."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes] | None) -> None:
        self.name = name
        self.port = port
        self.process = process

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def ended(self) -> str | None:
        """How the process has ended, None while it runs."""
        code = None if self.process is None else self.process.poll()
        return None if code is None else f"the process ended with {code}"

    def stop(self) -> None:
        """End the process and wait for it. Safe to call twice."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(name: str, engine_port: int, folder: Path) -> Running:
    """Start a variant with files in a new `folder` and wait until it listens. Raises Unavailable."""
    command = VARIANTS[name]
    if command is None:
        return Running(name, engine_port, None)
    folder.mkdir(mode=0o700)
    place = Place(engine_port, free_port(), folder)
    argv = command(place)
    log = folder / "stderr.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
        )
    running = Running(name, place.port, process)
    try:
        _wait_listening(running, log)
    except BaseException:
        running.stop()  # also at a signal: nobody else knows of this process yet
        raise
    return running


def _wait_listening(running: Running, log: Path) -> None:
    limit_s = time.monotonic() + START_LIMIT_S
    while not _listens(running.port):
        how = running.ended()
        if how is None and time.monotonic() > limit_s:
            how = f"it did not listen within {START_LIMIT_S:.0f} s"
        if how is not None:
            raise Unavailable(f"{how}: {_last_words(log)}")
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").replace(f"{ROOT}/", "").split("\n")
    return " / ".join([line.strip() for line in lines if line.strip()][-3:]) or "it said nothing"
