"""A request between its arrival and its end, as the proxy knows it, and who was at fault where it broke off."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from mitmproxy import connection, http

from capture.frames import Answer, Arrival, Asked, Ending
from profiles.records import CANCELLED_BY_CLIENT, CLIENT, ENGINE, ERROR, PROXY
from profiles.units import MILLISECOND_NS

# Reasons of an error that carries no answer of the engine.
UNREACHABLE = "engine unreachable"
NO_ANSWER = "engine closed without an answer"
UNTRUSTED = "engine's certificate not accepted"
MALFORMED = "malformed request"
RACE = "kept connection closed while sending"

# An engine that closes a kept connection at the moment of sending does so within a round trip; one that dies over a
# request takes longer.
RACE_NS = 50 * MILLISECOND_NS


class ReadClock(Protocol):
    """Knows the instant at which the bytes that are being worked on were read."""

    @property
    def read_ns(self) -> int: ...


class Now:
    """The clock itself, where nobody knows better."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock

    @property
    def read_ns(self) -> int:
        return self._clock()


@dataclass(slots=True, eq=False)
class Stay:
    """A request between its arrival and its end, with what the scribe has not been told of it yet."""

    flow: http.HTTPFlow
    number: int
    arrival: Arrival
    late_ns: int
    source: ReadClock  # the connection whose bytes are being worked on
    untold_arrival: Arrival | None
    dispatch_ns: int | None = None
    asked: Asked | None = None
    answered: bool = False  # response headers are in
    answer: Answer | None = None
    times_ns: list[int] = field(default_factory=list)  # of the pieces
    pieces: list[bytes] = field(default_factory=list)
    waiting: bool = False  # to be told
    missing: str | None = None  # why the scribe lacks a part of it
    unknown: bool = False  # the scribe does not even know of its arrival
    ended: bool = False


def ending_of(stay: Stay, at_ns: int, untrusted: bool) -> Ending:
    """Who broke a request off, by the state of its connections.

    mitmproxy's error texts are no help: an aborted upload and a reset by the engine read the same. Where it has not
    passed on a head, mitmproxy answers itself: 400 to a request that it refuses, else 502.
    """
    late_ns, flow = stay.late_ns, stay.flow
    if flow.client_conn.state is not connection.ConnectionState.OPEN:
        return Ending(at_ns, False, late_ns, outcome=CANCELLED_BY_CLIENT, origin=CLIENT)
    if stay.dispatch_ns is None:  # its client waits, and it was never sent on
        return Ending(at_ns, False, late_ns, status=400, outcome=ERROR, origin=CLIENT, reason=MALFORMED)
    if stay.answered:
        return Ending(at_ns, False, late_ns)
    server = flow.server_conn
    if untrusted:
        return Ending(at_ns, False, late_ns, status=502, outcome=ERROR, origin=ENGINE, reason=UNTRUSTED)
    if server.timestamp_tcp_setup is None:
        return Ending(at_ns, False, late_ns, status=502, outcome=ERROR, origin=ENGINE, reason=UNREACHABLE)
    # The connection served a request before this one, and closed as soon as it was used again: without us the client
    # would have had a connection of its own.
    kept = server.timestamp_tcp_setup < flow.request.timestamp_start
    if kept and at_ns - stay.dispatch_ns < RACE_NS:
        return Ending(at_ns, False, late_ns, status=502, outcome=ERROR, origin=PROXY, reason=RACE)
    return Ending(at_ns, False, late_ns, status=502, outcome=ERROR, origin=ENGINE, reason=NO_ANSWER)
