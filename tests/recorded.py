"""Captures and profiles made without a recorder, for tests of what comes after it."""

from pathlib import Path
from typing import Any

import orjson

from profiles.build import build_profile
from profiles.capture_folder import FORMAT, MANIFEST, VERSION
from profiles.captures import end_line
from profiles.files import append_line, make_folder, write_document
from profiles.records import Exchange, ResponseFacts
from profiles.requests import describe
from profiles.units import MILLISECOND_NS, SECOND_NS

MODEL = "test-model"


def ask(kind: str, number: int) -> bytes:
    """A request of the demo's kinds: `json`, `rag` or `qa`."""
    words = {"json": 120, "rag": 1500, "qa": 16}[kind]
    text = " ".join(f"{kind}{number}word{index}" for index in range(words))
    body: dict[str, Any] = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": text}]}
    if kind == "json":
        body["response_format"] = {"type": "json_object"}
    return orjson.dumps(body)


def write_capture(folder: Path, kinds: list[str], *, overlap: int = 3, output_tokens: int = 24) -> Path:
    """A capture with bodies: one request a second, of which every third starts while the one before runs."""
    make_folder(folder)
    write_document(folder / MANIFEST, {"format": FORMAT, "version": VERSION, "tool": "test", "bodies": "full"})
    segment = folder / "segment-000001.jsonl"
    head = {"line": "segment", "format": FORMAT, "version": VERSION, "tool": "test", "wall_ns": 10**18, "mono_ns": 0}
    append_line(segment, head | {"bodies": "full"})
    append_line(segment, {"line": "window", "event": "open", "at_ns": 0})
    for number, kind in enumerate(kinds):
        body = ask(kind, number)
        early = 600 * MILLISECOND_NS if number % overlap == overlap - 1 else 0
        arrival = (number + 1) * SECOND_NS - early
        end = arrival + 500 * MILLISECOND_NS
        exchange = Exchange(
            id=f"t-{number}",
            endpoint="chat",
            method="POST",
            path="/v1/chat/completions",
            arrival_ns=arrival,
            dispatch_ns=arrival,
            end_ns=end,
            status=200,
            outcome="ok",
            request=describe(body),
            response=ResponseFacts(
                first_token_ns=arrival + 20 * MILLISECOND_NS,
                prompt_tokens=len(body.split()),
                output_tokens=output_tokens,
                output=True,
                finish="stop",
                done=True,
            ),
        )
        append_line(segment, end_line(exchange, body))
    append_line(segment, {"line": "window", "event": "close", "at_ns": (len(kinds) + 2) * SECOND_NS})
    return folder


def write_profile(folder: Path, kinds: list[str], **shape: int) -> Path:
    """A profile of such a capture."""
    capture = write_capture(folder.with_name(f"{folder.name}-capture"), kinds, **shape)
    build_profile([capture], folder)
    return folder
