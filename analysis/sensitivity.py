"""How far a verdict leans on the arrival weights: the same effects, weighted otherwise."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analysis.bench import Bench
from analysis.stats import Estimate, Zone
from analysis.verdict import MeasureFinding


@dataclass(frozen=True, slots=True)
class Scenario:
    """One measure under other weights than the rule's. `same`: the zone is the one that the rule's weights give."""

    measure: str
    weights: str  # in words, such as "all arrivals at c = 1" or "by busy time, not by arrivals"
    estimate: Estimate | None
    zone: Zone
    same: bool


def scenarios(bench: Bench, pairs: pl.DataFrame, measures: Sequence[MeasureFinding]) -> tuple[Scenario, ...]:
    """The deciding pairs of an arm, weighted otherwise. Describes, decides nothing."""
    return ()


def sensitivity_document(found: Sequence[Scenario]) -> list[dict[str, Any]]:
    """For verdict.json."""
    return []


def sensitivity_lines(found: Sequence[Scenario]) -> Iterator[str]:
    """For a person: one or two sentences."""
    yield from ()
