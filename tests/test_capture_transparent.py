"""What a client and an engine see of the recorder between them: nothing. The same bytes go directly and through it."""

import random
import signal
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import brotli
import pytest
import zstandard
from raw_http import (
    CHUNKED,
    JSON,
    PATIENCE_S,
    SSE,
    Lab,
    Message,
    Wire,
    answer,
    body_for,
    chunks,
    digest,
    get,
    head_of,
    lab_in,
    post,
    streamed,
)

pytestmark = pytest.mark.process

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"caf\xc3\xa9"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = (ROLE, TOKEN, TOKEN, LAST, DONE)
# More than asyncio lets wait by itself, so that connecting blocks if the recorder does not ask for more.
BURST = 120
WHOLE = b'{"object":"chat.completion","choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_in(tmp_path_factory.mktemp("transparent") / "c") as lab:
        yield lab


def padded(name: str, size: int) -> bytes:
    """A request body of this size that does not repeat itself."""
    start = b'{"model":"%s","prompt":"' % name.encode()
    return start + random.Random(1).randbytes(size // 2).hex().encode()[: size - len(start) - 2] + b'"}'


# Streams.


def test_the_engine_may_wait_for_the_client_to_have_each_piece(lab: Lab) -> None:
    has = [threading.Event() for _ in STREAM]

    def send_in_step(wire: Wire, _: Message) -> None:
        wire.send(head_of(b"HTTP/1.1 200 OK", (SSE, CHUNKED)))
        for piece, arrived in zip(STREAM, has, strict=True):
            wire.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            assert arrived.wait(PATIENCE_S)
        wire.send(b"0\r\n\r\n")

    lab.engine.on("in-step", send_in_step)
    with Wire.to(lab.recorder.port) as client:
        client.send(post("in-step"))
        assert client.head().fields == (SSE, CHUNKED)
        for piece, arrived in zip(STREAM, has, strict=True):
            assert client.chunk() == piece
            arrived.set()
        assert (client.chunk(), client.trailers()) == (b"", ())


def gzipped(pieces: Sequence[bytes]) -> list[bytes]:
    packer = zlib.compressobj(wbits=31)
    return [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces] + [packer.flush()]


def deflated(pieces: Sequence[bytes]) -> list[bytes]:
    packer = zlib.compressobj()
    return [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces] + [packer.flush()]


def zstd(pieces: Sequence[bytes]) -> list[bytes]:
    packer = zstandard.ZstdCompressor().compressobj()
    packed = [packer.compress(piece) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for piece in pieces]
    return [*packed, packer.flush()]


def brotlied(pieces: Sequence[bytes]) -> list[bytes]:
    packer = brotli.Compressor()
    return [packer.process(piece) + packer.flush() for piece in pieces] + [packer.finish()]


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzipped), ("deflate", deflated), ("zstd", zstd), ("br", brotlied)]
)
def test_an_encoded_stream_passes_encoded_and_is_read_all_the_same(lab: Lab, encoding: str, pack: object) -> None:
    assert callable(pack)
    pieces = pack(STREAM)
    fields = (SSE, (b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding"))
    lab.engine.on(encoding, streamed(pieces, *fields))
    request = post(encoding, (b"accept-encoding", encoding.encode()))
    assert lab.passes(encoding, request).body == b"".join(pieces)
    record = lab.recorder.record_of(encoding)
    facts = record.response
    assert (record.outcome, facts.unread, facts.token_events) == ("ok", None, 2)
    assert (facts.prompt_tokens, facts.output_tokens, facts.body_bytes) == (3, 2, sum(map(len, pieces)))
    assert facts.first_token_ns is not None


# Whole answers.


@pytest.mark.parametrize(
    ("status", "fields", "kind"),
    [
        (b"200 OK", (JSON,), "json"),
        (b"400 Bad Request", (JSON,), "bad"),
        (b"404 Not Found", (JSON,), "missing"),
        (b"429 Too Many Requests", (JSON, (b"Retry-After", b"17")), "limited"),
        (b"500 Internal Server Error", (JSON,), "broken"),
        (b"503 Service Unavailable", (JSON, (b"retry-after", b"1")), "busy"),
    ],
)
def test_a_whole_answer_passes(lab: Lab, status: bytes, fields: tuple[tuple[bytes, bytes], ...], kind: str) -> None:
    body = WHOLE if kind == "json" else b'{"error":{"message":"no","type":"%s_error","code":1}}' % kind.encode()
    lab.engine.on(kind, answer(body, *fields, status=status))
    assert lab.passes(kind, post(kind)).body == body
    record = lab.recorder.record_of(kind)
    assert record.status == int(status[:3])
    assert (record.outcome, record.response.error) == (("ok", None) if kind == "json" else ("error", f"{kind}_error"))


ODD_FIELDS = (
    (b"Set-Cookie", b"a=1; Path=/"),
    (b"set-cookie", b"b=2"),
    (b"X-A", b"first"),
    (b"x-b", b"between"),
    (b"X-A", b"second"),
    (b"X-Latin", b"caf\xe9 \xff\xfe"),
    (b"x-empty", b""),
    (b"X-Long", b"v" * 20_000),
    (b"x_under.score!", b'; , "quoted" \t tab'),
    (b"Date", b"Mon, 01 Jan 2001 00:00:00 GMT"),
    (b"Server", b"some engine/1.0"),
)


def test_fields_keep_their_order_case_number_and_bytes_both_ways(lab: Lab) -> None:
    lab.engine.on("fields", answer(WHOLE, JSON, *ODD_FIELDS))
    assert lab.passes("fields", post("fields", *ODD_FIELDS)).fields[1:-1] == ODD_FIELDS


@pytest.mark.parametrize("status", [b"200 Sehr gut \xfc", b"200 ", b"299 Odd", b"418 I'm a teapot", b"200 O  K"])
def test_a_status_line_passes(lab: Lab, status: bytes) -> None:
    lab.engine.on("status", answer(WHOLE, JSON, status=status))
    assert lab.passes("status", get("status")).start == b"HTTP/1.1 " + status


@pytest.mark.parametrize(
    "path",
    [
        "/v1/%2e%2E/x%2Fy%zz%",
        "/v1/models?key=%41&b=a+b;c=[1]&&=",
        "//double/./slash/",
        "/é/日?ü=ß",
        "/v1/x?",
        "/a|b^c`{}",
    ],
)
def test_a_path_and_its_query_pass_as_they_are(lab: Lab, path: str) -> None:
    lab.engine.on("path", answer(b"{}", JSON))
    lab.passes("path", get("path", path=path))
    assert lab.engine.seen["path"][-1].target == b"/path" + path.encode()


def test_a_path_outside_utf8_passes(lab: Lab) -> None:
    lab.engine.on("raw", answer(b"{}", JSON))
    lab.passes("raw", get("raw", path="/@").replace(b"@", b"\xff\xfe\x80"))
    lab.passes("raw", post("raw", path="/@/v1/chat/completions").replace(b"@", b"\xe9"))
    assert [asked.target for asked in lab.engine.seen["raw"]][1::2] == [
        b"/raw/\xff\xfe\x80",
        b"/raw/\xe9/v1/chat/completions",
    ]


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "PUT", "PATCH", "QUERY"])
def test_other_methods_pass(lab: Lab, method: str) -> None:
    lab.engine.on("method", answer(b'{"data":[]}', JSON))
    lab.passes("method", get("method", method=method, path="/v1/models"))


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        ("HEAD", head_of(b"HTTP/1.1 200 OK", (JSON, (b"content-length", b"1234")))),
        ("HEAD", head_of(b"HTTP/1.1 200 OK", (SSE, CHUNKED))),
        ("GET", head_of(b"HTTP/1.1 204 No Content", ((b"x-a", b"1"),))),
        ("GET", head_of(b"HTTP/1.1 304 Not Modified", ((b"etag", b'"x"'),))),
        ("GET", head_of(b"HTTP/1.1 304 Not Modified", ((b"etag", b'"x"'), (b"content-length", b"99")))),
        ("GET", head_of(b"HTTP/1.1 304 Not Modified", ((b"etag", b'"x"'), CHUNKED))),
        ("GET", answer(b"", JSON)),
        ("GET", streamed([], SSE)),
    ],
    ids="head-sized head-chunked no-content unmodified unmodified-sized unmodified-chunked empty no-chunks".split(),
)
def test_an_answer_without_a_body_leaves_the_connection_usable(lab: Lab, method: str, reply: bytes) -> None:
    lab.engine.on("bodiless", reply)
    lab.engine.on("next", answer(WHOLE, JSON))
    seen = []
    for port in (lab.engine.port, lab.recorder.port):
        with Wire.to(port) as client:
            client.send(get("bodiless", method=method))
            first = client.response(method)
            client.send(get("next"))
            seen.append((first, client.response()))
    assert seen[1] == seen[0]


