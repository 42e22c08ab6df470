"""What mitmproxy's HTTP/1 cannot pass on, made up for in place. `install` changes the classes of this process.

* Trailers: mitmproxy fails over them. They are forwarded.
* Interim answers (102, 103): mitmproxy takes them for the final one. They are forwarded, and the final one is awaited.
* A chunked 204 or 304, which has no body: mitmproxy sends the end of one, and the client reads it as its next answer.
* An empty line before a request, as old clients send it: mitmproxy waits for more. It is skipped.
* What an upgraded connection sends first may begin with a line end: mitmproxy cuts it off.
* Its own error answers are pages for a browser. A client of an engine gets the JSON that it expects.

Two things stay. `Expect: 100-continue` is answered by mitmproxy and taken out, so the engine cannot refuse a body
before it is sent. And a client that closes its sending side after the request counts as one that has hung up, since
nothing tells the two apart before it is too late for the engine. Engines behind uvicorn see it the same way.
"""

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

import orjson
from h11 import EndOfMessage, ProtocolError
from mitmproxy import http
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layers.http import _http1
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    RequestEndOfMessage,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseTrailers,
)

from capture.relay import relay_of

NAME: Final = "firsttoken"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_HTTP2: Final = b"PRI * HTTP/2.0"
_REFUSED: Final = b"HTTP/1.1 400 "
# Signs in mitmproxy's messages, and what is said of them.
_CAUSES: Final = {
    "certificate": "the engine's certificate is not accepted; see --ca",
    "tls": "the engine does not speak TLS as it should",
    "connect": "nothing answers at the engine's address",
    "refused": "nothing answers at the engine's address",
}
_BODILESS: Final = (204, 304)
_STATUS_LINE_BYTES: Final = len("HTTP/1.1 103 ")


def install(count_refused: Callable[[], None] = lambda: None) -> None:
    """Put these in the place of mitmproxy's. `count_refused` is told of what is no request and becomes no flow."""
    if _http1.make_error_response is not error_response:
        setattr(_http1, "make_error_response", error_response)  # noqa: B010  # as an assignment mypy refuses it
        setattr(_http1.Http1Connection, "read_body", read_body)  # noqa: B010  # as above
        _wrap_send(_http1.Http1Server, ResponseTrailers, ResponseEndOfMessage)
        _wrap_send(_http1.Http1Client, RequestTrailers, RequestEndOfMessage)
        _wrap_client_headers(_http1.Http1Client)
        _wrap_server_headers(_http1.Http1Server, count_refused)
        setattr(_http1.Http1Connection, "make_pipe", make_pipe)  # noqa: B010  # as above


def read_body(self: Any, event: events.Event) -> Iterator[commands.Command]:
    """Pass on what of a body has arrived, and its trailers.

    The pieces of a response whose head has gone to the client take the short way: through their relay, and out. What
    came in one read leaves in one write.
    """
    closed = not isinstance(event, events.DataReceived)
    from_client = isinstance(self, _http1.Http1Server)
    relay = None if from_client else relay_of(self.response)
    out: list[bytes] = []
    end = None
    try:
        while (
            end is None and (piece := self.body_reader.read_eof() if closed else self.body_reader(self.buf)) is not None
        ):
            if type(piece) is EndOfMessage:
                end = piece
            elif piece.data:
                data = bytes(piece.data)
                if relay is not None and relay.opened:
                    out.append(_framed(relay.take(data), relay.chunked))
                else:
                    yield ReceiveHttp(self.ReceiveData(self.stream_id, data))
        failed = None
    except ProtocolError as problem:
        failed = problem
    if out:
        yield commands.SendData(self.context.client, out[0] if len(out) == 1 else b"".join(out))
    if failed is not None:
        yield commands.CloseConnection(self.conn)
        form: Any = self.ReceiveProtocolError
        yield ReceiveHttp(form(self.stream_id, f"HTTP/1 protocol error: {failed}", code=form.code))
    elif end is not None:
        yield from _end_body(self, end, from_client)


def _end_body(self: Any, end: EndOfMessage, from_client: bool) -> Iterator[commands.Command]:
    if end.headers:
        trailers = http.Headers([(bytes(name), bytes(value)) for name, value in end.headers.raw_items()])
        form: Any = RequestTrailers if from_client else ResponseTrailers
        yield ReceiveHttp(form(self.stream_id, trailers))
    yield ReceiveHttp(self.ReceiveEndOfMessage(self.stream_id))
    yield from self.mark_done(request=from_client, response=not from_client)


