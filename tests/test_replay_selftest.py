"""The client against an engine that knows the truth: the comparison as a table, the command on a real process."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import EngineFailed
from profiles.records import Outcome, ResponseFacts
from profiles.runs import LagFacts, ScheduleLag
from profiles.units import MILLISECOND_NS
from replay.clock import SystemClock
from replay.player import Played
from replay.selftest import Level, body_of, compare, errors_of, measure, smallest_difference_ns
from replay.selftest_cli import _sentences

PATIENCE_S = 60


def outcome(prompt_tokens: int, *instants_ns: int, sent_ns: int = 1_000, ended: str = "ok") -> Outcome:
    gaps = [after - before for before, after in pairwise(instants_ns)]
    facts = ResponseFacts(
        first_token_ns=instants_ns[0] if instants_ns else None, token_gaps_ns=gaps, prompt_tokens=prompt_tokens
    )
    return Outcome(window="w", c=1, index=0, request=0, workload="w", end_ns=9_000, send_started_ns=sent_ns,
                   outcome=ended, response=facts)  # fmt: skip


def played(*outcomes: Outcome) -> Played:
    lag = LagFacts(p50_ns=1, p99_ns=2, max_ns=3, samples=500)
    schedule = ScheduleLag(p50_ns=1, p99_ns=4, max_ns=5, late_share=0.0, requests=3)
    return Played(list(outcomes), 0, 9_000, steady_from_ns=500, loop_lag=lag, schedule_lag=schedule, in_flight_mean=1.0)


TRUTH: dict[int, dict[str, Any]] = {7: {"arrival_ns": 1_040, "handed_ns": [2_000, 2_500, 2_900]}}


def test_an_error_is_what_we_measured_without_what_the_engine_took() -> None:
    level = compare(1, played(outcome(7, 2_100, 2_550, 3_050)), TRUTH, 1)
    # Ours: 1100 from our clock's start. Theirs: 960 from the whole body. 40 of the difference is the way there.
    assert level.ttft is not None
    assert level.ttft.p50_ns == 140
    assert level.start is not None
    assert level.start.p50_ns == 40
    # Gaps of 450 and 500 where the truth has 500 and 400: 50 and 100 off, whichever way.
    assert level.gap is not None
    assert (level.gap.p50_ns, level.gap.count) == (75, 2)
    assert (level.failed, level.unmatched, level.loop_lag_p99_ns, level.schedule_lag_p99_ns) == (0, 0, 2, 4)


def test_what_was_read_otherwise_than_it_was_sent_is_counted_and_not_compared() -> None:
    good = outcome(7, 2_100, 2_550, 3_050)
    level = compare(
        1,
        played(good, outcome(7, 2_100, 2_550), outcome(8, 2_100), outcome(7, ended="error"), replace_sent(good, 500)),
        TRUTH,
        1,
    )
    assert (level.requests, level.failed, level.unmatched) == (5, 1, 2)
    assert level.ttft is not None
    assert level.ttft.count == 1  # the last one started with all slots at once


def replace_sent(given: Outcome, sent_ns: int) -> Outcome:
    return outcome(7, 2_100, 2_550, 3_050, sent_ns=sent_ns)


def test_no_request_is_as_long_as_another_nor_begins_as_another() -> None:
    bodies = [json.loads(body_of(number)) for number in range(300)]
    texts = [body["messages"][0]["content"] for body in bodies]
    assert len({len(text.split()) for text in texts}) == 300
    assert len({text.split()[0] for text in texts}) == 300
    # Those that follow each other end apart.
    assert len({body["max_tokens"] for body in bodies[:17]}) == 17
    assert all(body["max_tokens"] == body["min_tokens"] for body in bodies)


def level(c: int = 1, *, offset_ms: float = 0.5, scatter_ms: float = 0.1, **other: Any) -> Level:
    around = [round((offset_ms + scatter_ms * (at - 50) / 40) * MILLISECOND_NS) for at in range(101)]
    errors = errors_of(around)
    made = Level(c, 101, 0, 0, c, errors, errors, errors, MILLISECOND_NS, 500, MILLISECOND_NS, float(c))
    return replace(made, **other)


@pytest.mark.parametrize(
    ("given", "doubts"),
    [
        (level(), []),
        (level(3, failed=2), ["c = 3: 2 of 101 requests failed"]),
        (level(unmatched=1), ["c = 1: 1 answers were not read as the engine sent them"]),
        (level(3, connections=4), ["c = 3: 4 connections were made for 3 slots"]),
        (level(offset_ms=3), ["c = 1: TTFT error (p50) 3.00 ms is above 2.00 ms"]),
        (level(offset_ms=1, scatter_ms=9), ["c = 1: TTFT error (p99) 12.0 ms is above 10.0 ms"]),
        (level(loop_lag_p99_ns=30 * MILLISECOND_NS),
         ["c = 1: lag of the event loop (p99) 30.0 ms is above 20.0 ms"]),
        # The p99 of few samples is their maximum, which one page fault decides.
        (level(loop_lag_p99_ns=30 * MILLISECOND_NS, loop_lag_samples=50), []),
    ],
)  # fmt: skip
def test_a_machine_that_is_too_busy_is_said_with_its_limit(given: Level, doubts: list[str]) -> None:
    assert given.doubts() == doubts


def test_a_difference_that_counts_is_ten_times_what_scatters_at_the_worst_level() -> None:
    # The middle 80 % of the errors lie within 0.1 ms of their middle; what is common to all of them is in every arm.
    assert smallest_difference_ns([level(offset_ms=0.5), level(3, offset_ms=1.5)]) == MILLISECOND_NS
    assert smallest_difference_ns([level(), level(8, scatter_ms=0.4)]) == 4 * MILLISECOND_NS
    assert smallest_difference_ns([level(), level(8, ttft=None)]) is None
    assert smallest_difference_ns([]) is None


def test_the_sentence_says_what_the_numbers_mean() -> None:
    said = " ".join(_sentences([level(), level(64, offset_ms=0.8)], []))
    assert "about 800 µs late, the same in every arm" in said
    assert "differences of 1.00 ms and more" in said
    assert "c = 64: above c = 32 the client would shape the result." in said
    busy = " ".join(_sentences([level(offset_ms=3)], level(offset_ms=3).doubts()))
    assert "too busy" in busy
    assert "every arm" not in busy


@pytest.fixture
def alone() -> Iterator[None]:
    """Nothing that a test started is alive afterwards."""
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    assert left == []


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "firsttoken", "selftest", *words]


@pytest.mark.process
@pytest.mark.usefixtures("alone")
def test_the_command_measures_this_machine_and_leaves_nothing_behind() -> None:
    ended = subprocess.run(
        command("--c", "1,3", "--requests", "12", "--json"), capture_output=True, timeout=PATIENCE_S, check=False
    )
    # Whether this machine is quiet now is not for a test to say.
    assert ended.returncode in (0, 4), ended.stderr
    document = json.loads(ended.stdout)
    assert document["format"] == "firsttoken/selftest"
    assert document["trusted"] == (ended.returncode == 0) == (document["doubts"] == [])
    assert [item["c"] for item in document["levels"]] == [1, 3]
    for item in document["levels"]:
        assert (item["requests"], item["failed"], item["unmatched"]) == (12, 0, 0)
        assert item["connections"] == item["c"]
        # One that started with all slots at once, or before the last of them did, is not compared.
        assert 6 <= item["ttft"]["count"] <= 11
        assert item["gap"]["count"] >= 15 * item["ttft"]["count"]
        # A client cannot know a token before the engine has it, nor send before its clock starts.
        assert item["ttft"]["p50_ns"] > 0
        assert item["start"]["p50_ns"] > 0


@pytest.mark.process
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_engine_too(number: signal.Signals) -> None:
    process = subprocess.Popen(command("--requests", "2000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    me = psutil.Process(process.pid)
    engines: list[psutil.Process] = []
    for _ in range(600):
        engines = [child for child in me.children(recursive=True) if "engine" in child.cmdline()]
        if engines:
            break
        assert process.poll() is None
        asyncio.run(asyncio.sleep(0.05))
    asyncio.run(asyncio.sleep(0.5))
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, b""), err
    assert b"the engine is gone" in err
    assert engines
    assert not any(engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE for engine in engines)


@pytest.mark.process
@pytest.mark.usefixtures("alone")
def test_an_engine_that_does_not_come_up_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = shutil.which("false")
    assert program is not None
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(EngineFailed, match="nothing listens"):
        asyncio.run(measure([1], 10, SystemClock(), tmp_path))
