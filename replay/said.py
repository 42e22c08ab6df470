"""What an answer says, whole or streamed: its text, its reasoning, its tool calls as a client would join them. Sans-IO.

`ResponseReader` keeps instants and counts of what is measured; this is for the functional probes, which ask what a
client gets. It joins as OpenAI's clients do: the deltas of a tool call by their `index`, arguments end to end. An
engine that gives two calls the same index breaks them here as it does there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from profiles.encodings import Undecodable, decoder_of
from profiles.sse import Splitter
from profiles.stream import ResponseReader

# A probe asks for a few hundred tokens. What is longer than this is not looked at.
MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class SaidCall:
    """A tool call as it was joined. `pieces`: in how many deltas its arguments came, 0 of a whole answer."""

    name: str = ""
    arguments: str = ""
    pieces: int = 0


@dataclass(slots=True)
class Said:
    """One answer. `calls` in the order of their index."""

    text: str = ""
    reasoning: str = ""
    calls: list[SaidCall] = field(default_factory=list)
    malformed: int = 0


class Listener(ResponseReader):
    """A reader that also keeps the bytes of the answer, for `read_said`."""

    def __init__(self, content_type: str = "", content_encoding: str = "") -> None:
        super().__init__(content_type, content_encoding)
        self._content_type, self._content_encoding = content_type, content_encoding
        self._heard = bytearray()

    def feed(self, data: bytes, at_ns: int) -> None:
        super().feed(data, at_ns)
        if len(self._heard) <= MOST_BYTES:
            self._heard += data

    def said(self) -> Said:
        """What was said up to now. Nothing where it was longer than `MOST_BYTES` or cannot be read."""
        if len(self._heard) > MOST_BYTES:
            return Said()
        return read_said(bytes(self._heard), self._content_type, self._content_encoding)


def read_said(body: bytes, content_type: str, content_encoding: str = "") -> Said:
    """Read an answer. Never raises: what is not JSON is counted as `malformed`."""
    said = Said()
    try:
        decode = decoder_of(content_encoding)
        body = decode(body) if decode is not None else body
    except Undecodable:
        return said
    streamed = "text/event-stream" in content_type.lower()
    calls: dict[int, SaidCall] = {}
    for data in _events(body) if streamed else (body,):
        document = _load(data)
        if document is None:
            said.malformed += bool(data.strip()) and data.strip() != b"[DONE]"
            continue
        for choice in _mappings(document.get("choices")):
            if choice.get("index") in (None, 0):
                _take(choice, said, calls, streamed=streamed)
    said.calls = [calls[at] for at in sorted(calls)]
    return said


def _events(body: bytes) -> Iterator[bytes]:
    splitter = Splitter()
    for event in (*splitter.feed(body), *splitter.close()):
        yield b"\n".join(event.data)


def _take(choice: dict[str, Any], said: Said, calls: dict[int, SaidCall], *, streamed: bool) -> None:
    part = choice.get("delta") if streamed else choice.get("message")
    part = part if isinstance(part, dict) else {}
    said.text += _text(part.get("content")) + _text(choice.get("text"))
    said.reasoning += _text(part.get("reasoning")) or _text(part.get("reasoning_content"))
    for place, call in enumerate(_mappings(part.get("tool_calls"))):
        index = call.get("index") if streamed else place
        known = calls.setdefault(index if isinstance(index, int) else 0, SaidCall())
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name = _text(function.get("name"))
        if name and name != known.name:  # some engines repeat it in every delta
            known.name += name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # an object where the API has a string: no client could parse it
            arguments = repr(arguments)
        if arguments:
            known.arguments += _text(arguments)
            known.pieces += streamed


def _load(data: bytes) -> dict[str, Any] | None:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
