"""A run and its rule in, a report out: the findings about each arm, put before `verdict.decide`."""

import math
from dataclasses import dataclass, replace

import polars as pl

from analysis import boot_log, contrasts, course, stats
from analysis.acceptance import AcceptanceFinding, acceptance_by_class, is_measurable
from analysis.bench import Bench, make_bench
from analysis.contrasts import BlockMeans
from analysis.course import Course
from analysis.faults import blockers, count_errors, died, instability, too_few
from analysis.guards import judge_guard
from analysis.load import counting_boots
from analysis.measures import TITLES, assumed_first_event_share
from analysis.settle import Settle, settle
from analysis.stats import Estimate
from analysis.verdict import ClassFinding, Evidence, GuardFinding, MeasureFinding, Verdict, decide
from profiles.experiment import Arm, Experiment, MeasureRule
from profiles.runs import DISCARDED, FAILED, BootFacts, Run
from profiles.units import format_change, format_percent

# A/A is judged at 99 % two-sided, so that one calibrated bench in a hundred is called invalid per measure.
AA_ALPHA = 0.005


@dataclass(frozen=True, slots=True)
class AaFinding:
    """The baseline's second copy against the baseline, at 99 %, on one measure."""

    measure: str
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class StepFinding:
    """An arm against its predecessor on the ladder: what this step alone did."""

    against: str
    measures: tuple[MeasureFinding, ...]


@dataclass(frozen=True, slots=True)
class ArmReport:
    """All that the report says about an arm. `acceptance`: class → mean acceptance length, baseline and arm;
    `drafts` the same with rates and positions."""

    arm: str
    verdict: Verdict
    measures: tuple[MeasureFinding, ...]
    guards: tuple[GuardFinding, ...]
    blocks: int
    boots: int
    log: boot_log.LogJudgement
    step: StepFinding | None
    acceptance: dict[str, tuple[float | None, float | None]]
    drafts: dict[str, tuple[AcceptanceFinding | None, AcceptanceFinding | None]]
    cached: tuple[float, float] | None
    discarded_pairs: tuple[tuple[int, str], ...]
    settle: Settle | None


@dataclass(frozen=True, slots=True)
class Report:
    """A run, judged."""

    run: Run
    experiment: Experiment
    baseline: str
    simulated: bool
    course: Course
    aa: tuple[AaFinding, ...]
    invalid: tuple[str, ...]
    warnings: tuple[str, ...]
    arms: tuple[ArmReport, ...]
    discarded: tuple[BootFacts, ...]
    failed: tuple[BootFacts, ...]

    @property
    def exit_code(self) -> int:
        """0 every arm decided, 3 something inconclusive, 4 the run is invalid."""
        if self.invalid:
            return 4
        return 3 if any(arm.verdict.word == "inconclusive" for arm in self.arms) else 0


def judge(run: Run, experiment: Experiment) -> Report:
    """Judge a run by its rule. Raises FirsttokenError if no boot was measured to its end."""
    bench = make_bench(run, experiment)
    aa, aa_invalid, aa_warnings = _judge_aa(bench)
    rule_invalid, notes = course.rule_reasons(run, experiment)
    invalid = (*rule_invalid, *aa_invalid, *course.replacement_reasons(run, experiment))
    arms: list[ArmReport] = []
    for arm in experiment.arms:
        if arm.name != bench.baseline:
            arms.append(_judge_arm(bench, arm, invalid, arms))
    return Report(
        run=run,
        experiment=experiment,
        baseline=bench.baseline,
        simulated=any(boot.facts.simulated for boot in run.boots),
        course=bench.course,
        aa=aa,
        invalid=invalid,
        warnings=tuple(notes + aa_warnings + _bench_warnings(bench)),
        arms=tuple(arms),
        discarded=tuple(course.facts_of(run, DISCARDED)),
        failed=tuple(course.facts_of(run, FAILED)),
    )


