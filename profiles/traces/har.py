"""HAR 1.2, as browsers and proxies save it: `log.entries[]` with start, duration, request and response.

Its `timings.wait` ends with the headers of the answer, so that it is no TTFT for an answer that streams.
"""

import base64
import binascii
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from profiles.errors import FormatError
from profiles.traces.exchanges import Exchange, arrange_exchanges, headers_of
from profiles.traces.imported import Asked, Imported
from profiles.traces.instants import date_ns, number_ns
from profiles.traces.rows import Tally, reason_of

NAME: Final = "har"


class _Form(msgspec.Struct, frozen=True):
    """Keys that are not named here are not read."""


class _Header(_Form, frozen=True):
    name: str
    value: str = ""


class _Content(_Form, frozen=True):
    text: str | None = None
    encoding: str | None = None


class _Request(_Form, frozen=True):
    method: str
    url: str
    headers: list[_Header] = []
    post: _Content | None = msgspec.field(default=None, name="postData")


class _Response(_Form, frozen=True):
    status: int = 0
    headers: list[_Header] = []
    content: _Content = _Content()


class _Entry(_Form, frozen=True):
    started: str = msgspec.field(name="startedDateTime")
    time: msgspec.Raw
    request: _Request
    response: _Response = _Response()


class _Log(_Form, frozen=True):
    entries: list[msgspec.Raw]


class _Har(_Form, frozen=True):
    log: _Log


def read(path: Path, asked: Asked) -> Imported:
    """Raises FormatError."""
    tally = Tally(path)
    entries = _entries(path, tally)
    starts, zoned = date_ns(pl.Series([entry.started for _, entry in entries], dtype=pl.String), asked.zone)
    exchanges = []
    for (place, entry), start_ns in zip(entries, starts, strict=True):
        lasted_ns = number_ns(bytes(entry.time).decode(), "ms")
        if start_ns is None or lasted_ns is None:
            tally.drop(place, "startedDateTime is no date" if start_ns is None else "time is no number")
            continue
        exchanges.append(_exchange(place, entry, start_ns, max(0, lasted_ns)))
    zone = "named by each entry" if zoned else f"some entries name none, so {asked.zone} is taken (--zone)"
    notes = ["unit: dates, and ms for durations", f"zone: {zone}"]
    return arrange_exchanges(path, NAME, exchanges, tally, asked, notes)


def _entries(path: Path, tally: Tally) -> list[tuple[int, _Entry]]:
    hint = "A HAR file is one JSON document with log.entries."
    try:
        log = msgspec.json.decode(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), type=_Har).log
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except OSError as error:
        raise FormatError(path, f"cannot be read ({error.strerror})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(path, f"not a whole HAR file ({reason_of(error)})", hint=hint) from None
    found = []
    for place, raw in enumerate(log.entries, start=1):
        tally.read += 1
        try:
            found.append((place, msgspec.json.decode(raw, type=_Entry)))
        except msgspec.DecodeError as error:
            tally.drop(place, reason_of(error))
    return found


def _exchange(place: int, entry: _Entry, start_ns: int, lasted_ns: int) -> Exchange:
    answered = {name: value for name, value in _headers(entry.response.headers).items() if name == "content-type"}
    return Exchange(
        place=place,
        method=entry.request.method.upper(),
        url=entry.request.url,
        start_ns=start_ns,
        end_ns=start_ns + lasted_ns,
        status=entry.response.status or None,
        request_headers=_headers(entry.request.headers),
        request=_bytes(entry.request.post),
        answer_headers=answered,  # the text of a HAR has its content coding undone
        answer=_bytes(entry.response.content),
        complete=entry.response.status > 0,
    )


def _headers(headers: list[_Header]) -> dict[str, Any]:
    return headers_of([(header.name, header.value) for header in headers])


def _bytes(content: _Content | None) -> bytes | None:
    """None where the file does not hold it: an empty text says the same."""
    if content is None or not content.text:
        return None
    if content.encoding == "base64":
        try:
            return base64.b64decode(content.text)
        except binascii.Error:
            return None
    return content.text.encode()
