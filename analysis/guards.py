"""Guards: what an arm must not make worse. Non-inferiority by the block t, an error rate by its exact bound.

A guard at a concurrency that production never reaches does not decide, unless the rule gives a headroom reason.
"""

import math
from dataclasses import dataclass

import polars as pl

from analysis import stats
from analysis.contrasts import Contrast, block_means, deciding_pairs, fewest_values, quantile_differences
from analysis.course import reached_share
from analysis.settle import assumed_sd, planning_sd
from analysis.stats import Estimate
from analysis.throughput import throughput_differences, unsound_blocks
from analysis.verdict import GuardFinding, GuardStatus
from profiles.experiment import GuardRule
from profiles.experiment_checks import MIN_REACH, QUANTILE_NEEDS, guard_parts
from profiles.runs import Run

_STATUS: dict[stats.NoWorse, GuardStatus] = {"no worse": "pass", "worse": "fail", "not shown": "not shown"}


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Deciding requests of an arm over its boots; a boot that the arm killed counts all of its unanswered ones."""

    errors: int
    requests: int


def judge_guard(
    rule: GuardRule, run: Run, contrast: Contrast, errors: ErrorCount, *, alpha: float = stats.ALPHA
) -> GuardFinding:
    """One guard of the rule for one arm. `alpha` is one-sided."""
    parts = guard_parts(rule.metric) or {}
    role, reason = rule.role, ""
    if "c" in parts and not rule.headroom_reason and not reached(run, int(parts["c"])):
        role, reason = "advisory", f"production never reaches c = {parts['c']}"
    if "errors" in parts:
        return _error_rate(rule, errors, max(1, len(contrast.blocks)), alpha)
    spoilt, halved = unsound_blocks(run, contrast, int(parts["c"])) if "c" in parts else ((), ())
    differences: dict[int, float] = {}
    lack = ""
    if "quantile" in parts:
        name = parts["quantile"].removeprefix("ttft_")
        pairs = deciding_pairs(contrast.pairs)
        have, needed = fewest_values(pairs, "ttft"), QUANTILE_NEEDS[name]
        if not contrast.blocks:
            lack = "not measured"
        elif have >= needed:
            differences = quantile_differences(pairs, "ttft", int(name[1:]) / 100)
        else:
            lack = f"{name} not reported (n = {have} per boot, {needed} needed)"
    elif parts.get("measure") == "throughput":
        differences = throughput_differences(run, contrast, int(parts["c"]))
    else:
        at_c = contrast.pairs.filter((pl.col("kind") == "closed") & (pl.col("c") == int(parts["c"])))
        differences = block_means(at_c)[parts["measure"]].differences
    estimate = stats.paired_block_t(list(differences.values()), alpha)
    whole = len(contrast.blocks)
    if spoilt:
        reason = _joined(reason, f"{len(spoilt)} of {whole} blocks left out, the client would have shaped them")
    if halved:
        other = f"in {len(halved)} of {whole} blocks the reference is one boot, the client would have shaped the other"
        reason = _joined(reason, other)
    if estimate is None:
        lack = lack or ("" if spoilt else "not measured")
    higher = rule.direction == "higher" or parts.get("measure") == "throughput"
    margin = rule.margin or 0.0
    # A throughput may fall to 1−margin; with its sign turned, that is one more limit from above.
    limit = -math.log1p(-margin) if higher else math.log1p(margin)
    oriented = estimate.negated() if estimate and higher else estimate
    status = _STATUS[stats.against_limit(oriented, limit)]
    value, low, high = relative(estimate)
    settle = None
    if status == "not shown" and estimate is not None and estimate.sd is not None:
        settle = stats.required_blocks(
            limit, planning_sd(estimate, assumed_sd(rule.metric, contrast.references)), alpha
        )
    return GuardFinding(rule.metric, role, status, margin, value, low, high, _joined(reason, lack), settle)


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def relative(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    """Change, low and high as relative changes: −0.05 is 5 % less."""
    if estimate is None:
        return None, None, None
    return math.expm1(estimate.mean), _expm1(estimate.low), _expm1(estimate.high)


def _expm1(value: float | None) -> float | None:
    # A half width from two blocks can be astronomic; JSON has no infinity, and nobody needs more than a factor e^50.
    return None if value is None else math.expm1(min(value, 50.0))


def reached(run: Run, c: int) -> bool:
    """Whether enough of production's arrivals meet this concurrency."""
    return reached_share(run, c) >= MIN_REACH


def _error_rate(rule: GuardRule, count: ErrorCount, blocks: int, alpha: float) -> GuardFinding:
    ceiling = rule.max or 0.0
    if count.requests == 0:
        return GuardFinding(rule.metric, rule.role, "not shown", ceiling, reason="not measured")
    low = stats.binomial_lower(count.errors, count.requests, alpha)
    high = stats.binomial_upper(count.errors, count.requests, alpha)
    status: GuardStatus = "pass" if high <= ceiling else "fail" if low > ceiling else "not shown"
    settle = None
    if status == "not shown":
        per_block = count.requests / blocks
        rate = count.errors / count.requests
        enough = (
            more
            for more in range(blocks + 1, stats.MOST_BLOCKS + 1)
            if stats.binomial_upper(math.ceil(rate * per_block * more), round(per_block * more), alpha) <= ceiling
        )
        settle = next(enough, None)
    return GuardFinding(
        rule.metric, rule.role, status, ceiling, count.errors / count.requests, low, high, settle_blocks=settle
    )
