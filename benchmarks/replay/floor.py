"""A raw socket: the least that a client in Python can do. The clock is read first of all, in the loop's callback."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from benchmarks.replay.jobs import Ask, Job, Seen, request_of

HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    "Content-Length: {length}\r\n\r\n"
)
LAST_CHUNK = b"\r\n0\r\n\r\n"
EVENT = b"data: "
# What a token chunk has. The engine sends nothing that holds these otherwise, so no JSON is parsed.
SIGNS = (b'"content":" ', b'"reasoning_content":"', b'"reasoning":"', b'"tool_calls":[')
USAGE = b'"completion_tokens":'


class Wire(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, request: bytes) -> None:
        self.tokens_ns: list[int] = []
        self.tokens: int | None = None
        self.ended = asyncio.get_running_loop().create_future()
        self._rest = b""
        self.started_ns = time.monotonic_ns()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        *lines, self._rest = (self._rest + data).split(b"\n\n")
        for line in lines:
            if any(sign in line for sign in SIGNS):
                self.tokens_ns.append(now_ns)
            if USAGE in line:
                self.tokens = int(line.partition(USAGE)[2].partition(b",")[0])
        if self._rest.endswith(LAST_CHUNK) and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionResetError("the engine has closed the connection"))


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[list[Ask]]:
    loop = asyncio.get_running_loop()
    wires = [(await loop.create_connection(Wire, "127.0.0.1", job.port))[1] for _ in range(job.concurrency)]
    requests = {}
    for marker in range(job.first_marker, job.first_marker + job.count):
        body = orjson.dumps(request_of(marker))
        requests[marker] = HEAD.format(port=job.port, length=len(body)).encode() + body

    def ask_with(wire: Wire) -> Ask:
        async def ask(marker: int) -> Seen:
            wire.begin(requests[marker])
            await wire.ended
            return Seen(marker, wire.started_ns, wire.tokens_ns, wire.tokens)

        return ask

    try:
        yield [ask_with(wire) for wire in wires]
    finally:
        for wire in wires:
            wire.ended.cancel()
            wire.transport.close()
