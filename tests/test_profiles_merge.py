"""Several captures on one clock: three gaps, a kill, and two hosts whose clocks differ by two seconds."""

from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from profiles.build import build_profile, read_stays
from profiles.captures import BeatLine, SegmentLine, StartLine, WindowLine, end_line
from profiles.cli import profile
from profiles.errors import UsageError
from profiles.files import write_document
from profiles.profile import read_profile
from profiles.records import Exchange, RequestFacts, ResponseFacts
from profiles.skew import read_skews
from profiles.sweep import sweep
from profiles.units import SECOND_NS as S

WALL = 1_700_000_000 * S
AHEAD = 2 * S

# In true seconds. The third window of `a` ends in a kill; who was in flight then was never seen to end.
GAPPED = ((0, 10), (15, 25), (30, 38), (45, 60))
ASKED_A = ((1, 4), (3, 9), (8, 17), (16, 20), (20, 25), (24, 26), (31, 35), (46, 50), (50, 55))
KILLED_A = 36
OF_B = ((0, 10), (45, 60))
ASKED_B = ((2, 5), (47, 52), (58, 60))

# By hand, window by window: see the table in the docstring of `test_the_distribution`.
TIME_S = {0: 7, 1: 25, 2: 10, 3: 1}
ARRIVALS = {1: 6, 2: 6, 3: 1}


def ended(number: int, start_s: float, end_s: float) -> bytes:
    return end_line(
        Exchange(
            id=f"r-{number}", endpoint="chat", method="POST", path="/v1/chat/completions",
            arrival_ns=int(start_s * S), end_ns=int(end_s * S), status=200, outcome="ok",
            request=RequestFacts(model="m", messages=1, user_turns=1),
            response=ResponseFacts(output=True, finish="stop", prompt_tokens=9, output_tokens=9),
        )
    )  # fmt: skip


def write(
    folder: Path, windows: tuple[tuple[int, int], ...], asked: tuple[tuple[int, int], ...], *, wall_ns: int
) -> Path:
    """A segment for each window, as a recorder that was started anew each time. The clock of the host is `wall_ns`."""
    folder.mkdir()
    write_document(folder / "manifest.json", {"format": "firsttoken/capture", "version": 1})
    for number, (opened, closes) in enumerate(windows, start=1):
        killed = folder.name == "a" and closes == 38
        lines = [
            msgspec.json.encode(
                SegmentLine(format="firsttoken/capture", version=1, tool="t", wall_ns=wall_ns, mono_ns=0)
            ),
            msgspec.json.encode(WindowLine(event="open", at_ns=opened * S)),
            *(ended(at, *stay) for at, stay in enumerate(asked) if opened <= stay[0] < closes),
        ]
        if killed:
            lines.append(msgspec.json.encode(StartLine(id="killed", at_ns=KILLED_A * S)))
            lines.append(msgspec.json.encode(BeatLine(at_ns=closes * S, in_flight=1)))
        else:
            lines.append(msgspec.json.encode(WindowLine(event="close", at_ns=closes * S)))
        (folder / f"segment-{number:06}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


@pytest.fixture
def hosts(tmp_path: Path) -> list[Path]:
    return [
        write(tmp_path / "a", GAPPED, ASKED_A, wall_ns=WALL),
        write(tmp_path / "b", OF_B, ASKED_B, wall_ns=WALL + AHEAD),
    ]


def test_the_distribution(tmp_path: Path, hosts: list[Path]) -> None:
    """Seconds at each level:

    | window  | 0 | 1 | 2 | 3 |
    |---------|---|---|---|---|
    | [0,10)  | 1 | 5 | 3 | 1 |
    | [15,25) | 0 | 8 | 2 | 0 |
    | [30,38) | 2 | 6 | 0 | 0 |
    | [45,60) | 4 | 6 | 5 | 0 |
    """
    build_profile(hosts, tmp_path / "p", skews_ns={hosts[1]: AHEAD})
    opened = read_profile(tmp_path / "p")
    found = opened.concurrency()
    assert {k: ns // S for k, ns in found.time_ns_at.items()} == TIME_S
    assert found.arrivals_at == ARRIVALS
    assert (found.observed_ns, found.duration_sum_ns) == (43 * S, 48 * S)
    assert opened.manifest["windows"] == [[opens * S, closes * S] for opens, closes in GAPPED]
    assert [each["skew_ns"] for each in opened.manifest["inputs"]] == [0, AHEAD]
    assert sweep(opened.stays()) == found
    assert sweep(read_stays(hosts, {hosts[1]: AHEAD})[0]) == found


def test_without_the_skew_it_is_another_one(tmp_path: Path, hosts: list[Path]) -> None:
    build_profile(hosts, tmp_path / "p")
    assert read_profile(tmp_path / "p").concurrency().arrivals_at != ARRIVALS


def test_the_order_in_which_captures_are_named_does_not_matter(tmp_path: Path, hosts: list[Path]) -> None:
    for name, paths in (("one", hosts), ("other", hosts[::-1])):
        build_profile(paths, tmp_path / name, skews_ns={hosts[1]: AHEAD})
    one, other = (read_profile(tmp_path / name) for name in ("one", "other"))
    assert one.concurrency() == other.concurrency()
    assert [row.arrival_ns for row in one.rows()] == [row.arrival_ns for row in other.rows()]


def test_the_command_takes_the_skew_of_a_host_and_says_so(tmp_path: Path, hosts: list[Path]) -> None:
    words = ["build", *map(str, hosts), "-o", str(tmp_path / "p"), "--skew", "b=+2s"]
    said = CliRunner().invoke(profile, words, standalone_mode=False, catch_exceptions=False)
    assert "is taken to be 2.00 s ahead, as you said" in said.stderr
    assert read_profile(tmp_path / "p").concurrency().arrivals_at == ARRIVALS


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        (["b=+2s"], {"b": 2 * S}),
        (["b=2s"], {"b": 2 * S}),
        (["b=-150ms"], {"b": -150_000_000}),
        (["b=−150ms", "a=1h"], {"b": -150_000_000, "a": 3600 * S}),
        ([], {}),
    ],
)
def test_a_skew_is_a_name_and_a_time(stated: list[str], found: dict[str, int]) -> None:
    captures = [Path("there/a"), Path("there/b")]
    assert {path.name: skew_ns for path, skew_ns in read_skews(stated, captures).items()} == found


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        (["b"], "not a name and a time"),
        (["c=2s"], "no capture of this name"),
        (["b=2"], "not a duration"),
        (["b=1s", "b=2s"], "has a skew already"),
    ],
)
def test_a_skew_that_makes_no_sense_is_refused(stated: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        read_skews(stated, [Path("a"), Path("b")])
    assert caught.value.hint


def test_a_skew_of_two_captures_with_one_name_is_refused() -> None:
    with pytest.raises(UsageError, match="more than one capture"):
        read_skews(["day=1s"], [Path("one/day"), Path("other/day")])


def test_help_says_how_to_state_it() -> None:
    context = click.Context(profile)
    command = profile.get_command(context, "build")
    assert command is not None
    assert "--skew" in command.get_help(context)
