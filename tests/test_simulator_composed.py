"""What the embedded engine answers beside plain text: tool calls, JSON of a schema, reasoning, stop sequences."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.schema_subset import misfit
from replay.simulator import text
from replay.simulator.chat import Ask, messages_of, read_ask
from replay.simulator.composed import Piece, called_tools, compose, delta_of, instance, speaker
from replay.simulator.shape import REASONING, TEXT, TOOL_CALL

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}}
SEND = {"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["a", "b"]},
        "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 3},
        "phone": {"type": ["string", "null"]},
        "more": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["name", "kind", "ages", "phone", "more"],
    "additionalProperties": False,
}


def ask(said: str, **fields: Any) -> Ask:
    body = {"messages": [{"role": "user", "content": said}], **fields}
    return read_ask(orjson.dumps(body), "chat")


def answer(asked: Ask, limit: int = 500, **faults: bool) -> tuple[text.Script, tuple[Piece, ...]]:
    script = text.write_script(text.SHORT, text.prompt_words(messages_of(asked)), limit=limit)
    return compose(asked, script, limit, **faults)


def names(said: str, tools: list[Any], **fields: Any) -> list[str]:
    return [function["name"] for function in called_tools(ask(said, tools=tools, **fields))]


def test_plain_requests_are_answered_as_ever_also_with_tools_that_nobody_names() -> None:
    for fields in ({}, {"tools": [LOOK]}, {"tools": [LOOK], "tool_choice": "auto"}, {"stop": ["pony"]}):
        asked = ask("Tell me of the sea.", **fields)
        plain = text.write_script(text.SHORT, text.prompt_words(messages_of(asked)), limit=500)
        assert compose(asked, plain, 500) == (plain, ())


def test_a_forced_length_and_an_asked_shape_are_left_as_they_are() -> None:
    for fields in ({"ignore_eos": True}, {"firsttoken_shape": "tools:4"}):
        assert answer(ask("Call look.", tools=[LOOK], **fields))[1] == ()


def test_the_tools_that_are_named_are_called_and_the_first_one_where_a_call_is_required() -> None:
    both = [LOOK, SEND]
    assert names("Call look and send.", both) == ["look", "send"]
    assert names("Call look and send.", both, parallel_tool_calls=False) == ["look"]
    assert names("Do something.", both) == []
    assert names("Do something.", both, tool_choice="required") == ["look"]
    assert names("Call look.", both, tool_choice={"type": "function", "function": {"name": "send"}}) == ["send"]
    assert names("Call look.", both, tool_choice="none") == []
    assert names("Call look.", ["odd", {"function": 3}]) == []


def test_after_the_result_of_a_tool_comes_text() -> None:
    turns = [{"role": "user", "content": "Call look."}, {"role": "tool", "content": "{}"}]
    assert called_tools(read_ask(orjson.dumps({"messages": turns, "tools": [LOOK]}), "chat")) == []


@given(st.integers(0, 40), st.lists(st.integers(1, 5), max_size=40))
def test_every_split_of_a_call_says_the_same_arguments(at: int, steps: list[int]) -> None:
    _, pieces = answer(ask("Call look and send now.", tools=[LOOK, SEND]))
    says = speaker(pieces, "chatcmpl-0123456789abcdef")
    assert says is not None
    arguments, start = ["", ""], 0
    for step in [*steps, len(pieces)]:
        stop = min(start + step, len(pieces))
        delta, _ = says(start, stop, False)
        for call in delta.get("tool_calls", []):
            arguments[call["index"]] += call["function"].get("arguments", "")
        start = stop
    whole, kind = says(0, len(pieces), True)
    assert kind == TOOL_CALL
    assert [call["function"]["arguments"] for call in whole["tool_calls"]] == arguments
    assert all(isinstance(orjson.loads(each), dict) for each in arguments)
    assert "index" not in whole["tool_calls"][0]


def test_a_lost_end_breaks_a_stream_and_not_a_whole_answer() -> None:
    _, pieces = answer(ask("Call look.", tools=[LOOK]))
    says = speaker(pieces, "id", lose_end=True)
    assert says is not None
    parts = [says(at, at + 1, False)[0]["tool_calls"][0]["function"].get("arguments", "") for at in range(len(pieces))]
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads("".join(parts))
    assert orjson.loads(says(0, len(pieces), True)[0]["tool_calls"][0]["function"]["arguments"])


def test_an_answer_has_the_form_of_its_schema_and_about_the_length_of_others() -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    script, pieces = answer(ask("Who is it?", response_format=asked))
    said = "".join(piece.text for piece in pieces)
    assert misfit(orjson.loads(said), PERSON) is None
    assert script.finish == "stop"
    plain = text.write_script(text.SHORT, text.prompt_words(messages_of(ask("Who is it?"))), limit=500)
    assert len(plain.words) / 2 < len(script.words) < 2 * len(plain.words)
    cut, short = answer(ask("Who is it?", response_format=asked), limit=5)
    assert (cut.finish, len(short), len(cut.words)) == ("length", 5, 5)
    assert answer(ask("Who is it?", response_format=asked), ignore_schema=True)[1] == ()


KEYS = st.sampled_from(["type", "items", "properties", "enum", "anyOf"])
KINDS = st.sampled_from(["object", "array", "integer", "pony"])
SCHEMAS = st.recursive(st.none() | KINDS, lambda of: st.lists(of) | st.dictionaries(KEYS, of))


@given(SCHEMAS)
def test_no_schema_is_too_odd_for_an_answer(schema: Any) -> None:
    orjson.dumps(instance(schema, iter(["a"] * 10_000), 1))


def test_the_first_third_is_reasoning_where_it_is_asked_for_and_a_leak_puts_it_into_the_text() -> None:
    asked = ask("When does it arrive?", chat_template_kwargs={"enable_thinking": True})
    script, pieces = answer(asked)
    kinds = [piece.kind for piece in pieces]
    thought = len(script.words) // 3
    assert kinds == [REASONING] * thought + [TEXT] * (len(kinds) - thought)
    delta, kind = delta_of(pieces, "reasoning", "c", whole=False)
    assert (kind, set(delta)) == ("reasoning+text", {"reasoning", "content"})
    _, leaked = answer(asked, leak=True)
    said = "".join(piece.text for piece in leaked)
    assert said.startswith("<think>")
    assert "</think>" in said
    assert len(leaked) == len(pieces)


def test_a_stop_sequence_that_the_user_names_ends_the_answer_at_its_half_without_it() -> None:
    plain, _ = answer(ask("Say alpha bravo charlie."))
    script, pieces = answer(ask("Say alpha bravo charlie.", stop=["bravo"]))
    assert (script.words, script.finish) == (plain.words[: len(plain.words) // 2], "stop")
    assert {piece.kind for piece in pieces} == {TEXT}
    word = plain.words[3]
    cut, _ = answer(ask("Say alpha bravo charlie.", stop=word))
    assert word not in " ".join(cut.words)
