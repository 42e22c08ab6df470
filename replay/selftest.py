"""How wrong this client is on this machine, by an engine that knows when it handed each token to the kernel.

The embedded engine runs as a process of its own and writes its ground truth. Requests are played through the real path:
window, slot, connection, reader. Both processes read the same monotonic clock, so instants can be subtracted.

    our clock starts ──start──▶ body complete in the engine ── its own time ──▶ token handed over ──▶ our read

    TTFT error = our TTFT − (first token handed over − body complete)
    gap error  = |our gap − its gap| between two events with tokens
"""

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import sub
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from profiles.errors import FirsttokenError
from profiles.files import read_lines
from profiles.profile import ProfileRow
from profiles.records import OK, Outcome, token_instants_ns
from profiles.units import MILLISECOND_NS, SECOND_NS, format_duration
from replay.client import MEASURED_TO_C, Planned, Slot, Timeouts
from replay.clock import Clock
from replay.doubt import LOOP_LAG_P99_NS, LOOP_SAMPLES
from replay.engines import Launch, free_port, launch, to_the_end, wait_listening
from replay.player import Played, play_window
from replay.schedule import Pick, Window
from replay.slots import SlotPool

HOST: Final = "127.0.0.1"
PATH: Final = "/v1/chat/completions"
# Answers of different lengths end apart, so the next requests start apart. An engine that gets several at once reads
# them one after another, and what the later ones wait there would be booked on the client.
FEWEST_TOKENS: Final = 16
LENGTHS: Final = 17
WARM_UP: Final = 2  # per slot, not counted: the first use of code and of a connection

# The limits above which this machine is too busy to be trusted, whatever the engine.
ERROR_P50_NS: Final = 2 * MILLISECOND_NS
ERROR_P99_NS: Final = 10 * MILLISECOND_NS

BOOT_PATIENCE_NS: Final = 60 * SECOND_NS
STOP_PATIENCE_NS: Final = 10 * SECOND_NS
REQUEST_LIMIT_NS: Final = 60 * SECOND_NS
# An error common to all requests is common to all arms. What is left must be this many times smaller than a difference.
FAR_ABOVE: Final = 10


@dataclass(frozen=True, slots=True)
class Errors:
    """How far some instants are from the truth, in ns."""

    p50_ns: int
    p90_ns: int
    p99_ns: int
    scatter_ns: int  # half of the width that holds the middle 80 %
    count: int


@dataclass(frozen=True, slots=True)
class Level:
    """What one concurrency showed. None where nothing could be compared."""

    c: int
    requests: int
    failed: int
    unmatched: int  # answered well, and not as the engine says: another number of events
    connections: int
    ttft: Errors | None  # ours − truth
    gap: Errors | None  # absolute
    start: Errors | None  # from our clock's start to the body complete in the engine
    loop_lag_p99_ns: int | None
    loop_lag_samples: int
    schedule_lag_p99_ns: int | None  # from a slot that is free to the first byte of its next request
    in_flight_mean: float | None

    def doubts(self) -> list[str]:
        """Why this level cannot be trusted, in words."""
        found: list[str] = []
        if self.failed:
            found.append(f"{self.failed} of {self.requests} requests failed")
        if self.unmatched:
            found.append(f"{self.unmatched} answers were not read as the engine sent them")
        if self.connections > self.c:
            found.append(f"{self.connections} connections were made for {self.c} slots")
        ttft = self.ttft
        for error, limit_ns, name in (
            (None if ttft is None else ttft.p50_ns, ERROR_P50_NS, "TTFT error (p50)"),
            (None if ttft is None else ttft.p99_ns, ERROR_P99_NS, "TTFT error (p99)"),
            (self.loop_lag_p99_ns if self.loop_lag_samples >= LOOP_SAMPLES else None, LOOP_LAG_P99_NS,
             "lag of the event loop (p99)"),
        ):  # fmt: skip
            if error is not None and error > limit_ns:
                found.append(f"{name} {format_duration(error)} is above {format_duration(limit_ns)}")
        return [f"c = {self.c}: {problem}" for problem in found]


def errors_of(differences_ns: Sequence[int]) -> Errors | None:
    """Quantiles of differences. None without any."""
    if not differences_ns:
        return None
    p10, p50, p90, p99 = np.percentile(differences_ns, (10, 50, 90, 99))
    return Errors(round(p50), round(p90), round(p99), round((p90 - p10) / 2), len(differences_ns))


