"""The crossover of a sweep: the concurrency at which an arm turns from gain to loss, and its uncertainty."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl


@dataclass(frozen=True, slots=True)
class Crossover:
    """One class (None: the mix) and measure of a sweep. Measures as in `sweep`: of `ttft` less is better, of
    `decode_rate` more."""

    workload: str | None
    measure: Literal["ttft", "decode_rate"]
    levels: tuple[int, ...]
    turn: float | None  # c at which the sign of the change turns, interpolated; None: it does not turn
    low: float | None  # its interval; None: open on that side, within the levels that were swept
    high: float | None
    sides: str  # in words: "gains below, loses above", "gains at every c", "cannot tell"


def crossovers(pairs: pl.DataFrame) -> tuple[Crossover, ...]:
    """All of the `sweep` windows among these pairs."""
    return ()


def crossover_document(found: Sequence[Crossover]) -> list[dict[str, Any]]:
    """For verdict.json."""
    return []


def crossover_lines(found: Sequence[Crossover]) -> Iterator[str]:
    """For a person."""
    yield from ()
