"""Clients that leave, engines that fail, and what is not a request at all: who sees what, and what the record says."""

import os
import random
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
import pytest
from raw_http import (
    CHUNKED,
    JSON,
    PATIENCE_S,
    SSE,
    Gone,
    Lab,
    Message,
    Wire,
    answer,
    digest,
    get,
    head_of,
    lab_in,
    post,
    streamed,
)

pytestmark = pytest.mark.process

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = (ROLE, TOKEN, TOKEN, LAST, DONE)
WHOLE = b'{"object":"chat.completion","choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'
START = head_of(b"HTTP/1.1 200 OK", (SSE, CHUNKED))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_in(tmp_path_factory.mktemp("broken") / "c") as lab:
        yield lab


class Held:
    """A script that sends the beginning of an answer and then waits for its connection to end."""

    def __init__(self, *begun: bytes) -> None:
        self._begun = begun
        self.asked = threading.Event()
        self.left = threading.Event()

    def __call__(self, wire: Wire, _: Message) -> None:
        wire.send(*self._begun)
        self.asked.set()
        assert wire.rest() == b""
        self.left.set()
        wire.close()


def one_chunk(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


# Clients.


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("begun", [(), (START, one_chunk(ROLE, TOKEN))], ids=["prefill", "stream"])
def test_a_client_that_hangs_up_frees_the_engine_and_is_recorded(lab: Lab, begun: tuple[bytes, ...], end: str) -> None:
    name, held = f"left-{len(begun)}-{end}", Held(*begun)
    lab.engine.on(name, held)
    with Wire.to(lab.recorder.port) as client:
        client.send(post(name))
        assert held.asked.wait(PATIENCE_S)
        if begun:
            client.until(TOKEN)
        getattr(client, end)()
        assert held.left.wait(PATIENCE_S)
    record = lab.recorder.record_of(name)
    assert (record.outcome, record.origin, record.status) == ("cancelled_by_client", "client", 200 if begun else None)
    assert record.response.token_events == (1 if begun else 0)
    assert lab.in_flight() == 0


def test_a_client_that_closes_its_sending_side_counts_as_gone(lab: Lab) -> None:
    """mitmproxy cannot tell it from one that hung up, and neither can the servers under most engines."""
    held = Held(START, one_chunk(ROLE, TOKEN))
    lab.engine.on("half", held)
    with Wire.to(lab.recorder.port) as client:
        client.send(post("half"))
        client.until(TOKEN)
        client.half_close()
        assert held.left.wait(PATIENCE_S)
        assert client.rest() == b"\r\n"
    assert lab.recorder.record_of("half").outcome == "cancelled_by_client"


def test_a_client_that_leaves_at_the_terminal_event_was_served(lab: Lab) -> None:
    left = threading.Event()

    def keep_open(wire: Wire, _: Message) -> None:
        wire.send(START, one_chunk(*STREAM))
        assert left.wait(PATIENCE_S)
        wire.rest()
        wire.close()

    lab.engine.on("sated", keep_open)
    with Wire.to(lab.recorder.port) as client:
        client.send(post("sated"))
        client.until(DONE)
    left.set()
    record = lab.recorder.record_of("sated")
    assert (record.outcome, record.origin, record.response.done) == ("ok", None, True)


def test_a_client_that_breaks_off_its_upload_reaches_no_engine(lab: Lab) -> None:
    lab.engine.on("upload", answer(WHOLE, JSON))
    request = post("upload")
    with Wire.to(lab.recorder.port) as client:
        client.send(request[:-5])
        client.reset()
    (record,) = lab.recorder.records(lambda record: record.dispatch_ns is None)
    assert (record.outcome, record.origin, record.status) == ("cancelled_by_client", "client", None)
    assert "upload" not in lab.engine.seen


def test_a_client_that_reads_slowly_gets_all_and_fills_no_memory(lab: Lab) -> None:
    body = random.Random(3).randbytes(40 << 20)
    reads, at_once = threading.Event(), []

    def send_until_held_up(wire: Wire, _: Message) -> None:
        wire.send(head_of(b"HTTP/1.1 200 OK", (JSON, (b"content-length", b"%d" % len(body)))))
        sent = 0
        while select.select([], [wire.sock], [], 1.0)[1]:
            sent += wire.sock.send(body[sent : sent + (1 << 18)])
        at_once.append(sent)
        reads.set()
        wire.send(body[sent:])

    lab.engine.on("slow", send_until_held_up)
    with Wire.to(lab.recorder.port) as client:
        client.send(post("slow"))
        assert reads.wait(PATIENCE_S)
        assert digest(client.response().body) == digest(body)
    # Some waits in the buffers of the kernel, on either side of the recorder.
    assert at_once[0] < len(body)
    record = lab.recorder.record_of("slow")
    assert (record.status, record.response.body_bytes) == (200, len(body))


def test_a_malformed_request_is_refused_and_recorded_as_the_clients_fault(lab: Lab) -> None:
    """Two framings at once: whoever passed it on could be tricked into seeing another request inside it."""
    lab.engine.on("twice", answer(WHOLE, JSON))
    before = len(lab.recorder.records(lambda record: record.origin == "client", 0))
    refused = lab.ask(post("twice", (b"content-length", b"5"), CHUNKED, body=b"0\r\n\r\n"))
    assert (refused.status, refused.first(b"content-type")) == (400, b"application/json")
    record = lab.recorder.records(lambda record: record.origin == "client", before + 1)[-1]
    assert (record.status, record.outcome, record.reason) == (400, "error", "malformed request")
    assert "twice" not in lab.engine.seen


def test_what_is_no_http_is_refused(lab: Lab) -> None:
    with Wire.to(lab.recorder.port) as client:
        client.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        assert client.response().status == 400
        assert client.rest() == b""


# Engines.


def test_an_engine_that_is_down_gives_a_clean_502_and_comes_back(lab: Lab) -> None:
    lab.engine.on("down", answer(WHOLE, JSON))
    lab.engine.shut()
    try:
        refused = lab.ask(post("down"))
        also_refused = lab.ask(get("down"))
    finally:
        lab.engine.open()
    check_502(refused)
    check_502(also_refused)
    (record,) = lab.recorder.records_of("down")
    assert (record.status, record.outcome, record.origin) == (502, "error", "engine")
    assert record.reason == "engine unreachable"
    assert lab.ask(post("down")).body == WHOLE


def check_502(refused: Message) -> None:
    assert refused.status == 502
    assert refused.first(b"content-type") == b"application/json"
    assert set(orjson.loads(refused.body)["error"]) >= {"message", "type"}


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\ncontent-ty", b"SSH-2.0\r\n\r\n"], ids=["nothing", "half a head", "no http"]
)
def test_an_engine_that_closes_without_an_answer_gives_a_502(lab: Lab, said: bytes) -> None:
    def close(wire: Wire, _: Message) -> None:
        wire.send(said)
        wire.close()

    name = f"mute-{len(said)}"
    lab.engine.on(name, close)
    check_502(lab.ask(post(name)))
    record = lab.recorder.record_of(name)
    assert (record.status, record.outcome, record.origin) == (502, "error", "engine")
    assert record.reason == "engine closed without an answer"


