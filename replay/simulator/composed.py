"""Answers that are more than plain text: tool calls, JSON of a schema, reasoning, an end at a stop sequence.

Like plain text they follow from the request alone, and what a model would have to understand is read off its words:

    tool calls   the tools whose names the last user message says; the first one where a call is required
    a schema     a value of its form, its strings as long as JSON answers are
    reasoning    with `chat_template_kwargs.enable_thinking` the first third of the answer is
    stop         an answer ends where a stop sequence would come; at its half where the last user message says the word

An answer whose length is forced (`ignore_eos`), or whose shape is asked for (`shape`), stays as it was.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from replay.simulator.chat import Ask, last_user_text
from replay.simulator.shape import PLAIN, REASONING, TEXT, TOOL_CALL
from replay.simulator.text import Script

_WORDS = re.compile(r"\s*\S+")
THINK: Final = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer. `text` begins with its blank; a call's first piece has the `name` of its tool."""

    kind: str
    text: str
    call: int = 0
    name: str = ""


def compose(
    ask: Ask, script: Script, limit: int, *, leak: bool = False, ignore_schema: bool = False
) -> tuple[Script, tuple[Piece, ...]]:
    """The answer to a request in at most `limit` pieces, and the script that has them as its words; the script as it
    was, and no pieces, where that says it all as plain text."""
    whole = _whole(ask, script, leak=leak, ignore_schema=ignore_schema)
    if whole is None:
        return script, ()
    pieces = tuple(whole[:limit])
    words = tuple(piece.text.strip() or piece.name for piece in pieces)
    return replace(script, words=words, finish="length" if len(whole) > limit else "stop"), pieces


