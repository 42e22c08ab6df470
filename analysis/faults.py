"""What stands against an arm beside its numbers: boots that died, requests that failed, evidence that is missing.

What the arm causes counts against it; what the surroundings cause is discarded and replaced, visibly.
"""

from typing import Final

from analysis import contrasts, course, stats
from analysis.bench import Bench
from analysis.bench_check import copies
from analysis.contrasts import Contrast
from analysis.endings import ending
from analysis.guards import ErrorCount
from analysis.settle import one_boot_notes, one_boot_statement
from analysis.verdict import MIN_BLOCKS, GuardFinding, MeasureFinding
from profiles.experiment import Arm
from profiles.records import OK
from profiles.runs import DISCARDED, DONE, FAILED, BootFacts
from profiles.units import format_percent

# Two points more or fewer cached prompt tokens are two per cent of prefill work, the default material line of TTFT:
# from there on the cache explains a gain as well as the flags do.
CACHED_DIFFERENCE: Final = 0.02
# More failed requests than this and the survivors are no longer the same load.
FAILED_SHARE: Final = 0.02

NOT_COLD: Final = (
    "nothing was cold-booted: each block is one more visit to an engine that was up already, and a cold boot is the "
    "replicate"
)


def too_few(
    bench: Bench,
    arm: Arm,
    against: Contrast,
    measures: tuple[MeasureFinding, ...],
    guards: tuple[GuardFinding, ...],
    *,
    unstable: bool,
) -> list[str]:
    """Why the arm cannot be decided yet. What it broke itself is no lack of evidence: that counts against it.

    Without a cold boot nothing can be decided at all: the boot is the replicate.
    """
    if not bench.cold:
        return [NOT_COLD]
    if unstable and arm.name in course.dropped_arms(bench.run):
        return []
    reasons = [bench.course.undeclared] if bench.course.undeclared else []
    usable = len(against.blocks)
    own_fault = {boot.facts.block for boot in bench.run.boots if died(boot.facts) and boot.facts.arm == arm.name}
    lost = len((own_fault | set(against.broken)) & bench.course.blocks - set(against.blocks))
    if usable >= MIN_BLOCKS or (unstable and usable + lost >= MIN_BLOCKS):
        return reasons
    if usable == 1 and (statement := one_boot_statement(measures[0], arm.name, bench.alpha, against.references)):
        return [statement, *one_boot_notes(measures, guards, against.references), *reasons]
    found = "1 usable block" if usable == 1 else f"{usable} usable blocks"
    return [f"too few blocks: {found}, at least {MIN_BLOCKS} are needed", *reasons]


def died(facts: BootFacts) -> bool:
    """Whether the arm ended this boot: it would not boot, hung, or died while it served."""
    return facts.status == FAILED or (facts.status == DONE and facts.stop == "died")


def instability(bench: Bench, arm: str) -> list[str]:
    """What the arm broke, as far as the baseline does not break it as often."""
    boots = [boot.facts for boot in bench.run.boots if boot.facts.status != DISCARDED]
    own = [facts for facts in boots if facts.arm == arm]
    other = [facts for facts in boots if facts.arm in copies(bench)]
    dead = [facts for facts in own if died(facts)]
    base_rate = sum(died(facts) for facts in other) / len(other) if other else 0.0
    reasons = []
    dropped = arm in course.dropped_arms(bench.run)
    # An arm that was not booted again after its death has no rate to compare: it is out.
    if dead and (dropped or len(dead) / len(own) > base_rate):
        why = next((ending(facts) for facts in dead if facts.reason), "the engine died")
        again = ", not booted again" if dropped else ""
        reasons.append(f"unstable: {len(dead)} of {len(own)} boots failed{again}: {why}")
    failed, asked = contrasts.failures(bench.frame, arm)
    # Both boots of the baseline in a block tell how often it fails.
    theirs = [contrasts.failures(bench.frame, name) for name in copies(bench)]
    base_failed, base_asked = (sum(counts) for counts in zip(*theirs, strict=True))
    if asked and failed / asked > FAILED_SHARE:
        ceiling = stats.binomial_upper(base_failed, base_asked, bench.alpha) if base_asked else 1.0
        if stats.binomial_lower(failed, asked, bench.alpha) > ceiling:
            rate, base = format_percent(failed / asked), format_percent(base_failed / base_asked)
            reasons.append(f"unstable: {rate} of its requests failed or timed out, {base} of the baseline's")
    return reasons


def failing_baseline(bench: Bench) -> str | None:
    """How often the baseline itself fails, where that leaves blocks without a reference; None where it does not.

    A single block of it may be chance, and then more blocks are a way to decide.
    """
    held = contrasts.held_by_boot(bench.frame, bench.planned)
    theirs = {key: boot for key, boot in held.items() if key[0] in copies(bench)}
    serving = {block for (_, block), boot in theirs.items() if boot.serves}
    if all(block in serving for _, block in theirs):
        return None
    share = sum(boot.fault for boot in theirs.values()) / sum(boot.wanted for boot in theirs.values())
    return f"{bench.baseline} itself fails {format_percent(share)} of its requests" if share > FAILED_SHARE else None


def count_errors(bench: Bench, arm: str) -> ErrorCount:
    """Failed and all deciding requests. In a boot that the arm killed, every request without a good answer failed."""
    errors, requests = contrasts.failures(bench.frame, arm)
    deciding = {window["name"] for window in bench.run.manifest.get("windows") or [] if window.get("deciding")}
    for boot in bench.run.boots:
        if boot.facts.arm == arm and boot.facts.status == FAILED and boot.facts.block in bench.course.blocks:
            good = sum(item.outcome == OK and item.measured and item.window in deciding for item in boot.outcomes)
            errors += max(0, bench.planned - good)
            requests += bench.planned
    return ErrorCount(errors, requests)


def blockers(bench: Bench, arm: Arm, against: Contrast, cached: tuple[float, float] | None) -> list[str]:
    """Findings that forbid adopt without proving anything against the arm."""
    reasons = []
    if cached is not None and abs(cached[0] - cached[1]) > CACHED_DIFFERENCE and "prefix_cache" not in arm.changes:
        ours, theirs = (format_percent(share) for share in cached)
        reasons.append(
            f"cached tokens differ without being declared ({ours} of the prompt against {theirs}); declare "
            f'changes = ["prefix_cache"] if the arm means to do that'
        )
    failed, asked = contrasts.failures(bench.frame, arm.name, against.blocks)
    if asked and failed / asked > FAILED_SHARE:
        reasons.append(f"{format_percent(failed / asked)} of its requests failed, so the rest is not the same load")
    return reasons