def compare(c: int, played: Played, truth: Mapping[int, Mapping[str, Any]], connections: int) -> Level:
    """Hold a window against the engine's truth, which is by the length of the prompt: each request has its own."""
    ttft_ns: list[int] = []
    gap_ns: list[int] = []
    start_ns: list[int] = []
    failed = unmatched = 0
    from_ns = played.steady_from_ns if played.steady_from_ns is not None else played.started_ns
    for outcome in played.outcomes:
        if outcome.outcome != OK:
            failed += 1
            continue
        if (outcome.send_started_ns or 0) <= from_ns:  # all slots start at once, see LENGTHS
            continue
        line = truth.get(outcome.response.prompt_tokens or 0)
        instants = token_instants_ns(outcome.response)
        if line is None or len(line["handed_ns"]) != len(instants) or outcome.send_started_ns is None:
            unmatched += 1
            continue
        handed_ns, whole_ns = line["handed_ns"], line["arrival_ns"]
        start_ns.append(whole_ns - outcome.send_started_ns)
        ttft_ns.append((instants[0] - outcome.send_started_ns) - (handed_ns[0] - whole_ns))
        gap_ns += map(abs, map(sub, _gaps(instants), _gaps(handed_ns)))
    loop, schedule = played.loop_lag, played.schedule_lag
    return Level(
        c=c,
        requests=len(played.outcomes),
        failed=failed,
        unmatched=unmatched,
        connections=connections,
        ttft=errors_of(ttft_ns),
        gap=errors_of(gap_ns),
        start=errors_of(start_ns),
        loop_lag_p99_ns=loop.p99_ns if loop is not None else None,
        loop_lag_samples=loop.samples if loop is not None else 0,
        schedule_lag_p99_ns=schedule.p99_ns if schedule is not None else None,
        in_flight_mean=played.in_flight_mean,
    )


def _gaps(instants: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(instants)]


def smallest_difference_ns(levels: Sequence[Level]) -> int | None:
    """The smallest difference in TTFT that is far above what scatters, at every level. None where nothing is known."""
    scatters = [level.ttft.scatter_ns for level in levels if level.ttft is not None]
    return FAR_ABOVE * max(scatters) if scatters and len(scatters) == len(levels) else None


async def measure(levels: Sequence[int], requests: int, clock: Clock, folder: Path) -> list[Level]:
    """Boot the embedded engine, play `requests` at each concurrency, stop it, read its truth.

    `folder` takes the engine's log and truth. Raises EngineFailed if the engine does not come up or go away. Cancelling
    stops it and proves that it is gone.
    """
    port = free_port(HOST)
    truth = folder / "truth.jsonl"
    argv = [sys.executable, "-m", "firsttoken", "engine", "--host", HOST, "--port", str(port), "--truth", str(truth)]
    argv += ["--boot-time", "10ms", "--speed-sd", "0", "--seed", "1"]
    engine = await launch(
        "process",
        Launch(
            arm="selftest",
            argv=tuple(argv),
            env={},
            cwd=Path.cwd(),
            log=folder / "engine.log",
            host=HOST,
            port=port,
            run_id=uuid.uuid4().hex,
            boot_name="selftest",
        ),
        clock,
    )
    try:
        await wait_listening(engine, clock, patience_ns=BOOT_PATIENCE_NS)
        played = []
        sent = 0
        for c in levels:
            played.append(await _play(engine.base_url, c, requests, sent, clock, lambda: engine.lives))
            sent += requests + WARM_UP * c
    finally:
        await to_the_end(engine.stop(STOP_PATIENCE_NS))
    known = _read_truth(truth)
    return [compare(c, window, known, made) for c, (window, made) in zip(levels, played, strict=True)]


async def _play(
    url: str, c: int, requests: int, first: int, clock: Clock, alive: Callable[[], bool]
) -> tuple[Played, int]:
    slots: list[Slot] = []

    def new_slot() -> Slot:
        slots.append(Slot(url, clock, timeouts=Timeouts(total_ns=REQUEST_LIMIT_NS)))
        return slots[-1]

    async def play(name: str, count: int, begin: int) -> Played:
        picks = tuple(Pick(_row(index)) for index in range(count))
        return await play_window(
            Window(name, "closed", c, False, picks),
            lambda index: Planned(name, c, index, index, "", PATH, body_of(begin + index)),
            pool,
            clock,
            _keep,
            stall_ns=REQUEST_LIMIT_NS,
            max_error_share=1.0,
            alive=alive,
        )

    pool = SlotPool(new_slot)
    try:
        await play("warmup", WARM_UP * c, first)
        played = await play(f"selftest-c{c}", requests, first + WARM_UP * c)
    finally:
        await pool.close()
    if not alive():
        raise FirsttokenError("the embedded engine died while it was measured")
    return played, sum(slot.connections or 0 for slot in slots)


def _keep(_outcome: Outcome) -> None:
    """The window keeps them."""


def _row(index: int) -> ProfileRow:
    return ProfileRow(request=index, arrival_ns=0, workload="selftest", workload_rule="selftest")


def body_of(number: int) -> bytes:
    """A request whose prompt is as long as no other, so that its truth can be found, and begins as no other does."""
    words = f"{number} " + "word " * number
    tokens = FEWEST_TOKENS + number * 7 % LENGTHS
    return orjson.dumps(
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": words.rstrip()}],
        }
    )


def _read_truth(path: Path) -> dict[int, dict[str, Any]]:
    lines = (orjson.loads(line) for _, line in read_lines(path))
    return {line["prompt_tokens"]: line for line in lines if "prompt_tokens" in line}


def above_measured(levels: Sequence[int]) -> list[int]:
    """The concurrencies at which the client itself would shape a result."""
    return [c for c in levels if c > MEASURED_TO_C]
