"""A workload split, shown: for verdict.json and for a terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

from analysis.guards import relative
from analysis.lines import format_estimate, listed
from analysis.measures import TITLES
from analysis.split.worth import BestSplit, ClassChoice, WorkloadSplit
from analysis.stats import Estimate
from analysis.verdict import MIN_BLOCKS
from profiles.units import format_change, format_percent


def split_document(found: Sequence[WorkloadSplit]) -> list[dict[str, Any]]:
    """For verdict.json. Changes are relative to the baseline; shares are of the requests of the mix."""
    return [
        {
            "measure": item.measure,
            **_change(item.worth),
            "arm_for_all": _change(item.whole),
            "beside": _beside(item.beside),
            "classes": _choices(item.choices),
            "line": {
                "classes": list(item.gaining),
                "share": item.line,
                "low": item.line_low,
                "high": item.line_high,
                "share_no_slower": item.even,
                "share_now": item.share_now,
                "change": item.material,
            },
            "limits": list(item.limits),
        }
        for item in found
    ]


def best_split_document(found: Sequence[BestSplit]) -> list[dict[str, Any]]:
    """For verdict.json: the split over several arms."""
    return [
        {
            "measure": item.measure,
            **_change(item.worth),
            "beside": _beside(item.beside),
            "classes": _choices(item.choices),
        }
        for item in found
    ]


def _beside(found: Sequence[tuple[str, Estimate | None]]) -> list[dict[str, Any]]:
    return [{"measure": measure, **_change(estimate)} for measure, estimate in found]


def _choices(found: Sequence[ClassChoice]) -> list[dict[str, Any]]:
    return [
        {
            "class": item.workload,
            "level": 1 - 2 * item.alpha,
            "arm": item.arm,
            "share": item.share,
            "same_choice_in_blocks": item.held,
            "blocks": item.blocks,
            **_change(item.estimate),
        }
        for item in found
    ]


def _change(estimate: Estimate | None) -> dict[str, float | None]:
    change, low, high = relative(estimate)
    return {"change": change, "low": low, "high": high}


def split_lines(found: Sequence[WorkloadSplit]) -> Iterator[str]:
    """For a person: what the split is worth, where the line lies, and what neither knows."""
    for item in found:
        title = TITLES.get(item.measure, item.measure)
        worth = f"{title} {format_estimate(item.worth)}" if item.worth else f"{title} needs {MIN_BLOCKS} blocks"
        yield (
            f"split: {_who(item.choices)}: {worth} on the recorded mix, if each had a machine of its own; "
            f"{item.arm} for all {_mean(item.whole)}{_others(item.beside)}{_unsure(item.choices)}"
        )
        if not item.line_left_out:
            yield _line_text(item)
    if found:
        yield f"limits of the split: {'; '.join(found[0].limits)}"


def best_split_lines(found: Sequence[BestSplit]) -> Iterator[str]:
    """For a person, one sentence for each measure."""
    for item in found:
        title = TITLES.get(item.measure, item.measure)
        worth = format_estimate(item.worth) if item.worth else f"needs {MIN_BLOCKS} blocks"
        yield (
            f"best split over all arms: {_who(item.choices)}: {title} {worth} on the recorded mix, if each had a "
            f"machine of its own{_others(item.beside)}{_unsure(item.choices)}"
        )


def _who(choices: Sequence[ClassChoice]) -> str:
    """`json and code on v3, the rest on v0`: the arm of the fewest classes first, the rest last."""
    by_arm: dict[str, list[str]] = {}
    for item in choices:
        by_arm.setdefault(item.arm, []).append(item.workload)
    arms = sorted(by_arm, key=lambda arm: (arm == _rest(choices), arm))
    parts = [f"{listed(by_arm[arm])} on {arm}" for arm in arms]
    if len(parts) > 1:
        parts[-1] = f"the rest on {arms[-1]}"
    return ", ".join(parts)


def _rest(choices: Sequence[ClassChoice]) -> str:
    """The baseline has no estimate against itself."""
    return next((item.arm for item in choices if item.estimate is None), choices[-1].arm)


def _mean(estimate: Estimate | None) -> str:
    change = relative(estimate)[0]
    return "not measured" if change is None else format_change(change)


def _others(beside: Sequence[tuple[str, Estimate | None]]) -> str:
    return "".join(
        f"; {TITLES.get(measure, measure)} {format_estimate(estimate)}"
        for measure, estimate in beside
        if estimate is not None
    )


def _unsure(choices: Sequence[ClassChoice]) -> str:
    names = [item.workload for item in choices if not item.sure]
    return f"; cannot tell which arm suits {listed(names)}" if names else ""


def _line_text(item: WorkloadSplit) -> str:
    moved = {choice.workload for choice in item.choices if choice.arm == item.arm}
    classes = "those classes" if moved == set(item.gaining) else listed(list(item.gaining))
    now = f"now {format_percent(item.share_now, 0)}"
    alone = f"the line: {item.arm} alone would"
    if item.material is None:
        return f"the line: no gain of {item.arm} on the mix can be material: the baseline is faster than the gain asked"
    whole = abs(100 * item.material - round(100 * item.material)) < 0.05
    gain = f"gain {format_percent(-item.material, 0 if whole else 1)} on the mix"
    if item.line is None or item.line == 0:
        return f"{alone} {gain} at {'any' if item.line == 0 else 'no'} share of requests in {classes}; {now}"
    share, bounds = format_percent(item.line, 0), ""
    if item.line_low is not None and item.line_high is not None:
        bounds = f" [{format_percent(item.line_low, 0)}, {format_percent(item.line_high, 0)}]"
        if item.share_now > item.line_high:
            now += ", beyond it"
        elif item.share_now < item.line_low:
            now += ", short of it"
    return f"{alone} {gain} from {share}{bounds} of requests in {classes} on; {now}"
