"""A kill at any instant: what a client saw whole is recorded, what was in flight is seen to have been, traffic goes on.

FIRSTTOKEN_KILLS sets how often the proxy is killed (2), FIRSTTOKEN_SEED makes other instants.
"""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from hard_traffic import Client, Engine, Plan, Traffic, mixed, newest_of, numbers_of, recording, until

from profiles.captures import Capture, read_capture

KILLS = int(os.environ.get("FIRSTTOKEN_KILLS", "2"))
SEED = int(os.environ.get("FIRSTTOKEN_SEED", "7"))
CLIENTS = 8
CLOCKS_APART_NS = 50_000_000  # the two readings of an anchor, and our own after a kill

pytestmark = pytest.mark.process


def test_a_killed_proxy_loses_nothing_that_a_client_saw_whole(tmp_path: Path) -> None:
    out = tmp_path / "c"
    rng = random.Random(SEED)
    seen = killed = 0
    whole: set[int] = set()
    for kill in range(1, KILLS + 1):
        traffic, dead_ns = asyncio.run(kill_under_load(out, rng, first=10_000 * kill))
        capture = read_capture(out)
        whole |= traffic.whole
        seen += len(traffic.engine.seen)
        killed += 1
        assert not traffic.wrong

        ends = numbers_of(capture)
        assert whole <= set(ends), f"kill {kill}: no end for {sorted(whole - set(ends))}"
        assert max(ends.values()) == 1
        # Whatever was in flight has a start and no end. Of each kill one request was held back by the engine.
        assert len(capture.open) >= kill
        assert len(capture.exchanges) + len(capture.open) >= seen
        assert not [exchange for exchange in capture.exchanges if exchange.origin == "proxy"]
        # The proxy was killed, not who writes: it goes on to the end of what it was handed.
        assert capture.torn == 0
        assert len(capture.windows) == kill
        opened_ns, closed_ns = capture.windows[-1]
        assert opened_ns < closed_ns <= dead_ns + CLOCKS_APART_NS
        assert capture.manifest["closed"] is False
    print(f"{killed} kills, {len(whole)} responses seen whole, 0 missing, {len(capture.open)} in flight at a kill")

    # The same capture again, after somebody else's torn line.
    with next(iter(sorted(out.glob("segment-*.jsonl"), reverse=True))).open("ab") as file:
        file.write(b'{"line":"end","id":"torn')
    assert read_capture(out).torn == 1
    before, capture = capture, asyncio.run(record_on(out))
    assert capture.torn == 0
    assert len(capture.windows) == KILLS + 1
    assert len(capture.exchanges) == len(before.exchanges) + 1
    assert len(capture.open) == len(before.open)
    assert capture.manifest["closed"] is True


async def kill_under_load(out: Path, rng: random.Random, *, first: int) -> tuple[Traffic, int]:
    """Kill the proxy at a random instant. Returns what its clients saw and the wall clock when it was dead."""
    async with Engine() as engine, recording(engine.port, out) as run:
        traffic = Traffic(engine, run.port, mixed(rng), numbers=iter(range(first, first + 10_000)))
        async with asyncio.TaskGroup() as group:
            group.create_task(Client(traffic).ask(Plan(holds=True)))
            group.create_task(traffic.run(CLIENTS, lambda: False))
            wanted = rng.randint(CLIENTS, 6 * CLIENTS)
            await until(lambda: len(traffic.whole) >= wanted, "traffic")
            await asyncio.sleep(rng.uniform(0, 0.05))  # the random instant; nothing depends on its length
            run.process.kill()
            await run.process.wait()
            dead_ns = time.time_ns()
        assert await run.stop() == -signal.SIGKILL
    return traffic, dead_ns


async def record_on(out: Path) -> Capture:
    async with Engine() as engine, recording(engine.port, out) as run:
        traffic = Traffic(engine, run.port)
        await traffic.send(1)
        traffic.untouched()
        assert await run.stop() == 0
    return read_capture(out)


def test_traffic_outlives_a_killed_scribe_and_recording_resumes_by_itself(tmp_path: Path) -> None:
    out = tmp_path / "c"
    traffic, loaded = asyncio.run(kill_the_scribe(out))
    traffic.untouched()
    capture = read_capture(out)
    manifest = capture.manifest
    ends = numbers_of(capture)
    assert manifest["closed"] is True
    assert len(capture.windows) == 2
    assert max(ends.values()) == 1
    # Whatever the dead scribe took with it is counted, with a reason.
    lost = sum(manifest["dropped"].values())
    assert lost > 0
    assert manifest["requests"] == len(traffic.asked)
    assert len(capture.exchanges) + lost >= len(traffic.asked)
    assert manifest["written"] == len(capture.exchanges)
    # Who was in flight then is recorded, and says what is missing.
    assert all(exchange.request.unread for exchange in capture.exchanges if exchange.request.max_tokens is None)
    assert loaded <= set(ends), "recording had resumed, and yet some are missing"


async def kill_the_scribe(out: Path) -> tuple[Traffic, set[int]]:
    """Returns what the clients saw, and the requests that came after recording had resumed."""
    async with Engine() as engine, recording(engine.port, out) as run:
        traffic = Traffic(engine, run.port, mixed(random.Random(SEED)))
        await traffic.send(20)
        await until(lambda: newest_of(out) > 0, "a record")
        resumed = False

        async def kill_and_wait() -> None:
            nonlocal resumed
            scribe = run.scribe()
            scribe.kill()
            await until(lambda: not scribe.is_running() or scribe.status() == psutil.STATUS_ZOMBIE, "the scribe's end")
            asked = max(traffic.asked)
            await until(lambda: newest_of(out) > asked, "recording to resume")
            resumed = True

        async with asyncio.TaskGroup() as group:
            group.create_task(traffic.run(CLIENTS, lambda: resumed, reconnects=True))
            group.create_task(kill_and_wait())
        loaded = await traffic.send(20)
        assert await run.stop() == 0
    return traffic, loaded
