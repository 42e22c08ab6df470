"""Raw HTTP/1.1 for the tests of the recorder: an engine that answers what a test scripts, byte for byte, a client that
reads byte for byte, and the recorder as a process between the two.

Nothing here parses more than framing needs, and nothing is tidied up: names keep their case, fields their order.
Sockets block, each connection of the engine has a thread of its own, and every wait has the same generous limit, so
that a slow machine only makes a test slow.
"""

import hashlib
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import orjson

from profiles.captures import Capture, read_capture
from profiles.records import Exchange

ROOT = Path(__file__).parent.parent
PATIENCE_S = 30.0
POLL_S = 0.02

Fields = tuple[tuple[bytes, bytes], ...]

CHAT = "/v1/chat/completions"
SSE = (b"content-type", b"text/event-stream")
JSON = (b"content-type", b"application/json")
CHUNKED = (b"transfer-encoding", b"chunked")


class Gone(ConnectionError):
    """The other side closed or reset the connection. `rest` is what it had sent since the last whole message."""

    def __init__(self, rest: bytes) -> None:
        super().__init__(f"the connection ended after {rest[:200]!r}")
        self.rest = rest


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer: first line, fields and trailers as sent, the body without its framing."""

    start: bytes
    fields: Fields
    body: bytes = field(default=b"", repr=False)
    trailers: Fields = ()

    @property
    def status(self) -> int:
        return int(self.start.split(b" ", 2)[1])

    @property
    def target(self) -> bytes:
        return self.start.split(b" ")[1]

    def all(self, name: bytes) -> list[bytes]:
        return [value for other, value in self.fields if other.lower() == name]

    def first(self, name: bytes) -> bytes:
        return next(iter(self.all(name)), b"")


def check_alike(found: Message, wanted: Message) -> None:
    """The same first line, fields, body and trailers. Bodies by digest: a diff of 20 MB helps nobody."""
    assert found.start == wanted.start
    assert found.fields == wanted.fields
    assert digest(found.body) == digest(wanted.body)
    assert found.trailers == wanted.trailers


def digest(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.sha256(data).hexdigest()


class Wire:
    """One end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.closed = False
        self._buffer = bytearray()

    @classmethod
    def to(cls, port: int, tls: ssl.SSLContext | None = None, name: str = "127.0.0.1") -> "Wire":
        sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        try:
            return cls(sock if tls is None else tls.wrap_socket(sock, server_hostname=name))
        except OSError:
            sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, *data: bytes) -> None:
        self.sock.sendall(b"".join(data))

    def until(self, mark: bytes) -> bytes:
        """Everything up to the end of `mark`. Raises Gone."""
        while (at := self._buffer.find(mark)) < 0:
            self._read()
        return self.exactly(at + len(mark))

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._read()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def rest(self) -> bytes:
        """Everything up to the end of the connection, however it ends."""
        try:
            while True:
                self._read()
        except ConnectionError:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data

    def some(self) -> bytes:
        """What has come; b"" at the end of the connection."""
        if not self._buffer:
            with suppress(Gone):
                self._read()
        return self.exactly(len(self._buffer))

    def head(self) -> Message:
        lines = self.until(b"\r\n\r\n")[:-4].split(b"\r\n")
        return Message(lines[0], _fields(lines[1:]))

    def request(self, head: Message) -> Message:
        """The rest of the request that has this head."""
        if head.first(b"expect").lower() == b"100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._whole(head, bodiless=not head.all(b"transfer-encoding") and not head.all(b"content-length"))

    def response(self, method: str = "POST") -> Message:
        head = self.head()
        return self._whole(head, bodiless=method == "HEAD" or head.status in (204, 304) or head.status < 200)

    def chunk(self) -> bytes:
        """The data of the next chunk; b"" is the last one, whose trailers are still to be read."""
        size = int(self.until(b"\r\n").split(b";")[0], 16)
        return self.exactly(size + 2)[:-2] if size else b""

    def trailers(self) -> Fields:
        lines = []
        while (line := self.until(b"\r\n")) != b"\r\n":
            lines.append(line[:-2])
        return _fields(lines)

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End the connection with a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def _whole(self, head: Message, bodiless: bool) -> Message:
        if bodiless:
            return head
        if b"chunked" in head.first(b"transfer-encoding").lower():
            body = bytearray()
            while piece := self.chunk():
                body += piece
            return Message(head.start, head.fields, bytes(body), self.trailers())
        length = head.first(b"content-length")
        return Message(head.start, head.fields, self.exactly(int(length)) if length else self.rest())

    def _read(self) -> None:
        try:
            data = self.sock.recv(1 << 18)
        except (ConnectionError, ssl.SSLEOFError):
            data = b""
        if not data:
            raise Gone(bytes(self._buffer))
        self._buffer += data


