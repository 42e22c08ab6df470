"""The command `profile shape`: its options, the bodies of copies, and what the manifest says afterwards."""

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from profiles.errors import UsageError
from profiles.profile import read_profile
from profiles.shape_bodies import mark
from profiles.shape_cli import mix_of, shape, span_of
from profiles.write import write_profile

S = 1_000_000_000


def test_a_mark_stands_behind_the_system_prompt_and_changes_nothing_else() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"Hi"}],"top_p":0.10}'
    )
    marked = mark(body, 3)
    assert marked == body.replace(b'"Hi"', b'"[3] Hi"')
    assert mark(b'{"prompt":"Once"}', 1) == b'{"prompt":"[1] Once"}'
    parts = json.loads(mark(b'{"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]}', 1) or b"")
    assert [part["text"] for part in parts["messages"][0]["content"]] == ["[1] ", "Hi"]


@pytest.mark.parametrize(
    "body", [b"", b"not JSON", b"[]", b'{"messages":[]}', b'{"messages":[{"role":"user"}]}', b'{"model":"m"}']
)
def test_what_cannot_be_marked_is_told(body: bytes) -> None:
    assert mark(body, 1) is None


ZERO = 1_782_864_000 * S  # 2026-07-01 in UTC


@pytest.mark.parametrize(
    ("text", "start_s", "end_s"),
    [
        ("10min,70min", 600, 4_200),
        ("2026-07-01", 0, 86_400),
        ("2026-07-01,2026-07-03", 0, 3 * 86_400),
        ("2026-07-01T08:00,2026-07-01T12:30", 8 * 3_600, 12 * 3_600 + 1_800),
        ("2026-07-01T08:00+02:00,2026-07-02", 6 * 3_600, 2 * 86_400),
    ],
)
def test_a_window_is_written_in_three_ways(text: str, start_s: int, end_s: int) -> None:
    assert span_of(text, ZERO) == (start_s * S, end_s * S)


@pytest.mark.parametrize(
    "text", ["", "10min", "70min,10min", "2026-07-01T08:00", "soon,later", "2026-07-02,2026-07-01T00:00"]
)
def test_a_wrong_window_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--window"):
        span_of(text, ZERO)


def test_a_date_needs_a_wall_clock() -> None:
    with pytest.raises(UsageError, match="wall clock"):
        span_of("2026-07-01", None)


def test_a_mix_names_its_slots_and_may_name_classes() -> None:
    assert mix_of("c=8") == (8, None)
    assert mix_of("c=8, chat_single.hu=3,code=0.5") == (8, {"chat_single.hu": 3.0, "code": 0.5})
    for wrong in ("8", "c=two", "code=1", "c=1.5"):
        with pytest.raises(UsageError, match="--mix"):
            mix_of(wrong)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two chats that overlap, and a request that stands alone: arrivals in seconds, each 1 s long."""
    at = [10, 12, 16, 24, 43, 90]
    frame = pl.DataFrame(
        {
            "arrival_ns": [start * S for start in at],
            "end_ns": [(start + 1) * S for start in at],
            "workload": ["chat", "code", "chat", "chat", "code", "code"],
            "workload_rule": ["made for a test"] * 6,
            "session": [0, 1, 0, 0, 1, None],
            "turn": [0, 0, 1, 2, 1, None],
            "parent": [None, None, 0, 2, 1, None],
            "think_ns": [None, None, 5 * S, 7 * S, 30 * S, None],
            "endpoint": ["chat"] * 6,
            "path": ["/v1/chat/completions"] * 6,
            "body": [True] * 6,
        }
    )
    bodies = [(row, b'{"messages":[{"role":"user","content":"%d"}]}' % row) for row in range(6)]
    path = tmp_path / "recorded"
    write_profile(
        path,
        frame,
        source={"kind": "capture"},
        windows=[(0, 100 * S)],
        zero_wall_ns=ZERO,
        bodies=bodies,
        content="full",
    )
    return path


def test_the_command_writes_a_profile_and_says_what_changed(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "twice"
    done = CliRunner().invoke(shape, [str(recorded), "-o", str(out), "--users", "2", "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(out)
    assert ["requests", "6", "12"] in [line.split() for line in done.stderr.splitlines()]
    assert "arrivals at c ≥ 8" in done.stderr
    before, after = read_profile(recorded), read_profile(out)
    after.verify()
    source = after.manifest["source"]
    assert source["kind"] == "shape"
    assert source["of"] == before.sha256
    assert source["seed"] == 3
    assert [step["step"] for step in source["steps"]] == ["superpose"]
    assert after.manifest["synthetic"] is False
    assert any("estimate" in warning for warning in after.manifest["warnings"])
    contents = sorted(json.loads(body)["messages"][0]["content"] for body in after.bodies().values())
    assert contents == sorted([*map(str, range(6)), *(f"[1] {at}" for at in range(6))])
    rows = after.rows()
    for row in rows:
        if row.parent is not None:
            assert row.arrival_ns - (rows[row.parent].end_ns or 0) == row.think_ns


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "nothing is to be done"),
        (["--users", "2", "--rate", "2"], "two ways"),
        (["--thin", "0"], "a share lies above 0"),
        (["--users", "0"], "at least one copy"),
        (["--classes-only", "rag"], "no request is of class rag"),
        (["--window", "200s,300s"], "nothing was observed"),
        (["--window", "60s,70s"], "no request is left"),
    ],
)
def test_a_wrong_wish_is_refused_and_nothing_is_made(
    recorded: Path, tmp_path: Path, options: list[str], problem: str
) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(shape, [str(recorded), "-o", str(out), *options])
    assert isinstance(done.exception, UsageError)
    assert problem in done.exception.problem
    assert not out.exists()
