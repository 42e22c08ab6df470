"""A profile goes out in the formats of others, and says what it loses."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from public_traces import DATA, needs_traces

from profiles.errors import FirsttokenError, UsageError
from profiles.prefixes import hit_rates, link
from profiles.profile import Profile, read_profile
from profiles.traces.cli import export, import_
from profiles.traces.formats import EXPORTS, IMPORTS
from profiles.traces.imported import Asked
from profiles.write import write_profile

SECOND_NS = 10**9


def run(command: Any, *arguments: str | Path) -> str:
    """Stderr of a command. Raises the error of ours that it ends with."""
    done = CliRunner().invoke(command, [*map(str, arguments)])
    if isinstance(done.exception, FirsttokenError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stderr


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def small(tmp_path: Path) -> Profile:
    """Two sessions, shared prefixes in blocks of 16 tokens, one failed request, all bodies but one."""
    requests = pl.DataFrame(
        {
            "arrival_ns": [0, 1_500_000_000, 2_000_000_001, 9 * SECOND_NS, 10 * SECOND_NS],
            "end_ns": [SECOND_NS, 2 * SECOND_NS, 3 * SECOND_NS, 9 * SECOND_NS, 11 * SECOND_NS],
            "prompt_tokens": [100, 40, 150, None, 70],
            "output_tokens": [20, 5, 10, None, 3],
            "outcome": ["ok", "ok", "ok", "error", "ok"],
            "endpoint": ["chat"] * 5,
            "path": ["/v1/chat/completions"] * 5,
            "session": [0, None, 0, None, 0],
            "turn": [0, None, 1, None, 2],
            "parent": [None, None, 0, None, 2],
            "think_ns": [None, None, 1_000_000_001, None, 7 * SECOND_NS],
            "deps": [None, None, [0, 1], None, None],
            "blocks": [7, 3, 10, None, 5],
            "prefix_ref": [None, 0, 0, None, 2],
            "prefix_blocks": [0, 2, 6, None, 4],
            "body": [True, True, True, False, True],
        }
    )  # fmt: skip
    bodies = [
        (at, json.dumps({"model": "m", "messages": [{"role": "user", "content": f"q{at}"}]}).encode())
        for at in (0, 1, 2, 4)
    ]
    return write_profile(
        tmp_path / "small.profile",
        requests,
        source={"kind": "test"},
        windows=[(0, 12 * SECOND_NS)],
        zero_wall_ns=1_700_000_000 * SECOND_NS,
        bodies=bodies,
        content="full",
        prefix={"unit": "tokens", "block": 16, "tail": "ceil"},
    )


@needs_traces
@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_mooncake_in_and_out_has_the_same_lengths_and_isomorphic_ids(tmp_path: Path, trace: str) -> None:
    source = DATA / f"mooncake/{trace}_trace.jsonl"
    run(import_, "mooncake", source, "-o", tmp_path / "p")
    told = run(export, "mooncake", tmp_path / "p", "-o", tmp_path / "out.jsonl")
    before, after = lines_of(source), lines_of(tmp_path / "out.jsonl")

    fields = ("timestamp", "input_length", "output_length")
    assert [[row[key] for key in fields] for row in after] == [[row[key] for key in fields] for row in before]
    there: dict[int, int] = {}
    back: dict[int, int] = {}
    for old, new in zip(before, after, strict=True):
        assert len(old["hash_ids"]) == len(new["hash_ids"])
        for first, second in zip(old["hash_ids"], new["hash_ids"], strict=True):
            assert there.setdefault(first, second) == second
            assert back.setdefault(second, first) == first
    assert "arrivals below a millisecond" in told
    if trace == "conversation":
        rate = hit_rates([row["hash_ids"] for row in after], [row["input_length"] for row in after], 512)
        assert (rate.cold, rate.second_half) == (0.3736237491291324, 0.3981127342350043)


@needs_traces
def test_larger_blocks_share_only_what_fills_them(tmp_path: Path) -> None:
    run(import_, "mooncake", DATA / "mooncake/synthetic_trace.jsonl", "-o", tmp_path / "p")
    run(export, "mooncake", tmp_path / "p", "-o", tmp_path / "out.jsonl", "--block", "1024")
    rows = lines_of(tmp_path / "out.jsonl")
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // 1024) for row in rows)
    links = link(row["hash_ids"] for row in rows)
    fine = (
        read_profile(tmp_path / "p").frame(["prompt_tokens", "blocks", "prefix_ref", "prefix_blocks"]).collect().rows()
    )
    expected = []
    for tokens, blocks, ref, shared in fine:
        # The same prompt again shares its partial block too.
        again = ref is not None and shared == blocks == fine[ref][1] and tokens == fine[ref][0]
        expected.append(-(-tokens // 1024) if again else min(shared * 512, tokens) // 1024)
    assert links.columns().prefix_blocks.tolist() == expected
    assert links.unchained == 0


def test_a_timed_trace_has_seconds_and_the_options_of_vllm(small: Profile, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    told = run(export, "vllm-timed-trace", small.path, "-o", out, "--block", "16")
    assert lines_of(out) == [
        {"timestamp": 0.0, "input_length": 100, "output_length": 20, "hash_ids": [*range(7)]},
        {"timestamp": 1.5, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 7]},
        {"timestamp": 2.000000001, "input_length": 150, "output_length": 10, "hash_ids": [*range(6), 8, 9, 10, 11]},
        {"timestamp": 10.0, "input_length": 70, "output_length": 3, "hash_ids": [0, 1, 2, 3, 12]},
    ]  # fmt: skip
    assert "--self-timed --timed-trace-chunk-hash-size 16 --timed-trace-sec-multiplier 1" in told
    assert "--num-prompts 4" in told
    assert "1 of 5 requests, whose lengths are not known" in told
    found = IMPORTS["vllm-timed-trace"].read(out, Asked())
    assert found.requests["arrival_ns"].to_list() == [0, 1_500_000_000, 2_000_000_001, 10 * SECOND_NS]


def test_aiperf_gets_what_is_new_in_each_turn(small: Profile, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    told = run(export, "aiperf", small.path, "-o", out, "--block", "16")
    assert lines_of(out) == [
        {"session_id": "s0", "timestamp": 0, "input_length": 100, "output_length": 20, "hash_ids": [*range(7)]},
        {"timestamp": 1500, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 7]},
        {"session_id": "s0", "delay": 1000, "input_length": 30, "output_length": 10},
        # Shorter than what went before: no chain that only grows.
        {"session_id": "s1", "timestamp": 10_000, "input_length": 70, "output_length": 3, "hash_ids": [0, 1, 2, 3, 12]},
    ]  # fmt: skip
    assert "our answers before 1 later turns" in told
    found = IMPORTS["mooncake"].read(out, Asked(block=16))
    assert found.requests["prompt_tokens"].to_list() == [
        100,
        150,
        40,
        70,
    ]  # by arrival: the turn's is not known exactly


def test_aiperf_payloads_are_whole_bodies(small: Profile, tmp_path: Path) -> None:
    run(export, "aiperf", small.path, "-o", tmp_path / "a.jsonl", "--payload")
    rows = lines_of(tmp_path / "a.jsonl")
    assert [row["payload"]["messages"][0]["content"] for row in rows] == ["q0", "q1", "q2", "q4"]
    assert [row["timestamp"] for row in rows] == [0, 1500, 2000, 10_000]
    assert [row.get("session_id") for row in rows] == ["s0", None, "s0", "s0"]


def test_guidellm_gets_lengths_in_seconds(small: Profile, tmp_path: Path) -> None:
    told = run(export, "guidellm", small.path, "-o", tmp_path / "g.jsonl")
    assert lines_of(tmp_path / "g.jsonl")[1] == {"timestamp": 1.5, "input_length": 40, "output_length": 5}
    assert "not in the file: shared prefixes" in told
    assert "trace_synthetic" in told


def test_openai_batch_goes_out_and_in_again(small: Profile, tmp_path: Path) -> None:
    out = tmp_path / "b.jsonl"
    told = run(export, "openai-batch", small.path, "-o", out)
    rows = lines_of(out)
    assert [row["custom_id"] for row in rows] == ["0", "1", "2", "4"]
    assert rows[0] | {"body": None} == {"custom_id": "0", "method": "POST", "url": "/v1/chat/completions", "body": None}
    assert "1 requests without a body" in told
    run(import_, "openai-batch", out, "-o", tmp_path / "again", "--bodies", "full")
    again = read_profile(tmp_path / "again")
    assert list(again.bodies().values()) == list(small.bodies().values())
    assert {"arrivals", "concurrency"} <= set(again.manifest["not_measurable"])
    run(import_, "openai-batch", out, "-o", tmp_path / "bare")
    assert read_profile(tmp_path / "bare").bodies() == {}


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_our_own_table_goes_out_and_in_again(small: Profile, tmp_path: Path, name: str) -> None:
    out = tmp_path / f"t.{name}"
    run(export, name, small.path, "-o", out)
    assert out.stat().st_mode & 0o777 == 0o600
    run(import_, name, out, "-o", tmp_path / "again")
    again = read_profile(tmp_path / "again")
    lost = ["body", "capture", *(["blocks", "prefix_ref", "prefix_blocks"] if name == "csv" else [])]
    before, after = (profile.frame().drop(lost).collect() for profile in (small, again))
    assert after.equals(before), [name for name in before.columns if not after[name].equals(before[name])]
    if name == "parquet":
        assert again.manifest["windows"] == small.manifest["windows"]
        assert again.manifest["zero_wall_ns"] == small.manifest["zero_wall_ns"]
        assert again.manifest["prefix"] == small.manifest["prefix"]


@pytest.mark.parametrize("name", EXPORTS)
def test_a_file_is_never_overwritten_without_force(small: Profile, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        run(export, name, small.path, "-o", out)
    assert out.read_text() == "mine"
    run(export, name, small.path, "-o", out, "--force")
    assert out.stat().st_mode & 0o777 == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("openai-batch", "--payload"), "make no sense"),
        (("guidellm", "--block", "16"), "no block ids"),
        (("mooncake", "--payload"), "makes no sense"),
        (("weka",), "is not a format to export to"),
    ],
)
def test_what_makes_no_sense_is_refused(
    small: Profile, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    name, *options = arguments
    with pytest.raises(UsageError, match=problem):
        run(export, name, small.path, "-o", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_without_bodies_no_body_is_exported(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("0,1\n2,3\n")
    run(import_, "intervals", log, "-o", tmp_path / "p")
    with pytest.raises(UsageError, match="holds no bodies"):
        run(export, "openai-batch", tmp_path / "p", "-o", tmp_path / "out")
    with pytest.raises(FirsttokenError, match="no request of it has both lengths"):
        run(export, "mooncake", tmp_path / "p", "-o", tmp_path / "out")


def test_the_formats_are_listed() -> None:
    for command, table in ((import_, IMPORTS), (export, EXPORTS)):
        shown = CliRunner().invoke(command, ["--list"])
        assert shown.exit_code == 0
        lines = shown.stdout.splitlines()
        assert [line.split()[0] for line in lines] == list(table)
        assert max(map(len, lines)) <= 80


def test_help_has_an_example_and_fits_the_screen() -> None:
    for command in (import_, export):
        shown = CliRunner().invoke(command, ["--help"])
        assert "Example" in shown.stdout
        assert max(map(len, shown.stdout.splitlines())) <= 80
