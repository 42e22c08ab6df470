"""A design and its noise, and what one measure or one guard can show by itself: exact, without a draw.

A gain is shown where the whole interval of the block t lies beyond the material line, which is a noncentral t; an error
rate where its exact bound lies below the ceiling. `chances` puts them together into verdicts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from scipy import special

from analysis import stats


@dataclass(frozen=True, slots=True)
class TrialMeasure:
    """A measure of the rule: its material line, the limit of what is no worse, and the sd of its block differences.

    Logarithms of ratios, turned so that lower is better. `class_sd` is the sd of a class's difference around that of
    the mix. `share` is what it gets of the trial's alpha.
    """

    name: str
    line: float
    limit: float
    sd: float
    class_sd: Mapping[str, float] = field(default_factory=dict)
    higher: bool = False  # more of it is a gain
    share: float = 1.0

    def shift(self, gain: float) -> float:
        """The log ratio of a true relative gain."""
        return -math.log1p(gain) if self.higher else math.log1p(-gain)


@dataclass(frozen=True, slots=True)
class TrialGuard:
    """A deciding guard: `follows` is the measure whose effect it shares. An error rate has `requests` per block."""

    metric: str
    limit: float  # log ratio, lower is better; of an error rate the ceiling
    sd: float = 0.0
    follows: str | None = None
    requests: int = 0
    error_rate: float = 0.0  # the true one


@dataclass(frozen=True, slots=True)
class Trial:
    """A design and its noise. `arms` counts the second copy of the baseline; `weights` is the share of each class."""

    blocks: int
    measures: tuple[TrialMeasure, ...]
    guards: tuple[TrialGuard, ...] = ()
    looks: tuple[int, ...] = ()  # empty: one, after the last block
    weights: Mapping[str, float] = field(default_factory=dict)
    pooled: bool = False
    arms: int = 3

    @property
    def alpha(self) -> float:
        """One-sided, of one look."""
        return stats.ALPHA / max(1, len(self.looks))


def smallest_gain(measure: TrialMeasure, blocks: int, alpha: float) -> float | None:
    """The smallest true gain that this measure calls material in 80 % of runs (noncentral t); None: not even 99 %."""
    if not math.isfinite(measure.line):
        return None
    shift = measure.line - distance_for_power(blocks, measure.sd, alpha * measure.share)
    if shift < math.log(0.01):
        return None
    return math.expm1(-shift) if measure.higher else -math.expm1(shift)


def distance_for_power(blocks: int, sd: float, alpha: float) -> float:
    """How far beyond a line an effect must lie to be shown there in 80 % of runs; infinite below two blocks."""
    if blocks < 2:
        return math.inf
    low, high = 0.0, sd * 1000
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if stats.power(blocks, middle, sd, alpha) < stats.POWER else (low, middle)
    return high


def guard_chance(guard: TrialGuard, blocks: int, alpha: float) -> float:
    """Chance that an arm that changes nothing passes a guard: noncentral t, or the binomial of its errors."""
    if not guard.requests:
        return stats.power(blocks, guard.limit, guard.sd, alpha)
    allowed = allowed_errors(guard.requests * blocks, guard.limit, alpha)
    if allowed is None:
        return 0.0
    if guard.error_rate == 0:
        return 1.0
    return float(special.bdtr(allowed, guard.requests * blocks, guard.error_rate))


def allowed_errors(requests: int, ceiling: float, alpha: float = stats.ALPHA) -> int | None:
    """The most failed requests that still show a rate below the ceiling; None where not even none does."""
    if stats.binomial_upper(0, requests, alpha) > ceiling:
        return None
    low, high = 0, requests
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if stats.binomial_upper(middle, requests, alpha) <= ceiling else (low, middle)
    return low
