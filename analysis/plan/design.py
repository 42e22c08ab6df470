"""The plan of an experiment: boots, hours, and what the design can decide. Numbers only; `plan_text` prints them."""

import math
from dataclasses import dataclass
from typing import Final

from analysis import stats
from analysis.measures import higher_is_better
from analysis.plan.chances import Chance, chances
from analysis.plan.noise import Noise
from analysis.plan.trial import (
    Trial,
    TrialGuard,
    TrialMeasure,
    allowed_errors,
    distance_for_power,
    guard_chance,
    smallest_gain,
)
from analysis.plan.warnings import WANTED_EFFECT, Boots, GuardPlan, Hours, MeasurePlan, warnings_of
from analysis.verdict import MIN_BLOCKS
from profiles.errors import RuleError
from profiles.experiment import Experiment, GuardRule, MeasureRule
from profiles.experiment_checks import MIN_REACH, LoadFacts, guard_parts
from profiles.functional import probe_set
from profiles.planned import PlannedWindow, ProfileFacts, check_profile, deciding_kind, planned_windows
from profiles.units import HOUR_NS, MILLISECOND_NS, MINUTE_NS

# Where nobody measured it: from spawn to the first token, the warm-up, and the stop.
ASSUMED_BOOT_NS: Final = 6 * MINUTE_NS


@dataclass(frozen=True, slots=True)
class Plan:
    """All that `plan` says."""

    experiment: Experiment
    facts: ProfileFacts
    load: LoadFacts
    kind: str
    why_kind: str | None
    windows: tuple[PlannedWindow, ...]
    probes: int  # of the functional guard
    classes: dict[str, float]  # deciding requests of a boot, by class
    boots: Boots
    hours: Hours
    noise: Noise
    trial: Trial
    measures: tuple[MeasurePlan, ...]
    chances: tuple[Chance, ...]
    guards: tuple[GuardPlan, ...]
    warnings: tuple[str, ...]

    @property
    def deciding_requests(self) -> int:
        return sum(window.requests for window in self.windows if window.deciding)


def make_plan(experiment: Experiment, facts: ProfileFacts, noise: Noise, boot_ns: int | None = None) -> Plan:
    """Plan an experiment. `boot_ns` is the stated machine time of a boot. Raises RuleError where the rule or the
    profile cannot carry it."""
    if experiment.file.engine is None or not experiment.arms:
        raise RuleError(experiment.path, "engine", "there is nothing to boot: [engine] and [[arm]] are needed")
    load = check_profile(experiment, facts)
    kind, why_kind = deciding_kind(experiment, arrivals=not facts.synthetic, ends=facts.measured is not None)
    windows = planned_windows(experiment, facts, load)
    requests = sum(window.requests for window in windows if window.deciding)
    shares = {name: count / facts.to_send for name, count in facts.sendable.items()}
    trial = _trial(experiment, facts, noise, requests, shares, load)
    boots = _boots(experiment)
    hours = _hours(noise, boot_ns, windows)
    measures = tuple(_measure(experiment, facts, noise, item, trial) for item in trial.measures)
    found = chances(trial)
    guards = tuple(_guard(experiment, item, trial, requests, noise, load) for item in experiment.file.guard)
    return Plan(
        experiment=experiment,
        facts=facts,
        load=load,
        kind=kind,
        why_kind=why_kind,
        windows=windows,
        probes=len(probe_set(experiment).probes),
        classes={name: requests * share for name, share in shares.items()},
        boots=boots,
        hours=hours,
        noise=noise,
        trial=trial,
        measures=measures,
        chances=found,
        guards=guards,
        warnings=tuple(warnings_of(experiment, load, kind, windows, boots, hours, measures, found, guards)),
    )


def _boots(experiment: Experiment) -> Boots:
    engine, arms = experiment.file.engine, len(experiment.arms)
    pilots = 1 if experiment.file.load.warmup_rounds == 0 else 0
    if engine is not None and engine.cache == "prewarm":
        pilots = arms
    return Boots(arms + 1, experiment.file.design.blocks, pilots)


def _hours(noise: Noise, boot_ns: int | None, windows: tuple[PlannedWindow, ...]) -> Hours:
    if boot_ns is not None:
        return Hours("stated", boot_ns / HOUR_NS)
    if noise.boot_hours is not None:
        return Hours("run", noise.boot_hours)
    parts = [window.lasts_ns for window in windows]
    if any(part is None for part in parts):
        return Hours("unknown", None)
    return Hours("estimated", (ASSUMED_BOOT_NS + sum(part or 0.0 for part in parts)) / HOUR_NS)


