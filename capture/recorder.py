"""mitmproxy's hooks to frames for the scribe. It takes instants and passes bytes on; it reads and writes no file.

The order of things, for each piece of a response (DESIGN §10.16):

    piece read ──▶ instant and piece noted ──▶ may it complete the response?
                                                 no  ──▶ released to the client; told to the scribe within 0.1 s
                                                 yes ──▶ told, and END in the kernel ──▶ released to the client

So no token waits for more than two entries in a list, and a client that saw a whole response can rely on its record,
even if this process is killed in the next instant. What completes a response is its terminal event, the last byte of a
known length, or the end of the chunks or of the connection; mitmproxy calls `response` before it passes that last one
on.

What must hold whatever happens here:

* An exception inside the stream callable would cut the client's answer short. All but the pass-through is inside a try.
* What the callable is given it returns, b"" at the end of the body included: one of its own would end a chunked body.
* Each request gets exactly one END: `_finish` takes it out of `_open`, and only what is in `_open` can finish.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from mitmproxy import connection, http
from mitmproxy.tcp import TCPFlow
from mitmproxy.tls import TlsData

from capture.frames import END as END_FRAME
from capture.frames import HEADERS, START, Answer, Arrival, Ending, asked, pieces, tell
from capture.headers import HEADERS_READ
from capture.outbox import Loop, Outbox
from capture.terminal import TerminalWatch
from profiles.dialects import OTHER, canonical_path, endpoint_of
from profiles.records import CANCELLED, CANCELLED_BY_CLIENT, CLIENT, ENGINE, ERROR, PROXY
from profiles.units import MILLISECOND_NS

RECORDER_FAULT = "recorder fault"

# A piece of this size is told at once, so that whole answers of many megabytes do not pile up here.
LARGE_BYTES = 16 * 1024
# Pieces wait this long to be told to the scribe: nobody waits for them, and the end of their request takes them along.
LATER_S = 0.1

# Reasons of an error that carries no answer of the engine.
UNREACHABLE = "engine unreachable"
NO_ANSWER = "engine closed without an answer"
UNTRUSTED = "engine's certificate not accepted"
MALFORMED = "malformed request"
RACE = "kept connection closed while sending"

# An engine that closes a kept connection at the moment of sending does so within a round trip; one that dies over a
# request takes longer.
RACE_NS = 50 * MILLISECOND_NS


@dataclass(slots=True)
class Counts:
    """What the recorder did since it started."""

    requests: int = 0
    ended: int = 0  # END frames that were handed over
    passed_through: int = 0
    upgrades: int = 0
    max_in_flight: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # requests without a record, by reason
    errors: Counter[str] = field(default_factory=Counter)  # by place and type; a message could quote a prompt


class ReadClock(Protocol):
    """Knows the instant at which the bytes that are being worked on were read."""

    @property
    def read_ns(self) -> int: ...


class _Now:
    """The clock itself, where nobody knows better."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock

    @property
    def read_ns(self) -> int:
        return self._clock()


@dataclass(slots=True, eq=False)
class _Stay:
    """A request between its arrival and its end."""

    flow: http.HTTPFlow
    number: int
    endpoint: str
    path: str
    arrival_ns: int
    in_flight: int
    late_ns: int
    source: ReadClock  # the connection whose bytes are being worked on
    dispatch_ns: int | None = None
    answered: bool = False  # response headers are in
    terminal: TerminalWatch | None = None
    expected_bytes: int | None = None
    times_ns: list[int] = field(default_factory=list)  # of the pieces that the scribe has not been told of
    pieces: list[bytes] = field(default_factory=list)
    missing: str | None = None  # why the scribe lacks a part of it
    ended: bool = False


