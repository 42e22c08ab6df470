"""Change members of a JSON object in its text, and nothing else of the text. Pure.

A parser that writes the object again would lose whitespace, the spelling of numbers and escapes, and keys that stand
twice. Here the spans of the values are found, and replaced in place.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Edit:
    """What comes in the place of a span; an empty span is a place between two characters."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Member:
    """A key of an object and the span of its value."""

    key: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Members:
    """The members of an object in a text."""

    opened: int  # behind its opening brace
    members: list[Member]
    closed: int  # behind its closing brace

    def last(self, key: str) -> Member | None:
        """Of a key that stands twice the last one counts, as for the parsers of the engines."""
        return next((member for member in reversed(self.members) if member.key == key), None)


def read_object(text: str) -> Members:
    """The members of a text that is one JSON object. Raises ValueError if it is not."""
    found = read_members(text, skip_space(text, 0))
    if skip_space(text, found.closed) != len(text):
        raise ValueError(f"more at character {found.closed}")
    return found


def read_members(text: str, at: int) -> Members:
    """The members of the object that begins at `at`. Raises ValueError."""
    if text[at : at + 1] != "{":
        raise ValueError(f"no object at character {at}")
    opened, members = at + 1, []
    at = skip_space(text, opened)
    while text[at : at + 1] != "}":
        key, at = _read(text, at)
        at = skip_space(text, at)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            raise ValueError(f"no key at character {at}")
        begin = skip_space(text, at + 1)
        _, end = _read(text, begin)
        members.append(Member(key, begin, end))
        at = _behind_comma(text, end, "}")
    return Members(opened, members, at + 1)


def read_elements(text: str, at: int) -> list[int]:
    """Where each element of the array that begins at `at` begins. Raises ValueError."""
    begins: list[int] = []
    at = skip_space(text, at + 1)
    while text[at : at + 1] != "]":
        begins.append(at)
        _, end = _read(text, at)
        at = _behind_comma(text, end, "]")
    return begins


def skip_space(text: str, at: int) -> int:
    """The first character at or behind `at` that is no JSON whitespace."""
    match = _SPACE.match(text, at)
    assert match is not None  # it matches the empty text
    return match.end()


def set_members(found: Members, values: Mapping[str, str]) -> list[Edit]:
    """Each key gets its new value (JSON text) wherever it stands. Missing ones come behind the last member."""
    edits: list[Edit] = []
    added: list[str] = []
    for key, value in values.items():
        present = [Edit(member.begin, member.end, value) for member in found.members if member.key == key]
        edits += present
        if not present:
            added.append(f"{json.dumps(key)}:{value}")
    if added:
        at = found.members[-1].end if found.members else found.opened
        edits.append(Edit(at, at, ",".join([""] * bool(found.members) + added)))
    return edits


def splice(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits, whose spans do not overlap."""
    parts: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda edit: edit.begin):
        parts += (text[at : edit.begin], edit.text)
        at = edit.end
    return "".join(parts) + text[at:]


def _read(text: str, at: int) -> tuple[object, int]:
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value, end


def _behind_comma(text: str, at: int, closing: str) -> int:
    at = skip_space(text, at)
    if text[at : at + 1] == ",":
        return skip_space(text, at + 1)
    if text[at : at + 1] != closing:
        raise ValueError(f"no comma at character {at}")
    return at
