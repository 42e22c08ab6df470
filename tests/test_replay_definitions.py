"""What counts as a token, through the real client over a real socket, in every delivery: exact counts, no tolerance.

Every input is made here. Definitions: DESIGN §4.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from profiles.records import Outcome
from replay.client import Planned, Slot, Timeouts
from replay.clock import SystemClock, fine_event_loop

pytestmark = pytest.mark.process
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n%s\r\n\r\n"


def event(document: Any, name: str = "") -> bytes:
    text = json.dumps(document, ensure_ascii=False).encode()
    return (b"event: %s\n" % name.encode() if name else b"") + b"data: " + text + b"\n\n"


def delta(**said: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": said}]})


def usage(output: int, prompt: int = 7, **more: Any) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **more}})


def call(**function: str) -> bytes:
    return delta(tool_calls=[{"index": 0, "function": function}])


ROLE = delta(role="assistant", content="")
END = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


@dataclass(frozen=True)
class Case:
    name: str
    events: tuple[bytes, ...]
    outcome: str = "ok"
    # Which of the events carry tokens, and the first that carries text for a person.
    bearing: tuple[int, ...] = ()
    content: int | None = None
    facts: tuple[tuple[str, Any], ...] = ()
    path: str = "/v1/chat/completions"


def case(name: str, *events: bytes, bearing: Iterable[int] = (), **other: Any) -> Case:
    facts = {key: other.pop(key) for key in list(other) if key not in ("outcome", "content", "path")}
    return Case(name, events, bearing=tuple(bearing), facts=tuple(facts.items()), **other)


CASES = (
    case("a role is no token", ROLE, delta(content="a"), END, DONE, bearing=[1], content=1, done=True),
    case("a role with content null", delta(role="assistant", content=None), delta(content="a"), END, DONE, bearing=[1],
         content=1),
    case("comments are no tokens and no events", b": wait\n\n", b":\n\n", delta(content="a"), b": x\n\n", END, DONE,
         bearing=[2], content=2, comments=3, events=3),
    case("an empty delta is no token", delta(content=""), delta(), delta(content="a"), delta(content=""), END, DONE,
         bearing=[2], content=2),
    case("a choice without a delta", event({"choices": [{"index": 0}]}), delta(content="a"), END, DONE, bearing=[1],
         content=1),
    case("empty choices and filter data", event({"choices": [], "prompt_filter_results": [{"x": 1}]}),
         delta(content="a"), END, DONE, bearing=[1], content=1),
    case("usage alone is no token", usage(0), delta(content="a"), usage(1), END, DONE, bearing=[1], content=1,
         output_tokens=1, prompt_tokens=7),
    case("usage at the start only", usage(9), delta(content="a"), END, DONE, bearing=[1], content=1, output_tokens=9),
    case("usage behind [DONE]", delta(content="a"), END, DONE, usage(5), bearing=[0], content=0, output_tokens=5),
    case("running usage, the last one wins",
         *(event({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 7, "completion_tokens": n}})
           for n in (2, 3, 5)), END, DONE, bearing=[0, 1, 2], content=0, output_tokens=5, first_event_tokens=2),
    case("usage null in every chunk", event({"choices": [{"delta": {"content": "a"}}], "usage": None}), END, usage(4),
         DONE, bearing=[0], content=0, output_tokens=4),
    case("several tokens in an event, told by their ids",
         event({"choices": [{"delta": {"content": "abcd"}, "token_ids": [1, 2, 3, 4]}]}),
         event({"choices": [{"delta": {"content": "ef"}, "token_ids": [5, 6]}]}), END, DONE, bearing=[0, 1], content=0,
         first_event_tokens=4, output_tokens=6),
    case("several tokens in an event, told by nothing", delta(content=" four words in one"), END, usage(4), DONE,
         bearing=[0], content=0, first_event_tokens=None, output_tokens=4),
    case("reasoning", ROLE, delta(reasoning="hm"), delta(reasoning="so"), delta(content="a"), END, DONE,
         bearing=[1, 2, 3], content=3),
    case("reasoning_content", delta(reasoning_content="hm"), delta(content="a"), END, DONE, bearing=[0, 1], content=1),
    case("both names at once", delta(reasoning="hm", reasoning_content="hm"), delta(content="a"), END, DONE,
         bearing=[0, 1], content=1),
    case("reasoning that is empty", delta(reasoning_content="", content=""), delta(content="a"), END, DONE, bearing=[1],
         content=1),
    case("tool calls alone", ROLE, call(name="look"), call(arguments='{"a"'), call(arguments=":1}"), call(arguments=""),
         event({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}), DONE, bearing=[1, 2, 3],
         finish="tool_calls"),
    case("an old function call", delta(function_call={"name": "look"}), delta(function_call={"arguments": "{}"}), END,
         DONE, bearing=[0, 1]),
    case("a tool call of an id alone", delta(tool_calls=[{"index": 0, "id": "x", "function": {"arguments": ""}}]),
         call(name="look"), END, DONE, bearing=[1]),
    case("a refusal", delta(refusal="no"), END, DONE, bearing=[0], content=0),
    case("completions", event({"choices": [{"text": ""}]}), event({"choices": [{"text": "a"}]}),
         event({"choices": [{"text": "b", "finish_reason": "length"}]}), DONE, bearing=[1, 2], content=1,
         finish="length", path="/v1/completions"),
    case("a finish reason beside the last token", delta(content="a"),
         event({"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]}), DONE, bearing=[0, 1], content=0),
    case("finish reason empty in every chunk",
         event({"choices": [{"delta": {"content": "a"}, "finish_reason": ""}]}),
         event({"choices": [{"delta": {"content": "b"}, "finish_reason": ""}]}), END, DONE, bearing=[0, 1], content=0),
    case("[DONE] is missing", delta(content="a"), END, bearing=[0], content=0, done=False, finish="stop"),
    case("every end is missing", delta(content="a"), bearing=[0], content=0, outcome="incomplete", done=False),
    case("only an end", END, DONE, outcome="empty"),
    case("nothing at all", outcome="empty"),
    case("only usage", usage(3), DONE, outcome="empty", output_tokens=3),
    case("an error in the stream", delta(content="a"),
         event({"error": {"message": "x", "type": "InternalServerError", "code": 500}}), DONE, bearing=[0], content=0,
         outcome="error", error="InternalServerError", error_code=500),
    case("an error alone", event({"error": {"message": "x", "code": 400}}), outcome="error", error="400",
         error_code=400),
    case("an error in a field of its own", delta(content="a"),
         b'error: {"code":400,"type":"invalid_request_error"}\n\n', bearing=[0], content=0, outcome="error",
         error="invalid_request_error", error_code=400),
    case("the first error is the reason", event({"error": {"type": "OutOfMemoryError"}}),
         event({"error": {"type": "other_error"}}), outcome="error", error="OutOfMemoryError"),
    case("an error that is a string", event({"error": "out of cheese"}), outcome="error", error="error"),
    case("separators of lines inside JSON", delta(content="a\u2028b\u2029c\u0085d\x0b\x0ce"), delta(content="b"), END,
         DONE, bearing=[0, 1], content=0, malformed=0),
    case("characters of several bytes", delta(content="日本🙂"), delta(content="\ufeff"), END, DONE, bearing=[0, 1],
         content=0, malformed=0),
    case("a byte order mark", b"\xef\xbb\xbf" + delta(content="a"), END, DONE, bearing=[0], content=0, malformed=0),
    case("data over several lines", b'data: {"choices":[{"delta":\ndata: {"content":"a"}}]}\n\n', END, DONE,
         bearing=[0], content=0, malformed=0),
    case("no blank behind the colon", delta(content="a").replace(b"data: ", b"data:"), END, b"data:[DONE]\n\n",
         bearing=[0], content=0, done=True),
    case("fields that nobody knows", b"id: 1\nretry: 5\n" + delta(content="a"), END, DONE, bearing=[0], content=0),
    case("what is no JSON", b"data: {oh no\n\n", delta(content="a"), END, DONE, bearing=[1], content=1, malformed=1),
    case("JSON that is no object", b"data: 17\n\n", b"data: []\n\n", delta(content="a"), END, DONE, bearing=[2],
         content=2, malformed=2),
    case("Responses", event({"type": "response.created"}, "response.created"),
         event({"type": "response.output_text.delta", "delta": "a"}, "response.output_text.delta"),
         event({"type": "response.completed", "response": {"usage": {"input_tokens": 7, "output_tokens": 1}}},
               "response.completed"), bearing=[1], content=1, output_tokens=1, prompt_tokens=7, path="/v1/responses"),
    case("Responses without their end", event({"type": "response.output_text.delta", "delta": "a"}), bearing=[0],
         content=0, outcome="incomplete", path="/v1/responses"),
    case("Messages",
         event({"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}),
         event({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
         event({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
         event({"type": "ping"}),
         event({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}}),
         event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}),
         event({"type": "message_stop"}), bearing=[2, 4], content=4, output_tokens=3, prompt_tokens=7,
         finish="end_turn", path="/v1/messages"),
)  # fmt: skip


def by_event(events: tuple[bytes, ...]) -> list[bytes]:
    return list(events)


def at_once(events: tuple[bytes, ...]) -> list[bytes]:
    return [b"".join(events)]


def by_byte(events: tuple[bytes, ...]) -> list[bytes]:
    return [bytes([byte]) for byte in b"".join(events)]


def with_crlf(events: tuple[bytes, ...]) -> list[bytes]:
    # The two characters of a line end come in different writes.
    return [piece for item in events for piece in _cut(item.replace(b"\n", b"\r\n"), b"\r")]


def with_cr(events: tuple[bytes, ...]) -> list[bytes]:
    return [item.replace(b"\n", b"\r") for item in events]


def _cut(data: bytes, behind: bytes) -> list[bytes]:
    return [piece for piece in (part + behind for part in data.split(behind)[:-1])] + [data.rpartition(behind)[2]]


DELIVERIES = (by_event, at_once, by_byte, with_crlf, with_cr)


type Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def ask(write: Write, path: str = "/v1/chat/completions") -> Outcome:
    """The outcome of a request that a server answers by `write`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        await write(writer)
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until the client closes
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        slot = Slot(url, SystemClock(), timeouts=Timeouts())
        outcome = await slot.send(Planned("w", 1, 0, 0, "chat", path, b"{}"))
        await slot.close()
    return outcome


