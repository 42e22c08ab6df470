"""The anytime-valid interval: it may be looked at after every block, and a run may stop on it at any time.

It is wider than the interval of a declared look, so it decides nothing here: it answers "may I stop early?" for a run
that is under way. A plain t interval, looked at after each of ten blocks, would decide wrongly in one case of five.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from analysis import stats
from analysis.lines import format_estimate
from analysis.stats import ALPHA, Estimate
from analysis.verdict import MeasureFinding

# The weight of the normal mixture (reference: g = 10), fixed before any block is seen.
MIXTURE: Final = 10.0


def anytime(estimate: Estimate | None, alpha: float = ALPHA) -> Estimate | None:
    """The same estimate with the half width of a t confidence sequence; `alpha` is one-sided as everywhere.

    n blocks, k = 1 + n·g, q = (√k / 2alpha)^(2/n), h = s/√n · √((n−1)(q−1) / (1−q/k)); no interval where q ≥ k, and
    none of a pooled spread, for which the formula does not hold.
    """
    if estimate is None or estimate.sd is None or estimate.df is not None:
        return estimate and replace(estimate, half_width=None)
    n = estimate.blocks
    k = 1 + n * MIXTURE
    q = (math.sqrt(k) / (2 * alpha)) ** (2 / n)
    if q >= k:
        return replace(estimate, half_width=None)
    half_width = estimate.sd / math.sqrt(n) * math.sqrt((n - 1) * (q - 1) / (1 - q / k))
    return replace(estimate, half_width=half_width)


def may_stop(finding: MeasureFinding) -> bool:
    """Whether the anytime interval, too, lies on one side of the material line, and without a gain of the margin."""
    estimate, line, limit = anytime(finding.estimate), finding.line, math.log1p(finding.margin)
    if finding.higher and estimate is not None:
        estimate, line, limit = estimate.negated(), -line, -math.log1p(-finding.margin)
    zone = stats.zone(estimate, line)
    return zone == "gain" or (zone == "no gain" and stats.against_limit(estimate, limit) != "not shown")


def anytime_lines(measures: Sequence[MeasureFinding]) -> Iterator[str]:
    """For a person, while a run is under way: whether more blocks can still change what is seen."""
    parts = []
    for finding in measures:
        estimate = anytime(finding.estimate)
        if estimate is not None and estimate.half_width is not None:
            parts.append(f"{finding.title} {format_estimate(estimate)}")
    if not parts:
        return
    clear = all(map(may_stop, measures))
    advice = "clear of every line, further blocks are for the declared look" if clear else "not clear of the lines yet"
    yield f"may I stop early? Valid after any number of blocks: {'; '.join(parts)}: {advice} (decides nothing)"
