"""Captures to a profile and back, on captures written by the recorder's own functions."""

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import polars
import pytest
from handmade_capture import CHAT, WALL, exchange, run, write_capture, write_monday
from locked_folder import LOCKS, locked

from profiles import write as write_module
from profiles.build import build_profile, read_stays
from profiles.capture_folder import HASH_KEY
from profiles.classify import read_rules, what_is_unseen
from profiles.cli import profile
from profiles.concurrency_cli import concurrency
from profiles.errors import FirsttokenError, FormatError, UsageError
from profiles.files import encode, write_document
from profiles.lengths import quantile
from profiles.profile import ProfileRow, read_profile
from profiles.records import RequestFacts
from profiles.sweep import sweep
from profiles.units import MILLISECOND_NS as MS
from profiles.units import SECOND_NS as S

PRETTY = b'{\n  "model": "m",\n  "messages": [{"role": "user", "content": "h\xc3\xa9"}]\n}\n'
BROKEN = b'{"model":"\xff"}'


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    return write_monday(tmp_path)


def test_rows_are_in_order_of_arrival_from_the_zero_of_the_first_window(tmp_path: Path, captured: Path) -> None:
    build_profile([captured], tmp_path / "p")
    rows = read_profile(tmp_path / "p").rows()
    assert [row.arrival_ns for row in rows] == [10 * S, 11 * S, 30 * S, 40 * S]
    assert rows[1] == ProfileRow(
        request=1, arrival_ns=11 * S, dispatch_ns=11 * S + MS, first_token_ns=11 * S + 100 * MS, end_ns=15 * S,
        ttft_ns=100 * MS, status=200, outcome="ok", endpoint="chat", path="/v1/chat/completions", model="m",
        stream=True, prompt_tokens=20, output_tokens=40, token_source="usage", finish="stop", input_chars=2,
        system_chars=0, messages=1, user_turns=1, last_role="user", tools=0, tool_results=0, images=0,
        audios=0, videos=0, max_tokens=64,
        n=1, reasoning=False, code_share=0.0, workload="chat_single", workload_rule="one user turn", in_flight=1,
        capture=0, body=False, late_ns=7,
    )  # fmt: skip
    assert [row.workload for row in rows] == ["chat_single", "chat_single", "rag_2k", "chat_single"]
    assert (rows[3].ttft_ns, rows[3].first_token_ns, rows[3].output_tokens) == (None, None, None)


def test_the_manifest(tmp_path: Path, captured: Path) -> None:
    build_profile([captured], tmp_path / "p", now_wall_ns=lambda: 123)
    manifest = read_profile(tmp_path / "p").manifest
    files, inputs, tool = manifest.pop("files"), manifest.pop("inputs"), manifest.pop("tool")
    assert manifest.pop("rules")["file"] == "classes.toml"
    assert manifest.pop("unseen") == what_is_unseen(
        polars.read_parquet(tmp_path / "p" / "requests.parquet"), read_rules()
    )
    assert manifest.pop("sessions_told_by").startswith("sessions: unknown, for the requests carry neither")
    assert manifest == {
        "format": "firsttoken/profile",
        "version": 1,
        "created_wall_ns": 123,
        "zero_wall_ns": WALL,
        "source": {"kind": "capture"},
        "synthetic": False,
        "windows": [[0, 100 * S]],
        "observed_ns": 100 * S,
        "requests": 4,
        "unfinished": [[90 * S, 100 * S]],
        "outcomes": {"ok": 3, "error": 1},
        "dropped": {"recorder": 0, "not_post": 1, "unfinished": 1},
        "content": "none",
        "bodies": 0,
        "models": {"m": 4},
        "workloads": {"chat_single": {"requests": 3, "share": 0.75}, "rag_2k": {"requests": 1, "share": 0.25}},
        "sessions": {"none": 4},
        "prefix": None,
        "operating_point": {"levels": [1, 2], "weights": {"1": 0.8, "2": 0.2}, "cover": 0.95, "reached": 1.0, "max": 2},
        "not_measurable": ["acceptance", "guided decoding cost", "output equality"],
        "warnings": [],
    }
    assert sorted(files) == ["concurrency.parquet", "requests.parquet"]
    assert [(each["name"], list(each["segments"])) for each in inputs] == [("monday", ["segment-000000.jsonl"])]
    assert tool.startswith("firsttoken")


