"""What separate engine instances per class would be worth on the recorded mix, and where the line lies.

Each class gets the arm that is faster for it. The worth is judged by `held_out`, so that choosing by the same data does
not flatter it; the line, the share of the gaining classes from which on one engine for all gains, by `mix_line`. Both
weigh the classes by their requests in the deciding windows that have the measure, as the verdict does.

That a split is shown at all, only where the verdict saw one, is a choice by the same data too. It is not corrected for:
the verdict asks for material effects on both sides, simultaneous over classes and measures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis import contrasts, stats
from analysis.bench import Bench
from analysis.measures import COLUMNS
from analysis.split.blocks import ClassBlocks, class_blocks, narrowed
from analysis.split.held_out import Floats, choice, chosen_values, held_out_estimate, known_values, mix_values, picks
from analysis.split.limits import split_limits
from analysis.split.line import MixLine, mix_line
from analysis.stats import Estimate
from analysis.verdict import MIN_BLOCKS, MeasureFinding
from profiles.experiment import MeasureRule
from profiles.units import MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """The arm that a class would get. `held`: in how many blocks the other blocks alone chose the same."""

    workload: str
    arm: str
    share: float  # of the requests of the mix
    estimate: Estimate | None  # that arm against the baseline, on this class
    held: int = 0
    blocks: int = 0
    alpha: float = stats.ALPHA  # one-sided, of the estimate

    @property
    def sure(self) -> bool:
        return self.held == self.blocks


@dataclass(frozen=True, slots=True)
class WorkloadSplit:
    """One measure, one arm that is workload-dependent on it. Estimates are log ratios of the mix, lower is better.

    `worth` is the split against the baseline, honest about having chosen by the same data; None with fewer than three
    blocks. `beside` holds the other measures of the rule under the same choices.
    """

    arm: str
    measure: str
    choices: tuple[ClassChoice, ...]
    worth: Estimate | None
    whole: Estimate | None  # the arm for everybody, for comparison
    beside: tuple[tuple[str, Estimate | None], ...]
    gaining: tuple[str, ...]  # classes whose own interval shows a material gain
    # The share of the gaining classes in the mix from which on the arm gains on the mix; None: at no share.
    line: float | None
    line_low: float | None
    line_high: float | None
    even: float | None  # the share from which on the arm is no slower on the mix
    share_now: float  # of the gaining classes
    material: float | None  # the line itself as a relative change at the mix of today; None: no gain can be material
    limits: tuple[str, ...]  # what these numbers cannot know: memory for two engines, another c in each, caches
    line_left_out: bool = False  # it tells a latency, and this is for other eyes


@dataclass(frozen=True, slots=True)
class BestSplit:
    """Where several arms depend on the workload: one measure, every class on the best of them all."""

    measure: str
    choices: tuple[ClassChoice, ...]
    worth: Estimate | None
    beside: tuple[tuple[str, Estimate | None], ...]


def splits(bench: Bench, arm: str, measures: Sequence[MeasureFinding]) -> tuple[WorkloadSplit, ...]:
    """One for each measure on which some class of the arm gains materially and another loses."""
    measures = [finding for finding in measures if finding.measure in COLUMNS]
    mixed = [finding for finding in measures if {item.direction for item in finding.classes} >= {"gain", "loss"}]
    if not mixed:
        return ()
    against = bench.contrast(arm, bench.baseline)
    pairs = contrasts.deciding_pairs(against.pairs)
    names, tables = class_blocks(pairs, against.blocks, [finding.measure for finding in measures])
    rules: dict[str, MeasureRule] = {rule.name: rule for rule in bench.experiment.file.measure}
    found = []
    for finding in mixed:
        table = tables[finding.measure]
        chosen, estimates = _judged([finding.measure, *tables], [bench.baseline, arm], [tables], names, bench.alpha)
        gaining = tuple(item.name for item in finding.classes if item.direction == "gain")
        ours = np.array([name in gaining for name in names])
        line = _line(table, ours, rules[finding.measure], bench.alpha, material=True)
        even = _line(table, ours, rules[finding.measure], bench.alpha, material=False)
        shares = {item.workload: item.share for item in chosen}
        found.append(
            WorkloadSplit(
                arm=arm,
                measure=finding.measure,
                choices=chosen,
                worth=estimates.pop(finding.measure),
                whole=finding.estimate,
                beside=tuple(estimates.items()),
                gaining=gaining,
                line=line.share,
                line_low=line.low,
                line_high=line.high,
                even=even.share,
                share_now=sum(shares[name] for name in gaining),
                material=math.expm1(finding.line) if math.isfinite(finding.line) else None,
                limits=split_limits(bench, arm, sum(item.share for item in chosen if item.arm == arm)),
            )
        )
    return tuple(found)


def best_splits(bench: Bench, found: Sequence[WorkloadSplit]) -> tuple[BestSplit, ...]:
    """Over all arms at once, for each measure on which at least two of them split."""
    best = []
    for measure in dict.fromkeys(item.measure for item in found):
        arms = [item.arm for item in found if item.measure == measure]
        if len(arms) < 2:
            continue
        against = [bench.contrast(arm, bench.baseline) for arm in arms]
        blocks = tuple(sorted(set.intersection(*(set(contrast.blocks) for contrast in against))))
        measures = [rule.name for rule in bench.experiment.file.measure if rule.name in COLUMNS]
        made = [class_blocks(contrasts.deciding_pairs(contrast.pairs), blocks, measures) for contrast in against]
        names = sorted(set.intersection(*(set(names) for names, _ in made)))
        if not names or not blocks:
            continue
        tables = [narrowed(each, tables, names) for each, tables in made]
        chosen, estimates = _judged([measure, *measures], [bench.baseline, *arms], tables, names, bench.alpha)
        worth = estimates.pop(measure)
        best.append(BestSplit(measure, chosen, worth, tuple(estimates.items())))
    return tuple(best)


def _judged(
    measures: Sequence[str],
    arms: Sequence[str],
    tables: Sequence[Mapping[str, ClassBlocks]],
    names: Sequence[str],
    alpha: float,
) -> tuple[tuple[ClassChoice, ...], dict[str, Estimate | None]]:
    """The choices by the first measure, and what they do to every measure. `arms` begins with the baseline, `tables`
    holds the others'."""
    first = measures[0]
    candidates = _candidates(tables, first)
    held_out, final = picks(candidates), choice(candidates)
    unsure = (held_out != final[:, None]).any(axis=1)
    counts = np.mean([table[first].counts for table in tables], axis=0)
    shares = counts.sum(axis=1) / max(1.0, float(counts.sum()))
    chosen = tuple(
        ClassChoice(
            workload=name,
            arm=arms[final[row]],
            share=float(shares[row]),
            estimate=None if final[row] == 0 else _estimate(candidates[final[row], row], alpha),
            held=int((held_out[row] == final[row]).sum()),
            blocks=candidates.shape[2],
            alpha=alpha,
        )
        for row, name in enumerate(names)
    )
    estimates: dict[str, Estimate | None] = {}
    for measure in dict.fromkeys(measures):
        weights = np.mean([table[measure].counts for table in tables], axis=0)
        moved = chosen_values(_candidates(tables, measure), held_out)
        values = mix_values(moved, weights)
        enough = len(known_values(values)) >= MIN_BLOCKS
        estimates[measure] = held_out_estimate(values, mix_values(moved, weights, unsure), alpha) if enough else None
    return chosen, estimates


