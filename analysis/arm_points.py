"""What is said about an arm below the table: sentences, for whoever prints them."""

import math
from collections.abc import Iterator

from analysis import stats
from analysis.boot_log import LogJudgement
from analysis.findings import ArmReport, Report
from analysis.functional.guard import functional_lines
from analysis.lines import COLUMNS_SHOWN, format_estimate, listed
from analysis.looks import stopped_line
from analysis.sequences import anytime_lines
from analysis.verdict import ClassFinding, GuardFinding, MeasureFinding
from profiles.units import HOUR_NS, format_change, format_duration, format_percent


def reasons(arm: ArmReport, report: Report) -> list[str]:
    """Why the verdict is what it is. What makes the whole run invalid stands above the table already."""
    return [reason for reason in arm.verdict.reasons if reason not in report.invalid]


def zones(arm: ArmReport) -> str:
    """`TTFT no gain, no worse; TPOT open, no worse`; the change too of a measure for which the table has no column."""
    parts = []
    for at, finding in enumerate(arm.measures):
        change = f" {format_estimate(finding.estimate)}:" if at >= COLUMNS_SHOWN else ""
        parts.append(f"{finding.title}{change} {zone_words(finding)}")
    return "; ".join(parts)


def zone_words(finding: MeasureFinding) -> str:
    """`no gain, no worse`; where the baseline is faster than the gain asked for, that none can be had."""
    none = math.isinf(finding.line) and not finding.line_left_out and finding.estimate is not None
    return f"{finding.zone}{' (none can be material)' if none else ''}, {finding.no_worse}"


def split_measures(arm: ArmReport) -> list[MeasureFinding]:
    """The measures that make an arm workload-dependent; none of an arm with another verdict."""
    if arm.verdict.word != "workload-dependent":
        return []
    return [finding for finding in arm.measures if {item.direction for item in finding.classes} >= {"gain", "loss"}]


def class_sentence(item: ClassFinding, arm: ArmReport, finding: MeasureFinding) -> str:
    """`code −15.9 % [−16.8 %, −15.0 %] gain, acceptance length 2.99 → 3.95`."""
    text = f"{item.name} {format_estimate(item.estimate)} {direction_words(item, finding)}"
    base, own = arm.acceptance.get(item.name, (None, None))
    if base is not None and own is not None:
        text += f", acceptance length {base:.2f} → {own:.2f}"
    return text


def direction_words(item: ClassFinding, finding: MeasureFinding) -> str:
    """`gain`; where the line of the mix would say another word, the line of the class stands there too."""
    turned = item.estimate.negated() if finding.higher and item.estimate else item.estimate
    line = -finding.line if finding.higher else finding.line
    same = stats.direction(turned, line) == item.direction
    return item.direction if same else f"{item.direction} ({_own_line(item)})"


def _own_line(item: ClassFinding) -> str:
    if item.line_left_out:
        return "by a line of its own"
    if math.isinf(item.line):
        return "no gain of its own can be material"
    return f"its own line is {format_change(math.expm1(item.line))}"


def points(arm: ArmReport, report: Report) -> Iterator[str]:
    """Ladder, guards, functions, boot log, limits and what would settle it."""
    yield from _ladder(arm, report)
    yield from map(guard_sentence, arm.guards)
    yield from functional_lines(arm.functional, arm.log.compared)
    yield from log_sentences(arm, report)
    yield from _limits(arm)
    if arm.settle is not None:
        hours = "" if report.relative else f" = {format_duration(arm.settle.hours * HOUR_NS)} of machine time"
        yield f"would settle it: {arm.settle.blocks} blocks in all{hours}"
    if arm.settle_otherwise is not None:
        yield f"would settle it{', besides' if arm.settle else ''}: {arm.settle_otherwise}"
    if report.course.undeclared is not None:
        yield from anytime_lines(arm.measures)


