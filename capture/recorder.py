"""mitmproxy's hooks to journal lines. No asyncio task, no file: those are `session` and `journal`.

The order of things, for each piece of a response (DESIGN §10.16):

    piece read ──▶ instant taken ──▶ may it complete the response?
                                        no  ──▶ released to the client ──▶ booked
                                        yes ──▶ booked, `end` line in the kernel ──▶ released to the client

So book-keeping delays no token, and a client that saw a whole response can rely on its record, even if this process is
killed in the next instant. What completes a response is its terminal event, the last byte of a known length, or the
end of the chunks or of the connection; mitmproxy calls `response` before it passes that last one on.

What must hold whatever happens here:

* An exception inside the stream callable would cut the client's answer short. All but the pass-through is inside a try.
* A yielded b"" ends a chunked body. It is never yielded.
* Each request gets exactly one `end` line: `_finish` takes it out of `_open`, and only what is in `_open` can finish.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from mitmproxy import connection, http

from capture.journal import Journal
from profiles.captures import StartLine, end_line
from profiles.dialects import OTHER, endpoint_of
from profiles.records import (
    CANCELLED,
    CANCELLED_BY_CLIENT,
    CLIENT,
    ERROR,
    PROXY,
    Exchange,
    RequestFacts,
    ResponseFacts,
    outcome_of,
)
from profiles.requests import describe
from profiles.stream import ResponseReader

RECORDER_FAULT = "recorder fault"

# A request body is parsed when the request is on its way and the engine is busy with it, never before it is forwarded.
DESCRIBE_AFTER_S = 0.005

# What the terminal event of each dialect holds. A hit is only a reason to look before the piece is released; whether
# the response has ended is the reader's to say, since a model may write these words too.
_TERMINAL = re.compile(rb"\[DONE\]|message_stop|response\.(?:completed|incomplete)")
_TAIL_BYTES = 64  # of the pieces before: a read may cut the terminal event in two


class Loop(Protocol):
    """What is needed of the event loop."""

    def call_soon(self, callback: Callable[[], object], /) -> object: ...
    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...


@dataclass(slots=True)
class Counts:
    """What the recorder did since its window opened."""

    requests: int = 0
    written: int = 0
    passed_through: int = 0
    max_in_flight: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # by reason
    errors: Counter[str] = field(default_factory=Counter)  # by place and type; a message could quote a prompt


@dataclass(slots=True, eq=False)
class _Stay:
    """A request between its arrival and its end."""

    flow: http.HTTPFlow
    id: str
    endpoint: str
    path: str
    arrival_ns: int
    in_flight: int
    late_ns: int
    dispatch_ns: int | None = None
    headers_ns: int | None = None
    status: int | None = None
    asked: RequestFacts | None = None
    reader: ResponseReader | None = None
    fault: str | None = None  # why we stopped reading the response
    streamed: bool = False
    expected_bytes: int | None = None
    seen_bytes: int = 0
    tail: bytes = b""
    read_ns: int | None = None  # instant of the read whose pieces are passing
    ended: bool = False

    def forget_read(self) -> None:
        self.read_ns = None

    def may_end_with(self, data: bytes) -> bool:
        """Whether this piece may complete the response, judged in a microsecond and on the safe side."""
        self.seen_bytes += len(data)
        if self.expected_bytes is not None and self.seen_bytes >= self.expected_bytes:
            return True
        if not self.streamed:
            return False
        seen = self.tail + data
        self.tail = seen[-_TAIL_BYTES:]
        return _TERMINAL.search(seen) is not None


class Recorder:
    """A mitmproxy addon. `prefix` makes the ids of this window unique; `clock` is monotonic, in nanoseconds."""

    def __init__(
        self,
        journal: Journal,
        *,
        prefix: str,
        clock: Callable[[], int],
        loop: Loop,
        keep_bodies: bool = False,
        release_content: bool = True,
    ) -> None:
        self.counts = Counts()
        self._journal = journal
        self._prefix = prefix
        self._clock = clock
        self._loop = loop
        self._keep_bodies = keep_bodies
        # Flows die only by cyclic garbage collection, their bodies should not wait for it. Under a stock mitmdump other
        # addons may still want them.
        self._release_content = release_content
        self._open: dict[str, _Stay] = {}  # by flow id, in order of arrival
        self._lag_ns = 0
        self._stopped = False

    @property
    def in_flight(self) -> int:
        """How many requests have arrived and not ended."""
        return len(self._open)

    def observe_lag(self, lag_ns: int) -> None:
        """The event loop was late by this much: instants of the requests in flight may be late by it too."""
        self._lag_ns = lag_ns
        for stay in self._open.values():
            stay.late_ns = max(stay.late_ns, lag_ns)

    def stop(self) -> None:
        """Finalise what is in flight. mitmproxy may end those flows without any hook."""
        at_ns = self._clock()
        for stay in list(self._open.values()):
            self._finish(stay, at_ns, cut=(CANCELLED, PROXY))
        self._stopped = True

    # Hooks of mitmproxy, in the order of a request's life.

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        at_ns = self._clock()
        if self._stopped:
            return
        path = _path_of(flow.request)
        endpoint = endpoint_of(path)
        if endpoint == OTHER or flow.request.method != "POST":
            self.counts.passed_through += 1
            return
        self.counts.requests += 1
        stay = _Stay(
            flow, f"{self._prefix}-{self.counts.requests}", endpoint, path, at_ns, len(self._open), self._lag_ns
        )
        self._open[flow.id] = stay
        self.counts.max_in_flight = max(self.counts.max_in_flight, len(self._open))
        start = StartLine(id=stay.id, at_ns=at_ns, method=flow.request.method, path=path, in_flight=stay.in_flight)
        self._journal.append(msgspec.json.encode(start))

    def request(self, flow: http.HTTPFlow) -> None:
        at_ns = self._clock()
        stay = self._open.get(flow.id)
        if stay is not None:
            stay.dispatch_ns = at_ns
            self._loop.call_later(DESCRIBE_AFTER_S, lambda: self._describe(stay))

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        at_ns = self._clock()
        response = flow.response
        if response is None:
            return
        # Every response streams, recorded or not: by default mitmproxy would hold it until its end.
        response.stream = True
        stay = self._open.get(flow.id)
        if stay is None:
            return
        stay.headers_ns = at_ns
        stay.status = response.status_code
        content_type = response.headers.get("content-type", "")
        stay.streamed = "text/event-stream" in content_type.lower()
        stay.reader = ResponseReader(content_type, response.headers.get("content-encoding", ""))
        length = response.headers.get("content-length", "")
        if length.isdecimal() and "transfer-encoding" not in response.headers:
            stay.expected_bytes = int(length)
        response.stream = self._relay(stay)

    def response(self, flow: http.HTTPFlow) -> None:
        stay = self._open.get(flow.id)
        if stay is not None:
            self._finish(stay, self._clock(), body_complete=True)

    def error(self, flow: http.HTTPFlow) -> None:
        stay = self._open.get(flow.id)
        if stay is not None:
            self._finish(stay, self._clock(), cut=_cut_of(stay))

    def client_disconnected(self, client: connection.Client) -> None:
        """A net under `error`: no request outlives its connection."""
        for stay in list(self._open.values()):
            if stay.flow.client_conn.id == client.id:
                self._finish(stay, self._clock(), cut=(CANCELLED_BY_CLIENT, CLIENT))

    # The way of a response.

    def _relay(self, stay: _Stay) -> Callable[[bytes], Iterator[bytes]]:
        def relay(data: bytes) -> Iterator[bytes]:
            if not data:  # mitmproxy announces the end of the body
                return
            at_ns = self._before_release(stay, data)
            yield data
            if at_ns is not None:
                self._after_release(stay, data, at_ns)

        return relay

    def _before_release(self, stay: _Stay, data: bytes) -> int | None:
        """Take the instant. Book the piece already now if it may be the last; else return the instant to book it at."""
        if stay.ended:
            return None
        try:
            if stay.read_ns is None:
                # One read may hold many chunks, and mitmproxy hands them over one by one without going back to the
                # loop. They share the instant of their read, so that coalesced tokens can be told from fast ones.
                stay.read_ns = self._clock()
                self._loop.call_soon(stay.forget_read)
            at_ns = stay.read_ns
            if not stay.may_end_with(data):
                return at_ns
            if stay.reader is not None:
                stay.reader.feed(data, at_ns)
            whole = stay.expected_bytes is not None and stay.seen_bytes >= stay.expected_bytes
            if whole or (stay.reader is not None and stay.reader.ended):
                self._finish(stay, at_ns, body_complete=True)
        except Exception as problem:
            self._give_up_reading(stay, problem)
        return None

    def _after_release(self, stay: _Stay, data: bytes, at_ns: int) -> None:
        try:
            if stay.reader is not None:
                stay.reader.feed(data, at_ns)
        except Exception as problem:
            self._give_up_reading(stay, problem)

    def _give_up_reading(self, stay: _Stay, problem: Exception) -> None:
        """A fault of ours costs this response its facts. Its bytes pass on, its end is still recorded."""
        self._count_fault("response", problem)
        stay.reader = None
        stay.fault = f"{RECORDER_FAULT}: {type(problem).__name__}"

    def _count_fault(self, place: str, problem: Exception) -> None:
        self.counts.errors[f"{place}: {type(problem).__name__}"] += 1

    def _describe(self, stay: _Stay) -> RequestFacts:
        """What was asked for, read once."""
        if stay.asked is None:
            try:
                stay.asked = describe(stay.flow.request.raw_content if stay.dispatch_ns is not None else None)
            except Exception as problem:
                self._count_fault("request", problem)
                stay.asked = RequestFacts(unread=f"{RECORDER_FAULT}: {type(problem).__name__}")
        return stay.asked

    def _finish(
        self, stay: _Stay, at_ns: int, *, body_complete: bool = False, cut: tuple[str, str] | None = None
    ) -> None:
        """Write the end of a request. `cut` says that not the engine ended it."""
        if self._open.pop(stay.flow.id, None) is None:
            return
        stay.ended = True
        try:
            line = self._end_line(stay, at_ns, body_complete, cut)
        except Exception as problem:
            self._count_fault("end", problem)
            self.counts.dropped[RECORDER_FAULT] += 1
        else:
            if self._journal.append(line):
                self.counts.written += 1
            else:
                self.counts.dropped[self._journal.broken or RECORDER_FAULT] += 1
        if self._release_content:
            stay.flow.request.data.content = None

    def _end_line(self, stay: _Stay, at_ns: int, body_complete: bool, cut: tuple[str, str] | None) -> bytes:
        try:
            facts = stay.reader.finish() if stay.reader is not None else ResponseFacts(unread=stay.fault)
        except Exception as problem:
            self._give_up_reading(stay, problem)
            facts = ResponseFacts(unread=stay.fault)
        outcome, origin = cut or outcome_of(stay.status, facts, body_complete=body_complete)
        exchange = Exchange(
            id=stay.id,
            endpoint=stay.endpoint,
            method=stay.flow.request.method,
            path=stay.path,
            arrival_ns=stay.arrival_ns,
            dispatch_ns=stay.dispatch_ns,
            headers_ns=stay.headers_ns,
            end_ns=at_ns,
            status=stay.status,
            outcome=outcome,
            origin=origin,
            in_flight=stay.in_flight,
            request=self._describe(stay),
            response=facts,
            late_ns=stay.late_ns,
        )
        return end_line(exchange, stay.flow.request.raw_content if self._keep_bodies else None)


def _path_of(request: http.Request) -> str:
    """The path without its query, which may hold a key. Bytes that are no text become replacement characters."""
    return request.data.path.partition(b"?")[0].decode("utf-8", "replace")


def _cut_of(stay: _Stay) -> tuple[str, str] | None:
    """Who broke a request off, by the state of its connection; None for the engine.

    mitmproxy's error texts are no help: an aborted upload and a reset by the engine read the same.
    """
    if stay.flow.client_conn.state is not connection.ConnectionState.OPEN:
        return CANCELLED_BY_CLIENT, CLIENT
    if stay.dispatch_ns is None:  # its client waits, and it was never sent on: mitmproxy refused it as malformed
        return ERROR, CLIENT
    return None
