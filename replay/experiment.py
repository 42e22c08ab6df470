"""Blocks of cold boots: every arm once per block in random order, with a second baseline copy for the noise floor.

A boot that the surroundings spoilt is replaced, visibly, up to the rule's limit. An arm whose boot fails is not booted
again: one dead boot already rejects it, and machine time is the user's cost. If the baseline fails there is nothing to
compare with, and the run stops.
"""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiles.errors import EngineFailed, FirsttokenError, RuleError, RunInvalid, UsageError
from profiles.experiment import Arm, Experiment, check_against_profile, load_facts
from profiles.files import read_document, tool_version
from profiles.measurable import NO_CONCURRENCY
from profiles.profile import Profile, ProfileRow
from profiles.runs import AA_SUFFIX, DISCARDED, DONE, FAILED, FORMAT, MANIFEST, VERSION, BootFacts
from profiles.toml_lines import line_of
from replay.bodies import Override
from replay.boot import Load, Place, run_boot
from replay.clock import Clock
from replay.engine import find_program, stop_leftover
from replay.rundir import RunFolder
from replay.schedule import order_of_boots, plan_windows, replayable


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before its first boot: everything that is fixed."""

    experiment: Experiment
    load: Load
    arms: dict[str, Arm]  # by the name under which they boot, the second baseline copy too
    order: list[list[str]]
    manifest: dict[str, Any]


def plan_run(experiment: Experiment, profile: Profile, clock: Clock) -> Plan:
    """Check the experiment against its profile and fix the run. Raises RuleError or UsageError; starts nothing."""
    file = experiment.file
    if file.engine is None or not experiment.arms:
        raise RuleError(experiment.path, "engine", "there is nothing to boot: [engine] argv and [[arm]] are needed")
    synthetic = bool(profile.manifest.get("synthetic"))
    measured = None if NO_CONCURRENCY in profile.manifest["not_measurable"] else profile.concurrency()
    load = load_facts(experiment, measured=measured, synthetic=synthetic)
    content = str(profile.manifest["content"])
    not_measurable = [str(name) for name in profile.manifest["not_measurable"]]
    check_against_profile(
        experiment,
        load=load,
        content=content,
        not_measurable=not_measurable,
    )
    _check_programs(experiment)
    rows = profile.rows()
    usable = replayable(rows)
    if not usable:
        raise UsageError(
            f"{profile.path}: no request of this profile can be replayed",
            "A replay needs chat or completions requests that ended well, recorded with --bodies full.",
        )
    point = load.point
    windows = plan_windows(experiment, rows, point.weights, file.design.seed)
    decided = {window.c: len(window.picks) for window in windows if window.deciding}
    override = Override(
        model=file.engine.model or None,
        cache_isolation=file.engine.cache_isolation,
        output_length=file.load.output_length,
    )
    asked = Load(windows, profile.bodies(), _warmup_rows(usable, file.load.warmup_per_class), override)
    baseline = experiment.baseline
    aa = baseline.name + AA_SUFFIX
    arms = {arm.name: arm for arm in experiment.arms} | {aa: replace(baseline, name=aa)}
    order = order_of_boots(list(arms), file.design.blocks, file.design.seed)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "tool": tool_version(),
        "wall_ns": clock.wall_ns(),
        "mono_ns": clock.now_ns(),
        "rule": {
            "id": file.rule.id,
            "question": file.rule.question,
            "bytes_sha256": experiment.bytes_sha256,
            "semantic_sha256": experiment.semantic_sha256,
        },
        "profile": {
            "path": str(profile.path),
            "sha256": profile.sha256,
            "requests": len(rows),
            "replayable": len(usable),
            "observed_ns": load.observed_ns,
            "arrivals_at": {str(c): count for c, count in sorted(load.arrivals_at.items())},
            "content": content,
            "synthetic": synthetic,
            "source": profile.manifest.get("source", {}),
            "not_measurable": not_measurable,
        },
        "operating_point": {
            "levels": list(decided),
            "weights": {str(c): count / sum(decided.values()) for c, count in decided.items()},
            # Levels that the point covers and that too few requests could have held.
            "reached": sum(point.weights.get(c, 0.0) for c in decided) * point.reached,
            "left_out": {str(c): weight for c, weight in point.weights.items() if c not in decided},
            "cover": point.cover,
            "max": load.max,
            "basis": file.profile.operating_point.basis,
            "reason": file.profile.operating_point.reason,
        },
        "baseline": baseline.name,
        "aa": aa,
        "arms": [
            {
                "name": arm.name,
                "argv": list(arm.argv),
                "extends": arm.extends,
                "changes": sorted(arm.changes),
                "note": arm.note,
            }
            for arm in experiment.arms
        ],
        "skipped": [{"arm": item.arm, "reason": item.reason} for item in file.skipped],
        "blocks": file.design.blocks,
        "order": order,
        "windows": [
            {
                "name": window.name,
                "kind": window.kind,
                "c": window.c,
                "deciding": window.deciding,
                "workload": window.workload,
                "limit_ns": window.limit_ns,
                "requests": len(window.picks),
            }
            for window in windows
        ],
        "seed": file.design.seed,
        "environment": describe_environment(),
    }
    return Plan(experiment, asked, arms, order, manifest)


def describe_environment() -> dict[str, Any]:
    """The machine, as far as it bears on a comparison. No host name, no user."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "boot_id": _boot_id(),
    }


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _check_programs(experiment: Experiment) -> None:
    engine = experiment.file.engine
    assert engine is not None
    cwd = experiment.path.parent / engine.cwd
    if not cwd.is_dir():
        raise RuleError(experiment.path, "engine.cwd", f"{engine.cwd!r} is not a directory")
    for arm in experiment.arms:
        if find_program(arm.argv[0], cwd) is None:
            inherited = not any(table.name == arm.name and table.argv for table in experiment.file.arm)
            key = "engine.argv" if inherited and arm.argv[0] == engine.argv[0] else f"arm {arm.name}"
            raise RuleError(
                experiment.path,
                key,
                f"the command {arm.argv[0]!r} does not exist or may not be run",
                line=line_of(experiment.path.read_text(encoding="utf-8"), key),
                hint="Give a program on PATH, or a path from engine.cwd.",
            )


