"""The connection under httpx, over a real socket: one read is one instant, and errors keep their kind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from profiles.records import Outcome
from profiles.units import MILLISECOND_NS
from replay.client import Planned, Slot, Timeouts
from replay.clock import SystemClock, fine_event_loop
from replay.connection import PAUSE_AT_BYTES
from replay.wire import StampedTransport

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


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[str]:
    """The address of a server that answers with `serve` on each connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            await reader.read()  # keep it open until the client closes
        finally:
            writer.close()  # else the server waits for it for good

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def run[T](main: Coroutine[Any, Any, T]) -> T:
    """On the loop of a replay."""
    return asyncio.run(main, loop_factory=fine_event_loop)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what it waits for sets no event
        await asyncio.sleep(0.005)


def planned(index: int = 0, body: bytes = b"{}") -> Planned:
    return Planned("w", 1, index, 0, "chat", "/v1/chat/completions", body)


async def ask(
    serve: Serve,
    times: int = 1,
    body: bytes = b"{}",
    timeouts: Timeouts = Timeouts(),  # noqa: B008  # it cannot be changed
    transport: httpx.AsyncBaseTransport | None = None,
) -> list[Outcome]:
    async with served(serve) as url:
        slot = Slot(url, SystemClock(), timeouts=timeouts, transport=transport)
        try:
            return [await slot.send(planned(index, body)) for index in range(times)]
        finally:
            await slot.close()


def test_events_of_one_read_share_its_instant_and_are_counted_as_coalesced() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(ROLE, token("a"), token("b"), token("c"), END, b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()

    (outcome,) = run(ask(serve))
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

    outcomes = run(ask(serve, times=4))
    assert [outcome.outcome for outcome in outcomes] == ["ok"] * 4
    assert connections == 2


def test_a_connection_that_the_engine_closed_right_behind_its_answer_is_not_used_again() -> None:
    """llama.cpp closes a connection five seconds old at the end of an answer; the loop has not seen it yet."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n")
        writer.write_eof()

    outcomes = run(ask(serve, times=20))
    assert [outcome.outcome for outcome in outcomes] == ["ok"] * 20


def test_a_request_that_lost_the_keep_alive_race_is_sent_again_and_says_so() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")  # the next request is under way when the engine closes
        writer.transport.abort()

    outcomes = run(ask(serve, times=3))
    assert [(outcome.outcome, outcome.resent) for outcome in outcomes] == [("ok", 0), ("ok", 1), ("ok", 1)]


def test_a_fresh_connection_that_closes_without_an_answer_is_a_failure() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.transport.abort()

    (outcome,) = run(ask(serve))
    assert (outcome.outcome, outcome.resent) == ("incomplete", 0)


def test_a_large_body_is_sent_whole() -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n")
        await writer.drain()

    body = b'{"text":"' + b"x" * 3_000_000 + b'"}'
    (outcome,) = run(ask(serve, body=body))
    assert outcome.outcome == "ok"
    assert received == [body]


def test_a_reset_in_the_stream_is_incomplete_and_keeps_its_first_token() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(token("a")))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()

    (outcome,) = run(ask(serve))
    assert (outcome.outcome, outcome.origin) == ("incomplete", "engine")
    assert outcome.response.first_token_ns is not None


def test_silence_ends_at_the_limit() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()  # until the client gives up

    (outcome,) = run(ask(serve, timeouts=Timeouts(total_ns=300 * MILLISECOND_NS)))
    assert (outcome.outcome, outcome.reason) == ("timeout", "no end within 0.3 s")


def test_a_refused_connection_is_an_error_of_the_engine() -> None:
    async def main() -> Outcome:
        server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        slot = Slot(f"http://127.0.0.1:{port}", SystemClock(), timeouts=Timeouts())
        return await slot.send(planned())

    outcome = run(main())
    assert (outcome.outcome, outcome.status) == ("error", None)
    assert outcome.reason is not None
    assert outcome.reason.startswith("cannot connect")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A short good answer to each request of a connection."""
    while True:
        try:
            await read_request(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        writer.write(HEAD + chunk(ROLE, token("a"), END) + b"0\r\n\r\n")
        await writer.drain()


def test_the_instants_of_a_request_stand_in_their_order() -> None:
    (outcome,) = run(ask(answer))
    facts = outcome.response
    instants = [outcome.send_started_ns, outcome.send_done_ns, outcome.headers_ns, facts.last_byte_ns, outcome.end_ns]
    assert None not in instants
    assert instants == sorted(instants, key=lambda instant: instant or 0)


def test_an_answer_that_comes_byte_by_byte_is_the_same_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for byte in HEAD + chunk(ROLE, token("a"), token("b"), END, b"data: [DONE]\n\n") + b"0\r\n\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0)

    (outcome,) = run(ask(serve))
    facts = outcome.response
    assert (outcome.outcome, facts.token_events, facts.output_tokens, facts.malformed) == ("ok", 2, 4, 0)


def test_an_engine_that_says_goodbye_gets_a_new_connection_each_time() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(
            HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + chunk(token("a"), END) + b"0\r\n\r\n"
        )
        writer.close()

    transport = StampedTransport(SystemClock())
    outcomes = run(ask(serve, times=3, transport=transport))
    assert [(outcome.outcome, outcome.resent) for outcome in outcomes] == [("ok", 0)] * 3
    assert transport.connections == 3


def test_what_is_said_unasked_behind_an_answer_never_answers_the_next_request() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        stray = b"HTTP/1.1 500 Late\r\ncontent-length: 0\r\n\r\n"
        writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n" + stray)

    outcomes = run(ask(serve, times=2))
    assert [(outcome.outcome, outcome.status) for outcome in outcomes] == [("ok", 200)] * 2


def test_a_body_that_is_refused_before_it_came_whole_is_a_refusal() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    # More than both buffers of the kernel hold.
    outcomes = run(ask(serve, times=2, body=b" " * 30_000_000))
    assert [(outcome.outcome, outcome.reason) for outcome in outcomes] == [("error", "HTTP 413")] * 2
    assert outcomes[0].send_done_ns is None


def test_a_body_that_nobody_takes_is_a_timeout_of_its_own_stage() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport has it
        await asyncio.sleep(1)
        writer.transport.abort()

    timeouts = Timeouts(write_ns=200 * MILLISECOND_NS)
    (outcome,) = run(ask(serve, body=b" " * 30_000_000, timeouts=timeouts))
    assert (outcome.outcome, outcome.origin) == ("timeout", "engine")
    assert outcome.reason == "the engine took nothing of the body for 0.2 s"
    assert outcome.send_done_ns is None


def test_garbage_in_a_stream_is_incomplete_and_keeps_what_came_before() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(token("a")) + b"what is this\r\n")
        await writer.drain()

    (outcome,) = run(ask(serve))
    assert (outcome.outcome, outcome.reason) == ("incomplete", "not HTTP: Invalid character in chunk size")
    assert outcome.response.token_events == 1


def test_a_port_that_speaks_no_http_is_said() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await writer.drain()

    (outcome,) = run(ask(serve))
    assert (outcome.outcome, outcome.resent, outcome.status) == ("incomplete", 0, None)
    assert outcome.reason is not None
    assert outcome.reason.startswith("not HTTP")


def test_a_reader_that_waits_makes_the_engine_wait() -> None:
    whole = 8 * PAUSE_AT_BYTES
    left: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % whole + b"x" * whole)
        await asyncio.sleep(0.3)
        left.append(writer.transport.get_write_buffer_size())
        await writer.drain()

    async def main() -> int:
        async with served(serve) as url:
            transport = StampedTransport(SystemClock())
            request = httpx.Request("POST", url, content=b"{}")
            response = await transport.handle_async_request(request)
            await until(lambda: bool(left))
            body = await response.aread()
            await response.aclose()
            await transport.aclose()
            return len(body)

    assert run(main()) == whole
    assert left[0] > 0