def test_the_columns_have_their_types(tmp_path: Path, captured: Path) -> None:
    build_profile([captured], tmp_path / "p")
    schema = polars.read_parquet_schema(tmp_path / "p" / "requests.parquet")
    assert list(schema) == [field.name for field in msgspec.structs.fields(ProfileRow)]
    expected = {"request": "UInt32", "arrival_ns": "Int64", "ttft_ns": "Int64", "temperature": "Float64"}
    expected |= {"stream": "Boolean", "origin": "String"}
    assert {name: str(schema[name]) for name in expected} == expected


def test_concurrency_counts_the_unfinished_one_and_not_the_poll(tmp_path: Path, captured: Path) -> None:
    build_profile([captured], tmp_path / "p")
    found = read_profile(tmp_path / "p").concurrency()
    assert found.time_ns_at == {0: 77 * S, 1: 19 * S, 2: 4 * S}
    assert found.arrivals_at == {1: 4, 2: 1}
    assert found.duration_sum_ns == 27 * S
    stays, warnings = read_stays([captured])
    assert (sweep(stays), warnings) == (found, [])


def test_a_class_counts_its_own_time_and_its_arrivals_by_the_total(tmp_path: Path) -> None:
    write_capture(
        tmp_path / "c",
        [
            (exchange("a", 10 * S, 20 * S), None),
            (exchange("b", 15 * S, 25 * S, tokens=(2_000, 40)), None),
            (exchange("c", 60 * S, 61 * S), None),
        ],
    )
    build_profile([tmp_path / "c"], tmp_path / "p")
    opened = read_profile(tmp_path / "p")
    rag, chat, every = (opened.concurrency(scope) for scope in ("rag_2k", "chat_single", "all"))
    assert (rag.time_ns_at, rag.arrivals_at) == ({0: 90 * S, 1: 10 * S}, {2: 1})
    assert (chat.time_ns_at, chat.arrivals_at) == ({0: 89 * S, 1: 11 * S}, {1: 2})
    assert every.arrivals_at == {1: 2, 2: 1}


def test_the_column_in_flight_agrees_with_the_histogram(tmp_path: Path, captured: Path) -> None:
    build_profile([captured], tmp_path / "p")
    assert [row.in_flight for row in read_profile(tmp_path / "p").rows()] == [0, 1, 0, 0]


def test_bodies_come_back_byte_for_byte_under_their_rows(tmp_path: Path) -> None:
    given = [CHAT, PRETTY, BROKEN, None]
    write_capture(
        tmp_path / "c", [(exchange(str(at), (9 - at) * S, 20 * S, body or b""), body) for at, body in enumerate(given)]
    )
    build_profile([tmp_path / "c"], tmp_path / "p")
    opened = read_profile(tmp_path / "p")
    assert opened.bodies() == {1: BROKEN, 2: PRETTY, 3: CHAT}
    assert [row.body for row in opened.rows()] == [False, True, True, True]
    assert (opened.manifest["content"], opened.manifest["bodies"], opened.manifest["not_measurable"]) == ("full", 3, [])
    assert "bodies.jsonl.zst" in opened.manifest["files"]


def test_a_body_that_is_json_is_a_line_of_openai_batch(tmp_path: Path) -> None:
    import zstandard

    write_capture(tmp_path / "c", [(exchange("a", S, 2 * S), CHAT)])
    build_profile([tmp_path / "c"], tmp_path / "p")
    with zstandard.open(tmp_path / "p" / "bodies.jsonl.zst", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    assert lines == [{"custom_id": "0", "method": "POST", "url": "/v1/chat/completions", "body": json.loads(CHAT)}]


def test_a_profile_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_capture(tmp_path / "c", [(exchange("a", S, 2 * S), CHAT)])
    build_profile([tmp_path / "c"], tmp_path / "new" / "p")
    folder = tmp_path / "new" / "p"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "manifest.json": 0o600,
        "requests.parquet": 0o600,
        "concurrency.parquet": 0o600,
        "segments.parquet": 0o600,
        "bodies.jsonl.zst": 0o600,
    }
    assert [path.name for path in folder.parent.iterdir()] == ["p"]


