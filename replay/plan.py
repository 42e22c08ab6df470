"""A run before its first boot: everything that is fixed, and written into its manifest."""

import os
import platform
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from profiles.errors import RuleError, UsageError
from profiles.experiment import Arm, Experiment, LoadFacts, check_against_profile, load_facts
from profiles.experiment_checks import LEAST_BLOCKS
from profiles.experiment_file import ExperimentFile
from profiles.files import tool_version
from profiles.functional import probe_set
from profiles.measurable import NO_CONCURRENCY
from profiles.planned import check_guards
from profiles.profile import Profile, ProfileRow
from profiles.runs import AA_SUFFIX, FORMAT, VERSION
from replay import caches
from replay.bodies import Override, sendable
from replay.client import MEASURED_TO_C
from replay.clock import Clock
from replay.engines import check_launcher
from replay.environment import check_key, inherited, stated, stated_arguments
from replay.load import Load, prepare_load
from replay.log_table import Pattern, patterns, table_sha256
from replay.schedule import Recorded, Window, deciding_kind, order_of_boots, plan_windows
from replay.surroundings import boot_id

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before its first boot."""

    experiment: Experiment
    load: Load
    arms: dict[str, Arm]  # by the name under which they boot, the second baseline copy too
    order: list[list[str]]
    patterns: tuple[Pattern, ...]
    manifest: dict[str, Any]
    notes: tuple[str, ...]  # what a person should know before the first boot


def plan_run(experiment: Experiment, profile: Profile, clock: Clock, keep: Sequence[Path] = ()) -> Plan:
    """Check the experiment against its profile and fix the run. Raises RuleError or UsageError; starts nothing.

    `keep` are paths that no cache policy may empty, such as the run itself.
    """
    file = experiment.file
    if file.engine is None or not experiment.arms:
        raise RuleError(experiment.path, "engine", "there is nothing to boot: [engine] and [[arm]] are needed")
    synthetic = bool(profile.manifest.get("synthetic"))
    has_ends = NO_CONCURRENCY not in profile.manifest["not_measurable"]
    facts = load_facts(experiment, measured=profile.concurrency() if has_ends else None, synthetic=synthetic)
    content = str(profile.manifest["content"])
    not_measurable = [str(name) for name in profile.manifest["not_measurable"]]
    check_against_profile(experiment, load=facts, content=content, not_measurable=not_measurable)
    check_launcher(experiment)
    check_key(experiment)
    caches.check_caches(experiment, keep=(*keep, profile.path))
    extra = file.boot_log.patterns
    known_lines = patterns(experiment.path.parent / extra if extra else None)
    override = Override(
        model=file.engine.model or None,
        cache_isolation=file.engine.cache_isolation,
        output_length=file.load.output_length,
        running_usage=file.load.running_usage,
    )
    rows = profile.rows()
    usable, left_out = sendable(rows, override, profile.read_bodies())
    if not usable:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items()) or "it is empty"
        raise UsageError(
            f"{profile.path}: no request of this profile can be replayed: {reasons}",
            "A replay needs requests that ended well and stream tokens, recorded with --bodies full.",
        )
    recorded = Recorded(
        arrivals=not synthetic,
        ends=has_ends,
        windows=[(opened, close) for opened, close in profile.manifest["windows"]],
        unfinished=[(start, end) for start, end in profile.manifest.get("unfinished", [])],
    )
    kind, why_kind = deciding_kind(experiment, recorded)
    windows = plan_windows(experiment, rows, facts.point.weights, file.design.seed, usable=usable, recorded=recorded)
    check_guards(experiment, sum(len(window.picks) for window in windows if window.deciding))
    warmup = _warmup_rows(usable, file.load.warmup_per_class)
    asked = probe_set(experiment)
    load = replace(prepare_load(windows, warmup, override, profile.read_bodies()), probes=asked.probes)
    baseline = experiment.baseline
    aa = baseline.name + AA_SUFFIX
    arms = {arm.name: arm for arm in experiment.arms} | {aa: replace(baseline, name=aa)}
    order = order_of_boots(list(arms), file.design.blocks, file.design.seed)
    point = _operating_point(experiment, facts, windows, kind, why_kind)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "tool": tool_version(),
        "run_id": secrets.token_hex(8),
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
            "not_replayable": left_out,
            "observed_ns": facts.observed_ns,
            "arrivals_at": {str(c): count for c, count in sorted(facts.arrivals_at.items())},
            "time_ns_at": {str(c): ns for c, ns in sorted(facts.time_ns_at.items())},
            "captured": captured(windows),
            "content": content,
            "synthetic": synthetic,
            "source": profile.manifest.get("source", {}),
            "not_measurable": not_measurable,
        },
        "operating_point": point,
        "launcher": file.engine.launcher,
        "cold": file.engine.launcher != "external",
        "cache": file.engine.cache,
        "override": override.stated(),
        "log_patterns_sha256": table_sha256(known_lines),
        "functional": asked.stated(),
        "baseline": baseline.name,
        "aa": aa,
        "arms": [_stated_arm(arm) for arm in experiment.arms],
        "skipped": [{"arm": item.arm, "reason": item.reason} for item in file.skipped],
        "blocks": file.design.blocks,
        "order": order,
        "windows": [_stated_window(window) for window in windows],
        "seed": file.design.seed,
        "environment": describe_environment() | {"inherited": inherited(file.engine.launcher)},
    }
    return Plan(
        experiment,
        load,
        arms,
        order,
        known_lines,
        manifest,
        _notes(point, why_kind, left_out, windows, experiment.file),
    )


def _operating_point(
    experiment: Experiment, facts: LoadFacts, windows: Sequence[Window], kind: str, why_kind: str | None
) -> dict[str, Any]:
    """What decides, and which part of production it stands for. `weights` are shares of the requests of a boot."""
    choice, point = experiment.file.profile.operating_point, facts.point
    deciding = [window for window in windows if window.deciding]
    stated: dict[str, Any] = {
        "mode": kind,
        "mode_reason": why_kind,
        "cover": point.cover,
        "max": facts.max,
        "basis": choice.basis,
        "reason": choice.reason,
    }
    if kind == "closed":
        dealt = {window.c: len(window.picks) for window in deciding}
        # Levels that the point covers and that too few requests could have held.
        left_out = {str(c): weight for c, weight in point.weights.items() if c not in dealt}
        reached = sum(point.weights.get(c, 0.0) for c in dealt) * point.reached
    else:
        met = deciding[0].facts.get("arrivals_at") or {}
        dealt = {int(c): int(count) for c, count in met.items()}
        left_out, reached = {}, 1.0
    total = sum(dealt.values())
    return stated | {
        "levels": sorted(dealt),
        "weights": {str(c): count / total for c, count in sorted(dealt.items())},
        "reached": reached,
        "left_out": left_out,
        "pace": deciding[0].facts if kind != "closed" else None,
    }


def captured(windows: Sequence[Window]) -> dict[str, Any]:
    """What production said of the requests that decide, each of them once: the report holds the baseline against it.

    `ttft_p50_ns` is over those of which it is known, `ttft_requests`. The cached share is null where no request says
    it; once one does, a request without it counts as 0, since vLLM leaves it out there.
    """
    rows = list({pick.row.request: pick.row for window in windows if window.deciding for pick in window.picks}.values())
    ttfts = [row.ttft_ns for row in rows if row.ttft_ns is not None and row.ttft_ns > 0]
    counted = [row for row in rows if row.prompt_tokens is not None]
    prompt = sum(row.prompt_tokens or 0 for row in counted)
    told = prompt > 0 and any(row.cached_tokens is not None for row in counted)
    return {
        "requests": len(rows),
        "ttft_requests": len(ttfts),
        "ttft_p50_ns": round(median(ttfts)) if ttfts else None,
        "cached_share": sum(row.cached_tokens or 0 for row in counted) / prompt if told else None,
    }


def _stated_arm(arm: Arm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "argv": list(arm.argv),
        "image": arm.image or None,
        "url": arm.url or None,
        "env": stated(arm.env),
        "cwd": arm.cwd,
        "container_args": stated_arguments(arm.container_args),
        "port": arm.port or None,
        "ready_timeout": arm.ready_timeout,
        "stop_timeout": arm.stop_timeout,
        "extends": arm.extends,
        "changes": sorted(arm.changes),
        "note": arm.note,
    }


def _stated_window(window: Window) -> dict[str, Any]:
    return {
        "name": window.name,
        "kind": window.kind,
        "c": window.c,
        "deciding": window.deciding,
        "workload": window.workload,
        "limit_ns": window.limit_ns,
        "requests": len(window.picks),
    }


def _notes(
    point: dict[str, Any],
    why_kind: str | None,
    left_out: dict[str, int],
    windows: Sequence[Window],
    file: ExperimentFile,
) -> tuple[str, ...]:
    notes: list[str] = []
    if file.design.blocks < LEAST_BLOCKS:
        many = "block" if file.design.blocks == 1 else "blocks"
        notes.append(
            f"design.blocks = {file.design.blocks}: no verdict can follow from {file.design.blocks} {many}, at least "
            f"{LEAST_BLOCKS} are needed."
        )
    if why_kind is not None:
        notes.append(f"{why_kind}.")
    if point["left_out"]:
        levels = ", ".join(f"c = {level}" for level in point["left_out"])
        notes.append(
            f"{levels} left out, too few requests per boot to hold it; the levels that decide hold "
            f"{100 * point['reached']:.0f} % of the arrivals. Raise load.requests_per_boot to measure more."
        )
    notes += [f"{count} requests are not replayed: {reason}." for reason, count in left_out.items()]
    unknown = (point["pace"] or {}).get("sessions_unknown") or 0
    if unknown:
        notes.append(f"{100 * unknown:.0f} % of the requests have no known session: they arrive on their own.")
    again = sum(pick.round > 0 for window in windows if window.deciding for pick in window.picks)
    if again:
        notes.append(f"{again} requests of each boot come again: the profile holds too few for requests_per_boot.")
    wide = [window.name for window in windows if window.widest > MEASURED_TO_C]
    if wide:
        notes.append(
            f"{', '.join(wide)}: more than {MEASURED_TO_C} at once, up to which this client is measured. It would "
            "shape the result, so such a window is marked invalid."
        )
    limited = any(window.limit_ns is not None for window in windows)
    if file.engine is not None and file.engine.cache_isolation == "reset" and limited:
        notes.append("With a reset, a limited window that goes round its list finds its own prompts in the cache.")
    return tuple(notes)


def describe_environment() -> dict[str, Any]:
    """The machine, as far as it bears on a comparison. No host name, no user."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "boot_id": boot_id(),
        # None of ours heeds them. Their names only: a value may hold a password.
        "proxy_variables": sorted(name for name in os.environ if name.lower() in PROXIES),
    }


def _warmup_rows(usable: Sequence[ProfileRow], per_class: int) -> list[ProfileRow]:
    """The longest and then the next requests of each class: what will be measured, at its widest. At least one row."""
    by_class: dict[str, list[ProfileRow]] = {}
    for row in sorted(usable, key=lambda row: -(row.prompt_tokens or 0)):
        by_class.setdefault(row.workload, []).append(row)
    chosen = [row for name in sorted(by_class) for row in by_class[name][:per_class]]
    return chosen or [usable[0]]
