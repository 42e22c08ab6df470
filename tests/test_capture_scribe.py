"""The scribe: frames to lines, and what becomes of a fault, a full disk, a capture that is taken up again."""

import errno
import os
from pathlib import Path

import pytest
from capture_bench import BODY, DONE, LAST, TOKEN, WALL_NS, Bench, stream_one
from mitmproxy.test import tflow, tutils

import capture.scribe
from capture.frames import STORY, Ending, Frame, FrameReader, Story, frame, tell
from profiles.stream import ResponseReader


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "c")


def test_chunks_of_one_read_share_its_instant(bench: Bench) -> None:
    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200)
    for data, at_ns in ((TOKEN, 210), (TOKEN, 210), (TOKEN, 220), (LAST + DONE, 230)):
        bench.read(flow, data, at_ns)
    response = bench.only().response
    assert (response.token_gaps_ns, response.coalesced) == ([0, 10], 1)


@pytest.mark.parametrize(
    "body",
    [BODY, b' {"model":  "m",\n"messages":[]} \r\n', b'{"a":1.0,"a":"\xc3\xa9\\u00e9"}', b"\xff\x00", b"not json"],
)
def test_full_bodies_are_kept_byte_for_byte(tmp_path: Path, body: bytes) -> None:
    bench = Bench(tmp_path / "c", bodies="full")
    bench.dispatch(flow := bench.arrive(100, body=body), 110)
    bench.fail(flow, 120)
    assert bench.capture().bodies == [body]
    assert bench.window.manifest()["bodies"] == "full"


def test_a_body_that_is_too_large_is_counted_and_not_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capture.recorder.LARGE_BYTES", 0)
    monkeypatch.setattr("capture.recorder.LARGEST_BODY_BYTES", len(BODY) - 1)
    monkeypatch.setattr("capture.frames.LARGEST_BODY_BYTES", len(BODY) - 1)
    stream_one(bench, bench.arrive(100))
    request = bench.only().request
    assert (request.body_bytes, request.unread) == (len(BODY), "too large to be read")


def test_large_bodies_do_not_pile_up_before_a_scribe_that_is_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.recorder.CROWDED_BYTES", 100_000)
    bench.pipe.room = 0
    large = BODY.replace(b"SEEDED PROMPT", b"x" * 50_000)
    for number in range(20):
        stream_one(bench, bench.arrive(1_000 * number, body=large))
    assert bench.outbox.waiting_bytes < 100_000 + len(large) + 20 * 1_500
    bench.pipe.room = 1 << 30
    bench.outbox.flush()
    exchanges = bench.capture().exchanges
    assert [exchange.outcome for exchange in exchanges] == ["ok"] * 20
    assert [exchange.request.body_bytes for exchange in exchanges] == [len(large)] * 20
    unread = [exchange.request.unread for exchange in exchanges]
    assert unread[0] is None
    assert unread[-1] == "scribe behind"


@pytest.mark.parametrize("larger", [0, 1])
def test_a_large_body_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, larger: int) -> None:
    monkeypatch.setattr("capture.recorder.LARGE_BYTES", len(BODY) + larger)
    bench = Bench(tmp_path / "c", bodies="full")
    stream_one(bench, bench.arrive(100))
    assert bench.capture().bodies == [BODY]
    assert bench.only().request.max_tokens == 7
    assert [line["line"] for line in bench.lines()][2:] == ["start", "request", "end"]