def test_captures_of_two_hosts_merge_on_the_wall_clock(tmp_path: Path) -> None:
    one = write_capture(tmp_path / "one", [(exchange("a", 10 * S, 20 * S), None)], close_ns=50 * S)
    other = write_capture(
        tmp_path / "other", [(exchange("a", 5 * S, 7 * S), None)], close_ns=50 * S, wall_ns=WALL + 100 * S
    )
    built = build_profile([other, one], tmp_path / "p")
    opened = read_profile(tmp_path / "p")
    assert opened.manifest["windows"] == [[0, 50 * S], [100 * S, 150 * S]]
    assert [(row.arrival_ns, row.capture) for row in opened.rows()] == [(10 * S, 1), (105 * S, 0)]
    assert built.warnings == []


def test_overlapping_captures_are_added_up_and_said_so(tmp_path: Path) -> None:
    one = write_capture(tmp_path / "one", [(exchange("a", 10 * S, 20 * S), None)], close_ns=50 * S)
    other = write_capture(
        tmp_path / "other",
        [(exchange("a", 5 * S, 7 * S), None)],
        close_ns=50 * S,
        wall_ns=WALL + 10 * S,
        unfinished=[30 * S],
    )
    built = build_profile([one, other], tmp_path / "p")
    opened = read_profile(tmp_path / "p")
    assert opened.manifest["observed_ns"] == 60 * S
    assert opened.concurrency().arrivals_at == {1: 2, 2: 1}
    assert opened.concurrency().time_ns_at == {0: 30 * S, 1: 28 * S, 2: 2 * S}
    (warning,) = built.warnings
    assert "overlap in time" in warning
    assert opened.manifest["warnings"] == built.warnings


def test_a_capture_given_twice_is_refused(tmp_path: Path, captured: Path) -> None:
    with pytest.raises(UsageError, match="is given twice"):
        build_profile([captured, tmp_path / "." / "monday"], tmp_path / "p")


