"""What a request asked for, as facts without its text."""

import gzip
import json
import zlib
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import profiles.prompts
from profiles.languages import language_of
from profiles.records import RequestFacts
from profiles.requests import code_share, describe

HUNGARIAN = "Kérem, foglalja össze ezt a szöveget három mondatban, és írja meg, hogy mi a legfontosabb benne."
ENGLISH = "Please summarise this text in three sentences and say what the most important point of it is."


def facts(document: Any) -> dict[str, Any]:
    """The facts that differ from those of an empty body."""
    described = msgspec.structs.asdict(describe(json.dumps(document).encode()))
    empty = msgspec.structs.asdict(RequestFacts())
    return {key: value for key, value in described.items() if value != empty[key] and key != "body_bytes"}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


REQUESTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "chat",
        {
            "model": "m",
            "stream": True,
            "messages": [
                {"role": "system", "content": "four"},
                user("hello"),
                {"role": "assistant", "content": "x"},
                user("again"),
            ],
            "max_tokens": 100,
            "temperature": 0,
        },
        {
            "model": "m",
            "stream": True,
            "messages": 4,
            "user_turns": 2,
            "last_role": "user",
            "system_chars": 4,
            "input_chars": 15,
            "max_tokens": 100,
            "temperature": 0.0,
            "code_share": 0.0,
        },
    ),
    ("the newer limit wins", {"max_completion_tokens": 5, "max_tokens": 9}, {"max_tokens": 5}),
    (
        "parts and an image",
        {"messages": [user([{"type": "text", "text": "abc"}, {"type": "image_url", "image_url": {"url": "data:"}}])]},
        {"messages": 1, "user_turns": 1, "last_role": "user", "input_chars": 3, "images": 1, "code_share": 0.0},
    ),
    (
        "tools and a result",
        {
            "messages": [user("a"), {"role": "assistant", "content": None}, {"role": "tool", "content": "42"}],
            "tools": [{"type": "function"}],
        },
        {
            "messages": 3,
            "user_turns": 1,
            "last_role": "tool",
            "input_chars": 3,
            "tools": 1,
            "tools_chars": 21,
            "tool_results": 1,
            "code_share": 0.0,
        },
    ),
    (
        "a tool result of Anthropic is no turn of the user",
        {
            "system": "sys",
            "messages": [user("a"), user([{"type": "tool_result", "content": [{"type": "text", "text": "42"}]}])],
        },
        {
            "messages": 2,
            "user_turns": 1,
            "last_role": "tool",
            "system_chars": 3,
            "input_chars": 6,
            "tool_results": 1,
            "code_share": 0.0,
        },
    ),
    (
        "responses",
        {
            "instructions": "sys",
            "input": [user([{"type": "input_text", "text": "ab"}]), {"type": "function_call_output", "output": "42"}],
            "max_output_tokens": 7,
        },
        {
            "messages": 2,
            "user_turns": 1,
            "last_role": "tool",
            "system_chars": 3,
            "input_chars": 7,
            "tool_results": 1,
            "max_tokens": 7,
            "code_share": 0.0,
        },
    ),
    (
        "completion",
        {"prompt": "abc"},
        {"messages": 1, "user_turns": 1, "last_role": "user", "input_chars": 3, "code_share": 0.0},
    ),
    (
        "embedding batch",
        {"input": ["ab", "c"]},
        {"messages": 2, "user_turns": 2, "last_role": "user", "input_chars": 3, "code_share": 0.0},
    ),
    ("token ids hold no text", {"prompt": [1, 2, 3]}, {}),
    ("schema", {"response_format": {"type": "json_schema", "json_schema": {}}}, {"response_format": "json_schema"}),
    ("responses schema", {"text": {"format": {"type": "json_schema"}}}, {"response_format": "json_schema"}),
    ("responses format without a type", {"text": {"format": {}}}, {}),
    ("guided json", {"guided_json": {}}, {"response_format": "guided_json"}),
    ("guided choice", {"guided_choice": ["a", "b"]}, {"response_format": "choice"}),
    ("structured regex", {"structured_outputs": {"regex": "a+"}}, {"response_format": "regex"}),
    ("effort", {"reasoning_effort": "high"}, {"reasoning": True, "reasoning_effort": "high"}),
    ("no effort", {"reasoning_effort": "none"}, {"reasoning_effort": "none"}),
    ("effort of responses", {"reasoning": {"effort": "low"}}, {"reasoning": True, "reasoning_effort": "low"}),
    ("effort of nobody", {"reasoning_effort": "sécret"}, {"reasoning": True, "reasoning_effort": "other"}),
    ("thinking of a template", {"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning": True}),
    ("thinking of Anthropic", {"thinking": {"type": "enabled", "budget_tokens": 5}}, {"reasoning": True}),
    ("several answers", {"n": 3}, {"n": 3}),
    ("true is no number", {"max_tokens": True, "n": False, "temperature": True}, {}),
    ("numbers beyond measure", {"max_tokens": 2**60, "temperature": 1e300, "top_k": -(2**40)}, {}),
    ("sampling", {"top_p": 0.5, "top_k": -1, "logprobs": True}, {"top_p": 0.5, "top_k": -1, "logprobs": True}),
    ("tool choice", {"tool_choice": "auto"}, {"tool_choice": "auto"}),
    ("any tool", {"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
    ("one tool", {"tool_choice": {"type": "function", "function": {"name": "secret"}}}, {"tool_choice": "named"}),
    ("unknown tool choice", {"tool_choice": "secret"}, {"tool_choice": "other"}),
    ("unknown format", {"response_format": {"type": "secret"}}, {"response_format": "other"}),
    (
        "unknown role",
        {"messages": [{"role": "secret", "content": "abc"}]},
        {"messages": 1, "last_role": "other", "input_chars": 3},
    ),
    (
        "a tool call of responses is the assistant's",
        {"input": ["a", {"type": "reasoning"}, {"type": "function_call", "name": "f", "arguments": "{}"}]},
        {"messages": 3, "user_turns": 1, "last_role": "assistant", "input_chars": 1, "code_share": 0.0},
    ),
    (
        "sound and film",
        {"messages": [user([{"type": "input_audio"}, {"type": "video_url"}, "a"])]},
        {
            "messages": 1,
            "user_turns": 1,
            "last_role": "user",
            "input_chars": 1,
            "audios": 1,
            "videos": 1,
            "code_share": 0.0,
        },
    ),
    ("a model by path", {"model": "/models/Qwen3-8B@main"}, {"model": "/models/Qwen3-8B@main"}),
    ("a sentence for a model", {"model": "my secret words"}, {"model": "(unreadable)"}),
    ("a key for a model", {"model": "sk-proj-1234567890abcdef"}, {"model": "(unreadable)"}),
    ("a long name for a model", {"model": "m" * 201}, {"model": "(unreadable)"}),
]


@pytest.mark.parametrize(("document", "expected"), [pytest.param(d, e, id=name) for name, d, e in REQUESTS])
def test_facts_of_a_request(document: dict[str, Any], expected: dict[str, Any]) -> None:
    assert facts(document) == expected


@pytest.mark.parametrize(
    ("body", "why"),
    [(None, "no body"), (b"", "empty body"), (b"{", "not JSON"), (b"\xff", "not JSON"), (b"[1]", "not a JSON object")],
)
def test_a_body_that_cannot_be_read_says_why(body: bytes | None, why: str) -> None:
    assert describe(body).unread == why
    assert describe(body).body_bytes == len(body or b"")


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


CODED: list[tuple[bytes, str, str | None]] = [
    (gzip.compress(b'{"prompt":"abc"}'), "gzip", None),
    (zlib.compress(b'{"prompt":"abc"}'), "deflate", None),
    (zstd(b'{"prompt":"abc"}'), "zstd", None),
    (gzip.compress(b'{"prompt":"abc"}')[:-9], "gzip", "broken gzip coding"),
    (b'{"prompt":"abc"}', "gzip", "broken gzip coding"),
    (b'{"prompt":"abc"}', "zstd", "broken zstd coding"),
    (b'{"prompt":"abc"}', "br", "br coding is not read"),
    (b'{"prompt":"abc"}', "secret", "unknown coding"),
]


@pytest.mark.parametrize(("body", "encoding", "why"), CODED)
def test_a_compressed_body_is_read_where_we_can(body: bytes, encoding: str, why: str | None) -> None:
    described = describe(body, encoding)
    assert (described.unread, described.body_bytes) == (why, len(body))
    assert described.input_chars == (0 if why else 3)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_small_body_cannot_grow_without_bound(pack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles.prompts, "LONGEST_READ_BODY_BYTES", 1000)
    grown = pack(b'{"prompt":"' + b"a" * 100_000 + b'"}')
    assert len(grown) < 1000
    assert describe(grown, "gzip" if pack is gzip.compress else "zstd").unread == "body larger than 1000 bytes"


@pytest.mark.parametrize(
    "content",
    [["a"] * 30_000, [{"type": "text", "text": "a"}] * 30_000, [[{}]] * 30_000],
    ids=["texts", "parts", "odd"],
)
def test_what_is_looked_at_is_limited(content: list[Any]) -> None:
    for document in ({"messages": [user(content)]}, {"input": content}):
        described = describe(json.dumps(document).encode())
        assert described.cut == f"more than {profiles.prompts.MOST_PARTS} messages and parts"
        assert described.input_chars <= profiles.prompts.MOST_PARTS


def test_deep_nesting_is_no_fault() -> None:
    deep = b'{"tools":' + b"[" * 900 + b"]" * 900 + b',"messages":[{"content":' + b"[" * 900 + b"]" * 900 + b"}]}"
    described = describe(deep)
    assert (described.unread, described.cut, described.tools) == (None, "tools nested too deeply", 1)
    parts = b'[{"type":"tool_result","content":' * 400 + b'"x"' + b"}]" * 400
    assert describe(b'{"messages":[{"role":"user","content":' + parts + b"}]}").input_chars == 0


def test_no_text_survives() -> None:
    body = {
        "model": "m",
        "messages": [user("secret words " * 20)],
        "tools": [{"name": "secret tool"}],
        "user": "secret",
    }
    assert b"secret" not in msgspec.json.encode(describe(json.dumps(body).encode()))


KEYS = "messages input prompt role content type text tools functions system response_format thinking n output".split()
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "user", "tool", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=6,
)


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(KEYS), ODD_JSON, max_size=3))
def test_nothing_that_a_client_sends_raises(document: dict[str, Any]) -> None:
    assert describe(json.dumps(document).encode()).unread is None


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (HUNGARIAN, "hu"),
        (ENGLISH, "en"),
        ("Bitte fasse den Text in drei Sätzen zusammen und sag mir, was für dich das Wichtigste ist.", "de"),
        ("Kérem, foglalja össze.", None),
        ("word " * 50, None),
        ("", None),
    ],
)
def test_the_language_is_told_only_where_it_is_clear(text: str, language: str | None) -> None:
    assert language_of(text) == language