def _fields(lines: Sequence[bytes]) -> Fields:
    cut = (line.partition(b":") for line in lines)
    return tuple((name, value.strip(b" \t")) for name, _, value in cut)


def body_for(name: str) -> bytes:
    return orjson.dumps({"model": name, "stream": True, "messages": [{"role": "user", "content": "é"}]})


def post(
    name: str,
    *fields: tuple[bytes, bytes],
    body: bytes | None = None,
    path: str = CHAT,
    version: bytes = b"1.1",
) -> bytes:
    """A request for the script `name`, with a content-length unless the fields say how the body is framed. Its model
    tells its record from others."""
    body = body_for(name) if body is None else body
    sized = () if CHUNKED in fields else ((b"content-length", b"%d" % len(body)),)
    start = b"POST /%s%s HTTP/%s" % (name.encode(), path.encode(), version)
    return head_of(start, ((b"host", b"engine"), JSON, *fields, *sized)) + body


def get(name: str, *fields: tuple[bytes, bytes], method: str = "GET", path: str = "", version: bytes = b"1.1") -> bytes:
    start = b"%s /%s%s HTTP/%s" % (method.encode(), name.encode(), path.encode(), version)
    return head_of(start, ((b"host", b"engine"), *fields))


def answer(body: bytes, *fields: tuple[bytes, bytes], status: bytes = b"200 OK") -> bytes:
    """An answer with a content-length."""
    return head_of(b"HTTP/1.1 " + status, (*fields, (b"content-length", b"%d" % len(body)))) + body


def streamed(pieces: Sequence[bytes], *fields: tuple[bytes, bytes], trailers: Fields = ()) -> bytes:
    """An answer in chunks, one for each piece."""
    return head_of(b"HTTP/1.1 200 OK", (*fields, CHUNKED)) + chunks(pieces, trailers)


def chunks(pieces: Sequence[bytes], trailers: Fields = ()) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return body + b"0\r\n" + b"".join(b"%s: %s\r\n" % pair for pair in trailers) + b"\r\n"


def head_of(start: bytes, fields: Sequence[tuple[bytes, bytes]]) -> bytes:
    return start + b"\r\n" + b"".join(b"%s: %s\r\n" % pair for pair in fields) + b"\r\n"


Script = Callable[[Wire, Message], object]


