"""What would settle an inconclusive arm: how many blocks, and how many hours of machine time.

The plan answers for an effect three points beyond the material line (5 % against a line of 2 %), at the spread between
blocks that was observed, with a power of 80 % (reference: noncentral t).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analysis import stats
from analysis.stats import Estimate
from analysis.verdict import MIN_BLOCKS, GuardFinding, MeasureFinding
from profiles.units import format_change, format_percent

PLANNED_BEYOND_LINE: Final = 0.03
# One boot per arm shows no spread between boots. An assumption, not a measurement of any engine: boots that scatter by
# 1.5 % give block differences that scatter by 2.32 % (simulated with drift and an effect of boot × class).
ASSUMED_BOOT_SD: Final = 0.015
ASSUMED_BLOCK_SD: Final = 0.0232


@dataclass(frozen=True, slots=True)
class Settle:
    """A run of this many blocks in all, which takes this many hours."""

    blocks: int
    hours: float


def planned_effect(line: float) -> float:
    """The relative gain that a plan looks for: three points beyond the line."""
    return -math.expm1(line) + PLANNED_BEYOND_LINE


def blocks_for_measure(finding: MeasureFinding, alpha: float) -> int | None:
    """Blocks that decide this measure; None where `MOST_BLOCKS` do not, or where no gain can be material."""
    sd = finding.estimate.sd if finding.estimate is not None else None
    sd = ASSUMED_BLOCK_SD if sd is None else sd
    needed: list[int | None] = []
    if finding.zone == "open":
        effect = planned_effect(finding.line)
        distance = finding.line - math.log1p(-effect) if effect < 1 else 0.0
        needed.append(stats.required_blocks(distance, sd, alpha))
    if finding.no_worse == "not shown":
        needed.append(stats.required_blocks(math.log1p(finding.margin), sd, alpha))
    known = [blocks for blocks in needed if blocks is not None]
    return max(known, default=0) if len(known) == len(needed) else None


def settle(
    measures: Sequence[MeasureFinding],
    guards: Sequence[GuardFinding],
    *,
    blocks: int,
    hours_per_block: float,
    alpha: float,
) -> Settle | None:
    """Blocks and hours that decide an inconclusive arm, or None where more blocks are no way to decide it."""
    needed = [blocks_for_measure(finding, alpha) for finding in measures]
    needed += [guard.settle_blocks for guard in guards if guard.role == "deciding" and guard.status == "not shown"]
    known = [count for count in needed if count is not None]
    if len(known) < len(needed):
        return None
    if blocks >= MIN_BLOCKS and not any(known):
        return None  # something else keeps it open, such as an undeclared difference in cached tokens
    # The observed spread is a lucky one where the plan asks for no more than there was.
    total = max(MIN_BLOCKS, blocks + 1, *known)
    return Settle(total, round(total * hours_per_block, 2))


def one_boot_statement(finding: MeasureFinding, arm: str, alpha: float) -> str | None:
    """What can be said from one boot per arm: how often two identical boots differ as much. None without a value."""
    estimate: Estimate | None = finding.estimate
    if estimate is None:
        return None
    change = math.expm1(estimate.mean)
    chance = stats.chance_of_difference(change, ASSUMED_BLOCK_SD)
    often = format_percent(chance, 0) if chance >= 0.01 else "less than 1 %"
    statement = (
        f"n=1: {arm} {finding.title} {format_change(change)} observed, descriptive only. One boot per arm: no "
        f"between-boot variance known. Under an assumed boot sd of {100 * ASSUMED_BOOT_SD:g} % two identical boots "
        f"differ at least this much {often} of the time."
    )
    blocks = blocks_for_measure(finding, alpha)
    if blocks is None:
        return statement
    effect, line = 100 * planned_effect(finding.line), -100 * math.expm1(finding.line)
    return f"{statement} To decide a {effect:.3g} % effect against a {line:.3g} % line: {blocks} blocks."
