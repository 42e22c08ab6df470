"""The sweep over low concurrency: per class and c, TTFT and decode rate of an arm against the baseline.

It shows where an arm begins to help or to hurt. It describes and never decides: its intervals are not simultaneous,
and production is not at every c of it.
"""

from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from analysis import stats
from analysis.contrasts import BlockMeans, block_means, class_means
from analysis.stats import Estimate

# What is shown of a measure. The decode rate is the inverse of TPOT: more is better.
SHOWN: Final[dict[Literal["ttft", "tpot"], Literal["ttft", "decode_rate"]]] = {"ttft": "ttft", "tpot": "decode_rate"}


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of a sweep: a log ratio over blocks. Of `ttft` less is better, of `decode_rate` more."""

    workload: str | None  # None: the mix
    c: int
    measure: Literal["ttft", "decode_rate"]
    estimate: Estimate


def sweep_points(pairs: pl.DataFrame, alpha: float = stats.ALPHA) -> tuple[SweepPoint, ...]:
    """All points of the `sweep` windows among these pairs: the mix, then classes by name, each by rising c."""
    swept = pairs.filter(pl.col("kind") == "sweep")
    found: list[SweepPoint] = []
    for c in sorted(swept["c"].unique().to_list()):
        at_c = swept.filter(pl.col("c") == c)
        parts: dict[str | None, dict[str, BlockMeans]] = {None: block_means(at_c)}
        parts.update(class_means(at_c))
        for workload, means in parts.items():
            for measure, shown in SHOWN.items():
                estimate = stats.paired_block_t(list(means[measure].differences.values()), alpha)
                if estimate is not None:
                    found.append(
                        SweepPoint(workload, c, shown, estimate.negated() if shown == "decode_rate" else estimate)
                    )
    return tuple(sorted(found, key=lambda point: (point.measure != "ttft", point.workload or "", point.c)))