class Engine:
    """Listens on a free port of loopback. The first part of a request's path names the script that answers it."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.scripts: dict[str, Script] = {}
        self.hasty: set[str] = set()  # scripts that answer a request without reading its body
        self.seen: dict[str, list[Message]] = defaultdict(list)
        self.connections = 0
        self._tls = tls
        self._door: socket.socket | None = None
        self._wires: set[Wire] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        for wire in list(self._wires):
            with suppress(OSError):
                wire.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def on(self, name: str, script: Script | bytes) -> None:
        """Answer requests for `name` with these bytes, or let a function do it."""
        self.scripts[name] = script if callable(script) else lambda wire, _: wire.send(script)

    def open(self) -> None:
        self._door = socket.create_server(("127.0.0.1", self.port), backlog=512)
        self.port = self._door.getsockname()[1]
        self._start(self._accept, self._door)

    def shut(self) -> None:
        """Refuse new connections; those that are open live on."""
        if self._door is not None:
            with suppress(OSError):
                self._door.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._door.close()
            self._door = None

    def _start(self, target: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(sock,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                self._start(self._serve, door.accept()[0])

    def _serve(self, sock: socket.socket) -> None:
        self.connections += 1
        try:
            wire = Wire(sock if self._tls is None else self._tls.wrap_socket(sock, server_side=True))
        except OSError:
            sock.close()
            return
        self._wires.add(wire)
        with suppress(OSError), wire:
            while not wire.closed:
                asked = wire.head()
                name = asked.target.split(b"?")[0].split(b"/")[1].decode("latin-1")
                if name not in self.hasty:
                    asked = wire.request(asked)
                self.seen[name].append(asked)
                self.scripts[name](wire, asked)
        self._wires.discard(wire)


class Recorder:
    """`firsttoken record` as a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", out: Path) -> None:
        self.process = process
        self.out = out
        self.said: list[str] = []
        self.port = 0
        assert process.stderr is not None
        for line in process.stderr:
            self.said.append(line)
            if "Recording http" in line:
                self.port = int(line.partition("://")[2].split()[0].rpartition(":")[2])
                break
        assert self.port, "".join(self.said)
        self._drain = threading.Thread(target=lambda: self.said.extend(process.stderr or ()), daemon=True)
        self._drain.start()

    def stop(self) -> Capture:
        """Stop it in good order and read what it wrote."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 0, "".join(self.said)
        return read_capture(self.out)

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        self._drain.join(PATIENCE_S)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def records_of(self, name: str, number: int = 1) -> list[Exchange]:
        """The records of the requests whose model is `name`, in order of arrival, once there are as many."""
        return self.records(lambda exchange: exchange.request.model == name, number)

    def record_of(self, name: str) -> Exchange:
        (record,) = self.records_of(name)
        return record

    def records(self, wanted: Callable[[Exchange], bool], number: int = 1) -> list[Exchange]:
        """The records that are `wanted`, once there are as many: what is written follows the answers by a moment, and
        nobody is told of it."""
        found: list[Exchange] = []
        for _ in range(int(PATIENCE_S / POLL_S)):
            found = [exchange for exchange in read_capture(self.out).exchanges if wanted(exchange)]
            if len(found) >= number:
                return found
            threading.Event().wait(POLL_S)
        raise AssertionError(f"{len(found)} records, not {number}")


@contextmanager
def recording(upstream: str, out: Path, *options: str) -> Iterator[Recorder]:
    """A recorder in front of `upstream`, until the block ends."""
    command = [sys.executable, "-m", "firsttoken", "record", "--upstream", upstream, "--listen", "127.0.0.1:0"]
    pipe = subprocess.PIPE
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*command, "--out", str(out), *options], stdout=pipe, stderr=pipe, text=True, env=environment
    )
    try:
        recorder = Recorder(process, out)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    try:
        yield recorder
    finally:
        recorder.end()


@dataclass
class Lab:
    """An engine with a recorder in front of it."""

    engine: Engine
    recorder: Recorder

    def ask(self, request: bytes) -> Message:
        """One request through the recorder, on a connection of its own."""
        return ask(self.recorder.port, request)

    def in_flight(self) -> int:
        """How many others the recorder has in flight when a request arrives now."""
        self.engine.on("probe", answer(b"{}", JSON))
        before = sum(exchange.request.model == "probe" for exchange in read_capture(self.recorder.out).exchanges)
        self.ask(post("probe"))
        return self.recorder.records_of("probe", before + 1)[-1].in_flight

    def passes(self, name: str, request: bytes) -> Message:
        """Ask the engine directly and through the recorder. Both must see the same; the answer is returned."""
        before = len(self.engine.seen[name])
        direct, through = ask(self.engine.port, request), self.ask(request)
        check_alike(through, direct)
        asked_directly, asked_through = self.engine.seen[name][before:]
        check_alike(asked_through, asked_directly)
        return through


def ask(port: int, request: bytes, tls: ssl.SSLContext | None = None) -> Message:
    method = request.split(b" ", 1)[0].decode()
    with Wire.to(port, tls) as wire:
        wire.send(request)
        return wire.response(method)


@contextmanager
def lab_in(out: Path, *options: str) -> Iterator[Lab]:
    with Engine() as engine, recording(f"http://127.0.0.1:{engine.port}", out, *options) as recorder:
        yield Lab(engine, recorder)
