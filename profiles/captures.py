"""CAPTURE/: what the recorder writes and everybody else reads.

    CAPTURE/
      manifest.json            format firsttoken/capture: version, tool, upstream, bodies, counts of the recorder
      segment-NNNNNN.jsonl     live journal, one JSON line each, appended in one write
      segment-NNNNNN.jsonl.zst a closed one

Lines of a segment, told apart by `line`:

    segment  first line of every segment: format, version, and the anchor (wall and monotonic clock read together)
    window   event "open" or "close" at at_ns: between them the recorder saw all traffic
    beat     every second: at_ns, how many are in flight, how late the recorder's loop was, what it dropped
    start    a request arrived: id, at_ns, path, in_flight (others)
    end      it ended: an `Exchange`, with its `body` if bodies are kept

A window without a `close` ends at its last line: after a kill nobody knows what came later. A `start` without an `end`
is a request that was in flight then.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

from profiles.errors import FormatError
from profiles.files import check_format, decode_line, encode, read_document, read_lines
from profiles.records import Exchange, Record

FORMAT = "firsttoken/capture"
VERSION = 1
MANIFEST = "manifest.json"


class SegmentLine(Record, frozen=True, kw_only=True, tag_field="line", tag="segment"):
    """The head of a segment. wall_ns + (at_ns - mono_ns) is the wall clock of any instant in it."""

    format: str
    version: int
    tool: str
    wall_ns: int
    mono_ns: int
    bodies: str = "none"


class WindowLine(Record, frozen=True, kw_only=True, tag_field="line", tag="window"):
    """The recorder began or ceased to see traffic."""

    event: str  # open, close
    at_ns: int
    reason: str = ""


class BeatLine(Record, frozen=True, kw_only=True, tag_field="line", tag="beat"):
    """The recorder was alive at this instant."""

    at_ns: int
    in_flight: int
    lag_ns: int = 0
    written: int = 0
    dropped: int = 0


class StartLine(Record, frozen=True, kw_only=True, tag_field="line", tag="start"):
    """A request arrived. `in_flight` counts the others."""

    id: str
    at_ns: int
    method: str = "POST"
    path: str = ""
    in_flight: int = 0


class EndLine(Exchange, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """A request ended. `body` is the request's JSON as sent, `body_text` the same where it would break the line, and
    `body_base64` where it is not UTF-8."""

    body: msgspec.Raw = msgspec.Raw()
    body_text: str | None = None
    body_base64: str | None = None


Line = SegmentLine | WindowLine | BeatLine | StartLine | EndLine


@dataclass(frozen=True, slots=True)
class Interval:
    """A request's stay in the system, on the wall clock of its host. `end_ns` is None while it was never seen to end."""

    start_ns: int
    end_ns: int | None
    workload: str = ""


@dataclass(slots=True)
class Capture:
    """All segments of one capture directory, in order, their instants moved to the wall clock."""

    path: Path
    manifest: dict[str, Any]
    windows: list[tuple[int, int]] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)  # of the exchange at the same position
    open: list[StartLine] = field(default_factory=list)  # arrived, never seen to end
    dropped: int = 0
    torn: int = 0  # lines that no reader could use

    @property
    def intervals(self) -> list[Interval]:
        """Every request's stay, the unfinished ones with an open end, in order of arrival."""
        stays = [Interval(exchange.arrival_ns, exchange.end_ns) for exchange in self.exchanges]
        stays += [Interval(start.at_ns, None) for start in self.open]
        return sorted(stays, key=lambda stay: stay.start_ns)


def body_fields(body: bytes) -> dict[str, Any]:
    """The keys of an `end` line, or of a bodies line, that hold a request body byte for byte."""
    try:
        text = body.decode("utf-8")
        orjson.loads(body)
    except (UnicodeDecodeError, orjson.JSONDecodeError):
        return {"body_base64": base64.b64encode(body).decode("ascii")}
    if "\n" in text or "\r" in text or body != body.strip():
        # Whitespace between tokens is part of what was sent, and a raw newline would end the line.
        return {"body_text": text}
    return {"body": orjson.Fragment(body)}


def body_of(line: Any) -> bytes | None:
    """The request body that `body_fields` stored, or None if none was kept."""
    if line.body_text is not None:
        return str(line.body_text).encode("utf-8")
    if line.body_base64 is not None:
        return base64.b64decode(line.body_base64)
    raw = bytes(line.body)
    return raw or None


