"""What a check says of a capture: every way in which one can be incomplete, and what a purge leaves."""

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from locked_folder import LOCKS, locked

from capture.check import check, dropped_by_reason, format_instant, view
from capture.check_cli import capture, describe, parse_age, parse_bytes
from capture.evidence import look_at, read_sightings
from capture.purge import BODY_KEYS, KEPT_FACTS, hold, strip_bodies, strip_line
from capture.segments import list_segments, pack
from capture.walk import Findings, Walk
from profiles.capture_folder import HASH_KEY
from profiles.captures import (
    BeatLine,
    EndLine,
    Interval,
    SegmentLine,
    StartLine,
    WindowLine,
    end_line,
    read_capture,
    request_line,
)
from profiles.errors import FirsttokenError, FormatError, UsageError
from profiles.files import encode_pretty, read_lines
from profiles.records import Exchange, RequestFacts, ResponseFacts

WALL = 1_700_000_000_000_000_000  # the wall clock when the monotonic clock stood at 0: 2023-11-14 22:13:20 UTC
S = 1_000_000_000


def segment(bodies: str = "none", wall_ns: int = WALL) -> SegmentLine:
    return SegmentLine(format="firsttoken/capture", version=1, tool="t", wall_ns=wall_ns, mono_ns=0, bodies=bodies)


def opens(at_s: float, reason: str = "") -> WindowLine:
    return WindowLine(event="open", at_ns=round(at_s * S), reason=reason)


def closes(at_s: float, reason: str = "stopped") -> WindowLine:
    return WindowLine(event="close", at_ns=round(at_s * S), reason=reason)


def start(id: str, at_s: float) -> StartLine:
    return StartLine(id=id, at_ns=round(at_s * S))


def beat(at_s: float, dropped: int = 0, lag_ns: int = 0) -> BeatLine:
    return BeatLine(at_ns=round(at_s * S), in_flight=0, dropped=dropped, lag_ns=lag_ns)


def asked(id: str, at_s: float, body: bytes | None = None) -> bytes:
    return request_line(id, round(at_s * S), RequestFacts(model="m", body_bytes=7), body)


def ends(id: str, arrival_s: float, end_s: float, body: bytes | None = None, **facts: Any) -> bytes:
    given: dict[str, Any] = {"dispatch_ns": round(arrival_s * S), "outcome": "ok"} | facts
    exchange = Exchange(
        id=id, endpoint="chat", method="POST", path="/v1", arrival_ns=round(arrival_s * S), end_ns=round(end_s * S),
        response=ResponseFacts(), **given,
    )  # fmt: skip
    return end_line(exchange, body)


def data(*lines: Any) -> bytes:
    encoded = (line if isinstance(line, bytes) else msgspec.json.encode(line) for line in lines)
    return b"".join(line + b"\n" for line in encoded)


def make(folder: Path, *segments: bytes, first: int = 1, **manifest: Any) -> Path:
    """A capture directory with owner-only files."""
    folder.mkdir(mode=0o700, exist_ok=True)
    files = {f"segment-{number:06d}.jsonl": text for number, text in enumerate(segments, start=first)}
    files["manifest.json"] = encode_pretty({"format": "firsttoken/capture", "version": 1} | manifest)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return folder


def compress(folder: Path, number: int) -> Path:
    path = folder / f"segment-{number:06d}.jsonl"
    text = path.read_bytes()
    target = path.with_name(path.name + ".zst")
    target.write_bytes(b"".join(pack([text], len(text))))
    target.chmod(0o600)
    path.unlink()
    return target


def checked(folder: Path) -> Findings:
    state = look_at(folder)
    return check(state, read_sightings(state.segments))


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(capture, [str(each) for each in arguments])


WHOLE = data(
    segment(), opens(0), start("a", 1), asked("a", 1), beat(1.5), start("b", 2), asked("b", 2),
    ends("a", 1, 3), ends("b", 2, 4), beat(4.5), closes(5),
)  # fmt: skip


def test_a_complete_capture_is_sound(tmp_path: Path) -> None:
    found = checked(make(tmp_path / "c", WHOLE, requests=2, closed=True))
    assert found.sentence == "complete: 2 requests, 1 window, nothing dropped"
    assert (found.sound, found.notes) == (True, [])
    assert (found.started, found.ended, found.open, found.observed_ns) == (2, 2, 0, 5 * S)
    assert found.outcomes == {"ok": 2}
    assert found.arrival is not None
    assert (found.arrival.sum_ns, found.arrival.duration_sum_ns, found.arrival.max) == (4 * S, 4 * S, 2)


KILL = [segment(), opens(0), start("a", 1), asked("a", 1), beat(2)]

