"""The recorder, hook by hook: flows as mitmproxy makes them, a clock and an event loop of our own."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mitmproxy import http
from mitmproxy.connection import ConnectionState
from mitmproxy.test import tflow, tutils

import capture.recorder
from capture.journal import Journal
from capture.session import Session
from profiles.captures import Capture, read_capture
from profiles.records import Exchange, RequestFacts
from profiles.requests import describe
from profiles.stream import ResponseReader

WALL_NS = 1_000_000  # the wall clock is this far ahead of the monotonic one
BODY = b'{"model":"m","stream":true,"max_tokens":7,"messages":[{"role":"user","content":"SEEDED PROMPT"}]}'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class Loop:
    """Keeps what was asked for, until `turn` lets the loop go round."""

    soon: list[Callable[[], object]] = field(default_factory=list)
    later: list[Callable[[], object]] = field(default_factory=list)

    def call_soon(self, callback: Callable[[], object], /) -> object:
        self.soon.append(callback)
        return None

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object:
        self.later.append(callback)
        return None

    def turn(self) -> None:
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()


class Bench:
    """A session on a fake clock, with the hooks of one request in a few words."""

    def __init__(self, folder: Path, *, bodies: str = "none", write: Callable[[int, bytes], int] = os.write) -> None:
        self.folder = folder
        self.now_ns = 0
        self.loop = Loop()
        self.session = Session(
            folder,
            upstream="http://127.0.0.1:8000",
            bodies=bodies,
            clock=lambda: self.now_ns,
            wall_clock=lambda: self.now_ns + WALL_NS,
            loop=self.loop,
            journal=Journal(folder, lambda: self.session.head(), write=write),
        )
        self.recorder = self.session.recorder
        self.session.open()

    def arrive(
        self, at_ns: int, *, path: str = "/v1/chat/completions", method: str = "POST", body: bytes = BODY
    ) -> http.HTTPFlow:
        flow = tflow.tflow(req=tutils.treq(method=method.encode(), path=path.encode(), content=None))
        flow.client_conn.state = ConnectionState.OPEN
        self.now_ns = at_ns
        self.recorder.requestheaders(flow)
        flow.request.raw_content = body
        return flow

    def dispatch(self, flow: http.HTTPFlow, at_ns: int) -> None:
        self.now_ns = at_ns
        self.recorder.request(flow)

    def answer(
        self, flow: http.HTTPFlow, at_ns: int, *, status: int = 200, kind: str = "text/event-stream", length: int = -1
    ) -> None:
        headers = http.Headers(content_type=kind)
        if length >= 0:
            headers["content-length"] = str(length)
        else:
            headers["transfer-encoding"] = "chunked"
        flow.response = tutils.tresp(status_code=status, headers=headers, content=None)
        self.now_ns = at_ns
        self.recorder.responseheaders(flow)

    def pieces(self, flow: http.HTTPFlow, data: bytes, at_ns: int) -> Iterator[bytes]:
        """One piece of the response, as mitmproxy asks for it."""
        self.now_ns = at_ns
        assert flow.response is not None
        assert callable(flow.response.stream)
        return iter(flow.response.stream(data))  # type: ignore[arg-type]  # ours returns an iterator

    def read(self, flow: http.HTTPFlow, data: bytes, at_ns: int) -> bytes:
        """One read with one piece, released and booked."""
        released = list(self.pieces(flow, data, at_ns))
        assert b"" not in released
        self.loop.turn()
        return b"".join(released)

    def end(self, flow: http.HTTPFlow, at_ns: int) -> None:
        self.read(flow, b"", at_ns)
        self.recorder.response(flow)

    def fail(self, flow: http.HTTPFlow, at_ns: int, *, client: ConnectionState = ConnectionState.OPEN) -> None:
        flow.client_conn.state = client
        self.now_ns = at_ns
        self.recorder.error(flow)

    def lines(self) -> list[dict[str, object]]:
        paths = sorted(self.folder.glob("segment-*.jsonl"))
        return [orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()]

    def ends(self) -> list[dict[str, object]]:
        return [line for line in self.lines() if line["line"] == "end"]

    def capture(self) -> Capture:
        return read_capture(self.folder)

    def only(self) -> Exchange:
        (exchange,) = self.capture().exchanges
        return exchange


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "c")


def stream_one(bench: Bench, flow: http.HTTPFlow) -> None:
    """A whole streamed answer to the request that has just arrived: 160 ns from arrival to the terminal event."""
    arrival_ns = bench.now_ns
    bench.dispatch(flow, arrival_ns + 10)
    bench.answer(flow, arrival_ns + 100)
    for data, after_ns in ((ROLE, 110), (TOKEN, 120), (TOKEN, 135), (LAST, 150), (DONE, 160)):
        assert bench.read(flow, data, arrival_ns + after_ns) == data


def test_a_streamed_answer_is_recorded_with_its_instants(bench: Bench) -> None:
    stream_one(bench, bench.arrive(100))
    exchange = bench.only()
    assert (exchange.endpoint, exchange.path, exchange.status) == ("chat", "/v1/chat/completions", 200)
    assert (exchange.outcome, exchange.origin) == ("ok", None)
    instants = (exchange.arrival_ns, exchange.dispatch_ns, exchange.headers_ns, exchange.end_ns)
    assert instants == tuple(WALL_NS + at for at in (100, 110, 200, 260))
    response = exchange.response
    assert response.first_byte_ns == WALL_NS + 210
    assert response.first_token_ns == WALL_NS + 220
    assert response.token_gaps_ns == [15]
    assert (response.prompt_tokens, response.output_tokens, response.finish) == (3, 2, "stop")
    assert (exchange.request.model, exchange.request.max_tokens, exchange.request.input_chars) == ("m", 7, 13)


def test_an_ordinary_piece_is_released_before_it_is_booked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    booked: list[bytes] = []

    class Watched(ResponseReader):
        def feed(self, data: bytes, at_ns: int) -> None:
            booked.append(data)
            super().feed(data, at_ns)

    monkeypatch.setattr(capture.recorder, "ResponseReader", Watched)
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    pieces = bench.pieces(flow, TOKEN, 210)
    assert next(pieces) == TOKEN
    assert booked == []
    assert list(pieces) == []
    assert booked == [TOKEN]


def test_the_record_is_in_the_file_before_the_terminal_event_is_released(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, TOKEN + LAST, 210)
    assert bench.ends() == []
    pieces = bench.pieces(flow, DONE, 220)
    assert next(pieces) == DONE
    assert len(bench.ends()) == 1


def test_the_record_is_in_the_file_before_the_last_byte_of_a_known_length_is_released(bench: Bench) -> None:
    body = b'{"object":"chat.completion","choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200, kind="application/json", length=len(body))
    bench.read(flow, body[:10], 210)
    assert bench.ends() == []
    pieces = bench.pieces(flow, body[10:], 220)
    assert next(pieces) == body[10:]
    assert [end["outcome"] for end in bench.ends()] == ["ok"]


def test_the_record_is_in_the_file_when_mitmproxy_passes_on_the_end_of_the_chunks(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, TOKEN + LAST, 210)
    bench.end(flow, 230)
    exchange = bench.only()
    assert (exchange.outcome, exchange.end_ns) == ("ok", WALL_NS + 230)


@pytest.mark.parametrize(
    "terminal",
    [
        b"data:[DONE]\n\n",
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        b'data: {"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":1}}}\r\n\r\n',
        b'data: {"type":"response.incomplete","response":{}}\n\n',
    ],
)
def test_every_dialects_terminal_event_is_waited_for(bench: Bench, terminal: bytes) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, TOKEN, 210)
    bench.read(flow, terminal, 220)
    assert len(bench.ends()) == 1


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(min_value=0, max_value=len(ROLE + TOKEN + LAST + DONE)), max_size=12))
def test_wherever_reads_cut_a_stream_its_bytes_pass_and_its_record_comes_first(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    whole = ROLE + TOKEN + LAST + DONE
    bench = Bench(tmp_path_factory.mktemp("c"))
    flow = bench.arrive(0)
    bench.dispatch(flow, 0)
    bench.answer(flow, 0)
    edges = sorted({0, *cuts, len(whole)})
    released = b""
    for begin, end in pairwise(edges):
        for piece in bench.pieces(flow, whole[begin:end], end):
            assert piece
            released += piece
            assert len(bench.ends()) == (end == len(whole))
        bench.loop.turn()
    assert released == whole
    bench.end(flow, 1000)
    assert len(bench.ends()) == 1


def test_words_that_look_like_an_end_do_not_end_a_stream(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, b'data: {"choices":[{"delta":{"content":"[DONE] response.completed"}}]}\n\n', 210)
    assert bench.ends() == []
    bench.read(flow, LAST + DONE, 220)
    assert bench.only().response.token_events == 1


def test_chunks_of_one_read_share_its_instant(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    list(bench.pieces(flow, TOKEN, 210))
    list(bench.pieces(flow, TOKEN, 212))  # the loop did not turn: the same read
    bench.loop.turn()
    list(bench.pieces(flow, TOKEN, 220))
    bench.loop.turn()
    bench.read(flow, LAST + DONE, 230)
    response = bench.only().response
    assert (response.token_gaps_ns, response.coalesced) == ([0, 10], 1)


def test_a_client_that_leaves_after_the_terminal_event_got_its_answer(bench: Bench) -> None:
    flow = bench.arrive(100)
    stream_one(bench, flow)
    bench.fail(flow, 300, client=ConnectionState.CAN_WRITE)
    bench.recorder.client_disconnected(flow.client_conn)
    assert bench.only().outcome == "ok"


@pytest.mark.parametrize(
    ("stage", "client", "status", "outcome", "origin"),
    [
        ("arrived", ConnectionState.CAN_WRITE, None, "cancelled_by_client", "client"),
        ("arrived", ConnectionState.OPEN, None, "error", "client"),
        ("dispatched", ConnectionState.CLOSED, None, "cancelled_by_client", "client"),
        ("dispatched", ConnectionState.OPEN, None, "incomplete", "engine"),
        ("answered", ConnectionState.CAN_WRITE, 200, "cancelled_by_client", "client"),
        ("answered", ConnectionState.OPEN, 200, "incomplete", "engine"),
    ],
    ids=["upload aborted", "malformed", "left in prefill", "engine down", "left in stream", "engine reset"],
)
def test_who_broke_it_off_is_told_by_state(
    bench: Bench, stage: str, client: ConnectionState, status: int | None, outcome: str, origin: str
) -> None:
    flow = bench.arrive(100)
    if stage != "arrived":
        bench.dispatch(flow, 110)
    if stage == "answered":
        bench.answer(flow, 200)
        bench.read(flow, TOKEN, 210)
    bench.fail(flow, 300, client=client)
    exchange = bench.only()
    assert (exchange.status, exchange.outcome, exchange.origin) == (status, outcome, origin)
    assert bench.recorder.in_flight == 0


@pytest.mark.parametrize(
    ("status", "sent", "outcome"),
    [
        (200, TOKEN, "incomplete"),
        (200, ROLE + DONE, "empty"),
        (200, b'data: {"error":{"message":"SEEDED","type":"oom"}}\n\n', "error"),
        (503, b"busy", "error"),
    ],
)
def test_http_200_is_not_success(bench: Bench, status: int, sent: bytes, outcome: str) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200, status=status)
    bench.read(flow, sent, 210)
    bench.end(flow, 220)
    exchange = bench.only()
    assert (exchange.outcome, exchange.origin) == (outcome, "engine")


def test_a_stop_finalises_what_is_in_flight(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, TOKEN, 210)
    bench.now_ns = 300
    bench.session.done()
    exchange = bench.only()
    assert (exchange.outcome, exchange.origin, exchange.end_ns) == ("cancelled", "proxy", WALL_NS + 300)
    assert bench.capture().windows == [(WALL_NS, WALL_NS + 300)]
    # What mitmproxy still sends while it unwinds changes nothing.
    assert bench.read(flow, TOKEN, 310) == TOKEN
    bench.fail(flow, 320)
    bench.arrive(330)
    assert len(bench.capture().exchanges) == 1
    bench.session.done()


def test_a_lost_connection_ends_every_request_on_it(bench: Bench) -> None:
    flow, other = bench.arrive(100), bench.arrive(101)
    bench.now_ns = 200
    bench.recorder.client_disconnected(flow.client_conn)
    assert bench.only().outcome == "cancelled_by_client"
    assert bench.recorder.in_flight == 1
    bench.recorder.client_disconnected(other.client_conn)
    assert bench.recorder.in_flight == 0


def test_in_flight_counts_from_arrival_and_ids_are_unique(bench: Bench) -> None:
    flows = [bench.arrive(at) for at in (1, 2, 3)]
    for flow in flows:
        bench.fail(flow, 10)
    bench.fail(bench.arrive(11), 12)
    exchanges = bench.capture().exchanges
    assert [exchange.in_flight for exchange in exchanges] == [0, 1, 2, 0]
    assert len({exchange.id for exchange in exchanges}) == 4
    assert all(exchange.id.startswith(f"{WALL_NS:x}-") for exchange in exchanges)
    assert bench.recorder.counts.max_in_flight == 3


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/models"), ("POST", "/tokenize"), ("GET", "/v1/responses")],
)
def test_other_requests_stream_through_and_are_only_counted(bench: Bench, method: str, path: str) -> None:
    flow = bench.arrive(100, method=method, path=path)
    bench.dispatch(flow, 110)
    flow.response = tutils.tresp()
    bench.recorder.responseheaders(flow)
    assert flow.response.stream is True
    bench.recorder.response(flow)
    assert [line["line"] for line in bench.lines()] == ["segment", "window"]
    counts = bench.recorder.counts
    assert (counts.passed_through, counts.requests, counts.max_in_flight) == (1, 0, 0)


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/x/v1/messages/"]
)
def test_every_endpoint_of_an_engine_is_recorded(bench: Bench, path: str) -> None:
    bench.fail(bench.arrive(100, path=path), 110)
    assert bench.only().path == path


def test_a_path_that_is_no_text_is_recorded_all_the_same(bench: Bench) -> None:
    flow = tflow.tflow(req=tutils.treq(method=b"POST", path=b"/\xff/v1/messages?key=\xff"))
    bench.recorder.requestheaders(flow)
    bench.fail(flow, 110)
    assert bench.only().path == "/�/v1/messages"


def test_nothing_secret_reaches_the_files_by_default(bench: Bench) -> None:
    flow = bench.arrive(100, path="/v1/chat/completions?api_key=SEEDED")
    flow.request.headers["authorization"] = "Bearer SEEDED"
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, b'data: {"choices":[{"delta":{"content":"SEEDED"}}]}\n\n', 210)
    bench.read(flow, b'data: {"error":{"message":"SEEDED","type":"oom"}}\n\n', 220)
    bench.end(flow, 230)
    bench.session.done()
    assert bench.only().path == "/v1/chat/completions"
    for path in bench.folder.iterdir():
        assert b"SEEDED" not in path.read_bytes()


@pytest.mark.parametrize(
    "body",
    [BODY, b' {"model":  "m",\n"messages":[]} \r\n', b'{"a":1.0,"a":"\xc3\xa9\\u00e9"}', b"\xff\x00", b"not json"],
)
def test_full_bodies_are_kept_byte_for_byte(tmp_path: Path, body: bytes) -> None:
    bench = Bench(tmp_path / "c", bodies="full")
    bench.dispatch(flow := bench.arrive(100, body=body), 110)
    bench.fail(flow, 120)
    assert bench.capture().bodies == [body]
    assert bench.session.manifest()["bodies"] == "full"


def test_a_body_is_released_once_it_is_recorded(bench: Bench) -> None:
    flow = bench.arrive(100)
    stream_one(bench, flow)
    assert flow.request.raw_content is None


def test_a_request_is_described_after_it_was_sent_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[bytes | None] = []

    def watched(body: bytes | None) -> RequestFacts:
        described.append(body)
        return describe(body)

    monkeypatch.setattr(capture.recorder, "describe", watched)
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    assert described == []
    bench.loop.later.pop()()
    assert described == [BODY]
    bench.fail(flow, 120)
    assert described == [BODY]


def test_a_fault_of_the_reader_costs_facts_never_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise KeyError("SEEDED")

    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    monkeypatch.setattr(ResponseReader, "feed", explode)
    for data in (ROLE, TOKEN, DONE):
        assert bench.read(flow, data, 210) == data
    bench.end(flow, 220)
    exchange = bench.only()
    assert (exchange.outcome, exchange.response.unread) == ("ok", "recorder fault: KeyError")
    assert bench.recorder.counts.errors == {"response: KeyError": 1}
    assert b"SEEDED" not in (bench.folder / "segment-000001.jsonl").read_bytes()


@pytest.mark.parametrize("broken", ["finish", "end_line", "describe", "call_soon"])
def test_no_fault_of_ours_reaches_the_traffic(bench: Bench, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError

    if broken == "finish":
        monkeypatch.setattr(ResponseReader, "finish", explode)
    elif broken == "call_soon":
        monkeypatch.setattr(bench.loop, "call_soon", explode)
    else:
        monkeypatch.setattr(capture.recorder, broken, explode)
    flow = bench.arrive(100)
    stream_one(bench, flow)
    bench.end(flow, 300)
    assert bench.recorder.in_flight == 0
    assert bench.recorder.counts.errors.total() == 1
    assert len(bench.ends()) == (broken != "end_line")
    assert bench.recorder.counts.dropped.total() == (broken == "end_line")


def test_a_full_disk_costs_records_and_recording_resumes_in_a_new_window(tmp_path: Path) -> None:
    full = False

    def write(descriptor: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "full")
        return os.write(descriptor, data)

    bench = Bench(tmp_path / "c", write=write)
    stream_one(bench, bench.arrive(100))
    full = True
    stream_one(bench, bench.arrive(100))
    bench.now_ns = 1_000
    bench.session.beat()
    stream_one(bench, bench.arrive(100))
    full = False
    bench.now_ns = 2_000
    bench.session.beat()
    assert bench.session.journal.broken == "ENOSPC", "the next try is a few seconds away"
    bench.now_ns = 6_000_000_000
    bench.session.beat()
    stream_one(bench, bench.arrive(6_000_000_100))
    bench.session.done()
    recorded = bench.capture()
    assert len(recorded.exchanges) == 2
    assert recorded.dropped == 2
    assert [opened - WALL_NS for opened, _ in recorded.windows] == [0, 6_000_000_000]
    manifest = recorded.manifest
    assert (manifest["requests"], manifest["written"], manifest["dropped"]) == (4, 2, {"ENOSPC": 2})


def test_a_capture_that_is_taken_up_goes_on_counting(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    first = Bench(folder, bodies="full")
    stream_one(first, first.arrive(100))
    first.session.done()
    second = Bench(folder)
    second.recorder.requestheaders(tflow.tflow(req=tutils.treq(method=b"GET", path=b"/health")))
    stream_one(second, second.arrive(400))
    second.session.done()
    manifest = second.capture().manifest
    assert (manifest["windows"], manifest["requests"], manifest["passed_through"]) == (2, 2, 1)
    assert manifest["bodies"] == "full", "there are bodies in it, whatever the second window kept"
    assert manifest["closed"] is True


def test_lateness_of_the_loop_is_noted_on_the_requests_in_flight(bench: Bench) -> None:
    bench.recorder.observe_lag(5)
    flow = bench.arrive(100)
    bench.recorder.observe_lag(40)
    bench.recorder.observe_lag(2)
    bench.fail(flow, 200)
    assert bench.only().late_ns == 40


def test_beats_say_how_many_are_in_flight(bench: Bench) -> None:
    bench.arrive(100)
    bench.now_ns = 1_000
    bench.session.beat()
    assert bench.lines()[-1] == {
        "line": "beat",
        "at_ns": 1_000,
        "in_flight": 1,
        "lag_ns": 0,
        "written": 0,
        "dropped": 0,
    }


def test_a_session_that_never_opened_ends_without_a_trace(tmp_path: Path) -> None:
    session = Session(tmp_path / "c", upstream="http://127.0.0.1:8000", loop=Loop())
    session.done()
    assert not (tmp_path / "c").exists()