def _judge_aa(bench: Bench) -> tuple[tuple[AaFinding, ...], list[str], list[str]]:
    copy = bench.run.manifest.get("aa")
    if not copy:
        return (), [], ["no second copy of the baseline was booted: the noise floor of this bench is unknown"]
    means = contrasts.block_means(contrasts.deciding_pairs(bench.contrast(str(copy), bench.baseline).pairs))
    findings, invalid, warnings = [], [], []
    for rule in bench.experiment.file.measure:
        estimate = stats.paired_block_t(list(means[rule.name].differences.values()), AA_ALPHA)
        findings.append(AaFinding(rule.name, estimate))
        if estimate is None or estimate.low is None or estimate.high is None:
            warnings.append(f"A/A on {TITLES[rule.name]}: too few blocks for an interval")
            continue
        if estimate.low > 0 or estimate.high < 0:
            change = format_change(math.expm1(estimate.mean))
            invalid.append(
                f"A/A failed: the bench cannot tell {bench.baseline} from itself ({TITLES[rule.name]} {change})"
            )
        if abs(estimate.mean) > abs(_line(rule, means[rule.name])):
            warnings.append(f"A/A on {TITLES[rule.name]}: the mean alone is beyond the material line")
    return tuple(findings), invalid, warnings


def _judge_arm(bench: Bench, arm: Arm, invalid: tuple[str, ...], above: list[ArmReport]) -> ArmReport:
    run, file = bench.run, bench.experiment.file
    against = bench.contrast(arm.name, bench.baseline)
    pairs = contrasts.deciding_pairs(against.pairs)
    measures = _measures(bench, pairs)
    errors = count_errors(bench, arm.name)
    guards = tuple(judge_guard(rule, run, against, errors, alpha=bench.alpha) for rule in file.guard)
    unstable = instability(bench, arm.name)
    log = boot_log.judge_logs(run, bench.experiment, arm)
    broken = (
        [f"new fallback line in the boot log: {line}" for line in log.new] if file.boot_log.on_dirty == "reject" else []
    )
    cached = contrasts.cached_shares(pairs)
    evidence = Evidence(
        arm=arm.name,
        baseline=bench.baseline,
        measures=measures,
        guards=guards,
        invalid=invalid,
        too_few=tuple(too_few(bench, arm, against, measures, unstable=bool(unstable))),
        broken=(*broken, *unstable),
        blockers=(*blockers(bench, arm, against, cached), *log.blockers),
        mixed_action=file.mixed.action,
    )
    verdict = decide(evidence)
    stack = _stack_reason(bench.experiment, arm, above)
    if stack:
        verdict = replace(verdict, reasons=(*verdict.reasons, stack))
    hours = course.hours_per_block(run)
    drafts = _acceptance(bench, arm.name)
    return ArmReport(
        arm=arm.name,
        verdict=verdict,
        measures=measures,
        guards=guards,
        blocks=len(against.blocks),
        boots=sum(boot.facts.arm == arm.name for boot in run.boots),
        log=log,
        step=_step(bench, arm),
        acceptance={
            name: (base.length if base else None, own.length if own else None) for name, (base, own) in drafts.items()
        },
        drafts=drafts,
        cached=cached,
        discarded_pairs=against.discarded,
        settle=settle(measures, guards, blocks=len(against.blocks), hours_per_block=hours, alpha=bench.alpha)
        if verdict.word == "inconclusive"
        else None,
    )