def test_a_fault_of_the_reader_costs_facts_and_nothing_else(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise KeyError("SEEDED")

    monkeypatch.setattr(ResponseReader, "feed", explode)
    stream_one(bench, bench.arrive(100))
    bench.take()
    monkeypatch.undo()
    stream_one(bench, bench.arrive(1_000))
    first, second = bench.capture().exchanges
    assert (first.outcome, first.response.unread) == ("ok", "recorder fault: KeyError")
    assert (second.outcome, second.response.unread) == ("ok", None)
    assert bench.window.errors == {"scribe: KeyError": 1}
    assert b"SEEDED" not in (bench.folder / "segment-000001.jsonl").read_bytes()


@pytest.mark.parametrize("broken", ["request_line", "end_line", "outcome_of"])
def test_a_fault_over_one_line_does_not_stop_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(capture.scribe, broken, explode)
        stream_one(bench, bench.arrive(100))
        bench.take()
    stream_one(bench, bench.arrive(1_000))
    recorded = bench.capture()
    assert len(recorded.exchanges) == (2 if broken == "request_line" else 1)
    assert bench.window.errors == {"scribe: RuntimeError": 1}
    bench.close()
    assert bench.capture().dropped == 2 - len(recorded.exchanges)


def test_an_end_without_its_start_is_counted(bench: Bench) -> None:
    bench.outbox.put(tell(STORY, 9, 50, Story(None, None, None, [], [], Ending(50, True))))
    bench.outbox.flush()
    bench.beat()
    assert bench.capture().exchanges == []
    assert bench.window.dropped == {"start missing": 1}


def test_a_client_that_hangs_up_in_a_compressed_stream_that_was_whole_got_its_answer(bench: Bench) -> None:
    import zlib

    from mitmproxy.connection import ConnectionState

    flow = bench.arrive(100)
    bench.dispatch(flow, 110)
    bench.answer(flow, 200, encoding="gzip")
    press = zlib.compressobj(wbits=31)
    bench.read(flow, press.compress(TOKEN + LAST + DONE) + press.flush(zlib.Z_SYNC_FLUSH), 210)
    bench.fail(flow, 220, client=ConnectionState.CAN_WRITE)
    exchange = bench.only()
    assert (exchange.outcome, exchange.origin, exchange.response.output_tokens) == ("ok", None, 2)


def test_a_full_disk_costs_records_and_recording_resumes_in_a_new_window(tmp_path: Path) -> None:
    full = False

    def write(descriptor: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "full")
        return os.write(descriptor, data)

    bench = Bench(tmp_path / "c", write=write)
    stream_one(bench, bench.arrive(100))
    bench.take()
    full = True
    stream_one(bench, bench.arrive(100))
    bench.now_ns = 1_000
    bench.beat()
    stream_one(bench, bench.arrive(100))
    bench.take()
    full = False
    bench.now_ns = 2_000
    bench.beat()
    assert bench.window.journal.broken == "ENOSPC", "the next try is a few seconds away"
    bench.now_ns = 6_000_000_000
    bench.beat()
    stream_one(bench, bench.arrive(6_000_000_100))
    bench.close()
    recorded = bench.capture()
    assert len(recorded.exchanges) == 2
    assert recorded.dropped == 2
    assert [opened - WALL_NS for opened, _ in recorded.windows] == [0, 6_000_000_000]
    manifest = recorded.manifest
    assert (manifest["requests"], manifest["written"], manifest["dropped"]) == (4, 2, {"ENOSPC": 2})


def test_a_capture_that_is_taken_up_goes_on_counting(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    first = Bench(folder, bodies="full", prefix="a")
    stream_one(first, first.arrive(100))
    first.close()
    second = Bench(folder, prefix="b")
    second.recorder.requestheaders(tflow.tflow(req=tutils.treq(method=b"GET", path=b"/health")))
    stream_one(second, second.arrive(400))
    second.close()
    manifest = second.capture().manifest
    assert (manifest["windows"], manifest["requests"], manifest["passed_through"]) == (2, 2, 1)
    assert manifest["bodies"] == "full", "there are bodies in it, whatever the second window kept"
    assert manifest["closed"] is True


def test_a_scribe_that_replaces_another_of_the_same_proxy_counts_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    first = Bench(folder, prefix="a")
    stream_one(first, first.arrive(100))
    first.now_ns = 20_000_000_000
    first.beat()  # with its manifest
    first.window.journal.close()  # as a kill would
    second = Bench(folder, prefix="a", again=True, taken=1, written=1)
    second.recorder.counts.requests = 1  # the proxy goes on counting
    stream_one(second, second.arrive(20_000_000_400))
    second.close()
    manifest = second.capture().manifest
    assert (manifest["windows"], manifest["requests"], manifest["written"]) == (1, 2, 2)


def test_what_a_dead_scribe_dropped_is_counted_even_where_its_manifest_did_not_say_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "c", prefix="a", again=True, taken=5, written=2)
    bench.close()
    manifest = bench.capture().manifest
    assert (manifest["written"], manifest["dropped"]) == (2, {"scribe gone": 3})


def test_a_scribe_that_replaces_another_waits_for_a_disk_that_it_cannot_write(tmp_path: Path) -> None:
    blocked = tmp_path / "c"
    blocked.write_text("a file where the directory should be")
    bench = Bench(blocked, again=True)
    stream_one(bench, bench.arrive(100))
    bench.take()
    blocked.unlink()
    bench.now_ns = 6_000_000_000
    bench.beat()
    stream_one(bench, bench.arrive(6_000_000_100))
    bench.close()
    assert len(bench.capture().exchanges) == 1
    assert bench.capture().manifest["dropped"] == {"cannot open": 1}


def test_beats_say_how_many_are_in_flight(bench: Bench) -> None:
    bench.arrive(100)
    bench.now_ns = 1_000
    bench.beat()
    assert bench.lines()[-1] == {
        "line": "beat",
        "at_ns": 1_000,
        "in_flight": 1,
        "lag_ns": 0,
        "written": 0,
        "dropped": 0,
    }


def test_frames_survive_any_cut_and_a_torn_one_is_not_seen() -> None:
    told = [frame(STORY, number, number * 7 - 3, bytes(range(number))) for number in range(40)]
    whole = b"".join(told)
    expected = [Frame(STORY, number, number * 7 - 3, bytes(range(number))) for number in range(40)]
    for step in (1, 2, 20, 21, 22, 1000):
        reader = FrameReader()
        seen = [each for at in range(0, len(whole), step) for each in reader.feed(whole[at : at + step])]
        assert seen == expected
    assert list(FrameReader().feed(whole[:-1])) == expected[:-1]
