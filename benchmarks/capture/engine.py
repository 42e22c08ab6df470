"""A light mock engine on loopback: any POST is answered with the stream that its query asks for.

`python -m benchmarks.capture.engine` prints `listening PORT` and serves until its stdin ends. Bodies are counted, not
kept. It runs on uvloop where that is installed.
"""

import asyncio
import gc
import sys
import time
from typing import cast

from benchmarks.capture.loops import go_first, new_loop
from benchmarks.capture.shapes import DONE, ROLE, Shape, chunk, parse_shape, token_event, usage_event

HOST = "127.0.0.1"
HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Serving(asyncio.Protocol):
    """One connection. It reads a request, counts its body, and answers on an absolute schedule."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._head = bytearray()
        self._body_bytes = 0
        self._missing = 0  # bytes of the body that have not come yet
        self._shape: Shape | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: transports of uvloop are none by class.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._shape is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = bytes(self._head[end + 4 :])
            if not self._begin(bytes(self._head[:end])):
                return
        self._missing -= len(data)
        if self._missing <= 0:
            self._answer()

    def _begin(self, head: bytes) -> bool:
        self._head.clear()
        request, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        try:
            self._shape = parse_shape(request.split(b" ")[1])
            self._body_bytes = self._missing = int(headers[b"content-length"])
        except (ValueError, IndexError, KeyError):
            self._transport.write(REFUSED)
            self._transport.close()
            return False
        if b"expect" in headers:
            self._transport.write(CONTINUE)
        return True

    def _answer(self) -> None:
        shape = self._shape
        assert shape is not None
        if shape.first_us == shape.gap_us == 0:
            now_ns = time.monotonic_ns()
            tokens = chunk(token_event(False, now_ns)) * (shape.chunks - 1) + chunk(token_event(True, now_ns))
            self._transport.write(HEAD + chunk(ROLE) + tokens + self._tail(shape))
            return
        self._transport.write(HEAD)
        begun_s = self._loop.time()
        self._timer = self._loop.call_at(begun_s + shape.first_us / 1e6, self._send, shape, 0, begun_s)

    def _send(self, shape: Shape, number: int, begun_s: float) -> None:
        last = number + 1 == shape.chunks
        data = chunk(token_event(last, time.monotonic_ns()))
        self._transport.write((b"" if number else chunk(ROLE)) + data + (self._tail(shape) if last else b""))
        if not last:
            due_s = begun_s + (shape.first_us + (number + 1) * shape.gap_us) / 1e6
            self._timer = self._loop.call_at(due_s, self._send, shape, number + 1, begun_s)

    def _tail(self, shape: Shape) -> bytes:
        """What ends an answer. The connection is then ready for the next request."""
        self._shape = None
        return chunk(usage_event(self._body_bytes, shape.chunks)) + chunk(DONE) + LAST_CHUNK


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Serving(loop), HOST, 0, backlog=1024)
    print("listening", server.sockets[0].getsockname()[1], flush=True)
    gc.freeze()
    gc.set_threshold(50_000)
    async with server:
        # Whoever started it holds the other end: no engine outlives its benchmark.
        await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    go_first()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
