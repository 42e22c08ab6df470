"""Frames to a profile: order, renumbering, batches, and what is said of requests without ends."""

import stat
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles import scan as scan_module
from profiles import write as write_module
from profiles.captures import Interval
from profiles.errors import FirsttokenError, UsageError
from profiles.measurable import NEEDS_RECORDED_TEXT
from profiles.profile import Profile, read_profile
from profiles.scan import Pieces
from profiles.sweep import sweep
from profiles.table import SCHEMA, complete
from profiles.units import SECOND_NS as S
from profiles.write import write_profile


def frame(arrivals: list[int], **columns: Any) -> pl.DataFrame:
    """Chat requests of one second each."""
    count = len(arrivals)
    given: dict[str, Any] = {
        "arrival_ns": [at * S for at in arrivals],
        "end_ns": [(at + 1) * S for at in arrivals],
        "endpoint": ["chat"] * count,
        "path": ["/v1/chat/completions"] * count,
        "outcome": ["ok"] * count,
        "output_tokens": [40] * count,
        "user_turns": [1] * count,
    }
    return pl.DataFrame(given | columns)


def write(out: Path, requests: Any, **more: Any) -> Profile:
    given: dict[str, Any] = {"source": {"kind": "test"}, "windows": [(0, 100 * S)], "zero_wall_ns": None}
    return write_profile(out, requests, **(given | more))


def test_references_follow_their_rows(tmp_path: Path) -> None:
    requests = frame(
        [30, 10, 20], parent=[2, None, 1], prefix_ref=[1, None, None], deps=[[1, 2], None, [1]], turn=[2, 0, 1]
    )
    rows = write(tmp_path / "p", requests, bodies=[(0, b'{"a":1}'), (1, b'{"a":2}')]).rows()
    assert [row.arrival_ns // S for row in rows] == [10, 20, 30]
    assert [row.parent for row in rows] == [None, 0, 1]
    assert [row.prefix_ref for row in rows] == [None, None, 0]
    assert [row.deps for row in rows] == [None, [0], [0, 1]]
    assert read_profile(tmp_path / "p").bodies() == {2: b'{"a":1}', 0: b'{"a":2}'}


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    requests = frame([5, 3, 3, 9, 1, 4, 4, 2], prompt_tokens=[2000, 1, 2, 3, 4, 5, 6, 7], parent=[4, None] * 4)
    monkeypatch.setattr(write_module, "BATCH_ROWS", batch)
    rows = write(tmp_path / "p", requests).rows()
    assert [row.request for row in rows] == list(range(8))
    assert [row.prompt_tokens for row in rows] == [4, 7, 1, 2, 5, 6, 2000, 3]
    assert [row.parent for row in rows] == [0, None, None, 0, None, 0, 0, None]
    assert [row.in_flight for row in rows] == [0, 0, 0, 1, 0, 1, 0, 0]
    assert [row.workload for row in rows].count("rag_2k") == 1
    found = read_profile(tmp_path / "p").concurrency()
    assert (found.time_ns_at, found.arrivals_at) == ({0: 94 * S, 1: 4 * S, 2: 2 * S}, {1: 6, 2: 2})


@settings(max_examples=5)  # each writes two profiles
@given(arrivals=st.lists(st.integers(0, 50), min_size=1, max_size=40), piece=st.integers(1, 7), batch=st.integers(1, 9))
def test_pieces_on_disk_are_the_same_table(
    arrivals: list[int], piece: int, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    whole = frame(arrivals, prompt_tokens=list(range(len(arrivals))))
    pieces = Pieces(zero_ns=0)
    for start in range(0, whole.height, piece):
        pieces.paths.append(folder / f"{start}.parquet")
        pieces.starts.append(start)
        whole[start : start + piece].write_parquet(pieces.paths[-1])
    pieces.rows = whole.height
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_module, "BATCH_ROWS", batch)
        on_disk = write(folder / "pieces", pieces).rows()
    assert on_disk == write(folder / "whole", whole).rows()


def test_requests_without_ends_have_no_concurrency(tmp_path: Path) -> None:
    opened = write(tmp_path / "p", frame([1, 2]).drop("end_ns"))
    assert [row.in_flight for row in opened.rows()] == [None, None]
    assert "concurrency" in opened.manifest["not_measurable"]
    assert opened.manifest["operating_point"]["levels"] == []
    for ask in (opened.concurrency, opened.stays):
        with pytest.raises(UsageError, match="nobody knows how many were in flight") as caught:
            ask()
        assert "--service-time" in caught.value.hint


def test_one_missing_end_is_enough_to_say_so(tmp_path: Path) -> None:
    opened = write(tmp_path / "p", frame([1, 2], end_ns=[2 * S, None]))
    assert "concurrency" in opened.manifest["not_measurable"]


def test_stays_come_back_with_those_whose_end_nobody_saw(tmp_path: Path) -> None:
    opened = write(
        tmp_path / "p", frame([1, 7]), unfinished=[Interval(5 * S, 9 * S)], windows=[(0, 4 * S), (5 * S, 10 * S)]
    )
    stays = opened.stays()
    assert [start // S for start in stays.start_ns] == [1, 5, 7]
    assert stays.group.tolist() == [0, -1, 0]
    assert sweep(stays) == opened.concurrency()
    assert opened.concurrency().time_ns_at == {0: 4 * S, 1: 4 * S, 2: 1 * S}


def test_content_decides_what_can_be_measured(tmp_path: Path) -> None:
    text = ["acceptance", "guided decoding cost", "output equality"]
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, text),
        ({"content": "full", "bodies": [(0, b"{}")]}, []),
        ({"content": "synthetic", "bodies": [(0, b"{}")]}, list(NEEDS_RECORDED_TEXT)),
        ({"not_measurable": ["thirst"]}, ["thirst"]),
    ]
    for number, (more, cannot) in enumerate(cases):
        assert write(tmp_path / str(number), frame([1]), **more).manifest["not_measurable"] == cannot


