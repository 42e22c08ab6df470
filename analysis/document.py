"""verdict.json: a report as a strict JSON document. Its keys are a contract (DESIGN §9); keys may be added."""

import math
from typing import Any, Final

from analysis import course
from analysis.acceptance import AcceptanceFinding, not_measurable
from analysis.document_shown import bench_document, doubt_document, shown_document
from analysis.findings import ArmReport, Report
from analysis.functional.guard import functional_document
from analysis.guards import relative
from analysis.looks import stopped_document
from analysis.order import order_document
from analysis.sequences import anytime
from analysis.split.shown import best_split_document
from analysis.stats import Estimate, p_below, p_value
from analysis.verdict import ClassFinding, GuardFinding, MeasureFinding
from profiles.files import tool_version
from profiles.runs import BootFacts
from profiles.units import SECOND_NS

FORMAT: Final = "firsttoken/verdict"
VERSION: Final = 1
NAME: Final = "verdict.json"


def verdict_document(report: Report) -> dict[str, Any]:
    """The document. Changes are relative; an interval that does not exist is null."""
    rule = report.experiment.file.rule
    return {
        "format": FORMAT,
        "version": VERSION,
        "tool": tool_version(),
        "relative": False,
        "rule_id": rule.id,
        "rule_sha256": report.experiment.bytes_sha256,
        "rule_semantic_sha256": report.experiment.semantic_sha256,
        "rule_fixed_before_s": _seconds(course.fixed_before_ns(report.run)),
        "profile_sha256": (report.run.manifest.get("profile") or {}).get("sha256"),
        "baseline": report.baseline,
        "engine_kind": "simulated" if report.simulated else "real",
        "operating_point": report.run.manifest.get("operating_point") or {},
        "aa": _aa(report),
        "machine_time_s": round(course.machine_time_ns(report.run) / SECOND_NS),
        "boots": len(report.run.boots),
        "blocks": {
            "planned": report.course.planned,
            "complete": report.course.complete,
            "whole": report.course.whole,
            "finished": report.course.finished,
        },
        "cold": report.cold,
        "variance": report.experiment.file.design.variance,
        "bench": bench_document(report),
        **doubt_document(report),
        "order": order_document(report.order),
        "post_hoc": report.post_hoc,
        "invalid": list(report.invalid),
        "warnings": list(report.warnings),
        "not_measurable": list(not_measurable(report.run)),
        "not_checked": list(course.not_checked(report.run, report.experiment)),
        "arms": [_arm(arm) for arm in report.arms],
        "best_split": best_split_document(report.best_split),
        "skipped": report.run.manifest.get("skipped") or [],
        "discarded": [_boot(facts) for facts in report.discarded],
        "failed": [_boot(facts) for facts in report.failed],
    }


def _aa(report: Report) -> dict[str, Any]:
    measures = [{"measure": finding.measure, **_bias(finding.estimate)} for finding in report.aa]
    return {**_bias(report.aa[0].estimate if report.aa else None), "measures": measures}


def _bias(estimate: Estimate | None) -> dict[str, float | None]:
    _, low, high = relative(estimate)
    half_width = estimate.half_width if estimate else None
    smallest = None if half_width is None else math.expm1(min(half_width, 50.0))
    return {"low": low, "high": high, "smallest_visible_bias": smallest}


def _arm(arm: ArmReport) -> dict[str, Any]:
    step = arm.step
    return {
        "arm": arm.arm,
        "verdict": arm.verdict.word,
        "action": arm.verdict.action,
        "reasons": list(arm.verdict.reasons),
        "measures": [_measure(finding) for finding in arm.measures],
        "blocks": arm.blocks,
        "boots": arm.boots,
        "guards": [_guard(guard) for guard in arm.guards],
        "boot_log": {
            "clean": arm.log.clean,
            "new": list(arm.log.new),
            "noted": list(arm.log.noted),
            "allowed": [{"signature": line, "reason": reason} for line, reason in arm.log.allowed],
            "notes": list(arm.log.notes),
            "blockers": list(arm.log.blockers),
            "changes_nothing": arm.log.changes_nothing is not None,
            "same_as_baseline": arm.log.same_as_baseline,
        },
        "step": step and {"against": step.against, "measures": [_measure(finding) for finding in step.measures]},
        "acceptance": [
            {"class": name, "baseline": base and base.length, "arm": own and own.length, "drafts": _drafts(base, own)}
            for name, (base, own) in arm.drafts.items()
        ],
        "cached_share": arm.cached and {"arm": arm.cached[0], "baseline": arm.cached[1]},
        "discarded_blocks": [{"block": block, "reason": reason} for block, reason in arm.discarded_pairs],
        "functional": functional_document(arm.functional),
        "stopped": stopped_document(arm.stopped),
        **shown_document(arm),
        "settle": arm.settle and {"blocks": arm.settle.blocks, "hours": arm.settle.hours},
        "settle_otherwise": arm.settle_otherwise,
    }


def _drafts(base: AcceptanceFinding | None, own: AcceptanceFinding | None) -> dict[str, Any]:
    return {
        side: found
        and {
            "length": found.length,
            "rate": found.rate,
            "position_rates": found.position_rates,
            "source": found.source,
            "problem": found.problem,
        }
        for side, found in (("baseline", base), ("arm", own))
    }


def _measure(finding: MeasureFinding) -> dict[str, Any]:
    change, low, high = relative(finding.estimate)
    estimate = finding.estimate
    return {
        "measure": finding.measure,
        "change": change,
        "low": low,
        "high": high,
        "zone": finding.zone,
        "no_worse": finding.no_worse,
        "level": 1 - 2 * finding.alpha,
        "line": _line(finding.line),
        "margin": finding.margin,
        "anytime": _interval(anytime(estimate)),
        "p_no_change": p_value(estimate) if estimate else None,
        "p_not_material": _p_not_material(finding),
        "coverage": finding.coverage,
        "baseline_ms": finding.baseline_ms,
        "classes": [_class(item) for item in finding.classes],
    }


def _line(line: float) -> float | None:
    """A gain that cannot be had (the baseline is faster than the gain asked for) has no line."""
    return math.expm1(line) if math.isfinite(line) else None


def _interval(estimate: Estimate | None) -> dict[str, float | None]:
    _, low, high = relative(estimate)
    return {"low": low, "high": high}


def _p_not_material(finding: MeasureFinding) -> float | None:
    if finding.estimate is None or not math.isfinite(finding.line):
        return None
    if finding.higher:
        return p_below(finding.estimate.negated(), -finding.line)
    return p_below(finding.estimate, finding.line)


def _class(item: ClassFinding) -> dict[str, Any]:
    change, low, high = relative(item.estimate)
    return {
        "class": item.name,
        "change": change,
        "low": low,
        "high": high,
        "level": 1 - 2 * item.alpha,
        "line": _line(item.line),
        "direction": item.direction,
    }


def _guard(guard: GuardFinding) -> dict[str, Any]:
    return {
        "metric": guard.metric,
        "role": guard.role,
        "status": guard.status,
        "limit": guard.limit,
        "value": guard.value,
        "low": guard.low,
        "high": guard.high,
        "reason": guard.reason or None,
    }


def _boot(facts: BootFacts) -> dict[str, Any]:
    return {
        "arm": facts.arm,
        "block": facts.block,
        "slot": facts.slot,
        "attempt": facts.attempt,
        "diagnosis": facts.diagnosis,
        "reason": facts.reason,
    }


def _seconds(ns: int | None) -> int | None:
    return None if ns is None else round(ns / SECOND_NS)
