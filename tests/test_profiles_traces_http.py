"""HAR and flow files: no first token is made up, and no header gets into a profile."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from public_traces import DATA, needs_traces

from profiles.errors import FirsttokenError, FormatError
from profiles.profile import read_profile
from profiles.traces.cli import import_
from profiles.traces.formats import IMPORTS
from profiles.traces.imported import Asked, Imported

OWN = DATA / "own"
KEY = "test-placeholder"


def read(path: Path, **options: Any) -> Imported:
    return IMPORTS[path.suffix[1:]].read(path, Asked(**options))


def entry(start: str = "2026-11-30T12:00:00.000Z", **changes: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    answer = {
        "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }
    return {
        "startedDateTime": start,
        "time": 12.345678,
        "request": {
            "method": "POST",
            "url": "http://gateway/v1/chat/completions?key=sk-query-1234567890",
            "headers": [{"name": "Authorization", "value": f"Bearer {KEY}"}, {"name": "X-Session-Id", "value": "s-7"}],
            "cookies": [{"name": "c", "value": "cookie-value"}],
            "postData": {"mimeType": "application/json", "text": json.dumps(body)},
        },
        "response": {
            "status": 200,
            "headers": [
                {"name": "content-type", "value": "application/json"},
                {"name": "set-cookie", "value": "cookie-value"},
            ],
            "content": {"text": json.dumps(answer)},
        },
    } | changes


def har(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}))
    return path


@needs_traces
@pytest.mark.parametrize("name", ["buffered.har", "callable.har", "buffered.mitm", "streamtrue.mitm"])
def test_the_headers_of_an_answer_are_never_its_first_token(name: str) -> None:
    found = read(OWN / name)
    assert found.requests["first_token_ns"].null_count() == found.requests.height == 2
    assert any("TTFT unknown" in note for note in found.notes)


@needs_traces
def test_instants_of_the_pieces_give_the_first_token() -> None:
    found = read(OWN / "callable.mitm")
    assert found.requests["ttft_ns"].to_list() == [335_984_300, None]
    assert found.requests["output_tokens"].to_list() == [10, 1]


@needs_traces
def test_both_kinds_of_file_tell_the_same_of_the_same_traffic() -> None:
    facts = [
        "model",
        "stream",
        "prompt_tokens",
        "output_tokens",
        "finish",
        "outcome",
        "messages",
        "response_format",
        "path",
    ]
    flows, entries = read(OWN / "buffered.mitm"), read(OWN / "buffered.har")
    assert flows.requests.select(facts).equals(entries.requests.select(facts))
    assert flows.requests["prompt_tokens"].to_list() == [8, 6]
    assert flows.zero_wall_ns is not None
    assert entries.zero_wall_ns == flows.zero_wall_ns == 1_796_042_954_515_360_000
    assert entries.requests["end_ns"][0] == 858_695_745  # 858.6957454681396 ms


@needs_traces
def test_bodies_that_a_proxy_let_pass_are_missing_and_not_empty() -> None:
    found = read(OWN / "streamtrue.mitm")
    assert found.requests["outcome"].to_list() == [None, None]
    assert found.requests["unread"].to_list() == ["no body in the file"] * 2
    assert any("2 of 2 answers without their body" in note for note in found.notes)


@needs_traces
@pytest.mark.parametrize("bodies", ["none", "full"])
@pytest.mark.parametrize("name", ["buffered.har", "callable.mitm"])
def test_no_header_gets_into_the_profile(tmp_path: Path, name: str, bodies: str) -> None:
    out = tmp_path / "p"
    done = CliRunner().invoke(import_, [Path(name).suffix[1:], str(OWN / name), "-o", str(out), "--bodies", bodies])
    assert done.exit_code == 0, done.output
    profile = read_profile(out)
    profile.verify()
    assert profile.manifest["content"] == ("full" if bodies == "full" else "structure")
    assert len(profile.bodies()) == (2 if bodies == "full" else 0)
    for path in out.iterdir():
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = b"".join(profile.bodies().values())
        assert KEY.encode() not in data, path
        assert b"authorization" not in data.lower(), path
        assert b"hello there" not in data or bodies == "full", path
        assert path.stat().st_mode & 0o777 == 0o600
    assert KEY not in done.output


def test_keys_in_addresses_cookies_and_bodies_do_not_survive(tmp_path: Path) -> None:
    secret = entry()
    secret["request"]["postData"]["text"] = json.dumps(
        {"messages": [{"role": "user", "content": "use sk-abc1234567890def"}]}
    )
    out = tmp_path / "p"
    done = CliRunner().invoke(
        import_, ["har", str(har(tmp_path / "a.har", secret)), "-o", str(out), "--bodies", "full"]
    )
    assert done.exit_code == 0, done.output
    assert "1 credentials taken out" in done.stderr
    kept = b"".join(path.read_bytes() for path in out.iterdir()) + b"".join(read_profile(out).bodies().values())
    for word in (b"sk-abc1234567890def", b"sk-query-1234567890", b"cookie-value", KEY.encode(), b"s-7"):
        assert word not in kept, word
    assert read_profile(out).frame(["session_source"]).collect()["session_source"].to_list() == ["header"]


def test_what_is_no_request_to_a_model_is_left_out_and_counted(tmp_path: Path) -> None:
    page = entry()
    page["request"] = {"method": "GET", "url": "http://gateway/v1/models", "headers": []}
    broken = entry(start="yesterday")
    found = read(har(tmp_path / "a.har", page, entry(), broken), max_bad=0.5)
    assert found.rows_kept == 1
    assert found.dropped == {"startedDateTime is no date": 1, "not a POST to an LLM endpoint": 1}
    assert found.dropped_lines == ((3, "startedDateTime is no date"),)


def test_an_entry_without_an_answer_is_incomplete(tmp_path: Path) -> None:
    found = read(har(tmp_path / "a.har", entry(response={"status": 0, "headers": [], "content": {}})))
    assert found.requests.select("outcome", "status", "output_tokens").row(0) == ("incomplete", None, None)


def test_a_har_that_was_cut_is_named(tmp_path: Path) -> None:
    path = har(tmp_path / "a.har", entry())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FormatError, match="not a whole HAR file"):
        read(path)


@needs_traces
def test_a_flow_file_that_was_cut_gives_what_is_whole_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.mitm"
    path.write_bytes((OWN / "buffered.mitm").read_bytes()[:-100])
    found = read(path)
    assert found.rows_kept == 1
    assert found.dropped == {"torn last line: cut short": 1}
    assert any("flow 2 is cut short" in note for note in found.notes)


@needs_traces
def test_a_flow_file_broken_in_its_middle_is_an_error_and_no_short_trace(tmp_path: Path) -> None:
    data = (OWN / "buffered.mitm").read_bytes()
    length = int(data[: data.index(b":")]) + data.index(b":") + 2  # of the first flow
    path = tmp_path / "broken.mitm"
    path.write_bytes(data[:length] + b"@@" + data[length + 2 :])
    with pytest.raises(FirsttokenError, match="after flow 1"):
        read(path)


@needs_traces
def test_several_files_are_laid_on_one_clock(tmp_path: Path) -> None:
    out = tmp_path / "p"
    done = CliRunner().invoke(import_, ["har", str(OWN / "buffered.har"), str(OWN / "callable.har"), "-o", str(out)])
    assert done.exit_code == 0, done.output
    profile = read_profile(out)
    assert profile.manifest["requests"] == 4
    assert profile.manifest["zero_wall_ns"] < 1_796_042_954_515_360_000
    assert len(profile.manifest["windows"]) == len(profile.manifest["inputs"]) == 2
    # Prompts of different files are compared as well: both send the same schema and start with the same words.
    assert profile.frame(["schema"]).collect()["schema"].to_list() == [None, 0, None, 0]