@pytest.mark.parametrize("end", ["close", "reset"])
def test_an_engine_that_breaks_off_a_stream_leaves_it_unfinished(lab: Lab, end: str) -> None:
    has = threading.Event()

    def break_off(wire: Wire, _: Message) -> None:
        wire.send(START, one_chunk(ROLE, TOKEN))
        assert has.wait(PATIENCE_S)
        getattr(wire, end)()

    name = f"broken-{end}"
    lab.engine.on(name, break_off)
    with Wire.to(lab.recorder.port) as client:
        client.send(post(name))
        assert client.head().status == 200
        assert (client.chunk(), client.chunk()) == (ROLE, TOKEN)
        has.set()
        with pytest.raises(Gone) as gone:
            client.chunk()
    assert gone.value.rest == b""  # no last chunk: the client can tell that it was cut
    record = lab.recorder.record_of(name)
    assert (record.status, record.outcome, record.origin) == (200, "incomplete", "engine")
    assert record.response.token_events == 1


def test_an_engine_that_breaks_off_a_sized_body_leaves_it_unfinished(lab: Lab) -> None:
    def break_off(wire: Wire, _: Message) -> None:
        wire.send(answer(WHOLE, JSON)[:-3])
        wire.close()

    lab.engine.on("short", break_off)
    with Wire.to(lab.recorder.port) as client:
        client.send(post("short"))
        assert client.head().first(b"content-length") == b"%d" % len(WHOLE)
        assert client.rest() == WHOLE[:-3]
    assert lab.recorder.record_of("short").outcome == "incomplete"


