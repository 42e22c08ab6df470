"""From batches to figures: per round and client, and over all requests of a client.

A p50 is taken within each round, so that rounds can be paired. A p99 is taken over the requests of all rounds: within a
round it would be its maximum.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from benchmarks.estimates import ByRound
from benchmarks.replay.pairs import Pair
from benchmarks.replay.raw import LEVELS, TEN, BatchLine, HelpLine, Line


def batches(lines: Iterable[Line], scenario: str, c: int | None = None) -> list[BatchLine]:
    """The batches of a scenario, at one level of concurrency or at all."""
    return [line for line in lines if isinstance(line, BatchLine) and line.scenario == scenario and c in (None, line.c)]


def levels(lines: Iterable[Line]) -> list[int]:
    return sorted({line.c for line in batches(lines, LEVELS)})


def ttft_errors_ns(pairs: Iterable[Pair]) -> list[float]:
    return [pair.ttft_error_ns for pair in pairs if pair.ttft_error_ns is not None]


def gap_errors_ns(pairs: Iterable[Pair]) -> list[float]:
    return [float(error) for pair in pairs for error in pair.gap_errors_ns or ()]


def per_token_errors(pairs: Iterable[Pair]) -> list[float]:
    """As shares of the true time per token."""
    return [pair.per_token_error_ns / pair.true_per_token_ns for pair in pairs if pair.per_token_error_ns is not None]


def by_round(found: Iterable[BatchLine], figure: Callable[[BatchLine], float | None]) -> ByRound:
    rounds: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for line in found:
        value = figure(line)
        if value is not None:
            rounds[line.client][line.round] = value
    return dict(rounds)


def median_of(errors: Callable[[Iterable[Pair]], list[float]]) -> Callable[[BatchLine], float | None]:
    """The p50 of a batch."""

    def figure(line: BatchLine) -> float | None:
        values = errors(line.pairs)
        return float(np.median(values)) if values else None

    return figure


def all_requests(
    found: Iterable[BatchLine], client: str, errors: Callable[[Iterable[Pair]], list[float]]
) -> list[float]:
    """The errors of a client over all rounds."""
    return errors(pair for line in found if line.client == client for pair in line.pairs)


def percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def over_engine_ns(line: BatchLine) -> float | None:
    """From the start of the process to the engine's last byte, less the time in which the engine had a request."""
    if line.to_last_byte_ns is None or line.engine_ns is None:
        return None
    return line.to_last_byte_ns - line.engine_ns


def starts(lines: Iterable[Line]) -> list[BatchLine]:
    """The runs of ten requests that were a start of a program."""
    return [line for line in batches(lines, TEN) if line.to_last_byte_ns is not None]


def help_ns(lines: Iterable[Line]) -> ByRound:
    rounds: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for line in lines:
        if isinstance(line, HelpLine):
            rounds[line.client][line.round] = line.wall_ns
    return dict(rounds)


def wrong_of(pair: Pair, *, counts: bool = True) -> list[str]:
    """What a client got wrong about one answer, in words. Empty: exactly 0 off."""
    wrong = []
    if pair.first_chunk is None:
        wrong.append("no first token")
    elif pair.first_chunk:
        wrong.append(f"first token {pair.first_chunk:+d} chunks".replace("-", "−"))
    if counts and pair.chunks_off:
        wrong.append(f"{pair.chunks_off:+d} chunks".replace("-", "−"))
    if counts and pair.tokens_off:
        wrong.append(f"{pair.tokens_off:+d} tokens".replace("-", "−"))
    return wrong
