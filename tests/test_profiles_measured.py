"""outcomes.jsonl read for a report says the same as the whole outcomes do."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import Effect, Synthetic

from analysis.load import SCHEMA, load_frame
from profiles.errors import FormatError
from profiles.measured import MeasuredAnswer, MeasuredOutcome, StoredOutcomes, read_measured
from profiles.records import Outcome, ResponseFacts
from profiles.runs import BOOTS, OUTCOMES, read_run

instants = st.none() | st.integers(0, 2**62)
answers = st.builds(
    ResponseFacts,
    first_token_ns=instants,
    last_token_ns=instants,
    token_gaps_ns=st.lists(st.integers(0, 2**40), max_size=4),
    first_event_tokens=instants,
    prompt_tokens=instants,
    output_tokens=instants,
    cached_tokens=instants,
    error=st.none() | st.text(),
)
outcomes = st.builds(
    Outcome,
    window=st.text(),
    c=st.integers(0, 9),
    index=st.integers(0, 99),
    request=st.integers(0, 99),
    workload=st.text(),
    measured=st.booleans(),
    due_ns=instants,
    send_started_ns=instants,
    end_ns=st.integers(0, 2**62),
    outcome=st.sampled_from(["ok", "timeout"]),
    origin=st.none() | st.text(),
    response=answers,
)


@given(st.lists(outcomes, max_size=3))
def test_what_a_report_needs_reads_as_the_whole_does(
    tmp_path_factory: pytest.TempPathFactory, made: list[Outcome]
) -> None:
    file = tmp_path_factory.mktemp("measured") / OUTCOMES
    file.write_bytes(b"".join(msgspec.json.encode(outcome) + b"\n" for outcome in made))
    assert list(StoredOutcomes(file)) == made
    found = read_measured(file)
    assert len(found) == len(made)
    for ours, whole in zip(found, made, strict=True):
        for name in MeasuredOutcome.__struct_fields__:
            if name != "response":
                assert getattr(ours, name) == getattr(whole, name)
        for name in MeasuredAnswer.__struct_fields__:
            if name != "token_gaps_ns":
                assert getattr(ours.response, name) == getattr(whole.response, name)
        assert ours.response.token_events == whole.response.token_events


LINE = msgspec.json.encode(
    Outcome(window="w", c=1, index=0, request=0, workload="chat", end_ns=1, outcome="ok", response=ResponseFacts())
)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / OUTCOMES
    file.write_bytes(LINE + b"\n" + LINE[:40])
    assert len(read_measured(file)) == len(StoredOutcomes(file)) == 1


def test_no_file_is_no_outcome(tmp_path: Path) -> None:
    assert read_measured(tmp_path / OUTCOMES) == []
    assert not StoredOutcomes(tmp_path / OUTCOMES)


@pytest.mark.parametrize("bad", [b"{]", LINE.replace(b'"end_ns":1', b'"end_ns":"x"')])
def test_a_broken_line_is_named_when_it_is_read(tmp_path: Path, bad: bytes) -> None:
    file = tmp_path / OUTCOMES
    file.write_bytes(LINE + b"\n" + bad + b"\n")
    with pytest.raises(FormatError, match=r"outcomes\.jsonl:2"):
        read_measured(file)
    stored = StoredOutcomes(file)  # nobody asked yet
    with pytest.raises(FormatError, match=r"outcomes\.jsonl:2"):
        len(stored)


def test_stored_outcomes_are_a_sequence(tmp_path: Path) -> None:
    file = tmp_path / OUTCOMES
    file.write_bytes((LINE + b"\n") * 3)
    stored = StoredOutcomes(file)
    assert stored[0] == stored[-1]
    assert len(stored[1:]) == 2
    file.unlink()
    assert len(list(stored)) == 3  # read once


def test_the_frame_holds_measured_requests_and_no_warm_up(tmp_path: Path) -> None:
    def warm(_arm: str, _block: int, outcome: Outcome) -> Outcome:
        return msgspec.structs.replace(outcome, measured=outcome.index != 0)

    path = Synthetic({"v1": Effect(cached=7)}, blocks=1, requests=40, edit_outcome=warm).write(tmp_path / "run")
    run = read_run(path)
    frame = load_frame(run)
    whole = [outcome for boot in run.boots for outcome in boot.outcomes if outcome.measured]
    assert frame.height == len(whole) == 3 * (40 - 3)
    assert list(frame.columns) == list(SCHEMA)
    assert frame.schema == SCHEMA
    assert frame["end_ns"].to_list() == [outcome.end_ns for outcome in whole]
    assert frame["cached_tokens"].to_list() == [outcome.response.cached_tokens for outcome in whole]
    assert set(frame["arm"]) == {"v0", "v0.aa", "v1"}
    assert set(frame["kind"]) == {"closed"}
    assert frame["deciding"].all()


def test_a_boot_without_outcomes_has_no_row(tmp_path: Path) -> None:
    path = Synthetic({"v1": Effect()}, blocks=1, requests=40).write(tmp_path / "run")
    for folder in (path / BOOTS).glob("*-v1"):
        (folder / OUTCOMES).unlink()
    assert set(load_frame(read_run(path))["arm"]) == {"v0", "v0.aa"}
