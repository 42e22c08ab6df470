"""Request bodies around rebuilt words: OpenAI chat, completions and embeddings.

Roles and sizes of the messages stay, so that a chat template wraps what it wrapped. What content would be needed for is
left out or stands in as a shape:

* tools are as many empty functions, their descriptions as long as the recorded definitions
* a tool's answer needs a call before it, which gets one without arguments of its own
* a schema or grammar is left out: over random words a grammar walk ends anywhere, and with a fixed output length some
  engines find no token that is allowed
* images, audio and video are left out

The tokens of the JSON around a tool or a call are taken off its words.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson

from profiles.dialects import CHAT, COMPLETIONS, EMBEDDINGS
from profiles.files import encode
from profiles.segments import CALL, REST, TOOLS, mark_chars
from profiles.synthesise import Prompts
from profiles.words import WORDS

# Other endpoints get no body: a replay sends none to them.
REBUILT_ENDPOINTS: Final = (CHAT, COMPLETIONS, EMBEDDINGS)

# What one tool and one call cost without words in them, counted with four tokenizers (35 or 36, and 21 to 25).
TOOL_TOKENS: Final = 36
CALL_TOKENS: Final = 21

_PLAIN_ROLES: Final = frozenset(("system", "developer", "user", "assistant"))
_ANSWERS: Final = frozenset(("tool", "function"))

type Text = Callable[[int, int], str]


def bodies(prompts: Prompts) -> Iterator[tuple[int, bytes]]:
    """Row and body of every request that has one, in order."""
    columns = (
        "endpoint",
        "model",
        "stream",
        "output_tokens",
        "max_tokens",
        "temperature",
        "n",
        "tools",
        "system_chars",
    )
    for row, values in enumerate(prompts.requests.select(columns).iter_rows()):
        asked = dict(zip(columns, values, strict=True))
        endpoint = asked["endpoint"] or CHAT
        if endpoint not in REBUILT_ENDPOINTS or not prompts.asked[row]:
            continue
        yield row, encode(_parameters(asked, endpoint) | _prompt(prompts, row, asked, endpoint))


def _parameters(asked: dict[str, Any], endpoint: str) -> dict[str, Any]:
    """As recorded, except that the limit is the length the answer had."""
    fields: dict[str, Any] = {} if asked["model"] is None else {"model": asked["model"]}
    if endpoint == EMBEDDINGS:
        return fields
    if asked["stream"] is not None:
        fields["stream"] = asked["stream"]
    choices = asked["n"] or 1
    if choices > 1:
        fields["n"] = choices
    if asked["output_tokens"]:
        fields["max_tokens"] = -(-asked["output_tokens"] // choices)
    elif asked["max_tokens"]:
        fields["max_tokens"] = asked["max_tokens"]
    if asked["temperature"] is not None:
        fields["temperature"] = asked["temperature"]
    return fields


def _prompt(prompts: Prompts, row: int, asked: dict[str, Any], endpoint: str) -> dict[str, Any]:
    words = [WORDS[at] for at in prompts.draw(row).tolist()]

    def text(begin: int, end: int) -> str:
        return " ".join(words[begin:end])

    if endpoint == COMPLETIONS:
        return {"prompt": text(0, len(words))}
    if endpoint == EMBEDDINGS:
        return {"input": text(0, len(words))}
    segments = _segments(prompts, row, asked)
    sizes = [mark_chars(role) + chars for role, chars in segments]
    cuts = prompts.cuts(row, sizes)
    return _chat([role for role, _ in segments], cuts, text, asked["tools"] or 0)


def _segments(prompts: Prompts, row: int, asked: dict[str, Any]) -> Sequence[tuple[str, int]]:
    if prompts.segments is not None and (known := prompts.segments[row]):
        return known
    # One message for all turns: where one ended is not known, and a wrong guess would break the shared prefix.
    system = asked["system_chars"] or 0
    if prompts.by_chars and system:
        return [("system", system), ("user", 0)] if system < prompts.lengths.chars[row] else [("system", 0)]
    return [("user", 0)]


def _chat(roles: Sequence[str], cuts: Sequence[tuple[int, int]], text: Text, tools: int) -> dict[str, Any]:
    chat = _Chat(text, tools)
    for role, (begin, end) in zip(roles, cuts, strict=True):
        chat.add(role, begin, end)
    fields: dict[str, Any] = {"messages": chat.messages}
    if tools and not chat.tools:
        chat.add(TOOLS, 0, 0)
    return fields | {"tools": chat.tools} if chat.tools else fields


class _Chat:
    """Messages as they are put together, segment by segment."""

    def __init__(self, text: Text, tools: int) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self._text = text
        self._tool_count = tools
        self._caller: dict[str, Any] | None = None  # the message whose calls the next answers belong to
        self._answers = 0  # to it, so far

    def add(self, role: str, begin: int, end: int) -> None:
        """A segment, with the words that stand in it."""
        if role == TOOLS:
            self.tools = _tools(max(self._tool_count, 1), begin, end, self._text)
        elif role == CALL and self._caller is not None:
            self._call(self._text(begin, max(begin, end - CALL_TOKENS)))
        elif role in _ANSWERS and self._caller is not None:
            if self._answers == len(self._caller.get("tool_calls", ())):
                self._call()
                end = max(begin, end - CALL_TOKENS)
            call = self._caller["tool_calls"][self._answers]
            self._answers += 1
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": self._text(begin, end)})
        elif role in (REST, CALL) and self.messages:
            # At the end, or behind a message that makes no calls: more of its text.
            last = self.messages[-1]
            last["content"] = f"{last['content']} {self._text(begin, end)}".strip()
        else:
            message = {"role": role if role in _PLAIN_ROLES else "user", "content": self._text(begin, end)}
            self.messages.append(message)
            self._caller = message if role == "assistant" else None
            self._answers = 0

    def _call(self, words: str = "") -> None:
        assert self._caller is not None
        calls = self._caller.setdefault("tool_calls", [])
        arguments = encode({"text": words} if words else {}).decode()
        function = {"name": "tool_0", "arguments": arguments}
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})


def _tools(count: int, begin: int, end: int, text: Text) -> list[dict[str, Any]]:
    """`count` functions that share the words, as evenly as they go."""
    words = max(0, end - begin - count * TOOL_TOKENS)
    edges = [begin + words * at // count for at in range(count + 1)]
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{at}",
                "description": text(edges[at], edges[at + 1]),
                "parameters": {"type": "object", "properties": {}},
            },
        }
        for at in range(count)
    ]


def words_in(body: bytes) -> int | None:
    """Words of a rebuilt body; None where a template writes more around them than around plain messages."""
    asked = orjson.loads(body)
    texts = [asked["prompt"]] if "prompt" in asked else [message["content"] for message in asked.get("messages", ())]
    if "tools" in asked or any("tool_calls" in message for message in asked.get("messages", ())):
        return None
    return sum(len(text.split()) for text in texts)
