"""Segments of a capture to exchanges and windows, whatever a kill left behind."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from locked_folder import LOCKS, locked

from profiles.capture_folder import read_manifest, segment_paths
from profiles.captures import (
    BeatLine,
    EndLine,
    Interval,
    SegmentLine,
    StartLine,
    WindowLine,
    body_fields,
    body_of,
    end_line,
    read_capture,
)
from profiles.errors import FormatError
from profiles.files import encode
from profiles.records import Exchange, RequestFacts, ResponseFacts

WALL = 1_700_000_000_000_000_000  # the wall clock when the monotonic clock stood at 0


def exchange(id: str, arrival_ns: int, end_ns: int, **facts: Any) -> Exchange:
    return Exchange(
        id=id, endpoint="chat", method="POST", path="/v1/chat/completions", arrival_ns=arrival_ns, end_ns=end_ns,
        outcome="ok", request=RequestFacts(), response=ResponseFacts(**facts),
    )  # fmt: skip


def segment(wall_ns: int = WALL, version: int = 1) -> SegmentLine:
    return SegmentLine(format="firsttoken/capture", version=version, tool="t", wall_ns=wall_ns, mono_ns=0)


def opens(at_ns: int) -> WindowLine:
    return WindowLine(event="open", at_ns=at_ns)


def closes(at_ns: int) -> WindowLine:
    return WindowLine(event="close", at_ns=at_ns)


def start(id: str, at_ns: int) -> StartLine:
    return StartLine(id=id, at_ns=at_ns)


def beat(at_ns: int, dropped: int = 0) -> BeatLine:
    return BeatLine(at_ns=at_ns, in_flight=0, dropped=dropped)


def journal(*lines: Any) -> bytes:
    encoded = (end_line(line) if isinstance(line, Exchange) else msgspec.json.encode(line) for line in lines)
    return b"".join(line + b"\n" for line in encoded)


def write(folder: Path, *segments: bytes) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_bytes(encode({"format": "firsttoken/capture", "version": 1}))
    for number, data in enumerate(segments):
        (folder / f"segment-{number:06d}.jsonl").write_bytes(data)
    return folder


def test_a_capture_reads_back_on_the_wall_clock(tmp_path: Path) -> None:
    told = exchange("a", 10, 30, first_byte_ns=15, first_token_ns=20, token_gaps_ns=[3], last_token_ns=23)
    capture = read_capture(write(tmp_path / "c", journal(segment(), opens(5), start("a", 10), told, closes(50))))
    assert capture.windows == [(WALL + 5, WALL + 50)]
    assert capture.intervals == [Interval(WALL + 10, WALL + 30)]
    (found,) = capture.exchanges
    assert (found.arrival_ns, found.end_ns) == (WALL + 10, WALL + 30)
    assert (found.dispatch_ns, found.response.first_token_ns) == (None, WALL + 20)
    assert found.response.token_gaps_ns == [3]
    assert (capture.open, capture.bodies, capture.dropped, capture.torn) == ([], [None], 0, 0)


def test_exchanges_come_in_order_of_arrival_with_their_bodies(tmp_path: Path) -> None:
    lines = journal(segment(), opens(0)) + end_line(exchange("b", 5, 6), b'"b"') + b"\n"
    lines += end_line(exchange("a", 1, 9), b'"a"') + b"\n" + journal(closes(10))
    capture = read_capture(write(tmp_path / "c", lines))
    assert [(each.id, body) for each, body in zip(capture.exchanges, capture.bodies, strict=True)] == [
        ("a", b'"a"'),
        ("b", b'"b"'),
    ]


def test_after_a_kill_the_window_ends_with_its_last_line_and_a_start_stays_open(tmp_path: Path) -> None:
    lines = journal(segment(), opens(0), start("a", 10), exchange("a", 10, 30), start("b", 40), beat(45))
    capture = read_capture(write(tmp_path / "c", lines))
    assert capture.windows == [(WALL, WALL + 45)]
    assert capture.intervals == [Interval(WALL + 10, WALL + 30), Interval(WALL + 40, None)]


def test_a_torn_tail_is_no_error_and_is_counted(tmp_path: Path) -> None:
    lines = journal(segment(), opens(0), start("a", 10)) + end_line(exchange("a", 10, 30))[:40]
    capture = read_capture(write(tmp_path / "c", lines))
    assert (capture.exchanges, capture.torn) == ([], 1)
    assert capture.intervals == [Interval(WALL + 10, None)]
    assert capture.windows == [(WALL, WALL + 10)]


def test_a_recorder_that_starts_again_after_a_kill_opens_a_second_window(tmp_path: Path) -> None:
    first = journal(segment(), opens(0), beat(7), start("a", 8))
    second = journal(segment(WALL + 100), opens(20), start("a", 25), exchange("a", 25, 30), closes(40))
    capture = read_capture(write(tmp_path / "c", first, second))
    assert capture.windows == [(WALL, WALL + 8), (WALL + 120, WALL + 140)]
    assert capture.intervals == [Interval(WALL + 8, None), Interval(WALL + 125, WALL + 130)]


def test_two_windows_in_one_segment(tmp_path: Path) -> None:
    lines = journal(segment(), opens(0), exchange("a", 1, 2), closes(5), opens(10), exchange("b", 11, 12), closes(15))
    capture = read_capture(write(tmp_path / "c", lines))
    assert capture.windows == [(WALL, WALL + 5), (WALL + 10, WALL + 15)]
    assert [each.id for each in capture.exchanges] == ["a", "b"]


def test_a_window_goes_on_over_two_segments(tmp_path: Path) -> None:
    first = journal(segment(), opens(0), start("a", 10))
    second = journal(segment(), exchange("a", 10, 30), closes(40))
    capture = read_capture(write(tmp_path / "c", first, second))
    assert capture.windows == [(WALL, WALL + 40)]
    assert capture.intervals == [Interval(WALL + 10, WALL + 30)]


def test_a_step_of_the_wall_clock_does_not_tear_a_window_apart(tmp_path: Path) -> None:
    """The second segment's anchor is an hour behind; its requests still follow those of the first."""
    first = journal(segment(), opens(0), exchange("a", 10, 30))
    second = journal(segment(WALL - 3_600_000_000_000), exchange("b", 20, 35), closes(40))
    capture = read_capture(write(tmp_path / "c", first, second))
    assert capture.windows == [(WALL, WALL + 40)]
    assert capture.intervals == [Interval(WALL + 10, WALL + 30), Interval(WALL + 20, WALL + 35)]


