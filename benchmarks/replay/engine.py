"""The engine whose send stamps are the truth: `python -m benchmarks.replay.engine`.

The embedded engine (`firsttoken engine`) has a machine in it that all requests share, so its answers have no schedule
of their own. This one plays one, over the same HTTP layer. It prints `listening PORT`, takes an `Order` a line and
ends with its stdin. With --truth it takes no orders, appends each finished request to a file, and ends on SIGTERM: so
`firsttoken replay` can boot it.

That it sends a chunk late does no harm: the truth is the stamp, not the plan. asyncio hands the bytes to the kernel
inside write(), right after the stamp.
"""

import asyncio
import gc
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.replay.processes import ENGINE_PRIORITY, REALTIME, go_first
from benchmarks.replay.schedule import MODEL, ROLE_AT_NS, SEVERAL_TOLD, Order, Record, Schedule, Truth, Turn, compact
from replay.clock import SystemClock, fine_event_loop
from replay.simulator.wire import LAST_CHUNK, STREAM_HEAD, Connection, Request, chunk, response

HOST = "127.0.0.1"
MARKER = re.compile(rb"prompt number (\d+)")
CARD = {"id": MODEL, "object": "model", "created": 0, "owned_by": "firsttoken", "root": MODEL, "max_model_len": 131072}


class Served:
    """What is played, and what was served."""

    def __init__(self, schedule: Schedule, truth: Path | None) -> None:
        self._clock = SystemClock()
        self._truth = truth
        self._taken = 0
        self.connections: set[Connection] = set()
        self.restart(schedule)

    def restart(self, schedule: Schedule) -> None:
        """Play a new schedule, with an empty record."""
        self._schedule = schedule
        self._turns = 0
        self._done: list[Truth] = []
        self._used: set[Connection] = set()

    def record(self) -> Record:
        return Record(self._done, len(self._used))

    async def answer(self, request: Request, arrived_ns: int, connection: Connection) -> None:
        if request.path.endswith("/chat/completions"):
            asked = msgspec.json.decode(request.body)
            if asked.get("stream"):
                self._used.add(connection)
                await self._stream(request, asked, arrived_ns, connection)
                return
            message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            whole = {"id": "whole", "object": "chat.completion", "created": 0, "model": MODEL, "usage": usage}
            connection.send(response(200, compact(whole | {"choices": [message]})))
        elif request.path == "/v1/models":
            connection.send(response(200, compact({"object": "list", "data": [CARD]})))
        elif request.path in ("/health", "/v1/health", "/ping", "/version"):
            connection.send(response(200, b"{}"))
        else:
            connection.send(response(404, b'{"error":"not found"}'))

    async def _stream(self, request: Request, asked: dict[str, Any], arrived_ns: int, connection: Connection) -> None:
        clock, turn = self._clock, self._schedule.turn(self._turns)
        name = f"chatcmpl-{self._taken}"
        self._turns += 1
        self._taken += 1
        connection.send(STREAM_HEAD)
        role, tokens, finish, usage = _templates(turn)

        def named(template: bytes) -> bytes:
            return chunk(template.replace(NAME, name.encode()))

        end = named(finish)
        if (asked.get("stream_options") or {}).get("include_usage"):
            end += named(usage)
        end += chunk(b"data: [DONE]\n\n") + LAST_CHUNK
        await clock.sleep_until_ns(arrived_ns + ROLE_AT_NS)
        connection.send(named(role))
        sent_ns: list[int] = []
        due_ns = arrived_ns + turn.first_ns
        for template in tokens:
            data = named(template)
            await clock.sleep_until_ns(due_ns)
            sent_ns.append(clock.now_ns())
            connection.send(data)
            due_ns += turn.gap_ns
        if turn.tail_ns:
            await clock.sleep_until_ns(sent_ns[-1] + turn.tail_ns)
        connection.send(end)
        marked = MARKER.search(request.body)
        served = Truth(
            id=name,
            request_id=request.headers.get("x-request-id") or request.headers.get("x-correlation-id"),
            marker=int(marked[1]) if marked else None,
            kind=turn.kind,
            tokens=turn.tokens,
            received_ns=arrived_ns,
            sent_ns=sent_ns,
            end_ns=clock.now_ns(),
        )
        self._done.append(served)
        if self._truth is not None:
            with self._truth.open("ab") as file:
                file.write(msgspec.json.encode(served) + b"\n")


NAME = b"chatcmpl-NAME"  # what a template has in place of the answer's id


def _chunk(choices: list[Any], **more: Any) -> bytes:
    head = {"id": NAME.decode(), "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices}
    return b"data: " + compact(head | more) + b"\n\n"


@cache
def _templates(turn: Turn) -> tuple[bytes, list[bytes], bytes, bytes]:
    """The role chunk, the token chunks, the finish chunk and the usage chunk, without an id.

    Made once: what the engine computes while a request waits in its socket would count against the client.
    """
    role = _chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    tokens = []
    for number in range(turn.chunks):
        told = {"usage": turn.usage(number + 1)} if turn.kind == SEVERAL_TOLD else {}
        tokens.append(_chunk([{"index": 0, "delta": turn.delta(number), "finish_reason": None}], **told))
    finish = _chunk([{"index": 0, "delta": {}, "finish_reason": turn.finish()}])
    return role, tokens, finish, _chunk([], usage=turn.usage(turn.chunks))


async def _take_orders(served: Served) -> None:
    """An order a line, until stdin ends."""
    reader = asyncio.StreamReader(limit=2**20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = msgspec.json.decode(line, type=Order)
        if order.schedule is not None:
            served.restart(order.schedule)
        print(msgspec.json.encode(served.record()).decode(), flush=True)


async def _wait_for_signal(served: Served) -> None:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    await asked.wait()


async def serve(served: Served, port: int, until: Callable[[Served], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    made = lambda: Connection(served.answer, SystemClock(), served.connections)  # noqa: E731, one line is enough
    server = await loop.create_server(made, HOST, port, backlog=1024)
    print("listening", server.sockets[0].getsockname()[1], flush=True)
    # No collector's pause in the truth. The record is small and each schedule empties it.
    gc.freeze()
    gc.disable()
    async with server:
        await until(served)
        for connection in list(served.connections):
            connection.close()


@click.command()
@click.option("--port", type=int, default=0, help="0 takes a free one.")
@click.option("--truth", type=click.Path(path_type=Path, dir_okay=False), help="Serve until SIGTERM, append here.")
def main(port: int, truth: Path | None) -> None:
    """Answer chat completions on a schedule, and know when each chunk was sent."""
    if os.environ.get(REALTIME) == "1":
        go_first(ENGINE_PRIORITY)
    with asyncio.Runner(loop_factory=fine_event_loop) as runner:
        runner.run(serve(Served(Schedule(), truth), port, _wait_for_signal if truth else _take_orders))


if __name__ == "__main__":
    main()
