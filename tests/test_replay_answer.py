"""The parsing of one HTTP response: every framing, every split, everything that is no response."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.answer import LONGEST_HEAD_BYTES, AnswerParser

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def parse(data: bytes, *cuts: int, end: bool = False) -> tuple[bytes, AnswerParser]:
    """Feed it in pieces; nothing is fed after the answer has ended in any way, as its caller does."""
    parser, body = AnswerParser(), b""
    for start, stop in zip((0, *cuts), (*cuts, len(data)), strict=True):
        if parser.broken is None and not parser.complete:
            body += parser.feed(data[start:stop])
    if end and parser.broken is None:
        parser.end()
    return body, parser


# name, bytes, the connection ends behind them, body, complete, reusable
FRAMINGS = [
    ("chunks", CHUNKED + b"2\r\nhi\r\n1;name=value\r\n!\r\n0\r\n\r\n", False, b"hi!", True, True),
    ("trailers", CHUNKED + b"2\r\nhi\r\n0\r\nx-check: 1\r\nx-more: 2\r\n\r\n", False, b"hi", True, True),
    ("a length", OK + b"Content-Length: 2\r\n\r\nhi", False, b"hi", True, True),
    ("no body", OK + b"content-length: 0\r\n\r\n", False, b"", True, True),
    ("204", b"HTTP/1.1 204 No Content\r\n\r\n", False, b"", True, True),
    ("until the end", OK + b"\r\nhi", True, b"hi", True, False),
    ("until the end, by an unknown coding", OK + b"transfer-encoding: gzip\r\n\r\nhi", True, b"hi", True, False),
    ("a goodbye", OK + b"connection: close\r\ncontent-length: 2\r\n\r\nhi", False, b"hi", True, False),
    ("HTTP/1.0", b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", False, b"hi", True, False),
    ("HTTP/1.0 kept", b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi", False, b"hi", True,
     True),
    ("interim answers", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK
     + b"content-length: 2\r\n\r\nhi", False, b"hi", True, True),
    ("no reason", b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nhi", False, b"hi", True, True),
    ("lines that end in LF", b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi", False, b"hi", True, True),
    ("a length beside chunks", OK + b"content-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
     False, b"hi", True, True),
    ("something behind the end", OK + b"content-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n", False, b"hi", True, False),
    ("garbage behind the end", OK + b"content-length: 2\r\n\r\nhi\0\0", False, b"hi", True, False),
    ("not all yet", CHUNKED + b"2\r\nhi\r\n", False, b"hi", False, True),
]  # fmt: skip


@pytest.mark.parametrize(("data", "end", "body", "complete", "reusable"), [row[1:] for row in FRAMINGS],
                         ids=[row[0] for row in FRAMINGS])  # fmt: skip
def test_a_body_ends_where_its_framing_says(
    data: bytes, end: bool, body: bytes, complete: bool, reusable: bool
) -> None:
    found, parser = parse(data, end=end)
    assert (found, parser.complete, parser.reusable) == (body, complete, reusable)
    assert parser.broken is None


@pytest.mark.parametrize(
    ("data", "body", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", b"", "not HTTP: "),
        (b"\0\xff\x01", b"", "not HTTP: "),
        (CHUNKED + b"2\r\nhi\r\nzz\r\n", b"hi", "not HTTP: Invalid character in chunk size"),
        (OK + b"content-length: two\r\n\r\nhi", b"", "not HTTP: Invalid character in Content-Length"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", b"",
         "the engine wants to switch protocols"),
        (OK + b"x: " + b"a" * LONGEST_HEAD_BYTES, b"", "the head of the answer is longer than 262144 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_response_is_said_and_what_came_before_is_kept(data: bytes, body: bytes, why: str) -> None:
    found, parser = parse(data)
    assert parser.broken is not None
    assert parser.broken.startswith(why)
    assert (found, parser.complete) == (body, False)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the engine closed the connection without an answer"),
        (b"HTTP/1.1 2", "the engine closed the connection in the head of its answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "the engine closed the connection in the head of its answer"),
        (CHUNKED + b"2\r\nhi\r\n", "the engine closed the connection before the end of its answer"),
        (OK + b"content-length: 3\r\n\r\nhi", "the engine closed the connection before the end of its answer"),
    ],
)
def test_a_connection_that_ends_too_early_is_said(data: bytes, why: str) -> None:
    _, parser = parse(data, end=True)
    assert (parser.broken, parser.complete) == (why, False)


def test_a_large_head_is_read() -> None:
    value = b"v" * (LONGEST_HEAD_BYTES // 2)
    _, parser = parse(OK + b"x-trace: " + value + b"\r\ncontent-length: 0\r\n\r\n", 70_000, 90_000)
    assert parser.complete
    assert parser.headers[0] == (b"x-trace", value)


@given(st.sampled_from([row for row in FRAMINGS if row[4]]), st.data())
def test_it_does_not_matter_where_the_reads_cut(
    row: tuple[str, bytes, bool, bytes, bool, bool], drawn: st.DataObject
) -> None:
    _, data, end, body, _, _ = row
    cuts = drawn.draw(st.lists(st.integers(0, len(data)), max_size=6).map(sorted))
    found, parser = parse(data, *cuts, end=end)
    assert (found, parser.complete, parser.broken) == (body, True, None)


def test_headers_keep_their_order_and_trailers_are_not_among_them() -> None:
    _, parser = parse(OK + b"b: 1\r\nA: 2\r\nb: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\nc: 4\r\n\r\n")
    assert parser.headers == [(b"b", b"1"), (b"A", b"2"), (b"b", b"3"), (b"transfer-encoding", b"chunked")]