def _candidates(tables: Sequence[Mapping[str, ClassBlocks]], measure: str) -> Floats:
    """Arm × class × block, the baseline first."""
    differences = [table[measure].differences for table in tables]
    return np.stack([np.zeros_like(differences[0]), *differences])


def _line(table: ClassBlocks, ours: NDArray[np.bool_], rule: MeasureRule, alpha: float, *, material: bool) -> MixLine:
    """The line on the mix moves with the share where the rule asks for milliseconds: the baseline's mean moves."""
    sides = [mix_values(table.differences[rows], table.counts[rows]) for rows in (ours, ~ours)]
    both = ~np.isnan(sides[0]) & ~np.isnan(sides[1])
    levels = [
        float(np.nanmean(mix_values(table.base[rows], table.counts[rows]))) - math.log(MILLISECOND_NS)
        for rows in (ours, ~ours)
    ]

    def line_at(share: float) -> float:
        geomean_ms = math.exp(share * levels[0] + (1 - share) * levels[1])
        return stats.material_line(rule.material.relative, rule.material.absolute_ms, geomean_ms) if material else 0.0

    return mix_line(sides[0][both].tolist(), sides[1][both].tolist(), line_at, alpha)


def _estimate(values: Floats, alpha: float) -> Estimate | None:
    return stats.paired_block_t(known_values(values), alpha)
