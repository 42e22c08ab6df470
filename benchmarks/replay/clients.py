"""Our own clients: `python -m benchmarks.replay.clients KIND`. A line of stdin is a job, a line of stdout its batch.

Every kind is a closed loop over the same bodies. They differ in how a request is sent and its answer read.
"""

import asyncio
import os
import sys
import time

import msgspec
import psutil

from benchmarks.replay.jobs import Ask, Batch, Job, Opened, Seen
from benchmarks.replay.processes import CLIENT_PRIORITY, REALTIME, go_first

OURS, FLOOR, PLAIN = "ours", "raw", "httpx"
KINDS = (OURS, FLOOR, PLAIN)


def opened_of(kind: str) -> Opened:
    """How a kind opens a job. Each imports only what it needs, so that its memory is its own."""
    if kind == OURS:
        from benchmarks.replay.ours import opened
    elif kind == FLOOR:
        from benchmarks.replay.floor import opened
    else:
        from benchmarks.replay.plain import opened
    return opened


async def play(opened: Opened, job: Job) -> Batch:
    """Keep every worker busy until all requests are done."""
    waiting = iter(range(job.first_marker, job.first_marker + job.count))
    seen: list[Seen] = []

    async def work(ask: Ask) -> None:
        for marker in waiting:
            seen.append(await ask(marker))

    async with opened(job) as asks:
        spent_ns = time.process_time_ns()
        async with asyncio.timeout(job.limit_s), asyncio.TaskGroup() as tasks:
            for ask in asks:
                tasks.create_task(work(ask))
        spent_ns = time.process_time_ns() - spent_ns
    return Batch(seen, spent_ns, psutil.Process().memory_info().rss)


def main() -> None:
    kind = sys.argv[1]
    if os.environ.get(REALTIME) == "1":
        go_first(CLIENT_PRIORITY)
    opened = opened_of(kind)
    if kind == OURS:
        from benchmarks.replay.ours import new_loop
    else:
        new_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        for line in sys.stdin.buffer:
            batch = runner.run(play(opened, msgspec.json.decode(line, type=Job)))
            sys.stdout.buffer.write(msgspec.json.encode(batch) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
