"""The journal: what it takes is in the file, what it cannot take costs a line and nothing else."""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from capture.journal import VANISHED, Journal, check_folder
from profiles.captures import FORMAT, MANIFEST, VERSION, read_capture
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
    assert segments(tmp_path) == [
        ("segment-000001.jsonl", [HEAD, b""]),
        ("segment-000002.jsonl", [HEAD, b"kept", b""]),
    ]


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
    assert [name for name, _ in segments(tmp_path)] == ["segment-000001.jsonl"]


def test_a_vanished_directory_is_noticed_at_the_next_line_and_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    journal = open_journal(folder)
    shutil.rmtree(folder)
    assert not journal.append(b"lost")
    assert journal.broken == VANISHED
    assert journal.mend()
    assert journal.append(b"kept")
    assert segments(folder) == [("segment-000002.jsonl", [HEAD, b"kept", b""])]


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


@pytest.mark.parametrize("left", [[], [f".{MANIFEST}.4711"]])
def test_an_empty_directory_may_become_a_capture(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).touch()
    check_folder(tmp_path)
    check_folder(tmp_path / "new")


def test_an_unwritable_place_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot record here"):
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
