"""mitmproxy's hooks to frames for the scribe. It takes instants and passes bytes on; it reads and writes no file.

The order of things, for each piece of a response (DESIGN §10.16):

    piece read ──▶ instant and piece noted ──▶ may it complete the response?
                                                 no  ──▶ released to the client; told to the scribe within 0.1 s
                                                 yes ──▶ its end told, and in the kernel ──▶ released

So no token waits for more than two entries in a list, and a client that saw a whole response can rely on its record,
even if this process is killed in the next instant. What completes a response is its terminal event, the last byte of a
known length, or the end of the chunks or of the connection; mitmproxy calls `response` before it passes that last one
on.

What must hold whatever happens here:

* An exception inside the stream callable would cut the client's answer short. All but the pass-through is inside a try.
* What the callable is given it returns, b"" at the end of the body included: one of its own would end a chunked body.
* Each request gets exactly one end: `_finish` takes it out of `_open`, and only what is in `_open` can finish.
"""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import msgspec
from mitmproxy import connection, http
from mitmproxy.tcp import TCPFlow
from mitmproxy.tls import TlsData

from capture.frames import LARGEST_BODY_BYTES, STORY, Answer, Arrival, Asked, Ending, Pulse, Story, asked, tell
from capture.headers import HEADERS_READ
from capture.outbox import FAULT, Outbox
from capture.relay import Relay, attach
from capture.stay import Now, ReadClock, Stay, ending_of
from capture.terminal import TerminalWatch
from profiles.dialects import OTHER, canonical_path, endpoint_of
from profiles.records import CANCELLED, CANCELLED_BY_CLIENT, CLIENT, PROXY

# A body or a piece of this size is told at once, so that whole answers of many megabytes do not pile up here.
LARGE_BYTES = 16 * 1024
# Large bodies are left out while so much waits for a scribe that is behind: they would be most of our memory.
CROWDED_BYTES = 8 * 1024 * 1024
# Pieces wait this long: nobody waits for them, and the end of their request takes them along.
LATER_S = 0.1

# mitmproxy's layers hold copies of a body in cycles, which only a collection frees; the collector counts objects, not
# bytes. After so many bytes it is called.
COLLECT_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Counts:
    """What the recorder did since it started."""

    requests: int = 0
    ended: int = 0  # whose end was handed over
    passed_through: int = 0
    upgrades: int = 0
    refused: int = 0  # what was no HTTP request, and was answered by us
    max_in_flight: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # requests without a record, by reason
    errors: Counter[str] = field(default_factory=Counter)  # by place and type; a message could quote a prompt


