"""A run and its rule in, a report out: the findings about each arm, put before `verdict.decide`."""

import math
from dataclasses import replace
from typing import Any

from analysis import boot_log, contrasts, course, stats
from analysis.aa import AaJudgement, judge_aa
from analysis.acceptance import AcceptanceFinding, acceptance_by_class, is_measurable
from analysis.acceptance_gain import acceptance_gains, draftless_classes
from analysis.batch_caps import batch_cap, queue_note
from analysis.bench import Bench, make_bench
from analysis.bench_check import arrivals_of, bench_warnings, check_bench, pooled
from analysis.cached import cached_shares
from analysis.contrasts import BlockMeans, Contrast
from analysis.crossover import crossovers
from analysis.doubt import deciding_notes, doubtful_windows
from analysis.endings import remarks
from analysis.faults import blockers, count_errors, failing_baseline, instability, too_few
from analysis.findings import ArmReport, Report, Shown, StepFinding
from analysis.functional.guard import functional_rejections, judge_functional
from analysis.guards import judge_guard
from analysis.load import counting_boots
from analysis.looks import bench_at, post_hoc_reason, stopped_arms, stopped_notes
from analysis.measured import Measured, line_of, measured, natural
from analysis.measures import COLUMNS, higher_is_better
from analysis.notes import run_notes
from analysis.order import check_order
from analysis.parity import length_blockers, output_lengths
from analysis.pooling import pool
from analysis.sensitivity import scenarios
from analysis.settle import settle, settle_otherwise
from analysis.split.worth import best_splits, splits
from analysis.stats import Estimate, Pooled
from analysis.sweep import sweep_points
from analysis.throughput import throughputs
from analysis.verdict import MIN_BLOCKS, ClassFinding, Evidence, MeasureFinding, decide
from profiles.experiment import Arm, Experiment, MeasureRule
from profiles.runs import DISCARDED, DONE, FAILED, Boot, Run


def judge(run: Run, experiment: Experiment) -> Report:
    """Judge a run by its rule. Raises FirsttokenError if no boot was measured to its end."""
    return judge_bench(make_bench(run, experiment))


def judge_bench(bench: Bench) -> Report:
    """The same, once the run is loaded: what a calibration calls with a frame of its own."""
    run, experiment = bench.run, bench.experiment
    spreads, spread_warnings = pool(bench)
    bench = replace(bench, pooled=spreads)
    aa = judge_aa(bench)
    rule_invalid, notes = course.rule_reasons(run, experiment)
    invalid = (*rule_invalid, *aa.invalid, *course.replacement_reasons(run, experiment))
    arms: list[ArmReport] = []
    for arm in experiment.arms:
        if arm.name != bench.baseline:
            arms.append(_judge_arm(bench, arm, invalid, aa, arms))
    checks = check_bench(bench)
    doubtful = doubtful_windows(run)
    warnings = (
        bench_warnings(checks, bench.baseline)
        + deciding_notes(doubtful, experiment.file.discard.when)
        + notes
        + list(aa.warnings)
        + spread_warnings
        + stopped_notes([arm.stopped for arm in arms], {arm.arm: arm.verdict.word for arm in arms})
    )
    return Report(
        run=run,
        experiment=experiment,
        baseline=bench.baseline,
        simulated=any(boot.facts.simulated for boot in run.boots),
        cold=bench.cold,
        course=bench.course,
        aa=aa.findings,
        bench=checks,
        data=bench,
        doubtful=doubtful,
        order=check_order(bench),
        post_hoc=post_hoc_reason(run, experiment),
        invalid=invalid,
        warnings=tuple(warnings + run_notes(bench, arms)),
        arms=tuple(arms),
        discarded=tuple(course.facts_of(run, DISCARDED)),
        failed=tuple(course.facts_of(run, FAILED)),
        best_split=best_splits(bench, [item for arm in arms for item in arm.shown.split]),
    )


