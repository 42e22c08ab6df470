"""Whether the bench held the recorded load: checked on the baseline, in windows at the recorded pace (DESIGN §5).

1. arrivals   the concurrency that its requests met, against the profile's
2. cached     its prefix-cache hit share, against the recorded one
3. ttft       its TTFT, against the captured one

Both copies of the baseline count. An arm is never checked: that a slow one piles up requests is its result.

A check that fails is a warning and does not make the run invalid. The arms were compared under one plan, so their
differences stand; what does not stand is that the load was the recorded one, and the report says so beside the
verdicts. (The reference lists what makes a run invalid, and names a mismatch of the operating point apart from it.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from analysis.bench import Bench
from analysis.cached import share_of_boots
from analysis.load import counting_boots
from profiles.concurrency import compare_arrivals
from profiles.runs import AA_SUFFIX
from profiles.units import MILLISECOND_NS, format_change, format_duration, format_percent

RECORDED_PACE: Final = ("observed", "timed")
# Of one boot: the others play the same requests again, which makes them no better a sample of production.
LEAST_ARRIVALS: Final = 200
MOST_VARIATION: Final = 0.1
# The method names no limits for these two. Five points of cached prompt are two material lines of prefill work. A
# median TTFT that is a quarter off is another machine, another engine or another state of it, unless it is a quarter of
# next to nothing: 5 ms are what the rule calls material.
MOST_CACHED: Final = 0.05
MOST_TTFT: Final = 0.25
LEAST_TTFT_NS: Final = 5 * MILLISECOND_NS
# A median of fewer values is one request's, and one of other requests than were replayed is not comparable.
LEAST_TTFTS: Final = 20
LEAST_KNOWN: Final = 0.9
NO_BOOT: Final = "no boot of the baseline has ended well yet"
TITLES: Final = {"arrivals": "arrivals", "cached": "cached tokens", "ttft": "TTFT"}

type Status = Literal["pass", "fail", "not checked"]


@dataclass(frozen=True, slots=True)
class BenchCheck:
    """One check. `difference` is what `limit` is held against; `text` says the numbers, or why there are none."""

    name: Literal["arrivals", "cached", "ttft"]
    status: Status
    text: str
    difference: float | None = None
    limit: float | None = None
    recorded: Any = None
    baseline: Any = None


def check_bench(bench: Bench) -> tuple[BenchCheck, ...]:
    """All checks of a run at the recorded pace; none of another."""
    mode = (bench.run.manifest.get("operating_point") or {}).get("mode")
    return (_arrivals(bench), _cached(bench), _ttft(bench)) if mode in RECORDED_PACE else ()


def bench_warnings(checks: tuple[BenchCheck, ...], baseline: str) -> list[str]:
    """One sentence for all that failed."""
    failed = [TITLES[check.name] for check in checks if check.status == "fail"]
    if not failed:
        return []
    return [
        f"bench check failed on {baseline} ({', '.join(failed)}): the arms compare under one plan, but the verdicts "
        "hold for the load that was met here and not for the recorded one"
    ]


def copies(bench: Bench) -> tuple[str, str]:
    """The baseline and its second copy."""
    return bench.baseline, str(bench.run.manifest.get("aa") or bench.baseline + AA_SUFFIX)


def arrivals_of(bench: Bench, *arms: str) -> list[dict[int, int]]:
    """For each counting boot of these arms: requests at the recorded pace by the concurrency that they met."""
    boots = counting_boots(bench.run)
    found = []
    for (arm, block), boot in boots.items():
        if arm in arms and block in bench.course.blocks:
            at_pace = [window for window in boot.facts.windows if window.deciding and window.kind in RECORDED_PACE]
            met = pooled(levels(window.arrivals_at) for window in at_pace)
            if met:
                found.append(met)
    return found


def levels(arrivals_at: Mapping[str, int]) -> dict[int, int]:
    """A histogram with its levels as numbers."""
    return {int(c): count for c, count in arrivals_at.items()}


def pooled(histograms: Any) -> dict[int, int]:
    """Several histograms as one, by rising level."""
    whole: dict[int, int] = {}
    for histogram in histograms:
        for c, count in histogram.items():
            whole[c] = whole.get(c, 0) + count
    return dict(sorted(whole.items()))


def _arrivals(bench: Bench) -> BenchCheck:
    recorded = levels((bench.run.manifest.get("profile") or {}).get("arrivals_at") or {})
    boots = arrivals_of(bench, *copies(bench))
    met = pooled(boots)
    fewest = min((sum(boot.values()) for boot in boots), default=0)
    difference = compare_arrivals(met, recorded)
    if not recorded or difference is None:
        counted = "no boot of the baseline counted them" if _booted(bench) else NO_BOOT
        why = "the profile's are not known" if not recorded else counted
        return BenchCheck("arrivals", "not checked", f"arrivals not checked: {why}", None, MOST_VARIATION)
    if fewest < LEAST_ARRIVALS:
        text = f"arrivals not checked: {fewest} of {LEAST_ARRIVALS} arrivals"
        return BenchCheck("arrivals", "not checked", text, None, MOST_VARIATION, recorded, met)
    text = (
        f"{format_percent(difference)} of the arrivals met another c than the profile's "
        f"(limit {format_percent(MOST_VARIATION, 0)})"
    )
    if difference <= MOST_VARIATION:
        return BenchCheck("arrivals", "pass", text, difference, MOST_VARIATION, recorded, met)
    pace = (bench.run.manifest.get("operating_point") or {}).get("pace") or {}
    planned = compare_arrivals(levels(pace.get("arrivals_at") or {}), recorded)
    if planned is not None:
        text += f", {format_percent(planned)} by the plan alone"
    return BenchCheck("arrivals", "fail", text, difference, MOST_VARIATION, recorded, met)


def _cached(bench: Bench) -> BenchCheck:
    recorded = _captured(bench).get("cached_share")
    met = share_of_boots(bench, copies(bench))
    if recorded is None or met is None:
        told = "the engine does not say" if _booted(bench) else NO_BOOT
        why = "the profile does not hold them" if recorded is None else told
        text = f"cached tokens not checked: {why}"
        return BenchCheck("cached", "not checked", text, None, MOST_CACHED, recorded, met)
    difference = met - recorded
    text = (
        f"cached prompt tokens {format_percent(met)}, recorded {format_percent(recorded)} "
        f"(limit {100 * MOST_CACHED:g} points)"
    )
    status: Status = "pass" if abs(difference) <= MOST_CACHED else "fail"
    return BenchCheck("cached", status, text, difference, MOST_CACHED, recorded, met)


def _ttft(bench: Bench) -> BenchCheck:
    captured = _captured(bench)
    recorded, known, asked = (captured.get(key) for key in ("ttft_p50_ns", "ttft_requests", "requests"))
    from_due, from_send = (_median_ns(bench, column) for column in ("ttft_due_ns", "ttft_ns"))
    lack = None
    if not recorded or not known or not asked:
        lack = "the profile does not hold it"
    elif known < LEAST_KNOWN * asked:
        lack = f"the profile holds it for {known} of {asked} requests"
    elif known < LEAST_TTFTS:
        lack = f"{known} requests, {LEAST_TTFTS} needed"
    elif from_due is None or from_send is None:
        lack = "it was not measured" if _booted(bench) else NO_BOOT
    if lack is not None or not recorded or from_due is None or from_send is None:
        return BenchCheck("ttft", "not checked", f"TTFT not checked: {lack}", None, MOST_TTFT, recorded, from_due)
    change = from_due / recorded - 1
    own = "" if from_send >= 0.99 * from_due else f", {format_duration(from_send)} from sending"
    text = (
        f"TTFT p50 {format_duration(from_due)} from due{own}, captured {format_duration(recorded)}: "
        f"{format_change(change)} (limit {format_percent(MOST_TTFT, 0)} and {format_duration(LEAST_TTFT_NS)})"
    )
    # Either way by the same factor: 25 % more, or what 25 % more would bring back.
    near = abs(math.log1p(change)) <= math.log1p(MOST_TTFT) or abs(from_due - recorded) <= LEAST_TTFT_NS
    status: Status = "pass" if near else "fail"
    return BenchCheck("ttft", status, text, change, MOST_TTFT, recorded, round(from_due))


def _booted(bench: Bench) -> bool:
    """Whether a boot of the baseline or its copy counts yet."""
    return any(arm in copies(bench) for arm, _ in counting_boots(bench.run))


def _captured(bench: Bench) -> dict[str, Any]:
    return (bench.run.manifest.get("profile") or {}).get("captured") or {}


def _median_ns(bench: Bench, column: str) -> float | None:
    """Geometric mean over the baseline's boots of each boot's median. None without a value."""
    rows = bench.frame.filter(pl.col("arm").is_in(copies(bench)) & pl.col("deciding")).drop_nulls(column)
    medians = rows.group_by("arm", "block").agg(pl.col(column).median()).sort("arm", "block")
    return None if medians.is_empty() else math.exp(float(medians.select(pl.col(column).log().mean()).item()))
