"""One kept connection to an engine, under httpx, that knows when each piece was read.

httpx hands a body out after it was parsed, layer by layer. On a busy machine that is milliseconds after the bytes came,
and most of all at the first token, which arrives together with the headers. Here the clock is read in the event loop's
own callback, before anything else is done; all sockets that are ready are stamped before the first of them is parsed.
Whatever is parsed out of one read carries the instant of that read (DESIGN §4).

Nothing is retried, no proxy is asked, nothing of the environment is read. One transport is one connection: it carries
one request at a time, and is kept for the next one as long as the engine keeps it.
"""

import asyncio
import select
import ssl
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

import httpx

from profiles.units import SECOND_NS
from replay.answer import AnswerParser
from replay.clock import Clock

# Above this much unread data the kernel's window does the waiting; an LLM stream never comes near it.
PAUSE_AT_BYTES: Final = 4 * 1024 * 1024
# Key of the request extension that holds its `WireStamps`.
STAMPS: Final = "firsttoken.stamps"
# A body that nobody takes is looked at so often within its limit.
WRITE_LOOKS: Final = 8


@dataclass(slots=True)
class WireStamps:
    """The instants of one exchange, filled in as they pass; None until then. ns of the transport's clock.

    `send_started_ns` is read right before the first byte is handed to the socket, `send_done_ns` when the kernel has
    taken the last one. With TLS that is the last byte handed to the socket's own buffer of at most 64 KiB.
    """

    send_started_ns: int | None = None
    send_done_ns: int | None = None
    first_read_ns: int | None = None  # the first byte of anything that came back
    headers_ns: int | None = None  # the read that completed the head
    read_ns: int | None = None  # the read of the piece that was handed out last


class StampedTransport(httpx.AsyncBaseTransport):
    """One kept connection to one engine. `connections` counts those that were made.

    A request may bring its own `WireStamps` under `extensions[STAMPS]`, and httpx's `timeout` with `connect` and
    `write` in seconds: `write` is how long the engine may take nothing of the body. There is no limit on reading:
    whoever reads knows what it waits for. `tls` replaces the context that checks an engine's certificate.
    """

    def __init__(self, clock: Clock, *, tls: ssl.SSLContext | None = None) -> None:
        self._clock = clock
        self._tls = tls
        self._kept: _Connection | None = None
        self._busy = False
        self.connections = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it and return as soon as the head of the answer is there. Raises httpx's errors."""
        if self._busy:
            raise RuntimeError("a StampedTransport carries one request at a time")
        stamps: WireStamps = request.extensions.get(STAMPS) or WireStamps()
        limits = request.extensions.get("timeout") or {}
        data = _head(request) + await request.aread()
        self._busy = True
        connection = self._kept
        try:
            # Only a connection that was used before can have been closed since.
            if connection is not None and await connection.is_stale():
                connection.abort()
                connection = self._kept = None
            if connection is None:
                connection = await self._connect(request.url, limits.get("connect"))
                self._kept = connection
                self.connections += 1
            answer = connection.begin(stamps)
            first = await connection.exchange_head(data, limits.get("write"))
        except BaseException:
            self._drop(connection)
            raise
        assert answer.status is not None
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(self, connection, answer, first), request=request
        )

    async def aclose(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _ended(self, connection: "_Connection", answer: AnswerParser) -> None:
        """The body was read or given up: keep the connection if both sides are at a boundary."""
        self._busy = False
        if not (answer.complete and answer.reusable and connection.at_rest):
            self._drop(connection)

    def _drop(self, connection: "_Connection | None") -> None:
        self._busy = False
        if connection is not None:
            connection.abort()
        self._kept = None

    async def _connect(self, url: httpx.URL, seconds: float | None) -> "_Connection":
        secure = url.scheme == "https"
        port = url.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds) as limit:
                _, protocol = await loop.create_connection(
                    lambda: _Connection(self._clock, loop),
                    url.host,
                    port,
                    ssl=(self._tls or _checked()) if secure else None,
                    server_hostname=url.host if secure else None,
                )
        except ssl.SSLError as error:
            raise httpx.ConnectError(f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}") from None
        except OSError as error:  # a TimeoutError is one
            if limit.expired():
                raise httpx.ConnectTimeout(f"no connection within {seconds:g} s") from None
            raise httpx.ConnectError(f"{url.host}:{port}: {error.strerror or error}") from None
        return protocol


