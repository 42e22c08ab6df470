"""The head of the report: the rule and what a reader must know before the verdicts, then the load and the bench."""

import math
from collections.abc import Iterator

from analysis import course
from analysis.acceptance import not_measurable
from analysis.doubt import lateness_note
from analysis.findings import Report
from analysis.first_use import first_use_line
from analysis.lines import fold, format_estimate, labelled, wrap
from analysis.measures import title_of
from analysis.operating_point import describe_point
from analysis.order import order_lines
from analysis.relative import AUTHORS_WORDS, relative_text
from analysis.scrub import LEFT_OUT
from profiles.units import format_change, format_duration, format_percent


def heading(report: Report) -> list[str]:
    """The lines above the table of verdicts."""
    experiment = report.experiment
    question = experiment.file.rule.question
    if report.relative:
        question = relative_text(question, report)
    lines = wrap(f"Rule {experiment.file.rule.id}: {question}".rstrip(": "))
    lines += wrap(f"{hashes(report)}, {fixed(report)}", "  ")
    return lines + [line for text in cautions(report) for line in fold(text, "", "  ")]


def hashes(report: Report) -> str:
    """Of the rule: its bytes, and its meaning."""
    experiment = report.experiment
    return f"sha256 {experiment.bytes_sha256[:12]}, meaning {experiment.semantic_sha256[:12]}"


def fixed(report: Report) -> str:
    """`fixed 12 h 00 min before the first boot`."""
    before_ns = course.fixed_before_ns(report.run)
    if before_ns is None:
        return "not recorded when it was fixed"
    how_long = "" if report.relative else f"{format_duration(abs(before_ns))} "
    return f"fixed {how_long}{'before' if before_ns >= 0 else 'AFTER'} the first boot"


def cautions(report: Report) -> Iterator[str]:
    """What a reader must know before the first verdict."""
    if report.simulated:
        yield "SIMULATED ENGINE: no number here is about hardware"
    if report.relative:
        yield f"RELATIVE FIGURES ONLY: {LEFT_OUT} stands for what was left out; {AUTHORS_WORDS}"
    if not report.cold:
        yield (
            "NO COLD BOOT: the engine was up already. Blocks are visits to one engine and no replicates of a boot: the "
            "intervals leave out what varies between boots, and nothing is decided"
        )
    for reason in report.invalid:
        yield f"INVALID RUN: {reason}"
    if report.post_hoc:
        yield f"POST HOC: {report.post_hoc}"


def circumstances(report: Report) -> list[str]:
    """The lines below the table: each with its label."""
    return [line for label, text in facts(report) for line in labelled(label, text)]


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Load, lines, A/A, bench, order, machine, client and notes: label and text."""
    yield "Load", describe_point(report.run, report.experiment, relative=report.relative)
    yield "Lines", _material_lines(report)
    yield "A/A", _aa(report)
    if report.bench:
        checks = (f"{'FAILED: ' if check.status == 'fail' else ''}{check.text}" for check in report.bench)
        yield "Bench", f"{report.baseline} and its copy: {'; '.join(checks)}"
    for text in order_lines(report.order):
        yield "Order", text
    yield "Machine", _machine(report)
    note = None if report.relative else lateness_note(report.run) or course.lag_note(report.run)
    if note:
        yield "Client", note
    if not report.relative and (uses := first_use_line(report.data)):
        yield "Warm-up", uses
    if missing := not_measurable(report.run):
        yield "Profile", f"not measurable: {', '.join(missing)}"
    for warning in report.warnings:
        yield "Note", warning


def _machine(report: Report) -> str:
    seen = report.course
    gap = course.gap_said(seen.whole, seen.complete)
    many = len(report.run.boots)
    boots = f"{many} {('boot' if many == 1 else 'boots') if report.cold else 'visits, none of them a boot'}"
    spent = "" if report.relative else f"{format_duration(course.machine_time_ns(report.run))} in "
    return (
        f"{spent}{boots}, {len(report.failed)} failed, "
        f"{len(report.discarded)} discarded; {seen.whole} of {seen.planned} blocks complete{gap}"
    )


def _material_lines(report: Report) -> str:
    parts = []
    for rule in report.experiment.file.measure:
        absolute = ""
        if rule.material.absolute_ms:
            absolute = f" and {LEFT_OUT if report.relative else f'{rule.material.absolute_ms:g}'} ms"
        material = f"a gain is material from {format_percent(rule.material.relative)}{absolute}"
        if rule.material.absolute_ms and (here := _line_here(report, rule.name)):
            material += f" ({here})"
        headroom = f" (headroom: {rule.headroom_reason})" if rule.headroom_reason else ""
        parts.append(f"{title_of(rule.name)}: {material}, no worse within {format_percent(rule.margin)}{headroom}")
    return "; ".join(parts)


def _line_here(report: Report, measure: str) -> str:
    """Where a line that also asks for milliseconds lies at this baseline; it differs a little from arm to arm, as the
    blocks that count do."""
    found = [item for arm in report.arms for item in arm.measures if item.measure == measure and item.baseline_ms]
    if any(item.line_left_out for arm in report.arms for item in arm.measures if item.measure == measure):
        return f"here {LEFT_OUT}, as it would tell the latency"
    finite = sorted(math.expm1(item.line) for item in found if math.isfinite(item.line))
    if found and not finite:
        return "here no gain can be material: the baseline is faster than the gain asked for"
    ends = list(dict.fromkeys(format_change(line) for line in (finite[-1], finite[0]))) if finite else []
    return f"here {' to '.join(ends)}" if ends else ""


def reference_note(report: Report) -> str | None:
    """What the arms are held against where a block boots the baseline twice; None where it boots it once."""
    if not report.arms or not report.run.manifest.get("aa"):
        return None
    both = "boots of" if report.cold else "visits to"
    return f"An arm is held against the mean of both {both} {report.baseline} in its block"


def _aa(report: Report) -> str:
    parts = []
    for finding in report.aa:
        estimate = finding.estimate
        if estimate is None or estimate.half_width is None:
            parts.append(f"{title_of(finding.measure)} no interval")
            continue
        bias = format_percent(math.expm1(min(estimate.half_width, 50.0)))
        parts.append(f"{title_of(finding.measure)} {format_estimate(estimate)}, smallest visible bias {bias}")
    return "; ".join(parts) + " (99 % over all measures)" if parts else "none: the noise floor of this bench is unknown"
