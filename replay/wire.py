"""One kept connection to an engine, under httpx, that knows when each piece was read.

httpx hands a body out after it was parsed, layer by layer. On a busy machine that is milliseconds after the bytes came,
and most of all at the first token, which arrives together with the headers. Here the clock is read in the event loop's
own callback, before anything else is done; all sockets that are ready are stamped before the first of them is parsed.
Whatever is parsed out of one read carries the instant of that read (DESIGN §4).

Nothing is retried, no proxy is asked, nothing of the environment is read. One transport is one connection: it carries
one request at a time, and is kept for the next one as long as the engine keeps it.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import cache
from typing import Final

import httpx

from replay.answer import AnswerParser
from replay.clock import Clock
from replay.connection import Connection, WireStamps

# Key of the request extension that holds its `WireStamps`.
STAMPS: Final = "firsttoken.stamps"


class StampedTransport(httpx.AsyncBaseTransport):
    """One kept connection to one engine. `connections` counts those that were made.

    A request may bring its own `WireStamps` under `extensions[STAMPS]`, and httpx's `timeout` with `connect` and
    `write` in seconds: `write` is how long the engine may take nothing of the body. There is no limit on reading:
    whoever reads knows what it waits for. `tls` replaces the context that checks an engine's certificate.
    """

    def __init__(self, clock: Clock, *, tls: ssl.SSLContext | None = None) -> None:
        self._clock = clock
        self._tls = tls
        self._kept: Connection | None = None
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
        try:
            connection = await self._open(request.url, limits.get("connect"))
            answer = connection.begin(stamps)
            first = await connection.exchange_head(data, limits.get("write"))
        except BaseException:
            self._drop()
            raise
        assert answer.status is not None
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(self, connection, answer, first), request=request
        )

    async def connect(self, url: httpx.URL, seconds: float | None = None) -> None:
        """Have a connection that is open, before a request needs it. Raises ConnectError, ConnectTimeout."""
        if not self._busy:
            self._busy = True
            try:
                await self._open(url, seconds)
            finally:
                self._busy = False

    async def aclose(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _ended(self, connection: "Connection", answer: AnswerParser) -> None:
        """The body was read or given up: keep the connection if both sides are at a boundary."""
        self._busy = False
        if not (answer.complete and answer.reusable and connection.at_rest):
            self._drop()

    def _drop(self) -> None:
        self._busy = False
        if self._kept is not None:
            self._kept.abort()
        self._kept = None

    async def _open(self, url: httpx.URL, seconds: float | None) -> "Connection":
        """The kept connection, or a new one where the engine has closed it meanwhile."""
        if self._kept is not None and await self._kept.is_stale():
            self._kept.abort()
            self._kept = None
        if self._kept is None:
            self._kept = await self._connect(url, seconds)
            self.connections += 1
        return self._kept

    async def _connect(self, url: httpx.URL, seconds: float | None) -> "Connection":
        secure = url.scheme == "https"
        port = url.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        connection = Connection(self._clock, loop)
        try:
            async with asyncio.timeout(seconds) as limit:
                await loop.create_connection(lambda: connection, url.host, port)
                if secure:
                    await connection.secure(self._tls or _checked(), url.host)
        except BaseException as error:
            connection.abort()
            if not isinstance(error, OSError):  # a TimeoutError and an SSLError are one
                raise
            if limit.expired():
                raise httpx.ConnectTimeout(f"no connection within {seconds:g} s") from None
            if isinstance(error, ssl.SSLError):
                said = getattr(error, "verify_message", "") or error.reason or error
                raise httpx.ConnectError(f"TLS: {said}") from None
            raise httpx.ConnectError(f"{url.host}:{port}: {error.strerror or error}") from None
        return connection


class _Body(httpx.AsyncByteStream):
    """The body of an answer: one piece for each read that brought some of it."""

    def __init__(self, transport: StampedTransport, connection: Connection, answer: AnswerParser, first: bytes):
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
    """The request line and its headers, as they were given. Raises LocalProtocolError for a line break in a header."""
    for name, value in request.headers.raw:
        if b"\n" in value or b"\r" in value:
            raise httpx.LocalProtocolError(f"the header {name.decode('latin-1')} holds a line break")
    lines = [b"%s %s HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s\r\n" % header for header in request.headers.raw]
    lines.append(b"\r\n")
    return b"".join(lines)


@cache
def _checked() -> ssl.SSLContext:
    """The context that checks certificates; made once, since reading them takes tens of milliseconds of the loop."""
    context = httpx.create_ssl_context(trust_env=False)
    context.set_alpn_protocols(["http/1.1"])
    return context
