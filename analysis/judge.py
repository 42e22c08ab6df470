"""A run and its rule in, a report out: the findings about each arm, put before `verdict.decide`."""

import math
from dataclasses import replace
from typing import Any

import polars as pl

from analysis import boot_log, contrasts, course, stats
from analysis.acceptance import AcceptanceFinding, acceptance_by_class, is_measurable
from analysis.acceptance_gain import acceptance_gains
from analysis.batch_caps import batch_cap, queue_note
from analysis.bench import Bench, make_bench
from analysis.bench_check import arrivals_of, bench_warnings, check_bench, pooled
from analysis.cached import cached_shares
from analysis.contrasts import BlockMeans, Contrast
from analysis.crossover import crossovers
from analysis.doubt import deciding_notes, doubtful_windows
from analysis.endings import remarks
from analysis.faults import blockers, count_errors, instability, too_few
from analysis.findings import AaFinding, ArmReport, Report, Shown, StepFinding
from analysis.functional import functional_rejections, judge_functional
from analysis.guards import judge_guard
from analysis.load import counting_boots
from analysis.looks import post_hoc_reason, stopped_arms
from analysis.measures import TITLES
from analysis.notes import run_notes
from analysis.order import check_order
from analysis.parity import length_blockers, output_lengths
from analysis.sensitivity import scenarios
from analysis.settle import settle
from analysis.split import splits
from analysis.sweep import sweep_points
from analysis.throughput import throughputs
from analysis.verdict import ClassFinding, Evidence, MeasureFinding, decide
from profiles.experiment import Arm, Experiment, MeasureRule
from profiles.runs import DISCARDED, DONE, FAILED, Run
from profiles.units import format_change

# A/A is judged at 99 % two-sided, so that one calibrated bench in a hundred is called invalid per measure.
AA_ALPHA = 0.005


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
    checks = check_bench(bench)
    doubtful = doubtful_windows(run)
    warnings = (
        bench_warnings(checks, bench.baseline)
        + deciding_notes(doubtful, experiment.file.discard.when)
        + notes
        + aa_warnings
    )
    return Report(
        run=run,
        experiment=experiment,
        baseline=bench.baseline,
        simulated=any(boot.facts.simulated for boot in run.boots),
        cold=bench.cold,
        course=bench.course,
        aa=aa,
        bench=checks,
        doubtful=doubtful,
        order=check_order(bench),
        post_hoc=post_hoc_reason(run, experiment),
        invalid=invalid,
        warnings=tuple(warnings + run_notes(bench, arms)),
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
    found = cached_shares(bench, against)
    cached = (found.arm, found.base) if found is not None else None
    lengths = output_lengths(bench, against)
    functional = judge_functional(bench, arm)
    post_hoc = post_hoc_reason(run, bench.experiment)
    evidence = Evidence(
        arm=arm.name,
        baseline=bench.baseline,
        measures=measures,
        guards=guards,
        invalid=invalid,
        too_few=tuple(too_few(bench, arm, against, measures, unstable=bool(unstable))),
        broken=(*functional_rejections(bench, functional), *broken, *unstable),
        blockers=(
            *([post_hoc] if post_hoc else []),
            *blockers(bench, arm, against, cached),
            *length_blockers(lengths, arm),
            *log.blockers,
        ),
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
        if verdict.word == "inconclusive" and bench.cold
        else None,
        functional=functional,
        stopped=stopped_arms(run).get(arm.name),
        shown=Shown(
            **_shown(bench, arm, against),
            cached_source=found.source if found is not None else None,
            output_lengths=lengths,
            acceptance_gain=acceptance_gains(drafts, measures),
            sensitivity=scenarios(bench, pairs, measures),
            split=splits(bench, arm.name, measures),
        ),
    )


def _shown(bench: Bench, arm: Arm, against: Contrast) -> dict[str, Any]:
    boots = [boot.facts for boot in bench.run.boots if boot.facts.arm == arm.name and boot.facts.status == DONE]
    cap = batch_cap(arm.argv, boots)
    return {
        "remarks": remarks(bench.run, arm.name),
        "arrivals_at": pooled(arrivals_of(bench, arm.name)),
        "batch_cap": cap,
        "queue": queue_note(cap, bench.run.manifest.get("windows") or []),
        "sweep": sweep_points(against.pairs),
        "crossover": crossovers(against.pairs),
        "throughput": throughputs(bench.run, against),
    }


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