def guard_sentence(guard: GuardFinding) -> str:
    """`guard ttft_p90 −0.0 % [−0.6 %, +0.6 %]: pass (margin 10 %, deciding)`."""
    shown = ""
    if guard.metric == "error_rate":
        if guard.value is not None and guard.high is not None:
            shown = f" {format_percent(guard.value, 2)} (at most {format_percent(guard.high, 2)})"
        limit = f"ceiling {format_percent(guard.limit, 2)}"
    else:
        if guard.value is not None:
            shown = f" {format_change(guard.value)}"
        if guard.low is not None and guard.high is not None:
            shown += f" [{format_change(guard.low)}, {format_change(guard.high)}]"
        limit = f"margin {format_percent(guard.limit, 0)}"
    reason = f"; {guard.reason}" if guard.reason else ""
    return f"guard {guard.metric}{shown}: {guard.status} ({limit}, {guard.role}{reason})"


def log_sentences(arm: ArmReport, report: Report) -> list[str]:
    """What the boot log of an arm says, against the baseline's."""
    lines = []
    if not report.cold:
        lines.append("boot log: not seen, the engine was up already")
    elif arm.log.clean:
        lines.append(f"boot log: {clean_log(arm.log)}")
    elif report.experiment.file.boot_log.on_dirty == "note":
        lines += [f"boot log, new fallback (noted by the rule): {line}" for line in arm.log.new]
    lines += [f"boot log, new: {line}" for line in arm.log.noted]
    lines += [f"boot log, new, allowed by the rule ({reason}): {line}" for line, reason in arm.log.allowed]
    lines += [f"boot log: {note}" for note in arm.log.notes]
    # What blocks adopt is part of the reason only where the numbers would adopt.
    said = " ".join(arm.verdict.reasons)
    lines += [f"boot log: {blocker}" for blocker in arm.log.blockers if blocker not in said]
    return lines


def discard_lines(arm: ArmReport) -> Iterator[str]:
    """Blocks that do not count for this arm, each reason once: whose boot lacks requests, and how many."""
    reasons: dict[str, list[str]] = {}
    for block, reason in arm.discarded_pairs:
        reasons.setdefault(reason, []).append(str(block))
    for reason, blocks in reasons.items():
        yield f"{'block' if len(blocks) == 1 else 'blocks'} {listed(blocks)} discarded: {reason}"


def clean_log(log: LogJudgement) -> str:
    """Of a log in which nothing is left that the rule has not answered for."""
    said = "no fallback line that the baseline lacks"
    return f"{said} but those that the rule allows" if log.allowed else said


def sameness(arm: ArmReport, report: Report) -> Iterator[str]:
    """That it was not booted to the end, or does what another arm does."""
    if arm.stopped:
        yield stopped_line(arm.stopped)
    if arm.log.changes_nothing:
        yield f"changes nothing the boot log shows against {arm.log.changes_nothing}: same backend, same scheduling"
    if arm.log.same_as_baseline and arm.log.changes_nothing != report.baseline:
        yield f"nothing in the boot log tells it from the baseline {report.baseline}"


def _ladder(arm: ArmReport, report: Report) -> Iterator[str]:
    yield from sameness(arm, report)
    if arm.step:
        parts = [f"{item.title} {format_estimate(item.estimate)} {item.zone}" for item in arm.step.measures]
        yield f"this step alone, against {arm.step.against}: {'; '.join(parts)}"


def _limits(arm: ArmReport) -> Iterator[str]:
    for finding in arm.measures:
        if finding.coverage is not None and finding.coverage < 1:
            yield f"{finding.title} covers {format_percent(finding.coverage, 0)} of the paired requests"
    if arm.cached is not None and max(arm.cached) > 0:
        ours, theirs = (format_percent(share) for share in arm.cached)
        by = ", by the engine's counters" if arm.shown.cached_source == "counters" else ""
        yield f"cached prompt tokens {ours}, baseline {theirs}{by}"
    yield from discard_lines(arm)