class Recorder:
    """A mitmproxy addon. `clock` is monotonic, in nanoseconds."""

    def __init__(
        self,
        outbox: Outbox,
        loop: Loop,
        *,
        clock: Callable[[], int],
        headers_read: frozenset[bytes] = HEADERS_READ,
        release_content: bool = True,
    ) -> None:
        self.counts = Counts()
        self.outbox = outbox
        self._loop = loop
        self._headers_read = headers_read  # no other header leaves this process
        # Set by a proxy that knows when the bytes of a connection were read; else the clock is read in the hook.
        self.source_of: Callable[[str], ReadClock] = lambda client_id: _Now(clock)
        self._clock = clock
        # Flows die only by cyclic garbage collection, their bodies should not wait for it. Under a stock mitmdump other
        # addons may still want them.
        self._release_content = release_content
        self._open: dict[str, _Stay] = {}  # by flow id, in order of arrival
        self._untrusted: set[str] = set()  # clients whose engine showed a certificate that was not accepted
        self._noted: list[_Stay] = []  # with pieces that the scribe has not been told of
        self._telling = False  # a timer runs
        self._lag_ns = 0
        self._stopped = False

    @property
    def in_flight(self) -> int:
        """How many requests have arrived and not ended."""
        return len(self._open)

    def observe_lag(self, lag_ns: int) -> None:
        """The event loop was late by this much: instants of the requests in flight may be late by it too."""
        self._lag_ns = lag_ns
        if lag_ns:
            for stay in self._open.values():
                stay.late_ns = max(stay.late_ns, lag_ns)

    def announce_again(self, missing: str) -> None:
        """A new scribe: tell it who is in flight. What the one before knew of them is lost."""
        for stay in self._open.values():
            stay.missing = missing
            self._start(stay, again=True)

    def stop(self) -> None:
        """Finalise what is in flight. mitmproxy may end those flows without any hook."""
        at_ns = self._clock()
        for stay in list(self._open.values()):
            self._finish(stay, at_ns, Ending(False, stay.late_ns, outcome=CANCELLED, origin=PROXY))
        self._stopped = True

    def count_fault(self, place: str, problem: Exception) -> None:
        """A fault of ours, by place and type. Its message could quote what passed."""
        self.counts.errors[f"{place}: {type(problem).__name__}"] += 1

    # Hooks of mitmproxy, in the order of a request's life.

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        if self._stopped:
            return
        endpoint, path = _endpoint_at(flow.request.data.path.partition(b"?")[0])
        if endpoint == OTHER or flow.request.data.method != b"POST":
            self.counts.passed_through += 1
            return
        self.counts.requests += 1
        source = self.source_of(flow.client_conn.id)
        stay = _Stay(
            flow,
            self.counts.requests,
            endpoint,
            path,
            source.read_ns,
            len(self._open),
            self._lag_ns,
            source,
        )
        self._open[flow.id] = stay
        self.counts.max_in_flight = max(self.counts.max_in_flight, len(self._open))
        self._start(stay)
        self.outbox.flush_soon()

    def request(self, flow: http.HTTPFlow) -> None:
        stay = self._open.get(flow.id)
        if stay is None:
            return
        stay.dispatch_ns = stay.source.read_ns
        headers = [field for field in flow.request.data.headers.fields if field[0].lower() in self._headers_read]
        self._put(stay, *asked(stay.number, stay.dispatch_ns, headers, flow.request.raw_content or b""))
        self.outbox.flush_soon()

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        response = flow.response
        if response is None:
            return
        # Every response streams, recorded or not: by default mitmproxy would hold it until its end.
        response.stream = True
        status = response.data.status_code
        if status == 101:
            self.counts.upgrades += 1
        stay = self._open.get(flow.id)
        if stay is None:
            return
        at_ns = stay.source.read_ns
        stay.answered = True
        if self._release_content:
            flow.request.data.content = None  # it is on its way, and the engine may take long
        # One pass over the bytes: looking each header up by name costs more than all else here.
        told = {name.lower(): value for name, value in response.data.headers.fields}
        content_type, encoding, streamed = _kind_of(told.get(b"content-type", b""), told.get(b"content-encoding", b""))
        if streamed:
            stay.terminal = TerminalWatch()
        length = told.get(b"content-length", b"")
        if length.isdigit() and b"transfer-encoding" not in told:
            stay.expected_bytes = int(length)
        self._put(stay, tell(HEADERS, stay.number, at_ns, Answer(status, content_type, encoding)))
        response.stream = self._relay(stay)

    def response(self, flow: http.HTTPFlow) -> None:
        stay = self._open.get(flow.id)
        if stay is not None:
            self._finish(stay, stay.source.read_ns, Ending(True, stay.late_ns, missing=stay.missing))

    def error(self, flow: http.HTTPFlow) -> None:
        stay = self._open.get(flow.id)
        if stay is not None:
            at_ns = self._clock()  # nothing need have been read: a connection may have failed
            self._finish(stay, at_ns, _ending_of(stay, at_ns, flow.client_conn.id in self._untrusted))

    def tls_failed_server(self, data: TlsData) -> None:
        """The engine's certificate was not accepted. The flow that waits for it is told of no connection at all."""
        self._untrusted.add(data.context.client.id)

    def client_disconnected(self, client: connection.Client) -> None:
        """A net under `error`: no request outlives its connection."""
        self._untrusted.discard(client.id)
        for stay in list(self._open.values()):
            if stay.flow.client_conn.id == client.id:
                cut = Ending(False, stay.late_ns, outcome=CANCELLED_BY_CLIENT, origin=CLIENT, missing=stay.missing)
                self._finish(stay, self._clock(), cut)

    def tcp_message(self, flow: TCPFlow) -> None:
        """An upgraded connection passes as bytes. mitmproxy would keep them all."""
        flow.messages.clear()

    # The way of a response.

    def _relay(self, stay: _Stay) -> Callable[[bytes], bytes]:
        """What mitmproxy calls with each piece before it writes it to the client, and writes what it gets back.

        It runs for every token, so all it needs is at hand: a look-up less is a percent of what a piece costs.
        """
        source, times_ns, noted, watch = stay.source, stay.times_ns, stay.pieces, stay.terminal
        expected = stay.expected_bytes
        seen = 0

        def relay(data: bytes) -> bytes:
            nonlocal seen
            if stay.ended or not data:
                return data
            try:
                if not times_ns:
                    self._note_first(stay)
                times_ns.append(source.read_ns)
                noted.append(data)
                if watch is not None:
                    if not watch.passes(data) and watch.ends_with(data):
                        self._finish(stay, source.read_ns, Ending(True, stay.late_ns))
                    return data
                seen += len(data)
                if seen == expected:
                    self._finish(stay, source.read_ns, Ending(True, stay.late_ns))
                elif len(data) >= LARGE_BYTES:
                    self._tell_pieces(stay)
            except Exception as problem:
                self._lose_sight(stay, problem)
            return data

        return relay

    def _note_first(self, stay: _Stay) -> None:
        self._noted.append(stay)
        if not self._telling:
            self._telling = True
            self._loop.call_later(LATER_S, self._tell_in_time)

    def _lose_sight(self, stay: _Stay, problem: Exception) -> None:
        """A fault of ours costs this response its facts. Its bytes pass on, its end is still recorded."""
        self.count_fault("response", problem)
        stay.missing = stay.missing or f"{RECORDER_FAULT}: {type(problem).__name__}"
        stay.terminal = None

    # The way to the scribe.

    def _tell_in_time(self) -> None:
        self._telling = False
        self._tell_noted()
        self.outbox.flush()

    def _tell_noted(self) -> None:
        """Pieces of all responses to frames. They wait together because a frame and a write cost more than a piece."""
        noted, self._noted = self._noted, []
        for stay in noted:
            self._tell_pieces(stay)

    def _tell_pieces(self, stay: _Stay) -> None:
        if not stay.times_ns:
            return
        try:
            self._put(stay, pieces(stay.number, stay.times_ns, stay.pieces))
        except Exception as problem:
            self._lose_sight(stay, problem)
        stay.times_ns.clear()
        stay.pieces.clear()

    def _start(self, stay: _Stay, *, again: bool = False) -> None:
        told = Arrival("POST", stay.path, stay.endpoint, stay.in_flight, again)
        self._put(stay, tell(START, stay.number, stay.arrival_ns, told))

    def _put(self, stay: _Stay, *parts: bytes) -> None:
        if stay.missing is None:
            stay.missing = self.outbox.put(*parts)
        elif parts[0][4] == START:
            self.outbox.put(*parts)

    def _finish(self, stay: _Stay, at_ns: int, ending: Ending) -> None:
        if self._open.pop(stay.flow.id, None) is None:
            return
        stay.ended = True
        try:
            self._tell_pieces(stay)
            if stay.missing != ending.missing:
                ending = _with_missing(ending, stay.missing)
            refused = self.outbox.put(tell(END_FRAME, stay.number, at_ns, ending))
            if refused is None:
                self.counts.ended += 1
                self.outbox.flush()
            else:
                self.counts.dropped[refused] += 1
        except Exception as problem:
            self.count_fault("end", problem)
            self.counts.dropped[RECORDER_FAULT] += 1
        if self._release_content:
            stay.flow.request.data.content = None


