"""The course of a run: which boots counted, how far it came, and whether it can be judged at all."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from profiles.errors import FirsttokenError
from profiles.experiment import Experiment
from profiles.experiment_checks import discard_condition
from profiles.runs import DISCARDED, DONE, FAILED, NOT_CHECKED, BootFacts, Run
from profiles.units import HOUR_NS, format_duration


@dataclass(frozen=True, slots=True)
class Course:
    """`blocks` are those that may be looked at: all of a finished run, else those up to the last declared look.

    `undeclared` says why no look is due yet; then everything is shown and nothing decided.
    """

    planned: int
    complete: int
    finished: bool
    blocks: frozenset[int]
    undeclared: str | None


def facts_of(run: Run, *statuses: str) -> list[BootFacts]:
    """The boots that ended in one of these ways, in the order of their folders."""
    return [boot.facts for boot in run.boots if boot.facts.status in statuses]


def require_boots(run: Run) -> None:
    """Raise FirsttokenError if no boot of the run was measured to its end."""
    if not facts_of(run, DONE):
        raise FirsttokenError(
            f"{run.path}: no boot of this run was measured to its end, so there is nothing to judge",
            "See events.jsonl and boots/*/engine.log there; `firsttoken replay --resume` goes on.",
        )


def dropped_arms(run: Run) -> dict[str, str]:
    """Arms that are not booted again because a boot of theirs failed, with the reason. A baseline is tried again."""
    copies = (run.manifest.get("baseline"), run.manifest.get("aa"))
    failed = {facts.arm: facts.reason for facts in facts_of(run, FAILED) if facts.arm not in copies}
    told = {event["arm"]: event.get("reason") for event in run.events if event.get("event") == "arm_dropped"}
    return {arm: reason or "it would not boot" for arm, reason in (failed | told).items()}


def course_of(run: Run, experiment: Experiment) -> Course:
    """How far the run came, and which blocks a declared look covers."""
    order: list[list[str]] = run.manifest.get("order") or []
    planned = int(run.manifest.get("blocks") or len(order))
    ended = {(facts.arm, facts.block) for facts in facts_of(run, DONE, FAILED)}
    dropped = dropped_arms(run)
    complete = 0
    for block, arms in enumerate(order, start=1):
        if not all((arm, block) in ended or arm in dropped for arm in arms):
            break
        complete = block
    said_so = any(event.get("event") == "run_done" for event in run.events)
    seen = frozenset(block for _, block in ended)
    if said_so or (order and complete == len(order)):
        return Course(planned, complete, True, seen, None)
    due = [look for look in experiment.looks if look <= complete]
    if due:
        return Course(planned, complete, False, frozenset(block for block in seen if block <= due[-1]), None)
    looks = " and ".join(map(str, experiment.looks))
    reason = (
        f"the run is unfinished: {complete} of {planned} blocks are complete, and the rule looks after {looks}; "
        f"`firsttoken replay --resume` goes on"
    )
    return Course(planned, complete, False, seen, reason)


def rule_reasons(run: Run, experiment: Experiment) -> tuple[list[str], list[str]]:
    """Why the rule makes the run invalid, and what is only worth a note."""
    fixed: dict[str, Any] = run.manifest.get("rule") or {}
    if fixed.get("semantic_sha256") not in (None, experiment.semantic_sha256):
        return ["rule changed after the first boot: experiment.toml is not the one in the manifest"], []
    if fixed.get("bytes_sha256") not in (None, experiment.bytes_sha256):
        return [], ["experiment.toml was reformatted after the run started; its meaning is unchanged"]
    return [], []


def replacement_reasons(run: Run, experiment: Experiment) -> list[str]:
    """Arms for which more boots were discarded than the rule allows."""
    most = experiment.file.discard.replacement_boots_max
    counts: dict[str, int] = {}
    for facts in facts_of(run, DISCARDED):
        counts[facts.arm] = counts.get(facts.arm, 0) + 1
    return [
        f"too many replacements: {count} boots of {arm} were discarded, the rule allows {most}"
        for arm, count in counts.items()
        if count > most
    ]


def fixed_before_ns(run: Run) -> int | None:
    """How long before the first boot the rule was fixed, by the wall clock. None where the run does not say."""
    fixed = [event["wall_ns"] for event in run.events if event.get("event") == "rule_fixed" and "wall_ns" in event]
    starts = [event["wall_ns"] for event in run.events if event.get("event") == "boot_started" and "wall_ns" in event]
    starts += [boot.facts.wall_ns for boot in run.boots]
    return min(starts) - fixed[0] if fixed and starts else None


def machine_time_ns(run: Run) -> int:
    """The sum over all boots from spawn to proven death."""
    return sum(_spent_ns(boot.facts) or 0 for boot in run.boots)


def hours_per_block(run: Run) -> float:
    """Mean machine time of a counting boot × boots in a block; 0.0 where no boot was timed."""
    done = facts_of(run, DONE)
    order: list[list[str]] = run.manifest.get("order") or []
    arms = len(order[0]) if order else len({facts.arm for facts in done})
    spent = [ns for ns in map(_spent_ns, done) if ns is not None]
    return arms * sum(spent) / len(spent) / HOUR_NS if spent else 0.0


def _spent_ns(facts: BootFacts) -> int | None:
    return None if facts.spawned_ns is None or facts.gone_ns is None else facts.gone_ns - facts.spawned_ns


def not_checked(run: Run, experiment: Experiment) -> tuple[str, ...]:
    """Conditions of discard.when that boots which count were not judged by, each with the reason."""
    boots = facts_of(run, DONE)
    found = []
    for entry in experiment.file.discard.when:
        name = (discard_condition(entry) or (entry, None))[0]
        reasons = Counter(why for facts in boots if (why := _unseen(name, facts)) is not None)
        for why, count in reasons.items():
            found.append(f"{entry}: {why}" + (f" (in {count} of {len(boots)} boots)" if count < len(boots) else ""))
    return tuple(found)


def _unseen(name: str, facts: BootFacts) -> str | None:
    """Why a condition was not looked at in a boot; None if it was."""
    seen = facts.checked.get(name)
    if seen is None:
        # A run of the version before it wrote down what was checked.
        return None if name == "client_lag_p99_ms" and facts.lag is not None else "the run does not say"
    return seen.removeprefix(NOT_CHECKED) if seen.startswith(NOT_CHECKED) else None


def lag_note(run: Run) -> str | None:
    """The worst client lag of the boots that count."""
    lags = [facts.lag.p99_ns for facts in facts_of(run, DONE) if facts.lag is not None]
    return f"client lag p99 at most {format_duration(max(lags))}" if lags else None
