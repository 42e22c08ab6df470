"""One connection to an engine, one HTTP/1.1 exchange at a time. The clock is read in the event loop's own callback.

All sockets that are ready are stamped before the first of them is parsed: what was read waits here until the task that
asked for it has its turn.
"""

import asyncio
import select
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx

from profiles.units import SECOND_NS
from replay.answer import AnswerParser
from replay.clock import Clock

# Above this much unread data the kernel's window does the waiting; an LLM stream never comes near it.
PAUSE_AT_BYTES: Final = 4 * 1024 * 1024
# A body that nobody takes is looked at so often within its limit.
WRITE_LOOKS: Final = 8
TLS_LOOK_S: Final = 0.001


@dataclass(slots=True)
class WireStamps:
    """The instants of one exchange, filled in as they pass; None until then. ns of the transport's clock.

    `send_started_ns` is read right before the first byte is handed to the socket, `send_done_ns` when the kernel has
    taken the last one; None if the answer came before that.
    """

    send_started_ns: int | None = None
    send_done_ns: int | None = None
    first_read_ns: int | None = None  # the first byte of anything that came back
    headers_ns: int | None = None  # the read that completed the head
    read_ns: int | None = None  # the last read that was parsed, in which the piece handed out last had come
    reused: bool = False  # the connection had served a request before


class Connection(asyncio.Protocol):
    """The socket's side: keeps what was read with the instant of its read, and wakes the one who waits."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._transport: asyncio.Transport | None = None  # what is written to
        self._socket: asyncio.Transport | None = None  # the same, or what lies below its TLS
        self._waiter: asyncio.Future[None] | None = None
        self._reads: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._paused = False
        self._ended = False
        self._served = False
        self._lost: Exception | None = None
        self._stamps = WireStamps()
        self._answer = AnswerParser()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._socket = cast(asyncio.Transport, transport)
        # So that resume_writing tells when the last byte was taken, not when some room is left.
        self._socket.set_write_buffer_limits(high=0)

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

    def resume_writing(self) -> None:
        if self._stamps.send_done_ns is None and not self._unsent():
            self._stamps.send_done_ns = self._clock.now_ns()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by the transport.

    async def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from here on. Raises ssl.SSLError for a certificate that does not hold."""
        assert self._socket is not None
        # By hand, since the socket's own transport is needed: the one above it hides what the kernel has not taken.
        self._transport = await self._loop.start_tls(self._socket, self, context, server_hostname=host)

    def _unsent(self) -> int:
        assert self._transport is not None
        assert self._socket is not None
        above = self._transport.get_write_buffer_size() if self._transport is not self._socket else 0
        return above + self._socket.get_write_buffer_size()

    def begin(self, stamps: WireStamps) -> AnswerParser:
        """Make ready for a request, before its clock starts."""
        self._stamps = stamps
        stamps.reused = self._served
        self._served = True
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
        if not self._unsent():
            stamps.send_done_ns = self._clock.now_ns()
        else:
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
        return not (self._reads or self._ended or self._unsent())

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
        left, since_ns = self._unsent(), self._clock.now_ns()
        # Nobody tells when a socket below TLS is empty.
        look_s = TLS_LOOK_S if self._transport is not self._socket else limit_s and limit_s / WRITE_LOOKS
        while not self._reads and not self._ended:
            await self._wait(look_s)
            self.resume_writing()
            now_ns, still = self._clock.now_ns(), self._unsent()
            if not still:
                return
            if still < left:
                left, since_ns = still, now_ns
            elif limit_s is not None and now_ns - since_ns >= limit_s * SECOND_NS:
                raise httpx.WriteTimeout(f"the engine took nothing of the body for {limit_s:g} s")


def _has_input(transport: asyncio.Transport | None) -> bool:
    socket: Any = None if transport is None else transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))
