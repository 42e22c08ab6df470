"""The proof that passes share no prefix cache, against a server that answers as a real model did: at once, and nothing.

SmolLM2 on vLLM 0.26.0 ended its answer to the probe with its first token, in every boot of a ladder on an H200: HTTP
200, no text, usage in order. The prompt was read, so its cached tokens count.
"""

import asyncio
from typing import Any

import orjson
import pytest
from test_replay_load import load
from test_replay_schedule import row

from profiles.errors import EngineFailed
from profiles.records import EMPTY, Outcome
from profiles.runs import Step
from replay.client import Slot, Timeouts
from replay.clock import SystemClock
from replay.isolation import prove_isolation
from replay.player import api_client
from replay.schedule import Pick, Window

HOST = "127.0.0.1"
PROMPT_TOKENS = 673


def answer(cached: int) -> bytes:
    """The stream of the H200: a role, an end without text, usage."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "stop", "stop_reason": None},
    ]
    usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + 1, "completion_tokens": 1}
    events = [head | {"choices": [choice]} for choice in choices]
    events.append(head | {"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}}})
    said = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(said) + said


async def serve(*, salted: bool) -> asyncio.Server:
    """It caches all but the last block of 16; `salted` says whether another salt is another prompt to it."""
    seen: set[str] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"get "):
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                body = orjson.loads(await reader.readexactly(length))
                key = str(body["messages"]) + (body["cache_salt"] if salted else "")
                writer.write(answer(672 if key in seen else 0))
                seen.add(key)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return await asyncio.start_server(connected, HOST, 0)


def prove(*, salted: bool) -> tuple[Step, list[Outcome]]:
    async def main() -> tuple[Step, list[Outcome]]:
        heard: list[Outcome] = []
        server = await serve(salted=salted)
        url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        clock = SystemClock()
        slot = Slot(url, clock, timeouts=Timeouts())
        rows = [row(0)]
        asked = load([Window("closed-c1", "closed", 1, True, (Pick(rows[0]),))], rows)
        try:
            async with api_client(url) as api:
                return await prove_isolation("salt", slot, api, asked, {}, clock, heard.append), heard
        finally:
            await slot.close()
            server.close()
            await server.wait_closed()

    return asyncio.run(main())


def test_an_answer_without_text_proves_what_its_prompt_found() -> None:
    step, heard = prove(salted=True)
    assert {item.outcome for item in heard} == {EMPTY}
    assert step.proof == "0 prompt tokens cached with another salt, 672 of 673 with the same salt"
    assert step.facts["cached"] == [0, 0, 672]


def test_a_salt_that_is_ignored_is_found_behind_an_answer_without_text() -> None:
    with pytest.raises(EngineFailed, match="shares its prefix cache between passes in spite of cache_salt"):
        prove(salted=False)
