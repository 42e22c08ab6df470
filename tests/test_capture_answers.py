"""Keyed ids of an answer are those of the messages that a client sends back of it, in every dialect."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from capture_bench import Bench
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.answers import MOST_ANSWER_CHARS, AnswerKeeper
from profiles.digests import Digests, canonical_arguments, keyed_facts_of
from profiles.records import Exchange, KeyedAnswer, KeyedFacts, KeyedMessage
from profiles.stream import ResponseReader

SSE, JSON = "text/event-stream", "application/json"
DIGESTS = Digests(b"k" * 32)  # the key of a Bench
SECRET = "A SEEDED answer with enough words."
ARGUMENTS = '{"place": "Gy\u0151r", "days": 3}'
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "weather in Gy\u0151r?"}]


def sse(*events: Any, done: bool = True) -> list[bytes]:
    """Each event in a read of its own, as streams mostly come."""
    pieces = [b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events]
    return pieces + ([b"data: [DONE]\n\n"] if done else [])


def chat(**delta: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    return chat(tool_calls=[{"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}])


def words(text: str) -> list[str]:
    """A text in pieces, as tokens come."""
    return [text[at : at + 5] for at in range(0, len(text), 5)]


def calling(*calls: tuple[str, str]) -> dict[str, Any]:
    """A message of the assistant as OpenAI's clients send it back, its arguments written anew."""
    made = [
        {"id": f"x{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(json.loads(given))}}
        for at, (name, given) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


TEXT_BACK = {"role": "assistant", "content": SECRET}
START = {"function": {"name": "weather"}, "id": "call_1", "type": "function"}
CALLS_BACK = calling(("weather", ARGUMENTS), ("clock", "{}"))
ITEMS = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "thoughts"}]},
    {"type": "message", "id": "m_1", "role": "assistant", "content": [{"type": "output_text", "text": SECRET}]},
    {"type": "function_call", "id": "f_1", "call_id": "c_1", "name": "weather", "arguments": ARGUMENTS},
]
ITEMS_BACK = [
    {"role": "assistant", "content": SECRET},
    {"type": "function_call", "call_id": "c_1", "name": "weather", "arguments": ARGUMENTS},
]
RESPONSE = {"id": "resp_1", "object": "response", "status": "completed", "output": ITEMS}
BLOCKS = [
    {"type": "thinking", "thinking": "thoughts", "signature": "x"},
    {"type": "text", "text": SECRET},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": json.loads(ARGUMENTS)},
]


def block(kind: str, index: int, **more: Any) -> dict[str, Any]:
    return {"type": f"content_block_{kind}", "index": index, **more}


ANTHROPIC_STREAM = sse(
    {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 3}}},
    block("start", 0, content_block={"type": "thinking", "thinking": ""}),
    block("delta", 0, delta={"type": "thinking_delta", "thinking": "thoughts"}),
    block("stop", 0),
    block("start", 1, content_block={"type": "text", "text": ""}),
    *(block("delta", 1, delta={"type": "text_delta", "text": word}) for word in words(SECRET)),
    block("stop", 1),
    block("start", 2, content_block={"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}),
    *(block("delta", 2, delta={"type": "input_json_delta", "partial_json": word}) for word in words(ARGUMENTS)),
    block("stop", 2),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
    done=False,
)
RESPONSES_STREAM = sse(
    {"type": "response.created", "response": {"id": "resp_1", "object": "response", "output": []}},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEMS[0]},
    *({"type": "response.output_text.delta", "output_index": 1, "delta": word} for word in words(SECRET)),
    {"type": "response.output_item.done", "output_index": 1, "item": ITEMS[1]},
    {"type": "response.output_item.done", "output_index": 2, "item": ITEMS[2]},
    {"type": "response.completed", "response": RESPONSE},
    done=False,
)