class _Connection(asyncio.Protocol):
    """The socket's side: keeps what was read with the instant of its read, and wakes the one who waits."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reads: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._paused = False
        self._sending = False
        self._ended = False
        self._lost: Exception | None = None
        self._stamps = WireStamps()
        self._answer = AnswerParser()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # So that resume_writing tells when the last byte was taken, not when some room is left.
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._reads.append((self._clock.now_ns(), data))
        self._held_bytes += len(data)
        if self._held_bytes > PAUSE_AT_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._lost = True, exc
        self._wake()

    def pause_writing(self) -> None:
        self._sending = True

    def resume_writing(self) -> None:
        if self._sending:
            self._stamps.send_done_ns = self._clock.now_ns()
            self._sending = False
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by the transport.

    def begin(self, stamps: WireStamps) -> AnswerParser:
        """Make ready for a request, before its clock starts."""
        self._stamps = stamps
        self._answer = AnswerParser()
        return self._answer

    async def exchange_head(self, data: bytes, write_s: float | None) -> bytes:
        """Hand everything to the socket and read to the end of the answer's head. Returns the first of its body."""
        transport, stamps = self._transport, self._stamps
        assert transport is not None
        if transport.is_closing():
            raise httpx.WriteError("the connection is closed")
        stamps.send_started_ns = self._clock.now_ns()
        transport.write(data)
        if not self._sending and not transport.get_write_buffer_size():
            stamps.send_done_ns = self._clock.now_ns()
        else:
            self._sending = True
            # An engine may refuse a body before it has come whole: then the answer is read at once.
            await self._wait_taken(write_s)
        piece = b""
        while self._answer.status is None:
            piece = await self.read()
        stamps.headers_ns = stamps.read_ns
        return piece

    async def read(self) -> bytes:
        """The body that the next read brought: empty if it was framing, or at the end of the answer.

        Raises ReadError for a connection that broke, RemoteProtocolError for an answer that is cut or no HTTP.
        """
        answer, stamps = self._answer, self._stamps
        while not self._reads and answer.broken is None:
            if self._lost is not None:
                raise httpx.ReadError(str(self._lost) or type(self._lost).__name__)
            if self._ended:
                answer.end()
                if answer.complete:
                    return b""
            else:
                await self._wait()
        if answer.broken is not None:
            raise httpx.RemoteProtocolError(answer.broken)
        stamps.read_ns, data = self._reads.popleft()
        if stamps.first_read_ns is None:
            stamps.first_read_ns = stamps.read_ns
        self._held_bytes -= len(data)
        if self._paused and not self._reads and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return answer.feed(data)

    @property
    def at_rest(self) -> bool:
        """Nothing is unread, nothing unsent, and the other side is there."""
        return not (self._reads or self._sending or self._ended)

    async def is_stale(self) -> bool:
        """The engine closed it, or said something unasked, since its last answer.

        The kernel knows it before the loop does, and an engine may close right behind its answer. So where the socket
        has something to read the loop is given turns to read it. Over TLS that may be a session ticket, which is fine.
        """
        for _ in range(3):
            if not self.at_rest:
                return True
            if not _has_input(self._transport):
                return False
            await asyncio.sleep(0)
        return not self.at_rest or _has_input(self._transport)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self, seconds: float | None = None) -> None:
        """Until the loop has something to say, or so long."""
        self._waiter = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def _wait_taken(self, limit_s: float | None) -> None:
        """Until the kernel has taken everything or the engine answers. Raises WriteTimeout when it takes nothing."""
        assert self._transport is not None
        left, since_ns = self._transport.get_write_buffer_size(), self._clock.now_ns()
        while self._sending and not self._reads and not self._ended:
            await self._wait(None if limit_s is None else limit_s / WRITE_LOOKS)
            now_ns, still = self._clock.now_ns(), self._transport.get_write_buffer_size()
            if still < left:
                left, since_ns = still, now_ns
            elif limit_s is not None and now_ns - since_ns >= limit_s * SECOND_NS:
                raise httpx.WriteTimeout(f"the engine took nothing of the body for {limit_s:g} s")


class _Body(httpx.AsyncByteStream):
    """The body of an answer: one piece for each read that brought some of it."""

    def __init__(self, transport: StampedTransport, connection: _Connection, answer: AnswerParser, first: bytes):
        self._transport = transport
        self._connection = connection
        self._answer = answer
        self._first = first
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._first:
            piece, self._first = self._first, b""
            yield piece
        while not self._answer.complete:
            if piece := await self._connection.read():
                yield piece

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._transport._ended(self._connection, self._answer)


def _head(request: httpx.Request) -> bytes:
    """The request line and its headers, as they were given."""
    lines = [b"%s %s HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s\r\n" % header for header in request.headers.raw]
    lines.append(b"\r\n")
    return b"".join(lines)


def _has_input(transport: asyncio.Transport | None) -> bool:
    socket: Any = None if transport is None else transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


@cache
def _checked() -> ssl.SSLContext:
    """The context that checks certificates; made once, since reading them takes tens of milliseconds of the loop."""
    context = httpx.create_ssl_context(trust_env=False)
    context.set_alpn_protocols(["http/1.1"])
    return context
