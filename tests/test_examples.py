"""The examples are valid, use only flags that exist, and nginx fails open as its comments say."""

import http.client
import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from firsttoken import cli

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
UNIT = EXAMPLES / "firsttoken-record.service"
COMPOSE = EXAMPLES / "compose.yaml"
NGINX = EXAMPLES / "nginx-fail-open.conf"
LONGEST_STOP_S = 45  # a stop waits up to 30 s for the scribe, and both need time to end
NGINX_COMMAND = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


# -- the commands ----------------------------------------------------------------------------------------------------


def unit_settings() -> list[tuple[str, str]]:
    """The settings of the unit in order, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", UNIT.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def compose() -> dict[str, Any]:
    """compose.yaml as data. mitmproxy brings a YAML parser."""
    yaml = pytest.importorskip("ruamel.yaml")
    document: dict[str, Any] = yaml.YAML(typ="safe", pure=True).load(COMPOSE.read_text(encoding="utf-8"))
    return document


def record_commands() -> list[Any]:
    (start,) = [value for name, value in unit_settings() if name == "ExecStart"]
    return [
        pytest.param(shlex.split(start)[1:], id="unit"),
        pytest.param([str(word) for word in compose()["services"]["recorder"]["command"]], id="compose"),
    ]


@pytest.mark.parametrize("words", record_commands())
def test_every_flag_of_an_example_exists_and_takes_its_value(words: list[str]) -> None:
    assert words[0] == "record"
    command = cli.get_command(click.Context(cli), "record")
    assert command is not None
    context = command.make_context("record", list(words[1:]))  # raises UsageError for what does not exist
    assert context.params["upstream"].endswith(":8000")


# -- systemd ---------------------------------------------------------------------------------------------------------


def test_the_unit_restarts_for_ever_writes_one_directory_and_lets_the_scribe_finish() -> None:
    settings = dict(unit_settings())
    expected = {
        "Restart": "always",
        "StartLimitIntervalSec": "0",
        "KillSignal": "SIGINT",
        "KillMode": "control-group",
        "OOMPolicy": "continue",
        "UMask": "0077",
        "StateDirectoryMode": "0700",
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
    }
    assert {name: settings.get(name) for name in expected} == expected
    assert f"--out /var/lib/{settings['StateDirectory']}/" in settings["ExecStart"]
    assert int(settings["TimeoutStopSec"]) >= LONGEST_STOP_S


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # It looks for the program too, which is not installed here.
    text = UNIT.read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/firsttoken/.venv/bin/firsttoken", "/bin/true"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


# -- compose ---------------------------------------------------------------------------------------------------------


def test_compose_publishes_on_loopback_and_keeps_the_engine_inside() -> None:
    services = compose()["services"]
    recorder = services["recorder"]
    assert all(port.startswith("127.0.0.1:") for port in recorder["ports"])
    assert "ports" not in services["engine"]
    assert recorder["init"] is True
    assert recorder["stop_signal"] == "SIGINT"
    assert int(recorder["stop_grace_period"].removesuffix("s")) >= LONGEST_STOP_S
    (volume,) = recorder["volumes"]
    name, _, inside = volume.partition(":")
    assert name in compose()["volumes"]
    assert recorder["command"][recorder["command"].index("--out") + 1].startswith(f"{inside}/")
    listen = recorder["command"][recorder["command"].index("--listen") + 1]
    assert listen.rpartition(":")[2] in recorder["healthcheck"]["test"][-1]
    assert (COMPOSE.parent / recorder["build"]["context"]).resolve() == ROOT
    assert (ROOT / recorder["build"]["dockerfile"]).is_file()


def test_the_image_copies_what_exists_and_all_that_the_wheel_needs() -> None:
    text = (EXAMPLES / "Dockerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()]
    assert all((ROOT / word).exists() for word in copied)
    assert {"capture", "profiles", "replay", "analysis", "firsttoken.py", "pyproject.toml"} <= set(copied)
    assert re.search(r"^USER firsttoken$", text, re.MULTILINE)


# -- nginx -----------------------------------------------------------------------------------------------------------


class Answering(ThreadingHTTPServer):
    """A server that says who it is, keeps its connections, and can go away with all of them at once."""

    daemon_threads = True

    def __init__(self, name: str, port: int = 0) -> None:
        self.name = name
        self.behaviour = "answer"  # break: close without an answer; 502: say that the engine is down
        self.received: list[bytes] = []
        self.piece_seen = threading.Event()
        self._connections: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), _Answer)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed already


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Answering

    def do_POST(self) -> None:
        self.server.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.behaviour == "break":
            self.close_connection = True
            return
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nfirst\r\n")
            self.server.piece_seen.wait(30)
            self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")
            return
        answer = self.server.name.encode()
        self.send_response(502 if self.server.behaviour == "502" else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Front:
    """nginx with the example as its configuration, on free ports, in front of two servers."""

    def __init__(self, folder: Path) -> None:
        assert NGINX_COMMAND is not None
        self.recorder = Answering("recorder")
        self.engine = Answering("engine")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        config = wrapped(folder, {8100: self.recorder.server_port, 8000: self.engine.server_port, 8080: self.port})
        self._process = subprocess.Popen(
            [NGINX_COMMAND, "-p", str(folder), "-c", str(config), "-e", "stderr"], stderr=subprocess.DEVNULL
        )
        self._wait()

    def _wait(self) -> None:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=10).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, "nginx did not start"
                threading.Event().wait(0.05)
        raise AssertionError("nginx does not listen")

    def post(self, body: bytes = b"{}", path: str = "/v1/chat/completions") -> tuple[int, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            client.request("POST", path, body)
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self.recorder.stop()
        self.engine.stop()


def wrapped(folder: Path, ports: dict[int, int] | None = None) -> Path:
    """A whole nginx configuration around the example, which writes nowhere but into `folder`."""
    text = NGINX.read_text(encoding="utf-8")
    for written, used in (ports or {}).items():
        text = re.sub(rf"127\.0\.0\.1:{written}\b", f"127.0.0.1:{used}", text)
    (folder / "llm.conf").write_text(text, encoding="utf-8")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log stderr;\n"
        f"events {{ worker_connections 256; }}\nhttp {{\n{temporary}    include {folder}/llm.conf;\n}}\n",
        encoding="utf-8",
    )
    return config


needs_nginx = pytest.mark.skipif(NGINX_COMMAND is None, reason="nginx is not installed")


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    yield front
    front.stop()


@pytest.mark.process
@needs_nginx
def test_nginx_accepts_the_example(tmp_path: Path) -> None:
    assert NGINX_COMMAND is not None
    with socket.socket() as probe:  # a test binds its port
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [NGINX_COMMAND, "-t", "-p", str(tmp_path), "-c", str(wrapped(tmp_path, {8080: port})), "-e", "stderr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


@pytest.mark.process
@needs_nginx
def test_a_recorder_that_is_gone_costs_no_request_and_gets_them_again_when_it_is_back(front: Front) -> None:
    assert front.post() == (200, b"recorder")
    port = front.recorder.server_port
    front.recorder.stop()  # the connection that nginx keeps goes with it
    for _ in range(3):
        assert front.post() == (200, b"engine")
    front.recorder = Answering("recorder", port)
    assert front.post() == (200, b"recorder")


@pytest.mark.process
@needs_nginx
def test_a_request_that_a_dying_recorder_had_is_not_run_twice(front: Front) -> None:
    front.recorder.behaviour = "break"
    status, _ = front.post()
    assert status == 502
    assert (len(front.recorder.received), front.engine.received) == (1, [])


@pytest.mark.process
@needs_nginx
def test_the_recorders_word_that_the_engine_is_down_reaches_the_client(front: Front) -> None:
    front.recorder.behaviour = "502"
    assert front.post() == (502, b"recorder")
    assert front.engine.received == []


@pytest.mark.process
@needs_nginx
def test_a_token_passes_before_the_next_one_comes(front: Front) -> None:
    client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    client.request("POST", "/stream", b"{}")
    answer = client.getresponse()
    assert answer.read1(100) == b"first"  # the server waits for this before it goes on
    front.recorder.piece_seen.set()
    assert answer.read() == b"last"
    client.close()


@pytest.mark.process
@needs_nginx
def test_a_large_body_passes_whole_and_leaves_no_file(front: Front, tmp_path: Path) -> None:
    body = os.urandom(3_000_000)
    assert front.post(body) == (200, b"recorder")
    assert front.recorder.received == [body]
    assert [path for path in (tmp_path / "client_body").rglob("*") if path.is_file()] == []


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_readme_names_files_that_exist_and_metrics_that_are_served() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from capture.live import Live
    from capture.metrics_page import Page

    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)]+)\)", text)
    assert all((EXAMPLES / link).exists() for link in linked)
    assert {link.split("/")[0] for link in linked} == {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page(Live()))
    served = generate_latest(registry).decode("utf-8")
    named = set(re.findall(r"firsttoken_\w+", text))
    assert named
    assert [name for name in named if f"# TYPE {name} " not in served] == []