def _whole(ask: Ask, script: Script, *, leak: bool, ignore_schema: bool) -> list[Piece] | None:
    if ask.ignore_eos or ask.firsttoken_shape:
        return None
    words = list(_at_stop(ask, script))
    thinking = isinstance(ask.chat_template_kwargs, dict) and ask.chat_template_kwargs.get("enable_thinking") is True
    thought = words[: len(words) // 3] if thinking else []
    called = called_tools(ask)
    schema = None if ignore_schema else _schema(ask)
    if called:
        rest = list(_calls(called, script.words))
    elif schema is not None:
        text = json.dumps(instance(schema, _endless(script.words), _strings_of(schema, script)), ensure_ascii=False)
        rest = [Piece(TEXT, word) for word in _WORDS.findall(text)]
    elif thought or len(words) < len(script.words):
        rest = _texts(words[len(thought) :], TEXT)
    else:
        return None
    return _reasoning(thought, leak=leak) + rest


def _reasoning(thought: Sequence[str], *, leak: bool) -> list[Piece]:
    """A leak is what a missing parser makes of it: marks and thoughts in the text."""
    if not thought:
        return []
    if not leak:
        return _texts(thought, REASONING)
    marked = [f"{THINK[0]}{thought[0]}", *thought[1:]]
    marked[-1] += THINK[1]
    return _texts(marked, TEXT)


def _texts(words: Sequence[str], kind: str) -> list[Piece]:
    return [Piece(kind, f" {word}" if number else word) for number, word in enumerate(words)]


def _at_stop(ask: Ask, script: Script) -> Sequence[str]:
    stops = [ask.stop] if isinstance(ask.stop, str) else ask.stop if isinstance(ask.stop, list) else []
    words, said = script.words, last_user_text(ask).split()
    for stop in (stop for stop in stops if isinstance(stop, str) and stop.strip()):
        if stop.strip() in said:
            words = words[: max(1, len(script.words) // 2)]
        text = " ".join(words)
        if stop in text:
            words = tuple(text[: text.index(stop)].split())
    return words


def called_tools(ask: Ask) -> list[dict[str, Any]]:
    """The tools that an answer calls, each as its `function` object."""
    last = ask.messages[-1] if ask.messages else None
    functions = [
        tool["function"]
        for tool in ask.tools or ()
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict) and tool["function"].get("name")
    ]
    if last is None or last.role != "user" or ask.tool_choice == "none":
        return []
    said = last_user_text(ask)
    called = [function for function in functions if str(function["name"]) in said]
    if isinstance(ask.tool_choice, dict):
        wanted = ask.tool_choice.get("function")
        name = wanted.get("name") if isinstance(wanted, dict) else None
        called = [function for function in functions if function["name"] == name]
    elif ask.tool_choice == "required":
        called = called or functions[:1]
    return called[:1] if ask.parallel_tool_calls is False else called


def _calls(called: Sequence[dict[str, Any]], words: Sequence[str]) -> Iterator[Piece]:
    """The name of each, then its arguments; with quotes and letters in them that a careless parser trips over."""
    drawn = _endless([f'{word} "ő"' if number % 3 == 1 else word for number, word in enumerate(words)])
    for number, function in enumerate(called):
        arguments = json.dumps(instance(function.get("parameters"), drawn, 2), ensure_ascii=False)
        yield Piece(TOOL_CALL, "", number, str(function["name"]))
        yield from (Piece(TOOL_CALL, word, number) for word in _WORDS.findall(arguments))


def _schema(ask: Ask) -> dict[str, Any] | None:
    asked = ask.response_format
    if not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return None
    named = asked.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    return schema if isinstance(schema, dict) else None


def _strings_of(schema: dict[str, Any], script: Script) -> int:
    """Words in each string, so that the answer is about as long as one without a schema."""
    bare = json.dumps(instance(schema, _endless(["x"]), 1))
    strings = max(1, bare.count('"x"'))
    return max(1, (len(script.words) - len(bare.split()) + strings) // strings)


def _endless(words: Sequence[str]) -> Iterator[str]:
    while True:
        yield from words or ("word",)


def instance(schema: Any, words: Iterator[str], length: int, depth: int = 0) -> Any:
    """A value of the form that a schema asks for, its strings of `length` words. What it cannot read is a string."""
    schema = schema if isinstance(schema, dict) and depth < 12 else {}
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list) and choices:
        return instance(choices[0], words, length, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        return {name: instance(own, words, length, depth + 1) for name, own in named.items()}
    if kind == "array":
        least = schema.get("minItems")
        count = min(max(2, least), 16) if isinstance(least, int) else 2
        most = schema.get("maxItems")
        count = min(count, most) if isinstance(most, int) else count
        return [instance(schema.get("items"), words, length, depth + 1) for _ in range(count)]
    plain: dict[str, Any] = {"integer": 7, "number": 2.5, "boolean": True, "null": None}
    if isinstance(kind, str) and kind in plain:
        return plain[kind]
    return " ".join(next(words) for _ in range(max(1, length)))


def delta_of(pieces: Sequence[Piece], reasoning_field: str, call_id: str, *, whole: bool) -> tuple[dict[str, Any], str]:
    """What a chunk or a whole message says of these pieces, and its kind. Kinds in one chunk are joined by "+"."""
    said: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if piece.kind == TOOL_CALL:
            call = calls.setdefault(piece.call, {"index": piece.call, "function": {}})
            if piece.name:
                call |= {"id": f"{call_id}{piece.call}", "type": "function"}
                call["function"]["name"] = piece.name
            call["function"]["arguments"] = call["function"].get("arguments", "") + piece.text
        else:
            name = reasoning_field if piece.kind == REASONING else "content"
            said[name] = said.get(name, "") + piece.text
    if calls:
        listed = list(calls.values())
        said["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in listed] if whole else listed
    return said, "+".join(dict.fromkeys(piece.kind for piece in pieces))


type Says = Callable[[int, int, bool], tuple[dict[str, Any], str]]


def speaker(pieces: Sequence[Piece], answer_id: str, *, lose_end: bool = False) -> Says | None:
    """What the tokens from one to another say, in a stream or as a whole: delta and kind. None without pieces."""
    if not pieces:
        return None

    def says(start: int, stop: int, whole: bool) -> tuple[dict[str, Any], str]:
        part = list(pieces[start:stop])
        if lose_end and not whole:
            part = _without_end(part, pieces[stop] if stop < len(pieces) else None)
        return delta_of(part, PLAIN.reasoning_field, f"call_{answer_id[-16:]}", whole=whole)

    return says


def _without_end(pieces: Sequence[Piece], following: Piece | None) -> list[Piece]:
    """A parser that loses the end of a call in a stream: the last piece of its arguments says nothing."""
    after = [*pieces[1:], following]
    return [
        Piece(piece.kind, "", piece.call, piece.name)
        if piece.kind == TOOL_CALL and not piece.name and (then is None or then.call != piece.call)
        else piece
        for piece, then in zip(pieces, after, strict=True)
    ]
