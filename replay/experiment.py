"""Blocks of cold boots: every arm once per block in random order, with a second baseline copy for the noise floor.

A boot that the surroundings spoilt is replaced, visibly, up to the rule's limit. An arm whose boot fails is not booted
again: one dead boot already rejects it, and machine time is the user's cost. If the baseline fails there is nothing to
compare with, and the run stops. An arm that a declared look decided is not booted again either (`standing`).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from profiles.errors import EngineFailed, RunInvalid
from profiles.runs import DISCARDED, DONE, FAILED, BootFacts
from replay.boot import Bench, Place, run_boot
from replay.clock import Clock
from replay.plan import Plan
from replay.rundir import RunFolder
from replay.standing import Standing, decided_before, newly_decided, predecessors

# Asks for the verdicts of a run, each arm's word by its name. It reads the directory; `replay` judges nothing itself.
type Ask = Callable[[Path], Mapping[str, str]]


async def run_experiment(
    plan: Plan, run: RunFolder, clock: Clock, note: Callable[..., None], ask: Ask | None = None
) -> list[str]:
    """Boot what is still to do, block by block. Returns one sentence per failed arm.

    `note(event, **fields)` hears of every event, which is also written to the run, and of `boots_left`, which is not.
    `ask` is asked at each declared look before the last one; without it everything is booted. Raises EngineFailed if
    the baseline does not boot, and RunInvalid if too many boots were spoilt.
    """

    def tell(event: str, **fields: Any) -> None:
        run.event(event, **fields)
        note(event, **fields)

    standing = take_stock(plan, run, tell)
    bench = Bench(plan.experiment, plan.load, plan.patterns, str(run.manifest["run_id"]), clock)
    note("boots_left", left=standing.left())
    if standing.left():
        await _fix_warm_up(plan, bench, run, tell)
    spoilt = Counter(facts.arm for facts in run.boots() if facts.status == DISCARDED)
    allowed = plan.experiment.file.discard.replacement_boots_max
    for block, names in enumerate(plan.order, start=1):
        for slot, name in enumerate(names, start=1):
            while standing.is_due(block, name):
                if spoilt[name] > allowed:
                    raise RunInvalid(
                        f"{name}: {spoilt[name]} boots were discarded, the rule allows {allowed} replacements: by its "
                        "rule this run is invalid, and --resume cannot change that",
                        f"`firsttoken report {run.path}` shows what was measured, and why boots were discarded. A run "
                        "that can decide needs quieter surroundings and a new directory. With a higher "
                        "discard.replacement_boots_max this one goes on after --resume --amend REASON, post hoc.",
                    )
                facts = await _boot_once(plan, bench, run, tell, Place(block, slot, name))
                if facts.status == DONE:
                    standing.done.add((block, name))
                elif facts.status == DISCARDED:
                    spoilt[name] += 1
                elif name in standing.copies:
                    raise EngineFailed(
                        f"{name}: {facts.reason}",
                        "Without its baseline a run cannot go on. If the machine was at fault, go on with --resume; "
                        "a changed engine needs a new run directory.",
                    )
                else:
                    standing.failed[name] = facts.reason
                    tell("arm_dropped", arm=name, reason=facts.reason)
                note("boots_left", left=standing.left())
        if ask is not None and _is_look(plan, run, standing, block):
            await _look(block, ask, run, standing, tell)
            note("boots_left", left=standing.left())
    tell("run_done", boots=len(run.boots()))
    return [f"{name}: {reason}" for name, reason in standing.failed.items()]


def take_stock(plan: Plan, run: RunFolder, tell: Callable[..., None]) -> Standing:
    """What is still to come of a run, also of one that was stopped: its boots and events say it."""
    ended = run.boots()
    copies = frozenset((plan.manifest["baseline"], plan.manifest["aa"]))
    standing = Standing(
        order=plan.order,
        copies=copies,
        arms=frozenset(plan.arms) - copies,
        leans=predecessors(plan.experiment),
        done={(facts.block, facts.arm) for facts in ended if facts.status == DONE},
        # A baseline that failed is tried again: the run needs it. An arm that an amendment took out is nobody's.
        failed={
            facts.arm: facts.reason
            for facts in ended
            if facts.status == FAILED and facts.arm not in copies and facts.arm in plan.arms
        },
    )
    events = run.events()
    standing.decided = {arm: look for arm, look in decided_before(events).items() if arm in plan.arms}
    for event in events:
        if event["event"] == "look":  # a kill may have come between a look and what follows from it
            _tell_decided(event["verdicts"], int(event["blocks"]), standing, tell)
    return standing


def _is_look(plan: Plan, run: RunFolder, standing: Standing, block: int) -> bool:
    """Whether this block ends a declared look that is still to be taken. After the last one nothing is left to drop.

    A look that failed is not taken again once boots of a later block are there.
    """
    if block not in plan.experiment.looks or block >= len(plan.order) or not standing.live:
        return False
    taken = any(event["event"] == "look" and event["blocks"] == block for event in run.events())
    later = any(done > block for done, _ in standing.done)
    return not (taken or later)


async def _look(block: int, ask: Ask, run: RunFolder, standing: Standing, tell: Callable[..., None]) -> None:
    try:
        verdicts = dict(await asyncio.to_thread(ask, run.path))
    except Exception as error:  # whatever it is: it costs machine time, and nothing of what was measured
        tell("look_failed", blocks=block, reason=f"{type(error).__name__}: {error}")
        return
    tell("look", blocks=block, verdicts=verdicts)
    _tell_decided(verdicts, block, standing, tell)


def _tell_decided(verdicts: Mapping[str, str], look: int, standing: Standing, tell: Callable[..., None]) -> None:
    words = newly_decided(verdicts, standing)
    standing.decided |= dict.fromkeys(words, look)
    for arm, word in words.items():
        tell("arm_decided", arm=arm, look=look, verdict=word, needed_by=standing.needed_by(arm))


async def _fix_warm_up(plan: Plan, bench: Bench, run: RunFolder, tell: Callable[..., None]) -> None:
    """Find how many rounds of warm-up every boot gets, once per run, and warm the caches of all arms if that is the
    policy. An arm whose pilot fails is booted all the same: its failure has to be a boot that counts."""
    file = plan.experiment.file
    assert file.engine is not None
    fixed = run.last_event("warm_up_fixed")
    bench.warmup_rounds = int(fixed["rounds"]) if fixed is not None else file.load.warmup_rounds
    baseline = plan.manifest["baseline"]
    if not bench.warmup_rounds:
        facts = run.pilots().get(baseline) or await _boot_once(plan, bench, run, tell, Place(0, 0, baseline))
        if facts.status != DONE:
            raise EngineFailed(
                f"{baseline}: {facts.reason}",
                "This was a pilot boot of the baseline, which fixes the length of the warm-up.",
            )
        (step,) = [step for step in facts.steps if step.name == "warm_up"]
        bench.warmup_rounds = int(step.facts["rounds"])
    if fixed is None:
        tell("warm_up_fixed", rounds=bench.warmup_rounds, pilot=not file.load.warmup_rounds)
    if file.engine.cache == "prewarm":
        for arm in plan.experiment.arms:
            if arm.name not in run.pilots():
                await _boot_once(plan, bench, run, tell, Place(0, 0, arm.name))


async def _boot_once(plan: Plan, bench: Bench, run: RunFolder, tell: Callable[..., None], place: Place) -> BootFacts:
    kind = "pilot" if place.pilot else "boot"
    where = {"arm": place.name, "block": place.block, "slot": place.slot}
    folder = run.pilot(place.name) if place.pilot else run.boot(place.block, place.slot, place.name)
    tell(f"{kind}_started", **where, folder=folder.path.name)

    def note(event: str, **fields: Any) -> None:
        tell(event.replace("boot_", f"{kind}_"), **where, **fields)

    try:
        facts = await run_boot(bench, plan.arms[place.name], place, folder, note)
    except BaseException as error:
        tell(f"{kind}_interrupted", **where, reason=type(error).__name__)
        raise
    tell(f"{kind}_{facts.status}", **where, reason=facts.reason)
    return facts
