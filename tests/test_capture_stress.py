"""Many flows that end in every way there is: each has one start, one end, and the right one.

FIRSTTOKEN_FLOWS sets how many (1000). FIRSTTOKEN_LONG runs the check of memory too.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hard_traffic import KINDS, STREAMS, Engine, Plan, Traffic, lines_of, recording, until

from profiles.captures import read_capture
from profiles.records import Exchange

FLOWS = int(os.environ.get("FIRSTTOKEN_FLOWS", "1000"))
SEED = int(os.environ.get("FIRSTTOKEN_SEED", "7"))
CLIENTS = 24
BROKEN_SHARE = 0.3
MEBIBYTE = 1024 * 1024

pytestmark = pytest.mark.process


def rough(rng: random.Random) -> Callable[[], Plan]:
    """Plans of which a part is broken off, by either side, at any moment, politely or not."""

    def plan() -> Plan:
        kind, pieces, reset = rng.choice(KINDS), rng.randint(1, 5), rng.random() < 0.5
        if rng.random() >= BROKEN_SHARE:
            return Plan(kind, pieces=pieces)
        if rng.random() < 0.5:
            # Never after a whole answer: a connection that dies while it is kept may cost the next request its answer.
            last = {"json": 0, "json chunked": 1}.get(kind, pieces)
            return Plan(kind, pieces=pieces, reset=reset, breaks_at=rng.randint(0, last))
        leaves = rng.choice(("upload", "waiting", "stream", "done"))
        if kind not in STREAMS and leaves in ("stream", "done"):
            leaves = "waiting"
        return Plan(kind, pieces=pieces, reset=reset, leaves=leaves)

    return plan


def allowed(plan: Plan) -> set[tuple[str, str | None]]:
    """How a request may end: outcome and origin."""
    # On a kept connection nobody can tell an engine that fails at once from one that closed it in the meantime.
    no_answer: set[tuple[str, str | None]] = {("error", "engine"), ("error", "proxy")}
    if plan.breaks_at is not None:
        if plan.breaks_at == 0:
            return no_answer
        return {("incomplete", "engine"), *(no_answer if plan.reset else ())}  # a reset may overtake the headers
    if plan.leaves is None or plan.leaves == "done":
        return {("ok", None)}
    return {("cancelled_by_client", "client"), ("ok", None)}  # an answer may be quicker than a client that leaves


def test_every_flow_has_one_start_and_one_end(tmp_path: Path) -> None:
    out = tmp_path / "c"
    traffic = asyncio.run(storm(out))
    plans = traffic.engine.plans

    # The traffic: what nobody broke was answered whole, what the engine broke was not made whole.
    assert not traffic.wrong
    good = {number for number in traffic.asked if plans[number].breaks_at is None and plans[number].leaves is None}
    assert good <= traffic.whole
    assert not good & (traffic.broken | traffic.refused)

    lines = list(lines_of(out))
    starts = Counter(line["id"] for line in lines if line["line"] == "start")
    ends = Counter(line["id"] for line in lines if line["line"] == "end")
    assert set(starts.values()) == {1}
    assert starts == ends
    # All of them came: only of those that left in the middle of their upload may the proxy have seen nothing.
    early = {number for number in traffic.asked if plans[number].leaves == "upload"}
    assert len(traffic.asked - early) <= len(starts) <= len(traffic.asked)
    assert [line for line in lines if line["line"] == "beat"][-1]["in_flight"] == 0

    capture = read_capture(out)
    manifest = capture.manifest
    assert capture.open == []
    assert (manifest["requests"], manifest["written"]) == (len(starts), len(ends))
    assert (manifest["dropped"], manifest["errors"], capture.dropped) == ({}, {}, 0)
    assert manifest["closed"] is True

    strange = [said for exchange in capture.exchanges if (said := strangeness(exchange, plans))]
    assert not strange
    assert {exchange.outcome for exchange in capture.exchanges} >= {"ok", "incomplete", "cancelled_by_client"}


def strangeness(exchange: Exchange, plans: dict[int, Plan]) -> str:
    """What is wrong with a record, if anything."""
    number = exchange.request.max_tokens
    if number is None:  # its body never came
        return "" if exchange.outcome == "cancelled_by_client" else f"{exchange.id}: no body, {exchange.outcome}"
    plan = plans[number]
    if (exchange.outcome, exchange.origin) in allowed(plan):
        return ""
    return f"{number}: {exchange.outcome} by {exchange.origin}, {plan}"


async def storm(out: Path) -> Traffic:
    async with Engine() as engine, recording(engine.port, out) as run:
        traffic = Traffic(engine, run.port, rough(random.Random(SEED)))
        await traffic.send(FLOWS, clients=CLIENTS)

        def is_calm() -> bool:
            beats = [line for line in lines_of(out) if line["line"] == "beat"]
            return bool(beats) and beats[-1]["in_flight"] == 0

        await until(is_calm, "a beat with nothing in flight")
        assert await run.stop() == 0
    return traffic


@pytest.mark.skipif("FIRSTTOKEN_LONG" not in os.environ, reason="minutes long; set FIRSTTOKEN_LONG to run it")
def test_memory_stays_where_it_was(tmp_path: Path) -> None:
    short, large = asyncio.run(long_run(tmp_path / "c"))
    print(f"MiB of the proxy and of the scribe: every 1,000 short requests {short}; large bodies {large}")
    proxy, scribe = ([row[at] for row in short] for at in (0, 1))
    assert proxy[-1] <= 1.05 * proxy[0]
    assert scribe[-1] <= 1.05 * scribe[0]
    assert large[-1][0] - large[0][0] <= 20


async def long_run(out: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Resident MiB of each process: after each 1,000 short requests; before and after 200 bodies of 1 MB."""
    async with Engine() as engine, recording(engine.port, out) as run:
        traffic = Traffic(engine, run.port)
        processes = [psutil.Process(run.process.pid), run.scribe()]

        def resident() -> list[int]:
            return [process.memory_info().rss // MEBIBYTE for process in processes]

        short: list[list[int]] = []
        for _ in range(11):  # the first thousand warms up
            await traffic.send(1_000, clients=8)
            short.append(resident())
        large = [resident()]
        traffic.plan = lambda: Plan(prompt="x" * 1_000_000)
        await traffic.send(200, clients=4)
        large.append(resident())
        traffic.untouched()
        assert await run.stop() == 0
    return short, large
