"""Events that repeat. Nearly every event of a stream is the one before it with another text.

So an event that was read in full is cut into what stands before its text and what stands behind it. A later piece with
the same two ends says the same, as long as what is between them is a plain text: no quote, no escape, nothing that a
JSON string may not hold. That is checked in a microsecond; parsing costs ten. Pure.
"""

import re
from typing import NamedTuple

import orjson

from profiles.dialects import Reading

# The fields that hold generated text, as the engines write them.
_TEXT = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|delta|thinking|arguments|partial_json)": ?("(?:[^"\\]|\\.)+")'
)
# Where no two events are alike (some engines count them), looking for a likeness each time costs more than it saves.
_TRY_EVERY = 8


class Likeness(NamedTuple):
    """The two ends of a piece that holds one event, and what such an event means."""

    before: bytes
    behind: bytes
    reading: Reading

    def text_in(self, piece: bytes) -> str:
        """The text of a piece that is such an event with another text; "" of any other."""
        if not (piece.startswith(self.before) and piece.endswith(self.behind)):
            return ""
        data = piece[len(self.before) : len(piece) - len(self.behind)]
        if b'"' in data or b"\\" in data:
            return ""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return ""
        return text if text.isprintable() else ""


class Repeats:
    """The likeness of one stream. Tell it of each piece that was read in full."""

    def __init__(self) -> None:
        self.likeness: Likeness | None = None
        self._wait = 0

    def learn(self, piece: bytes, reading: Reading) -> bool:
        """A piece was one whole event and meant `reading`. Whether it is from now on what others are held against."""
        if self._wait:
            self._wait -= 1
            return False
        if piece[:1] == b":" or b"\n:" in piece:
            return False  # a comment is counted, which only the full way does
        self._wait = _TRY_EVERY
        texts = [text for text in (reading.content, reading.reasoning, reading.tool_text) if text]
        told_more = (reading.token_count, reading.usage, reading.finish, reading.error)
        if len(texts) != 1 or any(more is not None for more in told_more) or reading.done:
            return False
        found = [match for match in _TEXT.finditer(piece) if orjson.loads(match[1]) == texts[0]]
        if len(found) == 1:
            begin, end = found[0].span(1)
            self.likeness = Likeness(piece[: begin + 1], piece[end - 1 :], reading)
            self._wait = 0
        return len(found) == 1