def make_pipe(self: Any) -> Iterator[commands.Command]:
    """From here on bytes pass as they are, those first that came with the upgrade."""
    self.state = self.passthrough
    already = self.buf.maybe_extract_at_most(len(self.buf))
    if already:
        yield from self.state(events.DataReceived(self.conn, bytes(already)))


def _framed(data: bytes, chunked: bool) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data


def _wrap_send(kind: Any, trailers_form: Any, end_form: Any) -> None:
    """Keep trailers until the end of their message, and write them there; no end for what has no body.

    A piece of a response goes the short way: mitmproxy would look its framing up in the headers each time. A relay
    learns here that the head is out.
    """
    send = kind.send

    def send_with_trailers(self: Any, event: Any) -> Iterator[commands.Command]:
        if type(event) is ResponseData:
            if self.chunks_of is not self.response:
                self.chunks_of = self.response
                self.chunked = "chunked" in self.response.headers.get("transfer-encoding", "").lower()
            yield commands.SendData(self.conn, _framed(event.data, self.chunked))
            return
        if type(event) is ResponseHeaders and (relay := relay_of(event.response)) is not None:
            yield from send(self, event)
            relay.open("chunked" in event.response.headers.get("transfer-encoding", "").lower())
            return
        if isinstance(event, trailers_form):
            self.trailers_to_send = event.trailers
            return
        if not isinstance(event, end_form):
            yield from send(self, event)
            return
        trailers = self.__dict__.pop("trailers_to_send", None)
        bodiless = end_form is ResponseEndOfMessage and self.response.status_code in _BODILESS
        for command in send(self, event):
            if not (isinstance(command, commands.SendData) and command.data == _LAST_CHUNK):
                yield command
            elif not bodiless:
                lines = b"".join(b"%s: %s\r\n" % field for field in trailers.fields) if trailers is not None else b""
                yield commands.SendData(command.connection, b"0\r\n" + lines + b"\r\n")

    kind.send = send_with_trailers
    kind.chunks_of, kind.chunked = None, False


def _wrap_client_headers(kind: Any) -> None:
    """Pass an interim answer of the engine on, and read on."""
    read_headers = kind.read_headers

    def read_final_headers(self: Any, event: events.Event) -> Iterator[commands.Command]:
        while isinstance(event, events.DataReceived) and (interim := _take_interim(self)):
            if not interim.startswith(b"100", 9) and self.request.http_version == "HTTP/1.1":
                yield commands.SendData(self.context.client, interim)
        yield from read_headers(self, event)

    kind.read_headers = read_final_headers


def _take_interim(self: Any) -> bytes:
    """The head of an interim answer, if one is whole at the start of the buffer. 101 is final: it ends HTTP."""
    if self.request is None or len(self.buf) < _STATUS_LINE_BYTES:
        return b""
    start = bytes(self.buf)[:_STATUS_LINE_BYTES]
    if not start.startswith(b"HTTP/1.") or start[9:10] != b"1" or start[9:12] == b"101":
        return b""
    lines = self.buf.maybe_extract_lines()
    return b"\r\n".join([*map(bytes, lines), b"", b""]) if lines else b""


def _wrap_server_headers(kind: Any, count_refused: Callable[[], None]) -> None:
    """Skip empty lines before a request (RFC 9112, 2.2). Refuse HTTP/2: it would reach the engine as something else."""
    read_headers = kind.read_headers

    def read_request_headers(self: Any, event: events.Event) -> Iterator[commands.Command]:
        if isinstance(event, events.DataReceived):
            while self.buf and bytes(self.buf).startswith(b"\r\n"):
                self.buf.maybe_extract_at_most(2)
            if bytes(self.buf).startswith(_HTTP2):
                count_refused()
                yield commands.SendData(self.conn, error_response(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED))
                yield commands.CloseConnection(self.conn)
                self.state = self.done
                return
        for command in read_headers(self, event):
            if isinstance(command, commands.SendData) and command.data.startswith(_REFUSED):
                count_refused()
            yield command

    kind.read_headers = read_request_headers


def error_response(status: int, message: str = "") -> bytes:
    """An answer of the proxy itself, in the form of an engine's error.

    mitmproxy's `message` may quote the client, so it only chooses among our own words.
    """
    said = HTTPStatus(status).phrase.lower()
    if status == HTTPStatus.BAD_GATEWAY:
        said = next((words for sign, words in _CAUSES.items() if sign in message.lower()), "the engine gave no answer")
    body = orjson.dumps({"error": {"message": f"{NAME}: {said}", "type": "proxy_error", "code": status}})
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nserver: {NAME}\r\nconnection: close\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
