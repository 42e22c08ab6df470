"""What our own clients are asked, and what they say. One JSON document each, one line."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from benchmarks.replay.schedule import MODEL


class Job(msgspec.Struct, frozen=True):
    """`count` requests in a closed loop of `concurrency`, to the engine on a port of loopback.

    Requests carry the markers `first_marker`, `first_marker` + 1, and so on. Each job opens its own connections.
    """

    port: int
    count: int
    concurrency: int
    first_marker: int = 0
    limit_s: float = 120


class Seen(msgspec.Struct, frozen=True):
    """One request as a client measured it, in its own definitions.

    `started_ns` is the instant that its TTFT counts from, `tokens_ns` the instants of the chunks that it took for
    tokens. `tokens` is its count of output tokens, None where it has none; `per_token_ns` its time per output token.
    """

    marker: int
    started_ns: int
    tokens_ns: list[int]
    tokens: int | None = None
    per_token_ns: float | None = None
    fault: str | None = None


class Batch(msgspec.Struct, frozen=True):
    """A job done: its requests, the CPU that the client's process spent on it, and its memory after it."""

    seen: list[Seen]
    cpu_ns: int
    rss_bytes: int


# Sends the request with this marker, over one worker's connection.
type Ask = Callable[[int], Awaitable[Seen]]
# Opens what a job needs and gives one Ask per worker.
type Opened = Callable[[Job], AbstractAsyncContextManager[list[Ask]]]


def request_of(marker: int) -> dict[str, Any]:
    """The body of the request with this marker."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"prompt number {marker}: say hi please, thanks"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
