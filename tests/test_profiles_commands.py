"""The commands `concurrency`, `profile build` and `profile show`, and what becomes of a capture's hash key."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from handmade_capture import WALL, exchange, run, write_capture, write_monday

from profiles import write as write_module
from profiles.build import build_profile
from profiles.capture_folder import HASH_KEY
from profiles.cli import profile
from profiles.concurrency_cli import concurrency
from profiles.errors import FirsttokenError, UsageError
from profiles.profile import read_profile
from profiles.units import MILLISECOND_NS as MS
from profiles.units import SECOND_NS as S


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    return write_monday(tmp_path)


def test_concurrency_prints_the_contract_as_json(tmp_path: Path, captured: Path) -> None:
    build_profile([captured], tmp_path / "p")
    printed = [json.loads(run(concurrency, path, "--json").stdout) for path in (captured, tmp_path / "p")]
    assert printed[0] == printed[1]
    contract = {
        "observed_ns": 100 * S,
        "time_ns_at": {"0": 77 * S, "1": 19 * S, "2": 4 * S},
        "share_wall": {"0": 0.77, "1": 0.19, "2": 0.04},
        "share_busy": {"1": 19 / 23, "2": 4 / 23},
        "arrivals_at": {"1": 4, "2": 1},
        "share_arrivals": {"1": 0.8, "2": 0.2},
        "mean": 0.27,
        "max": 2,
        "requests": 5,
    }
    assert {key: printed[0][key] for key in contract} == contract


def test_concurrency_prints_a_sentence_and_a_table_of_80_columns(captured: Path) -> None:
    printed = run(concurrency, captured)
    assert printed.stdout.startswith("100 % of requests arrive at c = 1–2; above 8 never in 1 min 40 s: measure TTFT")
    assert max(map(len, printed.stdout.splitlines())) <= 80
    assert printed.stderr == ""


def test_warnings_go_to_stderr(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_capture(tmp_path / name, [(exchange("a", S, 2 * S), None)])
    printed = run(concurrency, tmp_path / "one", tmp_path / "other", "--json")
    assert printed.stderr.startswith("warning: ")
    assert json.loads(printed.stdout)["arrivals_at"] == {"1": 1, "2": 1}


def test_profile_build_prints_the_path_and_one_line_of_summary(tmp_path: Path, captured: Path) -> None:
    printed = run(profile, "build", captured, "-o", tmp_path / "p")
    assert printed.stdout == f"{tmp_path / 'p'}\n"
    assert printed.stderr == "4 requests in 2 classes, observed c = 1–2, content none\n"


def test_profile_show_describes_what_is_there_and_what_is_not(tmp_path: Path, captured: Path) -> None:
    run(profile, "build", captured, "-o", tmp_path / "p")
    shown = run(profile, "show", tmp_path / "p").stdout
    lines = shown.replace(str(tmp_path), "").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1:7] == [
        "requests   4 (ok 3, error 1)",
        "observed   1 min 40 s in 1 window(s)",
        "dropped    not_post 1, unfinished 1",
        "models     m 4",
        "in flight  c = 1 (80.0 %), 2 (20.0 %); at most 2",
        "content    none; cannot be measured: acceptance, guided decoding cost, output",
    ]
    assert "chat_single              3    75 %        20 / 20        40 / 40   100ms / 100ms" in lines
    assert "rag_2k                   1    25 %    2000 / 2000        40 / 40   100ms / 100ms" in lines


def test_profile_show_as_json(tmp_path: Path, captured: Path) -> None:
    run(profile, "build", captured, "-o", tmp_path / "p")
    shown = json.loads(run(profile, "show", tmp_path / "p", "--json").stdout)
    opened = read_profile(tmp_path / "p")
    assert shown["sha256"] == opened.sha256
    assert {key: shown[key] for key in opened.manifest} == opened.manifest
    assert shown["classes"][0] == {
        "workload": "chat_single",
        "requests": 3,
        "prompt_tokens_p50": 20,
        "prompt_tokens_p90": 20,
        "output_tokens_p50": 40,
        "output_tokens_p90": 40,
        "measured_ttft": 2,
        "ttft_p50_ns": 100 * MS,
        "ttft_p90_ns": 100 * MS,
    }


def test_errors_name_the_file_and_say_what_to_do(tmp_path: Path, captured: Path) -> None:
    run(profile, "build", captured, "-o", tmp_path / "p")
    cases: list[tuple[click.Command, list[Any], str]] = [
        (concurrency, [tmp_path / "none"], "none: no such directory"),
        (concurrency, [captured, tmp_path / "p"], "p is a profile, and a profile is looked at alone"),
        (profile, ["build", tmp_path / "none", "-o", tmp_path / "q"], "none: no such directory"),
        (profile, ["build", captured, "-o", tmp_path / "p"], "p exists"),
        (profile, ["show", tmp_path / "none"], "none: no such directory"),
        (profile, ["show", tmp_path], "manifest.json: no such file"),
        (concurrency, [tmp_path], "manifest.json: no such file"),
    ]
    for command, words, problem in cases:
        with pytest.raises(FirsttokenError, match=problem) as caught:
            run(command, *words)
        assert caught.value.hint, words
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(("command", "words"), [(concurrency, []), (profile, ["build"]), (profile, ["show"])])
def test_a_missing_argument_is_a_matter_of_usage(command: click.Command, words: list[str]) -> None:
    assert CliRunner().invoke(command, words).exit_code == 2


@pytest.mark.parametrize(
    ("command", "words"), [(concurrency, []), (profile, []), (profile, ["build"]), (profile, ["show"])]
)
def test_help_has_an_example(command: click.Command, words: list[str]) -> None:
    assert "Example:" in run(command, *words, "--help").stdout


KEY = b"00" * 32


def with_key(folder: Path) -> Path:
    (folder / HASH_KEY).write_bytes(KEY)
    return folder


def test_a_build_destroys_the_hash_key_and_can_be_done_again(tmp_path: Path, captured: Path) -> None:
    with_key(captured)
    (captured / f"{HASH_KEY}.4711").write_bytes(KEY)  # a kill in the making of the key leaves a second name
    mine = tmp_path / "mine.key"
    mine.write_bytes(KEY)
    kept = sorted(path.name for path in captured.iterdir() if not path.name.startswith(HASH_KEY))
    said = run(profile, "build", captured, "-o", tmp_path / "p").stderr.splitlines()
    assert [line for line in said if HASH_KEY in line] == [
        f"note: {captured / HASH_KEY} was destroyed: nobody can try guesses on this capture any more,"
        " and new records get another key"
    ]
    assert sorted(path.name for path in captured.iterdir()) == kept
    assert mine.read_bytes() == KEY
    again = run(profile, "build", captured, "-o", tmp_path / "again")
    assert HASH_KEY not in again.stderr
    assert read_profile(tmp_path / "again").rows() == read_profile(tmp_path / "p").rows()
    assert read_profile(tmp_path / "p").manifest["warnings"] == read_profile(tmp_path / "again").manifest["warnings"]


def test_the_hash_key_stays_where_a_recorder_goes_on(tmp_path: Path, captured: Path) -> None:
    with_key(captured)
    other = with_key(write_capture(tmp_path / "other", [(exchange("x", S, 2 * S), None)], wall_ns=WALL + 900 * S))
    descriptor = os.open(captured, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    built = build_profile([captured, other], tmp_path / "p")
    os.close(descriptor)
    assert (captured / HASH_KEY).read_bytes() == KEY
    assert not (other / HASH_KEY).exists()
    assert [HASH_KEY in said for said in built.warnings] == [True]
    assert [HASH_KEY in said for said in built.notes] == [True]
    build_profile([captured], tmp_path / "again")
    assert not (captured / HASH_KEY).exists()


def test_a_build_that_fails_destroys_no_key(tmp_path: Path, captured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_key(captured)
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError):
        build_profile([captured], tmp_path / "taken")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write_module, "write_document", full)
    with pytest.raises(FirsttokenError):
        build_profile([captured], tmp_path / "p")
    assert (captured / HASH_KEY).read_bytes() == KEY


def test_a_key_that_is_a_link_is_not_ours(tmp_path: Path, captured: Path) -> None:
    (tmp_path / "mine.key").write_bytes(KEY)
    (captured / HASH_KEY).symlink_to(tmp_path / "mine.key")
    build_profile([captured], tmp_path / "p")
    assert (captured / HASH_KEY).read_bytes() == KEY
