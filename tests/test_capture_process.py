"""The recorder as a process: a stub engine behind it, raw clients in front of it, and what is in its files afterwards.

Nothing here waits for a time to pass. The engine holds a piece back until the client says that it has the one before,
so a proxy that buffers cannot pass, and a slow machine only makes the test slow.
"""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import orjson
import pytest

from profiles.captures import Capture, read_capture
from profiles.records import Exchange

ROOT = Path(__file__).parent.parent
PATIENCE_S = 30.0

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"SEEDED ANSWER"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = ROLE + TOKEN + TOKEN + LAST + DONE
JSON = b'{"object":"chat.completion","choices":[{"message":{"content":"SEEDED ANSWER"},"finish_reason":"stop"}]}'


class Engine:
    """An engine on a free port. The `model` of a request names what it does."""

    def __init__(self) -> None:
        self.port = 0
        self.bodies: list[bytes] = []
        self.left = asyncio.Event()  # a client, or the recorder for it, has gone in mid-stream
        self._gates: dict[str, asyncio.Event] = {}
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def gate(self, name: str) -> asyncio.Event:
        """What the engine waits for before it goes on."""
        return self._gates.setdefault(name, asyncio.Event())

    async def __aenter__(self) -> "Engine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while True:
                head, body = await read_message(reader)
                self.bodies.append(body)
                await self._answer(head, body, writer, reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        except asyncio.CancelledError:
            pass  # the server would report it as a failure
        finally:
            self._serving.discard(task)
            await close(writer)

    async def _answer(
        self, head: bytes, body: bytes, writer: asyncio.StreamWriter, reader: asyncio.StreamReader
    ) -> None:
        model = orjson.loads(body)["model"] if body.startswith(b"{") else "json"
        if head.startswith(b"GET") or model == "json":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n%s" % (len(JSON), JSON))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if model == "flood":
            for piece in (ROLE, TOKEN, TOKEN, LAST, DONE):
                writer.write(chunk(piece))
                await asyncio.sleep(0)
        else:
            writer.write(chunk(ROLE) + chunk(TOKEN))
            if model in ("held", "left"):
                await reader.read(1)  # the end of the connection: nothing else comes
                raise ConnectionError
            await self.gate(model).wait()
            if model == "reset":
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                raise ConnectionError
            writer.write(chunk(TOKEN + LAST) + chunk(DONE))
            await self.gate(f"{model} done").wait()
        writer.write(b"0\r\n\r\n")


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of a message with a content-length, or without a body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head, await reader.readexactly(length)


class Client:
    """One connection of a client. The body of a chunked answer is read piece by piece."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await close(self.writer)

    async def ask(self, model: str, *, number: int = 1, body: bytes | None = None, method: str = "POST") -> bytes:
        """Send a request with secrets in every place; return the head of the answer."""
        asked = {"model": model, "stream": True, "max_tokens": number, "prompt": "SEEDED PROMPT"}
        body = orjson.dumps(asked) if body is None else body
        path = "/v1/completions?api_key=SEEDED" if method == "POST" else "/health"
        head = f"{method} {path} HTTP/1.1\r\nhost: engine\r\nauthorization: Bearer SEEDED\r\n"
        self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return await self.reader.readuntil(b"\r\n\r\n")

    async def until(self, wanted: bytes) -> bytes:
        """Read chunks until the body ends with `wanted`."""
        body = b""
        while not body.endswith(wanted):
            piece = await self.chunk()
            assert piece, f"the body ended before {wanted!r}"
            body += piece
        return body

    async def rest(self) -> bytes:
        body = b""
        while piece := await self.chunk():
            body += piece
        return body

    async def chunk(self) -> bytes:
        """The next chunk; b"" is the end of the body."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]


@dataclass
class Recording:
    """A recorder process and what it said."""

    process: asyncio.subprocess.Process
    port: int
    stdout: str = ""
    stderr: str = ""

    async def stop(self, number: int) -> int:
        """Send a signal and wait for the end. Returns the exit code."""
        self.process.send_signal(number)
        out, err = await asyncio.wait_for(self.process.communicate(), PATIENCE_S)
        self.stdout, self.stderr = out.decode(), self.stderr + err.decode()
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def recording(code: str, *options: str, sign: str = "Recording http://") -> AsyncIterator[Recording]:
    """Run Python `code` with options, until the block ends. It begins when the process says where it listens."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *options, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        said = ""
        while sign not in said:
            source = process.stderr if sign.startswith("Recording") else process.stdout
            line = await asyncio.wait_for(source.readline(), PATIENCE_S)
            assert line, said
            said += line.decode()
        yield Recording(process, int(said.partition(sign)[2].split()[0].rpartition(":")[2].rstrip(".")), stderr=said)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def recorder(engine: Engine, out: Path, *options: str) -> AbstractAsyncContextManager[Recording]:
    upstream = f"http://127.0.0.1:{engine.port}"
    arguments = ("--upstream", upstream, "--listen", "127.0.0.1:0", "--out", str(out), *options)
    return recording("from capture.cli import record; record()", *arguments)


def by_model(capture: Capture) -> dict[str | None, Exchange]:
    return {exchange.request.model: exchange for exchange in capture.exchanges}


def stored(out: Path) -> bytes:
    return b"".join(path.read_bytes() for path in out.iterdir())


@dataclass
class Day:
    """One recorder, one of everything."""

    out: Path
    code: int = -1
    stdout: str = ""
    stderr: str = ""
    saw: dict[str, bytes] = field(default_factory=dict)
    ends_at_done: int = 0

    @property
    def exchanges(self) -> dict[str | None, Exchange]:
        return by_model(read_capture(self.out))


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    day = Day(tmp_path_factory.mktemp("day") / "c")
    asyncio.run(asyncio.wait_for(live(day), 3 * PATIENCE_S))
    return day


async def live(day: Day) -> None:
    engine = Engine()
    async with engine, recorder(engine, day.out) as run, Client(run.port) as client:
        # A stream whose second half is sent only when the client has the first.
        await client.ask("streamed")
        body = await client.until(TOKEN)
        engine.gate("streamed").set()
        body += await client.until(DONE)
        # The engine holds back the end of the chunks: the record waits for no more than the terminal event.
        # The scribe is another process, which can tell us nothing but by its file.
        while not (ends := stored(day.out).count(b'"line":"end"')):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        day.ends_at_done = ends
        engine.gate("streamed done").set()
        day.saw["streamed"] = body + await client.rest()

        await client.ask("json")
        day.saw["json"] = await client.reader.readexactly(len(JSON))
        await client.ask("", method="GET", body=b"")
        day.saw["health"] = await client.reader.readexactly(len(JSON))

        # Two at once: one leaves when it has its terminal event, the other in mid-stream.
        async with Client(run.port) as leaver:
            await leaver.ask("left")
            await leaver.until(TOKEN)
            async with Client(run.port) as sated:
                await sated.ask("sated")
                engine.gate("sated").set()
                await sated.until(DONE)
            engine.left.clear()
        await engine.left.wait()

        async with Client(run.port) as broken:
            await broken.ask("reset")
            await broken.until(TOKEN)
            engine.gate("reset").set()
            day.saw["after reset"] = await broken.reader.read()

        await engine.__aexit__()
        async with Client(run.port) as early:
            day.saw["down"] = await early.ask("down")

        async with engine, Client(run.port) as held:
            await held.ask("held")
            await held.until(TOKEN)
            day.code = await run.stop(signal.SIGINT)
        day.stdout, day.stderr = run.stdout, run.stderr


pytestmark = pytest.mark.process


def test_a_stream_is_passed_on_as_it_comes_and_byte_for_byte(day: Day) -> None:
    assert day.saw["streamed"] == WHOLE
    assert day.saw["json"] == day.saw["health"] == JSON


def test_the_record_waits_for_the_terminal_event_alone(day: Day) -> None:
    assert day.ends_at_done == 1


def test_a_stream_has_its_instants_and_its_usage(day: Day) -> None:
    streamed = day.exchanges["streamed"]
    response = streamed.response
    assert (streamed.outcome, streamed.endpoint, streamed.path) == ("ok", "completions", "/v1/completions")
    assert (response.prompt_tokens, response.output_tokens, response.token_events) == (3, 2, 2)
    assert response.body_bytes == len(WHOLE)
    instants = [
        streamed.arrival_ns,
        streamed.dispatch_ns,
        streamed.headers_ns,
        response.first_byte_ns,
        response.first_token_ns,
        response.last_token_ns,
        streamed.end_ns,
    ]
    assert None not in instants
    assert instants == sorted(instants)  # type: ignore[type-var]  # None was excluded
    assert response.first_token_ns is not None
    assert response.last_token_ns is not None
    assert response.last_token_ns > response.first_token_ns


@pytest.mark.parametrize(
    ("model", "status", "outcome", "origin"),
    [
        ("streamed", 200, "ok", None),
        ("json", 200, "ok", None),
        ("left", 200, "cancelled_by_client", "client"),
        ("sated", 200, "ok", None),
        ("reset", 200, "incomplete", "engine"),
        ("down", 502, "error", "engine"),
        ("held", 200, "cancelled", "proxy"),
    ],
)
def test_each_request_has_the_outcome_that_it_had(
    day: Day, model: str, status: int | None, outcome: str, origin: str | None
) -> None:
    exchange = day.exchanges[model]
    assert (exchange.status, exchange.outcome, exchange.origin) == (status, outcome, origin)


def test_an_engine_that_is_down_gives_the_client_a_clean_502(day: Day) -> None:
    assert day.saw["down"].startswith(b"HTTP/1.1 502 ")
    assert b"content-type: application/json" in day.saw["down"]
    assert day.exchanges["down"].reason == "engine unreachable"


def test_an_engine_that_breaks_off_leaves_the_client_with_an_unfinished_body(day: Day) -> None:
    assert day.saw["after reset"] == b""


def test_concurrency_is_what_it_was(day: Day) -> None:
    assert {model: exchange.in_flight for model, exchange in day.exchanges.items()} == {
        "streamed": 0,
        "json": 0,
        "left": 0,
        "sated": 1,
        "reset": 0,
        "down": 0,
        "held": 0,
    }


def test_ctrl_c_is_a_clean_stop(day: Day) -> None:
    assert day.code == 0
    assert day.stdout == f"{day.out}\n"
    assert "no text is stored" in day.stderr
    assert "7 requests" in day.stderr
    assert "sum of k x T_k = sum of durations, exactly" in day.stderr.replace("×", "x")
    assert "Traceback" not in day.stderr
    capture = read_capture(day.out)
    assert len(capture.windows) == 1
    assert capture.open == []
    manifest = capture.manifest
    assert (manifest["requests"], manifest["written"], manifest["closed"], manifest["errors"]) == (7, 7, True, {})


def test_no_secret_is_anywhere_in_the_capture_or_in_what_was_said(day: Day) -> None:
    assert b"SEEDED" not in stored(day.out)
    assert "SEEDED" not in day.stdout + day.stderr


def test_a_kill_under_load_loses_nothing_that_a_client_saw_whole(tmp_path: Path) -> None:
    out = tmp_path / "c"
    asyncio.run(asyncio.wait_for(kill_and_go_on(out), 4 * PATIENCE_S))


async def kill_and_go_on(out: Path) -> None:
    whole: set[int] = set()
    numbers = count(1)
    enough = asyncio.Event()

    async def ask_on(port: int) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            async with Client(port) as client:
                while True:
                    number = next(numbers)
                    await client.ask("flood", number=number)
                    assert await client.until(DONE) == WHOLE
                    whole.add(number)  # the terminal event is all that a client needs to see
                    if len(whole) >= 60:
                        enough.set()
                    await client.rest()

    async with Engine() as engine:
        async with recorder(engine, out) as run, asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(ask_on(run.port))
            await enough.wait()
            assert await run.stop(signal.SIGKILL) == -signal.SIGKILL
        killed = read_capture(out)
        recorded = {exchange.request.max_tokens for exchange in killed.exchanges if exchange.outcome == "ok"}
        assert whole <= recorded
        assert len(killed.exchanges) + len(killed.open) <= len(whole) + 8

        # The same capture, taken up after the kill with a torn line in it, now with bodies.
        with (out / "segment-000001.jsonl").open("ab") as file:
            file.write(b'{"line":"end","id":"torn')
        odd = b'{"model":"held", \n "max_tokens":1,"prompt":"\xc3\xa9\\u00e9"}\n'
        async with recorder(engine, out, "--bodies", "full") as run, Client(run.port) as client:
            await client.ask("held", body=odd)
            await client.until(TOKEN)
            assert await run.stop(signal.SIGTERM) == 0
            assert "request bodies are stored" in run.stderr
    assert engine.bodies[-1] == odd
    capture = read_capture(out)
    assert capture.torn == 0
    assert len(capture.windows) == 2
    last = capture.exchanges[-1]
    assert (last.outcome, last.origin, capture.bodies[-1]) == ("cancelled", "proxy", odd)
    assert len({exchange.id for exchange in capture.exchanges}) == len(killed.exchanges) + 1
    assert len(capture.open) == len(killed.open)


def test_the_same_addon_records_in_a_stock_mitmdump(tmp_path: Path) -> None:
    out = tmp_path / "c"
    asyncio.run(asyncio.wait_for(record_in_mitmdump(out), 3 * PATIENCE_S))
    capture = read_capture(out)
    (streamed,) = capture.exchanges
    assert (streamed.outcome, streamed.response.output_tokens) == ("ok", 2)
    assert capture.manifest["closed"] is True
    assert len(capture.bodies) == 1
    assert capture.bodies[0] is not None
    assert b"SEEDED PROMPT" in capture.bodies[0]
    assert b"Bearer" not in stored(out)


async def record_in_mitmdump(out: Path) -> None:
    async with Engine() as engine:
        options = ["-s", str(ROOT / "capture" / "addon.py"), "--mode", f"reverse:http://127.0.0.1:{engine.port}"]
        options += ["--listen-host", "127.0.0.1", "--listen-port", "0", "--set", f"confdir={out.parent}"]
        options += ["--set", f"firsttoken_out={out}", "--set", "firsttoken_bodies=full"]
        code = "from mitmproxy.tools.main import mitmdump; mitmdump()"
        async with recording(code, *options, sign=" listening at ") as run, Client(run.port) as client:
            await client.ask("streamed")
            await client.until(TOKEN)
            engine.gate("streamed").set()
            engine.gate("streamed done").set()
            await client.rest()
            assert await run.stop(signal.SIGINT) == 0


def test_a_stock_mitmdump_does_not_start_without_a_place_to_record(tmp_path: Path) -> None:
    code = "from mitmproxy.tools.main import mitmdump; mitmdump()"
    options = ["-s", str(ROOT / "capture" / "addon.py"), "--listen-port", "0", "--mode", "reverse:http://127.0.0.1:1"]
    options += ["--set", f"confdir={tmp_path}"]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "say where to record with --set firsttoken_out=DIRECTORY" in done.stdout + done.stderr