def _measures(bench: Bench, pairs: pl.DataFrame) -> tuple[MeasureFinding, ...]:
    rules = bench.experiment.file.measure
    means = contrasts.block_means(pairs)
    classes = contrasts.class_means(pairs)
    # Simultaneous over classes and measures: a split is called by whichever pair looks the most extreme.
    alpha = bench.alpha / max(1, len(classes) * len(rules))
    found = []
    for rule in rules:
        line = _line(rule, means[rule.name])
        estimate = stats.paired_block_t(list(means[rule.name].differences.values()), bench.alpha)
        finding = MeasureFinding(
            measure=rule.name,
            zone=stats.zone(estimate, line),
            no_worse=stats.no_worse(estimate, rule.margin),
            estimate=estimate,
            line=line,
            margin=rule.margin,
            classes=tuple(_class(name, rule, own[rule.name], alpha) for name, own in classes.items()),
            coverage=contrasts.coverage(pairs, rule.name),
            baseline_ms=means[rule.name].base_geomean_ms,
        )
        found.append(finding)
    return tuple(found)


def _class(name: str, rule: MeasureRule, means: BlockMeans, alpha: float) -> ClassFinding:
    estimate = stats.paired_block_t(list(means.differences.values()), alpha)
    return ClassFinding(name, estimate, stats.direction(estimate, _line(rule, means)))


def _line(rule: MeasureRule, means: BlockMeans) -> float:
    return stats.material_line(rule.material.relative, rule.material.absolute_ms, means.base_geomean_ms)


def _step(bench: Bench, arm: Arm) -> StepFinding | None:
    design = bench.experiment.file.design
    if design.contrast.attribute != "previous" or arm.extends is None or arm.extends == bench.baseline:
        return None
    pairs = contrasts.deciding_pairs(bench.contrast(arm.name, arm.extends).pairs)
    return StepFinding(arm.extends, _measures(bench, pairs))


def _stack_reason(experiment: Experiment, arm: Arm, above: list[ArmReport]) -> str | None:
    rejected = {report.arm for report in above if report.verdict.word == "reject"}
    by_name = {item.name: item for item in experiment.arms}
    chain: list[str] = []
    parent = arm.extends
    while parent is not None and len(chain) <= len(by_name):
        if parent in rejected:
            chain.append(parent)
        parent = by_name[parent].extends
    if not chain:
        return None
    it = "it" if len(chain) == 1 else "them"
    return f"stack: contains rejected {', '.join(reversed(chain))}; re-run without {it}"


def _acceptance(bench: Bench, arm: str) -> dict[str, tuple[AcceptanceFinding | None, AcceptanceFinding | None]]:
    if not is_measurable(bench.run):
        return {}
    boots = counting_boots(bench.run)
    chosen = [
        acceptance_by_class(
            boot for (name, block), boot in boots.items() if name == side and block in bench.course.blocks
        )
        for side in (bench.baseline, arm)
    ]
    return {name: (chosen[0].get(name), chosen[1].get(name)) for name in sorted(chosen[0].keys() | chosen[1].keys())}


def _bench_warnings(bench: Bench) -> list[str]:
    warnings = []
    if not bench.course.finished:
        warnings.append(f"the run is unfinished: {bench.course.complete} of {bench.course.planned} blocks are complete")
    share = assumed_first_event_share(bench.frame.filter("deciding"))
    if share:
        warnings.append(
            f"TPOT of {format_percent(share)} of the requests takes the first event as one token: "
            f"the engine packs several into an event and does not say how many"
        )
    warnings += _metrics_warnings(bench)
    base_died = [boot.facts for boot in bench.run.boots if boot.facts.arm == bench.baseline and died(boot.facts)]
    if base_died:
        warnings.append(f"{len(base_died)} boots of the baseline {bench.baseline} itself failed")
    return warnings


def _metrics_warnings(bench: Bench) -> list[str]:
    """Windows whose counters cannot be used, each reason once: acceptance and cached tokens are missing there."""
    windows = [window for boot in counting_boots(bench.run).values() for window in boot.facts.windows]
    reasons: dict[str, int] = {}
    for window in windows:
        if window.counters_void:
            reasons[window.counters_void] = reasons.get(window.counters_void, 0) + 1
    return [
        f"server metrics unavailable in {count} of {len(windows)} windows: {reason}; "
        "the verdict stands on the client's clock"
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:3]
    ]
