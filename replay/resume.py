"""Going on with a stopped run, under the rule that it has or under an amended one.

An amendment is a new rule for an old run. What was measured stays as it is, so only what leaves those boots comparable
can be amended: more blocks, new arms, measures, margins, guards. A load or an arm that has changed needs a new run. New
arms are booted in blocks that have not begun: a boot is compared with the boots of its own block.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from profiles.errors import FirsttokenError, UsageError
from profiles.experiment import Arm, Experiment, load_experiment
from profiles.files import encode, read_document, write_whole
from profiles.runs import FORMAT, MANIFEST, RULE, VERSION
from replay.clock import Clock
from replay.engines import stop_leftover
from replay.environment import check_unchanged
from replay.guard import wait_guards
from replay.plan import Plan
from replay.rundir import ENDED, RunFolder
from replay.surroundings import boot_id

# What makes a boot what it is. The rest of an arm says how long we wait for it, or what the rule makes of it.
_BOOTED: Final = ("argv", "env", "image", "container_args", "cwd", "url")
# Keys of [engine] that decide how we handle an engine and not what it does.
_HANDLING: Final = {
    "api_key_env", "cool_down_timeout", "host", "log_limit_mib", "memory_tolerance_gib", "min_available_gib", "port",
    "ready_timeout", "stop_timeout",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run holds already. `begun` is the last block of which a boot was started, `boots` counts those."""

    begun: int
    boots: int
    arms: frozenset[str]  # that were booted
    done: frozenset[tuple[int, str]]  # (block, arm)


async def take_up(path: Path, plan: Plan, clock: Clock, amend: str | None = None) -> tuple[RunFolder, Plan]:
    """Open a stopped run to go on with it; the plan comes back with the order that this run has.

    `amend` is the reason for which its rule has changed. Raises UsageError where the rule or the profile has changed
    since its first boot and no reason is given, or where the run cannot carry the change.
    """
    manifest = read_document(path / MANIFEST, FORMAT, (VERSION,))
    changed = manifest["rule"]["semantic_sha256"] != plan.experiment.semantic_sha256
    if changed and manifest["rule"]["bytes_sha256"] == plan.experiment.bytes_sha256:
        raise UsageError(
            f"{path}: {plan.manifest['tool']} reads the same experiment.toml otherwise than {manifest.get('tool')}, "
            "which began this run: it knows other keys or defaults",
            "Go on with that version, or start a new run.",
        )
    _check_amend(path, plan, manifest, changed, amend)
    if manifest["profile"]["sha256"] != plan.manifest["profile"]["sha256"]:
        raise UsageError(f"{plan.manifest['profile']['path']}: the profile has changed since this run's first boot")
    check_unchanged(plan.manifest["launcher"], manifest["environment"].get("inherited"))
    if manifest.get("log_patterns_sha256") != plan.manifest["log_patterns_sha256"]:
        raise UsageError("the table of boot-log lines has changed since this run's first boot", "Start a new run.")
    if not changed:
        _check_probes(manifest, plan)
    if not changed and manifest["rule"].get("amendments"):
        plan = replace(plan, order=manifest["order"])
    elif not changed and manifest["order"] != plan.order:
        raise FirsttokenError(f"{path}: the order of its boots is not the one this version makes", "Start a new run.")
    await wait_guards(path, clock)
    run = RunFolder.resume(path, clock)
    try:
        if changed and amend is not None:
            plan = _amend(run, plan, amend, clock)
        _note_rule(run, plan.experiment)
        if run.host_restarted(boot_id()):
            # Nothing of that boot can be alive, and what it measured was cut: it is made again.
            run.event("interrupted_by_reboot", boots=[folder.name for folder in run.interrupted()])
        for engine, identity in run.leftovers().items():
            if await stop_leftover(identity, clock):
                run.event("leftover_stopped", **identity)
            write_whole(engine, encode({**identity, ENDED: True}))  # once: later this may be somebody else's engine
    except BaseException:
        run.close()
        raise
    return run, plan


def _check_amend(path: Path, plan: Plan, manifest: dict[str, Any], changed: bool, amend: str | None) -> None:
    if changed and amend is None:
        raise UsageError(
            f"{plan.experiment.path}: the rule has changed since this run's first boot",
            f"The rule as it was is {_rule_file(path, manifest)}: replay that one, or start a new run. With --amend "
            f"REASON the run goes on under the new rule; then nothing of it can be adopted any more.",
        )
    if amend is not None and not changed:
        raise UsageError(
            f"{plan.experiment.path}: the rule means what it meant before: there is nothing to amend",
            "Leave --amend out.",
        )
    if amend is not None and not amend.strip():
        raise UsageError("an amendment needs its reason", 'Write --amend "why the rule has to change".')


def _check_probes(manifest: dict[str, Any], plan: Plan) -> None:
    """The functional probes are those of the boots that are there. A run of an earlier version says nothing of them."""
    asked = manifest.get("functional")
    if asked is not None and asked["sha256"] != plan.manifest["functional"]["sha256"]:
        raise UsageError("the functional probes have changed since this run's first boot", "Start a new run.")


def _rule_file(path: Path, manifest: dict[str, Any]) -> Path:
    """The rule of the manifest. A kill in the middle of an amendment leaves it under the name for old rules."""
    kept = path / _kept_as(manifest)
    return kept if kept.exists() and _sha256(kept) == manifest["rule"]["bytes_sha256"] else path / RULE


