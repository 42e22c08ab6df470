"""A light closed-loop client on raw connections. Each line of stdin is a job, each line of stdout its batch.

While a job runs it only stamps and keeps what it reads. Answers are decoded and checked after the last one has ended.
"""

import asyncio
import gc
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import cast

import msgspec

from benchmarks.capture.jobs import Batch, Job
from benchmarks.capture.loops import go_first, new_loop
from benchmarks.capture.shapes import MARK, PATH, STAMP, dechunk, request_body, whole_answer, without_instants

HOST = "127.0.0.1"
LAST_CHUNK = b"0\r\n\r\n"  # no event holds a carriage return, so this ends a body and nothing else


class Answer:
    """One exchange as it was read: the bytes, and when how many of them were there."""

    def __init__(self, started_ns: int) -> None:
        self.started_ns = started_ns
        self.first_token_ns: int | None = None
        self.ended_ns: int | None = None
        self.raw = bytearray()
        self.read_until: list[int] = []  # the length of `raw` after each read
        self.read_ns: list[int] = []  # the instant of each read
        self._whole_bytes: int | None = None  # of head and body, where the head tells
        self._head_bytes = 0

    def read(self, data: bytes, now_ns: int) -> bool:
        """Take what was read. True when the answer is complete."""
        self.raw += data
        self.read_until.append(len(self.raw))
        self.read_ns.append(now_ns)
        if self.first_token_ns is None and MARK in self.raw:
            self.first_token_ns = now_ns
        if not self._head_bytes:
            self._read_head()
        if self._whole_bytes is not None:
            complete = len(self.raw) >= self._whole_bytes
        else:
            complete = self._head_bytes > 0 and self.raw.endswith(LAST_CHUNK)
        if complete:
            self.ended_ns = now_ns
        return complete

    def _read_head(self) -> None:
        end = self.raw.find(b"\r\n\r\n")
        if end >= 0:
            self._head_bytes = end + 4
            for line in bytes(self.raw[:end]).lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    self._whole_bytes = self._head_bytes + int(line[15:])

    def fault(self, expected: bytes) -> str | None:
        """What is wrong with it, None if nothing."""
        if self.ended_ns is None or self.first_token_ns is None:
            return "cut" if self.raw else "no answer"
        if not self.raw.startswith(b"HTTP/1.1 200 "):
            return "not a 200"
        body = bytes(self.raw[self._head_bytes :])
        try:
            decoded = body if self._whole_bytes is not None else dechunk(body)
        except ValueError:
            return "broken chunks"
        return None if without_instants(decoded) == expected else "other bytes"

    def transits_ns(self) -> list[int]:
        """From the engine's send of each token event to the read that completed its stamp."""
        found = STAMP.finditer(self.raw)
        return [self.read_ns[bisect_left(self.read_until, stamp.end())] - int(stamp[1]) for stamp in found]


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self.closed = False
        self._answer: Answer | None = None
        self._ended: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: transports of uvloop are none by class.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if self._answer is None:
            self.transport.close()  # nothing was asked: this connection cannot be trusted
        elif self._answer.read(data, now_ns):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._end()

    def _end(self) -> None:
        self._answer = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def ask(self, request: bytes, answer: Answer) -> None:
        """Send a request and wait until its answer is complete or the connection is lost."""
        self._answer = answer
        self._ended = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        if self.closed:
            return
        await self._ended


class Client:
    """Plays jobs. Connections of jobs that keep them stay open from job to job, by port."""

    def __init__(self) -> None:
        self._idle: defaultdict[int, list[Connection]] = defaultdict(list)

    async def play(self, job: Job) -> Batch:
        body = request_body(job.body_bytes)
        request = encode_request(job, body)
        answers: list[Answer] = []
        left = iter(range(job.count))

        async def work() -> None:
            for _ in left:
                await self._exchange(job, request, answers)

        if job.keep:
            await self._fill(job)
        gc.collect()
        gc.disable()
        begun_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(job.limit_s), asyncio.TaskGroup() as tasks:
                for _ in range(min(job.concurrency, job.count)):
                    tasks.create_task(work())
        except TimeoutError:
            pass  # the answers that did not end are counted as cut
        finally:
            gc.enable()
        return summarise(answers, job, whole_answer(job.shape, len(body)), time.monotonic_ns() - begun_ns)

    async def _exchange(self, job: Job, request: bytes, answers: list[Answer]) -> None:
        answer = Answer(time.monotonic_ns())
        answers.append(answer)
        connection = self._take(job.port) if job.keep else None
        try:
            if connection is None:
                _, connection = await asyncio.get_running_loop().create_connection(Connection, HOST, job.port)
            if job.keep:
                answer.started_ns = time.monotonic_ns()
            await connection.ask(request, answer)
        except OSError:
            return  # counted as no answer
        finally:
            if connection is not None:
                self._let_go(job, connection, complete=answer.ended_ns is not None)

    def _take(self, port: int) -> Connection | None:
        idle = self._idle[port]
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        return None

    def _let_go(self, job: Job, connection: Connection, *, complete: bool) -> None:
        if not complete:
            connection.transport.abort()
        elif job.keep:
            self._idle[job.port].append(connection)
        else:
            connection.transport.close()

    async def _fill(self, job: Job) -> None:
        """Open what a job lacks before its clock starts."""
        idle = self._idle[job.port] = [one for one in self._idle[job.port] if not one.closed]
        while len(idle) < min(job.concurrency, job.count):
            try:
                _, connection = await asyncio.get_running_loop().create_connection(Connection, HOST, job.port)
            except OSError:
                return
            idle.append(connection)


def encode_request(job: Job, body: bytes) -> bytes:
    return (
        f"POST {PATH}?{job.shape.query} HTTP/1.1\r\nHost: {HOST}:{job.port}\r\nUser-Agent: benchmark\r\n"
        f"Accept: */*\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def summarise(answers: list[Answer], job: Job, expected: bytes, wall_ns: int) -> Batch:
    """Check every answer and keep the times of those that are right."""
    wrong: Counter[str] = Counter()
    ttft_ns: list[int] = []
    duration_ns: list[int] = []
    transits_ns: list[int] = []
    for answer in answers:
        fault = answer.fault(expected)
        if fault is not None or answer.first_token_ns is None or answer.ended_ns is None:
            wrong[fault or "cut"] += 1
            continue
        ttft_ns.append(answer.first_token_ns - answer.started_ns)
        duration_ns.append(answer.ended_ns - answer.started_ns)
        transits_ns += answer.transits_ns()
    if len(answers) < job.count:
        wrong["not sent"] += job.count - len(answers)
    transits_ns.sort()
    quantiles = [transits_ns[len(transits_ns) * share // 100] for share in (10, 50, 90)] if transits_ns else []
    return Batch(wall_ns, ttft_ns, duration_ns, quantiles, dict(wrong))


async def serve() -> None:
    loop = asyncio.get_running_loop()
    client = Client()
    gc.freeze()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        batch = await client.play(msgspec.json.decode(line, type=Job))
        print(msgspec.json.encode(batch).decode(), flush=True)


def main() -> None:
    go_first()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
