"""What one event means in each dialect. Tables of event and reading; and nothing that an engine sends raises."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.dialects import DONE, MALFORMED, NOTHING, Reading, Usage, endpoint_of, read_body, read_event


def chat(delta: Any = None, **rest: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta or {}, **rest}]}


def call(**function: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


EVENTS: list[tuple[str, dict[str, Any], Reading]] = [
    # chat
    ("role only", chat({"role": "assistant", "content": ""}), NOTHING),
    ("content", chat({"content": "a"}), Reading(tokens=True, content="a")),
    ("content null", chat({"content": None}), NOTHING),
    ("refusal", chat({"refusal": "no"}), Reading(tokens=True, content="no")),
    ("reasoning_content", chat({"reasoning_content": "r"}), Reading(tokens=True, reasoning="r")),
    ("reasoning", chat({"reasoning": "r"}), Reading(tokens=True, reasoning="r")),
    ("both names are one text", chat({"reasoning": "r", "reasoning_content": "r"}), Reading(True, "", "r")),
    ("tool name", chat(call(name="f", arguments="")), Reading(tokens=True, tool_text="f")),
    ("tool arguments", chat(call(arguments='{"a"')), Reading(tokens=True, tool_text='{"a"')),
    ("old function call", chat({"function_call": {"name": "f"}}), Reading(tokens=True, tool_text="f")),
    ("finish", chat(finish_reason="length"), Reading(finish="length")),
    ("finish empty", chat({"content": "a"}, finish_reason=""), Reading(tokens=True, content="a")),
    ("no choices", {"choices": [], "prompt_filter_results": [{}]}, NOTHING),
    ("token ids", chat({"content": "ab"}, token_ids=[5, 6]), Reading(tokens=True, content="ab", token_count=2)),
    (
        "usage",
        {"choices": [], "usage": {"prompt_tokens": 6, "completion_tokens": 16, "total_tokens": 22}},
        Reading(usage=Usage(6, 16)),
    ),
    (
        "usage details",
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 6,
                "completion_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
        },
        Reading(usage=Usage(6, 9, 4, 3)),
    ),
    ("usage null", chat({"content": "a"}) | {"usage": None}, Reading(tokens=True, content="a")),
    (
        "error",
        {"error": {"message": "the prompt", "type": "InternalServerError", "code": 500}},
        Reading(error="InternalServerError", error_code=500),
    ),
    ("error code alone", {"error": {"message": "the prompt", "code": 502}}, Reading(error="502", error_code=502)),
    ("error text", {"error": "the prompt"}, Reading(error="error")),
    ("error null", chat({"content": "a"}) | {"error": None}, Reading(tokens=True, content="a")),
    # completions
    ("completion text", {"choices": [{"text": "a", "finish_reason": None}]}, Reading(tokens=True, content="a")),
    ("completion end", {"choices": [{"text": "", "finish_reason": "stop"}]}, Reading(finish="stop")),
    # responses
    ("created", {"type": "response.created", "response": {"status": "in_progress", "usage": None}}, NOTHING),
    ("text delta", {"type": "response.output_text.delta", "delta": "a"}, Reading(tokens=True, content="a")),
    ("reasoning delta", {"type": "response.reasoning_text.delta", "delta": "r"}, Reading(True, "", "r")),
    (
        "tool item",
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}},
        Reading(True, "", "", "f"),
    ),
    ("message item", {"type": "response.output_item.added", "item": {"type": "message"}}, NOTHING),
    ("tool delta", {"type": "response.function_call_arguments.delta", "delta": "{"}, Reading(True, "", "", "{")),
    ("text done repeats the text", {"type": "response.output_text.done", "text": "a"}, NOTHING),
    (
        "completed",
        {"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 2}}},
        Reading(usage=Usage(3, 2), finish="stop", done=True),
    ),
    (
        "incomplete",
        {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}},
        Reading(finish="max_output_tokens", done=True),
    ),
    (
        "incomplete without a reason",
        {"type": "response.incomplete", "response": []},
        Reading(finish="length", done=True),
    ),
    (
        "failed",
        {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
        Reading(error="server_error"),
    ),
    (
        "error event of Responses",
        {"type": "error", "code": "rate_limit", "message": "the prompt"},
        Reading(error="rate_limit"),
    ),
    # messages
    (
        "message start",
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 4}}},
        Reading(usage=Usage(9, None, 4)),
    ),
    ("text block", {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, NOTHING),
    (
        "tool block",
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}},
        Reading(True, "", "", "f"),
    ),
    ("text", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, Reading(True, "a")),
    ("thinking", {"type": "content_block_delta", "delta": {"thinking": "r"}}, Reading(True, "", "r")),
    ("tool json", {"type": "content_block_delta", "delta": {"partial_json": "{"}}, Reading(True, "", "", "{")),
    ("ping", {"type": "ping"}, NOTHING),
    (
        "message delta",
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
        Reading(usage=Usage(None, 5), finish="end_turn"),
    ),
    ("message stop", {"type": "message_stop"}, DONE),
    (
        "overloaded",
        {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
        Reading(error="overloaded_error"),
    ),
]


@pytest.mark.parametrize(("event", "reading"), [pytest.param(e, r, id=name) for name, e, r in EVENTS])
def test_an_event_reads_as(event: dict[str, Any], reading: Reading) -> None:
    assert read_event(json.dumps(event).encode()) == reading


@pytest.mark.parametrize(
    ("data", "reading"),
    [
        (b"[DONE]", DONE),
        (b"  [DONE] ", DONE),
        (b"", NOTHING),
        (b"{", MALFORMED),
        (b"[1]", MALFORMED),
        (b"7", MALFORMED),
    ],
)
def test_what_is_not_an_object(data: bytes, reading: Reading) -> None:
    assert read_event(data) == reading


BODIES: list[tuple[str, dict[str, Any], Reading]] = [
    (
        "chat",
        {
            "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        },
        Reading(tokens=True, content="hi", usage=Usage(1, 2), finish="stop"),
    ),
    ("chat without text", {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}, Reading(finish="stop")),
    (
        "completion",
        {"choices": [{"text": "hi", "finish_reason": "stop"}]},
        Reading(tokens=True, content="hi", finish="stop"),
    ),
    (
        "responses",
        {
            "object": "response",
            "status": "completed",
            "output": [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
                {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
                {"type": "function_call", "name": "f", "arguments": "{}"},
            ],
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
        Reading(True, "hi", "r", "f{}", usage=Usage(1, 2), finish="stop"),
    ),
    (
        "messages",
        {
            "type": "message",
            "content": [
                {"type": "thinking", "thinking": "r"},
                {"type": "text", "text": "hi"},
                {"type": "tool_use", "name": "f", "input": {}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
        Reading(True, "hi", "r", "f{}", usage=Usage(1, 2), finish="tool_use"),
    ),
    ("embedding", {"object": "list", "data": [{}], "usage": {"prompt_tokens": 8}}, Reading(usage=Usage(8), other=True)),
    ("models", {"object": "list", "data": []}, Reading(other=True)),
    (
        "error",
        {"error": {"type": "exceed_context_size_error", "message": "x"}},
        Reading(error="exceed_context_size_error"),
    ),
]


@pytest.mark.parametrize(("body", "reading"), [pytest.param(b, r, id=name) for name, b, r in BODIES])
def test_a_whole_answer_reads_as(body: dict[str, Any], reading: Reading) -> None:
    assert read_body(json.dumps(body).encode()) == reading


def test_the_message_of_an_error_is_never_kept() -> None:
    for _, event, reading in EVENTS:
        if "the prompt" in json.dumps(event):
            assert "the prompt" not in repr(reading)


KEYS = (
    "type object error code message choices delta content reasoning tool_calls function name arguments text usage"
    " output prompt_tokens completion_tokens prompt_tokens_details response incomplete_details item content_block"
    " finish_reason"
).split()
KINDS = (
    "message response list error message_start message_delta content_block_start content_block_delta function_call"
    " response.completed response.incomplete response.failed response.output_item.added response.output_text.delta"
).split()
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([*KINDS, "", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=6,
)


@settings(max_examples=30)
@given(ODD_JSON)
def test_nothing_that_an_engine_sends_raises(document: Any) -> None:
    data = json.dumps(document).encode()
    assert isinstance(read_event(data), Reading)
    assert isinstance(read_body(data), Reading)


@settings(max_examples=30)
@given(
    st.sampled_from(["object", "type"]),
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(KEYS), ODD_JSON, max_size=3),
)
def test_nothing_of_a_known_kind_raises_either(key: str, kind: str, document: dict[str, Any]) -> None:
    data = json.dumps(document | {key: kind, "error": None}).encode()
    assert isinstance(read_event(data), Reading)
    assert isinstance(read_body(data), Reading)


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "chat"),
        ("/gateway/eu/v1/chat/completions/?key=x", "chat"),
        ("/v1/completions", "completions"),
        ("/v1/responses", "responses"),
        ("/v1/messages", "messages"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/models", "other"),
        ("/", "other"),
    ],
)
def test_the_end_of_the_path_names_the_dialect(path: str, endpoint: str) -> None:
    assert endpoint_of(path) == endpoint
