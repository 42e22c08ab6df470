"""Acceptance against gain, per class: whether the gain of a longer draft follows how well drafts are accepted.

TPOT = cost of a step / tokens that it brings. Where every step has a draft, these are the mean acceptance length; an
engine that finds its drafts in the text has none in many steps, and those count too. From both ratios follows what a
step of the arm costs against one of the baseline, and that is the break-even: a draft pays in a class that gets more
tokens out of a step than the step costs more. Tokens come from the `single` windows at c = 1, TPOT from the windows
that decide. The interval of the cost is that of TPOT: counters are sums of thousands of drafts.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from analysis.acceptance import AcceptanceFinding
from analysis.guards import relative
from analysis.lines import format_estimate
from analysis.order import spearman, spearman_p
from analysis.stats import ALPHA, Estimate
from analysis.verdict import MeasureFinding
from profiles.counters import DRAFTS, counter
from profiles.runs import Boot
from profiles.units import format_change, format_percent

LEAST_CLASSES: Final = 4  # for a rank correlation
_SAME: Final = 0.02  # lengths that differ by less are the same draft at work


@dataclass(frozen=True, slots=True)
class AcceptanceGain:
    """One class: mean acceptance length, baseline and arm, beside the change of TPOT (log ratio, lower is better).

    The bare rate is kept beside it and never compared between draft lengths. A baseline that does not draft has a
    length of 1 and no rate.
    """

    workload: str
    base_length: float | None
    own_length: float | None
    base_rate: float | None
    own_rate: float | None
    estimate: Estimate | None
    step: Estimate | None = None  # log ratio of what a step costs
    base_tokens: float | None = None  # that a step brings, with a draft or without one
    own_tokens: float | None = None

    @property
    def more_tokens(self) -> float | None:
        """Log ratio of the tokens that a step brings, arm against baseline."""
        return None if not self.base_tokens or not self.own_tokens else math.log(self.own_tokens / self.base_tokens)


def acceptance_gains(
    drafts: Mapping[str, tuple[AcceptanceFinding | None, AcceptanceFinding | None]],
    measures: Sequence[MeasureFinding],
    draftless: frozenset[str] = frozenset(),
) -> tuple[AcceptanceGain, ...]:
    """By the baseline's acceptance length, rising, then the arm's. Classes without acceptance have no entry.

    `drafts`: class → baseline and arm. `draftless`: classes in which the baseline is known to draft nothing.
    """
    tpot = next((finding for finding in measures if finding.measure == "tpot"), None)
    estimates = {item.name: item.estimate for item in tpot.classes} if tpot else {}
    found = []
    for name, (base, own) in drafts.items():
        base_length = base.length if base else None
        if base is None and own is not None and own.source == "counters" and name in draftless:
            base_length = 1.0
        own_length = own.length if own else None
        gain = AcceptanceGain(
            workload=name,
            base_length=base_length,
            own_length=own_length,
            base_rate=base.rate if base else None,
            own_rate=own.rate if own else None,
            estimate=estimates.get(name),
            base_tokens=base.tokens if base else base_length,
            own_tokens=own.tokens if own else None,
        )
        if any(value is not None for value in (base_length, own_length, gain.base_rate, gain.own_rate)):
            more, estimate = gain.more_tokens, gain.estimate
            if more is not None and estimate is not None:
                gain = replace(gain, step=replace(estimate, mean=estimate.mean + more))
            found.append(gain)
    return tuple(sorted(found, key=lambda item: (item.base_length or 0.0, item.own_length or 0.0, item.workload)))


def draftless_classes(boots: Iterable[Boot]) -> frozenset[str]:
    """Classes whose `single` windows have sound counters in all of these boots, and no draft in any."""
    seen: dict[str, bool] = {}
    for boot in boots:
        for window in boot.facts.windows:
            if window.kind == "single" and window.workload is not None:
                known = bool(window.counters) and not window.counters_void
                none = known and not counter(window.counters or {}, DRAFTS)
                seen[window.workload] = seen.get(window.workload, True) and none
    return frozenset(name for name, none in seen.items() if none)


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Spearman of acceptance length and gain in TPOT over classes: +1 where more acceptance always gains more.

    `by`: whose length, the baseline's unless that is the same in every class. `p` is two-sided and exact for few.
    """

    value: float
    p: float
    classes: int
    by: str

    @property
    def shown(self) -> bool:
        return self.p <= 2 * ALPHA