def test_the_language_is_that_of_the_last_user_message() -> None:
    assert (
        facts({"messages": [user(HUNGARIAN), {"role": "assistant", "content": ENGLISH}, user(ENGLISH)]})["language"]
        == "en"
    )


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", None),
        ("\n \n", None),
        ("What is the capital of France?", 0.0),
        ("def f(x):\n    return x\n", 1.0),
        ("Please fix this:\n```\nanything\n```\nThank you.", 0.6),
        ("int main() {\n  x = 1;\n}\nWhy does it fail\n", 0.75),
        ("if x:\nif so, then\nelse:\nelsewhere:\nreturn\nreturned it\nfrom a import b\nfrom here to there", 0.5),
        # Of long texts samples are read: a fence that is open between them counts.
        ("Why?\n```\n" + "some words\n" * 2_000 + "```\n", 0.99),
        ("```\nx\n```\n" + "some words\n" * 2_000, 0.0),
    ],
)
def test_the_share_of_code_lines(text: str, share: float | None) -> None:
    assert code_share(text) == (None if share is None else pytest.approx(share, abs=0.02))


def test_a_line_of_blanks_costs_no_more_than_its_length() -> None:
    # Quadratic backtracking took ten seconds here, on the recorder's event loop.
    assert code_share(" " * 19_000 + "x") == 0.0
