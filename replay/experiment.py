"""Blocks of cold boots: every arm once per block in random order, with a second baseline copy for the noise floor.

A boot that the surroundings spoilt is replaced, visibly, up to the rule's limit. An arm whose boot fails is not booted
again: one dead boot already rejects it, and machine time is the user's cost. If the baseline fails there is nothing to
compare with, and the run stops.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiles.errors import EngineFailed, FirsttokenError, RunInvalid, UsageError
from profiles.files import read_document
from profiles.runs import DISCARDED, DONE, FAILED, FORMAT, MANIFEST, VERSION, BootFacts
from replay.boot import Bench, Place, run_boot
from replay.clock import Clock
from replay.engines import stop_leftover
from replay.plan import Plan
from replay.rundir import RunFolder
from replay.surroundings import boot_id


async def run_experiment(plan: Plan, run: RunFolder, clock: Clock, note: Callable[..., None]) -> list[str]:
    """Boot what is still to do, block by block. Returns one sentence per failed arm.

    `note(event, **fields)` hears of every event, which is also written to the run. Raises EngineFailed if the baseline
    does not boot, and RunInvalid if too many boots were spoilt.
    """

    def tell(event: str, **fields: Any) -> None:
        run.event(event, **fields)
        note(event, **fields)

    bench = Bench(plan.experiment, plan.load, plan.patterns, str(run.manifest["run_id"]), clock)
    done = run.done()
    if len(done) < sum(map(len, plan.order)):
        await _fix_warm_up(plan, bench, run, tell)
    ended = run.boots()
    copies = (plan.manifest["baseline"], plan.manifest["aa"])
    # A baseline that failed is tried again: the run needs it.
    failed = {facts.arm: facts for facts in ended if facts.status == FAILED and facts.arm not in copies}
    spoilt = {arm: sum(facts.arm == arm and facts.status == DISCARDED for facts in ended) for arm in plan.arms}
    allowed = plan.experiment.file.discard.replacement_boots_max
    for block, names in enumerate(plan.order, start=1):
        for slot, name in enumerate(names, start=1):
            while name not in failed and (block, name) not in done:
                if spoilt[name] > allowed:
                    raise RunInvalid(
                        f"{name}: {spoilt[name]} boots were discarded, the rule allows {allowed} replacements",
                        f"The surroundings are too noisy to measure: see {run.path / 'events.jsonl'}.",
                    )
                facts = await _boot_once(plan, bench, run, tell, Place(block, slot, name))
                if facts.status == DONE:
                    done[block, name] = facts
                elif facts.status == DISCARDED:
                    spoilt[name] += 1
                elif name in copies:
                    raise EngineFailed(
                        f"{name}: {facts.reason}",
                        "Without its baseline a run cannot go on. If the machine was at fault, go on with --resume; "
                        "a changed engine needs a new run directory.",
                    )
                else:
                    failed[name] = facts
                    tell("arm_dropped", arm=name, reason=facts.reason)
    tell("run_done", boots=len(run.boots()))
    return [f"{name}: {facts.reason}" for name, facts in failed.items()]


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


async def take_up(path: Path, plan: Plan, clock: Clock) -> RunFolder:
    """Open a stopped run to go on with it. Refuses a rule or a profile that has changed since its first boot."""
    manifest = read_document(path / MANIFEST, FORMAT, (VERSION,))
    if manifest["rule"]["semantic_sha256"] != plan.experiment.semantic_sha256:
        raise UsageError(
            f"{plan.experiment.path}: the rule has changed since this run's first boot",
            f"The rule as it was is {path / 'experiment.toml'}: replay that one, or start a new run.",
        )
    if manifest["profile"]["sha256"] != plan.manifest["profile"]["sha256"]:
        raise UsageError(f"{plan.manifest['profile']['path']}: the profile has changed since this run's first boot")
    if manifest.get("log_patterns_sha256") != plan.manifest["log_patterns_sha256"]:
        raise UsageError("the table of boot-log lines has changed since this run's first boot", "Start a new run.")
    if manifest["order"] != plan.order:
        raise FirsttokenError(f"{path}: the order of its boots is not the one this version makes", "Start a new run.")
    run = RunFolder.resume(path, clock)
    if run.host_restarted(boot_id()):
        # Nothing of that boot can be alive, and what it measured was cut: it is made again.
        run.event("interrupted_by_reboot", boots=[folder.name for folder in run.interrupted()])
    for identity in run.leftovers():
        if await stop_leftover(identity, clock):
            run.event("leftover_stopped", **identity)
    return run
