"""httpx as people write it: one shared AsyncClient, `json=`, `aiter_lines`, the clock around it all."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from benchmarks.replay.jobs import Ask, Job, Seen, request_of


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[list[Ask]]:
    url = f"http://127.0.0.1:{job.port}/v1/chat/completions"
    async with httpx.AsyncClient(timeout=60) as client:

        async def ask(marker: int) -> Seen:
            started_ns = time.monotonic_ns()
            tokens_ns: list[int] = []
            tokens: int | None = None
            async with client.stream("POST", url, json=request_of(marker)) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if event["choices"] and event["choices"][0]["delta"].get("content"):
                        tokens_ns.append(time.monotonic_ns())
                    if event.get("usage"):
                        tokens = event["usage"]["completion_tokens"]
            return Seen(marker, started_ns, tokens_ns, tokens)

        yield [ask] * job.concurrency
