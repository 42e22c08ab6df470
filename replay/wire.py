"""A plain TCP connection under httpx that knows when each piece was read.

httpx hands a body out after it was parsed, layer by layer. On a busy machine that is milliseconds after the bytes came,
and most of all at the first token, which arrives together with the headers. Here the clock is read in the event loop's
own callback, and whatever is parsed out of one read carries the instant of that read (DESIGN §4).

It is also shorter than the way through anyio. TLS keeps httpx's own transport: there the instant is that of the piece.
"""

import asyncio
import select
from collections import deque
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from replay.clock import Clock

# Above this much unread data the kernel's window does the waiting; an LLM stream never comes near it.
PAUSE_AT_BYTES = 4 * 1024 * 1024


class StampedTransport(httpx.AsyncHTTPTransport):
    """One kept connection to one engine over plain HTTP. `read_ns` is the instant of the read being parsed."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(verify=False, trust_env=False)
        self._backend = _Backend(clock)
        # httpx has no argument for it; the attribute is the whole of what its constructor makes (httpx 0.28, pinned).
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=1, max_keepalive_connections=1, network_backend=self._backend
        )

    @property
    def read_ns(self) -> int:
        return self._backend.read_ns


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.read_ns = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, protocol = await loop.create_connection(lambda: _Protocol(self.clock), host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no connection to {host}:{port} within {timeout} s") from None
        except OSError as error:
            raise httpcore.ConnectError(f"{host}:{port}: {error.strerror or error}") from None
        return _Stream(self, transport, protocol)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Protocol(asyncio.Protocol):
    """Keeps what was read with the instant of its read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._held_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self.arrived = asyncio.Event()
        self.reads: deque[tuple[int, bytes]] = deque()
        self.lost: BaseException | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.reads.append((self._clock.now_ns(), data))
        self._held_bytes += len(data)
        if self._held_bytes > PAUSE_AT_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self.arrived.set()

    def take(self, most: int) -> tuple[int, bytes]:
        at_ns, data = self.reads.popleft()
        if len(data) > most:
            self.reads.appendleft((at_ns, data[most:]))
            data = data[:most]
        self._held_bytes -= len(data)
        if self._transport is not None and not self.reads:
            self._transport.resume_reading()
        return at_ns, data

    def eof_received(self) -> bool:
        self.ended = True
        self.arrived.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended, self.lost = True, exc
        self.arrived.set()
        self._drained.set()

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    async def drained(self) -> None:
        await self._drained.wait()


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, backend: _Backend, transport: asyncio.Transport, protocol: _Protocol) -> None:
        self._backend = backend
        self._transport = transport
        self._protocol = protocol

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        protocol = self._protocol
        while not protocol.reads:
            if protocol.lost is not None:
                raise httpcore.ReadError(str(protocol.lost))
            if protocol.ended:
                return b""
            protocol.arrived.clear()
            try:
                async with asyncio.timeout(timeout):
                    await protocol.arrived.wait()
            except TimeoutError:
                raise httpcore.ReadTimeout(f"nothing came within {timeout} s") from None
        self._backend.read_ns, data = protocol.take(max_bytes)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._transport.is_closing():
            raise httpcore.WriteError("the connection is closed")
        self._transport.write(buffer)
        try:
            async with asyncio.timeout(timeout):
                await self._protocol.drained()
        except TimeoutError:
            raise httpcore.WriteTimeout(f"the engine took nothing for {timeout} s") from None

    async def aclose(self) -> None:
        self._transport.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            # Asked before a kept connection is used again: something to read then means that it was closed. The kernel
            # knows it before the loop does, and an engine may close right behind its answer.
            return self._protocol.ended or bool(self._protocol.reads) or _has_input(self._transport)
        return self._transport.get_extra_info(info)


def _has_input(transport: asyncio.Transport) -> bool:
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))
