"""A/A: the baseline against its own second boot in each block. What the bench shows there, it shows between any arms.

Both boots have to be whole in a block, or it is none of A/A. With fewer blocks than a verdict needs the noise floor of
the bench is unknown, and nothing is adopted on it.

An arm is held against these boots, so its differences scatter at least as they do. Three blocks that scatter far less
are luck, and the interval made of them is too narrow: on an H200 a flag that changed nothing "gained" 20 % ± 0.6 % of
TTFT, while the two copies lay up to 28 % apart in a block. Such a gain is not adopted.
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
from profiles.units import format_change, format_percent

# A/A is judged at 99 % two-sided over all measures together, so that one calibrated bench in a hundred is called
# invalid, however many measures the rule has.
AA_ALPHA: Final = 0.005
# A spread that is so improbably below that of the reference is not believed. Of arms that scatter as the baseline does
# this holds up 1.7 % at three blocks, and 0.7 % at five.
TOO_CALM: Final = 0.05


@dataclass(frozen=True, slots=True)
class AaJudgement:
    """`invalid` ends the run, `warnings` are told. `unknown`: measure → why its noise floor is, which forbids adopt."""

    findings: tuple[AaFinding, ...] = ()
    invalid: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)

    def blockers(self, measures: Sequence[MeasureFinding]) -> list[str]:
        """For an arm that itself has blocks enough: where it has not, it stays open by that."""
        return [self.unknown[item.measure] for item in _enough(measures) if item.measure in self.unknown]

    def too_calm(self, measures: Sequence[MeasureFinding], references: int) -> list[str]:
        """Gains that are shown by blocks which agree too well. They forbid adopt as well, and more blocks settle it.

        `references`: boots of the baseline that the arm is held against in each block.
        """
        found = (self._too_calm(item, references) for item in _enough(measures) if item.zone == "gain")
        return [reason for reason in found if reason is not None]

    def _too_calm(self, finding: MeasureFinding, references: int) -> str | None:
        own = finding.estimate
        copy = next((item.estimate for item in self.findings if item.measure == finding.measure), None)
        if own is None or own.sd is None or own.df is not None or copy is None or copy.sd is None:
            return None  # a pooled spread is that of all arms
        # One copy against the other has the noise of two boots, the mean of the reference that of 1 / references.
        floor = copy.sd / math.sqrt(2 * references)
        p = stats.p_calmer(own.sd, own.blocks - 1, floor, copy.blocks - 1)
        if p >= TOO_CALM:
            return None
        return (
            f"the blocks agree on the gain on {finding.title} to {format_percent(own.sd)}, but the baseline's boots "
            f"that they are held against scatter by {format_percent(floor)} alone: so narrow an interval is luck "
            f"(p = {format_percent(p)})"
        )


def _enough(measures: Sequence[MeasureFinding]) -> list[MeasureFinding]:
    return [item for item in measures if item.estimate is not None and item.estimate.blocks >= MIN_BLOCKS]


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
