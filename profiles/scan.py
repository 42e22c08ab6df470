"""Captures to columns, a piece at a time, so that a capture of ten million requests needs no more memory than a piece.

    segments ──line by line──▶ rows ──every PIECE_ROWS──▶ piece-N.parquet     wall-clock instants, order of ends
                          └──▶ bodies, packed, each under the position of its row

Positions count the rows of all captures in the order in which they were read. Only POST requests are traffic. A gateway
that polls /health or /v1/models puts no load on the engine, and would make the concurrency look busier than it is; such
requests are counted as dropped.
"""

import os
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import polars as pl

from profiles.captures import Capture, EndLine, Interval, RequestLine, body_of, stream_capture
from profiles.concurrency import Window, censor
from profiles.files import FILE_MODE, writable
from profiles.records import KeyedAnswer, KeyedFacts
from profiles.table import ASKED, SCHEMA, asked_of

PIECE_ROWS: Final = 100_000
METHOD: Final = "POST"

# Column of a piece beside those of a profile: the request's `Keyed`, packed. It never reaches a profile.
KEYED: Final = "keyed"
_INSTANTS: Final = ("arrival_ns", "dispatch_ns", "first_token_ns", "end_ns")
_COLUMNS: Final = (
    *("arrival_ns", "dispatch_ns", "first_token_ns", "end_ns", "ttft_ns", "status", "outcome", "origin"),
    *("endpoint", "path", "model", "stream", "prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"),
    *("token_source", "finish", *ASKED, "unread", "capture", "body", "late_ns"),
)
_PIECE: Final[dict[str, Any]] = {name: SCHEMA[name] for name in _COLUMNS} | {KEYED: pl.Binary()}
_BODY_HEAD = struct.Struct("<QI")  # position, bytes


class Keyed(msgspec.Struct, frozen=True, array_like=True):
    """Keyed ids of a request and of its answer, for `structure`."""

    facts: KeyedFacts | None = None
    answer: KeyedAnswer | None = None
    tools_chars: int = 0


_pack = msgspec.msgpack.Encoder().encode
unpack_keyed = msgspec.msgpack.Decoder(Keyed).decode


class KeyBodies(Protocol):
    """Makes of a body's bytes what `record --bodies hashed` keeps of it, under a key that nobody keeps."""

    def __call__(self, body: bytes, /) -> KeyedFacts | None: ...


@dataclass(slots=True)
class Pieces:
    """Rows on disk. `zero_ns` is taken from their instants when they are read."""

    paths: list[Path] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # position of the first row of each
    rows: int = 0
    keyed: int = 0  # of them, those with `Keyed`
    zero_ns: int = 0

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """These columns of all rows, by position."""
        if not self.paths:
            return pl.DataFrame(schema={name: _PIECE[name] for name in names})
        return self._moved(pl.concat([pl.read_parquet(path, columns=list(names)) for path in self.paths]))

    def take(self, positions: Any) -> pl.DataFrame:
        """The rows at these positions, in this order. Cheap where they lie in few pieces, as they do by time."""
        import numpy as np

        piece_of = np.searchsorted(np.asarray(self.starts), positions, side="right") - 1
        found, order = [], []
        for piece in np.unique(piece_of):
            at = np.flatnonzero(piece_of == piece)
            found.append(pl.read_parquet(self.paths[piece])[positions[at] - self.starts[piece]])
            order.append(at)
        rank = np.argsort(np.concatenate(order), kind="stable")
        return self._moved(pl.concat(found)[rank])

    def _moved(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.col(name) - self.zero_ns for name in _INSTANTS if name in frame.columns)


@dataclass(slots=True)
class Scanned:
    """What several captures hold, laid on one wall clock."""

    captures: list[Capture]  # without their exchanges
    windows: list[Window]  # as recorded: they may touch and overlap
    pieces: Pieces
    unfinished: list[Interval]  # arrived and never seen to end; censored at the end of their window
    dropped: Counter[str]
    bodies: Path | None = None  # see `read_bodies`


