"""One request over one connection, with the instants of DESIGN §4.

The clock starts right before the first byte is handed to the socket: everything before it is our own cost. The body was
encoded before, the head is built before. Each slot has a transport of its own, since a pool that is shared rescans its
connections. No proxy from the environment, no hidden retry, no compression asked for. Each piece carries the instant of
its read, before anything was parsed (`wire`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import httpx

from profiles.records import CANCELLED, CLIENT, ENGINE, TIMEOUT, Outcome
from profiles.stream import ResponseReader
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.connection import WireStamps
from replay.flight import Flight, Planned, Timeouts, what_ended
from replay.wire import STAMPS, StampedTransport

__all__ = ["MEASURED_TO_C", "Planned", "Slot", "Timeouts"]

# Up to so many at once the client's own error was measured to stay near that of a bare socket (benchmarks/replay).
# Above it the client would shape the result.
MEASURED_TO_C: Final = 32


class Slot:
    """A connection that sends one request at a time and keeps itself open between them.

    `transport` is any transport of httpx. Ours stamps at the read, plain or TLS. The instants of another one come from
    its trace events where it has them, and else from the calls.
    """

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        timeouts: Timeouts,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        new_reader: Callable[[str, str], ResponseReader] = ResponseReader,
    ) -> None:
        self._base = httpx.URL(base_url)
        self._clock = clock
        self._timeouts = timeouts
        self._new_reader = new_reader  # by content type and content encoding; another one for those who want the text
        # No compression is asked for: a gateway that compresses holds tokens back until a block is full.
        given = {"content-type": "application/json", "accept-encoding": "identity", **(headers or {})}
        self._headers = httpx.Headers(given)
        self._transport = StampedTransport(clock) if transport is None else transport
        self._urls: dict[str, httpx.URL] = {}
        self._flight: Flight | None = None
        self.interrupted: Outcome | None = None  # what was known of a request that was cancelled

    @property
    def progress_ns(self) -> int | None:
        """Of the request in flight: the instant of its last event with tokens, else of its start. None when idle."""
        return None if self._flight is None else self._flight.progress_ns

    @property
    def token_ns(self) -> int | None:
        """Of the request in flight: the instant of its last event with tokens. None before the first, and when idle."""
        reader = None if self._flight is None else self._flight.reader
        return None if reader is None else reader.last_token_ns

    @property
    def connections(self) -> int | None:
        """How many connections were made so far; None where the transport does not say."""
        return self._transport.connections if isinstance(self._transport, StampedTransport) else None

    def cut(self, reason: str) -> None:
        """End the request in flight as a timeout of the engine, for this reason. Nothing happens when idle."""
        if self._flight is not None:
            self._flight.cut(reason)

    async def connect(self) -> None:
        """Have a connection that is open before a request is due. What fails here is the next request's to say."""
        if isinstance(self._transport, StampedTransport) and self._flight is None:
            with contextlib.suppress(httpx.HTTPError):
                await self._transport.connect(self._base, self._timeouts.connect_ns / SECOND_NS)

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.aclose()

    async def send(self, planned: Planned, *, total_ns: int | None = None) -> Outcome:
        """Send it and read the answer to its end. Never raises for what the engine does; that is the outcome.

        `total_ns` is a limit beside that of the timeouts: the stricter one holds. Cancelling ends the request at once;
        what was known of it stands in `interrupted` then.
        """
        self.interrupted = None
        flight = self._flight = Flight(planned, self._clock, self._timeouts, total_ns)
        request = self._build(planned, flight)
        try:
            async with flight.limit:
                flight.watch()
                await self._exchange_on_open_connection(request, flight)
        except asyncio.CancelledError:
            self.interrupted = flight.broken_off(CANCELLED, CLIENT, "the replay was interrupted")
            raise
        except TimeoutError:
            return flight.broken_off(TIMEOUT, ENGINE, flight.cut_for or "no end")
        except httpx.HTTPError as error:
            return flight.broken_off(*what_ended(error))
        finally:
            flight.unwatch()
            self._flight = None
        return flight.ended()

    def _build(self, planned: Planned, flight: Flight) -> httpx.Request:
        url = self._urls.get(planned.path)
        if url is None:
            url = self._urls[planned.path] = self._base.join(planned.path)
        limits = self._timeouts
        extensions: dict[str, object] = {
            # What comes is watched by the flight, which knows the stages; a limit on each read does not.
            "timeout": {
                "connect": limits.connect_ns / SECOND_NS,
                "write": limits.write_ns / SECOND_NS,
                "read": None,
                "pool": None,
            },
            STAMPS: flight.stamps,
        }
        if not isinstance(self._transport, StampedTransport):
            extensions["trace"] = flight.trace
        return httpx.Request("POST", url, headers=self._headers, content=planned.body, extensions=extensions)

    async def _exchange_on_open_connection(self, request: httpx.Request, flight: Flight) -> None:
        """Send it; once more on a new connection if the engine closed the kept one at the moment of sending.

        That is a race of HTTP keep-alive (llama.cpp loses it now and then), no failure of the engine: not one byte of
        an answer had come. The instants are those of the second sending, and the outcome says that there was one.
        """
        try:
            await self._exchange(request, flight)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            if not flight.stamps.reused or flight.stamps.first_read_ns is not None:
                raise
            flight.resent += 1
            flight.stamps = request.extensions[STAMPS] = WireStamps()
            await self._exchange(request, flight)

    async def _exchange(self, request: httpx.Request, flight: Flight) -> None:
        response = await self._transport.handle_async_request(request)
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        try:
            flight.status = response.status_code
            headers = response.headers
            reader = self._new_reader(headers.get("content-type", ""), headers.get("content-encoding", ""))
            flight.reader, stamps, clock = reader, flight.stamps, self._clock
            own = isinstance(self._transport, StampedTransport)
            # Read to the very end, past [DONE]: leaving earlier would cost the connection (reference: replay §6).
            async for piece in stream:
                if not own:
                    stamps.read_ns = clock.now_ns()
                reader.feed(piece, stamps.read_ns or 0)
            # The end of the body may have come in a read of its own, which is the end of the request.
            flight.end_ns = stamps.read_ns if own else clock.now_ns()
        finally:
            await stream.aclose()
