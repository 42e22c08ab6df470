"""Captures written by the recorder's own functions, line by line, and commands run on them."""

from pathlib import Path
from typing import Any

import click
import msgspec
from click.testing import CliRunner, Result

from profiles.captures import SegmentLine, StartLine, WindowLine, end_line
from profiles.files import write_document
from profiles.records import Exchange, ResponseFacts
from profiles.requests import describe
from profiles.units import MILLISECOND_NS as MS
from profiles.units import SECOND_NS as S

WALL = 1_700_000_000 * S
CHAT = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"max_tokens":64}'


def exchange(
    id: str,
    arrival_ns: int,
    end_ns: int,
    body: bytes = CHAT,
    *,
    method: str = "POST",
    outcome: str = "ok",
    tokens: tuple[int, int] | None = (20, 40),
) -> Exchange:
    answered = ResponseFacts(output=False)
    if tokens is not None:
        answered = ResponseFacts(
            first_token_ns=arrival_ns + 100 * MS,
            prompt_tokens=tokens[0],
            output_tokens=tokens[1],
            finish="stop",
            output=True,
        )
    return Exchange(
        id=id, endpoint="chat", method=method, path="/v1/chat/completions", arrival_ns=arrival_ns,
        dispatch_ns=arrival_ns + MS, end_ns=end_ns, status=200, outcome=outcome, request=describe(body),
        response=answered, late_ns=7,
    )  # fmt: skip


def write_capture(
    folder: Path,
    exchanges: list[tuple[Exchange, bytes | None]],
    *,
    close_ns: int = 100 * S,
    unfinished: list[int] | None = None,
    wall_ns: int = WALL,
) -> Path:
    folder.mkdir()
    write_document(folder / "manifest.json", {"format": "firsttoken/capture", "version": 1})
    lines = [
        msgspec.json.encode(SegmentLine(format="firsttoken/capture", version=1, tool="t", wall_ns=wall_ns, mono_ns=0)),
        msgspec.json.encode(WindowLine(event="open", at_ns=0)),
        *(msgspec.json.encode(StartLine(id=f"u{at}", at_ns=at)) for at in unfinished or ()),
        *(end_line(each, body) for each, body in exchanges),
        msgspec.json.encode(WindowLine(event="close", at_ns=close_ns)),
    ]
    (folder / "segment-000000.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def write_monday(tmp_path: Path) -> Path:
    """Three chats of which two overlap, a longer prompt, one that failed, a poll, and one still in flight."""
    return write_capture(
        tmp_path / "monday",
        [
            (exchange("b", 11 * S, 15 * S), None),
            (exchange("a", 10 * S, 20 * S), None),
            (exchange("c", 30 * S, 31 * S, tokens=(2_000, 40)), None),
            (exchange("d", 40 * S, 42 * S, outcome="error", tokens=None), None),
            (exchange("poll", 10 * S, 60 * S, method="GET"), None),
        ],
        unfinished=[90 * S],
    )


def run(command: click.Command, *words: Any) -> Result:
    """The front door turns our errors into text, so here they come out as they are."""
    return CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False, catch_exceptions=False)