def test_what_an_engine_says_before_its_answer_passes(lab: Lab) -> None:
    hints = head_of(b"HTTP/1.1 103 Early Hints", ((b"link", b"</x>; rel=preload"), (b"link", b"</y>")))
    lab.engine.on("hints", hints + head_of(b"HTTP/1.1 102 Processing", ()) + answer(WHOLE, JSON))
    seen = []
    for port in (lab.engine.port, lab.recorder.port):
        with Wire.to(port) as client:
            for _ in range(2):
                client.send(post("hints"))
                seen.append([client.response() for _ in range(3)])
    assert seen[2:] == seen[:2]
    assert [record.outcome for record in lab.recorder.records_of("hints", 2)] == ["ok", "ok"]


@pytest.mark.parametrize("fields", [(SSE,), (SSE, (b"connection", b"close"))], ids=["plain", "said"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_body_that_ends_with_the_connection_passes(
    lab: Lab, version: bytes, fields: tuple[tuple[bytes, bytes], ...]
) -> None:
    def send_and_close(wire: Wire, _: Message) -> None:
        wire.send(head_of(b"HTTP/%s 200 OK" % version, fields), *STREAM)
        wire.close()

    name = f"until-close-{version.decode()}-{len(fields)}"
    lab.engine.on(name, send_and_close)
    assert lab.passes(name, post(name)).body == b"".join(STREAM)
    assert lab.recorder.record_of(name).outcome == "ok"


def test_an_old_client_gets_its_answer_and_the_end_of_the_connection(lab: Lab) -> None:
    def answer_old(wire: Wire, asked: Message) -> None:
        assert asked.start.endswith(b" HTTP/1.0")
        wire.send(head_of(b"HTTP/1.0 200 OK", (JSON,)), WHOLE)
        wire.close()

    lab.engine.on("old", answer_old)
    assert lab.passes("old", post("old", version=b"1.0")).body == WHOLE


def test_a_client_that_asks_for_a_close_gets_it(lab: Lab) -> None:
    lab.engine.on("close", streamed(STREAM, SSE, (b"connection", b"close")))
    request = post("close", (b"Connection", b"close"))
    lab.passes("close", request)
    with Wire.to(lab.recorder.port) as client:
        client.send(request)
        client.response()
        assert client.rest() == b""


# Requests.


def chopped(body: bytes, sizes: Sequence[int], extension: bytes = b"") -> bytes:
    """A chunked body. The last size goes on to the end."""
    pieces: list[bytes] = []
    at = 0
    while at < len(body):
        size = sizes[min(len(pieces), len(sizes) - 1)]
        pieces.append(b"%X%s\r\n%s\r\n" % (min(size, len(body) - at), extension, body[at : at + size]))
        at += size
    return b"".join(pieces)


@pytest.mark.parametrize("megabytes", [1, 20])
@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
def test_a_large_request_reaches_the_engine_whole(lab: Lab, megabytes: int, chunked: bool) -> None:
    name = f"large-{megabytes}-{chunked}"
    body = padded(name, megabytes << 20)
    lab.engine.on(name, streamed(STREAM, SSE))
    request = post(name, body=body)
    if chunked:
        request = post(name, CHUNKED, body=chopped(body, [1, 70_001, 1 << 20]) + b"0\r\n\r\n")
    lab.passes(name, request)
    assert digest(lab.engine.seen[name][1].body) == digest(body)
    record = lab.recorder.record_of(name)
    assert (record.outcome, record.request.body_bytes) == ("ok", len(body))


def test_chunks_of_odd_sizes_with_extensions_reach_the_engine_whole(lab: Lab) -> None:
    lab.engine.on("odd", streamed(STREAM, SSE))
    odd = chopped(body_for("odd"), [1, 2, 3, 5, 7, 11], b';name="a;b";flag') + b"000;last\r\n\r\n"
    lab.passes("odd", post("odd", CHUNKED, body=odd))
    assert lab.engine.seen["odd"][1].body == body_for("odd")
    assert lab.recorder.record_of("odd").request.body_bytes == len(body_for("odd"))


def test_trailers_pass_both_ways_and_the_connection_lives_on(lab: Lab) -> None:
    sent = ((b"X-Checksum", b"caf\xe9"), (b"x-more", b"1"))
    lab.engine.on("trailers", streamed(STREAM, SSE, (b"Trailer", b"X-Checksum, x-more"), trailers=sent))
    request = post(
        "trailers", CHUNKED, (b"Trailer", b"X-Checksum, x-more"), body=chunks([body_for("trailers"), b" "], sent)
    )
    answered = lab.passes("trailers", request)
    assert (answered.trailers, lab.engine.seen["trailers"][1].trailers) == (sent, sent)
    with Wire.to(lab.recorder.port) as client:
        for _ in range(2):
            client.send(request)
            assert client.response().trailers == sent
    assert {record.outcome for record in lab.recorder.records_of("trailers", 3)} == {"ok"}


def test_a_client_that_waits_for_100_continue_gets_it(lab: Lab) -> None:
    body = padded("expect", 1 << 20)
    lab.engine.on("expect", answer(WHOLE, JSON))
    with Wire.to(lab.recorder.port) as client:
        head, _, _ = post("expect", (b"Expect", b"100-continue"), body=body).partition(b"\r\n\r\n")
        client.send(head, b"\r\n\r\n")
        assert client.head().start.startswith(b"HTTP/1.1 100 ")
        client.send(body)
        assert client.response().body == WHOLE
    assert digest(lab.engine.seen["expect"][0].body) == digest(body)
    assert lab.recorder.record_of("expect").outcome == "ok"


def test_two_requests_in_one_segment_get_two_answers_in_order(lab: Lab) -> None:
    lab.engine.on("one", streamed(STREAM, SSE))
    lab.engine.on("two", answer(WHOLE, JSON))
    with Wire.to(lab.recorder.port) as client:
        client.send(post("one"), post("two"), get("two"))
        assert client.response().body == b"".join(STREAM)
        assert client.response().body == client.response().body == WHOLE


def test_a_request_sent_before_the_answer_to_the_one_before_waits_its_turn(lab: Lab) -> None:
    goes_on = threading.Event()

    def hold(wire: Wire, _: Message) -> None:
        assert goes_on.wait(PATIENCE_S)
        wire.send(streamed(STREAM, SSE))

    lab.engine.on("held", hold)
    lab.engine.on("behind", answer(WHOLE, JSON))
    with Wire.to(lab.recorder.port) as client:
        client.send(post("held"))
        client.send(post("behind"))
        goes_on.set()
        assert client.response().body == b"".join(STREAM)
        assert client.response().body == WHOLE


def test_a_stray_line_end_before_a_request_is_skipped(lab: Lab) -> None:
    lab.engine.on("stray", answer(WHOLE, JSON))
    with Wire.to(lab.recorder.port) as client:
        client.send(post("stray"), b"\r\n", post("stray"))
        assert client.response().body == client.response().body == WHOLE


def test_a_request_in_single_bytes_is_put_together(lab: Lab) -> None:
    lab.engine.on("bytes", answer(WHOLE, JSON))
    with Wire.to(lab.recorder.port) as client:
        for byte in post("bytes"):
            client.send(bytes([byte]))
        assert client.response().body == WHOLE
    assert lab.engine.seen["bytes"][0].body == body_for("bytes")


def test_a_burst_of_clients_is_let_in(lab: Lab) -> None:
    lab.engine.on("burst", answer(WHOLE, JSON))
    with ExitStack() as stack:
        # The recorder stands still, so that all of them wait at its door at the same time.
        lab.recorder.process.send_signal(signal.SIGSTOP)
        stack.callback(lab.recorder.process.send_signal, signal.SIGCONT)
        wires = [stack.enter_context(Wire.to(lab.recorder.port)) for _ in range(BURST)]
        for wire in wires:
            wire.send(post("burst"))
        lab.recorder.process.send_signal(signal.SIGCONT)
        assert {wire.response().body for wire in wires} == {WHOLE}
    records = lab.recorder.records_of("burst", BURST)
    assert sorted(record.in_flight for record in records)[-1] > 0
    assert {record.outcome for record in records} == {"ok"}
