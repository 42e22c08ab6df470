"""One HTTP/1.1 response, as its bytes come in. No I/O and no clock.

llhttp parses (through httptools): in Python the parsing of the head alone costs 0.12 ms on a slow core, in C 5 µs, and
a client that answers eight first tokens at once pays for each of them.
"""

from typing import Final

import httptools

# A gateway may write cookies and tracing at length. What is longer than this is no head.
LONGEST_HEAD_BYTES: Final = 256 * 1024


class AnswerParser:
    """Feed it each read; it returns the body in it. Never used for more than one response.

    Interim responses (1xx) and trailers are read and dropped. `complete` tells that the response is whole, `reusable`
    that the connection may carry another one, and `broken` why it is no HTTP/1.1 response, or not all of one: then
    nothing more is to be fed.
    """

    def __init__(self) -> None:
        self.status: int | None = None  # of the final response, once its head is whole
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.reusable = False
        self.broken: str | None = None
        self._head_bytes = 0
        self._interim = False
        self._framed = False
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        # What sloppy gateways send and every client takes: lines that end in LF, and a length beside chunks (RFC 9112
        # §6.3: the chunks win).
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_chunked_length=True)

    def feed(self, data: bytes) -> bytes:
        """The part of the body that this read brought, up to what broke it."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.broken = "the engine wants to switch protocols"
        except httptools.HttpParserError as error:
            if not self.complete:
                self.broken = f"not HTTP: {error}"
            self.reusable = False  # else something behind the end of the response, which nobody asked for
        if self.status is None:
            self._head_bytes += len(data)
            if self._head_bytes > LONGEST_HEAD_BYTES:
                self.broken = f"the head of the answer is longer than {LONGEST_HEAD_BYTES} bytes"
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces.pop()
        body = b"".join(pieces)
        pieces.clear()
        return body

    def end(self) -> None:
        """The connection has ended. Only a body that nothing else delimits is whole by that; else it is broken."""
        if self.status is not None and not self._framed:
            self.complete = True
        elif not self.complete:
            where = (
                "before the end of its answer"
                if self.status is not None
                else "in the head of its answer"
                if self._head_bytes
                else "without an answer"
            )
            self.broken = f"the engine closed the connection {where}"

    # Called by llhttp.

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is None:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            self.headers.clear()
            return
        self.status = status
        self.reusable = self._parser.should_keep_alive()
        self._framed = _is_framed(self.headers)

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        self.complete = self.complete or not self._interim


def _is_framed(headers: list[tuple[bytes, bytes]]) -> bool:
    """The response says itself where its body ends (RFC 9112 §6.3); else the end of the connection does."""
    codings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        return codings[-1].lower().rpartition(b",")[2].strip() == b"chunked"
    return any(name.lower() == b"content-length" for name, _ in headers)
