"""Files of ours: whole or not at all, owner only, strict JSON, and an error that names file and line."""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import zstandard

from profiles.errors import FormatError
from profiles.files import (
    append_line,
    cut_torn_line,
    decode_line,
    encode,
    encode_pretty,
    make_folder,
    read_document,
    read_lines,
    sha256_of,
    write_document,
    write_whole,
)

NAN = float("nan")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@dataclass
class Point:
    x: float


@pytest.mark.parametrize(
    ("document", "where"),
    [
        (NAN, "$"),
        ({"a": [1.0, float("inf")]}, r"$.a[1]"),
        ({"a": {"b": (float("-inf"),)}}, r"$.a.b[0]"),
        ({"a": numpy.float32("nan")}, "$.a"),
        ({"a": numpy.array([1.0, NAN])}, r"$.a[1]"),
        ({"a": Point(NAN)}, "$.a.x"),
    ],
)
def test_a_number_that_json_cannot_hold_is_refused_by_its_key(document: Any, where: str) -> None:
    for encoder in (encode, encode_pretty):
        with pytest.raises(ValueError, match="which JSON cannot hold") as caught:
            encoder(document)
        assert str(caught.value).startswith(f"{where} is ")


def test_json_is_one_line_or_for_people() -> None:
    document = {"a": [1, None, "é"], 2: Point(0.5), "n": numpy.int64(3)}
    expected = {"a": [1, None, "é"], "2": {"x": 0.5}, "n": 3}
    assert b"\n" not in encode(document)
    assert json.loads(encode(document)) == expected
    assert encode_pretty(document).endswith(b"}\n")
    assert json.loads(encode_pretty(document)) == expected


def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "made")
    write_document(tmp_path / "made" / "a.json", {})
    append_line(tmp_path / "made" / "b.jsonl", {})
    assert mode(tmp_path / "made") == 0o700
    assert [mode(tmp_path / "made" / name) for name in ("a.json", "b.jsonl")] == [0o600, 0o600]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_nan_leaves_the_old_document(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, {"a": 1})
    with pytest.raises(ValueError, match="cannot hold"):
        write_document(path, {"a": NAN})
    assert json.loads(path.read_bytes()) == {"a": 1}


def test_a_line_that_the_disk_takes_in_parts_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    append_line(tmp_path / "a.jsonl", {"key": "value"})
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"key":"value"}\n'


@pytest.mark.parametrize(
    ("before", "after", "cut"),
    [
        (b"", b"", 0),
        (b"a\nb\n", b"a\nb\n", 0),
        (b"a\nb", b"a\n", 1),
        (b"torn", b"", 4),
        (b"a\n" + b"x" * 200_000, b"a\n", 200_000),
    ],
)
def test_a_torn_line_is_cut_off(tmp_path: Path, before: bytes, after: bytes, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(before)
    assert cut_torn_line(path) == cut
    assert path.read_bytes() == after


def test_a_journal_that_does_not_exist_has_no_torn_line(tmp_path: Path) -> None:
    assert cut_torn_line(tmp_path / "a.jsonl") == 0


def test_lines_keep_their_numbers_and_a_torn_one_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes("a\n\nb\u2028c\r\ntorn".encode())
    expected = [(1, b"a"), (3, "b\u2028c\r".encode())]
    assert list(read_lines(tmp_path / "a.jsonl")) == expected
    packed = zstandard.compress((tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "a.jsonl.zst").write_bytes(packed)
    assert list(read_lines(tmp_path / "a.jsonl.zst")) == expected


def test_a_zstd_file_of_two_frames_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"a\n") + zstandard.compress(b"b\n"))
    assert list(read_lines(tmp_path / "a.zst")) == [(1, b"a"), (2, b"b")]


def test_a_file_that_is_no_zstd_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(b"plain text")
    with pytest.raises(FormatError, match=r"a\.zst: not a readable zstd file"):
        list(read_lines(tmp_path / "a.zst"))


def test_a_missing_file_and_a_folder_say_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(FormatError, match="is a directory"):
        list(read_lines(tmp_path))


class Form(msgspec.Struct):
    n: int


def test_a_bad_line_is_named_with_file_line_and_key() -> None:
    path = Path("a.jsonl")
    assert decode_line(path, 7, b'{"n":1,"later":2}', Form) == Form(1)
    with pytest.raises(FormatError, match=r"^a\.jsonl:7: .*int.*\$\.n"):
        decode_line(path, 7, b'{"n":"x"}', Form)
    with pytest.raises(FormatError, match=r"^a\.jsonl:7: .*malformed"):
        decode_line(path, 7, b"}", Form)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a firsttoken/x file: it has no format key"),
        (b'{"format":"firsttoken/y"}', "not a firsttoken/x file: its format is 'firsttoken/y'"),
        (b'{"format":"firsttoken/x","version":2}', "version 2 cannot be read; this firsttoken .* reads version 1"),
        (b'{"format":"firsttoken/x"}', "version None cannot be read"),
    ],
)
def test_a_document_of_another_form_is_refused(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(text)
    with pytest.raises(FormatError, match=problem) as caught:
        read_document(path, "firsttoken/x")
    assert caught.value.path == path
    assert caught.value.exit_code == 2


def test_a_document_reads_back(tmp_path: Path) -> None:
    document = {"format": "firsttoken/x", "version": 1, "a": [1]}
    write_document(tmp_path / "a.json", document)
    assert read_document(tmp_path / "a.json", "firsttoken/x") == document
    with pytest.raises(FormatError, match="no such file"):
        read_document(tmp_path / "none.json", "firsttoken/x")
    with pytest.raises(FormatError, match="not a file"):
        read_document(tmp_path, "firsttoken/x")


def test_sha256_is_that_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
