"""A plain log of times becomes exact concurrency: the edge cases of the mathematics, through the command line."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from profiles.errors import FirsttokenError, FormatError, UsageError
from profiles.profile import Profile, read_profile
from profiles.traces.cli import import_

SECOND_NS = 10**9


def run(*arguments: str | Path) -> str:
    """Stderr of the command. Raises the error of ours that it ends with."""
    done = CliRunner().invoke(import_, [*map(str, arguments)])
    if isinstance(done.exception, FirsttokenError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stderr


def imported(folder: Path, text: str, *options: str) -> Profile:
    log = folder / "log.csv"
    log.write_text(text)
    run("intervals", log, "-o", folder / "p", *options)
    return read_profile(folder / "p")


@dataclass(frozen=True)
class Case:
    stays: str
    windows: tuple[str, ...]
    seconds: dict[int, int]  # T_k
    arrivals: dict[int, int]  # others that an arrival met: how many arrivals
    mean: float
    left_out: dict[str, int] = field(default_factory=dict)


CASES = {
    "all kinds": Case(
        "0,10\n2,5\n4,12\n12,12\n15,", ("0,20",), {0: 3, 1: 9, 2: 7, 3: 1}, {0: 3, 1: 1, 2: 1}, 1.3, {"unfinished": 1}
    ),
    "back to back": Case("0,5\n5,10", ("0,10",), {1: 10}, {0: 2}, 1.0),
    "cut on the left": Case("-4,3\n1,4", ("0,10",), {0: 6, 1: 2, 2: 2}, {1: 1}, 0.6),
    "no end in the first of two windows": Case(
        "0,6\n2,None\n12,15", ("0,8", "10,20"), {0: 7, 1: 7, 2: 4}, {0: 2, 1: 1}, 15 / 18, {"unfinished": 1}
    ),
    "across a gap": Case("0,14", ("0,8", "10,20"), {0: 6, 1: 12}, {0: 1}, 12 / 18),
    "all at once": Case("0,4\n0,4\n0,2", ("0,8",), {0: 4, 2: 2, 3: 2}, {0: 1, 1: 1, 2: 1}, 1.25),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("header", ["", "start,end\n"])
def test_edge_cases_of_concurrency_give_their_values(tmp_path: Path, case: Case, header: str) -> None:
    options = [part for window in case.windows for part in ("--window", window)]
    profile = imported(tmp_path, header + case.stays, *options)
    measured = profile.concurrency()
    assert measured.time_ns_at == {k: seconds * SECOND_NS for k, seconds in case.seconds.items()}
    # What an arrival meets is counted with itself.
    assert {c - 1: count for c, count in measured.arrivals_at.items()} == case.arrivals
    total = sum(k * time_ns for k, time_ns in measured.time_ns_at.items())
    assert total / profile.manifest["observed_ns"] == pytest.approx(case.mean)
    assert profile.manifest["dropped"] == case.left_out


def test_back_to_front_and_in_order_give_the_same(tmp_path: Path) -> None:
    lines = ["0,10,chat", "2,5,rag", "4,12,chat"]
    forward = imported(tmp_path, "\n".join(lines), "--window", "0,20")
    folder = tmp_path / "back"
    folder.mkdir()
    backward = imported(folder, "\n".join(reversed(lines)), "--window", "0,20")
    assert forward.concurrency() == backward.concurrency()
    assert any("back to front" in note for note in backward.manifest["source"]["notes"])
    assert {name: each["requests"] for name, each in backward.manifest["workloads"].items()} == {"chat": 2, "rag": 1}
    assert set(backward.frame(["workload_rule"]).collect()["workload_rule"]) == {"imported: class"}


def test_dates_are_taken_where_both_columns_are_dates(tmp_path: Path) -> None:
    text = (
        "start,end\n2026-03-02T08:00:00.5+01:00,2026-03-02T08:00:04+01:00\n2026-03-02T07:00:01Z,2026-03-02 07:00:02\n"
    )
    profile = imported(tmp_path, text, "--window", "2026-03-02 07:00:00,2026-03-02 07:00:10")
    assert profile.manifest["zero_wall_ns"] == 1772434800 * SECOND_NS
    assert profile.concurrency().time_ns_at == {0: 6_500_000_000, 1: 2_500_000_000, 2: SECOND_NS}


def test_decimals_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    profile = imported(tmp_path, "1796042954.000000001,1796042954.000000004\n1796042954.000000002,1796042954.000000003")
    assert profile.concurrency().time_ns_at == {1: 2, 2: 1}


def test_what_lies_in_no_window_is_left_out_and_counted(tmp_path: Path) -> None:
    profile = imported(tmp_path, "0,1\n3,4\n12,13\n25,\n14,16", "--window", "10,20", "--window", "2,5")
    assert profile.manifest["dropped"] == {"outside the windows": 2}
    assert profile.manifest["requests"] == 3


def test_milliseconds_taken_for_seconds_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("".join(f"{at * 40_000_000},{at * 40_000_000 + 900}\n" for at in range(40)))
    with pytest.raises(FormatError, match="hardly right") as refused:
        run("intervals", log, "-o", tmp_path / "p")
    assert "--unit" in refused.value.hint
    run("intervals", log, "-o", tmp_path / "p", "--trust-unit")
    assert read_profile(tmp_path / "p").manifest["observed_ns"] == (39 * 40_000_000 + 900) * SECOND_NS


def test_other_units_and_an_empty_log_of_a_watched_time(tmp_path: Path) -> None:
    profile = imported(tmp_path, "0,10\n5,15\n", "--unit", "ms")
    assert profile.concurrency().time_ns_at == {1: 10_000_000, 2: 5_000_000}
    (tmp_path / "none").mkdir()
    nothing = imported(tmp_path / "none", "start,end\n", "--window", "0,10")
    assert nothing.manifest["requests"] == 0
    assert nothing.manifest["observed_ns"] == 10 * SECOND_NS


@pytest.mark.parametrize("window", ["1", "5,1", "a,b", "1,2,3"])
def test_a_window_that_is_none_is_refused(tmp_path: Path, window: str) -> None:
    with pytest.raises(UsageError, match="--window"):
        imported(tmp_path, "0,10\n", "--window", window)


def test_overlapping_windows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="begins inside"):
        imported(tmp_path, "0,10\n", "--window", "0,10", "--window", "5,20")


def test_an_end_before_its_start_is_a_bad_row(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("0,1\n5,4\n6,7,a,b\nx,9\n")
    told = run("intervals", log, "-o", tmp_path / "p", "--max-bad", "75")
    assert f"warning: {log}:2: end before start" in told
    assert f"warning: {log}:3: too many fields" in told
    assert f"warning: {log}:4: start is no number" in told


def test_a_class_may_stand_in_some_rows_only(tmp_path: Path) -> None:
    rows = imported(tmp_path, "0,1.5\n1,3,chat\n2,3,\n", "--window", "0,10").rows()
    assert [row.workload == "chat" for row in rows] == [False, True, False]


def test_a_log_that_counts_from_1970_has_a_wall_clock(tmp_path: Path) -> None:
    start_ms = 1_790_000_000_000
    profile = imported(tmp_path, f"{start_ms},{start_ms + 1000}\n{start_ms + 500},{start_ms + 900}\n", "--unit", "ms")
    assert profile.manifest["zero_wall_ns"] == start_ms * 1_000_000
    assert profile.concurrency().arrivals_at == {1: 1, 2: 1}


@pytest.mark.parametrize("window", ["2026-03-29,2026-03-30", "2026-03-29T00:00,2026-03-30T00:00"])
def test_a_window_may_be_given_in_days_or_minutes(tmp_path: Path, window: str) -> None:
    profile = imported(tmp_path, "2026-03-29T10:00:00,2026-03-29T10:00:05\n", "--window", window)
    assert profile.manifest["observed_ns"] == 86_400 * SECOND_NS
