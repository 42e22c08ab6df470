"""The block differences by which a listed measure is judged: of the recorded mix at the operating point, or of a closed
window at a concurrency of its own.

`throughput@c=8` is judged by the rates of the windows at c, `ttft@c=8` and `tpot@c=8` by the pairs of requests in them.
They are turned so that lower is better for every measure; what is shown is turned back (`natural`). Where the mix was
played at c, its window counts, a fixed list before a limited time; else the windows of all classes together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from analysis import contrasts, stats, throughput
from analysis.contrasts import BlockMeans, Contrast
from analysis.measures import higher_is_better
from analysis.stats import Estimate
from profiles.experiment import MeasureRule
from profiles.experiment_checks import measure_parts
from profiles.runs import Run


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of an arm against its reference, lower is better. `classes` is empty where no class was played at c.

    `coverage` is the share of the pairs that have the measure, None where it is not one of requests.
    """

    mix: BlockMeans
    classes: dict[str, BlockMeans] = field(default_factory=dict)
    coverage: float | None = None


def measured(rules: Sequence[MeasureRule], run: Run, contrast: Contrast) -> dict[str, Measured]:
    """Every measure of the rule by its name. A block that gives no sound number is left out."""
    deciding: dict[str, Measured] | None = None
    found = {}
    for rule in rules:
        parts = measure_parts(rule.name) or {}
        name = parts.get("measure", rule.name)
        if "c" not in parts:
            deciding = deciding or _of_requests(contrasts.deciding_pairs(contrast.pairs))
            found[rule.name] = deciding[name]
        elif higher_is_better(rule.name):
            found[rule.name] = _of_rates(run, contrast, int(parts["c"]))
        else:
            found[rule.name] = _of_requests(pairs_at(run, contrast, int(parts["c"])))[name]
    return found


def natural(estimate: Estimate | None, measure: str) -> Estimate | None:
    """An estimate that was turned so that lower is better, as the change of the measure itself."""
    return estimate.negated() if estimate is not None and higher_is_better(measure) else estimate


def line_of(rule: MeasureRule, means: BlockMeans) -> float:
    """The material line where lower is better: with 3 % more throughput a token takes 1 / 1.03 of the time."""
    if higher_is_better(rule.name):
        return -math.log1p(rule.material.relative)
    return stats.material_line(rule.material.relative, rule.material.absolute_ms, means.base_geomean_ms)


def pairs_at(run: Run, contrast: Contrast, c: int) -> pl.DataFrame:
    """The pairs of the closed windows at c: of the mix, else of the classes that were played there."""
    windows = [w for w in run.manifest.get("windows") or [] if w.get("kind") == "closed" and w.get("c") == c]
    mixed = [window for window in windows if window.get("workload") is None]
    chosen = sorted(mixed, key=lambda window: window.get("limit_ns") is not None)[:1] or windows
    return contrast.pairs.filter(pl.col("window").is_in([str(window["name"]) for window in chosen]))


def _of_requests(pairs: pl.DataFrame) -> dict[str, Measured]:
    means, classes = contrasts.block_means(pairs), contrasts.class_means(pairs)
    return {
        name: Measured(
            mix=mix,
            classes={workload: own[name] for workload, own in classes.items()},
            coverage=contrasts.coverage(pairs, name),
        )
        for name, mix in means.items()
    }


def _of_rates(run: Run, contrast: Contrast, c: int) -> Measured:
    def turned(differences: dict[int, float]) -> BlockMeans:
        return BlockMeans({block: -difference for block, difference in differences.items()})

    by_class = throughput.class_differences(run, contrast, c)
    return Measured(
        mix=turned(throughput.throughput_differences(run, contrast, c)),
        classes={workload: turned(differences) for workload, differences in by_class.items()},
    )
