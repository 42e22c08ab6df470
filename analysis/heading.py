"""The head of the report for a terminal: the rule, the load, the bench, and what a reader must know before the arms."""

import math

from analysis import course
from analysis.acceptance import not_measurable
from analysis.doubt import lateness_note
from analysis.findings import Report
from analysis.lines import fold, format_estimate, labelled, wrap
from analysis.measures import TITLES
from analysis.operating_point import describe_point
from analysis.order import order_lines
from profiles.units import format_duration, format_percent


def heading(report: Report) -> list[str]:
    """The lines above the first arm."""
    experiment = report.experiment
    before = course.fixed_before_ns(report.run)
    fixed = "not recorded when it was fixed"
    if before is not None:
        fixed = f"fixed {format_duration(before)} {'before' if before >= 0 else 'AFTER'} the first boot"
        fixed = fixed.replace("−", "")
    lines = wrap(f"Rule {experiment.file.rule.id}: {experiment.file.rule.question}".rstrip(": "))
    lines += wrap(f"sha256 {experiment.bytes_sha256[:12]}, meaning {experiment.semantic_sha256[:12]}, {fixed}", "  ")
    if report.simulated:
        lines.append("SIMULATED ENGINE: no number here is about hardware")
    if not report.cold:
        lines += fold(
            "NO COLD BOOT: the engine was up already. Blocks are visits to one engine and no replicates of a boot: the "
            "intervals leave out what varies between boots, and nothing is decided",
            "",
            "  ",
        )
    lines += [line for reason in report.invalid for line in fold(f"INVALID RUN: {reason}", "", "  ")]
    if report.post_hoc:
        lines += fold(f"POST HOC: {report.post_hoc}", "", "  ")
    lines.append("")
    lines += labelled("Load", describe_point(report.run, experiment))
    lines += labelled("Lines", _material_lines(report))
    lines += labelled("A/A", _aa(report))
    if report.bench:
        checks = (f"{'FAILED: ' if check.status == 'fail' else ''}{check.text}" for check in report.bench)
        lines += labelled("Bench", f"{report.baseline} and its copy: {'; '.join(checks)}")
    for text in order_lines(report.order):
        lines += labelled("Order", text)
    lines += labelled("Machine", _machine(report))
    note = lateness_note(report.run) or course.lag_note(report.run)
    if note:
        lines += labelled("Client", note)
    if missing := not_measurable(report.run):
        lines += labelled("Profile", f"not measurable: {', '.join(missing)}")
    for warning in report.warnings:
        lines += labelled("Note", warning)
    return lines


def _machine(report: Report) -> str:
    seen = report.course
    boots = f"{len(report.run.boots)} {'boots' if report.cold else 'visits, none of them a boot'}"
    return (
        f"{format_duration(course.machine_time_ns(report.run))} in {boots}, {len(report.failed)} failed, "
        f"{len(report.discarded)} discarded; {seen.complete} of {seen.planned} blocks complete"
    )


def _material_lines(report: Report) -> str:
    parts = []
    for rule in report.experiment.file.measure:
        absolute = f" and {rule.material.absolute_ms:g} ms" if rule.material.absolute_ms else ""
        material = f"a gain is material from {format_percent(rule.material.relative)}{absolute}"
        parts.append(f"{TITLES[rule.name]}: {material}, no worse within {format_percent(rule.margin)}")
    return "; ".join(parts)


def _aa(report: Report) -> str:
    parts = []
    for finding in report.aa:
        estimate = finding.estimate
        if estimate is None or estimate.half_width is None:
            parts.append(f"{finding.measure} no interval")
            continue
        bias = format_percent(math.expm1(min(estimate.half_width, 50.0)))
        parts.append(f"{finding.measure} {format_estimate(estimate)}, smallest visible bias {bias}")
    return "; ".join(parts) + " (99 %)" if parts else "none: the noise floor of this bench is unknown"