@lru_cache(maxsize=256)
def _kind_of(content_type: bytes, encoding: bytes) -> tuple[str, str, bool]:
    """Both headers as text, and whether the body is an event stream that can be read as it passes."""
    kind, encoded = content_type.decode("latin-1"), encoding.decode("latin-1")
    return kind, encoded, "text/event-stream" in kind.lower() and encoded.lower() in ("", "identity")


@lru_cache(maxsize=256)
def _endpoint_at(path: bytes) -> tuple[str, str]:
    """Endpoint and recorded path of a request's path without its query."""
    text = path.decode("utf-8", "replace")
    return endpoint_of(text), canonical_path(text)


def _with_missing(ending: Ending, missing: str | None) -> Ending:
    return Ending(
        ending.body_complete, ending.late_ns, ending.status, ending.outcome, ending.origin, ending.reason, missing
    )


def _ending_of(stay: _Stay, at_ns: int, untrusted: bool) -> Ending:
    """Who broke a request off, by the state of its connections.

    mitmproxy's error texts are no help: an aborted upload and a reset by the engine read the same. Where it has not
    passed on a head, mitmproxy answers itself: 400 to a request that it refuses, else 502.
    """
    late_ns, flow = stay.late_ns, stay.flow
    if flow.client_conn.state is not connection.ConnectionState.OPEN:
        return Ending(False, late_ns, outcome=CANCELLED_BY_CLIENT, origin=CLIENT)
    if stay.dispatch_ns is None:  # its client waits, and it was never sent on
        return Ending(False, late_ns, status=400, outcome=ERROR, origin=CLIENT, reason=MALFORMED)
    if stay.answered:
        return Ending(False, late_ns)
    server = flow.server_conn
    if untrusted:
        return Ending(False, late_ns, status=502, outcome=ERROR, origin=ENGINE, reason=UNTRUSTED)
    if server.timestamp_tcp_setup is None:
        return Ending(False, late_ns, status=502, outcome=ERROR, origin=ENGINE, reason=UNREACHABLE)
    # The connection served a request before this one, and closed as soon as it was used again: without us the client
    # would have had a connection of its own.
    kept = server.timestamp_tcp_setup < flow.request.timestamp_start
    if kept and at_ns - stay.dispatch_ns < RACE_NS:
        return Ending(False, late_ns, status=502, outcome=ERROR, origin=PROXY, reason=RACE)
    return Ending(False, late_ns, status=502, outcome=ERROR, origin=ENGINE, reason=NO_ANSWER)
