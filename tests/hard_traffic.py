"""Hard traffic: an engine and clients of raw bytes, the recorder as a process, and what is to be known of both.

The engine and the clients live in the test's own process. What happens to a request is a `Plan`, and the number of the
request (its `max_tokens`, which a record holds without any body) finds the plan on both sides.
"""

import asyncio
import os
import random
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import psutil

from profiles.capture_folder import segment_paths
from profiles.captures import Capture
from profiles.errors import FormatError
from profiles.files import lock_folder, read_lines

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60.0
POLL_S = 0.02  # between two looks at a condition
MAIN = "from firsttoken import main; main()"

STREAMS = ("chunked", "length", "closing", "messages")
KINDS = (*STREAMS, "json", "json chunked")
DONE = b"data: [DONE]\n\n"
PATHS = {"messages": b"/v1/messages"}


@dataclass(frozen=True)
class Plan:
    """What one request asks for and how it goes. Without cuts it is answered whole and its client reads to the end."""

    kind: str = "chunked"
    leaves: str | None = None  # the client: in its "upload", while "waiting", in mid-"stream", or "done" at its end
    breaks_at: int | None = None  # the engine: after so many pieces, 0 is before its headers
    reset: bool = False  # whoever breaks off does it with RST instead of FIN
    holds: bool = False  # the engine stops in mid-answer and waits for the end of the connection
    pieces: int = 3  # tokens of the answer
    pace_s: float = 0.0  # between two pieces
    prompt: str = "one two three"


def answer(plan: Plan, number: int) -> list[bytes]:
    """The pieces of the body that answers a request. Each holds the number, so that no two answers are alike."""
    usage = {"prompt_tokens": 3, "completion_tokens": plan.pieces}
    if plan.kind.startswith("json"):
        choice = {"message": {"content": f"answer {number}"}, "finish_reason": "stop"}
        whole = orjson.dumps({"object": "chat.completion", "choices": [choice], "usage": usage})
        return [whole] if plan.kind == "json" else [whole[:20], whole[20:]]
    if plan.kind == "messages":
        delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": f" {number}"}}
        tokens = [b"event: content_block_delta\ndata: %s\n\n" % orjson.dumps(delta)] * plan.pieces
        return [*tokens, b'event: message_stop\ndata: {"type":"message_stop"}\n\n']
    tokens = [b"data: %s\n\n" % orjson.dumps({"choices": [{"delta": {"content": f" {number}"}}]})] * plan.pieces
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}
    return [*tokens, b"data: %s\n\n" % orjson.dumps(last), DONE]


def head_of(plan: Plan, pieces: list[bytes]) -> bytes:
    """The head of an answer. Its framing is the plan's."""
    form = b"application/json" if plan.kind.startswith("json") else b"text/event-stream"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n" % form
    if plan.kind == "closing":
        return head + b"connection: close\r\n\r\n"
    if plan.kind in ("length", "json"):
        return head + b"content-length: %d\r\n\r\n" % sum(map(len, pieces))
    return head + b"transfer-encoding: chunked\r\n\r\n"


def is_chunked(plan: Plan) -> bool:
    return plan.kind not in ("closing", "length", "json")


class Engine:
    """An engine on a free port."""

    def __init__(self) -> None:
        self.port = 0
        self.plans: dict[int, Plan] = {}
        self.seen: set[int] = set()  # numbers of the requests that came through whole
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Engine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=256)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._exchange(reader, writer):
                pass
        self._serving.discard(task)
        await close(writer)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. True if the connection is good for another."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        asked = orjson.loads(await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0])))
        number = int(asked["max_tokens"])
        self.seen.add(number)
        plan = self.plans[number]
        pieces = answer(plan, number)
        if plan.breaks_at == 0:
            await close(writer, reset=plan.reset)
            return False
        data = head_of(plan, pieces)
        for at, piece in enumerate(pieces, start=1):
            writer.write(data + (b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked(plan) else piece))
            data = b""
            await asyncio.sleep(plan.pace_s)
            if at == plan.breaks_at:
                await close(writer, reset=plan.reset)
                return False
            if plan.holds:
                await reader.read(1)
                return False
        if is_chunked(plan):
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return plan.kind != "closing"


