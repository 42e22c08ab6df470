"""Recorded HTTP exchanges to rows: what `har` and `mitm` share.

Of the headers only those are looked at that say how a body is written or which session a request is of. Neither
format knows when the first token came: what they call the start of a response are its headers, which an engine that
streams sends long before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import polars as pl

from profiles.answers import Answer
from profiles.dialects import OTHER, canonical_path, endpoint_of
from profiles.prompts import read_body
from profiles.records import ERROR, INCOMPLETE, ResponseFacts, outcome_of
from profiles.requests import describe
from profiles.session_names import AGENT_HEADER, PARENT_AGENT_HEADER, PARENT_HEADERS, SESSION_HEADERS
from profiles.stream import ResponseReader
from profiles.table import SCHEMA, facts_row
from profiles.traces.bodies import FACTS, Keyer, cleaned, keyed_column
from profiles.traces.imported import Asked, Imported
from profiles.traces.rows import Tally
from profiles.traces.timeline import Clock, arrange, windows_of

READ_HEADERS: Final = frozenset(
    ("content-type", "content-encoding", *SESSION_HEADERS, *PARENT_HEADERS, AGENT_HEADER, PARENT_AGENT_HEADER)
)
NOT_LLM: Final = "not a POST to an LLM endpoint"
_ANSWER: Final = ("prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "finish")
_NO_BODY: Final = "no body in the file"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request with its answer, as a file holds it. A body that the file does not hold is None."""

    place: int  # of the entry in the file, from 1
    method: str
    url: str
    start_ns: int
    end_ns: int | None
    status: int | None
    request_headers: Mapping[str, bytes]  # names in lower case, only those of READ_HEADERS
    request: bytes | None
    answer_headers: Mapping[str, bytes]
    answer: bytes | None
    complete: bool = True  # the answer came to its end
    chunks_ns: Sequence[int] = ()  # when each piece of the answer came, where the file tells


@dataclass(slots=True)
class _Rows:
    keyer: Keyer
    rows: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    keyed: list[bytes | None] = field(default_factory=list)
    no_request: int = 0
    no_answer: int = 0
    timed: int = 0