def test_an_empty_capture_is_refused_with_what_it_held(tmp_path: Path) -> None:
    empty = write_capture(tmp_path / "empty", [])
    with pytest.raises(FormatError, match="no requests in this capture"):
        build_profile([empty], tmp_path / "p")
    polls = write_capture(tmp_path / "polls", [(exchange("a", S, 2 * S, method="GET"), None)])
    with pytest.raises(FormatError, match=r"no requests in this capture \(1 that are not POST\)"):
        build_profile([polls], tmp_path / "p")
    waiting = write_capture(tmp_path / "waiting", [], unfinished=[S])
    with pytest.raises(FormatError, match="no request was seen to end"):
        build_profile([waiting], tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_profile_is_replaced_only_by_force(tmp_path: Path, captured: Path) -> None:
    out = tmp_path / "p"
    build_profile([captured], out, now_wall_ns=lambda: 1)
    with pytest.raises(UsageError, match="exists") as caught:
        build_profile([captured], out)
    assert "--force" in caught.value.hint
    build_profile([captured], out, force=True, now_wall_ns=lambda: 2)
    assert read_profile(out).manifest["created_wall_ns"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["monday", "p"]


def test_force_replaces_nothing_that_we_did_not_make(tmp_path: Path, captured: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    for taken in ("folder", "file", "monday"):
        with pytest.raises(UsageError, match="exists and is not a profile"):
            build_profile([captured], tmp_path / taken, force=True)
    build_profile([captured], tmp_path / "p")
    (tmp_path / "p" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds notes\.txt, which no profile has"):
        build_profile([captured], tmp_path / "p", force=True)
    (tmp_path / "link").symlink_to(tmp_path / "p")
    (tmp_path / "p" / "notes.txt").unlink()
    with pytest.raises(UsageError, match="is a symbolic link"):
        build_profile([captured], tmp_path / "link", force=True)
    read_profile(tmp_path / "p").verify()


def test_a_build_that_fails_half_way_leaves_nothing(
    tmp_path: Path, captured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_profile([captured], tmp_path / "p", now_wall_ns=lambda: 1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write_module, "write_document", full)
    for out, force in (("new", False), ("p", True)):
        with pytest.raises(FirsttokenError, match="No space left"):
            build_profile([captured], tmp_path / out, force=force)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["monday", "p"]
    assert read_profile(tmp_path / "p").manifest["created_wall_ns"] == 1


def test_a_changed_file_does_not_verify(tmp_path: Path, captured: Path) -> None:
    build_profile([captured], tmp_path / "p")
    opened = read_profile(tmp_path / "p")
    opened.verify()
    table = tmp_path / "p" / "requests.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"?")
    with pytest.raises(FormatError, match=r"requests\.parquet: its sha256 is not the one in the manifest"):
        opened.verify()
    with pytest.raises(FormatError, match=r"requests\.parquet: not a readable Parquet file"):
        opened.rows()
    table.unlink()
    with pytest.raises(FormatError, match=r"requests\.parquet: no such file"):
        opened.verify()


def test_the_sha256_of_a_profile_is_that_of_its_manifest(tmp_path: Path, captured: Path) -> None:
    import hashlib

    build_profile([captured], tmp_path / "p")
    manifest = (tmp_path / "p" / "manifest.json").read_bytes()
    assert read_profile(tmp_path / "p").sha256 == hashlib.sha256(manifest).hexdigest()


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ({"format": "firsttoken/capture", "version": 1}, "its format is 'firsttoken/capture'"),
        ({"format": "firsttoken/profile", "version": 2}, "version 2 cannot be read"),
        ({"format": "firsttoken/profile", "version": 1}, "its key observed_ns is missing or is not int"),
    ],
)
def test_what_is_no_profile_says_so(tmp_path: Path, manifest: dict[str, Any], problem: str) -> None:
    (tmp_path / "manifest.json").write_bytes(encode(manifest))
    with pytest.raises(FormatError, match=problem):
        read_profile(tmp_path)


def test_a_path_that_is_no_profile_says_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such directory"):
        read_profile(tmp_path / "none")


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [
        ([], 0.5, None),
        ([7], 0.9, 7),
        ([3, 1, 2], 0.5, 2),
        ([1, 2, 3, 4], 0.5, 2),
        (list(range(1, 11)), 0.9, 9),
        ([1, 2], 0.0, 1),
    ],
)
def test_a_quantile_is_one_of_the_values(values: list[int], share: float, found: int | None) -> None:
    assert quantile(values, share) == found


def test_a_requests_table_without_its_columns_names_the_file(tmp_path: Path, captured: Path) -> None:
    build_profile([captured], tmp_path / "p")
    table = tmp_path / "p" / "requests.parquet"
    polars.read_parquet(table).drop("workload").write_parquet(table)
    with pytest.raises(FormatError, match=r"requests\.parquet: .*workload"):
        read_profile(tmp_path / "p").rows()


def test_request_facts_alone_are_enough_to_build(tmp_path: Path) -> None:
    """A body that the recorder could not read is still a row, of a class that says so."""
    unread = msgspec.structs.replace(exchange("a", S, 2 * S), request=RequestFacts(unread="not JSON"))
    write_capture(tmp_path / "c", [(unread, None)])
    build_profile([tmp_path / "c"], tmp_path / "p")
    (row,) = read_profile(tmp_path / "p").rows()
    assert (row.workload, row.model) == ("unknown", None)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_capture_of_another_user_is_a_matter_of_usage(tmp_path: Path, lock: str) -> None:
    (tmp_path / "place").mkdir()
    folder = write_capture(tmp_path / "place" / "c", [(exchange("a", S, 2 * S), None)])
    (folder / HASH_KEY).write_bytes(b"k" * 32)
    build_profile([folder], tmp_path / "warm")  # loads what is loaded late, before we are nobody
    (folder / HASH_KEY).write_bytes(b"k" * 32)
    for command, words in ((concurrency, [folder]), (profile, ["build", folder, "-o", folder.parent / "p"])):
        with locked(folder, lock), pytest.raises(UsageError, match="may not be read by this user") as caught:
            run(command, *words)
        assert caught.value.hint
    assert (folder / HASH_KEY).exists()


def test_a_place_where_nothing_can_be_made_is_said(tmp_path: Path, captured: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FirsttokenError, match="cannot be written") as caught:
        build_profile([captured], tmp_path / "file" / "sub" / "p")
    assert caught.value.hint


def test_a_capture_whose_segments_are_gone_says_that_they_were_purged(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "c", [])
    (folder / "segment-000000.jsonl").unlink()
    document = {"format": "firsttoken/capture", "version": 1, "purged": {"segments": 3, "bytes": 9}}
    write_document(folder / "manifest.json", document)
    with pytest.raises(FormatError, match="3 of its segments were purged") as caught:
        run(concurrency, folder)
    assert "traffic" not in caught.value.hint
