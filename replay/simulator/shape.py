"""What a stream looks like when a request asks for it: reasoning, tool calls, several tokens per chunk.

The field `firsttoken_shape` or the header `firsttoken-shape` holds a list with commas:

    reasoning:8            the first 8 tokens are reasoning, in `delta.reasoning` as vLLM says it now
    reasoning_content:8    the same under the name of older vLLM, SGLang and llama.cpp
    tools:6                the next 6 tokens are a tool call: its name, then its arguments
    k:4                    four tokens in each chunk, as `--stream-interval` or speculation makes them
    early_role             the role comes at once and not with the first token, as SGLang sends it
    comments               a keep-alive comment before the first token

They are what definitions trip over: measured against the engine's own truth, the first token of each is 0 off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

TEXT: Final = "text"
REASONING: Final = "reasoning"
TOOL_CALL: Final = "tool_call"
# Chunks without a token.
ROLE: Final = "role"
COMMENT: Final = "comment"
USAGE: Final = "usage"
DONE: Final = "done"

_KNOWN = "reasoning:N, reasoning_content:N, tools:N, k:N, early_role or comments"
_TOOL: Final = "look_up"


@dataclass(frozen=True, slots=True)
class Shape:
    """Counts are in tokens."""

    reasoning: int = 0
    reasoning_field: str = "reasoning"
    tools: int = 0
    k: int = 1
    early_role: bool = False
    comments: bool = False


PLAIN: Final = Shape()


def read_shape(asked: str | None) -> Shape:
    """The shape that a request asks for. Raises ValueError in words."""
    shape: dict[str, Any] = {}
    for item in (asked or "").replace(" ", "").split(","):
        name, colon, number = item.partition(":")
        if not item:
            continue
        if name in ("early_role", "comments") and not colon:
            shape[name] = True
        elif name in ("reasoning", "reasoning_content", "tools", "k") and number.isascii() and number.isdecimal():
            shape["reasoning" if name.startswith("reasoning") else name] = max(int(number), name == "k")
            if name.startswith("reasoning"):
                shape["reasoning_field"] = name
        else:
            raise ValueError(f"firsttoken_shape: {item!r} is none of {_KNOWN}")
    return Shape(**shape)


def delta_of(shape: Shape, words: Sequence[str], start: int, call_id: str) -> tuple[dict[str, Any], str]:
    """The delta of a chunk that holds `words`, of which the first is token `start` of the answer; and its kind.

    A chunk across a boundary carries both kinds, joined by "+". The first token of a tool call is its name.
    """
    stop = start + len(words)
    delta: dict[str, Any] = {}
    kinds: list[str] = []
    tools_from, tools_to = shape.reasoning, shape.reasoning + shape.tools
    if start < shape.reasoning:
        delta[shape.reasoning_field] = joined(words[: shape.reasoning - start], start=start == 0)
        kinds.append(REASONING)
    if max(start, tools_from) < min(stop, tools_to):
        part = words[max(0, tools_from - start) : tools_to - start]
        delta["tool_calls"] = [_tool_delta(part, max(start, tools_from) - tools_from, shape.tools, call_id)]
        kinds.append(TOOL_CALL)
    if stop > tools_to:
        delta["content"] = joined(words[max(0, tools_to - start) :], start=start <= tools_to)
        kinds.append(TEXT)
    return delta, "+".join(kinds)


def _tool_delta(words: Sequence[str], position: int, length: int, call_id: str) -> dict[str, Any]:
    """Tokens `position` onwards of a call: id, type and name only in its first delta, as vLLM sends it."""
    rest = list(words)
    delta: dict[str, Any] = {"index": 0}
    function: dict[str, Any] = {}
    if position == 0:
        delta |= {"id": call_id, "type": "function"}
        function["name"] = _TOOL
        rest = rest[1:]
    at = position + len(words) - len(rest)
    pieces = [_argument(word, at + number, length) for number, word in enumerate(rest)]
    function["arguments"] = "".join(pieces)
    return delta | {"function": function}


def _argument(word: str, at: int, length: int) -> str:
    """Token `at` of a call of `length` tokens; together they are one JSON object of one string."""
    quoted = orjson.dumps(word).decode()[1:-1]
    before = '{"q":"' if at == 1 else " "
    return f"{before}{quoted}" + ('"}' if at == length - 1 else "")


def joined(words: Sequence[str], *, start: bool) -> str:
    """The text of some tokens: each but the answer's first begins with its blank."""
    text = " ".join(words)
    return text if start else f" {text}"