def _judge_arm(bench: Bench, arm: Arm, invalid: tuple[str, ...], aa: AaJudgement, above: list[ArmReport]) -> ArmReport:
    whole, stopped = bench.run, stopped_arms(bench.run).get(arm.name)
    if stopped is not None:
        bench = bench_at(bench, stopped)
        bench = replace(bench, pooled=pool(bench)[0])
    run, file = bench.run, bench.experiment.file
    against = bench.contrast(arm.name, bench.baseline)
    pairs = contrasts.deciding_pairs(against.pairs)
    measures = _measures(bench, against)
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
    calm = aa.too_calm(measures, against.references)
    evidence = Evidence(
        arm=arm.name,
        baseline=bench.baseline,
        measures=measures,
        guards=guards,
        invalid=invalid,
        too_few=tuple(too_few(bench, arm, against, measures, guards, unstable=bool(unstable))),
        broken=(*functional_rejections(bench, functional), *broken, *unstable),
        blockers=(
            *([post_hoc] if post_hoc else []),
            *aa.blockers(measures),
            *calm,
            *blockers(bench, arm, against, cached),
            *length_blockers(lengths, arm),
            *log.blockers,
        ),
        mixed_action=file.mixed.action,
    )
    verdict = decide(evidence)
    stack = _stack_reason(bench.experiment, arm, above)
    if stack:
        # Against the baseline the stack is judged as a whole; what this step alone did is the step contrast.
        told = f"stack {verdict.word}" if verdict.word == "adopt" else "stack"
        verdict = replace(verdict, reasons=(*verdict.reasons, f"{told}: {stack}"))
    drafts = _acceptance(bench, arm.name)
    failing = failing_baseline(bench)
    return ArmReport(
        arm=arm.name,
        verdict=verdict,
        measures=measures,
        guards=guards,
        blocks=len(against.blocks),
        boots=sum(boot.facts.arm == arm.name for boot in whole.boots),
        log=log,
        step=_step(bench, arm),
        acceptance={
            name: (base.length if base else None, own.length if own else None) for name, (base, own) in drafts.items()
        },
        drafts=drafts,
        cached=cached,
        discarded_pairs=against.discarded,
        settle=settle(
            measures,
            guards,
            blocks=len(against.blocks),
            hours_per_block=course.hours_per_block(run),
            alpha=bench.alpha,
            look=_next_look(bench),
            boots=against.references,
        )
        if verdict.word == "inconclusive" and bench.cold and failing is None
        else None,
        settle_otherwise=settle_otherwise(
            measures,
            guards,
            [blocker for blocker in evidence.blockers if blocker not in calm],
            cold=bench.cold,
            blocks=len(against.blocks),
            alpha=bench.alpha,
            boots=against.references,
            failing=failing,
            calm=bool(calm),
        )
        if verdict.word == "inconclusive"
        else None,
        functional=functional,
        stopped=stopped,
        shown=Shown(
            **_shown(bench, arm, against),
            cached_source=found.source if found is not None else None,
            output_lengths=lengths,
            acceptance_gain=acceptance_gains(
                drafts, measures, draftless_classes(_counted(bench, bench.baseline)) if drafts else frozenset()
            ),
            sensitivity=scenarios(bench, pairs, measures, against.references),
            split=splits(bench, arm.name, _of_the_mix(measures)) if verdict.word == "workload-dependent" else (),
        ),
    )


def _next_look(bench: Bench) -> int | None:
    """The blocks after which a run that is under way looks next; None where a look is due."""
    if bench.course.undeclared is None:
        return None
    return min((look for look in bench.experiment.looks if look > bench.course.complete), default=None)


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


def _measures(bench: Bench, contrast: Contrast) -> tuple[MeasureFinding, ...]:
    rules = bench.experiment.file.measure
    found = measured(rules, bench.run, contrast)
    # Simultaneous over classes and measures: a split is called by whichever pair looks the most extreme.
    intervals = max(1, sum(len(item.classes) for item in found.values()))
    return tuple(_measure(bench, contrast, rule, found[rule.name], intervals) for rule in rules)


def _measure(bench: Bench, contrast: Contrast, rule: MeasureRule, found: Measured, intervals: int) -> MeasureFinding:
    higher, alpha = higher_is_better(rule.name), bench.alpha_for(rule)
    line = line_of(rule, found.mix)
    limit = -math.log1p(-rule.margin) if higher else math.log1p(rule.margin)
    boots = contrast.references
    estimate = _estimate(found.mix, alpha, bench.pooled.get((None, rule.name)), boots)
    # A measure that most blocks lack decides nothing, even where the arm itself has enough of them.
    lacking = estimate is None or estimate.blocks < MIN_BLOCKS <= len(contrast.blocks)
    judged = None if lacking else estimate
    return MeasureFinding(
        measure=rule.name,
        zone=stats.zone(judged, line),
        no_worse=stats.against_limit(judged, limit),
        estimate=natural(estimate, rule.name),
        line=-line if higher else line,
        margin=rule.margin,
        classes=tuple(
            _class(name, rule, own, alpha / intervals, bench.pooled.get((name, rule.name)), boots)
            for name, own in found.classes.items()
        ),
        coverage=found.coverage,
        baseline_ms=found.mix.base_geomean_ms,
        alpha=alpha,
    )


def _class(
    name: str, rule: MeasureRule, means: BlockMeans, alpha: float, spread: Pooled | None, boots: int
) -> ClassFinding:
    estimate = _estimate(means, alpha, spread, boots)
    line = line_of(rule, means)
    shown = -line if higher_is_better(rule.name) else line
    return ClassFinding(name, natural(estimate, rule.name), stats.direction(estimate, line), shown, alpha)


def _estimate(means: BlockMeans, alpha: float, spread: Pooled | None, boots: int) -> Estimate | None:
    return stats.paired_block_t(list(means.differences.values()), alpha, spread, boots)


def _of_the_mix(measures: tuple[MeasureFinding, ...]) -> tuple[MeasureFinding, ...]:
    return tuple(finding for finding in measures if finding.measure in COLUMNS)


def _step(bench: Bench, arm: Arm) -> StepFinding | None:
    design = bench.experiment.file.design
    if design.contrast.attribute != "previous" or arm.extends is None or arm.extends == bench.baseline:
        return None
    return StepFinding(arm.extends, _measures(bench, bench.contrast(arm.name, arm.extends)))


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
    return f"contains rejected {', '.join(reversed(chain))}; re-run without {it}"


def _acceptance(bench: Bench, arm: str) -> dict[str, tuple[AcceptanceFinding | None, AcceptanceFinding | None]]:
    if not is_measurable(bench.run):
        return {}
    chosen = [acceptance_by_class(_counted(bench, side)) for side in (bench.baseline, arm)]
    return {name: (chosen[0].get(name), chosen[1].get(name)) for name in sorted(chosen[0].keys() | chosen[1].keys())}


def _counted(bench: Bench, arm: str) -> list[Boot]:
    """Boots of an arm in the blocks that may be looked at."""
    boots = counting_boots(bench.run)
    return [boot for (name, block), boot in boots.items() if name == arm and block in bench.course.blocks]