def test_a_connection_made_ahead_is_the_one_that_is_used() -> None:
    async def main() -> tuple[int | None, Outcome, int | None]:
        async with served(answer) as url:
            slot = Slot(url, SystemClock(), timeouts=Timeouts())
            await slot.connect()
            made = slot.connections
            outcome = await slot.send(planned())
            await slot.close()
            return made, outcome, slot.connections

    made, outcome, after = run(main())
    assert (made, outcome.outcome, after) == (1, "ok", 1)


def test_a_key_with_a_line_break_in_it_is_not_sent() -> None:
    async def main() -> Outcome:
        async with served(answer) as url:
            slot = Slot(url, SystemClock(), timeouts=Timeouts(), headers={"authorization": "Bearer a\r\nx: y"})
            return await slot.send(planned())

    outcome = run(main())
    assert (outcome.outcome, outcome.origin) == ("error", "client")
    assert outcome.reason == "the header authorization holds a line break"


def test_httpx_own_transport_can_stand_in_for_ours() -> None:
    outcomes = run(ask(answer, times=2, transport=httpx.AsyncHTTPTransport(trust_env=False)))
    for outcome in outcomes:
        assert outcome.outcome == "ok"
        assert outcome.send_started_ns is not None
        assert outcome.send_done_ns is not None
        assert outcome.response.first_token_ns is not None
        assert outcome.send_started_ns <= outcome.send_done_ns <= outcome.response.first_token_ns


def test_a_cut_request_is_a_timeout_of_the_engine_and_its_slot_goes_on() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"hang" in await read_request(reader):
            writer.write(HEAD + chunk(token("a")))
        else:
            writer.write(HEAD + chunk(token("a"), END) + b"0\r\n\r\n")
        await writer.drain()

    async def main() -> tuple[list[int | None], Outcome, Outcome]:
        async with served(serve) as url:
            slot = Slot(url, SystemClock(), timeouts=Timeouts())
            slot.cut("nothing is in flight")
            progress = [slot.progress_ns]
            sending = asyncio.ensure_future(slot.send(planned(body=b"hang")))
            await until(lambda: slot.token_ns is not None)
            progress.append(slot.progress_ns)
            slot.cut("no token from any request for 20 s")
            slot.cut("a second reason")
            cut = await sending
            progress.append(slot.progress_ns)
            after = await slot.send(planned())
            await slot.close()
            return progress, cut, after

    progress, cut, after = run(main())
    assert progress == [None, cut.response.first_token_ns, None]
    assert (cut.outcome, cut.origin, cut.reason) == ("timeout", "engine", "no token from any request for 20 s")
    assert (after.outcome, after.resent) == ("ok", 0)


def test_a_cancelled_request_leaves_what_was_known_of_it() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(token("a")))
        await writer.drain()

    async def main() -> Outcome | None:
        async with served(serve) as url:
            slot = Slot(url, SystemClock(), timeouts=Timeouts())
            sending = asyncio.ensure_future(slot.send(planned()))
            await until(lambda: slot.token_ns is not None)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await slot.close()
            return slot.interrupted

    known = run(main())
    assert known is not None
    assert (known.outcome, known.origin, known.response.token_events) == ("cancelled", "client", 1)
