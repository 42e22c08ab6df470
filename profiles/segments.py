"""The shape of prompts: which roles and sizes a list of messages had. segments.parquet, if a profile has one.

A prompt is a text of characters (`digests.prompt_text`), from which blocks are cut. Its segments tile it:

    system, user, ...   a message: its role mark (the role and two characters) and then `chars` of text
    tools               the tool definitions, as JSON, behind a mark of their own
    call                tool calls of the message before, names and arguments; no mark
    rest                what is known to be there, but not where

No text is in here, only lengths. Without this table a rebuilt prompt has its length and its shared prefix, but not the
messages that a chat template would wrap.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import polars as pl

from profiles.dialects import MESSAGES, RESPONSES
from profiles.prompts import Prompt, calls_of, json_of
from profiles.records import KeyedFacts
from profiles.requests import OTHER, ROLES

SCHEMA: Final[dict[str, pl.DataType]] = {
    "request": pl.UInt32(),
    "seq": pl.UInt32(),
    "role": pl.String(),
    "chars": pl.UInt32(),
}

TOOLS: Final = "tools"
CALL: Final = "call"
REST: Final = "rest"
_UNMARKED: Final = (CALL, REST)
_MARK_CHARS: Final = 2  # around the role
_MEDIUM_ID_CHARS: Final = 32

type Segments = list[tuple[str, int]]


def mark_chars(role: str) -> int:
    """Characters of the mark in front of a segment."""
    return 0 if role in _UNMARKED else len(role) + _MARK_CHARS


def extent(segments: Iterable[tuple[str, int]]) -> int:
    """Characters of a prompt, marks included."""
    return sum(mark_chars(role) + chars for role, chars in segments)


def segments_of(prompt: Prompt) -> Segments:
    """Role and characters of everything in a prompt, in its order."""
    out: Segments = []
    if prompt.system:
        out.append(("system", len(prompt.system)))
    if prompt.tools:
        out.append((TOOLS, len((json_of(prompt.tools) or b"").decode())))
    for message in prompt.messages:
        media = sum(_MARK_CHARS + len(medium.kind) + _MEDIUM_ID_CHARS for medium in message.media)
        out.append((message.role if message.role in ROLES else OTHER, len(message.text) + media))
        calls = sum(len(name) + len(arguments) + 3 for name, arguments in calls_of(message))
        if calls:
            out.append((CALL, calls))
    return out


def segments_of_keyed(keyed: KeyedFacts, *, endpoint: str, tools_chars: int = 0) -> Segments:
    """The same from the keyed facts of a capture, which do not say where tool calls and media stood.

    `tools_chars` is `RequestFacts.tools_chars`. Of Messages and Responses a system text stands outside the list, and
    the tools behind it.
    """
    out: Segments = [(message.role, message.chars) for message in keyed.messages]
    if tools_chars:
        outside = endpoint in (MESSAGES, RESPONSES) and bool(out) and out[0][0] == "system"
        out.insert(1 if outside else 0, (TOOLS, tools_chars))
    rest = keyed.prompt_chars - extent(out)
    if rest > 0:
        out.append((REST, rest))
    return out


def segments_frame(prompts: Iterable[tuple[int, Sequence[tuple[str, int]]]]) -> pl.DataFrame:
    """A table of `SCHEMA` from (row, segments) of each request. Takes 14 bytes a segment while it is made."""
    rows, seqs, codes, sizes = array("I"), array("I"), array("H"), array("I")
    known: dict[str, int] = {}
    for row, each in prompts:
        for seq, (role, chars) in enumerate(each):
            rows.append(row)
            seqs.append(seq)
            codes.append(known.setdefault(role, len(known)))
            sizes.append(chars)
    roles = pl.Series(list(known), dtype=pl.String())
    return pl.DataFrame(
        {
            "request": np.asarray(rows, np.uint32),
            "seq": np.asarray(seqs, np.uint32),
            "role": roles.gather(np.asarray(codes, np.uint32)) if known else roles,
            "chars": np.asarray(sizes, np.uint32),
        },
        schema=SCHEMA,
    )


class SegmentTable:
    """Segments by request, from a table of `SCHEMA`."""

    def __init__(self, segments: pl.DataFrame, requests: int) -> None:
        ordered = segments.sort("request", "seq")
        rows = ordered["request"].to_numpy()
        self._begin = np.searchsorted(rows, np.arange(requests + 1))
        self._roles = ordered["role"]
        self._chars = ordered["chars"].to_numpy()

    def __getitem__(self, row: int) -> Segments:
        """The segments of one request; empty where nothing is known of it."""
        begin, end = int(self._begin[row]), int(self._begin[row + 1])
        return list(zip(self._roles[begin:end].to_list(), self._chars[begin:end].tolist(), strict=True))
