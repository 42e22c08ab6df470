"""A/A: the baseline against its own second boot in each block. What the bench shows there, it shows between any arms.

Both boots have to be whole in a block, or it is none of A/A. With fewer blocks than a verdict needs the noise floor of
the bench is unknown, and nothing is adopted on it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from analysis import stats
from analysis.bench import Bench
from analysis.findings import AaFinding
from analysis.measured import line_of, measured, natural
from analysis.measures import title_of
from analysis.verdict import MIN_BLOCKS, MeasureFinding
from profiles.units import format_change

# A/A is judged at 99 % two-sided over all measures together, so that one calibrated bench in a hundred is called
# invalid, however many measures the rule has.
AA_ALPHA: Final = 0.005


@dataclass(frozen=True, slots=True)
class AaJudgement:
    """`invalid` ends the run, `warnings` are told. `unknown`: measure → why its noise floor is, which forbids adopt."""

    findings: tuple[AaFinding, ...] = ()
    invalid: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)

    def blockers(self, measures: Sequence[MeasureFinding]) -> list[str]:
        """For an arm that itself has blocks enough: where it has not, it stays open by that."""
        enough = (item.measure for item in measures if item.estimate and item.estimate.blocks >= MIN_BLOCKS)
        return [self.unknown[name] for name in enough if name in self.unknown]


def judge_aa(bench: Bench) -> AaJudgement:
    """Every measure of the rule, the copy against the baseline."""
    copy = bench.run.manifest.get("aa")
    if not copy:
        said = "no second copy of the baseline was booted: the noise floor of this bench is unknown"
        return AaJudgement(warnings=(said,))
    rules = bench.experiment.file.measure
    found = measured(rules, bench.run, bench.contrast(str(copy), bench.baseline))
    findings, invalid, warnings = [], [], []
    unknown: dict[str, str] = {}
    for rule in rules:
        title, means = title_of(rule.name), found[rule.name].mix
        estimate = natural(stats.paired_block_t(list(means.differences.values()), AA_ALPHA / len(rules)), rule.name)
        findings.append(AaFinding(rule.name, estimate))
        blocks = estimate.blocks if estimate is not None else 0
        if blocks < MIN_BLOCKS:
            have = f"{blocks} {'block' if blocks == 1 else 'blocks'} of at least {MIN_BLOCKS}"
            unknown[rule.name] = f"A/A on {title} has {have}, so the noise floor of this bench is unknown"
        if estimate is None or estimate.low is None or estimate.high is None:
            warnings.append(f"A/A on {title}: too few blocks for an interval")
            continue
        if estimate.low > 0 or estimate.high < 0:
            change = format_change(math.expm1(estimate.mean))
            invalid.append(
                f"A/A failed: the bench sees a difference between {bench.baseline} and itself ({title} {change})"
            )
        if 0 < abs(line_of(rule, means)) < abs(estimate.mean):
            warnings.append(f"A/A on {title}: the mean alone is beyond the material line")
    return AaJudgement(tuple(findings), tuple(invalid), tuple(warnings), unknown)