# What the engine sends, the path, and what the client sends back of it.
ANSWERS: dict[str, tuple[str, list[bytes], list[Any]]] = {
    "chat, streamed": (
        "chat/completions",
        sse(chat(role="assistant", content=""), *(chat(content=word) for word in words(SECRET)), chat()),
        [TEXT_BACK],
    ),
    "chat, reasoning beside it and inside": (
        "chat/completions",
        sse(
            *(chat(reasoning_content=word) for word in words("thoughts thoughts thoughts")),
            *(chat(content=word) for word in words(f"<think>thoughts</think>\n\n{SECRET}\n")),
        ),
        [TEXT_BACK],
    ),
    "chat, whole": (
        "chat/completions",
        [json.dumps({"choices": [{"message": {**TEXT_BACK, "reasoning": "thoughts"}}]}).encode()],
        [TEXT_BACK],
    ),
    "chat, of several choices the first": (
        "chat/completions",
        sse(*({"choices": [{"index": at, "delta": {"content": f"{at}{word}" if at else word}}]}
              for word in words(SECRET) for at in (1, 0))),
        [TEXT_BACK],
    ),
    "chat, streamed calls": (
        "chat/completions",
        sse(
            chat(role="assistant", content=None),
            call(0, "", **START),
            *(call(0, word) for word in words(ARGUMENTS)),
            call(1, "", function={"name": "clock"}, id="call_2"),
            chat(),
        ),
        [CALLS_BACK],
    ),
    "chat, streamed calls that all have index 0": (
        "chat/completions",
        sse(
            call(0, "", **START),
            *(call(0, word) for word in words(ARGUMENTS)),
            call(0, "", function={"name": "clock"}, id="call_2"),
            *(call(0, word) for word in ("{", "}")),
        ),
        [CALLS_BACK],
    ),
    "chat, whole calls": (
        "chat/completions",
        [json.dumps({"choices": [{"message": CALLS_BACK}]}).encode()],
        [CALLS_BACK],
    ),
    "messages, streamed": ("messages", ANTHROPIC_STREAM, [{"role": "assistant", "content": BLOCKS}]),
    "messages, whole": (
        "messages",
        [json.dumps({"type": "message", "role": "assistant", "content": BLOCKS, "stop_reason": "tool_use"}).encode()],
        [{"role": "assistant", "content": BLOCKS[1:]}],
    ),
    "responses, streamed": ("responses", RESPONSES_STREAM, ITEMS),
    "responses, whole": ("responses", [json.dumps(RESPONSE).encode()], ITEMS_BACK),
}  # fmt: skip


def body_of(path: str, *back: Any) -> bytes:
    """A request: the messages of all, what was sent back, and something new behind it."""
    more = [{"role": "user", "content": "and now?"}] if back else []
    key = "input" if path == "responses" else "messages"
    return json.dumps({"model": "m", key: [*MESSAGES, *back, *more]}).encode()


def ids_of(body: bytes) -> list[KeyedMessage]:
    facts = keyed_facts_of(body, DIGESTS)
    assert facts is not None
    return facts.messages


def record(folder: Path, path: str, pieces: list[bytes], mode: str, *, body: bytes | None = None) -> Exchange:
    bench = Bench(folder, bodies=mode)
    flow = bench.arrive(100, path=f"/v1/{path}", body=body_of(path) if body is None else body)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200, kind=JSON if len(pieces) == 1 else SSE)
    for at, piece in enumerate(pieces):
        bench.read(flow, piece, 210 + at)
    bench.end(flow, 900)
    (exchange,) = bench.capture().exchanges
    return exchange


@pytest.mark.parametrize("mode", ["hashed", "full"])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_has_the_ids_that_its_messages_have_in_the_next_turn(tmp_path: Path, name: str, mode: str) -> None:
    path, pieces, back = ANSWERS[name]
    exchange = record(tmp_path / "c", path, pieces, mode)
    first, following = ids_of(body_of(path)), ids_of(body_of(path, *back))
    assert exchange.request.keyed is not None
    assert exchange.request.keyed.messages == first == following[:2]
    assert exchange.answer is not None
    assert exchange.answer.chain == following[-2].chain
    own = [message.own for message in following[2:-1]]
    assert exchange.answer.own == [each for each in own if each is not None]
    assert len(own) == (2 if path == "responses" else 1)
    response = DIGESTS.id_of("response", "resp_1") if path == "responses" else None
    assert exchange.answer.response == response
    for segment in (tmp_path / "c").iterdir():
        data = segment.read_bytes()
        assert b"SEEDED" not in data
        assert b"thoughts" not in data
        assert b"resp_1" not in data


def test_what_one_dialect_calls_its_answer_the_others_call_the_same(tmp_path: Path) -> None:
    found = {
        name: record(tmp_path / name.replace("/", ""), path, pieces, "hashed").answer
        for name, (path, pieces, _) in ANSWERS.items()
        if name in ("messages, streamed", "messages, whole")
    }
    assert len({answer.chain for answer in found.values() if answer is not None}) == 1
    text = next(iter(words_of(DIGESTS, TEXT_BACK)))
    assert record(tmp_path / "r", "responses", RESPONSES_STREAM, "hashed").answer == KeyedAnswer(
        chain=ids_of(body_of("responses", *ITEMS))[-2].chain,
        own=[text, *words_of(DIGESTS, calling(("weather", ARGUMENTS)))],
        response=DIGESTS.id_of("response", "resp_1"),
    )


def words_of(digests: Digests, message: dict[str, Any]) -> Iterator[str]:
    facts = keyed_facts_of(json.dumps({"messages": [message]}).encode(), digests)
    assert facts is not None
    return (each.own for each in facts.messages if each.own is not None)