class Loop(Protocol):
    """What is needed of the event loop."""

    def call_soon(self, callback: Callable[[], object], /) -> object: ...
    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...


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
        self.source_of: Callable[[str], ReadClock] = lambda client_id: Now(clock)
        self._clock = clock
        # Flows die only by cyclic garbage collection, their bodies should not wait for it. Under a stock mitmdump other
        # addons may still want them.
        self._release_content = release_content
        self._open: dict[str, Stay] = {}  # by flow id, in order of arrival
        self._untrusted: set[str] = set()  # clients whose engine showed a certificate that was not accepted
        self._waiting: list[Stay] = []
        self._soon = self._later = False  # whether they are about to be told
        self._body_bytes = 0  # of requests since garbage was collected
        self._lag_ns = 0
        self._stopped = False

    @property
    def in_flight(self) -> int:
        """How many requests have arrived and not ended."""
        return len(self._open)

    def pulse(self, lag_ns: int) -> Pulse:
        """What was counted so far, with the loop's worst lateness since the last pulse."""
        counts = self.counts
        return Pulse(
            self.in_flight,
            lag_ns,
            counts.requests,
            counts.passed_through,
            counts.upgrades,
            counts.refused,
            counts.max_in_flight,
            dict(counts.dropped),
            dict(counts.errors),
            self.outbox.waiting_bytes,
        )

    def observe_lag(self, lag_ns: int) -> None:
        """The event loop was late by this much: instants of the requests in flight may be late by it too."""
        self._lag_ns = lag_ns
        if lag_ns:
            for stay in self._open.values():
                stay.late_ns = max(stay.late_ns, lag_ns)

    def announce_again(self, missing: str) -> None:
        """A new scribe: tell it who is in flight. What the one before knew of them is lost."""
        for stay in self._open.values():
            stay.missing, stay.unknown = missing, False
            stay.untold_arrival = stay.arrival
            self._tell(stay)

    def stop(self) -> None:
        """Finalise what is in flight. mitmproxy may end those flows without any hook."""
        at_ns = self._clock()
        for stay in list(self._open.values()):
            self._finish(stay, Ending(at_ns, False, stay.late_ns, outcome=CANCELLED, origin=PROXY))
        self._stopped = True

    def count_fault(self, place: str, problem: Exception) -> None:
        """A fault of ours, by place and type. Its message could quote what passed."""
        self.counts.errors[f"{place}: {type(problem).__name__}"] += 1

    def count_refused(self) -> None:
        """Something came that is no request, and was answered with an error."""
        self.counts.refused += 1

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
        arrival = Arrival(source.read_ns, path, endpoint, len(self._open))
        stay = Stay(flow, self.counts.requests, arrival, self._lag_ns, source, arrival)
        self._open[flow.id] = stay
        self.counts.max_in_flight = max(self.counts.max_in_flight, len(self._open))
        self._wait(stay, soon=True)

    def request(self, flow: http.HTTPFlow) -> None:
        stay = self._open.get(flow.id)
        if stay is None:
            return
        stay.dispatch_ns = at_ns = stay.source.read_ns
        body = flow.request.data.content or b""
        size = len(body)
        headers = [field for field in flow.request.data.headers.fields if field[0].lower() in self._headers_read]
        # Before it is forwarded, so that a killed recorder's journal knows of every request that the engine has seen.
        crowded = size > LARGEST_BODY_BYTES or self.outbox.waiting_bytes > CROWDED_BYTES
        small = size < LARGE_BYTES
        told = Asked(at_ns, headers, size, body if small else None)
        if small or crowded:
            stay.asked = told
        self._tell(stay, now=True)
        if not small and not crowded and stay.missing is None:
            stay.missing = self.outbox.put(*asked(stay.number, told, body))
        self._body_bytes += size

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
        expected = -1
        length = told.get(b"content-length", b"")
        if length.isdigit() and b"transfer-encoding" not in told:
            expected = int(length)
        stay.answer = Answer(at_ns, status, content_type, encoding)
        self._wait(stay)
        attach(Relay(self._relay(stay, TerminalWatch() if streamed else None, expected)), response)

    def response(self, flow: http.HTTPFlow) -> None:
        stay = self._open.get(flow.id)
        if stay is not None:
            self._finish(stay, Ending(stay.source.read_ns, True, stay.late_ns))

    def error(self, flow: http.HTTPFlow) -> None:
        stay = self._open.get(flow.id)
        if stay is not None:
            # Nothing need have been read: a connection may have failed.
            self._finish(stay, ending_of(stay, self._clock(), flow.client_conn.id in self._untrusted))

    def tls_failed_server(self, data: TlsData) -> None:
        """The engine's certificate was not accepted. The flow that waits for it is told of no connection at all."""
        self._untrusted.add(data.context.client.id)

    def client_disconnected(self, client: connection.Client) -> None:
        """A net under `error`: no request outlives its connection."""
        self._untrusted.discard(client.id)
        for stay in list(self._open.values()):
            if stay.flow.client_conn.id == client.id:
                at_ns = self._clock()
                self._finish(stay, Ending(at_ns, False, stay.late_ns, outcome=CANCELLED_BY_CLIENT, origin=CLIENT))

    def tcp_message(self, flow: TCPFlow) -> None:
        """An upgraded connection passes as bytes. mitmproxy would keep them all."""
        flow.messages.clear()

    # The way of a response.

    def _relay(self, stay: Stay, watch: TerminalWatch | None, expected: int) -> Callable[[bytes], bytes]:
        """What mitmproxy calls with each piece before it writes it to the client, and writes what it gets back.

        It runs for every token, so all it needs is at hand: a look-up less is a percent of what a piece costs.
        """
        source, times_ns, noted = stay.source, stay.times_ns, stay.pieces
        seen = 0

        def relay(data: bytes) -> bytes:
            nonlocal seen
            if stay.ended or not data:
                return data
            try:
                if not stay.waiting:
                    self._wait(stay)
                times_ns.append(source.read_ns)
                noted.append(data)
                if watch is not None:
                    if not watch.passes(data) and watch.ends_with(data):
                        self._finish(stay, Ending(source.read_ns, True, stay.late_ns))
                    return data
                seen += len(data)
                if seen == expected:
                    self._finish(stay, Ending(source.read_ns, True, stay.late_ns))
                elif len(data) >= LARGE_BYTES:
                    self._tell(stay)
            except Exception as problem:
                self._lose_sight(stay, problem)
            return data

        return relay

    def _lose_sight(self, stay: Stay, problem: Exception) -> None:
        """A fault of ours costs this response its facts. Its bytes pass on, its end is still recorded."""
        self.count_fault("response", problem)
        stay.missing = stay.missing or f"{FAULT}: {type(problem).__name__}"

    # The way to the scribe. Stories wait for each other, because a frame and a write cost more than a piece.

    def _wait(self, stay: Stay, *, soon: bool = False) -> None:
        if not stay.waiting:
            stay.waiting = True
            self._waiting.append(stay)
        if soon and not self._soon:
            self._soon = True
            self._loop.call_soon(self._tell_soon)
        elif not (soon or self._soon or self._later):
            self._later = True
            self._loop.call_later(LATER_S, self._tell_later)

    def _tell_soon(self) -> None:
        self._soon = False
        self._tell_waiting()

    def _tell_later(self) -> None:
        self._later = False
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for stay in waiting:
            if stay.untold_arrival or stay.asked or stay.answer or stay.times_ns:
                self._tell(stay)
            stay.waiting = False
        self.outbox.flush()

    def _tell(self, stay: Stay, ending: Ending | None = None, *, now: bool = False) -> str | None:
        """Tell what has not been told yet, `now` or with the next flush. Returns why that could not be done."""
        arrival, stay.untold_arrival = stay.untold_arrival, None
        refused: str | None
        try:
            if stay.missing is None:
                told = Story(arrival, stay.asked, stay.answer, stay.times_ns, stay.pieces, ending)
            else:
                told = Story(arrival, None, stay.answer, [], [], ending)
            at_ns = stay.arrival.at_ns if ending is None else ending.at_ns
            outbox = self.outbox
            refused = (outbox.send if now else outbox.put)(tell(STORY, stay.number, at_ns, told))
        except Exception as problem:
            self._lose_sight(stay, problem)
            stay.untold_arrival, arrival = arrival, None
            refused = FAULT
        stay.waiting, stay.asked, stay.answer = False, None, None
        stay.times_ns.clear()
        stay.pieces.clear()
        if refused is not None:
            stay.missing = stay.missing or refused
            stay.unknown = stay.unknown or arrival is not None
        return refused

    def _finish(self, stay: Stay, ending: Ending) -> None:
        if self._open.pop(stay.flow.id, None) is None:
            return
        stay.ended = True
        if stay.missing is not None:
            ending = msgspec.structs.replace(ending, missing=stay.missing)
        refused = stay.missing if stay.unknown else self._tell(stay, ending, now=True)
        if refused == FAULT:  # a part of it cannot be told; its end alone may be
            refused = self._tell(stay, msgspec.structs.replace(ending, missing=stay.missing), now=True)
        if refused is None:
            self.counts.ended += 1
        else:
            self.counts.dropped[refused] += 1
        if self._release_content:
            stay.flow.request.data.content = None
        if self._body_bytes >= COLLECT_BYTES:
            self._body_bytes = 0
            gc.collect()  # all generations: of those in flight at a lesser one, the oldest would keep the bodies


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
