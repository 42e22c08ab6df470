"""The journal: what it takes is in the file, what it cannot take costs a line and nothing else."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from locked_folder import LOCKS, locked

from capture.journal import LOOK_EVERY_NS, VANISHED, Journal, check_folder
from profiles.capture_folder import FORMAT, MANIFEST, VERSION
from profiles.captures import read_capture
from profiles.errors import FormatError, UsageError
from profiles.files import write_document

HEAD = b'{"line":"segment"}'


class Disk:
    """os.write with a fault that can be switched on: an error number, or a write that stops halfway."""

    def __init__(self) -> None:
        self.fault: int | None = None
        self.short = False

    def write(self, descriptor: int, data: bytes) -> int:
        if self.short:
            return os.write(descriptor, data[: len(data) // 2])
        if self.fault is not None:
            raise OSError(self.fault, os.strerror(self.fault))
        return os.write(descriptor, data)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


def open_journal(folder: Path, disk: Disk | None = None, *, segment_bytes: int = 1 << 20) -> Journal:
    write: Callable[[int, bytes], int] = disk.write if disk else os.write
    journal = Journal(folder, lambda: HEAD, write=write, segment_bytes=segment_bytes)
    journal.open()
    return journal


def segments(folder: Path) -> list[tuple[str, list[bytes]]]:
    return [(path.name, path.read_bytes().split(b"\n")) for path in sorted(folder.glob("segment-*"))]


def test_each_line_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "c")
    assert journal.append(b"one")
    assert segments(tmp_path / "c") == [("segment-000001.jsonl", [HEAD, b"one", b""])]
    assert journal.append(b"two")
    assert segments(tmp_path / "c") == [("segment-000001.jsonl", [HEAD, b"one", b"two", b""])]


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    open_journal(tmp_path / "c")
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "c" / "segment-000001.jsonl").stat().st_mode) == 0o600


def test_a_torn_last_line_is_cut_and_a_new_segment_begins(tmp_path: Path) -> None:
    first = open_journal(tmp_path)
    first.append(b"whole")
    first.close()
    write_document(tmp_path / MANIFEST, {"format": FORMAT, "version": VERSION})
    with (tmp_path / "segment-000001.jsonl").open("ab") as file:
        file.write(b'{"line":"end","id":"to')
    open_journal(tmp_path).append(b"later")
    assert segments(tmp_path) == [
        ("segment-000001.jsonl", [HEAD, b"whole", b""]),
        ("segment-000002.jsonl", [HEAD, b"later", b""]),
    ]


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_write_that_fails_drops_the_line_and_says_why(tmp_path: Path, fault: int) -> None:
    disk = Disk()
    journal = open_journal(tmp_path, disk)
    disk.fault = fault
    assert not journal.append(b"lost")
    assert journal.broken == errno.errorcode[fault]
    disk.fault = None
    assert not journal.append(b"lost too"), "nothing is tried before mend, so a sick disk costs no time"
    assert journal.mend()
    assert journal.append(b"kept")
    assert segments(tmp_path) == [("segment-000001.jsonl", [HEAD, b"kept", b""])], "no segment holds its head alone"


def test_a_half_written_line_leaves_no_trace(tmp_path: Path) -> None:
    disk = Disk()
    journal = open_journal(tmp_path, disk)
    journal.append(b"kept")
    disk.short = True
    assert not journal.append(b"half of this reaches the disk")
    assert journal.broken == "ENOSPC"
    assert segments(tmp_path) == [("segment-000001.jsonl", [HEAD, b"kept", b""])]


def test_mending_fails_quietly_while_the_disk_is_full_and_leaves_no_empty_segments(tmp_path: Path) -> None:
    disk = Disk()
    journal = open_journal(tmp_path, disk)
    disk.fault = errno.ENOSPC
    journal.append(b"lost")
    assert not journal.mend()
    assert not journal.mend()
    assert journal.broken == "ENOSPC"
    assert segments(tmp_path) == []


def test_a_vanished_directory_is_noticed_at_the_next_line_and_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    journal = open_journal(folder)
    assert journal.append(b"deleted by somebody")
    shutil.rmtree(folder)
    assert not journal.append(b"lost")
    assert journal.broken == VANISHED
    assert journal.mend()
    assert journal.append(b"kept")
    assert segments(folder) == [("segment-000002.jsonl", [HEAD, b"kept", b""])]


def test_a_directory_that_was_moved_is_noticed_within_a_quarter_of_a_second(tmp_path: Path) -> None:
    clock = Clock()
    journal = Journal(tmp_path / "c", lambda: HEAD, clock=clock)
    journal.open()
    journal.append(b"one")
    (tmp_path / "c").rename(tmp_path / "moved")
    assert journal.append(b"two"), "it is not lost, only elsewhere"
    clock.now_ns += LOOK_EVERY_NS
    assert not journal.append(b"three")
    assert journal.broken == VANISHED
    assert journal.mend()
    assert journal.append(b"four")
    assert segments(tmp_path / "moved") == [("segment-000001.jsonl", [HEAD, b"one", b"two", b""])]
    assert segments(tmp_path / "c") == [("segment-000002.jsonl", [HEAD, b"four", b""])]


def test_a_full_segment_is_followed_by_the_next(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=len(HEAD) + 4)
    for line in (b"aaa", b"bbb", b"ccc"):
        assert journal.append(line)
    assert segments(tmp_path) == [
        ("segment-000001.jsonl", [HEAD, b"aaa", b""]),
        ("segment-000002.jsonl", [HEAD, b"bbb", b""]),
        ("segment-000003.jsonl", [HEAD, b"ccc", b""]),
    ]


def test_numbers_go_on_behind_compressed_segments(tmp_path: Path) -> None:
    write_document(tmp_path / MANIFEST, {"format": FORMAT, "version": VERSION})
    (tmp_path / "segment-000007.jsonl.zst").write_bytes(b"")
    open_journal(tmp_path)
    assert (tmp_path / "segment-000008.jsonl").exists()


def test_two_recorders_cannot_share_a_capture(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    first = open_journal(folder)
    write_document(folder / MANIFEST, {"format": FORMAT, "version": VERSION})
    with pytest.raises(UsageError, match="another recorder is writing"):
        open_journal(folder)
    first.close()
    open_journal(folder)


def test_a_closed_journal_takes_nothing_and_stays_closed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.close()
    assert not journal.append(b"late")
    assert not journal.mend()


def test_a_capture_is_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        check_folder(path)


def test_a_directory_with_other_content_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="is not a capture"):
        check_folder(tmp_path)


def test_a_manifest_of_another_format_is_left_alone(tmp_path: Path) -> None:
    write_document(tmp_path / MANIFEST, {"format": "firsttoken/run", "version": 1})
    with pytest.raises(FormatError, match="not a firsttoken/capture file"):
        check_folder(tmp_path)


def test_a_manifest_that_cannot_be_gone_on_from_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    write_document(tmp_path / MANIFEST, {"format": FORMAT, "version": VERSION, "windows": "two"})
    with pytest.raises(FormatError, match=r"\$\.windows"):
        check_folder(tmp_path)


@pytest.mark.parametrize("lock", ["below", "closed", "not listed"])
def test_a_directory_of_another_user_is_a_matter_of_usage(tmp_path: Path, lock: str) -> None:
    folder = tmp_path / "place" / "c"
    folder.mkdir(parents=True)
    write_document(folder / MANIFEST, {"format": FORMAT, "version": VERSION})
    assert lock in LOCKS
    with locked(folder, lock), pytest.raises(UsageError, match="may not be read by this user") as caught:
        check_folder(folder)
    assert "--out" in caught.value.hint
    check_folder(folder)


def test_a_link_that_leads_to_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "c").symlink_to(tmp_path / "c")
    with pytest.raises(UsageError, match="is a symbolic link"):
        check_folder(tmp_path / "c")


@pytest.mark.parametrize("left", [[], [f".{MANIFEST}.4711"]])
def test_an_empty_directory_may_become_a_capture(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).touch()
    check_folder(tmp_path)
    check_folder(tmp_path / "new")


def test_an_unwritable_place_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        open_journal(tmp_path / "file" / "c")


def test_what_is_left_after_a_failed_truncate_is_a_torn_last_line_which_readers_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    write_document(tmp_path / MANIFEST, {"format": FORMAT, "version": VERSION})
    head = b'{"line":"segment","format":"firsttoken/capture","version":1,"tool":"t","wall_ns":10,"mono_ns":0}'
    disk = Disk()
    journal = Journal(tmp_path, lambda: head, write=disk.write)
    journal.open()
    journal.append(b'{"line":"window","event":"open","at_ns":1}')
    monkeypatch.setattr(os, "ftruncate", refuse)
    disk.short = True
    journal.append(b'{"line":"window","event":"close","at_ns":9}')
    disk.short = False
    journal.mend()
    journal.append(b'{"line":"beat","at_ns":5,"in_flight":0}')
    assert read_capture(tmp_path).windows == [(11, 15)]


def test_a_disk_that_takes_a_part_first_takes_the_rest_at_the_next_write(tmp_path: Path) -> None:
    def by_threes(descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data[:3])

    journal = Journal(tmp_path, lambda: HEAD, write=by_threes)
    journal.open()
    assert journal.append(b"a line of many writes")
    assert segments(tmp_path) == [("segment-000001.jsonl", [HEAD, b"a line of many writes", b""])]


def test_an_old_segment_is_followed_by_the_next_when_a_line_comes(tmp_path: Path) -> None:
    clock, closed = Clock(), list[Path]()
    journal = Journal(tmp_path, lambda: HEAD, segment_ns=100, clock=clock, on_closed=closed.append)
    journal.open()
    clock.now_ns += 500
    journal.append(b"one")  # a segment that holds its head alone is never left behind, however old
    clock.now_ns += 1
    assert journal.append(b"two")
    clock.now_ns += 99
    assert journal.append(b"two and a half")
    assert [name for name, _ in segments(tmp_path)] == ["segment-000001.jsonl", "segment-000002.jsonl"]
    clock.now_ns += 1
    assert journal.append(b"three")
    assert segments(tmp_path) == [
        ("segment-000001.jsonl", [HEAD, b"one", b""]),
        ("segment-000002.jsonl", [HEAD, b"two", b"two and a half", b""]),
        ("segment-000003.jsonl", [HEAD, b"three", b""]),
    ]
    assert closed == [tmp_path / "segment-000001.jsonl", tmp_path / "segment-000002.jsonl"]
    assert journal.number == 3
    journal.close()
    assert closed[-1] == tmp_path / "segment-000003.jsonl"


@pytest.mark.parametrize(
    ("sync_ns", "line_at_ns", "synced"),
    [
        (0, [1, 1_000_000], 0),  # never, not even at the close
        (100, [1], 1),  # at the close alone
        (100, [1, 50, 99], 1),
        (100, [1, 100], 2),
        (100, [1, 100, 150, 200, 201], 3),
        (100, [500], 1),  # nothing was unsynced when the time had come
    ],
)
def test_lines_are_synced_every_few_seconds_and_when_their_segment_closes(
    tmp_path: Path, sync_ns: int, line_at_ns: list[int], synced: int
) -> None:
    clock, calls = Clock(), list[int]()
    journal = Journal(tmp_path, lambda: HEAD, sync_ns=sync_ns, sync=calls.append, clock=clock)
    clock.now_ns = 0
    journal.open()
    for at_ns in line_at_ns:
        clock.now_ns = at_ns
        journal.append(b"line")
    journal.close()
    assert len(calls) == synced


def test_a_sync_that_fails_breaks_the_journal(tmp_path: Path) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "no")

    clock = Clock()
    journal = Journal(tmp_path, lambda: HEAD, sync_ns=10, sync=refuse, clock=clock)
    journal.open()
    assert journal.append(b"one")
    clock.now_ns += 10
    assert not journal.append(b"two")
    assert journal.broken == "EIO"
    assert journal.mend()


def test_torn_lines_that_were_cut_are_counted(tmp_path: Path) -> None:
    for number, data in enumerate([b"whole\n", b"whole\nto", b"torn"], start=1):
        (tmp_path / f"segment-{number:06d}.jsonl").write_bytes(data)
    assert open_journal(tmp_path).torn == 2


def test_a_kill_before_the_first_manifest_does_not_lock_its_owner_out(tmp_path: Path) -> None:
    open_journal(tmp_path).close()
    (tmp_path / "segment-000001.jsonl").write_bytes(HEAD)
    (tmp_path / ".segment-000001.jsonl.zst.4711").touch()
    open_journal(tmp_path)


def test_a_capture_behind_a_link_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "real")
    with pytest.raises(UsageError, match="is a symbolic link") as caught:
        open_journal(tmp_path / "c")
    assert str(tmp_path / "real") in caught.value.hint
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("name", [MANIFEST, "segment-000001.jsonl", "segment-000001.jsonl.zst"])
def test_a_link_in_the_place_of_a_file_is_refused_and_its_target_untouched(tmp_path: Path, name: str) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"unfinished last line")
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / name).symlink_to(target)
    with pytest.raises(UsageError, match="is a symbolic link"):
        open_journal(folder)
    assert target.read_bytes() == b"unfinished last line"


def test_a_link_that_is_planted_for_the_next_segment_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    folder = tmp_path / "c"
    journal = open_journal(folder, segment_bytes=1)
    journal.append(b"one")
    (folder / "segment-000002.jsonl").symlink_to(target)
    assert journal.append(b"two"), "its number is taken, the next one is free"
    assert not target.exists()
    assert (folder / "segment-000003.jsonl").exists()


def test_a_directory_that_others_may_read_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o755)
    assert open_journal(tmp_path / "c").append(b"one")


STEPS = st.lists(
    st.one_of(
        st.just("append"),
        st.just("mend"),
        st.integers(0, 60).map(lambda ns: f"wait {ns}"),
        st.sampled_from(["fault", "short", "healthy"]),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(STEPS)
def test_whatever_happens_each_taken_line_is_there_once_in_order_and_no_other(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        disk, clock, closed, taken = Disk(), Clock(), list[Path](), list[bytes]()
        journal = Journal(
            folder,
            lambda: HEAD,
            write=disk.write,
            segment_bytes=60,
            segment_ns=100,
            clock=clock,
            on_closed=closed.append,
        )
        journal.open()
        for number, step in enumerate(steps):
            disk.fault = {"fault": errno.ENOSPC, "healthy": None}.get(step, disk.fault)
            disk.short = {"short": True, "healthy": False}.get(step, disk.short)
            if step == "append" and journal.append(b"%d" % number):
                taken.append(b"%d" % number)
            elif step == "mend":
                journal.mend()
            elif step.startswith("wait"):
                clock.now_ns += int(step.split()[1])
        journal.close()
        found = segments(folder)
        assert [line for _, lines in found for line in lines[1:-1]] == taken
        assert all(lines[0] == HEAD and lines[-1] == b"" and len(lines) > 2 for _, lines in found)
        assert [path.name for path in closed] == [name for name, _ in found]
        assert [name for name, _ in found] == [f"segment-{number:06d}.jsonl" for number in range(1, len(found) + 1)]