def rank_correlation(found: Sequence[AcceptanceGain]) -> RankCorrelation | None:
    """None with fewer than four classes, or where all lengths are equal."""
    known = [item for item in found if item.base_length and item.own_length and item.estimate]
    if len(known) < LEAST_CLASSES:
        return None
    gains = [-item.estimate.mean for item in known if item.estimate]
    for by, lengths in (
        ("baseline", [item.base_length or 0.0 for item in known]),
        ("arm", [item.own_length or 0.0 for item in known]),
    ):
        value = spearman(lengths, gains)
        if value is not None:
            return RankCorrelation(value, spearman_p(value, len(known)), len(known), by)
    return None


def acceptance_gain_document(found: Sequence[AcceptanceGain]) -> dict[str, Any] | None:
    """For verdict.json; null where no class has acceptance. `step` is the change of what a step costs."""
    if not found:
        return None
    ranks = rank_correlation(found)
    return {
        "classes": [
            {
                "class": item.workload,
                "baseline_length": item.base_length,
                "arm_length": item.own_length,
                "baseline_rate": item.base_rate,
                "arm_rate": item.own_rate,
                "more_tokens": None if item.more_tokens is None else math.expm1(item.more_tokens),
                "tpot": _change(item.estimate),
                "step": _change(item.step),
            }
            for item in found
        ],
        "rank_correlation": ranks
        and {"value": ranks.value, "p": ranks.p, "classes": ranks.classes, "length_of": ranks.by},
    }


def _change(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    change, low, high = relative(estimate)
    return {"change": change, "low": low, "high": high}


def acceptance_gain_lines(found: Sequence[AcceptanceGain]) -> Iterator[str]:
    """For a person. Nothing where an arm drafts as its baseline does, where either side is not known, or after one
    block: what then looks like a cost may be one boot.

    One break-even for all classes is named only where it calls each of them as its own TPOT does.
    """
    known = [item for item in found if item.more_tokens is not None and item.step and _has_interval(item.estimate)]
    if not any(abs(item.more_tokens or 0.0) > _SAME for item in known):
        return
    by_gain = sorted(known, key=lambda item: item.estimate.mean if item.estimate else 0.0)
    ends = by_gain if len(by_gain) < 3 else [by_gain[0], by_gain[-1]]
    yield (
        f"acceptance (tokens a step; rates of other draft lengths do not compare): "
        f"{'; '.join(_class(item) for item in ends)}{_order(rank_correlation(found))}"
    )
    costs = [math.expm1(item.step.mean) for item in known if item.step]
    if len(known) == 1:
        cost = format_estimate(known[0].step)
    else:
        cost = f"{format_change(median(costs))} (by class {format_change(min(costs))} to {format_change(max(costs))})"
    if not _one_break_even(known, median(costs)):
        own = (f"{item.workload} {_more(item)} for {_cost(item)}" for item in by_gain)
        yield (
            f"a step costs {cost}, so each class has a break-even of its own; a draft pays where it brings more tokens "
            f"a step than that step costs more: {', '.join(own)}"
        )
    elif median(costs) > 0:
        yield (
            f"a step costs {cost}, so a draft pays from {format_percent(median(costs), 0)} more tokens a step on: "
            f"{', '.join(f'{item.workload} {_more(item)}' for item in by_gain)}"
        )
    else:
        yield f"a step costs {cost}"


def _has_interval(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.half_width is not None


def _one_break_even(known: Sequence[AcceptanceGain], cost: float) -> bool:
    """Whether a draft that brings more tokens than this cost makes a class faster, in every class."""
    calls = ((math.expm1(item.more_tokens or 0.0) > cost, item.estimate) for item in known)
    return all(pays == (estimate is not None and estimate.mean < 0) for pays, estimate in calls)


def _cost(item: AcceptanceGain) -> str:
    return format_change(math.expm1(item.step.mean if item.step else 0.0), 0)


def _class(item: AcceptanceGain) -> str:
    change = relative(item.estimate)[0] or 0.0
    return f"{item.workload} {item.base_tokens:.2f} → {item.own_tokens:.2f}, TPOT {format_change(change)}"


def _more(item: AcceptanceGain) -> str:
    return format_change(math.expm1(item.more_tokens or 0.0), 0)


def _order(ranks: RankCorrelation | None) -> str:
    if ranks is None:
        return ""
    whose = "the baseline's length" if ranks.by == "baseline" else "the arm's length"
    value = f"{ranks.value:+.2f}".replace("-", "−")
    found = f"rank correlation {value} over {ranks.classes} classes"
    if not ranks.shown:
        return f"; no order by {whose} is shown ({found})"
    return f"; the gain {'follows' if ranks.value > 0 else 'runs against'} {whose} ({found})"
