"""HTTP/1.1, as much of it as an engine's clients use: bytes in, requests out, and a connection that is awake.

`RequestReader` does no I/O. `Connection` reads the clock the moment bytes arrive, answers the requests of one
connection in turn, and cancels the one in work when the client goes away.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replay.clock import Clock

LONGEST_HEAD_BYTES = 64 * 1024
# vLLM sets no limit; this one keeps a mistaken client from filling the memory.
LONGEST_BODY_BYTES = 64 * 1024 * 1024

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Malformed(Exception):
    """Bytes that are not a request. `status` is the answer; the connection cannot be used after it."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # without its query
    headers: Mapping[str, str]  # names in lower case, the last of a name wins
    body: bytes
    keep_alive: bool


class RequestReader:
    """Feed it what was read; it returns the requests that are complete. Raises Malformed."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[str, str], bool] | None = None
        self.expects_continue = False  # the client waits for "100 Continue" before it sends its body

    def feed(self, data: bytes) -> list[Request]:
        self._buffer += data
        requests: list[Request] = []
        while (request := self._next()) is not None:
            requests.append(request)
        return requests

    def _next(self) -> Request | None:
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > LONGEST_HEAD_BYTES:
                    raise Malformed(431, "the request head is too long")
                return None
            self._head = _read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            self.expects_continue = self._head[2].get("expect", "").lower() == "100-continue"
        method, path, headers, keep_alive = self._head
        body = (
            self._chunked_body() if "chunked" in headers.get("transfer-encoding", "").lower() else self._body(headers)
        )
        if body is None:
            return None
        self._head = None
        self.expects_continue = False
        return Request(method, path.partition("?")[0], headers, body, keep_alive)

    def _body(self, headers: Mapping[str, str]) -> bytes | None:
        length = _whole(headers.get("content-length", "0"), 10)
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _chunked_body(self) -> bytes | None:
        # Read from the start each time: the bodies are small, and nothing has to be remembered between reads.
        body = bytearray()
        at = 0
        while True:
            line_end = self._buffer.find(b"\r\n", at)
            if line_end < 0:
                return None
            length = _whole(bytes(self._buffer[at:line_end]).partition(b";")[0].decode("latin-1"), 16)
            start = line_end + 2
            if len(body) + length > LONGEST_BODY_BYTES:
                raise Malformed(413, "the request body is too long")
            if length == 0:
                trailers_end = self._buffer.find(b"\r\n", start)
                while trailers_end > start:
                    start = trailers_end + 2
                    trailers_end = self._buffer.find(b"\r\n", start)
                if trailers_end < 0:
                    return None
                del self._buffer[: trailers_end + 2]
                return bytes(body)
            if len(self._buffer) < start + length + 2:
                return None
            body += self._buffer[start : start + length]
            at = start + length + 2


def _read_head(head: bytes) -> tuple[str, str, dict[str, str], bool]:
    first, *lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise Malformed(400, "not an HTTP/1 request line")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise Malformed(400, "a header without a colon")
        headers[name.strip().lower()] = value.strip()
    asked = headers.get("connection", "").lower()
    keep_alive = "close" not in asked if parts[2] == "HTTP/1.1" else "keep-alive" in asked
    return parts[0], parts[1], headers, keep_alive


def _whole(text: str, base: int) -> int:
    try:
        length = int(text.strip(), base)
    except ValueError:
        raise Malformed(400, "a length that is not a number") from None
    if length < 0:
        raise Malformed(400, "a negative length")
    if length > LONGEST_BODY_BYTES:
        raise Malformed(413, "the request body is too long")
    return length


def response(status: int, body: bytes = b"", content_type: str = "application/json") -> bytes:
    """A whole response."""
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nserver: firsttoken-simulation\r\n"
        f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: firsttoken-simulation\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One client. `answer(request, arrived_ns, connection)` is awaited for each request in turn.

    `arrived_ns` is the instant of the read that completed the request. When the client goes away the answer in work is
    cancelled, which is how an abort reaches the machine.
    """

    def __init__(
        self,
        answer: Callable[[Request, int, "Connection"], Awaitable[None]],
        clock: Clock,
        connections: set["Connection"],
    ) -> None:
        self._answer = answer
        self._clock = clock
        self._connections = connections
        self._reader = RequestReader()
        self._due: deque[tuple[Request, int]] = deque()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:  # typed wider by asyncio than what create_server gives
        self._transport = transport
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        arrived_ns = self._clock.now_ns()
        try:
            requests = self._reader.feed(data)
        except Malformed as error:
            self.send(response(error.status, str(error).encode(), "text/plain"))
            self.close()
            return
        if self._reader.expects_continue:
            self._reader.expects_continue = False
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._due.extend((request, arrived_ns) for request in requests)
        if self._due and self._task is None:
            # Kept in the attribute: the loop holds only a weak reference.
            self._task = asyncio.get_running_loop().create_task(self._answer_due())

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def send(self, data: bytes) -> None:
        """Hand bytes to the kernel. Without a client they go nowhere."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Send what is still here, then end the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _answer_due(self) -> None:
        try:
            while self._due and self._transport is not None:
                request, arrived_ns = self._due.popleft()
                await self._answer(request, arrived_ns, self)
                if not request.keep_alive:
                    self.close()
                    return
        except Exception:
            self.abort()  # a mistake of ours must not look like a slow engine
            raise
        finally:
            self._task = None
