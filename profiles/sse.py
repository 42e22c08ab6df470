"""Server-sent events: bytes in, events out. No I/O, no clock, no JSON.

Rules (WHATWG HTML, section "Server-sent events", and what real engines do to them):

* A line ends with LF, CR or CRLF, wherever the reads cut them. U+2028 and its kind are text, never a line end:
  they are legal inside JSON, and splitting there destroys it.
* A line that starts with a colon is a comment. It is counted, it is never an event.
* One blank after the field's colon is dropped, and none is required.
* A byte order mark at the very start is dropped.
* A blank line ends an event. At the end of the stream an unfinished event is still handed out, because engines close
  without the last blank line, and the data is whole JSON or it is not.

Bytes stay bytes: a character that a read cuts in two is never decoded alone.
"""

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event. `data` holds each data line on its own, so that glued events can still be told apart."""

    name: str
    data: tuple[bytes, ...]
    # Some llama.cpp builds report a failure in a field named `error`.
    error: bytes | None = None


class Splitter:
    """Cuts a byte stream into events. Feed it reads of any size; it keeps what is unfinished."""

    def __init__(self) -> None:
        self.comments = 0
        self._unfinished = bytearray()
        self._scanned = 0  # how much of the unfinished line is known to hold no line end
        self._after_cr = False
        self._at_start = True
        self._name = ""
        self._data: list[bytes] = []
        self._error: bytes | None = None

    def feed(self, data: bytes) -> list[Event]:
        """The events that this read completed, in order."""
        events: list[Event] = []
        for line in self._lines(data):
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    @property
    def at_boundary(self) -> bool:
        """Between two events: the next byte begins one, whatever came before."""
        begun = self._unfinished or self._after_cr or self._at_start or self._data or self._name or self._error
        return not begun

    def close(self) -> list[Event]:
        """What was unfinished when the stream ended: at most one event."""
        events = []
        if self._unfinished:
            line = bytes(self._unfinished)
            self._unfinished.clear()
            event = self._take(line)
            if event is not None:  # pragma: no cover  # a non-empty line never ends an event
                events.append(event)
        event = self._take(b"")
        if event is not None:
            events.append(event)
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        if self._after_cr and data:
            # The CR already ended its line; an LF right behind it belongs to it.
            self._after_cr = False
            if data[:1] == b"\n":
                data = data[1:]
        buffer = self._unfinished
        buffer += data
        if self._at_start:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                return []
            if buffer.startswith(_BOM):
                del buffer[: len(_BOM)]
            self._at_start = False
        lines: list[bytes] = []
        begin, look = 0, self._scanned
        while True:
            end = _next_line_end(buffer, look)
            if end < 0:
                break
            lines.append(bytes(buffer[begin:end]))
            begin = end + 1
            if buffer[end] == 0x0D:
                if begin == len(buffer):
                    self._after_cr = True
                elif buffer[begin] == 0x0A:
                    begin += 1
            look = begin
        del buffer[:begin]
        self._scanned = len(buffer)
        return lines

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        if line[:1] == b":":
            self.comments += 1
            return None
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"error":
            self._error = value
        return None

    def _dispatch(self) -> Event | None:
        if not self._data and self._error is None:
            self._name = ""
            return None
        event = Event(self._name, tuple(self._data), self._error)
        self._name, self._data, self._error = "", [], None
        return event


def _next_line_end(buffer: bytearray, start: int) -> int:
    """Index of the next CR or LF, or −1. Two searches in C beat one loop in Python on a megabyte line."""
    lf = buffer.find(b"\n", start)
    cr = buffer.find(b"\r", start, lf if lf >= 0 else len(buffer))
    return cr if cr >= 0 else lf
