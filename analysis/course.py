"""The course of a run: which boots counted, how far it came, and whether it can be judged at all."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from profiles.errors import FirsttokenError
from profiles.experiment import Experiment
from profiles.experiment_checks import MIN_REACH, discard_condition, measure_parts
from profiles.runs import DISCARDED, DONE, FAILED, NOT_CHECKED, BootFacts, Run
from profiles.units import HOUR_NS, format_duration, format_percent


@dataclass(frozen=True, slots=True)
class Course:
    """`blocks` are those that may be looked at: all of a finished run, else those up to the last declared look.

    `complete` counts the whole blocks from the first one on without a gap, by which the declared looks go; `whole` all
    of them. `undeclared` says why no look is due yet; then everything is shown and nothing decided.
    """

    planned: int
    complete: int
    finished: bool
    blocks: frozenset[int]
    undeclared: str | None
    whole: int = 0


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


def decided_arms(run: Run) -> dict[str, int]:
    """Arm → the declared look, in blocks, that decided it while the run went on. It need not be booted again."""
    told = (event for event in run.events if event.get("event") == "arm_decided")
    return {str(event["arm"]): int(event["look"]) for event in told}


def course_of(run: Run, experiment: Experiment) -> Course:
    """How far the run came, and which blocks a declared look covers."""
    order: list[list[str]] = run.manifest.get("order") or []
    planned = int(run.manifest.get("blocks") or len(order))
    ended = {(facts.arm, facts.block) for facts in facts_of(run, DONE, FAILED)}
    dropped = dropped_arms(run)
    decided = decided_arms(run)
    whole = [
        all((arm, block) in ended or arm in dropped or block > decided.get(arm, block) for arm in arms)
        for block, arms in enumerate(order, start=1)
    ]
    complete = [*whole, False].index(False)
    seen = frozenset(block for _, block in ended)
    if _said_done(run) or (order and complete == len(order)):
        return Course(planned, complete, True, seen, None, sum(whole))
    due = [look for look in experiment.looks if look <= complete]
    if due:
        looked_at = frozenset(block for block in seen if block <= due[-1])
        return Course(planned, complete, False, looked_at, None, sum(whole))
    looks = " and ".join(map(str, experiment.looks))
    reason = (
        f"the run is unfinished: {sum(whole)} of {planned} blocks are complete{gap_said(sum(whole), complete)}, "
        f"and the rule looks after {looks}; `firsttoken replay --resume` goes on"
    )
    return Course(planned, complete, False, seen, reason, sum(whole))


def gap_said(whole: int, complete: int) -> str:
    """Where a block in between is not whole, how many are before it: declared looks go by those."""
    return "" if whole == complete else f", {complete or 'none'} of them before the first gap"


def _said_done(run: Run) -> bool:
    """Whether the run came to its end, under the rule that it has now: an amendment may have added blocks."""
    told = [event.get("event") for event in run.events]
    amended = max((at for at, name in enumerate(told) if name == "rule_amended"), default=-1)
    return "run_done" in told[amended + 1 :]


def rule_reasons(run: Run, experiment: Experiment) -> tuple[list[str], list[str]]:
    """Why the rule makes the run invalid, and what is only worth a note.

    An amended rule is the one of the manifest, and no reason here: `looks.post_hoc_reason` says what it costs.
    """
    fixed: dict[str, Any] = run.manifest.get("rule") or {}
    # The same bytes are the same rule, also where a later version knows more keys and so hashes another meaning.
    same = fixed.get("bytes_sha256") == experiment.bytes_sha256
    if not same and fixed.get("semantic_sha256") not in (None, experiment.semantic_sha256):
        return ["rule changed after the first boot: experiment.toml is not the one in the manifest"], []
    if not _leads_here(run, fixed):
        return ["rule changed after the first boot: no amendment in events.jsonl leads to the one in the manifest"], []
    unreached = [
        f"{rule.name} decides, and production never reaches c = {parts['c']} ({format_percent(share)} of its arrivals)"
        for rule in experiment.file.measure
        if (parts := measure_parts(rule.name)) and "c" in parts and not rule.headroom_reason
        if (share := reached_share(run, int(parts["c"]))) < MIN_REACH
    ]
    notes = [_kept_note(run, amendment) for amendment in fixed.get("amendments") or []]
    if fixed.get("bytes_sha256") not in (None, experiment.bytes_sha256) or any(
        event.get("event") == "rule_reformatted" for event in run.events
    ):
        notes.append("experiment.toml was reformatted after the run started; its meaning is unchanged")
    return unreached, [note for note in notes if note]


def _leads_here(run: Run, fixed: dict[str, Any]) -> bool:
    """Whether the rule that was fixed, by way of the amendments that were told, is the one in the manifest."""
    told = [event for event in run.events if event.get("event") == "rule_fixed" and "rule_sha256" in event]
    at = told[0]["rule_sha256"] if told else None
    for event in run.events if at is not None else ():
        if event.get("event") == "rule_amended" and (event.get("old") or {}).get("bytes_sha256") == at:
            at = (event.get("new") or {}).get("bytes_sha256")
    return at is None or fixed.get("bytes_sha256") in (None, at)


def _kept_note(run: Run, amendment: dict[str, Any]) -> str | None:
    kept = run.path / str(amendment.get("kept_as"))
    if kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == amendment["old"]["bytes_sha256"]:
        return None
    return f"{kept.name}, the rule before an amendment, is missing or not the one that was amended"


def reached_share(run: Run, c: int) -> float:
    """Share of the arrivals that meet this concurrency or more: as recorded, or as the rule declares it."""
    arrivals = (run.manifest.get("profile") or {}).get("arrivals_at") or {}
    levels = arrivals or (run.manifest.get("operating_point") or {}).get("weights") or {}
    total = sum(levels.values())
    return sum(share for level, share in levels.items() if int(level) >= c) / total if total else 0.0


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
    """How long before the first boot the rule was fixed, by the wall clock: the rule that the run has now, so the time
    of its last amendment. None where the run does not say."""
    told = ("rule_fixed", "rule_amended")
    fixed = [event["wall_ns"] for event in run.events if event.get("event") in told and "wall_ns" in event]
    starts = [event["wall_ns"] for event in run.events if event.get("event") == "boot_started" and "wall_ns" in event]
    starts += [boot.facts.wall_ns for boot in run.boots]
    return min(starts) - fixed[-1] if fixed and starts else None


def machine_time_ns(run: Run) -> int:
    """The sum over all boots from spawn to proven death."""
    return sum(_spent_ns(boot.facts) or 0 for boot in run.boots)


def hours_per_block(run: Run) -> float:
    """Mean machine time of a counting boot × boots in a block; 0.0 where no boot was timed."""
    done = facts_of(run, DONE)
    order: list[list[str]] = run.manifest.get("order") or []
    # A new arm of an amended rule is only in the later blocks.
    arms = max(map(len, order)) if order else len({facts.arm for facts in done})
    spent = [ns for ns in map(_spent_ns, done) if ns is not None]
    return arms * sum(spent) / len(spent) / HOUR_NS if spent else 0.0


def _spent_ns(facts: BootFacts) -> int | None:
    return None if facts.spawned_ns is None or facts.gone_ns is None else facts.gone_ns - facts.spawned_ns


def not_checked(run: Run, experiment: Experiment) -> tuple[str, ...]:
    """What the rule asks of boots and those that count were not held to: conditions of discard.when, and a cool-down.
    Each with the reason."""
    boots = facts_of(run, DONE)
    found = []
    for entry in experiment.file.discard.when:
        name = (discard_condition(entry) or (entry, None))[0]
        reasons = Counter(why for facts in boots if (why := _unseen(name, facts)) is not None)
        found += _say_reasons(entry, reasons, len(boots))
    warm = [step for facts in boots for step in facts.steps if step.name == "cool_down" and step.proof is None]
    reasons = Counter(str(step.facts.get("missing", "the run does not say")) for step in warm)
    return (*found, *_say_reasons("engine.cool_down_c", reasons, len(boots)))


def _say_reasons(entry: str, reasons: Counter[str], boots: int) -> list[str]:
    return [
        f"{entry}: {why}" + (f" (in {count} of {boots} boots)" if count < boots else "")
        for why, count in reasons.items()
    ]


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
