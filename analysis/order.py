"""Order and drift: does the place of a boot in the run show in the baseline's own boots?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.bench import Bench


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """One measure of the baseline's boots (its copy too) against their place in the run, counted in boots from 1."""

    measure: str
    boots: int
    spearman: float | None  # None with fewer than 4 boots
    p: float | None  # exact or by permutation, two-sided
    drift_per_boot: float | None  # slope of the boot's mean log per place: 0.001 is 0.1 % slower from boot to boot


def check_order(bench: Bench) -> tuple[OrderCheck, ...]:
    """One check per measure of the rule."""
    return ()


def order_document(checks: Sequence[OrderCheck]) -> list[dict[str, Any]]:
    """For verdict.json."""
    return []


def order_lines(checks: Sequence[OrderCheck]) -> Iterator[str]:
    """For a person: sentences for the head of the report."""
    yield from ()
