"""The recorder, hook by hook: what is in the pipe, and so in the file, at each moment."""

from itertools import pairwise
from pathlib import Path

import pytest
from capture_bench import DONE, LAST, ROLE, TOKEN, WALL_NS, Bench, stream_one
from hypothesis import given, settings
from hypothesis import strategies as st
from mitmproxy.connection import ConnectionState
from mitmproxy.test import tflow, tutils

from capture.recorder import LARGE_BYTES, LATER_S
from capture.stay import RACE_NS


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "c")


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


def test_the_record_is_in_the_file_before_the_terminal_event_is_released(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, TOKEN + LAST, 210)
    assert bench.ends() == []
    assert bench.read(flow, DONE, 220) == DONE
    assert len(bench.ends()) == 1, "before the caller could release what it was given back"


def test_the_record_is_in_the_file_before_the_last_byte_of_a_known_length_is_released(bench: Bench) -> None:
    body = b'{"object":"chat.completion","choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200, kind="application/json", length=len(body))
    bench.read(flow, body[:10], 210)
    assert bench.ends() == []
    assert bench.read(flow, body[10:], 220) == body[10:]
    assert [end["outcome"] for end in bench.ends()] == ["ok"]


def test_the_record_is_in_the_file_when_mitmproxy_passes_on_the_end_of_the_chunks(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, TOKEN + LAST, 210)
    bench.end(flow, 230)
    exchange = bench.only()
    assert (exchange.outcome, exchange.end_ns) == ("ok", WALL_NS + 230)


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
        released += bench.read(flow, whole[begin:end], end)
        assert len(bench.ends()) == (end >= len(whole) - 1)  # [DONE] is complete with its line
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


def test_a_client_that_leaves_after_the_terminal_event_got_its_answer(bench: Bench) -> None:
    flow = bench.arrive(100)
    stream_one(bench, flow)
    bench.fail(flow, 300, client=ConnectionState.CAN_WRITE)
    bench.recorder.client_disconnected(flow.client_conn)
    assert bench.only().outcome == "ok"


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
    assert all(exchange.id.startswith("p-") for exchange in exchanges)
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
    bench.outbox.flush()
    assert [line["line"] for line in bench.lines()] == ["segment", "window"]
    counts = bench.recorder.counts
    assert (counts.passed_through, counts.requests, counts.max_in_flight) == (1, 0, 0)


def test_a_body_is_released_once_it_is_recorded(bench: Bench) -> None:
    flow = bench.arrive(100)
    stream_one(bench, flow)
    assert flow.request.raw_content is None


def test_lateness_of_the_loop_is_noted_on_the_requests_in_flight(bench: Bench) -> None:
    bench.recorder.observe_lag(5)
    flow = bench.arrive(100)
    bench.recorder.observe_lag(40)
    bench.recorder.observe_lag(2)
    bench.fail(flow, 200)
    assert bench.only().late_ns == 40


