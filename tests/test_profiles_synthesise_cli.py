"""The command `profile synthesise`: from a profile without text to one that can be sent."""

import stat
from pathlib import Path
from typing import Any

import msgspec
import orjson
import polars as pl
import pytest
from click.testing import CliRunner, Result

from profiles.cli import profile
from profiles.errors import FirsttokenError, FormatError, UsageError
from profiles.files import append_line, encode, make_folder, write_document, write_whole
from profiles.measurable import NEEDS_RECORDED_TEXT
from profiles.profile import Profile, read_profile
from profiles.records import Outcome, ResponseFacts
from profiles.runs import BOOT_FORMAT, FORMAT, VERSION
from profiles.segments import segments_frame
from profiles.units import SECOND_NS as S
from profiles.write import write_profile


def write_source(folder: Path, *, lengths: bool = True, segments: bool = True, **changes: list[Any]) -> Profile:
    """Four requests of one conversation, the last without a count; what one of them asked for cannot be kept."""
    sizes = [128 + 8 + 506 * turns for turns in (1, 2, 3, 4)]
    columns: dict[str, list[Any]] = {
        "arrival_ns": [at * S for at in range(4)],
        "end_ns": [at * S + S // 2 for at in range(4)],
        "outcome": ["ok"] * 4,
        "endpoint": ["chat"] * 4,
        "path": ["/v1/chat/completions"] * 4,
        "model": ["m"] * 4,
        "workload": ["chat_multi"] * 4,
        "workload_rule": ["test"] * 4,
        "stream": [True] * 4,
        "prompt_tokens": [150, 300, 450, None] if lengths else [None] * 4,
        "output_tokens": [20] * 4,
        "input_chars": sizes if lengths else [None] * 4,
        "tools": [0, 0, 0, 2],
        "response_format": [None, "json_schema", None, None],
        "blocks": [size // 64 for size in sizes],
        "prefix_ref": [None, 0, 1, 2],
        "prefix_blocks": [0, *(size // 64 for size in sizes[:3])],
    }
    frame = pl.DataFrame(columns | changes, schema_overrides={"prompt_tokens": pl.Int64, "input_chars": pl.Int64})
    shapes = [(row, [("system", 120), *[("user", 500)] * (row + 1)]) for row in range(4)]
    return write_profile(
        folder,
        frame,
        source={"kind": "test", "inputs": []},
        windows=[(0, 5 * S)],
        zero_wall_ns=10**18,
        segments=segments_frame(shapes) if segments else None,
        content="structure",
        prefix={"unit": "chars", "block": 64, "tail": "floor"},
    )


def run(*arguments: object) -> Result:
    return CliRunner().invoke(profile, ["synthesise", *map(str, arguments)], catch_exceptions=True)


def refused(*arguments: object) -> FirsttokenError:
    error = run(*arguments).exception
    assert isinstance(error, FirsttokenError), error
    return error


def test_the_new_profile_has_the_same_requests_and_words_for_their_prompts(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    result = run(source.path, "-o", tmp_path / "out", "--seed", 7)
    assert result.exit_code == 0, result.exception
    assert result.stdout == f"{tmp_path / 'out'}\n"
    made = read_profile(tmp_path / "out")
    made.verify()
    old, new = source.frame().collect(), made.frame().collect()
    changed = ["body", "prompt_tokens", "token_source"]
    assert new.drop(changed).equals(old.drop(changed))
    assert new["body"].to_list() == [True] * 4
    assert new["prompt_tokens"].to_list() == [150, 300, 450, 538]  # 2,152 characters at 4 a token
    assert new["token_source"].to_list()[3] == "estimated"
    bodies = {row: orjson.loads(body) for row, body in made.bodies().items()}
    assert [len(" ".join(m["content"] for m in bodies[row]["messages"]).split()) for row in range(3)] == [150, 300, 450]
    assert [message["role"] for message in bodies[2]["messages"]] == ["system", "user", "user", "user"]
    assert bodies[0]["messages"][0] == bodies[2]["messages"][0]
    assert bodies[0]["max_tokens"] == 20
    manifest = made.manifest
    assert (manifest["content"], manifest["synthetic"]) == ("synthetic", False)
    assert manifest["not_measurable"] == list(NEEDS_RECORDED_TEXT)
    assert manifest["inputs"] == [{"name": "source", "sha256": source.sha256}]
    assert manifest["source"]["seed"] == 7
    assert manifest["source"]["round_trip"]["error_mean"] < 1
    assert manifest["prefix"] == source.manifest["prefix"]
    assert stat.S_IMODE((tmp_path / "out" / "bodies.jsonl.zst").stat().st_mode) == 0o600
    for said in ("1 of 4 asked for JSON", "1 of 4 had tools", "1 of 4 have no token count", "prefix hits"):
        assert said in result.stderr


def test_the_same_seed_makes_the_same_bodies(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run(source.path, "-o", tmp_path / name, "--seed", seed).exit_code == 0
    one, same, other = (read_profile(tmp_path / name).bodies() for name in "abc")
    assert one == same != other


def test_json_prints_the_figures_and_what_is_lost(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", segments=False)
    result = run(source.path, "-o", tmp_path / "out", "--json", "--template-tokens", 10)
    document = orjson.loads(result.stdout)
    assert document["profile"] == str(tmp_path / "out")
    assert document["round_trip"]["prompts"] == 4
    assert document["calibration"] == {"template_tokens": 10, "tokens_per_word": 1.0}
    assert document["notes"][0].startswith("sizes of messages are not known")
    made = read_profile(tmp_path / "out").bodies()
    assert len(orjson.loads(made[0])["messages"][0]["content"].split()) == 140


def write_run(folder: Path, replayed: Profile, counted: dict[int, int]) -> Path:
    """A run whose engine counted so many tokens of these rows."""
    make_folder(folder / "boots" / "01-01-v0")
    stated = {"path": str(replayed.path), "sha256": replayed.sha256}
    write_document(folder / "manifest.json", {"format": FORMAT, "version": VERSION, "profile": stated})
    boot = {"format": BOOT_FORMAT, "version": 1, "arm": "v0", "block": 1, "slot": 1, "status": "done", "argv": []}
    write_whole(folder / "boots" / "01-01-v0" / "boot.json", encode(boot | {"wall_ns": 0, "mono_ns": 0}))
    for row, tokens in counted.items():
        response = ResponseFacts(prompt_tokens=tokens)
        line = Outcome(window="w", c=1, index=row, request=row, workload="x", end_ns=1, outcome="ok", response=response)
        append_line(folder / "boots" / "01-01-v0" / "outcomes.jsonl", msgspec.json.encode(line))
    return folder


def test_a_run_calibrates_the_next_one(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    assert run(source.path, "-o", tmp_path / "first").exit_code == 0
    replayed = write_run(tmp_path / "run", read_profile(tmp_path / "first"), {0: 162, 1: 312, 2: 462, 3: 9999})
    result = run(source.path, "-o", tmp_path / "second", "--calibrate", replayed)
    assert result.exit_code == 0, result.exception
    made = read_profile(tmp_path / "second")
    # Row 3 brings tools, around which a template writes more: it is not counted.
    assert made.manifest["source"]["calibration"] == {"template_tokens": 12, "tokens_per_word": 1.0}
    bodies = made.bodies()
    assert len(" ".join(m["content"] for m in orjson.loads(bodies[0])["messages"]).split()) == 138


def test_words_that_are_not_tokens_are_said_with_their_ratio(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    assert run(source.path, "-o", tmp_path / "first").exit_code == 0
    replayed = write_run(tmp_path / "run", read_profile(tmp_path / "first"), {0: 180, 1: 360, 2: 540})
    result = run(source.path, "-o", tmp_path / "second", "--calibrate", replayed)
    assert "a word is 1.200 tokens here" in result.stderr
    assert read_profile(tmp_path / "second").manifest["source"]["calibration"]["tokens_per_word"] == pytest.approx(1.2)


def test_bad_input_is_refused_with_a_way_out(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    bare = write_source(tmp_path / "bare", lengths=False, segments=False, blocks=[0] * 4, prefix_blocks=[0] * 4)
    error = refused(bare.path, "-o", tmp_path / "out")
    assert isinstance(error, UsageError)
    assert "no length of any prompt is known" in error.problem
    broken = write_source(tmp_path / "broken", prefix_ref=[None, 0, 1, 3])
    error = refused(broken.path, "-o", tmp_path / "out")
    assert isinstance(error, FormatError)
    assert "request 3 cannot share" in error.problem
    error = refused(source.path, "-o", tmp_path / "out", "--calibrate", source.path, "--template-tokens", 3)
    assert "--calibrate finds" in error.problem
    other = write_run(tmp_path / "run", source, {0: 100})
    assert "did not replay" in refused(source.path, "-o", tmp_path / "out", "--calibrate", other).problem
    assert "exists" in refused(source.path, "-o", source.path).problem
    assert not (tmp_path / "out").exists()
