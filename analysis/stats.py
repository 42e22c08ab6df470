"""The statistics of a verdict: plain functions on numbers. The unit of replication is the cold boot, never the request.

An effect is a difference of logarithms, averaged over the requests of one block (one boot of every arm); the interval
is a one-sample t over those block values. Requests as replicates would decide wrongly in four cases of ten, at any
number of boots; a percentile bootstrap over a handful of boots in one of five. `alpha` is one-sided everywhere: 0.05
gives a two-sided 90 % interval.

The distributions come from scipy.special: scipy.stats wraps the same functions and takes seconds to import.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy import special

type Zone = Literal["gain", "no gain", "open"]
type NoWorse = Literal["no worse", "worse", "not shown"]
type Direction = Literal["gain", "loss", "open"]

ALPHA: Final = 0.05
POWER: Final = 0.8
# A design of more blocks than this is not a plan for a person with one machine.
MOST_BLOCKS: Final = 60


@dataclass(frozen=True, slots=True)
class Estimate:
    """A log ratio over blocks: its mean, and the half width of its interval (None below two blocks).

    `sd` is that of a block difference; `df` its degrees of freedom where other arms lent theirs, else blocks − 1.
    """

    blocks: int
    mean: float
    sd: float | None = None
    half_width: float | None = None
    df: int | None = None

    @property
    def low(self) -> float | None:
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        return None if self.half_width is None else self.mean + self.half_width

    def negated(self) -> "Estimate":
        """The same effect with its direction turned, so that lower is better for any measure."""
        return Estimate(self.blocks, -self.mean, self.sd, self.half_width, self.df)


@dataclass(frozen=True, slots=True)
class Pooled:
    """One spread for all arms of a run: the variance of a boot within its block, and its degrees of freedom."""

    mse: float
    df: int

    def sd(self, references: int = 1) -> float:
        """Of a block difference: one boot of the arm against the mean of so many boots of its reference."""
        return math.sqrt(self.mse * (1 + 1 / references))


def paired_block_t(
    differences: Sequence[float], alpha: float = ALPHA, pooled: Pooled | None = None, references: int = 1
) -> Estimate | None:
    """One-sample t over block differences: m, s (ddof 1), h = t(R−1, 1−alpha) · s / √R. None without a block.

    `pooled` replaces the spread of these differences and its degrees of freedom; then `references` says how many boots
    of the reference each of them is held against. One block still has no interval.
    """
    blocks = len(differences)
    if blocks == 0:
        return None
    mean = float(np.mean(differences))
    if blocks == 1:
        return Estimate(1, mean)
    if pooled is not None:
        half_width = critical_t(pooled.df + 1, alpha) * pooled.sd(references) / math.sqrt(blocks)
        return Estimate(blocks, mean, pooled.sd(references), half_width, pooled.df)
    sd = float(np.std(differences, ddof=1))
    return Estimate(blocks, mean, sd, critical_t(blocks, alpha) * sd / math.sqrt(blocks))


def pooled_spread(cells: Sequence[tuple[str, int, float]]) -> Pooled | None:
    """The spread that all arms share, from (arm, block, mean log) cells: y = arm + block + error, by least squares.

    A full table of A arms and R blocks has (A−1)(R−1) degrees of freedom, as in the analysis of a randomised complete
    block; a missing cell takes one away. None where no degree of freedom is left.
    """
    arms = {arm: at for at, arm in enumerate(dict.fromkeys(arm for arm, _, _ in cells))}
    blocks = {block: at for at, block in enumerate(dict.fromkeys(block for _, block, _ in cells))}
    design = np.zeros((len(cells), len(arms) + len(blocks)))
    for row, (arm, block, _) in enumerate(cells):
        design[row, arms[arm]] = design[row, len(arms) + blocks[block]] = 1.0
    values = np.array([value for _, _, value in cells])
    df = len(cells) - int(np.linalg.matrix_rank(design)) if cells else 0
    if df < 1:
        return None
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return Pooled(float(np.sum((values - fitted) ** 2)) / df, df)


def critical_t(blocks: int, alpha: float) -> float:
    """Quantile 1−alpha of Student's t with blocks−1 degrees of freedom."""
    return float(special.stdtrit(blocks - 1, 1 - alpha))


def p_value(estimate: Estimate) -> float | None:
    """Two-sided p of "no difference". None below two blocks."""
    below = p_below(estimate, 0.0)
    return None if below is None else 2 * min(below, 1 - below)