def test_an_answer_without_usage_is_said(tmp_path: Path) -> None:
    warnings: list[str] = []
    opened = write(tmp_path / "p", frame([1, 2], output_tokens=[None, 40]), warnings=warnings)
    assert "1 of 2 answers carry no usage" in warnings[0]
    assert "output length" in opened.manifest["not_measurable"]


def test_every_file_is_for_its_owner(tmp_path: Path) -> None:
    segments = pl.DataFrame(
        {"request": [1, 0, 1], "seq": [1, 0, 0], "role": ["user", "user", "system"], "chars": [1, 2, 3]}
    )
    opened = write(tmp_path / "p", frame([2, 1]), segments=segments, bodies=[(0, b"{}")])
    assert {stat.S_IMODE(path.stat().st_mode) for path in opened.path.iterdir()} == {0o600}
    assert opened.bodies() == {1: b"{}"}
    held = opened.segments()
    assert held is not None
    assert held.rows() == [(0, 0, "system", 3), (0, 1, "user", 1), (1, 0, "user", 2)]
    opened.verify()


def test_a_column_of_an_earlier_version_is_null(tmp_path: Path) -> None:
    opened = write(tmp_path / "p", frame([1, 2]))
    table = opened.path / "requests.parquet"
    pl.read_parquet(table).drop("session", "think_ns").write_parquet(table)
    found = opened.frame(["arrival_ns", "session", "think_ns"]).collect()
    assert found["session"].to_list() == [None, None]
    assert found.schema["think_ns"] == pl.Int64()


def test_a_complete_table_has_every_column_and_no_other() -> None:
    made = complete(frame([1], mine=["x"]))
    assert dict(made.schema) == SCHEMA
    assert made.row(0, named=True)["late_ns"] == 0
    assert made.row(0, named=True)["body"] is False
    assert made.row(0, named=True)["session"] is None


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(FirsttokenError, match="cannot be written"):
        write(tmp_path / "p", frame([1]))
    assert list(tmp_path.iterdir()) == []


def test_a_scan_on_a_full_disk_says_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    writing = scan_module._Writing(tmp_path, Pieces(), piece_rows=10)
    writing.add(tuple(None for _ in scan_module._PIECE))
    with pytest.raises(FirsttokenError, match=r"piece-000000\.parquet: cannot be written"):
        writing.flush()