async def close(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    """End a connection from this side: with FIN, or with RST at once."""
    if reset:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


class Body:
    """The body of an answer, piece by piece as its framing ends it. b"" is the end."""

    def __init__(self, reader: asyncio.StreamReader, head: bytes) -> None:
        self._reader = reader
        self._chunked = b"transfer-encoding: chunked" in head.lower()
        _, said, rest = head.lower().partition(b"content-length:")
        self._left = int(rest.split()[0]) if said else None
        self.keeps_connection = self._chunked or self._left is not None

    async def piece(self) -> bytes:
        if self._chunked:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]
        if self._left is None:
            return await self._reader.read(65536)
        data = await self._reader.read(min(65536, self._left))
        self._left -= len(data)
        if not data and self._left:
            raise asyncio.IncompleteReadError(b"", self._left)
        return data


@dataclass
class Traffic:
    """Clients of one recorder, and what they saw of their requests, by number."""

    engine: Engine
    port: int
    plan: Callable[[], Plan] = Plan
    asked: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)  # the terminal piece was seen, and every byte before it was right
    broken: set[int] = field(default_factory=set)  # the connection ended in the middle
    refused: set[int] = field(default_factory=set)  # answered by the proxy: a status that the engine did not send
    wrong: list[str] = field(default_factory=list)  # bytes that the engine did not send
    gaps_s: dict[int, list[float]] = field(default_factory=dict)  # between the pieces of an answer
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    async def go_on(self, enough: Callable[[], bool], *, reconnects: bool = False) -> None:
        """One client in a closed loop, until there is enough or, if it does not reconnect, its connection breaks."""
        client = Client(self)
        try:
            while not enough():
                if not await client.ask(self.plan()) and not reconnects:
                    return
        finally:
            await client.leave()

    async def run(self, clients: int, enough: Callable[[], bool], *, reconnects: bool = False) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self.go_on(enough, reconnects=reconnects))

    async def send(self, requests: int, *, clients: int = 4) -> set[int]:
        """So many requests. Returns their numbers."""
        before, left = set(self.asked), iter(range(requests))
        await self.run(clients, lambda: next(left, None) is None, reconnects=True)
        return self.asked - before

    def untouched(self) -> None:
        """Fail unless every request was answered whole and byte for byte."""
        assert not self.wrong
        assert not self.refused
        assert not self.broken
        assert self.asked == self.whole


class Client:
    """A client's connection, made when it is needed and kept while both sides keep it."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._writer: asyncio.StreamWriter | None = None
        self._reader = asyncio.StreamReader()

    async def leave(self, *, reset: bool = False) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await close(writer, reset=reset)

    async def ask(self, plan: Plan) -> bool:
        """One request. False if its connection broke."""
        number = next(self._traffic.numbers)
        self._traffic.engine.plans[number] = plan
        self._traffic.asked.add(number)
        try:
            await self._exchange(plan, number)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._traffic.broken.add(number)
            await self.leave()
            return False
        return True

    async def _exchange(self, plan: Plan, number: int) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._traffic.port)
        asked = {"model": "m", "stream": plan.kind in STREAMS, "max_tokens": number}
        body = orjson.dumps(asked | {"messages": [{"role": "user", "content": plan.prompt}]})
        path = PATHS.get(plan.kind, b"/v1/chat/completions")
        head = b"POST %s HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n" % path
        head += b"content-length: %d\r\n\r\n" % len(body)
        self._writer.write(head + (body[: len(body) // 2] if plan.leaves == "upload" else body))
        await self._writer.drain()
        if plan.leaves in ("upload", "waiting"):
            await self.leave(reset=plan.reset)
        else:
            await self._read(plan, number)

    async def _read(self, plan: Plan, number: int) -> None:
        traffic, clock = self._traffic, asyncio.get_running_loop().time
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            traffic.refused.add(number)
            await self.leave()
            return
        body = Body(self._reader, head)
        expected, got, gaps, before_s = b"".join(answer(plan, number)), b"", [], clock()
        while piece := await body.piece():
            got += piece
            now_s = clock()
            gaps.append(now_s - before_s)
            before_s = now_s
            if plan.leaves == "stream":
                await self.leave(reset=plan.reset)
                break
            if got == expected and plan.kind in STREAMS:
                traffic.whole.add(number)  # a stream is whole at its terminal event, whatever comes after it
                if plan.leaves == "done":
                    await self.leave(reset=plan.reset)
                    break
        if not expected.startswith(got):
            traffic.wrong.append(f"{number}: {got[-200:]!r}")
        elif got == expected:
            traffic.whole.add(number)
        elif plan.leaves != "stream":
            traffic.broken.add(number)  # only the end of a connection can end such a body too early
        traffic.gaps_s[number] = gaps
        if not body.keeps_connection:
            await self.leave()


@dataclass
class Recording:
    """A recorder process, and the process beside it that writes."""

    process: asyncio.subprocess.Process
    port: int
    out: Path
    scribes: list[psutil.Process] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""

    def scribe(self) -> psutil.Process:
        """The child that writes. A new one, if the last was lost."""
        found = [child for child in psutil.Process(self.process.pid).children() if child not in self.scribes]
        alive = [child for child in found if child.status() != psutil.STATUS_ZOMBIE]
        assert len(alive) == 1, f"expected one new scribe, found {alive}"
        self.scribes += alive
        return alive[0]

    async def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal, wait until nothing writes any more. Returns the exit code."""
        with suppress(ProcessLookupError):  # it was killed before
            self.process.send_signal(number)
        out, err = await asyncio.wait_for(self.process.communicate(), PATIENCE_S)
        self.stdout += out.decode(errors="replace")
        self.stderr += err.decode(errors="replace")
        await until(lambda: not self.out.exists() or is_free(self.out), "the capture to be given back")
        assert self.process.returncode is not None
        return self.process.returncode


