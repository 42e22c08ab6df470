"""What would settle an inconclusive arm: how many blocks, and how many hours of machine time.

The plan answers for an effect three points beyond the material line (5 % against a line of 2 %), with a power of 80 %
(reference: noncentral t). The spread between blocks is taken at its upper 80 % limit: that of a few blocks is often a
lucky one.
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
# The same boots, at a quantile of 200 requests per boot: half widths of ±6.6 % (p95) and ±9.9 % (p99) over five blocks;
# p90 lies between the median (±3.8 %) and p95.
ASSUMED_QUANTILE_SD: Final = {"ttft_p90": 0.055, "ttft_p95": 0.069, "ttft_p99": 0.104}

# Variance of arm − mean of two boots, against that of one boot − another: 3/2 of 2.
BOTH_BOOTS: Final = math.sqrt(0.75)


@dataclass(frozen=True, slots=True)
class Settle:
    """A run of this many blocks in all, which takes this many hours."""

    blocks: int
    hours: float


def planned_effect(line: float) -> float:
    """The relative gain that a plan looks for: three points beyond the line."""
    return -math.expm1(line) + PLANNED_BEYOND_LINE


def assumed_sd(metric: str, boots: int = 1) -> float:
    """Of the block differences of identical arms, against so many boots of the reference in each block."""
    alone = ASSUMED_QUANTILE_SD.get(metric, ASSUMED_BLOCK_SD)
    return alone if boots == 1 else BOTH_BOOTS * alone


def planning_sd(estimate: Estimate | None, assumed: float) -> float:
    """The spread that a plan is made with: the upper 80 % limit of the observed one, and the assumed one without any.

    Two blocks hardly know their spread, and its limit would be four times what was seen: there the assumed one counts,
    or the observed one where that is larger.
    """
    if estimate is None or estimate.sd is None:
        return assumed
    df = estimate.blocks - 1 if estimate.df is None else estimate.df
    return max(assumed, estimate.sd) if df == 1 else stats.sd_upper(estimate.sd, df)


def blocks_for_measure(finding: MeasureFinding, alpha: float, boots: int = 1) -> int | None:
    """Blocks that decide this measure; None where `MOST_BLOCKS` do not, or where no gain can be material. `boots` of
    the reference are in each block."""
    sd = planning_sd(finding.estimate, assumed_sd(finding.measure, boots))
    alpha = min(alpha, finding.alpha)  # without a material line all arms share it
    needed: list[int | None] = []
    line = -finding.line if finding.higher else finding.line
    if finding.zone == "open" and math.isinf(line):
        needed.append(MIN_BLOCKS)  # no gain can be material, so any interval shows that there is none
    elif finding.zone == "open":
        effect = planned_effect(line)
        distance = line - math.log1p(-effect) if effect < 1 else math.inf
        needed.append(stats.required_blocks(distance, sd, alpha))
    if finding.no_worse == "not shown":
        needed.append(stats.required_blocks(math.log1p(finding.margin), sd, alpha))
    known = [blocks for blocks in needed if blocks is not None]
    return max(known, default=0) if len(known) == len(needed) else None


def blocks_for_guard(guard: GuardFinding, alpha: float, boots: int = 1) -> int | None:
    """Blocks that show a guard, by its own spread or, after one block, by an assumed one; None where none would."""
    if guard.settle_blocks is None and guard.value is not None and guard.low is None:
        throughput = guard.metric.startswith("throughput")
        distance = -math.log1p(-guard.limit) if throughput else math.log1p(guard.limit)
        return stats.required_blocks(distance, assumed_sd(guard.metric, boots), alpha)
    return guard.settle_blocks


def settle(
    measures: Sequence[MeasureFinding],
    guards: Sequence[GuardFinding],
    *,
    blocks: int,
    hours_per_block: float,
    alpha: float,
    look: int | None = None,
    boots: int = 1,
) -> Settle | None:
    """Blocks and hours that decide an inconclusive arm, or None where more blocks are no way to decide it.

    `look` is the next declared look of a run that is under way: nothing is decided before it. `boots` of the reference
    are in each block.
    """
    needed = [blocks_for_measure(finding, alpha, boots) for finding in measures if finding.estimate is not None]
    needed += [blocks_for_guard(guard, alpha, boots) for guard in _open(guards, blocks)]
    known = [count for count in needed if count is not None]
    unmeasured = blocks > 0 and any(finding.estimate is None for finding in measures)
    if len(known) < len(needed) or unmeasured:
        return None
    if blocks >= MIN_BLOCKS and look is None and not any(known):
        return None  # something else keeps it open, such as an undeclared difference in cached tokens
    # The observed spread is a lucky one where the plan asks for no more than there was.
    total = max(MIN_BLOCKS, blocks + 1, look or 0, *known)
    return Settle(total, round(total * hours_per_block, 2))


def settle_otherwise(
    measures: Sequence[MeasureFinding],
    guards: Sequence[GuardFinding],
    blockers: Sequence[str],
    *,
    cold: bool,
    blocks: int,
    alpha: float,
    boots: int = 1,
    failing: str | None = None,
    calm: bool = False,
) -> str | None:
    """What would settle an inconclusive arm where more blocks alone would not, as a sentence. None: blocks would.

    Every such way is named. What a blocker is stands among the reasons; it stays however many blocks there are.
    `failing` says how the baseline itself fails. `calm`: the blocks agree too well for their interval to be believed,
    and then nobody knows how many more would do.
    """
    if not cold:
        return "cold boots: let the launcher boot every arm itself; visits to one engine never decide"
    ways = [f"a baseline that answers what it is asked: {failing}"] if failing else []
    ways += ["a new run without what blocks adopt"] if blockers else []
    ways += ["a new run of more blocks: how much this arm scatters is not known yet"] if calm else []
    for guard in _open(guards, blocks):
        if blocks_for_guard(guard, alpha, boots) is None:
            if guard.value is None:
                ways.append(f"a new run that measures {guard.metric} ({guard.reason or 'not measured'})")
            else:
                ways.append(
                    f"{guard.metric} with more requests per boot or a wider margin: {stats.MOST_BLOCKS} blocks do not "
                    f"show its {format_percent(guard.limit, 0)}"
                )
    for finding in measures:
        if finding.estimate is None and blocks > 0:
            ways.append(f"a load on which {finding.title} can be measured: no request had it in both boots of a block")
        elif finding.estimate is not None and blocks_for_measure(finding, alpha, boots) is None:
            sd = format_percent(finding.estimate.sd or assumed_sd(finding.measure, boots))
            ways.append(
                f"a calmer machine: {finding.title} scatters by {sd} from block to block, and {stats.MOST_BLOCKS} "
                "blocks do not decide it"
            )
    return "; and ".join(ways) or None


def _open(guards: Sequence[GuardFinding], blocks: int) -> list[GuardFinding]:
    """Guards that keep an arm from adoption; without a block none of them could have been measured."""
    found = [guard for guard in guards if guard.role == "deciding" and guard.status == "not shown"]
    return found if blocks else []


def how_often(change: float, sd: float = ASSUMED_BLOCK_SD) -> str:
    """How often two identical boots differ by at least this much, under the assumed spread: `12 %`."""
    chance = stats.chance_of_difference(change, sd)
    return format_percent(chance, 0) if chance >= 0.01 else "less than 1 %"


def one_boot_statement(finding: MeasureFinding, arm: str, alpha: float, boots: int = 1) -> str | None:
    """What can be said from one boot per arm: how often two identical boots differ as much. None without a value."""
    estimate: Estimate | None = finding.estimate
    if estimate is None:
        return None
    change = math.expm1(estimate.mean)
    often = how_often(change, assumed_sd(finding.measure, boots))
    alike = "two identical boots differ at least this much"
    if boots > 1:
        alike = "an identical boot differs at least this much from the mean of the baseline's two"
    statement = (
        f"n=1: {arm} {finding.title} {format_change(change)} observed, descriptive only. One boot per arm: no "
        f"between-boot variance known. Under an assumed boot sd of {100 * ASSUMED_BOOT_SD:g} % {alike} {often} of the "
        "time."
    )
    blocks = blocks_for_measure(finding, alpha, boots)
    if blocks is None or math.isinf(finding.line):
        return statement
    turned = -finding.line if finding.higher else finding.line
    effect, line = 100 * planned_effect(turned), -100 * math.expm1(turned)
    return f"{statement} To decide a {effect:.3g} % effect against a {line:.3g} % line: {blocks} blocks."


def one_boot_notes(measures: Sequence[MeasureFinding], guards: Sequence[GuardFinding], boots: int = 1) -> list[str]:
    """The same for the other numbers of one boot, in a sentence: none of them says more than the first."""
    parts = []
    for finding in measures[1:]:
        if finding.estimate is not None:
            change = math.expm1(finding.estimate.mean)
            parts.append(
                f"{finding.title} {format_change(change)} ({how_often(change, assumed_sd(finding.measure, boots))})"
            )
    for guard in guards:
        if guard.value is not None and guard.metric != "error_rate":
            often = how_often(guard.value, assumed_sd(guard.metric, boots))
            parts.append(f"{guard.metric} {format_change(guard.value)} ({often})")
    if not parts:
        return []
    return [f"n=1 too, each with how often identical boots differ as much: {', '.join(parts)}"]
