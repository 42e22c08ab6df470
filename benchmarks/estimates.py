"""Figures that are paired by round: medians over rounds, and ratios of what ran side by side.

A ratio is the median of the ratios of single rounds, because both sides of one round ran close together. Its interval
holds 90 % of the medians of resampled rounds.
"""

from typing import NamedTuple

import numpy as np

RESAMPLES = 2_000
INTERVAL_PERCENT = (5, 95)

# One figure of each round, by variant and round.
ByRound = dict[str, dict[int, float]]


class Ratio(NamedTuple):
    """A paired ratio, the interval of its median, how many rounds gave it, and the ratio of the two p10 over rounds."""

    median: float
    low: float
    high: float
    p10: float
    rounds: int


def paired_ratio(figures: ByRound, above: str, below: str) -> Ratio | None:
    """How many times as much `above` is as `below`. None where no round has both."""
    over, under = figures.get(above, {}), figures.get(below, {})
    rounds = [number for number in sorted(over.keys() & under.keys()) if under[number]]
    if not rounds:
        return None
    above_values, below_values = (np.array([values[number] for number in rounds]) for values in (over, under))
    ratios = above_values / below_values
    draws = np.random.default_rng(1).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[draws], axis=1), INTERVAL_PERCENT)
    best = np.percentile(above_values, 10) / np.percentile(below_values, 10)
    return Ratio(float(np.median(ratios)), float(low), float(high), float(best), len(ratios))


def quantile(figures: ByRound, variant: str, percent: float) -> float | None:
    """A quantile over the rounds of a variant, None where it has none."""
    values = list(figures.get(variant, {}).values())
    return float(np.percentile(values, percent)) if values else None
