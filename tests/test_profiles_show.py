"""`profile show` and `profile diff`: what they print at 80 columns, their documents, and their exit codes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result

from profiles.days import DAY_NS
from profiles.errors import FormatError
from profiles.profile import Profile, read_profile
from profiles.show import render_show, show_document
from profiles.show_cli import diff, show
from profiles.units import MILLISECOND_NS as MS
from profiles.units import SECOND_NS as S
from profiles.write import write_profile

WALL_NS = 19_000 * DAY_NS


def recorded(requests: int = 400, seed: int = 1, prompt: float = 1000.0, days: int = 2) -> pl.DataFrame:
    """Everything that a recording can tell, for classes of a known mix."""
    rng = np.random.default_rng(seed)
    at_ns = np.sort(rng.uniform(0, days * DAY_NS - 60 * S, requests).astype(np.int64))
    lengths = (prompt * rng.lognormal(0, 0.4, requests)).astype(np.int64)
    sessions = rng.integers(0, requests // 4, requests)
    return pl.DataFrame(
        {
            "arrival_ns": at_ns, "end_ns": at_ns + 5 * S, "first_token_ns": at_ns + 200 * MS,
            "ttft_ns": np.full(requests, 200 * MS), "outcome": ["ok", "ok", "ok", "error"] * (requests // 4),
            "model": "m", "stream": True, "prompt_tokens": lengths, "output_tokens": lengths // 8 + 1,
            "cached_tokens": lengths // 2, "token_source": "usage", "finish": "stop", "max_tokens": 512,
            "workload": np.where(np.arange(requests) % 4 == 0, "code", "chat_multi.hu"), "workload_rule": "by hand",
            "language": [None, "hu", "hu", "hu"] * (requests // 4), "session": sessions,
            "session_source": "header", "link": "declared", "think_ns": 30 * S, "think_kind": "human",
            "tenant": np.arange(requests) % 3,
        },
    )  # fmt: skip


def written(folder: Path, rows: pl.DataFrame, days: int = 2, **more: Any) -> Profile:
    made: dict[str, Any] = {"source": {"kind": "test"}, "windows": [(0, days * DAY_NS)], "zero_wall_ns": WALL_NS}
    return write_profile(folder, rows, **(made | more))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def usual(folder: Path) -> Path:
    return written(folder / "usual", recorded()).path


def run(command: Any, *words: Any) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def labelled(text: str) -> dict[str, str]:
    """The labelled lines, their continuations joined."""
    found: dict[str, str] = {}
    label = ""
    for line in text.split("\n\n")[0].splitlines():
        label = line[:11].strip() or label
        found[label] = f"{found.get(label, '')} {line[11:]}".strip()
    return found


def test_show_describes_the_load_in_short_lines(usual: Path) -> None:
    printed = run(show, usual)
    assert printed.exit_code == 0, printed.output
    assert max(map(len, printed.stdout.replace(str(usual), "").splitlines())) <= 80
    lines = labelled(printed.stdout)
    assert lines["requests"] == "400 (ok 300, error 100)"
    assert lines["arrivals"].startswith("0.139 per minute, in a whole minute 0 to ")
    assert lines["spacing"].startswith("CV ")
    assert lines["burstiness"].startswith("Poisson-like; exponential (KS 0.0")
    assert lines["prompt"].startswith("p50 ")
    assert lines["prompt"].endswith("tokens, of 400 requests")
    assert lines["cached"].endswith("of the prompt tokens, a hit in 400 of 400 requests")
    assert lines["answers"] == "finish stop 400; 25.0 % errors; 100 % streamed; tokens by usage 400"
    assert lines["think time"] == "human p50 30.0 s, p90 30.0 s (400)"
    assert lines["languages"] == "hu 300, unknown 100"
    assert lines["tenants"] == "3; the largest sends 33.5 %"
    assert lines["days"].startswith("2, 0.")
    assert "chat_multi.hu          300    75 %" in printed.stdout
    assert "not known" not in lines


def test_show_full_adds_the_tables(usual: Path) -> None:
    text = render_show(read_profile(usual), full=True)
    assert max(map(len, text.replace(str(usual), "").splitlines())) <= 80
    assert text.startswith(render_show(read_profile(usual)))
    assert "share of requests, prompt tokens (down) by output tokens (across)" in text
    assert "2022-01-09" in text
    assert "chat_multi.hu       hu              300   75.0 %" in text
    assert "     0       134   33.5 %" in text


def test_the_joint_table_adds_up_to_everything(usual: Path) -> None:
    text = render_show(read_profile(usual), full=True)
    table = text.split("by output tokens (across)\n")[1].split("\n\n")[0].splitlines()[1:]
    shares = [cell for line in table for cell in line[8:].replace(" %", "%").split() if cell.endswith("%")]
    assert sum(float(share.rstrip("%")) for share in shares) == pytest.approx(100, abs=0.3)


def test_show_as_json_keeps_the_manifest_and_adds_the_character(usual: Path) -> None:
    shown = json.loads(run(show, usual, "--json").stdout)
    opened = read_profile(usual)
    assert {key: shown[key] for key in opened.manifest} == opened.manifest
    assert shown["sha256"] == opened.sha256
    assert [(each["workload"], each["requests"], each["ttft_p90_ns"]) for each in shown["classes"]] == [
        ("chat_multi.hu", 300, 200 * MS), ("code", 100, 200 * MS),
    ]  # fmt: skip
    character = shown["character"]
    assert character["coverage"]["requests"] == 400
    assert character["arrivals"]["burstiness"] == "Poisson-like"
    assert character["unknown"] == {}
    assert len(character["days"]) == 2


def test_a_trace_of_arrivals_alone_says_what_is_not_known(tmp_path: Path) -> None:
    rows = pl.DataFrame({"arrival_ns": [0, S, 2 * S], "workload": ["chat"] * 3})
    text = render_show(written(tmp_path / "p", rows, zero_wall_ns=None, windows=[(0, 3 * S)]))
    lines = labelled(text)
    assert lines["in flight"] == "not known: no request tells its end"
    assert lines["burstiness"].startswith("too few for a word")
    assert lines["not known"].startswith(
        "no request tells prompt tokens, output tokens, lengths of both sides, cached tokens,"
    )
    assert lines["not known"].endswith("burstiness: 2 inter-arrival times are too few for a word")
    assert max(map(len, text.splitlines()[1:])) <= 80


def test_quantised_arrivals_and_requests_of_no_tokens_are_said(tmp_path: Path) -> None:
    batches = np.repeat(np.arange(100) * 3 * S, 10)
    rows = pl.DataFrame({
        "arrival_ns": batches, "workload": "chat",
        "prompt_tokens": np.where(np.arange(1000) % 100 == 0, 0, 50),
        "output_tokens": np.where(np.arange(1000) % 100 == 0, 0, 50),
    })  # fmt: skip
    lines = labelled(render_show(written(tmp_path / "p", rows, windows=[(0, 150 * S), (200 * S, 300 * S)])))
    assert "arrivals come in batches of 3.00 s, here spread evenly over them (seed 0)" in lines["evened"]
    assert lines["spacing"].endswith("; 1 over a gap left out")
    assert lines["answers"] == "1.0 % errors (10 of 0 tokens)"
    # 17 batches of ten fall between the windows, and two of these requests have 0 tokens.
    assert lines["outside"].startswith("168 arrivals lie in no window")


def test_a_synthetic_profile_says_so_first(tmp_path: Path) -> None:
    text = render_show(written(tmp_path / "p", recorded(40), synthetic=True))
    assert "SYNTHETIC: nobody asked for this load" in labelled(text)["profile"]


def test_a_profile_without_requests_is_shown(tmp_path: Path) -> None:
    opened = written(tmp_path / "p", recorded(40).clear())
    assert "arrivals: no request arrived inside a window" in labelled(render_show(opened))["not known"]
    assert show_document(opened)["classes"] == []


def test_diff_keeps_another_sample_of_the_same_load(folder: Path) -> None:
    sides = [written(folder / f"sample{seed}", recorded(1600, seed)).path for seed in (3, 4)]
    printed = run(diff, *sides)
    assert printed.exit_code == 0, printed.output
    assert printed.stdout.startswith("keep: The load has not changed enough to reopen a decision.\n\n- ")
    assert max(map(len, printed.stdout.replace(str(folder), "").splitlines())) <= 80
    table = printed.stdout.split("\n\n")[3].splitlines()
    assert table[0].split() == ["quantity", "A", "B", "change", "matters?"]
    assert {line.rsplit("  ", 1)[1] for line in table[1:]} <= {"no", "(open)"}


def test_diff_reopens_with_the_verdict_first_and_code_5(usual: Path, folder: Path) -> None:
    other = written(folder / "longer", recorded(seed=2, prompt=2500.0)).path
    printed = run(diff, usual, other)
    assert printed.exit_code == 5
    lines = printed.stdout.splitlines()
    assert lines[0] == "reopen: The load has changed: a decision made on A is open again."
    assert lines[2].startswith("- all prompt p50: ")
    assert any(line.startswith("all prompt p50 ") and line.endswith("  yes") for line in lines)


def test_diff_cannot_tell_from_few_requests_and_ends_with_code_3(usual: Path, folder: Path) -> None:
    few = written(folder / "few", recorded(20, days=1), days=1).path
    printed = run(diff, usual, few)
    assert printed.exit_code in (3, 5)
    again = written(folder / "again", recorded(24, days=1), days=1).path
    document = json.loads(run(diff, few, again, "--json").stdout)
    assert document["verdict"] == "cannot tell"
    assert document["settle"]
    assert document["a"]["path"] == str(few)
    assert document["b"]["character"]["coverage"]["requests"] == 24
    assert run(diff, few, again).exit_code == 3


@pytest.mark.parametrize(("command", "words"), [(show, []), (diff, []), (diff, ["one"])])
def test_a_missing_argument_is_a_matter_of_usage(command: Any, words: list[str]) -> None:
    assert run(command, *words).exit_code == 2


@pytest.mark.parametrize("command", [show, diff])
def test_help_has_an_example(command: Any) -> None:
    assert "Example:" in run(command, "--help").stdout


def test_a_table_that_was_changed_is_refused(tmp_path: Path) -> None:
    opened = written(tmp_path / "p", recorded(40))
    table = opened.path / "requests.parquet"
    table.chmod(0o600)
    table.write_bytes(table.read_bytes()[:-8])
    failed = CliRunner().invoke(show, [str(opened.path)])
    assert isinstance(failed.exception, FormatError)


def test_a_profile_held_against_itself_is_kept(usual: Path) -> None:
    printed = run(diff, usual, usual)
    assert printed.exit_code == 0
    assert "A and B are the same profile" in printed.stdout
