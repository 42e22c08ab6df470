"""The shelf: a kill at any step loses nothing, a full disk costs nothing, retention takes the oldest and no others."""

import errno
import fcntl
import os
import random
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.journal import Journal
from capture.segments import Purged, Segment, list_segments, outlived, pack, purged, unpack
from capture.shelf import DAMAGED, DIFFERENT, SAME, Shelf, compare
from profiles.files import read_lines

TEXT = b'{"line":"segment"}\n' + b'{"line":"beat","at_ns":1}\n' * 50
NOISE = random.Random(1).randbytes(3_000_000)  # it cannot be compressed
MTIME_NS = 1_700_000_000_123_456_789
HOUR_NS = 3_600_000_000_000


def plain(folder: Path, number: int, data: bytes = TEXT, mtime_ns: int = MTIME_NS) -> Path:
    path = folder / f"segment-{number:06d}.jsonl"
    path.write_bytes(data)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


def packed(folder: Path, number: int, data: bytes = TEXT, mtime_ns: int = MTIME_NS) -> Path:
    path = folder / f"segment-{number:06d}.jsonl.zst"
    path.write_bytes(b"".join(pack([data], len(data))))
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


def shelf(folder: Path, closed: int, **limits: Any) -> Shelf:
    """A shelf that has been told of `closed` segments, without its thread."""
    made = Shelf(folder, wall_clock=lambda: MTIME_NS + HOUR_NS, **limits)
    made.take(folder / f"segment-{closed:06d}.jsonl")
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(folder: Path) -> list[tuple[int, list[bytes]]]:
    """What a reader finds: of two forms the compressed one."""
    found = {segment.number: segment.path for segment in list_segments(folder)}
    return [(number, [line for _, line in read_lines(found[number])]) for number in sorted(found)]


