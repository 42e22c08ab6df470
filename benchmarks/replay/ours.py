"""Our client: the slot of the replay on the loop of the replay, with the watch on the loop's lag beside it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate

import orjson

from benchmarks.replay.jobs import Ask, Job, Seen, request_of
from profiles.records import OK, Outcome
from replay.client import Planned, Slot, Timeouts
from replay.clock import SystemClock, fine_event_loop
from replay.loop_lag import LoopLag

new_loop = fine_event_loop
PATH = "/v1/chat/completions"


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[list[Ask]]:
    clock = SystemClock()
    slots = [Slot(f"http://127.0.0.1:{job.port}", clock, timeouts=Timeouts()) for _ in range(job.concurrency)]
    bodies = {
        marker: orjson.dumps(request_of(marker)) for marker in range(job.first_marker, job.first_marker + job.count)
    }

    def ask_with(slot: Slot) -> Ask:
        async def ask(marker: int) -> Seen:
            planned = Planned("", job.concurrency, marker, marker, "", PATH, bodies[marker])
            return read_outcome(marker, await slot.send(planned))

        return ask

    watch = asyncio.ensure_future(LoopLag(clock).watch())
    try:
        yield [ask_with(slot) for slot in slots]
    finally:
        watch.cancel()
        for slot in slots:
            await slot.close()


def read_outcome(marker: int, outcome: Outcome) -> Seen:
    """An outcome of the replay as this benchmark reads all clients. TPOT as the analysis computes it (DESIGN §4)."""
    facts = outcome.response
    first_ns, last_ns, tokens = facts.first_token_ns, facts.last_token_ns, facts.output_tokens
    instants = [] if first_ns is None else list(accumulate(facts.token_gaps_ns, initial=first_ns))
    after_first = (tokens or 0) - (facts.first_event_tokens or 1)
    decode_ns = last_ns - first_ns if first_ns is not None and last_ns is not None else 0
    per_token_ns = decode_ns / after_first if after_first > 0 and decode_ns else None
    fault = None if outcome.outcome == OK else f"{outcome.outcome}: {outcome.reason}"
    started_ns = outcome.end_ns if outcome.send_started_ns is None else outcome.send_started_ns
    return Seen(marker, started_ns, instants, tokens, per_token_ns, fault)