def _warmup_rows(usable: Sequence[ProfileRow], per_class: int) -> list[ProfileRow]:
    """The longest and then the next requests of each class: what will be measured, at its widest. At least one row."""
    by_class: dict[str, list[ProfileRow]] = {}
    for row in sorted(usable, key=lambda row: -(row.prompt_tokens or 0)):
        by_class.setdefault(row.workload, []).append(row)
    chosen = [row for name in sorted(by_class) for row in by_class[name][:per_class]]
    return chosen or [usable[0]]


async def run_experiment(plan: Plan, run: RunFolder, clock: Clock, note: Callable[..., None]) -> list[str]:
    """Boot what is still to do, block by block. Returns one sentence per failed arm.

    `note(event, **fields)` hears of every event, which is also written to the run. Raises EngineFailed if the baseline
    does not boot, and RunInvalid if too many boots were spoilt.
    """

    def tell(event: str, **fields: Any) -> None:
        run.event(event, **fields)
        note(event, **fields)

    done = run.done()
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
                facts = await _boot_once(plan, run, clock, tell, Place(block, slot, name))
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


async def _boot_once(plan: Plan, run: RunFolder, clock: Clock, tell: Callable[..., None], place: Place) -> BootFacts:
    where = {"arm": place.name, "block": place.block, "slot": place.slot}
    folder = run.boot(place.block, place.slot, place.name)
    tell("boot_started", **where, folder=folder.path.name)

    def note(event: str, **fields: Any) -> None:
        tell(event, **where, **fields)

    try:
        facts = await run_boot(plan.experiment, plan.arms[place.name], place, plan.load, folder, clock, note)
    except BaseException as error:
        tell("boot_interrupted", **where, reason=type(error).__name__)
        raise
    tell(f"boot_{facts.status}", **where, reason=facts.reason)
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
    if manifest["order"] != plan.order:
        raise FirsttokenError(f"{path}: the order of its boots is not the one this version makes", "Start a new run.")
    run = RunFolder.resume(path, clock)
    for pid, started_at in run.leftovers():
        if await stop_leftover(pid, started_at, clock):
            run.event("leftover_stopped", pid=pid)
    return run