SCENARIOS: dict[str, tuple[list[list[Any]], dict[str, Any], str, list[str]]] = {
    "killed with one in flight": (
        [KILL],
        {},
        "1 request was in flight when the recorder was killed at 2023-11-14 22:13:22 UTC",
        ["1 request was in flight when the recorder was killed at 2023-11-14 22:13:22 UTC"],
    ),
    "killed with three in flight and started again": (
        [[*KILL, start("b", 2), start("c", 2)], [segment(), opens(9), closes(10)]],
        {},
        "3 requests were in flight when the recorder was killed at 2023-11-14 22:13:22 UTC",
        ["3 requests were in flight when the recorder was killed at 2023-11-14 22:13:22 UTC"],
    ),
    "killed with nothing in flight": (
        [[segment(), opens(0), beat(1)]],
        {},
        "complete: 0 requests, 1 window, nothing dropped",
        [],
    ),
    "open though stopped in order": (
        [[segment(), opens(0), start("a", 1), closes(2)]],
        {},
        "not sound: 1 request, 1 window; 1 request never ended, though the recorder was stopped in order",
        ["1 request never ended, though the recorder was stopped in order"],
    ),
    "dropped, by the manifest": (
        [[segment(), opens(0), beat(1, dropped=3), closes(2)]],
        {"dropped": {"ENOSPC": 2, "queue full": 1}},
        "not sound: 0 requests, 1 window; 3 records dropped: 2 (ENOSPC), 1 (queue full)",
        ["3 records dropped: 2 (ENOSPC), 1 (queue full)"],
    ),
    "dropped, by the beats alone": (
        [[segment(), opens(0), beat(1, dropped=3), closes(2), opens(3), beat(4, dropped=2), closes(5)]],
        {"dropped": {"EIO": 1}},
        "not sound: 0 requests, 2 windows; 5 records dropped: 1 (EIO), 4 (reason not known)",
        ["5 records dropped: 1 (EIO), 4 (reason not known)"],
    ),
    "a gap in which the disk was full, and one ends in the next window": (
        [[*KILL], [segment(), opens(5, "resumed after ENOSPC"), ends("a", 1, 6), closes(7)]],
        {},
        "not sound: 1 request, 2 windows; traffic passed unseen for 3.00 s from 2023-11-14 22:13:22 UTC (ENOSPC)",
        ["traffic passed unseen for 3.00 s from 2023-11-14 22:13:22 UTC (ENOSPC)"],
    ),
    "told again by a writer that was replaced": (
        [[*KILL], [segment(), opens(3, "resumed after its end"), start("a", 1), ends("a", 1, 6), closes(7)]],
        {},
        "not sound: 1 request, 2 windows; traffic passed unseen for 1.00 s from 2023-11-14 22:13:22 UTC (its end)",
        ["traffic passed unseen for 1.00 s from 2023-11-14 22:13:22 UTC (its end)"],
    ),
    "stopped and started again": (
        [[segment(), opens(0), closes(2)], [segment(), opens(5), closes(9)]],
        {},
        "complete: 0 requests, 2 windows, nothing dropped",
        [],
    ),
    "an end without its start": (
        [[segment(), opens(0), asked("a", 1), ends("a", 1, 2), closes(3)]],
        {},
        "not sound: 1 request, 1 window; 1 request ended without a start line",
        ["1 request ended without a start line"],
    ),
    "an end without its request": (
        [[segment(), opens(0), start("a", 1), ends("a", 1, 2), closes(3)]],
        {},
        "not sound: 1 request, 1 window; what 1 request asked for is missing",
        ["what 1 request asked for is missing"],
    ),
    "an end of the old form, and one whose body never came": (
        [[segment(), opens(0), start("a", 1), ends("a", 1, 2, request=RequestFacts()), start("b", 2),
          ends("b", 2, 3, dispatch_ns=None, outcome="cancelled_by_client"), closes(4)]],
        {},
        "complete: 2 requests, 1 window, nothing dropped",
        [],
    ),
    "two ends of one request": (
        [[segment(), opens(0), start("a", 1), asked("a", 1), ends("a", 1, 2), start("a", 3), asked("a", 3),
          ends("a", 3, 4), closes(5)]],
        {},
        "not sound: 2 requests, 1 window; 1 end line for a request that had ended before",
        ["1 end line for a request that had ended before"],
    ),
    "fewer requests than the manifest counts": (
        [[segment(), opens(0), closes(5)]],
        {"requests": 1200},
        "not sound: 0 requests, 1 window; the manifest counts 1,200 requests, the segments 0",
        ["the manifest counts 1,200 requests, the segments 0"],
    ),
    "no window at all": (
        [[segment()]],
        {},
        "not sound: 0 requests, 0 windows; no window was opened",
        ["no window was opened"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_missing_is_said(tmp_path: Path, name: str) -> None:
    segments, manifest, sentence, problems = SCENARIOS[name]
    folder = make(tmp_path / "c", *(data(*lines) for lines in segments), **manifest)
    found = checked(folder)
    assert found.sentence == sentence
    assert found.problems == problems
    assert run("check", folder).exit_code == (1 if problems else 0)


def test_each_window_says_why_it_ended(tmp_path: Path) -> None:
    second, third = [segment(), opens(5, "resumed after EIO"), closes(7)], [segment(), opens(8), beat(9)]
    folder = make(tmp_path / "c", data(*KILL), data(*second), data(*third), data(segment(), opens(20), beat(21)))
    with recording(folder):
        ends_of = [window.closed_because for window in checked(folder).windows]
    assert ends_of == ["EIO", "stopped", "killed or crashed", "still recording"]
    assert [window.closed_because for window in checked(folder).windows][-1] == "killed or crashed"


def test_two_problems_are_both_listed_and_the_sentence_says_there_are_more(tmp_path: Path) -> None:
    lines = data(segment(), opens(0), start("a", 1), beat(2, dropped=1))
    found = checked(make(tmp_path / "c", lines))
    assert len(found.problems) == 2
    assert found.sentence.endswith(", and 1 other problem")


def test_late_records_lag_silence_and_faults_are_notes(tmp_path: Path) -> None:
    lines = [segment(), opens(0), beat(1, lag_ns=7), start("a", 1), asked("a", 1), start("b", 1), asked("b", 1)]
    lines += [ends("a", 1, 2, late_ns=50_000_000), ends("b", 1, 2, late_ns=80_000_000), beat(9), beat(10), closes(11)]
    found = checked(make(tmp_path / "c", data(*lines), errors={"request: KeyError": 2}))
    assert found.sound
    assert (found.late, found.worst_late_ns, found.worst_lag_ns) == (1, 80_000_000, 7)
    assert found.notes == [
        "1 record taken while the event loop was more than 50.0 ms late, the worst 80.0 ms",
        "faults of the recorder: 2 × request: KeyError",
        "1 stretch without a beat, the first at 2023-11-14 22:13:22 UTC, the longest 7.00 s",
    ]


def test_a_wall_clock_that_was_set_back_is_a_note(tmp_path: Path) -> None:
    first, second = data(segment(), opens(0), closes(9)), data(segment(wall_ns=WALL - 5 * S), opens(10), closes(20))
    found = checked(make(tmp_path / "c", first, second))
    assert found.sound
    assert found.notes == ["the window at 2023-11-14 22:13:25 UTC begins 4.00 s before the one before it ends"]
    assert found.observed_ns == 15 * S, "no instant counts twice"


# Lines that cannot be read.


def test_it_goes_on_after_a_bad_line_and_names_it_without_quoting_it(tmp_path: Path) -> None:
    lines = WHOLE.splitlines(keepends=True)
    lines.insert(3, b'{"line":"start","id":"SECRET","at_ns":"SECRET"}\n')
    lines.insert(5, b"SECRET\n")
    lines.insert(6, b'{"line":"window","event":"open"}\n')
    folder = make(tmp_path / "c", b"".join(lines))
    found = checked(folder)
    assert (found.started, found.ended, found.undecodable) == (2, 2, 3)
    assert [place for place, _ in found.flaws] == [f"segment-000001.jsonl:{number}" for number in (4, 6, 7)]
    assert found.problems == ["3 lines cannot be read"]
    shown = run("check", folder)
    assert "segment-000001.jsonl:6: JSON is malformed" in shown.output
    assert "SECRET" not in shown.output


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (ends("x", 5, 4, dispatch_ns=None), "the instants of request x are out of order"),
        (ends("x", 5, 6, dispatch_ns=4 * S), "the instants of request x are out of order"),
        (ends("x", 5, 6, dispatch_ns=7 * S), "the instants of request x are out of order"),
        (msgspec.json.encode(msgspec.structs.replace(segment(), version=9)), "version 9 cannot be read"),
        (msgspec.json.encode(msgspec.structs.replace(segment(), format="x")), "not a firsttoken/capture file"),
    ],
)
def test_lines_that_make_no_sense_are_flaws(tmp_path: Path, line: bytes, problem: str) -> None:
    found = checked(make(tmp_path / "c", data(segment(), opens(0), line, closes(9))))
    ((place, said),) = found.flaws
    assert place == "segment-000001.jsonl:3"
    assert problem in said
    assert str(tmp_path) not in said


def test_lines_before_the_head_have_no_clock(tmp_path: Path) -> None:
    found = checked(make(tmp_path / "c", data(beat(1), segment(), opens(0), closes(2))))
    assert [place for place, _ in found.flaws] == ["segment-000001.jsonl:1"]
    assert found.observed_ns == 2 * S


def test_a_torn_line_is_counted_in_each_form(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WHOLE + b'{"line":"end","id":"c', WHOLE.replace(b'"at_ns":0', b'"at_ns":7') + b"{")
    compress(folder, 1)
    assert checked(folder).torn == 2
    assert "2 torn last lines, left by a kill or a full disk" in checked(folder).problems


def test_a_damaged_compressed_segment_gives_what_can_be_read(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WHOLE, data(segment(), opens(9), closes(10)))
    path = compress(folder, 1)
    path.write_bytes(path.read_bytes()[:-2])
    found = checked(folder)
    assert found.ended == 2
    assert found.flaws[0][1] == "damaged, what follows is lost (the file ends inside a frame)"
    assert len(found.windows) == 2


def test_a_segment_that_is_compressed_or_purged_while_we_read_is_followed(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WHOLE, WHOLE)
    listed = list_segments(folder)
    compress(folder, 1)
    (folder / "segment-000002.jsonl").unlink()
    assert len([each for each in read_sightings(listed) if isinstance(each.line, EndLine)]) == 2


# Files.


def test_who_else_may_read_is_said(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WHOLE)
    folder.chmod(0o755)
    (folder / "segment-000001.jsonl").chmod(0o644)
    assert checked(folder).problems == [
        "others may enter the directory (mode 0755); chmod 0700 mends it",
        "others may read 1 file (such as segment-000001.jsonl, mode 0644); chmod 0600 mends it",
    ]


def test_unfinished_files_of_a_killed_process_are_a_note(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WHOLE)
    (folder / ".segment-000001.jsonl.zst.4711").touch()
    alive = folder / ".segment-000001.jsonl.zst.4712"
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = checked(folder)
    assert found.sound
    assert found.notes == ["1 unfinished file of a killed process; the next recorder removes them"]


@pytest.mark.parametrize(
    ("numbers", "purged", "missing"), [([1, 2], 0, 0), ([2, 3], 0, 1), ([1, 4], 0, 2), ([5], 4, 0), ([5], 3, 1)]
)
def test_segments_that_are_missing_and_were_not_purged(
    tmp_path: Path, numbers: list[int], purged: int, missing: int
) -> None:
    folder = make(tmp_path / "c", purged={"segments": purged, "bytes": 1, "until_wall_ns": WALL})
    for number in numbers:
        path = folder / f"segment-{number:06d}.jsonl"
        path.write_bytes(data(segment(), opens(number), closes(number + 1)))
        path.chmod(0o600)
    problems = checked(folder).problems
    assert [problem for problem in problems if "missing from the row" in problem] == (
        [f"{missing} segment{'s' if missing > 1 else ''} missing from the row of numbers"] if missing else []
    )


def test_a_link_is_named_and_not_read(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WHOLE)
    (tmp_path / "other").write_bytes(WHOLE)
    (folder / "segment-000002.jsonl").symlink_to(tmp_path / "other")
    found = checked(folder)
    assert found.ended == 2
    assert found.problems == ["segment-000002.jsonl is a symbolic link and is not read"]


def test_segments_without_a_manifest_are_looked_at_all_the_same(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WHOLE)
    (folder / "manifest.json").unlink()
    assert checked(folder).problems == ["manifest.json is missing"]


def test_what_is_no_capture_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file", tmp_path):
        with pytest.raises(FormatError):
            look_at(path)
        assert run("check", path).exit_code != 0


@contextmanager
def recording(folder: Path) -> Iterator[None]:
    """A recorder holds the directory."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_capture_that_is_being_recorded_is_not_held_incomplete(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", data(*KILL) + b'{"line":"be')
    with recording(folder):
        found = checked(folder)
        assert run("check", folder).exit_code == 0
    assert found.sentence == "recording: 1 request so far, 1 in flight, 1 window, nothing dropped"
    assert not checked(folder).sound


def test_what_retention_left_begins_with_the_first_line_that_is_there(tmp_path: Path) -> None:
    """Window and starts of these requests were in a segment that is gone."""
    lines = data(segment(), ends("a", 1, 7), beat(8), start("b", 8), asked("b", 8), ends("b", 8, 9), closes(10))
    folder = make(tmp_path / "c", lines, first=4, purged={"segments": 3, "bytes": 9, "until_wall_ns": WALL + 6 * S})
    found = checked(folder)
    assert found.sentence == "complete: 2 requests, 1 window, nothing dropped"
    assert [(window.opened_ns, window.closed_ns) for window in found.windows] == [(WALL + 7 * S, WALL + 10 * S)]
    assert found.notes == [
        "1 request ended without a start line",
        "what 1 request asked for is missing",
        "3 segments purged, until 2023-11-14 22:13:26 UTC",
    ]
    assert [read_capture(folder).windows, len(read_capture(folder).exchanges)] == [[(WALL + 7 * S, WALL + 10 * S)], 2]


# The identity, and the same rules as the reader that profiles are built with.


def test_the_two_clocks_differ_by_the_uploads(tmp_path: Path) -> None:
    lines = [segment(), opens(0), start("a", 0), start("b", 1), asked("a", 2), asked("b", 2)]
    lines += [ends("a", 0, 4, dispatch_ns=2 * S), beat(5), closes(6)]
    found = checked(make(tmp_path / "c", data(*lines)))
    assert found.arrival is not None
    assert found.dispatch is not None
    assert (found.arrival.sum_ns, found.arrival.duration_sum_ns) == (9 * S, 9 * S)  # 0 to 4, and 1 to the end
    assert (found.dispatch.sum_ns, found.dispatch.duration_sum_ns) == (6 * S, 6 * S)


def test_an_identity_that_does_not_hold_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import capture.check

    def off_by_one(*given: Any) -> Any:
        seen = view(*given)
        assert seen is not None
        return type(seen)(seen.sum_ns + 1, seen.duration_sum_ns, seen.mean, seen.max)

    monkeypatch.setattr(capture.check, "view", off_by_one)
    found = checked(make(tmp_path / "c", WHOLE))
    assert found.problems[0] == f"Σ k·T_k = {4 * S + 1} ns is not Σ durations = {4 * S} ns by the clock of arrival"
    assert "BROKEN" in "\n".join(describe(found))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "resumed", "close", "start", "asked", "end", "beat", "segment", "again"]),
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    max_size=40,
)


def script(steps: list[tuple[str, int, int]]) -> list[list[Any]]:
    """Lines as a recorder might write them, killed and replaced at will, in several segments with their own anchors."""
    now_s, open_s = 0, dict[str, int]()
    segments: list[list[Any]] = [[segment(), opens(0)]]
    for what, which, wait in steps:
        now_s += wait
        id = "abcd"[which]
        if what == "segment":
            segments.append([segment(wall_ns=WALL + wait - 2)])
        elif what in ("open", "resumed"):
            segments[-1].append(opens(now_s, "resumed after EIO" if what == "resumed" else ""))
        elif what == "close":
            segments[-1].append(closes(now_s))
        elif what == "beat":
            segments[-1].append(beat(now_s, dropped=which))
        elif what == "start":
            open_s[id] = now_s
            segments[-1].append(start(id, now_s))
        elif what == "again" and id in open_s:
            segments[-1].append(start(id, open_s[id]))
        elif what == "asked" and id in open_s:
            segments[-1].append(asked(id, now_s))
        elif what == "end" and id in open_s:
            segments[-1].append(ends(id, open_s.pop(id), now_s))
    return segments


@settings(max_examples=80)
@given(STEPS, st.integers(1, 3))
def test_the_walk_sees_what_the_reader_of_profiles_sees_and_the_identity_holds(
    steps: list[tuple[str, int, int]], first: int
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = make(Path(place) / "c", *(data(*lines) for lines in script(steps)), first=first)
        state, read = look_at(folder), read_capture(folder)
        walk = Walk(state)
        for sighting in read_sightings(state.segments):
            walk.take(sighting)
        walk.finish()
        assert [(window.opened_ns, window.closed_ns) for window in walk.found.windows] == read.windows
        assert sorted(walk.arrivals, key=repr) == sorted(read.intervals, key=repr)
        assert (walk.found.ended, walk.found.open) == (len(read.exchanges), len(read.open))
        assert walk.dropped == read.dropped
        found = check(state, read_sightings(state.segments))
        for seen in (found.arrival, found.dispatch):
            assert seen is None or seen.sum_ns == seen.duration_sum_ns


@given(
    st.lists(st.tuples(st.integers(0, 50), st.none() | st.integers(0, 30))),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30))),
)
def test_a_view_holds_the_identity_for_any_intervals(
    stays: list[tuple[int, int | None]], windows: list[tuple[int, int]]
) -> None:
    intervals = [Interval(begin, None if length is None else begin + length) for begin, length in stays]
    seen = view(intervals, [(opened, opened + length) for opened, length in windows if length])
    assert seen is None or seen.sum_ns == seen.duration_sum_ns


@given(st.dictionaries(st.sampled_from(["ENOSPC", "EIO"]), st.integers(0, 5)), st.integers(0, 12))
def test_drops_are_as_many_as_the_one_who_knows_more_says(told: dict[str, int], counted: int) -> None:
    assert dropped_by_reason(told, counted).total() == max(sum(told.values()), counted)


# What is printed.


def test_the_page_fits_a_terminal_and_begins_with_the_sentence(tmp_path: Path) -> None:
    windows = [line for at in range(30) for line in (opens(3 * at, "resumed after " + "E" * 20), closes(3 * at + 1))]
    folder = make(tmp_path / "c", data(segment(), *windows), requests=123_456, dropped={"x" * 30: 5, "y" * 30: 6})
    shown = run("check", folder)
    lines = shown.output.splitlines()
    assert shown.exit_code == 1
    assert lines[0].startswith("not sound: 0 requests, 30 windows;")
    assert max(map(len, lines)) <= 80
    assert "and 20 more" in shown.output


def test_the_document_is_strict_and_holds_everything(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WHOLE)
    shown = run("check", folder, "--json")
    document = json.loads(shown.output)
    assert shown.exit_code == 0
    assert (document["format"], document["sound"], document["started"]) == ("firsttoken/check", True, 2)
    assert document["windows"] == [
        {"opened_ns": WALL, "closed_ns": WALL + 5 * S, "opened_because": "", "closed_because": "stopped"}
    ]
    assert set(document) >= {"dropped", "gaps", "flaws", "late", "arrival", "dispatch", "problems", "notes", "sentence"}


@pytest.mark.parametrize(("wall_ns", "text"), [(WALL, "2023-11-14 22:13:20 UTC"), (10**30, f"{10**30} ns")])
def test_instants_for_people(wall_ns: int, text: str) -> None:
    assert format_instant(wall_ns) == text


# Purging.

HOUR_NS = 3600 * S


@pytest.mark.parametrize(
    ("text", "ns"), [("30d", 720 * HOUR_NS), ("1.5 d", 36 * HOUR_NS), ("12h", 12 * HOUR_NS), ("90min", 90 * 60 * S)]
)
def test_ages(text: str, ns: int) -> None:
    assert parse_age(text) == ns


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5G", 5 * 10**9),
        ("500MB", 5 * 10**8),
        ("2GiB", 2 * 2**30),
        ("1.5k", 1500),
        ("0", 0),
        ("7B", 7),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "G", "5X", "-1G", "5 G B", "5i", "1e9"])
def test_sizes_and_ages_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_bytes(text)
    with pytest.raises(UsageError, match="is not an age"):
        parse_age(text)


def aged(folder: Path, now_ns: int, *ages_ns: int) -> None:
    for each, age_ns in zip(list_segments(folder), ages_ns, strict=True):
        os.utime(each.path, ns=(now_ns - age_ns, now_ns - age_ns))


def test_old_segments_are_deleted_only_with_yes_and_the_manifest_says_so(tmp_path: Path) -> None:
    import time

    folder = make(tmp_path / "c", *[data(segment(), opens(at), closes(at + 1)) for at in (0, 2, 4)])
    size = compress(folder, 1).stat().st_size
    now_ns = time.time_ns()
    aged(folder, now_ns, 50 * HOUR_NS, 5 * HOUR_NS, 0)
    before = sorted(path.name for path in folder.iterdir())
    shown = run("purge", folder, "--older-than", "2d")
    assert shown.output.startswith("Would delete 1 of 3 segments: ")
    assert shown.output.endswith("Nothing was changed; add --yes to do it.\n")
    assert sorted(path.name for path in folder.iterdir()) == before
    shown = run("purge", folder, "--older-than", "2d", "--yes")
    assert shown.output.startswith(f"Deleted 1 of 3 segments: {size} B, up to ")
    assert [each.number for each in list_segments(folder)] == [2, 3]
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["purged"] == {"segments": 1, "bytes": size, "until_wall_ns": now_ns - 50 * HOUR_NS}
    assert checked(folder).sound
    run("purge", folder, "--keep-bytes", "0", "--yes")
    assert json.loads((folder / "manifest.json").read_bytes())["purged"]["segments"] == 3
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json"]


def test_a_recorder_keeps_its_newest_segment(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", *[data(segment(), opens(at), closes(at + 1)) for at in (0, 2, 4)])
    manifest = (folder / "manifest.json").read_bytes()
    with recording(folder):
        shown = run("purge", folder, "--keep-bytes", "0", "--yes")
    assert shown.output.endswith("segment-000003.jsonl is being written and was left alone.\n")
    assert [each.number for each in list_segments(folder)] == [3]
    assert (folder / "manifest.json").read_bytes() == manifest, "that is the recorder's to write"


def test_nothing_to_purge_is_said(tmp_path: Path) -> None:
    shown = run("purge", make(tmp_path / "c", WHOLE), "--older-than", "1d", "--yes")
    assert shown.output.startswith("Nothing to delete: 1 segment, ")


@pytest.mark.parametrize("arguments", [[], ["--bodies", "--older-than", "1d"], ["--keep-bytes", "1", "--bodies"]])
def test_what_to_purge_is_said_in_one_way(tmp_path: Path, arguments: list[str]) -> None:
    shown = run("purge", make(tmp_path / "c", WHOLE), *arguments, "--yes")
    assert isinstance(shown.exception, UsageError)


def test_what_is_no_capture_is_not_purged(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        assert isinstance(run("purge", path, "--keep-bytes", "0", "--yes").exception, FormatError)


BODY = b'{"messages":[{"role":"user","content":"SECRET"}]}'
KEYED = asked("k", 1).replace(b'"keyed":null', b'"keyed":{"blocks":["SECRET"]},"later":"SECRET"')
WITH_BODIES = data(
    segment("full"), opens(0), start("a", 1), asked("a", 1, BODY), asked("b", 1, b"SECRET\xff"),
    asked("c", 1, BODY + b"\n"), ends("a", 1, 2), ends("o", 1, 2, BODY), KEYED, beat(3), closes(4),
)  # fmt: skip
WITHOUT = data(
    segment("none"), opens(0), start("a", 1), asked("a", 1), asked("b", 1), asked("c", 1), ends("a", 1, 2),
    ends("o", 1, 2), asked("k", 1).replace(b',"keyed":null', b""), beat(3), closes(4),
)  # fmt: skip


@pytest.mark.parametrize("as_zst", [False, True])
def test_bodies_and_keyed_facts_go_and_everything_else_stays(tmp_path: Path, as_zst: bool) -> None:
    folder = make(tmp_path / "c", WITH_BODIES, WHOLE, bodies="full", upstream="http://u")
    path = compress(folder, 1) if as_zst else folder / "segment-000001.jsonl"
    os.utime(path, ns=(WALL, WALL))
    untouched = (folder / "segment-000002.jsonl").stat().st_ino
    before = path.read_bytes()
    shown = run("purge", folder, "--bodies")
    assert shown.output.startswith("Would take the bodies of 5 requests out of 1 segment.")
    assert path.read_bytes() == before
    shown = run("purge", folder, "--bodies", "--yes")
    assert shown.output.startswith("Took the bodies of 5 requests out of 1 segment")
    assert [line for _, line in read_lines(path)] == WITHOUT.splitlines()
    state = path.stat()
    assert (stat.S_IMODE(state.st_mode), state.st_mtime_ns) == (0o600, WALL)
    assert (folder / "segment-000002.jsonl").stat().st_ino == untouched
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert (manifest["bodies"], manifest["upstream"]) == ("none", "http://u")
    assert run("purge", folder, "--bodies", "--yes").output == "No bodies to take out.\n"
    assert not any(b"SECRET" in path.read_bytes() for path in folder.iterdir())


def test_a_line_that_cannot_be_read_goes_too(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WITH_BODIES + b'{"line":"request","body":SECRET}\n[]\n{"a":1}\n' + b'{"body":"SECRET')
    shown = run("purge", folder, "--bodies", "--yes")
    assert "4 lines that cannot be read were left out." in shown.output
    assert (folder / "segment-000001.jsonl").read_bytes() == WITHOUT


def test_bodies_do_not_survive_in_the_other_form_of_a_segment(tmp_path: Path) -> None:
    """A kill between the rename and the deletion leaves both forms."""
    folder = make(tmp_path / "c", WITH_BODIES)
    compress(folder, 1)
    (folder / "segment-000001.jsonl").write_bytes(WITH_BODIES)
    run("purge", folder, "--bodies", "--yes")
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "segment-000001.jsonl.zst"]
    assert [line for _, line in read_lines(folder / "segment-000001.jsonl.zst")] == WITHOUT.splitlines()


def test_a_segment_that_cannot_be_done_is_an_error_and_the_manifest_goes_on_saying_full(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WITH_BODIES, WITH_BODIES, bodies="full")
    with (folder / "segment-000001.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # it is being compressed
        shown = run("purge", folder, "--bodies", "--yes")
    assert isinstance(shown.exception, FirsttokenError)
    assert "segment-000001.jsonl" in str(shown.exception)
    assert "again" in shown.exception.hint
    assert (folder / "segment-000002.jsonl").read_bytes() == WITHOUT
    assert json.loads((folder / "manifest.json").read_bytes())["bodies"] == "full"


def test_the_live_segment_keeps_its_bodies_while_it_is_written(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WITH_BODIES, WITH_BODIES, bodies="full")
    with recording(folder):
        shown = run("purge", folder, "--bodies", "--yes")
    assert shown.output.endswith("segment-000002.jsonl is being written and was left alone.\n")
    assert (folder / "segment-000001.jsonl").read_bytes() == WITHOUT
    assert (folder / "segment-000002.jsonl").read_bytes() == WITH_BODIES


@pytest.mark.parametrize(
    ("mode", "end", "left"), [("full", -2, "full"), ("hashed", -2, "hashed"), ("hashed", 10, "full")]
)
def test_a_damaged_segment_is_not_done_by_running_it_again(tmp_path: Path, mode: str, end: int, left: str) -> None:
    """The manifest says what may be left in it; where not even its head can be read, it goes on saying what it said."""
    other = data(segment(mode), *(beat(at) for at in range(50)), asked("k", 60))
    folder = make(tmp_path / "c", WITH_BODIES, other, bodies="full")
    path = compress(folder, 2)
    path.write_bytes(path.read_bytes()[:end])
    shown = run("purge", folder, "--bodies", "--yes")
    assert isinstance(shown.exception, FirsttokenError)
    assert "segment-000002.jsonl.zst: damaged" in shown.exception.problem
    assert "again" not in shown.exception.hint
    assert "delete" in shown.exception.hint
    assert json.loads((folder / "manifest.json").read_bytes())["bodies"] == left
    path.unlink()
    assert run("purge", folder, "--bodies", "--yes").exit_code == 0
    assert json.loads((folder / "manifest.json").read_bytes())["bodies"] == "none"


def test_nothing_left_means_no_bodies_left(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WITH_BODIES, WITH_BODIES, bodies="full")
    aged(folder, WALL, 0, 0)
    size = (folder / "segment-000002.jsonl").stat().st_size
    run("purge", folder, "--keep-bytes", size, "--yes")
    assert json.loads((folder / "manifest.json").read_bytes())["bodies"] == "full"
    run("purge", folder, "--keep-bytes", 0, "--yes")
    assert json.loads((folder / "manifest.json").read_bytes())["bodies"] == "none"


def test_the_hash_key_goes_with_the_bodies_unless_a_recorder_needs_it(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", WITH_BODIES, WITH_BODIES, bodies="hashed")
    (folder / HASH_KEY).write_bytes(b"k" * 32)
    assert "Would destroy hash.key" in run("purge", folder, "--bodies").output
    run("purge", folder, "--older-than", "1d", "--yes")
    with recording(folder):
        assert HASH_KEY not in run("purge", folder, "--bodies", "--yes").output
    assert (folder / HASH_KEY).exists()
    assert "Destroyed hash.key" in run("purge", folder, "--bodies", "--yes").output
    assert not (folder / HASH_KEY).exists()
    assert run("purge", folder, "--bodies", "--yes").output == "No bodies to take out.\n"


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("arguments", [["check"], ["purge", "--bodies"], ["purge", "--keep-bytes", "0", "--yes"]])
def test_a_capture_of_another_user_is_a_matter_of_usage(tmp_path: Path, lock: str, arguments: list[str]) -> None:
    (tmp_path / "place").mkdir()
    folder = make(tmp_path / "place" / "c", WHOLE)
    with locked(folder, lock):
        shown = run(*arguments, folder)
    assert isinstance(shown.exception, UsageError)
    assert "may not be read by this user" in shown.exception.problem
    assert shown.exception.hint
    assert [each.number for each in list_segments(folder)] == [1]


@pytest.mark.parametrize("key", ["windows", "requests", "dropped", "errors", "purged", "bodies", "recorder"])
def test_a_wrong_type_in_the_manifest_is_named_in_check_and_purge(tmp_path: Path, key: str) -> None:
    wrong: dict[str, Any] = {key: [1]}
    folder = make(tmp_path / "c", WHOLE, **wrong)
    for arguments in (["check"], ["purge", "--bodies", "--yes"]):
        shown = run(*arguments, folder)
        assert isinstance(shown.exception, FormatError)
        assert f"$.{key}" in shown.exception.problem


def test_an_arrival_that_was_the_last_line_does_not_fill_the_next_window(tmp_path: Path) -> None:
    first = data(segment(), opens(0), start("a", 10), asked("a", 10))
    found = checked(make(tmp_path / "c", first, data(segment(), opens(20), beat(25), closes(30))))
    assert found.arrival is not None
    assert (found.open, found.arrival.sum_ns, found.arrival.max) == (1, 0, 0)


def test_a_kill_in_the_middle_of_a_segment_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        monkeypatch.setattr(os, "unlink", die)  # nothing is tidied up either
        raise Killed

    folder = make(tmp_path / "c", WITH_BODIES)
    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(Killed), hold(folder) as held:
        strip_bodies(held, really=True)
    assert (folder / "segment-000001.jsonl").read_bytes() == WITH_BODIES
    assert len(look_at(folder).abandoned) == 1


def test_lengths_and_parameters_stay() -> None:
    assert {"model", "body_bytes", "max_tokens", "stream", "language"} <= KEPT_FACTS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from([*BODY_KEYS, "id", "at_ns", "later"]), JSON))
def test_a_line_loses_its_bodies_and_nothing_else(keys: dict[str, Any]) -> None:
    line = json.dumps({"line": "request", **keys}).encode()
    kept = strip_line(line)
    assert kept is not None
    assert json.loads(kept) == {"line": "request"} | {key: keys[key] for key in keys if key not in BODY_KEYS}
    assert strip_line(kept) is kept, "what is done is done"
