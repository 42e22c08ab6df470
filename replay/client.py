"""One request over one connection, with the instants of DESIGN §4.

Tuned as measured (reference: replay §3.4). The clock starts at httpcore's trace event of the first header byte, since
everything before it is our own cost. One transport per slot, because a shared pool rescans its connections. The body is
encoded before. No proxy from the environment, no hidden retry, no compression. Each piece carries the instant of its
read, before anything was parsed (`wire`).
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import httpx

from profiles.records import (
    CLIENT,
    ENGINE,
    ERROR,
    INCOMPLETE,
    TIMEOUT,
    Outcome,
    ResponseFacts,
    outcome_of,
)
from profiles.stream import ResponseReader
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.wire import StampedTransport


@dataclass(frozen=True, slots=True)
class Planned:
    """What is sent and how its outcome is labelled."""

    window: str
    c: int
    index: int
    request: int
    workload: str
    path: str
    body: bytes
    measured: bool = True
    due_ns: int | None = None


class Slot:
    """A connection that sends one request at a time and keeps itself open between them."""

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        timeout_ns: int,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._base = httpx.URL(base_url)
        self._clock = clock
        self._timeout_ns = timeout_ns
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **(headers or {})}
        if transport is None:
            transport = _secure_transport() if self._base.scheme == "https" else StampedTransport(clock)
        self._transport = transport
        self._stamped = transport if isinstance(transport, StampedTransport) else None
        self._kept = False  # a connection is open that has served a request

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.aclose()

    async def send(self, planned: Planned, *, timeout_ns: int | None = None) -> Outcome:
        """Send it and read the answer to its end. Never raises for what the engine does; that is the outcome."""
        clock, stamps = self._clock, _Stamps()

        async def trace(event: str, _info: Mapping[str, object]) -> None:
            if event == "http11.send_request_headers.started":
                stamps.send_started_ns = clock.now_ns()
            elif event == "http11.send_request_body.complete":
                stamps.send_done_ns = clock.now_ns()
            elif event == "http11.receive_response_headers.complete":
                stamps.headers_ns = self._stamped.read_ns if self._stamped is not None else clock.now_ns()

        # The whole answer has one limit; the stages below it have none, so that the outcome is always the same kind.
        seconds = (self._timeout_ns if timeout_ns is None else min(timeout_ns, self._timeout_ns)) / SECOND_NS
        request = httpx.Request(
            "POST",
            self._base.join(planned.path),
            headers=self._headers,
            content=planned.body,
            extensions={"trace": trace, "timeout": dict.fromkeys(("connect", "read", "write", "pool"), seconds)},
        )
        asked_ns = clock.now_ns()
        try:
            async with asyncio.timeout(seconds):
                await self._exchange_on_open_connection(request, stamps)
            facts = stamps.facts()
            outcome, origin = outcome_of(stamps.status, facts, body_complete=True)
            reason = f"HTTP {stamps.status}" if stamps.status and stamps.status >= 400 else facts.error
        except (TimeoutError, httpx.TimeoutException):
            facts, outcome, origin = stamps.facts(), TIMEOUT, ENGINE
            reason = f"no end within {seconds:g} s"
        except httpx.ConnectError as error:
            facts, outcome, origin, reason = stamps.facts(), ERROR, ENGINE, f"cannot connect: {error}"
        except httpx.RemoteProtocolError as error:
            facts, outcome, origin, reason = stamps.facts(), INCOMPLETE, ENGINE, str(error)
        except httpx.TransportError as error:
            facts, outcome, origin, reason = stamps.facts(), INCOMPLETE, ENGINE, f"{type(error).__name__}: {error}"
        except httpx.HTTPError as error:  # a request that httpx itself refuses to send
            facts, outcome, origin, reason = stamps.facts(), ERROR, CLIENT, str(error)
        return Outcome(
            window=planned.window,
            c=planned.c,
            index=planned.index,
            request=planned.request,
            workload=planned.workload,
            measured=planned.measured,
            due_ns=planned.due_ns,
            send_started_ns=stamps.send_started_ns if stamps.send_started_ns is not None else asked_ns,
            send_done_ns=stamps.send_done_ns,
            headers_ns=stamps.headers_ns,
            end_ns=clock.now_ns(),
            status=stamps.status,
            resent=stamps.resent,
            outcome=outcome,
            origin=origin,
            reason=reason,
            response=facts,
        )

    async def _exchange_on_open_connection(self, request: httpx.Request, stamps: "_Stamps") -> None:
        """Send it; once more on a new connection if the engine closed the kept one at the moment of sending.

        That is a race of HTTP keep-alive (llama.cpp loses it now and then), no failure of the engine: nothing of an
        answer had come. The instants are those of the second sending, and the outcome says that there was one.
        """
        try:
            await self._exchange(request, stamps)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            if not self._kept or stamps.status is not None:
                raise
            self._kept = False
            stamps.resent += 1
            await self._exchange(request, stamps)
        self._kept = True

    async def _exchange(self, request: httpx.Request, stamps: "_Stamps") -> None:
        response = await self._transport.handle_async_request(request)
        stamps.status = response.status_code
        reader = ResponseReader(response.headers.get("content-type", ""), response.headers.get("content-encoding", ""))
        stamps.reader = reader
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        clock, stamped = self._clock, self._stamped
        try:
            # Read to the very end, past [DONE]: leaving earlier would cost the connection (reference: replay §6).
            async for piece in stream:
                reader.feed(piece, stamped.read_ns if stamped is not None else clock.now_ns())
        finally:
            await stream.aclose()


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: loading them takes tens of milliseconds of the loop's time."""
    return httpx.create_ssl_context(trust_env=False)


def _secure_transport() -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    return httpx.AsyncHTTPTransport(verify=_certificates(), limits=limits, retries=0, trust_env=False)


class _Stamps:
    """What is known of a request while it runs, so that a request that breaks off keeps its partial facts."""

    def __init__(self) -> None:
        self.send_started_ns: int | None = None
        self.send_done_ns: int | None = None
        self.headers_ns: int | None = None
        self.status: int | None = None
        self.reader: ResponseReader | None = None
        self.resent = 0

    def facts(self) -> ResponseFacts:
        return self.reader.finish() if self.reader is not None else ResponseFacts()