def test_an_error_in_a_stream_is_an_error(lab: Lab) -> None:
    error = b'data: {"error":{"message":"secret","type":"InternalServerError","code":500}}\n\n'
    lab.engine.on("inband", streamed((ROLE, TOKEN, error, DONE), SSE))
    assert lab.passes("inband", post("inband")).body == ROLE + TOKEN + error + DONE
    record = lab.recorder.record_of("inband")
    assert (record.status, record.outcome, record.response.error) == (200, "error", "InternalServerError")


def test_an_engine_may_answer_a_request_that_it_does_not_read(lab: Lab) -> None:
    has, refusal = threading.Event(), b'{"error":{"type":"too_large"}}' + b" " * (4 << 20)

    def refuse(wire: Wire, _: Message) -> None:
        wire.send(answer(refusal, JSON, status=b"413 Content Too Large"))
        assert has.wait(PATIENCE_S)
        wire.reset()

    lab.engine.on("hasty", refuse)
    lab.engine.hasty.add("hasty")
    body = orjson.dumps({"model": "hasty", "prompt": "x" * (30 << 20)})
    with Wire.to(lab.recorder.port) as client:
        client.send(post("hasty", body=body))
        refused = client.response()
        has.set()
    assert (refused.status, digest(refused.body)) == (413, digest(refusal))
    record = lab.recorder.record_of("hasty")
    assert (record.status, record.outcome, record.response.error) == (413, "error", "too_large")


def test_a_kept_connection_is_let_go_of_before_the_engine_would(lab: Lab) -> None:
    """An engine that closes idle connections could close one at the moment at which it is used again."""
    let_go = threading.Event()

    def wait_for_the_end(wire: Wire, _: Message) -> None:
        wire.send(answer(WHOLE, JSON))
        if not let_go.is_set():
            assert wire.rest() == b""
            let_go.set()
            wire.close()

    lab.engine.on("idle", wait_for_the_end)
    with Wire.to(lab.recorder.port) as client:
        client.send(post("idle"))
        assert client.response().body == WHOLE
        before = lab.engine.connections
        assert let_go.wait(PATIENCE_S)
        client.send(post("idle"))
        assert client.response().body == WHOLE
        assert lab.engine.connections == before + 1


def test_a_kept_connection_that_the_engine_closed_is_replaced(lab: Lab) -> None:
    closed = threading.Event()

    def close_after(wire: Wire, _: Message) -> None:
        wire.send(answer(WHOLE, JSON))
        wire.half_close()
        assert wire.rest() == b""  # the recorder has closed its side too
        wire.close()
        closed.set()

    lab.engine.on("closing", close_after)
    with Wire.to(lab.recorder.port) as client:
        for _ in range(40):
            client.send(post("closing"))
            assert client.response().body == WHOLE
            assert closed.wait(PATIENCE_S)
            closed.clear()
    assert {record.outcome for record in lab.recorder.records_of("closing", 40)} == {"ok"}


