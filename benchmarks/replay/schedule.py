"""When the chunks of an answer are due, and what they hold. The engine plays it; requests take their turns in it.

Each kind but `plain` is a trap: a definition that clients get wrong.
"""

import json
from typing import Any

import msgspec

MODEL = "mock"
PLAIN = "plain"
REASONING_CONTENT = "reasoning_content"  # the first half of the chunks is reasoning, under the older name
REASONING = "reasoning"  # the same under the newer name
TOOL_CALLS = "tool_calls"  # nothing but a tool call: its name first, then its arguments
ROLE = "role"  # the role chunk comes long before the first token
SEVERAL = "several"  # four tokens in each chunk, usage long after the last token
SEVERAL_TOLD = "several_told"  # the same, and each chunk carries the usage so far
TRAPS = (REASONING_CONTENT, REASONING, TOOL_CALLS, ROLE, SEVERAL, SEVERAL_TOLD)

MS = 1_000_000
PROMPT_TOKENS = 32
ROLE_AT_NS = 1 * MS
SEVERAL_TOKENS = 4
SEVERAL_TAIL_NS = 300 * MS
ROLE_EARLIER_NS = 200 * MS


class Schedule(msgspec.Struct, frozen=True):
    """`first_ms` and `kinds` are cycled, request by request in the order of their arrival."""

    first_ms: tuple[float, ...] = (20, 50, 200)
    chunks: int = 40
    gap_ms: float = 5
    kinds: tuple[str, ...] = (PLAIN,)

    def turn(self, number: int) -> "Turn":
        """The answer of request `number`, counted from 0."""
        kind = self.kinds[number % len(self.kinds)]
        several = kind in (SEVERAL, SEVERAL_TOLD)
        first_ns = round(self.first_ms[number % len(self.first_ms)] * MS)
        return Turn(
            kind=kind,
            first_ns=first_ns + (ROLE_EARLIER_NS if kind == ROLE else 0),
            gap_ns=round(self.gap_ms * MS),
            chunks=self.chunks,
            tokens_per_chunk=SEVERAL_TOKENS if several else 1,
            tail_ns=SEVERAL_TAIL_NS if several else 0,
        )


class Turn(msgspec.Struct, frozen=True):
    """One answer. Instants count from the end of the request's body; `tail_ns` from the last token to the finish."""

    kind: str
    first_ns: int
    gap_ns: int
    chunks: int
    tokens_per_chunk: int
    tail_ns: int

    @property
    def tokens(self) -> int:
        return self.chunks * self.tokens_per_chunk

    def delta(self, number: int) -> dict[str, Any]:
        """What token chunk `number` says, counted from 0."""
        text = " hi" * self.tokens_per_chunk
        if self.kind in (REASONING_CONTENT, REASONING) and number < self.chunks // 2:
            return {self.kind: text}
        if self.kind == TOOL_CALLS:
            if number == 0:
                named = {"name": "greet", "arguments": ""}
                return {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": named}]}
            return {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}
        return {"content": text}

    def usage(self, chunks: int) -> dict[str, int]:
        """The usage after so many token chunks."""
        tokens = chunks * self.tokens_per_chunk
        return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens}

    def finish(self) -> str:
        return "tool_calls" if self.kind == TOOL_CALLS else "stop"


class Truth(msgspec.Struct, frozen=True):
    """One request as the engine served it. Instants are of CLOCK_MONOTONIC, each read right before its send.

    `marker` is the number that our own clients write into the request. `received_ns` is the read that completed the
    request, `sent_ns` the sends of the token chunks, `end_ns` is read right after the last byte was handed over.
    """

    id: str
    request_id: str | None
    marker: int | None
    kind: str
    tokens: int
    received_ns: int
    sent_ns: list[int]
    end_ns: int

    @property
    def ttft_ns(self) -> int:
        return self.sent_ns[0] - self.received_ns

    @property
    def gaps_ns(self) -> list[int]:
        return [after - before for before, after in zip(self.sent_ns, self.sent_ns[1:], strict=False)]

    @property
    def per_token_ns(self) -> float:
        """(last token − first) / (tokens − those of the first chunk): the time that decoding a token took."""
        first = self.tokens // len(self.sent_ns)
        return (self.sent_ns[-1] - self.sent_ns[0]) / (self.tokens - first)


class Order(msgspec.Struct, frozen=True):
    """A line to the engine: a new schedule starts a new record; without one it says what it has recorded."""

    schedule: Schedule | None = None


class Record(msgspec.Struct, frozen=True):
    """What the engine says: the finished requests since the last schedule, and the connections that carried any."""

    requests: list[Truth]
    connections: int


def compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
