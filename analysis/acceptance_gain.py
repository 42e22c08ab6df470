"""Acceptance against gain, per class: whether the gain of a longer draft follows how well drafts are accepted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.acceptance import AcceptanceFinding
from analysis.stats import Estimate
from analysis.verdict import MeasureFinding


@dataclass(frozen=True, slots=True)
class AcceptanceGain:
    """One class: mean acceptance length, baseline and arm, beside the change of TPOT (log ratio, lower is better).

    The bare rate is kept beside it and never compared between draft lengths.
    """

    workload: str
    base_length: float | None
    own_length: float | None
    base_rate: float | None
    own_rate: float | None
    estimate: Estimate | None


def acceptance_gains(
    drafts: Mapping[str, tuple[AcceptanceFinding | None, AcceptanceFinding | None]],
    measures: Sequence[MeasureFinding],
) -> tuple[AcceptanceGain, ...]:
    """By the baseline's acceptance length, rising. Classes without acceptance have no entry."""
    return ()


def acceptance_gain_document(found: Sequence[AcceptanceGain]) -> list[dict[str, Any]]:
    """For verdict.json."""
    return []


def acceptance_gain_lines(found: Sequence[AcceptanceGain]) -> Iterator[str]:
    """For a person."""
    yield from ()