def test_a_close_that_crosses_a_request_on_the_wire_is_not_laid_at_the_engines_door(lab: Lab) -> None:
    closes, closed = threading.Event(), threading.Event()

    def close_when_told(wire: Wire, _: Message) -> None:
        wire.send(answer(WHOLE, JSON))
        assert closes.wait(PATIENCE_S)
        wire.close()
        closed.set()

    lab.engine.on("race", close_when_told)
    with Wire.to(lab.recorder.port) as client:
        client.send(post("race"))
        assert client.response().body == WHOLE
        # The recorder stands still: it learns of the request and of the closed connection in the same instant.
        os.kill(lab.recorder.process.pid, signal.SIGSTOP)
        try:
            closes.set()
            assert closed.wait(PATIENCE_S)
            client.send(post("race"))
        finally:
            os.kill(lab.recorder.process.pid, signal.SIGCONT)
        second = client.response()
    first, last = lab.recorder.records_of("race", 2)
    assert first.outcome == "ok"
    assert (second.status, last.outcome, last.origin) in {(200, "ok", None), (502, "error", "proxy")}


# Not requests.


def test_an_upgraded_connection_passes_as_bytes_both_ways(lab: Lab) -> None:
    data = random.Random(2).randbytes(20 << 20)
    fields = ((b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"))
    asked = (*fields, (b"Sec-WebSocket-Version", b"13"), (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="))
    accepted = (*fields, (b"Sec-WebSocket-Accept", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
    greeting = b"\r\n\n\x81\x05hello\x89\x00"  # in the same segment as the head, with what no frame begins with
    left = threading.Event()

    def echo(wire: Wire, _: Message) -> None:
        wire.send(head_of(b"HTTP/1.1 101 Switching Protocols", accepted), greeting)
        while piece := wire.some():
            wire.send(piece)
        left.set()
        wire.close()

    lab.engine.on("ws", echo)
    with Wire.to(lab.recorder.port) as client:
        client.send(get("ws", *asked, path="/v1/realtime"))
        head = client.head()
        assert (head.status, head.fields) == (101, accepted)
        assert client.exactly(len(greeting)) == greeting

        def send_all() -> None:
            with suppress(OSError):  # what is read below tells
                client.send(data)

        sending = threading.Thread(target=send_all)
        sending.start()
        assert digest(client.exactly(len(data))) == digest(data)
        sending.join(PATIENCE_S)
    assert left.wait(PATIENCE_S)
    assert lab.engine.seen["ws"][0].fields[1:] == asked


def test_what_is_not_a_generation_is_passed_on_and_counted(tmp_path: Path) -> None:
    with lab_in(tmp_path / "c") as lab:
        lab.engine.on("v1", answer(b'{"data":[]}', JSON))
        lab.engine.on("health", answer(b""))
        lab.engine.on("unknown", streamed((b"x" * 100, b"y"), (b"content-type", b"application/x-odd")))
        lab.engine.on("ws", head_of(b"HTTP/1.1 101 Switching Protocols", ((b"Upgrade", b"odd"),)))
        lab.engine.on("chat", streamed(STREAM, SSE))
        assert lab.passes("v1", get("v1", path="/models")).body == b'{"data":[]}'
        assert lab.passes("health", get("health")).body == b""
        assert lab.passes("unknown", post("unknown", path="/v9/what")).body == b"x" * 100 + b"y"
        assert lab.passes("unknown", get("unknown", path="/v1/chat/completions")).status == 200
        with Wire.to(lab.recorder.port) as client:
            client.send(get("ws", (b"Upgrade", b"odd"), (b"Connection", b"upgrade")))
            assert client.head().status == 101
        lab.passes("chat", post("chat"))
        capture = lab.recorder.stop()
    manifest = capture.manifest
    assert (manifest["passed_through"], manifest["requests"], manifest["written"]) == (5, 1, 1)
    assert (manifest["upgrades"], manifest["max_in_flight"], manifest["errors"]) == (1, 1, {})
    assert [exchange.request.model for exchange in capture.exchanges] == ["chat"]
    assert capture.open == []


def test_at_the_end_every_request_has_its_record(lab: Lab) -> None:
    capture = lab.recorder.stop()
    assert capture.open == []
    assert capture.manifest["written"] == capture.manifest["requests"] == len(capture.exchanges)
    assert capture.manifest["errors"] == {}
    assert "Traceback" not in "".join(lab.recorder.said)