async def play(pieces: list[bytes], path: str, *, chunked: bool = True) -> Outcome:
    """One write per piece, each in its own turn of the loop."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % (b"transfer-encoding: chunked" if chunked else b"connection: close"))
        for piece in pieces:
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                await asyncio.sleep(0)
        if chunked:
            writer.write(b"0\r\n\r\n")
        else:
            writer.close()

    return await ask(write, path)


def check(case: Case, outcome: Outcome) -> None:
    facts = outcome.response
    assert outcome.outcome == case.outcome
    assert facts.token_events == len(case.bearing)
    assert (facts.first_token_ns is None) == (not case.bearing)
    assert (facts.first_content_ns is None) == (case.content is None)
    assert facts.body_bytes > 0 or not case.events
    for name, value in case.facts:
        assert getattr(facts, name) == value, name


@pytest.mark.parametrize("deliver", DELIVERIES, ids=lambda deliver: deliver.__name__)
def test_every_definition_holds_however_the_bytes_come(deliver: Any) -> None:
    async def main() -> list[Outcome]:
        return [await play(deliver(case.events), case.path) for case in CASES]

    for case, outcome in zip(CASES, asyncio.run(main(), loop_factory=fine_event_loop), strict=True):
        try:
            check(case, outcome)
        except AssertionError as error:
            raise AssertionError(f"{case.name}: {error}\n{outcome}") from error


def test_a_stream_that_ends_with_its_connection_is_the_same_stream() -> None:
    async def main() -> list[Outcome]:
        return [await play(list(case.events), case.path, chunked=False) for case in CASES]

    for case, outcome in zip(CASES, asyncio.run(main(), loop_factory=fine_event_loop), strict=True):
        check(case, outcome)


def test_the_first_token_is_the_event_that_the_definition_names() -> None:
    """Server and client share one loop and one clock: an event is read after it was sent and before the next one is,
    unless the machine held the loop for longer than the pause between two. Then it is played again."""

    async def main(case: Case) -> Outcome:
        async def write(writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD % b"transfer-encoding: chunked")
            for item in case.events:
                sent_ns.append(clock.now_ns())
                writer.write(b"%x\r\n%s\r\n" % (len(item), item))
                await asyncio.sleep(0.002)
            writer.write(b"0\r\n\r\n")

        return await ask(write, case.path)

    clock = SystemClock()
    for item in CASES:
        if not item.bearing:
            continue
        for _ in range(5):
            sent_ns: list[int] = []
            facts = asyncio.run(main(item), loop_factory=fine_event_loop).response
            first_ns = facts.first_token_ns
            assert first_ns is not None
            next_ns = [*sent_ns[1:], first_ns + 1][item.bearing[0]]
            if sent_ns[item.bearing[0]] <= first_ns <= next_ns:
                break
        else:
            pytest.fail(f"{item.name}: event {item.bearing[0]} has the first token")


def test_a_line_of_megabytes_is_one_event() -> None:
    long = delta(content="x" * 3_000_000)
    pieces = [long[at : at + 65_536] for at in range(0, len(long), 65_536)]

    async def main() -> Outcome:
        return await play([ROLE, *pieces, delta(content="y"), END, DONE], "/v1/chat/completions")

    outcome = asyncio.run(main(), loop_factory=fine_event_loop)
    facts = outcome.response
    assert (outcome.outcome, facts.token_events, facts.malformed, facts.events) == ("ok", 2, 0, 5)


def test_an_error_that_comes_as_one_json_body_is_an_error() -> None:
    """A stream was asked for; the answer is 200 and no stream."""

    async def write(writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"message":"x","type":"exceed_context_size_error","code":400}}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)

    outcome = asyncio.run(ask(write), loop_factory=fine_event_loop)
    facts = outcome.response
    assert (outcome.outcome, facts.error, facts.error_code) == ("error", "exceed_context_size_error", 400)
    assert facts.first_token_ns is None
