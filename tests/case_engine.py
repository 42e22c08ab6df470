"""An engine that behaves as a public trouble report tells it, with the report's own numbers at a twentieth of the time.

    python case_engine.py PORT CASE TRUTH

It writes one JSON line per chat request to TRUTH: the salt, how many were open, and what it waited by the report.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

SPEED = 20
MODEL = "case"


class Case:
    """The plain engine: the first token after 200 ms."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.open = 0
        self.requests = 0

    @property
    def age_ms(self) -> float:
        """Since its start, in the time of the report."""
        return (time.monotonic() - self.began_s) * 1000 * SPEED

    def wait(self, body: dict[str, Any]) -> tuple[float, int]:
        """Milliseconds to the first token, and cached prompt tokens."""
        return 200, 0

    def loading(self) -> bool:
        return False

    def metrics(self) -> str:
        return ""


class R07(Case):
    """Each answer takes a second, so that a signal comes in the middle of a window."""

    def wait(self, body: dict[str, Any]) -> tuple[float, int]:
        return 1000, 0


class R09(Case):
    """A prompt that was seen before takes 20 ms instead of 800, and its tokens are cached."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.hits = 0

    def wait(self, body: dict[str, Any]) -> tuple[float, int]:
        key = json.dumps([body.get("cache_salt"), body["messages"]])
        if key in self.seen:
            self.hits += 100
            return 20, 100
        self.seen.add(key)
        return 800, 0

    def metrics(self) -> str:
        return (
            f"# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total {100 * self.requests}\n"
            f"# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total {self.hits}\n"
        )


class R15(Case):
    """The first request takes 12 s, the first two at once take 8 s, and all others 200 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.crowded = False

    def wait(self, body: dict[str, Any]) -> tuple[float, int]:
        if self.requests == 1:
            return 12_000, 0
        if self.open >= 2 and not self.crowded:
            self.crowded = True
            return 8_000, 0
        return 200, 0


class L03(Case):
    """Nothing listens for 2 s; then everything says 200 but the chat; from 5 s on it works."""

    def loading(self) -> bool:
        return self.age_ms < 5_000


CASES: dict[str, type[Case]] = {"R07": R07, "R09": R09, "R15": R15, "L03": L03}


async def answer(case: Case, truth: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next((int(line[15:]) for line in head.lower().split("\r\n") if line[:15] == "content-length:"), 0)
            body = await reader.readexactly(length)
            path = head.split(" ")[1]
            if path == "/v1/chat/completions":
                await chat(case, truth, json.loads(body), writer)
            elif path == "/v1/models":
                send(writer, json.dumps({"data": [{"id": MODEL}]}))
            elif path == "/health":
                send(writer, json.dumps({"status": "loading" if case.loading() else "ok"}))
            elif path == "/metrics" and case.metrics():
                send(writer, case.metrics(), kind="text/plain")
            else:
                send(writer, "{}", status="404 Not Found")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def send(writer: asyncio.StreamWriter, text: str, status: str = "200 OK", kind: str = "application/json") -> None:
    data = text.encode()
    writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)


async def chat(case: Case, truth: Any, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    loading = case.loading()
    case.requests += not loading
    case.open += 1
    wait_ms, cached = (0.0, 0) if loading else case.wait(body)
    line = {"salt": body.get("cache_salt"), "open": case.open, "wait_ms": wait_ms, "cached": cached}
    print(json.dumps({**line, "loading": loading}), file=truth, flush=True)
    try:
        if loading:
            send(writer, '{"error": {"message": "Loading model", "code": 503}}', status="503 Service Unavailable")
            return
        await asyncio.sleep(wait_ms / 1000 / SPEED)
        usage = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
        delta = {"choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}]}
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        events = [delta, end, {"choices": [], "usage": usage}]
        said = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        send(writer, said, kind="text/event-stream")
    finally:
        case.open -= 1


async def main(port: int, name: str, path: str) -> None:
    case = CASES[name]()
    if name == "L03":
        await asyncio.sleep(2 / SPEED)
    with Path(path).open("a", encoding="utf-8") as truth:  # noqa: ASYNC230  before it serves
        server = await asyncio.start_server(lambda r, w: answer(case, truth, r, w), "127.0.0.1", port)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
