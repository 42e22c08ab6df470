"""What a client has measured beside the truth, request by request.

An error is the client's own figure less the true one. A TTFT error therefore holds all that a user of the client gets:
its way from the start of its clock to the engine, and from the engine's send to its stamp.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from benchmarks.replay.jobs import Seen
from benchmarks.replay.schedule import Truth


class Reading(msgspec.Struct, frozen=True):
    """A client's own figures for one request. None: it does not say.

    `gaps_ns` is what it reports between tokens or chunks, `per_token_ns` its time per output token (ITL, TPOT).
    """

    ttft_ns: float | None = None
    gaps_ns: list[float] | None = None
    per_token_ns: float | None = None
    tokens: int | None = None


class Pair(msgspec.Struct, frozen=True):
    """One request: figures and errors in nanoseconds, counts less the true counts.

    `first_chunk` is the token chunk that its TTFT points at, counted from 0; −1 is the role chunk, before the first
    token. None: it has no TTFT. `gap_errors_ns` are absolute, and None where it reports another number of gaps.
    """

    kind: str
    ttft_ns: float | None
    ttft_error_ns: float | None
    first_chunk: int | None
    gap_errors_ns: list[int] | None
    per_token_error_ns: float | None
    true_per_token_ns: float
    chunks_off: int | None
    tokens_off: int | None


def reading_of(seen: Seen) -> Reading:
    """The figures that follow from a client's stamps. Without a figure of its own, TPOT is what most tools compute."""
    instants, tokens = seen.tokens_ns, seen.tokens
    if not instants:
        return Reading(tokens=tokens)
    per_token_ns = seen.per_token_ns
    if per_token_ns is None and tokens is not None and tokens > 1:
        per_token_ns = (instants[-1] - instants[0]) / (tokens - 1)
    gaps_ns = [float(after - before) for before, after in pairwise(instants)]
    return Reading(instants[0] - seen.started_ns, gaps_ns, per_token_ns, tokens)


def pair(reading: Reading, truth: Truth) -> Pair:
    ttft_ns, gaps_ns = reading.ttft_ns, reading.gaps_ns
    true_gaps_ns = truth.gaps_ns
    errors = None
    if gaps_ns is not None and len(gaps_ns) == len(true_gaps_ns):
        errors = [round(abs(own - true)) for own, true in zip(gaps_ns, true_gaps_ns, strict=True)]
    since_ns = [at_ns - truth.received_ns for at_ns in truth.sent_ns]
    per_token_ns = truth.per_token_ns
    return Pair(
        kind=truth.kind,
        ttft_ns=ttft_ns,
        ttft_error_ns=None if ttft_ns is None else ttft_ns - truth.ttft_ns,
        first_chunk=None if ttft_ns is None else bisect_right(since_ns, ttft_ns) - 1,
        gap_errors_ns=errors,
        per_token_error_ns=None if reading.per_token_ns is None else reading.per_token_ns - per_token_ns,
        true_per_token_ns=per_token_ns,
        chunks_off=None if gaps_ns is None else len(gaps_ns) - len(true_gaps_ns),
        tokens_off=None if reading.tokens is None else reading.tokens - truth.tokens,
    )


def pair_all(readings: Iterable[tuple[object, Reading]], truths: Iterable[tuple[object, Truth]]) -> list[Pair]:
    """Readings and truths that have the same key. A reading without a truth is left out: the engine never served it."""
    by_key = dict(truths)
    return [pair(reading, by_key[key]) for key, reading in readings if key in by_key]
