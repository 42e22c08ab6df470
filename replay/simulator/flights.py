"""One request between its body and its last byte: its fault, if it asked for one, and its ground truth.

The truth (`--truth FILE`) is one JSON line per request, written when it ends: when each chunk was planned to leave and
when it was handed to the kernel, on the monotonic clock that all processes of a host share. Replay and analysis never
read it; tests and `selftest` hold their measurements against it.
"""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Final

from profiles.units import parse_duration
from replay.simulator import text
from replay.simulator.chat import Refused
from replay.simulator.composed import Piece
from replay.simulator.shape import Shape, read_shape
from replay.simulator.steps import Job, Output

TRUTH_FORMAT: Final = "firsttoken/truth"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that one request asks for. It strikes at the middle of the answer."""

    kind: str  # error_in_stream, cut, stall, http_500
    stall_ns: int = 0


def read_fault(asked: str | None) -> Fault | None:
    """The fault in a header or field: `error_in_stream`, `cut`, `stall:2s`, `http_500`. Raises Refused."""
    if not asked:
        return None
    kind, _, duration = asked.partition(":")
    try:
        if kind == "stall":
            return Fault(kind, parse_duration(duration))
    except ValueError as error:
        raise Refused(400, f"firsttoken_fault: {error}", param="firsttoken_fault") from None
    if kind not in ("error_in_stream", "cut", "http_500") or duration:
        known = "error_in_stream, cut, stall:2s or http_500"
        raise Refused(400, f"firsttoken_fault: {asked!r} is none of {known}", param="firsttoken_fault")
    return Fault(kind)


def asked_shape(asked: str | None) -> Shape:
    """The shape in a header or field. Raises Refused."""
    try:
        return read_shape(asked)
    except ValueError as error:
        raise Refused(400, str(error), param="firsttoken_shape") from None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a stream. Those that go out in one write share their instants."""

    kind: str  # text, reasoning, tool_call or two of them with a "+"; role, comment, usage, done
    handed_ns: int  # right before the bytes were handed to the kernel
    written_ns: int  # right after
    tokens: int = 0


@dataclass(slots=True)
class Flight:
    """One request on its way, with its ground truth."""

    job: Job
    script: text.Script
    pieces: tuple[Piece, ...] = ()  # of an answer that is `composed`: one per token
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)
    first_token_ns: int | None = None  # as planned, like the following: the machine's own view
    last_token_ns: int | None = None
    planned_ns: list[int] = field(default_factory=list)  # one per chunk with tokens
    chunks: list[Chunk] = field(default_factory=list)
    finish: str = "abort"  # until it ends otherwise

    @property
    def middle(self) -> int:
        """The count of tokens at which a fault strikes; 2 at least, so that a first token is always seen."""
        return max(2, self.job.output_tokens // 2)

    def take(self, output: Output) -> None:
        """An output leaves the machine."""
        self.first_token_ns = self.first_token_ns or output.planned_ns
        self.last_token_ns = output.planned_ns
        self.outputs.put_nowait(output)

    async def next_output(self, tokens: int) -> Output:
        """What the machine makes next, at least so many tokens of it, or all that is left."""
        output = await self.outputs.get()
        while output.tokens < tokens and not output.last:
            more = await self.outputs.get()
            output = replace(more, tokens=output.tokens + more.tokens)
        return output

    def truth(self, end_ns: int) -> dict[str, Any]:
        """`planned_ns`, `handed_ns` and `tokens` are of the chunks with tokens; `chunks` are all of them in order."""
        job = self.job
        bearing = [chunk for chunk in self.chunks if chunk.tokens]
        return {
            "id": job.id,
            "workload": self.script.workload,
            "arrival_ns": job.arrival_ns,
            "prefill_start_ns": job.started_ns,
            "prompt_tokens": job.prompt_tokens,
            "cached_tokens": job.cached_tokens,
            "output_tokens": job.output_tokens,
            "planned_ns": self.planned_ns,
            "handed_ns": [chunk.handed_ns for chunk in bearing],
            "written_ns": [chunk.written_ns for chunk in bearing],
            "tokens": [chunk.tokens for chunk in bearing],
            "kinds": [chunk.kind for chunk in bearing],
            "chunks": [[chunk.kind, chunk.handed_ns, chunk.written_ns, chunk.tokens] for chunk in self.chunks],
            "first_token_chunk": self.chunks.index(bearing[0]) if bearing else None,
            "finish": self.finish,
            "end_ns": end_ns,
        }
