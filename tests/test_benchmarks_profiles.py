"""The capture that the benchmark of profiles makes is one that a recorder could have written."""

from pathlib import Path

import pytest

from benchmarks.profiles import make
from benchmarks.profiles.steps import CAPTURE, STEPS
from benchmarks.profiles.steps import build as build_step
from profiles.build import build_profile
from profiles.captures import read_capture
from profiles.sweep import sweep


def test_it_reads_back_as_a_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "SEGMENT_REQUESTS", 120)
    capture = read_capture(make.make_capture(tmp_path / "c", 300, seed=5))
    assert len(list((tmp_path / "c").glob("*.zst"))) == 3
    assert len({exchange.id for exchange in capture.exchanges}) == len(capture.exchanges) == 300
    assert (len(capture.windows), capture.open, capture.dropped) == (1, [], 0)
    assert {exchange.request.model for exchange in capture.exchanges} == {"main-model", "small-model"}
    for exchange in capture.exchanges:
        assert exchange.dispatch_ns is not None
        assert exchange.response.first_token_ns is not None
        assert exchange.arrival_ns < exchange.dispatch_ns < exchange.response.first_token_ns < exchange.end_ns


def test_equal_seeds_make_equal_captures(tmp_path: Path) -> None:
    one, same, other = (
        read_capture(make.make_capture(tmp_path / name, 50, seed=seed)).exchanges
        for name, seed in (("one", 5), ("same", 5), ("other", 6))
    )
    assert one == same
    assert one != other


def test_its_profile_is_swept_as_it_is(tmp_path: Path) -> None:
    make.make_capture(tmp_path / CAPTURE, 200, seed=5)
    profile = build_profile([tmp_path / CAPTURE], tmp_path / "p").profile
    assert sweep(profile.stays()) == profile.concurrency()
    assert profile.concurrency().requests == 200
    assert build_step(tmp_path) == 200
    assert STEPS["scan_lines"](tmp_path) == (3 * 200 + 3) // 3  # three lines a request, the segment, the window
    assert STEPS["parse_lines"](tmp_path) == 200
