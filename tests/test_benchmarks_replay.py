"""The benchmark of the replay's client pairs what a client says with what the engine knows."""

import asyncio
import os
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.raw_file import RawFile
from benchmarks.replay.claims import make_claims
from benchmarks.replay.clients import FLOOR, OURS, opened_of, play
from benchmarks.replay.figures import by_round, median_of, over_engine_ns, ttft_errors_ns, wrong_of
from benchmarks.replay.jobs import Job, Seen
from benchmarks.replay.pairs import Reading, pair, pair_all, reading_of
from benchmarks.replay.processes import REALTIME, Engine
from benchmarks.replay.raw import LEVELS, TEN, BatchLine, Line, RunLine, SkippedLine, read_raw
from benchmarks.replay.run import busy_ns
from benchmarks.replay.schedule import MS, SEVERAL, TOOL_CALLS, TRAPS, Schedule, Truth
from benchmarks.replay.table import render


def truth_of(number: int, *, received_ns: int = 0, kind: str = "plain", tokens: int = 4) -> Truth:
    """Four chunks, the first 50 ms after the request, 10 ms apart."""
    sent_ns = [received_ns + (50 + 10 * place) * MS for place in range(4)]
    return Truth(f"chatcmpl-{number}", None, number, kind, tokens, received_ns, sent_ns, sent_ns[-1] + MS)


def test_an_error_is_the_clients_figure_less_the_true_one() -> None:
    seen = Seen(0, -2 * MS, [51 * MS, 61 * MS, 71 * MS, 84 * MS], tokens=4)
    found = pair(reading_of(seen), truth_of(0))
    assert found.ttft_error_ns == 3 * MS  # 2 before the engine had the request, 1 after it had sent
    assert found.gap_errors_ns == [0, 0, 3 * MS]
    assert found.per_token_error_ns == MS
    assert wrong_of(found) == []


def test_a_first_token_taken_from_another_chunk_is_named() -> None:
    role = pair(Reading(ttft_ns=2 * MS), truth_of(0))
    late = pair(Reading(ttft_ns=72 * MS, gaps_ns=[10 * MS], tokens=2), truth_of(0))
    assert wrong_of(role) == ["first token −1 chunks"]
    assert wrong_of(late) == ["first token +2 chunks", "−2 chunks", "−2 tokens"]
    assert wrong_of(pair(Reading(), truth_of(0))) == ["no first token"]


def test_a_reading_without_a_truth_is_left_out() -> None:
    assert len(pair_all([("a", Reading()), ("b", Reading())], [("b", truth_of(1))])) == 1


def test_the_engines_own_time_counts_overlaps_once() -> None:
    spans = [truth_of(0), truth_of(1, received_ns=20 * MS), truth_of(2, received_ns=500 * MS)]
    assert list(busy_ns(spans)) == [(0, 101 * MS), (500 * MS, 581 * MS)]
    assert list(busy_ns([])) == []


def test_four_tokens_in_each_chunk_are_no_gap_between_tokens() -> None:
    assert truth_of(0, tokens=16).per_token_ns == 30 * MS / 12


def test_requests_take_their_turns_in_a_schedule() -> None:
    schedule = Schedule(first_ms=(20, 50), chunks=6, kinds=("plain", SEVERAL, TOOL_CALLS))
    turns = [schedule.turn(number) for number in range(4)]
    assert [turn.kind for turn in turns] == ["plain", SEVERAL, TOOL_CALLS, "plain"]
    assert [turn.first_ns for turn in turns] == [20 * MS, 50 * MS, 20 * MS, 50 * MS]
    assert [turn.tokens for turn in turns] == [6, 24, 6, 6]


def batch(client: str, number: int, error_ms: int, scenario: str = LEVELS) -> BatchLine:
    pairs = [pair(Reading(ttft_ns=(50 + error_ms) * MS, gaps_ns=[10.0 * MS] * 3, tokens=4), truth_of(0))]
    return BatchLine(scenario, number, client, 1, 1, 0, pairs)


def test_ratios_are_paired_by_round_and_claims_follow(tmp_path: Path) -> None:
    lines = [batch(OURS, number, 3 + 3 * number) for number in range(3)]
    lines += [batch(FLOOR, number, 2 + 2 * number) for number in range(3)]
    lines += [batch("aiperf", 0, 4), batch(OURS, 0, 1, TEN)]
    claims = {claim.what: claim for claim in make_claims([*lines])}
    assert claims["TTFT error p50 at c = 1, ours / raw"].measured == "1.50 (1.50 to 1.50; 3 rounds)"
    assert claims["TTFT error p50 at c = 1, ours / raw"].holds is True
    assert claims["TTFT error p50 at c = 1, ours / aiperf"].measured == "0.75 (0.75 to 0.75; 1 rounds)"
    assert claims["TTFT error p99 at c = 1, ours"].holds is False
    assert claims["definition traps, ours: first token, chunks, tokens"].measured == "0 off (1 answers)"
    assert claims["`--help` of firsttoken"].holds is None
    raw = RawFile(tmp_path / "raw.jsonl")
    head = RunLine(1, True, 3, False, {"cpus": 2}, {"httpx": "1"}, 0)
    everything: list[Line] = [head, SkippedLine("guidellm", "not installed"), *lines]
    for line in everything:
        raw.add(line)
    raw.close()
    read = list(read_raw(tmp_path / "raw.jsonl"))
    assert read[2:] == lines
    text = render(read)
    assert "`guidellm` was left out: not installed" in text
    assert "| ours | +1.0 ms; 0 off |" not in text  # the batch of ten had no trap in it
    assert by_round(lines[:3], median_of(ttft_errors_ns)) == {OURS: {0: 3 * MS, 1: 6 * MS, 2: 9 * MS}}
    assert over_engine_ns(lines[0]) is None


@pytest.mark.process
@pytest.mark.parametrize("kind", [OURS, FLOOR])
def test_our_clients_fall_into_no_trap(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, REALTIME, "0")
    with Engine() as engine:
        engine.play(Schedule(first_ms=(20,), chunks=8, gap_ms=10, kinds=TRAPS))
        batch = asyncio.run(play(opened_of(kind), Job(engine.port, 2 * len(TRAPS), 3)))
        record = engine.record()
    assert record.connections == 3
    assert len(record.requests) == 2 * len(TRAPS)
    by_marker = {truth.marker: truth for truth in record.requests}
    for seen in batch.seen:
        truth = by_marker[seen.marker]
        assert seen.fault is None
        assert (len(seen.tokens_ns), seen.tokens) == (8, truth.tokens)
        # A stamp lies between the send of its chunk and the end of all: a machine may be late, never early.
        assert all(own >= sent for own, sent in zip(seen.tokens_ns, truth.sent_ns, strict=True))
        assert all(before <= after for before, after in pairwise(seen.tokens_ns))
        assert seen.started_ns <= truth.received_ns