def p_below(estimate: Estimate, line: float) -> float | None:
    """One-sided p of "the effect is at or above the line", small where it is below. None below two blocks."""
    if estimate.sd is None:
        return None
    distance = estimate.mean - line
    if estimate.sd == 0:
        return 0.5 if distance == 0 else float(distance > 0)
    df = estimate.blocks - 1 if estimate.df is None else estimate.df
    return float(special.stdtr(df, distance / (estimate.sd / math.sqrt(estimate.blocks))))


def p_calmer(sd: float, df: int, floor: float, floor_df: int) -> float:
    """How often a spread so far below `floor` comes by chance where in truth it is no smaller: one-sided F test of two
    variances. `floor` is an estimate too, with `floor_df` degrees of freedom; 0 says that there is no floor."""
    if floor == 0:
        return 1.0
    return 0.0 if sd == 0 else float(special.fdtrc(floor_df, df, (floor / sd) ** 2))


def material_line(relative: float, absolute_ms: float = 0.0, geomean_ms: float | None = None) -> float:
    """The smallest gain worth adopting, as a log ratio (zero or negative): the stricter of the two conditions.

    An absolute gain is laid on at the baseline's geometric mean. Where that mean is not even as large as the gain asked
    for, no gain can be material: the line is −inf. Without a geometric mean only the relative condition counts.
    """
    line = math.log1p(-relative)
    if absolute_ms > 0 and geomean_ms is not None:
        if absolute_ms >= geomean_ms:
            return -math.inf
        line = min(line, math.log1p(-absolute_ms / geomean_ms))
    return line


def zone(estimate: Estimate | None, line: float) -> Zone:
    """Where the whole interval lies against the material line; `open` if it straddles it, or if there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return "open"
    if estimate.high < line:
        return "gain"
    return "no gain" if estimate.low > line else "open"


def no_worse(estimate: Estimate | None, margin: float) -> NoWorse:
    """Non-inferiority against a relative margin, lower is better."""
    return against_limit(estimate, math.log1p(margin))


def against_limit(estimate: Estimate | None, limit: float) -> NoWorse:
    """Non-inferiority against a limit in log terms: wholly below it, wholly above it, or neither."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return "not shown"
    if estimate.high < limit:
        return "no worse"
    return "worse" if estimate.low > limit else "not shown"


def direction(estimate: Estimate | None, line: float) -> Direction:
    """A class gains if its interval lies below the line, and loses if it lies above the mirrored line."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return "open"
    if estimate.high < line:
        return "gain"
    return "loss" if estimate.low > -line else "open"


def binomial_upper(events: int, trials: int, alpha: float = ALPHA) -> float:
    """Exact one-sided upper bound of a rate (Clopper-Pearson)."""
    return 1.0 if events >= trials else float(special.betaincinv(events + 1, trials - events, 1 - alpha))


def binomial_lower(events: int, trials: int, alpha: float = ALPHA) -> float:
    """Exact one-sided lower bound of a rate (Clopper-Pearson)."""
    return 0.0 if events <= 0 else float(special.betaincinv(events, trials - events + 1, alpha))


def power(blocks: int, distance: float, sd: float, alpha: float = ALPHA) -> float:
    """Chance that the interval of `blocks` blocks clears a line at this distance, by the noncentral t."""
    if blocks < 2:
        return 0.0
    if sd == 0:
        return float(distance > 0)
    shift = math.sqrt(blocks) * distance / sd
    return 1 - float(special.nctdtr(blocks - 1, shift, critical_t(blocks, alpha)))


def required_blocks(distance: float, sd: float, alpha: float = ALPHA, least: int = 2) -> int | None:
    """The fewest blocks with a power of 80 %, or None above `MOST_BLOCKS`."""
    wanted = (blocks for blocks in range(least, MOST_BLOCKS + 1) if power(blocks, distance, sd, alpha) >= POWER)
    return next(wanted, None)


def sd_upper(sd: float, df: int, share: float = 0.8) -> float:
    """Upper limit of a true spread from an observed one: s · √(df / χ²(1−share, df)).

    A plan that took the observed spread of two or four blocks as it is would often be too short.
    """
    return sd * math.sqrt(df / float(special.chdtri(df, share)))


def chance_of_difference(change: float, sd: float) -> float:
    """How often two identical boots differ by at least this relative change, if log differences have this sd."""
    size = abs(change)
    below = float(special.ndtr(math.log1p(-size) / sd)) if size < 1 else 0.0
    return below + float(special.ndtr(-math.log1p(size) / sd))
