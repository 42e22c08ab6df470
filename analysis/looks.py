"""Looks, and what was measured before the rule was amended.

A look is declared, and each has its share of α for every kind of decision: the lines and margins of measures, classes,
guards, error rates (`Bench.alpha`). The A/A check keeps its 99 % at each look: it ends nothing, the next look judges it
anew from more blocks, and only the last one stands.

**The look that decides an arm is the last word on it.** Its verdict is the one of the blocks up to that look, even
where it was booted on because a later arm leans on it: whether there are such boots depends on the other arms, and a
verdict must not; and a decision that a later look could take back would be no reason to stop. Shares of α that sum to
the whole allow it: an arm is wrongly decided only if some look decides it wrongly. Two things still reach it: a boot of
its own that dies later counts against it, and a run that turns out invalid is invalid for every arm. The estimate is
marked, since stopping at a look favours what looked large there.

An amended rule makes everything that was measured before it post hoc: shown, and never an adopt.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from analysis.bench import Bench
from analysis.faults import died
from profiles.experiment import Experiment
from profiles.runs import Run


@dataclass(frozen=True, slots=True)
class Stopped:
    """An arm that a declared look decided. `later_boots`: it was booted on, because a later arm leans on it."""

    arm: str
    look: int  # blocks that it looked at
    verdict: str
    later_boots: int = 0


def stopped_arms(run: Run) -> dict[str, Stopped]:
    """By arm, from the run's events."""
    found: dict[str, Stopped] = {}
    for event in run.events:
        if event.get("event") == "arm_decided":
            arm, look = str(event["arm"]), int(event["look"])
            later = sum(boot.facts.arm == arm and boot.facts.block > look for boot in run.boots)
            found.setdefault(arm, Stopped(arm, look, str(event["verdict"]), later))
    return found


def bench_at(bench: Bench, stopped: Stopped) -> Bench:
    """What that look saw, and what the arm broke later. The spread that arms share has to be pooled again."""
    boots = tuple(
        boot
        for boot in bench.run.boots
        if boot.facts.block <= stopped.look or (boot.facts.arm == stopped.arm and died(boot.facts))
    )
    course = replace(
        bench.course,
        complete=min(bench.course.complete, stopped.look),
        whole=min(bench.course.whole, stopped.look),
        blocks=frozenset(block for block in bench.course.blocks if block <= stopped.look),
        undeclared=None,
    )
    frame = bench.frame.filter(bench.frame["block"] <= stopped.look)
    return replace(bench, run=replace(bench.run, boots=boots), frame=frame, course=course, pooled={})


def stopped_document(stopped: Stopped | None) -> dict[str, Any] | None:
    """For verdict.json."""
    if stopped is None:
        return None
    return {"look": stopped.look, "verdict": stopped.verdict, "later_boots": stopped.later_boots}


def stopped_line(stopped: Stopped) -> str:
    """For a person: a sentence."""
    on = (
        "booted on because a later arm leans on it, by boots that are not counted here"
        if stopped.later_boots
        else "not booted again"
    )
    return f"stopped early: decided after {stopped.look} blocks and {on}; its estimate leans outward"


def stopped_notes(stopped: Iterable[Stopped | None], words: Mapping[str, str]) -> list[str]:
    """Arms whose verdict is no longer the one for which they were stopped. `words` are the verdicts now, by arm."""
    return [
        f"{item.arm} was stopped as {item.verdict} after {item.look} blocks; what is known now says {words[item.arm]}"
        for item in stopped
        if item is not None and words[item.arm] not in (item.verdict, "invalid")
    ]


def post_hoc_reason(run: Run, experiment: Experiment) -> str | None:
    """Why no arm of this run may be adopted: its rule was amended after boots were measured. None: it was not."""
    told = [event for event in run.events if event.get("event") == "rule_amended"]
    amendments = (run.manifest.get("rule") or {}).get("amendments") or told
    late = [item for item in amendments if item.get("boots_before", 1)]
    if not late:
        return None
    reasons = "; then ".join(f"after {_boots(item.get('boots_before'))} ({item.get('reason')})" for item in late)
    return f"the rule was amended {reasons}: what was measured is shown, and nothing of it can be adopted"


def _boots(count: int | None) -> str:
    return "boots were measured" if count is None else "1 boot" if count == 1 else f"{count} boots"