def test_mode_none_keeps_nothing_and_joins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(AnswerKeeper, "take", explode)
    path, pieces, _ = ANSWERS["chat, streamed"]
    exchange = record(tmp_path / "c", path, pieces, "none")
    assert exchange.answer is None
    assert exchange.response.malformed == 0
    assert b'"answer"' not in (tmp_path / "c" / "segment-000001.jsonl").read_bytes()


def test_a_fault_over_an_answer_costs_its_ids_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise KeyError(SECRET)

    monkeypatch.setattr(Digests, "answer", explode)
    path, pieces, _ = ANSWERS["chat, streamed"]
    exchange = record(tmp_path / "c", path, pieces, "hashed")
    assert (exchange.answer, exchange.outcome, exchange.response.unread) == (None, "ok", None)


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        (sse(chat(role="assistant", content="")), "empty"),
        (sse(chat(content=" \n")), "blank"),
        (sse({"error": {"type": "oom"}}), "an error"),
        ([b'{"object":"list","data":[{"embedding":[0.1]}]}'], "an embedding"),
        (sse(*(chat(content="x" * 60_000) for _ in range(MOST_ANSWER_CHARS // 60_000 + 1))), "too long"),
        ([b"{broken"], "not JSON"),
    ],
)
def test_no_ids_of_what_is_no_answer(tmp_path: Path, pieces: list[bytes], why: str) -> None:
    assert record(tmp_path / "c", "chat/completions", pieces, "hashed").answer is None, why


def test_no_ids_where_the_request_could_not_be_read(tmp_path: Path) -> None:
    path, pieces, _ = ANSWERS["chat, streamed"]
    assert record(tmp_path / "c", path, pieces, "hashed", body=b"{broken").answer is None


def test_what_came_of_an_answer_that_was_cut_off_counts_as_it_is(tmp_path: Path) -> None:
    exchange = record(tmp_path / "c", "responses", RESPONSES_STREAM[:4], "hashed")
    (text,) = ids_of(body_of("responses", {"role": "assistant", "content": SECRET[:10]}))[2:-1]
    assert exchange.answer is not None
    assert exchange.answer.chain == text.chain


def joined(pieces: list[bytes]) -> Any:
    reader = ResponseReader(SSE, keep_answer=True)
    for at_ns, piece in enumerate(pieces):
        reader.feed(piece, at_ns)
    reader.finish()
    return reader.answer()


EVENTS = st.lists(
    st.one_of(
        st.text(max_size=6).map(lambda text: chat(content=text)),
        st.sampled_from([" a", "b", '"', "\\", "é", "\n"]).map(lambda text: chat(content=text)),
        st.text(max_size=6).map(lambda text: chat(reasoning_content=text)),
        st.text(max_size=6).map(lambda text: {"choices": [{"index": 1, "delta": {"content": text}}]}),
        st.builds(call, st.integers(0, 1), st.sampled_from(["a", "bb", "{", '"'])),
        st.builds(lambda at: call(at, "", function={"name": "f"}, id=f"c{at}"), st.integers(0, 1)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_the_short_way_over_events_that_repeat_joins_the_same_answer(events: list[Any]) -> None:
    pieces = sse(*events)
    glued = [b"".join(pieces)]
    assert joined(pieces) == joined(glued)
    text = "".join(
        event["choices"][0]["delta"].get("content", "") for event in events if event["choices"][0]["index"] == 0
    )
    answer = joined(pieces)
    if answer is not None and "tool_calls" not in answer.messages[0]:
        assert answer.messages[0]["content"] == text
    else:
        assert answer is not None or not text.strip()


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "response.done", "message", "tool_use"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type index delta message choices content text tool_calls function name arguments id output item "
                "response content_block partial_json input output_index object function_call".split()
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "object",
                    "choices",
                    "output",
                    "response",
                    "item",
                    "content",
                    "content_block",
                    "delta",
                    "index",
                    "output_index",
                ]
            ),
            ANY,
        )
    )
)
def test_no_json_is_a_fault(events: list[dict[str, Any]]) -> None:
    keeper = AnswerKeeper()
    for event in events:
        keeper.take(event)
        keeper.learn()
        keeper.repeat("x")
    answer = keeper.answer()
    if answer is not None:
        DIGESTS.answer(answer, "")


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("", "{}"),
        ("{}", "{}"),
        ('{"b": 1, "a": "\\u0151"}', '{"a":"\u0151","b":1}'),
        ("{broken", "{broken"),
    ],
)
def test_the_canonical_form_of_arguments(given: str, canonical: str) -> None:
    assert canonical_arguments(given) == canonical


def test_a_message_of_an_earlier_version_has_no_id_of_its_own() -> None:
    facts = msgspec.json.decode(b'{"messages":[["user",3,"ab"],["assistant",3,"cd","ef"]]}', type=KeyedFacts)
    assert [message.own for message in facts.messages] == [None, "ef"]
