"""The connection under httpx, over a real socket: one read is one instant, and errors keep their kind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from profiles.records import Outcome
from profiles.units import SECOND_NS
from replay.client import Planned, Slot
from replay.clock import SystemClock

pytestmark = pytest.mark.process
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'

type Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def token(text: str) -> bytes:
    return f'data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}\n\n'.encode()


def chunk(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return await reader.readexactly(length)


async def ask(serve: Serve, times: int = 1, body: bytes = b"{}", timeout_s: float = 10) -> list[Outcome]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            await reader.read()  # keep it open until the client closes
        finally:
            writer.close()  # else the server waits for it for good

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        slot = Slot(f"http://127.0.0.1:{port}", SystemClock(), timeout_ns=round(timeout_s * SECOND_NS))
        try:
            return [
                await slot.send(Planned("w", 1, index, 0, "chat", "/v1/chat/completions", body))
                for index in range(times)
            ]
        finally:
            await slot.close()


def test_events_of_one_read_share_its_instant_and_are_counted_as_coalesced() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(ROLE, token("a"), token("b"), token("c"), END, b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()

    (outcome,) = asyncio.run(ask(serve))
    facts = outcome.response
    assert outcome.outcome == "ok"
    assert facts.token_gaps_ns == [0, 0]
    assert facts.coalesced == 2
    assert facts.first_byte_ns == facts.first_token_ns  # the headers came in the same read, and do not delay it
    assert outcome.headers_ns is not None
    assert facts.first_token_ns is not None
    assert facts.first_token_ns <= outcome.headers_ns


def test_a_connection_is_used_again_and_a_closed_one_is_not() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):  # then the engine closes, as one with a keep-alive limit does
            try:
                await read_request(reader)
            except asyncio.IncompleteReadError:
                return
            writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n")
            await writer.drain()
        writer.close()

    outcomes = asyncio.run(ask(serve, times=4))
    assert [outcome.outcome for outcome in outcomes] == ["ok"] * 4
    assert connections == 2


def test_a_connection_that_the_engine_closed_right_behind_its_answer_is_not_used_again() -> None:
    """llama.cpp closes a connection five seconds old at the end of an answer; the loop has not seen it yet."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n")
        writer.write_eof()

    outcomes = asyncio.run(ask(serve, times=20))
    assert [outcome.outcome for outcome in outcomes] == ["ok"] * 20


def test_a_request_that_lost_the_keep_alive_race_is_sent_again_and_says_so() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")  # the next request is under way when the engine closes
        writer.transport.abort()

    outcomes = asyncio.run(ask(serve, times=3))
    assert [(outcome.outcome, outcome.resent) for outcome in outcomes] == [("ok", 0), ("ok", 1), ("ok", 1)]


def test_a_fresh_connection_that_closes_without_an_answer_is_a_failure() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.transport.abort()

    (outcome,) = asyncio.run(ask(serve))
    assert (outcome.outcome, outcome.resent) == ("incomplete", 0)


def test_a_large_body_is_sent_whole() -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n")
        await writer.drain()

    body = b'{"text":"' + b"x" * 3_000_000 + b'"}'
    (outcome,) = asyncio.run(ask(serve, body=body))
    assert outcome.outcome == "ok"
    assert received == [body]


def test_a_reset_in_the_stream_is_incomplete_and_keeps_its_first_token() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(token("a")))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()

    (outcome,) = asyncio.run(ask(serve))
    assert (outcome.outcome, outcome.origin) == ("incomplete", "engine")
    assert outcome.response.first_token_ns is not None


def test_silence_ends_at_the_limit() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()  # until the client gives up

    (outcome,) = asyncio.run(ask(serve, timeout_s=0.3))
    assert outcome.outcome == "timeout"


def test_a_refused_connection_is_an_error_of_the_engine() -> None:
    async def main() -> Outcome:
        server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        slot = Slot(f"http://127.0.0.1:{port}", SystemClock(), timeout_ns=SECOND_NS)
        return await slot.send(Planned("w", 1, 0, 0, "chat", "/v1/chat/completions", b"{}"))

    outcome = asyncio.run(main())
    assert (outcome.outcome, outcome.status) == ("error", None)
    assert outcome.reason is not None
    assert outcome.reason.startswith("cannot connect")