def test_an_ordinary_piece_is_released_before_it_is_told(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.loop.pass_time()
    for at_ns in (210, 220, 230):
        assert bench.read(flow, TOKEN, at_ns) == TOKEN
    assert bench.outbox.waiting_bytes == 0
    assert [delay for delay, _ in bench.loop.later] == [LATER_S]
    before = len(bench.pipe.data)
    bench.loop.pass_time()
    assert len(bench.pipe.data) > before + 3 * len(TOKEN)


def test_large_pieces_do_not_wait(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200, kind="application/json")
    piece = b"x" * LARGE_BYTES
    assert bench.read(flow, piece, 210) is piece
    assert bench.outbox.waiting_bytes >= LARGE_BYTES


def test_a_request_is_in_the_file_before_the_engine_can_have_seen_it(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    assert [line["line"] for line in bench.lines()][-2:] == ["start", "request"]
    assert [start.id for start in bench.capture().open] == ["p-1"]
    assert bench.capture().open[0].at_ns == WALL_NS + 100


def test_a_request_whose_body_takes_its_time_is_in_the_file_all_the_same(bench: Bench) -> None:
    bench.arrive(100)
    assert [delay for delay, _ in bench.loop.later] == [0]
    bench.loop.pass_time()
    assert bench.lines()[-1]["line"] == "start"


@pytest.mark.parametrize(
    ("stage", "client", "status", "outcome", "origin", "reason"),
    [
        ("arrived", ConnectionState.CAN_WRITE, None, "cancelled_by_client", "client", None),
        ("arrived", ConnectionState.OPEN, 400, "error", "client", "malformed request"),
        ("dispatched", ConnectionState.CLOSED, None, "cancelled_by_client", "client", None),
        ("dispatched", ConnectionState.OPEN, 502, "error", "engine", "engine unreachable"),
        ("connected", ConnectionState.OPEN, 502, "error", "engine", "engine closed without an answer"),
        ("reused", ConnectionState.OPEN, 502, "error", "proxy", "kept connection closed while sending"),
        ("answered", ConnectionState.CAN_WRITE, 200, "cancelled_by_client", "client", None),
        ("answered", ConnectionState.OPEN, 200, "incomplete", "engine", None),
    ],
)
def test_who_broke_it_off_is_told_by_state(
    bench: Bench,
    stage: str,
    client: ConnectionState,
    status: int | None,
    outcome: str,
    origin: str,
    reason: str | None,
) -> None:
    flow = bench.arrive(100)
    flow.server_conn.timestamp_tcp_setup = None
    if stage != "arrived":
        bench.dispatch(flow, 110)
    if stage in ("connected", "reused"):
        sign = 1 if stage == "connected" else -1
        flow.server_conn.timestamp_tcp_setup = flow.request.timestamp_start + sign
    if stage == "answered":
        bench.answer(flow, 200)
        bench.read(flow, TOKEN, 210)
    bench.fail(flow, 300, client=client)
    exchange = bench.only()
    assert (exchange.status, exchange.outcome, exchange.origin) == (status, outcome, origin)
    assert exchange.reason == reason
    assert bench.recorder.in_flight == 0


def test_an_engine_that_dies_over_a_request_is_not_a_lost_race(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    flow.server_conn.timestamp_tcp_setup = flow.request.timestamp_start - 1
    bench.fail(flow, 110 + RACE_NS)
    assert bench.only().origin == "engine"


def test_a_stop_finalises_what_is_in_flight(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, TOKEN, 210)
    bench.now_ns = 300
    bench.recorder.stop()
    exchange = bench.only()
    assert (exchange.outcome, exchange.origin, exchange.end_ns) == ("cancelled", "proxy", WALL_NS + 300)
    # What mitmproxy still sends while it unwinds changes nothing.
    assert bench.read(flow, TOKEN, 310) == TOKEN
    bench.fail(flow, 320)
    bench.arrive(330)
    assert len(bench.capture().exchanges) == 1
    bench.close()
    assert bench.capture().windows == [(WALL_NS, WALL_NS + 330)]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("/v1/completions", "/v1/completions"),
        ("/v1/responses", "/v1/responses"),
        ("/v1/messages?key=SEEDED", "/v1/messages"),
        ("/v1/embeddings", "/v1/embeddings"),
        ("/SEEDED/v1/messages/", "/v1/messages"),
        ("/openai/deployments/SEEDED/chat/completions", "/chat/completions"),
    ],
)
def test_every_endpoint_of_an_engine_is_recorded_without_what_stands_before_it(
    bench: Bench, sent: str, kept: str
) -> None:
    bench.fail(bench.arrive(100, path=sent), 110)
    assert bench.only().path == kept


def test_a_path_that_is_no_text_is_recorded_all_the_same(bench: Bench) -> None:
    flow = tflow.tflow(req=tutils.treq(method=b"POST", path=b"/\xff/v1/messages?key=\xff"))
    bench.recorder.requestheaders(flow)
    bench.fail(flow, 110)
    assert bench.only().path == "/v1/messages"


def test_nothing_secret_reaches_the_files_by_default(bench: Bench) -> None:
    flow = bench.arrive(100, path="/v1/chat/completions?api_key=SEEDED")
    flow.request.headers["authorization"] = "Bearer SEEDED"
    flow.request.headers["user-agent"] = "SEEDED"
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    bench.read(flow, b'data: {"choices":[{"delta":{"content":"SEEDED"}}]}\n\n', 210)
    bench.read(flow, b'data: {"error":{"message":"SEEDED","type":"oom"}}\n\n', 220)
    bench.end(flow, 230)
    bench.close()
    assert bench.only().path == "/v1/chat/completions"
    for path in bench.folder.iterdir():
        assert b"SEEDED" not in path.read_bytes()


@pytest.mark.parametrize("broken", ["tell", "terminal"])
def test_no_fault_of_ours_reaches_the_traffic(bench: Bench, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("SEEDED")

    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    name = {"terminal": "capture.terminal.TerminalWatch.ends_with"}.get(broken, f"capture.recorder.{broken}")
    monkeypatch.setattr(name, explode)
    for data in (ROLE, TOKEN, DONE):
        assert bench.read(flow, data, 210) == data
    bench.end(flow, 220)
    assert bench.recorder.in_flight == 0
    assert bench.recorder.counts.errors.total() > 0
    assert not any("SEEDED" in fault for fault in bench.recorder.counts.errors)
    if broken == "tell":  # its end itself could not be told
        assert bench.ends() == []
        assert bench.recorder.counts.dropped == {"recorder fault": 1}
    else:
        assert bench.only().response.unread == "recorder fault: RuntimeError"
        assert bench.only().outcome == "ok"


def test_a_scribe_that_is_behind_costs_records_never_traffic(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "c", limit_bytes=2_000)
    bench.pipe.room = 0
    for at_ns in range(1_000, 6_000, 1_000):
        stream_one(bench, bench.arrive(at_ns))
    dropped = bench.recorder.counts.dropped["scribe behind"]
    assert 0 < dropped == bench.recorder.counts.dropped.total()
    assert bench.recorder.in_flight == 0
    bench.pipe.room = 1 << 20
    bench.outbox.flush()
    bench.take()
    stream_one(bench, bench.arrive(9_000))
    last = bench.capture().exchanges[-1]
    assert (last.arrival_ns, last.outcome, last.response.unread) == (WALL_NS + 9_000, "ok", None)
    bench.close()
    assert len(bench.capture().exchanges) == 6 - dropped
    assert bench.capture().manifest["dropped"] == {"scribe behind": dropped}


def test_a_new_scribe_is_told_who_is_in_flight(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.outbox.flush()
    bench.take()
    bench.recorder.announce_again("scribe gone")
    bench.answer(flow, 200)
    assert bench.read(flow, TOKEN + LAST + DONE, 210) == TOKEN + LAST + DONE
    exchange = bench.only()
    assert (exchange.arrival_ns, exchange.end_ns) == (WALL_NS + 100, WALL_NS + 210)
    assert exchange.response.unread == "scribe gone"
    assert bench.capture().open == []


def test_an_upgraded_connection_keeps_no_messages(bench: Bench) -> None:
    flow = tflow.ttcpflow()
    assert flow.messages
    bench.recorder.tcp_message(flow)
    assert flow.messages == []