def end_line(exchange: Exchange, body: bytes | None = None) -> bytes:
    """The `end` line of an exchange, without its newline."""
    document = {"line": "end", **msgspec.to_builtins(exchange)}
    if body is not None:
        document |= body_fields(body)
    return encode(document)


def segment_paths(folder: Path) -> list[Path]:
    """The segments in order. A closed one replaces its live twin, which a kill may have left beside it."""
    named: dict[str, Path] = {}
    for path in sorted(folder.glob("segment-*.jsonl*")):
        if path.name.endswith((".jsonl", ".jsonl.zst")):
            named[path.name.split(".")[0]] = path  # .jsonl sorts before .jsonl.zst
    return [named[name] for name in sorted(named)]


def read_capture(folder: Path) -> Capture:
    """Read a capture directory. Raises FormatError with file and line; a torn last line is not an error."""
    if not folder.is_dir():
        problem = "not a directory" if folder.exists() else "no such directory"
        raise FormatError(folder, problem, hint="A capture is the directory that `firsttoken record --out` wrote.")
    manifest = read_document(folder / MANIFEST, FORMAT, (VERSION,))
    capture = Capture(folder, manifest)
    starts: dict[str, StartLine] = {}
    opened: int | None = None
    last_ns = 0
    for path in segment_paths(folder):
        for line, shift_ns in _lines_of(path):
            match line:
                case StartLine():
                    start = msgspec.structs.replace(line, at_ns=line.at_ns + shift_ns)
                    starts[line.id] = start
                    last_ns = max(last_ns, start.at_ns)
                case EndLine():
                    starts.pop(line.id, None)
                    capture.exchanges.append(shifted(line, shift_ns))
                    capture.bodies.append(body_of(line))
                    last_ns = max(last_ns, line.end_ns + shift_ns)
                case BeatLine():
                    last_ns = max(last_ns, line.at_ns + shift_ns)
                    capture.dropped = max(capture.dropped, line.dropped)
                case WindowLine(event="open"):
                    if opened is not None:  # the one before was never closed: it ended with its last line
                        capture.windows.append((opened, last_ns))
                        capture.open += starts.values()
                        starts.clear()
                    opened = last_ns = line.at_ns + shift_ns
                case WindowLine():
                    if opened is not None:
                        capture.windows.append((opened, line.at_ns + shift_ns))
                        opened = None
                    capture.open += starts.values()
                    starts.clear()
                case SegmentLine():
                    pass
    if opened is not None:
        capture.windows.append((opened, max(opened, last_ns)))
    capture.open += starts.values()
    order = sorted(range(len(capture.exchanges)), key=lambda at: capture.exchanges[at].arrival_ns)
    capture.exchanges = [capture.exchanges[at] for at in order]
    capture.bodies = [capture.bodies[at] for at in order]
    return capture


def _lines_of(path: Path) -> Iterator[tuple[Line, int]]:
    """Each line with the shift from its monotonic clock to the wall clock."""
    shift_ns: int | None = None
    for number, data in read_lines(path):
        line: Line = decode_line(path, number, data, Line)
        if isinstance(line, SegmentLine):
            document = {"format": line.format, "version": line.version}
            check_format(path, document, FORMAT, (VERSION,), line=number)
            shift_ns = line.wall_ns - line.mono_ns
        elif shift_ns is None:
            raise FormatError(path, "a segment must begin with its segment line", line=number)
        yield line, shift_ns


_INSTANTS = ("first_byte_ns", "first_token_ns", "first_content_ns", "last_token_ns", "last_byte_ns")


def shifted(exchange: Exchange, shift_ns: int) -> Exchange:
    """The same exchange with every instant moved."""

    def move(instant: int | None) -> int | None:
        return None if instant is None else instant + shift_ns

    response = msgspec.structs.replace(
        exchange.response, **{name: move(getattr(exchange.response, name)) for name in _INSTANTS}
    )
    return msgspec.structs.replace(
        exchange,
        arrival_ns=exchange.arrival_ns + shift_ns,
        dispatch_ns=move(exchange.dispatch_ns),
        headers_ns=move(exchange.headers_ns),
        end_ns=exchange.end_ns + shift_ns,
        response=response,
    )