class RefusedError(Exception):
    """The recorder did not start: its exit code, and what it said."""


@asynccontextmanager
async def recording(
    upstream_port: int, out: Path, *options: str, code: str = MAIN, path: Iterable[Path] = ()
) -> AsyncIterator[Recording]:
    """`firsttoken record` in front of a port, until the block ends. It begins when the process says that it listens."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), "PYTHONUNBUFFERED": "1"}
    upstream = f"http://127.0.0.1:{upstream_port}"
    arguments = ("record", "--upstream", upstream, "--listen", "127.0.0.1:0", "--out", str(out), *options)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdout=-1, stderr=-1, env=environment
    )
    assert process.stderr is not None
    said = ""
    run = None
    try:
        while "Recording http://" not in said:
            line = await asyncio.wait_for(process.stderr.readline(), PATIENCE_S)
            if not line:
                raise RefusedError(await process.wait(), said)
            said += line.decode(errors="replace")
        address = said.partition("Recording http://")[2].split()[0]
        run = Recording(process, int(address.rpartition(":")[2]), out, stderr=said)
        yield run
    finally:
        for scribe in run.scribes if run is not None else ():
            with suppress(psutil.NoSuchProcess):
                scribe.send_signal(signal.SIGCONT)
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def until(true: Callable[[], object], what: str) -> None:
    """Wait for a condition that is not ours to wake us for."""
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    while not true():
        assert asyncio.get_running_loop().time() < deadline_s, f"waited in vain for {what}"
        await asyncio.sleep(POLL_S)


def is_free(out: Path) -> bool:
    """Whether nothing records into a capture any more."""
    try:
        lock = lock_folder(out)
    except FileNotFoundError:
        return True
    if lock is not None:
        os.close(lock)
    return lock is not None


def lines_of(out: Path) -> Iterator[dict[str, Any]]:
    """Every finished line of a capture, also while it is written."""
    for path in segment_paths(out) if out.is_dir() else ():
        with suppress(FormatError):  # it was compressed and removed since we listed it
            for _, data in read_lines(path):
                yield orjson.loads(data)


def numbers_of(capture: Capture) -> Counter[int]:
    """How often each number has an end. An end whose request was not read has no number."""
    numbers = (exchange.request.max_tokens for exchange in capture.exchanges)
    return Counter(number for number in numbers if number is not None)


def newest_of(out: Path) -> int:
    """The highest number that a capture holds, also while it is written."""
    return max(((line.get("request") or {}).get("max_tokens") or 0 for line in lines_of(out)), default=0)


def mixed(rng: random.Random, prompt: str = "one two three") -> Callable[[], Plan]:
    """Plans of every kind of body, some with clients that hang up at the terminal event."""

    def plan() -> Plan:
        kind = rng.choice(KINDS)
        leaves = "done" if kind in STREAMS and rng.random() < 0.3 else None
        return Plan(kind, leaves=leaves, reset=rng.random() < 0.5, pieces=rng.randint(1, 6), prompt=prompt)

    return plan
