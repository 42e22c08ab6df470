"""What is worth a note beside the verdicts of a run: it is unfinished, the baseline failed, something is not known."""

from collections.abc import Sequence

from analysis import contrasts
from analysis.batch_caps import batch_cap, queue_note
from analysis.bench import Bench
from analysis.bench_check import copies
from analysis.cached import share_by_windows
from analysis.course import gap_said
from analysis.endings import remarks
from analysis.faults import died
from analysis.findings import ArmReport
from analysis.lines import listed
from analysis.load import counting_boots
from analysis.measures import assumed_first_event_share
from profiles.runs import DONE, WindowFacts
from profiles.units import format_percent


def run_notes(bench: Bench, arms: Sequence[ArmReport]) -> list[str]:
    """Each a sentence. None of them decides anything."""
    warnings = []
    seen = bench.course
    if not bench.course.finished:
        gap = gap_said(seen.whole, seen.complete)
        warnings.append(f"the run is unfinished: {seen.whole} of {seen.planned} blocks are complete{gap}")
    share = assumed_first_event_share(bench.frame.filter("deciding"))
    if share:
        warnings.append(
            f"TPOT of {format_percent(share)} of the requests takes the first event as one token: "
            f"the engine packs several into an event and does not say how many"
        )
    warnings += _metrics_warnings(bench)
    warnings += _warm_windows(bench)
    base_died = [boot.facts for boot in bench.run.boots if boot.facts.arm == bench.baseline and died(boot.facts)]
    if base_died:
        warnings.append(f"{len(base_died)} boots of the baseline {bench.baseline} itself failed")
    warnings += _baseline_failures(bench)
    warnings += _one_boot_blocks(bench)
    for name in copies(bench):
        warnings += [f"{name}: {remark}" for remark in remarks(bench.run, name)]
    warnings += _baseline_queue(bench)
    paired = [arm for arm in arms if arm.blocks]
    if paired and all(arm.cached is None for arm in paired):
        warnings.append("cached prompt tokens: no engine tells them, so nobody knows whether arm and baseline agree")
    return warnings


def _baseline_failures(bench: Bench) -> list[str]:
    """How many deciding requests each boot of the baseline failed, where any did."""
    counts = {name: contrasts.failures(bench.frame, name) for name in copies(bench)}
    told = [
        f"{name} {failed} of {asked} ({format_percent(failed / asked)})"
        for name, (failed, asked) in counts.items()
        if asked
    ]
    failed_any = any(failed for failed, _ in counts.values())
    return [f"requests that the baseline itself failed or let run into the time-out: {', '.join(told)}"] * failed_any


def _one_boot_blocks(bench: Bench) -> list[str]:
    """Blocks whose reference is one boot of the baseline, each reason once."""
    names = copies(bench)
    if not bench.run.manifest.get("aa"):
        return []
    held = contrasts.held_by_boot(bench.frame, bench.planned)
    reasons: dict[str, list[str]] = {}
    for block in sorted({block for name, block in held if name in names}):
        boots = {name: held.get((name, block)) for name in names}
        lacking = {name: boot for name, boot in boots.items() if boot is None or not boot.serves}
        if len(lacking) == 1:
            ((name, boot),) = lacking.items()
            why = f"no boot of {name} was measured there" if boot is None else boot.said(name)
            reasons.setdefault(why, []).append(str(block))
    return [
        f"the reference is one boot of the baseline instead of two in {'block' if len(blocks) == 1 else 'blocks'} "
        f"{listed(blocks)}: {why}"
        for why, blocks in reasons.items()
    ]


def _baseline_queue(bench: Bench) -> list[str]:
    boots = [boot.facts for boot in bench.run.boots if boot.facts.arm == bench.baseline and boot.facts.status == DONE]
    cap = batch_cap(bench.experiment.baseline.argv, boots)
    note = queue_note(cap, bench.run.manifest.get("windows") or [])
    return [f"the baseline {bench.baseline} {note}"] if note else []


def _warm_windows(bench: Bench) -> list[str]:
    """Each window's cached share, where a later one finds what an earlier one left."""
    if (bench.run.manifest.get("override") or {}).get("cache_isolation") != "none":
        return []
    windows: dict[str, list[WindowFacts]] = {}
    for boot in counting_boots(bench.run).values():
        for window in boot.facts.windows:
            windows.setdefault(window.name, []).append(window)
    shares = {name: share_by_windows(found) for name, found in windows.items()}
    told = [f"{name} {format_percent(share, 0)}" for name, share in shares.items() if share is not None]
    if not told:
        return []
    return [
        f"passes are not kept apart in the prefix cache: cached prompt tokens {', '.join(told)}; an arm is held "
        "against the baseline in the same window, and no window against another"
    ]


def _metrics_warnings(bench: Bench) -> list[str]:
    """Windows whose counters cannot be used, each reason once: acceptance and cached tokens are missing there."""
    windows = [window for boot in counting_boots(bench.run).values() for window in boot.facts.windows]
    reasons: dict[str, int] = {}
    for window in windows:
        if window.counters_void:
            reasons[window.counters_void] = reasons.get(window.counters_void, 0) + 1
    return [
        f"server metrics unavailable in {count} of {len(windows)} windows: {reason}; "
        "the verdict stands on the client's clock"
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:3]
    ]