def _trial(
    experiment: Experiment,
    facts: ProfileFacts,
    noise: Noise,
    requests: int,
    shares: dict[str, float],
    load: LoadFacts,
) -> Trial:
    file = experiment.file
    measures = tuple(
        TrialMeasure(
            name=rule.name,
            line=_line(rule, _baseline_ms(facts, noise, rule.name)),
            limit=_limit(rule.margin, higher=higher_is_better(rule.name)),
            sd=noise.of(rule.name),
            class_sd={name: noise.of_class(rule.name, name, requests * share) for name, share in shares.items()},
            higher=higher_is_better(rule.name),
            share=_share_of_alpha(rule, len(experiment.arms) - 1),
        )
        for rule in file.measure
    )
    names = [rule.name for rule in file.measure]
    guards = []
    for guard in file.guard:
        if decides(guard, load):
            guards.append(_trial_guard(guard, noise, requests, names))
    return Trial(
        blocks=file.design.blocks,
        measures=measures,
        guards=tuple(guards),
        looks=experiment.looks,
        weights=shares,
        pooled=file.design.variance == "pooled",
        arms=len(experiment.arms) + 1,
    )


def decides(guard: GuardRule, load: LoadFacts) -> bool:
    """Whether a guard may veto: by its role, and at a concurrency that production reaches."""
    parts = guard_parts(guard.metric) or {}
    if "c" in parts and not guard.headroom_reason and load.reach(int(parts["c"])) < MIN_REACH:
        return False
    return guard.role == "deciding"


def _trial_guard(guard: GuardRule, noise: Noise, requests: int, names: list[str]) -> TrialGuard:
    parts = guard_parts(guard.metric) or {}
    if "errors" in parts:
        return TrialGuard(guard.metric, guard.max or 0.0, requests=requests, error_rate=noise.error_rate)
    higher = guard.direction == "higher"
    measure = "ttft" if "quantile" in parts else "tpot" if higher else parts.get("measure", "ttft")
    return TrialGuard(
        guard.metric,
        _limit(guard.margin or 0.0, higher=higher),
        sd=noise.of_guard(guard.metric),
        follows=measure if measure in names else None,
    )


def _baseline_ms(facts: ProfileFacts, noise: Noise, name: str) -> float | None:
    known = noise.baseline_ms.get(name)
    if known is not None or name != "ttft" or facts.ttft_geomean_ns is None:
        return known
    return facts.ttft_geomean_ns / MILLISECOND_NS


def _limit(margin: float, *, higher: bool) -> float:
    """What is no worse: a throughput may fall to 1 − margin, a time may rise to 1 + margin."""
    return -math.log1p(-margin) if higher else math.log1p(margin)


def _share_of_alpha(rule: MeasureRule, arms: int) -> float:
    """As `Bench.alpha_for`: without a material line all arms share alpha."""
    return 1 / max(1, arms) if rule.material.relative == 0 and rule.material.absolute_ms == 0 else 1.0


def _line(rule: MeasureRule, baseline_ms: float | None) -> float:
    if higher_is_better(rule.name):
        return -math.log1p(rule.material.relative)
    return stats.material_line(rule.material.relative, rule.material.absolute_ms, baseline_ms)


def _measure(
    experiment: Experiment, facts: ProfileFacts, noise: Noise, measure: TrialMeasure, trial: Trial
) -> MeasurePlan:
    alpha, blocks = trial.alpha * measure.share, trial.blocks
    finite = math.isfinite(measure.line)
    loss = measure.limit + distance_for_power(blocks, measure.sd, alpha)
    beyond = measure.line - measure.shift(WANTED_EFFECT)
    wanted = stats.required_blocks(beyond, measure.sd, alpha, MIN_BLOCKS) if finite and beyond > 0 else None
    known = blocks >= MIN_BLOCKS and loss < 3
    return MeasurePlan(
        name=measure.name,
        line=measure.line,
        higher=measure.higher,
        baseline_ms=_baseline_ms(facts, noise, measure.name),
        sd=measure.sd,
        smallest_gain=smallest_gain(measure, blocks, trial.alpha) if blocks >= MIN_BLOCKS else None,
        smallest_loss=(-math.expm1(-loss) if measure.higher else math.expm1(loss)) if known else None,
        null_rejected=stats.power(blocks, -measure.line, measure.sd, alpha) if finite else 1.0,
        blocks_for_wanted=wanted,
    )


def _guard(
    experiment: Experiment, guard: GuardRule, trial: Trial, requests: int, noise: Noise, load: LoadFacts
) -> GuardPlan:
    names = [rule.name for rule in experiment.file.measure]
    own = _trial_guard(guard, noise, requests, names)
    blocks, alpha = trial.blocks, trial.alpha
    chance = guard_chance(own, blocks, alpha)
    role = "deciding" if decides(guard, load) else "advisory"
    if own.requests:
        whole = own.requests * blocks
        return GuardPlan(
            guard.metric,
            role,
            own.limit,
            chance,
            requests=whole,
            allowed=allowed_errors(whole, own.limit, alpha),
        )
    return GuardPlan(guard.metric, role, own.limit, chance, sd=own.sd)
