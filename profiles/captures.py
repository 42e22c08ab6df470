"""CAPTURE/: what the recorder writes and everybody else reads.

    CAPTURE/
      manifest.json            format firsttoken/capture: version, tool, upstream, bodies, counts of the recorder
      segment-NNNNNN.jsonl     live journal, one JSON line each, appended in one write
      segment-NNNNNN.jsonl.zst the same, compressed once it is closed
      hash.key                 the secret of its keyed ids, where it has any

Lines of a segment, told apart by `line`:

    segment  first line of every segment: format, version, and the anchor (wall and monotonic clock read together)
    window   event "open" or "close" at at_ns: between them the recorder saw all traffic
    beat     every second: at_ns, how many are in flight, how late the recorder's loop was, what it dropped
    start    a request arrived: id, at_ns, path, in_flight (others)
    request  its body was read: what it asked for, and the body itself if bodies are kept
    end      it ended: an `Exchange`, without what its `request` line says

A window without a `close` ends at its last line: after a kill nobody knows what came later. A `start` without an `end`
is a request that was in flight then. Ends may follow the `close`: a proxy that stops reports its last requests late.

The instants of a window are moved to the wall clock by one anchor, that of the segment it opened in. A wall clock is
slewed and stepped; two anchors inside one window would shift its requests against each other.
"""

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import orjson

from profiles.capture_folder import FORMAT, VERSION, read_manifest, readable, require_folder, segment_paths
from profiles.errors import FormatError
from profiles.files import check_format, decode_line, read_lines
from profiles.records import Exchange, Record, RequestFacts


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


class RequestLine(Record, frozen=True, kw_only=True, tag_field="line", tag="request", omit_defaults=True):
    """The body of a request was read, a moment after it was complete at `at_ns`.

    `body` is the JSON as sent, `body_text` the same where it would break the line, and `body_base64` where it is not
    UTF-8.
    """

    id: str
    at_ns: int
    request: RequestFacts
    body: msgspec.Raw = msgspec.Raw()
    body_text: str | None = None
    body_base64: str | None = None