def _kept_as(manifest: dict[str, Any]) -> str:
    return f"{RULE}.{len(manifest['rule'].get('amendments') or []) + 1}"


def _amend(run: RunFolder, plan: Plan, reason: str, clock: Clock) -> Plan:
    old = load_experiment(_rule_file(run.path, run.manifest))
    measured = measured_so_far(run)
    refuse_incompatible(old, plan, measured)
    _check_probes(run.manifest, plan)
    plan = replace(plan, order=carry_order(run.manifest["order"], plan, measured))
    fixed, kept_as = run.manifest["rule"], _kept_as(run.manifest)
    hashes = ("id", "bytes_sha256", "semantic_sha256")
    amendment = {
        "reason": reason.strip(),
        "wall_ns": clock.wall_ns(),
        "boots_before": measured.boots,
        "kept_as": kept_as,
        "old": {name: fixed.get(name) for name in hashes},
        "new": {name: plan.manifest["rule"][name] for name in hashes},
    }
    rule = {**plan.manifest["rule"], "amendments": [*(fixed.get("amendments") or []), amendment]}
    changed = {name: plan.manifest[name] for name in ("arms", "skipped", "blocks")}
    run.amend(
        plan.experiment.path.read_bytes(), kept_as, {**run.manifest, **changed, "order": plan.order, "rule": rule}
    )
    return plan


def _note_rule(run: RunFolder, experiment: Experiment) -> None:
    """Write down what became of the rule. The manifest says it first, so a kill in between loses no event."""
    fixed = run.manifest["rule"]
    amendments = fixed.get("amendments") or []
    told = sum(event["event"] == "rule_amended" for event in run.events())
    for amendment in amendments[told:]:
        run.event("rule_amended", **{name: value for name, value in amendment.items() if name != "wall_ns"})
    new = {"old_sha256": fixed["bytes_sha256"], "new_sha256": experiment.bytes_sha256}
    last = run.last_event("rule_reformatted") or {}
    if fixed["bytes_sha256"] != experiment.bytes_sha256 and last.items() & new.items() != new.items():
        run.event("rule_reformatted", **new)


def measured_so_far(run: RunFolder) -> Measured:
    """The boots of a run, those that were cut off too."""
    places = [(int(event["block"]), str(event["arm"])) for event in run.events() if event["event"] == "boot_started"]
    return Measured(
        begun=max((block for block, _ in places), default=0),
        boots=len(places),
        arms=frozenset(name for _, name in places),
        done=frozenset(run.done()),
    )


def refuse_incompatible(old: Experiment, plan: Plan, measured: Measured) -> None:
    """Raise UsageError for a change after which the boots that are there could not be compared with those to come."""
    new = plan.experiment
    before, after = old.file, new.file
    changes = [f"load.{key}" for key in _differing(before.load, after.load)]
    changes += [f"engine.{key}" for key in _differing(before.engine, after.engine) if key not in _HANDLING]
    changes += [f"functional.{key}" for key in _differing(before.functional, after.functional) if key != "on_broken"]
    changes += [f"profile.{key}" for key in ("operating_point", "mix") if _differs(before.profile, after.profile, key)]
    changes += ["design.seed"] if before.design.seed != after.design.seed else []
    changes += [f"the baseline, {old.baseline.name}"] if old.baseline.name != new.baseline.name else []
    was = {arm.name: arm for arm in old.arms}
    for arm in new.arms:
        if arm.name in measured.arms and arm.name in was and (keys := _rebooted(was[arm.name], arm)):
            changes.append(f"{', '.join(keys)} of {arm.name}, which was booted already (give it another name)")
    if changes:
        raise UsageError(
            f"{new.path}: this run cannot carry the change of {'; '.join(changes)}",
            "Boots before and after it could not be compared: start a new run. What can be amended: more blocks, "
            "looks, arms under new names, measures, margins, guards, [discard], [boot_log], [mixed], [[skipped]].",
        )
    if after.design.blocks < measured.begun:
        raise UsageError(
            f"{new.path}: design.blocks: block {measured.begun} has begun, so there cannot be {after.design.blocks}",
            f"Write at least {measured.begun}.",
        )
    added = [arm.name for arm in new.arms if arm.name not in was]
    if added and measured.begun >= after.design.blocks:
        raise UsageError(
            f"{new.path}: no block is left for {', '.join(added)}: all {measured.begun} have begun",
            "Raise design.blocks. A new arm is booted in blocks that have not begun, beside the baseline.",
        )


def _differs(before: object, after: object, key: str) -> bool:
    return bool(getattr(before, key) != getattr(after, key))


def _differing(before: Any, after: Any) -> list[str]:
    """Keys of a table that are not the same. A table that one side lacks differs in every key."""
    fields = (after if before is None else before).__struct_fields__
    return [key for key in fields if getattr(before, key, None) != getattr(after, key, None)]


def _rebooted(before: Arm, after: Arm) -> list[str]:
    return [key for key in _BOOTED if _differs(before, after, key)]


def carry_order(order: list[list[str]], plan: Plan, measured: Measured) -> list[list[str]]:
    """The order under an amended rule: a block that has begun keeps its own, without the arms that are gone and were
    not measured in it; the others are as the new rule deals them."""
    kept = [
        [name for name in names if name in plan.arms or (block, name) in measured.done]
        for block, names in enumerate(order[: measured.begun], start=1)
    ]
    return kept + plan.order[len(kept) :]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