def scan_captures(
    paths: Sequence[Path],
    spill: Path,
    *,
    skews_ns: Mapping[Path, int] | None = None,
    keep_bodies: bool = True,
    key_body: KeyBodies | None = None,
    piece_rows: int = PIECE_ROWS,
) -> Scanned:
    """Read captures into pieces below the directory `spill`. Raises FormatError.

    `skews_ns` says how far the clock of a capture's host was ahead: its instants are moved back by so much.
    """
    pieces = Pieces()
    scanned = Scanned([], [], pieces, [], Counter(recorder=0, not_post=0, unfinished=0))
    writing = _Writing(spill, pieces, piece_rows)
    with _BodyFile(spill / "bodies.packed") as packed:
        for index, path in enumerate(paths):
            skew_ns = (skews_ns or {}).get(path, 0)

            def ended(
                line: EndLine, asked: RequestLine | None, shift_ns: int, index: int = index, skew_ns: int = skew_ns
            ) -> None:
                if line.method != METHOD:
                    scanned.dropped["not_post"] += 1
                    return
                body = body_of(line if asked is None else asked) if keep_bodies or key_body is not None else None
                if body is not None and keep_bodies:
                    packed.add(pieces.rows + writing.waiting, body)
                writing.add(_row(line, asked, shift_ns - skew_ns, index, body, key_body))

            capture = stream_capture(path, ended)
            windows = [(opened - skew_ns, close - skew_ns) for opened, close in capture.windows]
            waiting = [
                Interval(start.at_ns - skew_ns, None) for start in capture.open if start.method == METHOD
            ]  # censored before the merge: an open end reaches to the end of its own capture's window
            capture.windows = windows
            scanned.unfinished += censor(waiting, windows)
            scanned.windows += windows
            scanned.captures.append(capture)
            scanned.dropped["unfinished"] += len(waiting)
            scanned.dropped["recorder"] += capture.dropped
        writing.flush()
    scanned.bodies = packed.path if packed.bodies else None
    return scanned


def _row(
    line: EndLine, asked: RequestLine | None, shift_ns: int, capture: int, body: bytes | None, key: KeyBodies | None
) -> tuple[Any, ...]:
    """The columns of one request, instants on the wall clock."""
    facts = line.request if asked is None else asked.request
    got = line.response
    arrival_ns, first_ns = line.arrival_ns, got.first_token_ns
    keyed = facts.keyed
    if body is not None and key is not None:
        keyed = _joined(keyed, key(body))
    return (
        arrival_ns + shift_ns,
        None if line.dispatch_ns is None else line.dispatch_ns + shift_ns,
        None if first_ns is None else first_ns + shift_ns,
        line.end_ns + shift_ns,
        None if first_ns is None else first_ns - arrival_ns,
        line.status,
        line.outcome,
        line.origin,
        line.endpoint,
        line.path,
        facts.model,
        facts.stream,
        got.prompt_tokens,
        got.output_tokens,
        got.cached_tokens,
        got.reasoning_tokens,
        None if got.prompt_tokens is None and got.output_tokens is None else "usage",
        got.finish,
        *asked_of(facts),
        facts.unread,
        capture,
        body is not None,
        line.late_ns,
        None if keyed is None else _pack(Keyed(keyed, line.answer, facts.tools_chars)),
    )


def _joined(recorded: KeyedFacts | None, made: KeyedFacts | None) -> KeyedFacts | None:
    """What the recorder keyed, and what it leaves to us where it keeps the body.

    Messages stay under the recorder's key, because ids of answers are.
    """
    if recorded is None or made is None:
        return recorded or made
    ours = {
        name: getattr(made, name)
        for name in ("blocks", "prompt_chars", "media", "schema", "schema_bytes", "cache_salt")
    }
    return msgspec.structs.replace(recorded, messages=recorded.messages or made.messages, **ours)


class _Writing:
    """Rows that wait until they make a piece."""

    def __init__(self, spill: Path, pieces: Pieces, piece_rows: int) -> None:
        self._spill, self._pieces, self._piece_rows = spill, pieces, piece_rows
        self._rows: list[tuple[Any, ...]] = []

    @property
    def waiting(self) -> int:
        return len(self._rows)

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) >= self._piece_rows:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        frame = pl.DataFrame(
            [pl.Series(name, values, dtype=_PIECE[name]) for name, values in zip(_PIECE, columns, strict=True)]
        )
        path = self._spill / f"piece-{len(self._pieces.paths):06}.parquet"
        with writable(path):
            frame.write_parquet(path, compression="lz4")  # read once more and deleted
        self._pieces.paths.append(path)
        self._pieces.starts.append(self._pieces.rows)
        self._pieces.rows += len(self._rows)
        self._pieces.keyed += frame.height - frame[KEYED].null_count()
        self._rows = []


class _BodyFile:
    """Bodies on their way into a profile, packed; made when the first comes."""

    def __init__(self, path: Path) -> None:
        self.path, self.bodies = path, 0
        self._stream: Any = None

    def __enter__(self) -> "_BodyFile":
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, position: int, body: bytes) -> None:
        if self._stream is None:
            import zstandard

            file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb")
            self._stream = zstandard.ZstdCompressor(level=1).stream_writer(file)
        with writable(self.path):
            self._stream.write(_BODY_HEAD.pack(position, len(body)) + body)
        self.bodies += 1


def read_bodies(packed: Path) -> Iterator[tuple[int, bytes]]:
    """The bodies that a scan packed: position of the row, and the body byte for byte."""
    import io

    import zstandard

    with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as raw:
        stream = io.BufferedReader(raw)
        while head := stream.read(_BODY_HEAD.size):
            position, size = _BODY_HEAD.unpack(head)
            yield position, stream.read(size)
