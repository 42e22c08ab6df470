"""A recorder and its scribe in one process: flows as mitmproxy makes them, a pipe and a clock of our own."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from mitmproxy import http
from mitmproxy.connection import ConnectionState
from mitmproxy.test import tflow, tutils

from capture.frames import BEAT, CLOSE, OPEN, FrameReader, Opening, tell
from capture.journal import Journal
from capture.outbox import Outbox
from capture.recorder import Recorder
from capture.redact import Redactor
from capture.scribe import Scribe
from capture.settings import Settings
from capture.window import Window
from profiles.captures import Capture, read_capture
from profiles.records import Exchange

WALL_NS = 1_000_000  # the wall clock is this far ahead of the monotonic one
BODY = b'{"model":"m","stream":true,"max_tokens":7,"messages":[{"role":"user","content":"SEEDED PROMPT"}]}'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class Loop:
    """Keeps what was asked for, until a test lets it happen."""

    later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    writer: Callable[[], object] | None = None

    def call_soon(self, callback: Callable[[], object], /) -> object:
        return self.call_later(0, callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object:
        self.later.append((delay, callback))
        return None

    def add_writer(self, fd: int, callback: Callable[[], object], /) -> object:
        self.writer = callback
        return None

    def remove_writer(self, fd: int, /) -> object:
        self.writer = None
        return None

    def pass_time(self) -> None:
        due, self.later = self.later, []
        for _, callback in due:
            callback()


class Pipe:
    """What the outbox wrote, up to a size."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()  # only because an outbox makes its descriptor non-blocking
        self.data = bytearray()
        self.room = 1 << 30
        self.error: OSError | None = None

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if self.error is not None:
            raise self.error
        taken = data[: self.room - len(self.data)]
        if not taken:
            raise BlockingIOError
        self.data += taken
        return len(taken)

    def read(self) -> bytes:
        data = bytes(self.data)
        self.data.clear()
        return data

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


class Bench:
    """A recording on a fake clock, with the hooks of one request in a few words."""

    def __init__(
        self,
        folder: Path,
        *,
        write: Callable[[int, bytes], int] = os.write,
        prefix: str = "p",
        limit_bytes: int = 1 << 26,
        **asked: Any,
    ) -> None:
        self.folder = folder
        self.now_ns = 0
        self.loop = Loop()
        self.pipe = Pipe()
        self.settings = Settings(folder=str(folder), upstream="http://127.0.0.1:8000", prefix=prefix, **asked)
        self.outbox = Outbox(self.pipe.writing, self.loop, write=self.pipe.write, limit_bytes=limit_bytes)
        self.recorder = Recorder(self.outbox, self.loop, clock=lambda: self.now_ns)
        self.frames = FrameReader()
        self.window = Window(
            self.settings,
            clock=lambda: self.now_ns,
            wall_clock=lambda: self.now_ns + WALL_NS,
            journal=Journal(folder, lambda: self.window.head(), write=write, sync_ns=0, clock=lambda: self.now_ns),
        )
        self.window.open()
        mode = self.settings.bodies
        self.scribe = Scribe(self.settings, self.window, Redactor(mode, None if mode == "none" else b"k" * 32))
        self.outbox.put(tell(OPEN, 0, 0, Opening()))

    def take(self) -> None:
        """The scribe reads what is in the pipe."""
        for frame in self.frames.feed(self.pipe.read()):
            self.scribe.take(frame)

    def close(self) -> None:
        """The proxy stops, and then its scribe."""
        self.recorder.stop()
        self.beat()
        self.outbox.put(tell(CLOSE, 0, self.now_ns, Opening("stopped")))
        self.outbox.flush()
        self.take()
        self.window.close(clean=self.scribe.clean)
        self.pipe.close()

    def beat(self) -> None:
        self.outbox.put(tell(BEAT, 0, self.now_ns, self.recorder.pulse(0)))
        self.outbox.flush()
        self.take()

    def arrive(
        self, at_ns: int, *, path: str = "/v1/chat/completions", method: str = "POST", body: bytes = BODY
    ) -> http.HTTPFlow:
        flow = tflow.tflow(req=tutils.treq(method=method.encode(), path=path.encode(), content=None))
        flow.client_conn.state = ConnectionState.OPEN
        self.now_ns = at_ns
        self.recorder.requestheaders(flow)
        flow.request.raw_content = body
        return flow

    def dispatch(self, flow: http.HTTPFlow, at_ns: int) -> None:
        self.now_ns = at_ns
        self.recorder.request(flow)

    def answer(
        self,
        flow: http.HTTPFlow,
        at_ns: int,
        *,
        status: int = 200,
        kind: str = "text/event-stream",
        encoding: str = "",
        length: int = -1,
    ) -> None:
        headers = http.Headers(content_type=kind)
        if encoding:
            headers["content-encoding"] = encoding
        if length >= 0:
            headers["content-length"] = str(length)
        else:
            headers["transfer-encoding"] = "chunked"
        flow.response = tutils.tresp(status_code=status, headers=headers, content=None)
        self.now_ns = at_ns
        self.recorder.responseheaders(flow)

    def read(self, flow: http.HTTPFlow, data: bytes, at_ns: int) -> bytes:
        """One piece of the response, as mitmproxy asks for it: what it returns is released to the client next."""
        self.now_ns = at_ns
        assert flow.response is not None
        assert callable(flow.response.stream)
        released = flow.response.stream(data)
        assert isinstance(released, bytes)
        return released

    def end(self, flow: http.HTTPFlow, at_ns: int) -> None:
        self.read(flow, b"", at_ns)
        self.recorder.response(flow)

    def fail(self, flow: http.HTTPFlow, at_ns: int, *, client: ConnectionState = ConnectionState.OPEN) -> None:
        flow.client_conn.state = client
        self.now_ns = at_ns
        self.recorder.error(flow)

    def lines(self) -> list[dict[str, Any]]:
        """What is in the file once the scribe has read the pipe, as after a kill of the proxy."""
        self.take()
        paths = sorted(self.folder.glob("segment-*.jsonl"))
        return [orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()]

    def ends(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["line"] == "end"]

    def capture(self) -> Capture:
        self.take()
        return read_capture(self.folder)

    def only(self) -> Exchange:
        (exchange,) = self.capture().exchanges
        return exchange


def stream_one(bench: Bench, flow: http.HTTPFlow) -> None:
    """A whole streamed answer to the request that has just arrived: 160 ns from arrival to the terminal event."""
    arrival_ns = bench.now_ns
    bench.dispatch(flow, arrival_ns + 10)
    bench.answer(flow, arrival_ns + 100)
    for data, after_ns in ((ROLE, 110), (TOKEN, 120), (TOKEN, 135), (LAST, 150), (DONE, 160)):
        assert bench.read(flow, data, arrival_ns + after_ns) == data