def test_closed_segments_are_compressed_and_the_live_one_is_not(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        plain(tmp_path, number)
    before = content(tmp_path)
    tended = shelf(tmp_path, 2)
    tended.tend()
    assert names(tmp_path) == ["segment-000001.jsonl.zst", "segment-000002.jsonl.zst", "segment-000003.jsonl"]
    assert content(tmp_path) == before
    assert (tended.compressed, tended.plain_bytes, tended.failed.total()) == (2, 2 * len(TEXT), 0)
    assert tended.packed_bytes == 2 * (tmp_path / "segment-000001.jsonl.zst").stat().st_size


def test_a_compressed_segment_is_private_whole_and_as_old_as_before(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    shelf(tmp_path, 1).tend()
    path = tmp_path / "segment-000001.jsonl.zst"
    frame = zstandard.get_frame_parameters(path.read_bytes())
    assert (frame.content_size, frame.has_checksum) == (len(TEXT), True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_mtime_ns == MTIME_NS


def test_a_shelf_that_was_told_nothing_touches_nothing(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    Shelf(tmp_path, keep_bytes=0).tend()
    assert names(tmp_path) == ["segment-000001.jsonl"]


@pytest.mark.parametrize("data", [b"", TEXT + b'{"line":"to', b"\xff" * 3_000_000, NOISE])
def test_whatever_a_closed_segment_holds_comes_out_again(tmp_path: Path, data: bytes) -> None:
    plain(tmp_path, 1, data)
    shelf(tmp_path, 1).tend()
    with (tmp_path / "segment-000001.jsonl.zst").open("rb") as file:
        assert b"".join(unpack(file.fileno())) == data


class Killed(BaseException):
    """The process is gone: nothing that it would have done afterwards happens, its locks are free."""


class Disk:
    """The calls that change a directory, counted; from call `last` on nothing happens any more, or all fail."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int, problem: Callable[[], BaseException]) -> None:
        self.names: list[str] = []
        for name in ("write", "utime", "fsync", "replace", "unlink"):
            patch.setattr(os, name, self._watched(name, last, problem))

    def _watched(self, name: str, last: int, problem: Callable[[], BaseException]) -> Callable[..., Any]:
        call = getattr(os, name)

        def watched(*given: Any, **named: Any) -> Any:
            if len(self.names) >= last:
                raise problem()
            self.names.append(name)
            return call(*given, **named)

        return watched


def calls_of_one_pass() -> list[str]:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        plain(Path(place), 1)
        disk = Disk(patch, 1000, Killed)
        shelf(Path(place), 1).tend()
        return disk.names


CALLS = calls_of_one_pass()
STEPS = range(len(CALLS))


def test_the_plain_form_goes_only_when_the_other_is_on_the_disk_under_its_name() -> None:
    # The second sync is that of the directory, so that a power cut cannot undo the rename and keep the deletion.
    # The first deletion is for an unfinished file of ours, if there is one.
    assert CALLS == ["unlink", "write", "utime", "fsync", "replace", "fsync", "unlink", "fsync"]


def test_a_compressed_form_that_reads_back_wrong_does_not_cost_the_plain_one(tmp_path: Path) -> None:
    write = os.write
    plain(tmp_path, 1, NOISE)
    tended = shelf(tmp_path, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda number, data: write(number, bytes(len(data))))
        tended.tend()
    assert tended.failed == {"compress: segment-000001.jsonl.zst reads back wrong": 1}
    assert (tmp_path / "segment-000001.jsonl").read_bytes() == NOISE
    tended.tend()
    assert names(tmp_path) == ["segment-000001.jsonl.zst"]


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_before_any_step_loses_nothing_and_the_next_start_puts_it_right(tmp_path: Path, step: int) -> None:
    plain(tmp_path, 1)
    plain(tmp_path, 2)
    before = content(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, step, Killed)
        with pytest.raises(Killed):
            shelf(tmp_path, 1).tend()
    assert content(tmp_path) == before, "a reader sees it whole at any time"
    shelf(tmp_path, 1).tend()
    assert content(tmp_path) == before
    assert names(tmp_path) == ["segment-000001.jsonl.zst", "segment-000002.jsonl"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_step_costs_nothing_and_is_tried_again(tmp_path: Path, step: int, fault: int) -> None:
    plain(tmp_path, 1)
    before = content(tmp_path)
    tended = shelf(tmp_path, 1)
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, step, lambda: OSError(fault, os.strerror(fault)))
        tended.tend()
    assert content(tmp_path) == before
    tended.tend()
    # Where its own unlink failed too, the unfinished file stays until the next recorder.
    shelf(tmp_path, 1).tend()
    assert names(tmp_path) == ["segment-000001.jsonl.zst"]
    assert content(tmp_path) == before


def test_a_full_disk_is_counted(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    tended = shelf(tmp_path, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        tended.tend()
        tended.tend()
    assert tended.failed == {"compress: ENOSPC": 2}
    assert names(tmp_path) == ["segment-000001.jsonl"], "and no unfinished file stays"


def test_a_damaged_compressed_form_is_made_again_from_the_plain_one(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    path = packed(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-3])
    shelf(tmp_path, 1).tend()
    assert names(tmp_path) == ["segment-000001.jsonl.zst"]
    assert content(tmp_path) == [(1, TEXT.splitlines())]


def test_two_forms_that_differ_are_both_kept_and_counted(tmp_path: Path) -> None:
    plain(tmp_path, 1, TEXT + b"more\n")
    packed(tmp_path, 1)
    tended = shelf(tmp_path, 1)
    tended.tend()
    assert len(names(tmp_path)) == 2
    assert tended.failed == {"compress: segment-000001.jsonl.zst holds something else": 1}


@pytest.mark.parametrize(
    ("plain_data", "packed_data", "cut", "verdict"),
    [
        (TEXT, TEXT, 0, SAME),
        (TEXT[:-5], TEXT, 0, SAME),  # its torn line was cut when the recorder started again
        (TEXT, TEXT[:-5], 0, DIFFERENT),
        (TEXT, b"x" + TEXT, 0, DIFFERENT),
        (TEXT, TEXT, 1, DAMAGED),
        (TEXT, TEXT, 10_000, DAMAGED),
        (b"", b"", 0, SAME),
    ],
)
def test_twins_are_compared_by_content(
    tmp_path: Path, plain_data: bytes, packed_data: bytes, cut: int, verdict: str
) -> None:
    path = packed(tmp_path, 1, packed_data)
    path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - cut)])
    with plain(tmp_path, 1, plain_data).open("rb") as file:
        assert compare(path, file.fileno()) == verdict


def test_an_unfinished_file_of_a_dead_writer_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    dead, alive = (tmp_path / f".segment-000001.jsonl.zst.{number}" for number in (os.getpid(), 4711))
    dead.touch()  # in a container the next recorder has the same process id
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        shelf(tmp_path, 1).tend()
        assert names(tmp_path) == [alive.name]


def test_a_segment_that_is_being_purged_is_not_compressed_with_what_goes(tmp_path: Path) -> None:
    with plain(tmp_path, 1).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        tended = shelf(tmp_path, 1)
        tended.tend()
        assert names(tmp_path) == ["segment-000001.jsonl"]
    tended.tend()
    assert names(tmp_path) == ["segment-000001.jsonl.zst"]


# Retention.


def segment(number: int, size: int, mtime_ns: int = 0) -> Segment:
    return Segment(Path(f"segment-{number:06d}.jsonl.zst"), number, size, mtime_ns, 0o600)


@pytest.mark.parametrize(
    ("ages", "closed", "limits", "due"),
    [
        ([90, 50, 10], 3, {}, []),
        ([90, 50, 10], 3, {"keep_ns": 60}, [1]),
        ([90, 50, 10], 3, {"keep_ns": 90}, []),  # just as old is not older
        ([90, 50, 10], 2, {"keep_ns": 0}, [1, 2]),  # never the live one
        ([90, 10, 90], 3, {"keep_ns": 60}, [1]),  # no hole: the third waits for the second
        ([9, 9, 9], 3, {"keep_bytes": 300}, []),
        ([9, 9, 9], 3, {"keep_bytes": 299}, [1]),
        ([9, 9, 9], 3, {"keep_bytes": 100}, [1, 2]),
        ([9, 9, 9], 2, {"keep_bytes": 0}, [1, 2]),
        ([9, 9, 9], 0, {"keep_bytes": 0}, []),
        ([90, 50, 10], 3, {"keep_ns": 60, "keep_bytes": 100}, [1, 2]),  # whichever takes more
    ],
)
def test_the_oldest_go_first(ages: list[int], closed: int, limits: dict[str, int], due: list[int]) -> None:
    segments = [segment(number, 100, 1000 - age) for number, age in enumerate(ages, start=1)]
    assert [found.number for found in outlived(segments, closed, now_wall_ns=1000, **limits)] == due


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=12),
    st.integers(0, 13),
    st.none() | st.integers(0, 1000),
    st.none() | st.integers(0, 5000),
)
def test_what_goes_is_a_head_of_the_closed_ones_and_no_more_than_needed(
    files: list[tuple[int, int]], closed: int, keep_ns: int | None, keep_bytes: int | None
) -> None:
    segments = [segment(number, size, mtime) for number, (size, mtime) in enumerate(files, start=1)]
    due = outlived(segments, closed, now_wall_ns=1000, keep_ns=keep_ns, keep_bytes=keep_bytes)
    assert due == segments[: len(due)]
    assert len(due) <= closed
    left = segments[len(due) :]
    if keep_bytes is not None and left and left[0].number <= closed:
        assert sum(each.bytes for each in left) <= keep_bytes
    if due:
        last = due[-1]
        too_old = keep_ns is not None and 1000 - last.mtime_ns > keep_ns
        too_much = keep_bytes is not None and sum(each.bytes for each in [last, *left]) > keep_bytes
        assert too_old or too_much


def test_retention_deletes_and_tells_the_manifest(tmp_path: Path) -> None:
    packed(tmp_path, 1, mtime_ns=MTIME_NS - 3 * HOUR_NS)
    plain(tmp_path, 2, mtime_ns=MTIME_NS - 2 * HOUR_NS)
    packed(tmp_path, 2, mtime_ns=MTIME_NS - 2 * HOUR_NS)  # a kill left both forms: one segment
    plain(tmp_path, 3)
    plain(tmp_path, 4)
    old = [each for each in list_segments(tmp_path) if each.number < 3]
    tended = shelf(tmp_path, 3, keep_ns=2 * HOUR_NS)
    tended.tend()
    assert names(tmp_path) == ["segment-000003.jsonl.zst", "segment-000004.jsonl"]
    size = sum(each.bytes for each in old)
    assert tended.purged() == {"segments": 2, "bytes": size, "until_wall_ns": MTIME_NS - 2 * HOUR_NS}
    before = {"segments": 5, "bytes": 1000, "until_wall_ns": MTIME_NS - 9 * HOUR_NS}
    assert tended.purged(before) == {"segments": 7, "bytes": size + 1000, "until_wall_ns": MTIME_NS - 2 * HOUR_NS}


def test_retention_touches_nothing_that_is_not_ours(tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_bytes(b"mine")
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "segment-000001.jsonl.zst").symlink_to(outside)
    (folder / "segment-000002.jsonl").mkdir()
    os.mkfifo(folder / "segment-000003.jsonl")
    for name in ("manifest.json", "segment-4.jsonl", "segment-000005.jsonl.bak", "notes.txt", "Segment-000006.jsonl"):
        (folder / name).write_bytes(b"mine")
    before = names(folder)
    shelf(folder, 9, keep_ns=0, keep_bytes=0).tend()
    assert names(folder) == before
    assert outside.read_bytes() == b"mine"


def test_what_is_purged_by_hand_meanwhile_is_counted_too(tmp_path: Path) -> None:
    first = packed(tmp_path, 1)
    packed(tmp_path, 2)
    size = first.stat().st_size
    tended = shelf(tmp_path, 2)
    tended.tend()
    first.unlink()
    tended.tend()
    tended.tend()
    assert tended.gone == Purged(1, size, MTIME_NS)


def test_a_directory_that_vanished_is_waited_for(tmp_path: Path) -> None:
    tended = shelf(tmp_path / "c", 1)
    tended.tend()
    (tmp_path / "c").mkdir()
    plain(tmp_path / "c", 1)
    tended.tend()
    assert names(tmp_path / "c") == ["segment-000001.jsonl.zst"]


PURGES = st.builds(Purged, st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 9))


@given(PURGES, PURGES, PURGES)
def test_purges_add_up_in_any_order(one: Purged, two: Purged, three: Purged) -> None:
    assert (one + two) + three == one + (two + three)
    assert one + two == two + one
    assert one + Purged() == one == Purged.of(one.document())


@pytest.mark.parametrize("said", [None, {}, "?", []])
def test_a_manifest_without_purges_says_none(said: object) -> None:
    assert Purged.of(said) == Purged() == purged([])


# The thread, with a real journal.


@pytest.mark.parametrize("lines", [1, 7])
def test_journal_and_shelf_together(tmp_path: Path, lines: int) -> None:
    tended = Shelf(tmp_path)
    journal = Journal(tmp_path, lambda: b"head", segment_bytes=1, on_closed=tended.take)
    plain(tmp_path, 1, b"head\nfrom before\n")  # of an earlier recorder
    journal.open()
    tended.start(journal.number)
    for number in range(lines):
        assert journal.append(b"%d" % number)
    thread = tended._thread
    assert thread is not None
    assert thread.daemon
    tended.stop()
    assert not thread.is_alive()
    journal.close()
    tended.tend()  # stopped: it finishes nothing
    texts = [line for _, lines_ in content(tmp_path) for line in lines_ if line != b"head"]
    assert texts == [b"from before", *(b"%d" % number for number in range(lines))]
    assert (tmp_path / f"segment-{journal.number:06d}.jsonl").exists(), "the last one stays plain"


def test_the_thread_compresses_what_it_is_told_of_and_survives_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    done, faults = threading.Event(), iter([ValueError("a bug of ours")])
    tended = Shelf(tmp_path, tend_every_s=0.01)
    whole = tended.tend

    def tend() -> None:
        for fault in faults:
            raise fault
        whole()
        if not (tmp_path / "segment-000001.jsonl").exists():
            done.set()

    monkeypatch.setattr(tended, "tend", tend)
    plain(tmp_path, 1)
    plain(tmp_path, 2)
    tended.start(2)
    assert done.wait(30)
    tended.stop()
    assert names(tmp_path) == ["segment-000001.jsonl.zst", "segment-000002.jsonl"]
    assert tended.failed == {"tend: ValueError": 1}


@settings(max_examples=25)
@given(st.binary(max_size=300), st.integers(1, 200), st.integers(0, 20))
def test_a_frame_that_is_cut_is_never_taken_for_a_whole_one(data: bytes, step: int, cut: int) -> None:
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    frame = b"".join(pack(pieces, len(data)))
    with tempfile.TemporaryFile() as file:
        file.write(frame[: max(0, len(frame) - cut)])
        file.flush()
        if cut:
            with pytest.raises(zstandard.ZstdError):
                list(unpack(file.fileno()))
        else:
            assert b"".join(unpack(file.fileno())) == data