def headers_of(pairs: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """The headers that are looked at; of several with one name the first."""
    found: dict[str, bytes] = {}
    for name, value in pairs:
        if name.lower() in READ_HEADERS and value.strip():
            found.setdefault(name.lower(), value.strip().encode())
    return found


def arrange_exchanges(
    path: Path, format_name: str, exchanges: Sequence[Exchange], tally: Tally, asked: Asked, notes: list[str]
) -> Imported:
    """An `Imported` of the exchanges of a file. Raises FormatError."""
    made = _Rows(Keyer(asked.key))
    unfinished: list[int] = []
    for exchange in exchanges:
        endpoint = endpoint_of(urlsplit(exchange.url).path)
        if exchange.method != "POST" or endpoint == OTHER:
            tally.leave_out(NOT_LLM)
        elif exchange.end_ns is None:
            unfinished.append(exchange.start_ns)
        else:
            _add(made, exchange, exchange.end_ns, endpoint)
    rows = _table(made.rows)
    if any(keyed is not None for keyed in made.keyed):
        rows = rows.with_columns(keyed_column(made.keyed))
    held: dict[int, bytes] = {}
    notes += _notes(made, len(unfinished))
    with_body = {at: body for at, body in enumerate(made.bodies) if body is not None}
    if asked.bodies:
        held, removed = cleaned(with_body)
        notes.append(f"{len(held)} request bodies are kept, {removed} credentials taken out")
        rows = rows.with_columns(pl.Series("body", [at in held for at in range(rows.height)], dtype=pl.Boolean))
    elif with_body:
        notes.append("of bodies only lengths and parameters are kept (--bodies full keeps the text)")
    tally.check(asked.max_bad)
    return arrange(
        path, format_name, rows, Clock("date", wall=True), tally, asked, notes,
        windows=windows_of(asked, "date"), bodies=held, unfinished=unfinished,
    )  # fmt: skip


def _table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    names = ("at_ns", *(name for name in SCHEMA if rows and name in rows[0]))
    types = {name: SCHEMA.get(name, pl.Int64()) for name in (names if rows else ("at_ns", "end_ns"))}
    return pl.DataFrame({name: [row[name] for row in rows] for name in types}, schema=types)


def _add(made: _Rows, exchange: Exchange, end_ns: int, endpoint: str) -> None:
    encoding = exchange.request_headers.get("content-encoding", b"").decode("latin-1").lower()
    facts = describe(exchange.request, encoding)
    answer, said, timed = _read_answer(exchange, end_ns)
    outcome, origin = _outcome(exchange, answer)
    usage = {name: getattr(answer, name) for name in _ANSWER}
    counted = answer.prompt_tokens is not None or answer.output_tokens is not None
    first_ns = answer.first_token_ns if timed else None
    made.rows.append(
        {
            "at_ns": exchange.start_ns,
            "end_ns": end_ns,
            "first_token_ns": first_ns,
            "ttft_ns": None if first_ns is None else first_ns - exchange.start_ns,
            "status": exchange.status,
            "outcome": outcome,
            "origin": origin,
            "endpoint": endpoint,
            "path": canonical_path(urlsplit(exchange.url).path),
            "token_source": "usage" if counted else None,
        }
        | (dict.fromkeys(FACTS) | {"unread": _NO_BODY} if exchange.request is None else facts_row(facts))
        | usage
    )
    plain = read_body(exchange.request, encoding).plain if exchange.request is not None else None
    made.bodies.append(plain)
    made.keyed.append(
        None if plain is None else made.keyer.pack(plain, exchange.request_headers, said, facts.tools_chars)
    )
    made.no_request += exchange.request is None
    made.no_answer += exchange.answer is None
    made.timed += first_ns is not None


def _read_answer(exchange: Exchange, end_ns: int) -> tuple[ResponseFacts, Answer | None, bool]:
    """Facts of the answer, what it said, and whether the instants of the facts mean anything."""
    content_type = exchange.answer_headers.get("content-type", b"").decode("latin-1")
    encoding = exchange.answer_headers.get("content-encoding", b"").decode("latin-1")
    reader = ResponseReader(content_type, encoding, keep_answer=True)
    answer = exchange.answer or b""
    pieces = [piece + b"\n\n" for piece in answer.replace(b"\r\n", b"\n").split(b"\n\n") if piece.strip()]
    timed = not encoding and len(pieces) == len(exchange.chunks_ns) > 0
    timed = timed and all(exchange.start_ns <= at <= end_ns for at in exchange.chunks_ns)
    if timed:
        # Each event came in a piece of its own, so the instant of a piece is that of its event.
        for piece, at_ns in zip(pieces, exchange.chunks_ns, strict=True):
            reader.feed(piece, at_ns)
    else:
        reader.feed(answer, end_ns)
    facts = reader.finish()
    return facts, reader.answer(), timed


def _outcome(exchange: Exchange, answer: ResponseFacts) -> tuple[str | None, str | None]:
    if not exchange.complete or not exchange.status:
        return INCOMPLETE, None
    if exchange.answer is not None:
        return outcome_of(exchange.status, answer, body_complete=True)
    return (ERROR, "engine") if exchange.status >= 400 else (None, None)


def _notes(made: _Rows, unfinished: int) -> list[str]:
    count = len(made.rows)
    notes = []
    if made.timed < count:
        rest = f" of {count - made.timed} of {count} requests" if made.timed else ""
        notes.append(f"TTFT{rest} unknown: the file tells when the headers of an answer came, not its first token")
    if made.timed:
        notes.append(f"TTFT of {made.timed} requests from the instants of the pieces that came")
    if made.no_request:
        notes.append(f"{made.no_request} of {count} requests without their body: not classified")
    if made.no_answer:
        notes.append(f"{made.no_answer} of {count} answers without their body: no token counts, outcome unknown")
    if unfinished:
        notes.append(f"{unfinished} requests were in flight when the file ends")
    return [*notes, "headers are not kept"]