def test_an_end_after_the_close_still_ends_its_request(tmp_path: Path) -> None:
    lines = journal(segment(), opens(0), start("a", 10), closes(20), exchange("a", 10, 21))
    capture = read_capture(write(tmp_path / "c", lines))
    assert capture.intervals == [Interval(WALL + 10, WALL + 21)]
    assert capture.windows == [(WALL, WALL + 20)]


def test_a_request_in_flight_while_the_disk_was_full_ends_in_the_next_window_and_counts_once(tmp_path: Path) -> None:
    lines = journal(segment(), opens(0), start("a", 10), beat(12), opens(20), exchange("a", 10, 25), closes(30))
    capture = read_capture(write(tmp_path / "c", lines))
    assert capture.windows == [(WALL, WALL + 12), (WALL + 20, WALL + 30)]
    assert capture.intervals == [Interval(WALL + 10, WALL + 25)]


def test_two_starts_of_one_id_are_two_requests(tmp_path: Path) -> None:
    lines = journal(segment(), opens(0), start("a", 1), opens(20), start("a", 21), closes(30))
    capture = read_capture(write(tmp_path / "c", lines))
    assert capture.intervals == [Interval(WALL + 1, None), Interval(WALL + 21, None)]


def test_drops_are_a_running_count_that_a_new_recorder_begins_again(tmp_path: Path) -> None:
    first = journal(segment(), opens(0), beat(1, 0), beat(2, 3), beat(3, 3))
    second = journal(segment(), opens(10), beat(11, 0), beat(12, 2), closes(20), opens(30), beat(31, 6), closes(40))
    assert read_capture(write(tmp_path / "c", first, second)).dropped == 9


def test_a_closed_segment_replaces_its_live_twin(tmp_path: Path) -> None:
    data = journal(segment(), opens(0), exchange("a", 1, 2), closes(5))
    folder = write(tmp_path / "c", data[:-20])
    (folder / "segment-000000.jsonl.zst").write_bytes(zstandard.compress(data))
    (folder / "segment-000001.jsonl.tmp").write_bytes(b"?")
    assert [path.name for path in segment_paths(folder)] == ["segment-000000.jsonl.zst"]
    assert len(read_capture(folder).exchanges) == 1


BODIES = [
    b'{"messages":[{"role":"user","content":"h\xc3\xa9"}]}',
    b'{\n  "a": 1,\n  "b": [1, 2]\n}\n',
    b'{"a": 1.0, "b" : 1e5, "a":2}',
    b'{"n":123456789012345678901234567890}',
    '"\u2028\u0085"'.encode(),
    b' {"a":1}',
    b'{"a":1}\r\n',
    b"null",
    b"",
    b"not json",
    b'{"latin":"\xe9"}',
    b"\xff\xfe\x00",
    b'{"lone":"\\ud800"}',
]


@pytest.mark.parametrize("body", BODIES)
def test_a_body_survives_byte_for_byte(tmp_path: Path, body: bytes) -> None:
    lines = journal(segment(), opens(0)) + end_line(exchange("a", 1, 2), body) + b"\n" + journal(closes(3))
    assert read_capture(write(tmp_path / "c", lines)).bodies == [body]