class EndLine(Exchange, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """A request ended. It may hold itself what its `request` line says."""

    body: msgspec.Raw = msgspec.Raw()
    body_text: str | None = None
    body_base64: str | None = None


Line = SegmentLine | WindowLine | BeatLine | StartLine | RequestLine | EndLine


@dataclass(frozen=True, slots=True)
class Interval:
    """A request's stay in the system, on the wall clock of its host. `end_ns` is None where no end was seen."""

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
    torn: int = 0  # segments whose last line a kill cut off

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
    """The `end` line of an exchange, without its newline.

    Written on the recording path, so by msgspec in one pass. Its facts were read from JSON or counted by us: none of
    them can be a number that JSON does not hold.
    """
    return _with_body(b'{"line":"end",' + msgspec.json.encode(exchange)[1:], body)


def request_line(id: str, at_ns: int, asked: RequestFacts, body: bytes | None = None) -> bytes:
    """The `request` line of a request, without its newline."""
    return _with_body(msgspec.json.encode(RequestLine(id=id, at_ns=at_ns, request=asked)), body)


def _with_body(line: bytes, body: bytes | None) -> bytes:
    return line if body is None else line[:-1] + b"," + orjson.dumps(body_fields(body))[1:]


def read_capture(folder: Path) -> Capture:
    """Read a capture directory whole. Raises FormatError with file and line; a torn last line is not an error."""
    found: list[tuple[Exchange, bytes | None]] = []

    def ended(line: EndLine, asked: RequestLine | None, shift_ns: int) -> None:
        exchange: Exchange = shifted(line, shift_ns)
        if asked is not None:
            exchange = msgspec.structs.replace(exchange, request=asked.request)
        found.append((exchange, body_of(line if asked is None else asked)))

    capture = stream_capture(folder, ended)
    found.sort(key=lambda each: each[0].arrival_ns)
    capture.exchanges = [exchange for exchange, _ in found]
    capture.bodies = [body for _, body in found]
    return capture


class Ended(Protocol):
    """Called for each request that ended: its lines as recorded, and the shift of their instants to the wall clock."""

    def __call__(self, line: "EndLine", asked: "RequestLine | None", shift_ns: int, /) -> None: ...


def stream_capture(folder: Path, ended: Ended) -> Capture:
    """Read a capture directory line by line. What ended goes to `ended`, in order of ends; the capture that is returned
    holds all the rest. Raises FormatError with file and line; a torn last line is not an error.
    """
    with readable(folder):
        require_folder(folder)
        capture = Capture(folder, read_manifest(folder))
        segments = segment_paths(folder)
        purged = bool(segments) and not segments[0].name.startswith("segment-000001.")
        reading = _Reading(capture, ended, purged=purged)
        for path in segments:
            for line, anchor_ns in _lines_of(path):
                reading.take(line, anchor_ns)
            capture.torn += _ends_torn(path)
        reading.close()
        return capture


@dataclass(slots=True)
class _Reading:
    """What is known in the middle of a capture: the window that is open and who is in flight."""

    capture: Capture
    ended: Ended
    shift_ns: int | None = None  # from the recorder's monotonic clock to the wall clock
    opened_ns: int | None = None
    last_ns: int = 0
    dropped: int = 0  # the running count of the last beat; a lower one is a new recorder that counts from 0
    starts: dict[str, StartLine] = field(default_factory=dict)
    started_ns: dict[str, int] = field(default_factory=dict)  # of the same, by the recorder's own clock
    asked: dict[str, RequestLine] = field(default_factory=dict)  # of requests that have not ended
    purged: bool = False  # the first segment is gone: what is left may begin in the middle of a window

    def take(self, line: Line, anchor_ns: int) -> None:
        opens = isinstance(line, WindowLine) and line.event == "open"
        if opens or self.shift_ns is None:
            if opens:
                self._close_window(self.last_ns)
            self.shift_ns = anchor_ns
        shift_ns = self.shift_ns
        match line:
            case StartLine():
                before = self.starts.get(line.id)
                # The same one told again after the writer was replaced is one request; of two others with one id
                # neither is lost.
                if before is not None and self.started_ns[line.id] != line.at_ns:
                    self.capture.open.append(before)
                self.starts[line.id] = msgspec.structs.replace(line, at_ns=line.at_ns + shift_ns)
                self.started_ns[line.id] = line.at_ns
                self._saw(line.at_ns + shift_ns)
            case RequestLine():
                self.asked[line.id] = line
                self._saw(line.at_ns + shift_ns)
            case EndLine():
                self.starts.pop(line.id, None)
                self.started_ns.pop(line.id, None)
                self.ended(line, self.asked.pop(line.id, None), shift_ns)
                self._saw(line.end_ns + shift_ns)
            case BeatLine():
                self.capture.dropped += line.dropped - (self.dropped if line.dropped >= self.dropped else 0)
                self.dropped = line.dropped
                self._saw(line.at_ns + shift_ns)
            case WindowLine(event="open"):
                self.opened_ns = self.last_ns = line.at_ns + shift_ns
            case WindowLine():
                self._close_window(line.at_ns + shift_ns)
            case SegmentLine():
                pass

    def close(self) -> None:
        """No more lines: who was never seen to end stays open, and an open window ends with its last line.

        Not before: a recorder that could not write for a while opens a new window, and those in flight end in it.
        """
        self._close_window(self.last_ns)
        self.capture.open += self.starts.values()

    def _saw(self, at_ns: int) -> None:
        if self.purged and self.opened_ns is None and not self.capture.windows:
            self.opened_ns = self.last_ns = at_ns  # nobody knows what was before the first line that is left
        self.last_ns = max(self.last_ns, at_ns)

    def _close_window(self, at_ns: int) -> None:
        if self.opened_ns is not None:
            self.capture.windows.append((self.opened_ns, max(self.opened_ns, at_ns)))
            self.opened_ns = None


def _ends_torn(path: Path) -> bool:
    """A live journal whose last line has no end. A closed segment was written whole."""
    if path.suffix == ".zst" or not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _lines_of(path: Path) -> Iterator[tuple[Line, int]]:
    """Each line with its segment's anchor: the shift from the monotonic clock to the wall clock."""
    shift_ns: int | None = None
    if path.suffix == ".jsonl" and not path.exists():
        path = path.with_name(f"{path.name}.zst")  # a recorder that goes on has compressed it since we listed it
    for number, data in read_lines(path):
        line: Line = decode_line(path, number, data, Line)
        if isinstance(line, SegmentLine):
            document = {"format": line.format, "version": line.version}
            check_format(path, document, FORMAT, (VERSION,), line=number)
            shift_ns = line.wall_ns - line.mono_ns
        elif shift_ns is None:
            raise FormatError(path, "a segment must begin with its segment line", line=number)
        elif isinstance(line, EndLine) and line.end_ns < line.arrival_ns:
            raise FormatError(path, f"request {line.id} ends before it arrives", line=number)
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
