"""One request between its body and its last byte: its fault, if it asked for one, and its ground truth.

The truth (`--truth FILE`) is one JSON line per request, written when it ends: when each chunk was planned to leave and
when it was handed to the kernel, on the monotonic clock that all processes of a host share. Replay and analysis never
read it; tests hold their measurements against it.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from profiles.units import parse_duration
from replay.simulator import text
from replay.simulator.chat import Refused
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


@dataclass(slots=True)
class Flight:
    """One request on its way, with its ground truth."""

    job: Job
    script: text.Script
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)
    first_token_ns: int | None = None  # as planned, like the following: the machine's own view
    last_token_ns: int | None = None
    planned_ns: list[int] = field(default_factory=list)
    handed_ns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
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

    def note(self, output: Output, handed_ns: int) -> None:
        self.planned_ns.append(output.planned_ns)
        self.handed_ns.append(handed_ns)
        self.tokens.append(output.tokens)

    def truth(self, end_ns: int) -> dict[str, Any]:
        job = self.job
        return {
            "id": job.id,
            "workload": self.script.workload,
            "arrival_ns": job.arrival_ns,
            "prefill_start_ns": job.started_ns,
            "prompt_tokens": job.prompt_tokens,
            "cached_tokens": job.cached_tokens,
            "output_tokens": job.output_tokens,
            "planned_ns": self.planned_ns,
            "handed_ns": self.handed_ns,
            "tokens": self.tokens,
            "finish": self.finish,
            "end_ns": end_ns,
        }