@settings(max_examples=30)
@given(
    st.binary()
    | st.text().map(str.encode)
    | st.from_regex(rb'\s*\{"a"\s*:\s*-?[1-9]{1,40}(\.[0-9]+)?\}\s*', fullmatch=True)
)
def test_any_body_survives_in_one_line(body: bytes) -> None:
    line = end_line(exchange("a", 1, 2), body)
    assert b"\n" not in line
    assert body_of(msgspec.json.decode(line, type=EndLine)) == body


@pytest.mark.parametrize(
    ("body", "key"),
    [(b'{"a":1}', "body"), (b'{\n"a":1}', "body_text"), (b"\xff", "body_base64"), (b"text", "body_base64")],
)
def test_json_stays_json_where_it_can(body: bytes, key: str) -> None:
    assert list(body_fields(body)) == [key]


def test_no_body_is_not_an_empty_body() -> None:
    assert body_of(msgspec.json.decode(end_line(exchange("a", 1, 2)), type=EndLine)) is None


@pytest.mark.parametrize(
    ("lines", "line", "problem"),
    [
        (journal(opens(0)), 1, "a segment must begin with its segment line"),
        (journal(segment(version=2)), 1, "version 2 cannot be read"),
        (journal(segment()) + b"{}\n", 2, "missing required field `line`"),
        (journal(segment(), opens(0)) + b"oops\n", 3, "malformed"),
        (journal(segment(), opens(0), exchange("a", 5, 4)), 3, "request a ends before it arrives"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: bytes, line: int, problem: str) -> None:
    folder = write(tmp_path / "c", lines)
    with pytest.raises(FormatError, match=problem) as caught:
        read_capture(folder)
    assert (caught.value.path, caught.value.line) == (folder / "segment-000000.jsonl", line)


def test_what_is_no_capture_says_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such directory"):
        read_capture(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FormatError, match="not a directory"):
        read_capture(tmp_path / "file")
    with pytest.raises(FormatError, match=r"manifest\.json: no such file"):
        read_capture(tmp_path)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_capture_of_another_user_is_a_matter_of_usage(tmp_path: Path, lock: str) -> None:
    (tmp_path / "place").mkdir()
    folder = write(tmp_path / "place" / "c", journal(segment(), opens(0), closes(1)))
    with locked(folder, lock), pytest.raises(FormatError, match="may not be read by this user") as caught:
        read_capture(folder)
    assert caught.value.hint
    assert read_capture(folder).windows


def test_a_name_that_no_system_takes_is_a_matter_of_usage(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_capture(tmp_path / ("n" * 5_000))


# Each key that is read again, with a value that it cannot have.
_COUNTS = ("windows", "requests", "written", "passed_through", "upgrades", "max_in_flight")
_NO_COUNT: tuple[Any, ...] = ("1", None, 1.5, [], -1, True)
_NO_COUNTS: tuple[Any, ...] = ([], 3, None, {"EIO": "2"})
WRONG: list[tuple[str, Any]] = [
    *((key, value) for key in _COUNTS for value in _NO_COUNT),
    *((key, value) for key in ("dropped", "errors", "recorder.dropped") for value in _NO_COUNTS),
    ("purged", "x"), ("purged", None), ("purged.segments", "1"), ("purged.bytes", None), ("purged.until_wall_ns", "x"),
    ("bodies", 0), ("bodies", {}), ("started_wall_ns", "now"),
    ("recorder", []), ("recorder.prefix", 1), ("recorder.before", 1), ("recorder.before.windows", "1"),
    ("recorder.before.dropped", {"EIO": None}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_type_in_the_manifest_is_named(tmp_path: Path, key: str, value: Any) -> None:
    folder = write(tmp_path / "c", journal(segment(), opens(0), closes(1)))
    document: Any = value
    for name in reversed(key.split(".")):
        document = {name: document}
    (folder / "manifest.json").write_bytes(encode({"format": "firsttoken/capture", "version": 1} | document))
    for read in (read_manifest, read_capture):
        with pytest.raises(FormatError) as caught:
            read(folder)
        assert f"`$.{key}" in str(caught.value)
        assert caught.value.path == folder / "manifest.json"


def test_a_manifest_comes_whole_and_may_say_more(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", journal(segment(), opens(0), closes(1)))
    said = {
        "format": "firsttoken/capture", "version": 1, "bodies": "full", "windows": 2, "dropped": {"EIO": 1},
        "purged": {"segments": 1, "bytes": 5, "until_wall_ns": None, "later": 1}, "later": [1.5],
        "recorder": {"prefix": "p", "before": {"windows": 1, "later": "x"}, "dropped": {}},
    }  # fmt: skip
    (folder / "manifest.json").write_bytes(encode(said))
    assert read_manifest(folder) == said
