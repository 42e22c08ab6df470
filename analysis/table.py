"""The report for a terminal: 80 columns, plain text, nothing that needs colour to be read."""

from collections.abc import Iterable, Iterator

from analysis import course
from analysis.described import described
from analysis.doubt import left_out
from analysis.endings import ending
from analysis.findings import ArmReport, Report
from analysis.functional import functional_lines
from analysis.heading import heading
from analysis.lines import CELL, WIDTH, bullet, format_cell, format_estimate, wrap
from analysis.verdict import GuardFinding
from profiles.runs import BootFacts
from profiles.units import HOUR_NS, format_change, format_duration, format_percent

_NAME, _WORD = 16, 18


def format_report(report: Report) -> str:
    """The whole report, without a final newline."""
    lines = [*heading(report), "", *_columns(report)]
    for index, arm in enumerate(report.arms):
        lines += [*([""] if index else []), *_arm(arm, report)]
    lines += _tail(report)
    return "\n".join(lines)


def _columns(report: Report) -> list[str]:
    titles = [f"{finding.title} % [90 %]" for finding in (report.arms[0].measures if report.arms else ())]
    if len(report.experiment.looks) > 1:
        titles = [title.replace("90", f"{100 - 10 / len(report.experiment.looks):g}") for title in titles]
    return [_row("ARM", "VERDICT", titles, "R"), "─" * WIDTH]


def _row(name: str, word: str, cells: Iterable[str], blocks: str) -> str:
    columns = [name.ljust(_NAME), word.ljust(_WORD), *(cell.ljust(CELL) for cell in cells), blocks]
    return " ".join(columns).rstrip()


def _arm(arm: ArmReport, report: Report) -> list[str]:
    name = arm.arm
    lines = []
    if len(name) > _NAME:
        lines.append(name)
        name = ""
    changes = [format_cell(finding.estimate) for finding in arm.measures]
    zones = [f"{finding.zone}, {finding.no_worse}" for finding in arm.measures]
    lines += [_row(name, arm.verdict.word, changes, str(arm.blocks)), _row("", "", zones, "")]
    for text in (arm.verdict.action, *arm.verdict.reasons):
        lines += bullet(text)
    if arm.verdict.word == "workload-dependent":
        lines += _classes(arm)
    functional = functional_lines(arm.functional)
    for text in (*_ladder(arm, report), *map(_guard, arm.guards), *functional, *_log(arm, report), *_limits(arm)):
        lines += bullet(text)
    return lines + described(arm, report)


def _ladder(arm: ArmReport, report: Report) -> Iterator[str]:
    if arm.stopped:
        yield f"stopped early: decided after {arm.stopped.look} blocks and not booted again; its estimate leans outward"
    if arm.log.changes_nothing:
        yield f"changes nothing the boot log shows against {arm.log.changes_nothing}: same backend, same scheduling"
    if arm.log.same_as_baseline and arm.log.changes_nothing != report.baseline:
        yield f"nothing in the boot log tells it from the baseline {report.baseline}"
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
    for block, reason in arm.discarded_pairs:
        yield f"block {block} discarded: {reason}"
    if arm.settle is not None:
        hours = format_duration(arm.settle.hours * HOUR_NS)
        yield f"would settle it: {arm.settle.blocks} blocks in all = {hours} of machine time"


def _classes(arm: ArmReport) -> list[str]:
    lines: list[str] = []
    for finding in arm.measures:
        split = {item.direction for item in finding.classes} >= {"gain", "loss"}
        if not split:
            continue
        lines += bullet(f"{finding.title} by class (simultaneous intervals):")
        for item in finding.classes:
            text = f"{item.name} {format_estimate(item.estimate)} {item.direction}"
            base, own = arm.acceptance.get(item.name, (None, None))
            if base is not None and own is not None:
                text += f", acceptance length {base:.2f} → {own:.2f}"
            lines += wrap(text, "      ")
    return lines


def _guard(guard: GuardFinding) -> str:
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


def _log(arm: ArmReport, report: Report) -> list[str]:
    lines = []
    if not report.cold:
        lines.append("boot log: not seen, the engine was up already")
    elif not arm.log.new:
        lines.append("boot log: no fallback line that the baseline lacks")
    elif report.experiment.file.boot_log.on_dirty == "note":
        lines += [f"boot log, new fallback (noted by the rule): {line}" for line in arm.log.new]
    lines += [f"boot log, new: {line}" for line in arm.log.noted]
    lines += [f"boot log, new, allowed by the rule ({reason}): {line}" for line, reason in arm.log.allowed]
    lines += [f"boot log: {note}" for note in arm.log.notes]
    return lines


def _tail(report: Report) -> list[str]:
    lines: list[str] = []
    for title, rows in (
        ("Skipped arms", [f"{item['arm']}: {item['reason']}" for item in report.run.manifest.get("skipped") or []]),
        ("Discarded boots", [_boot(facts) for facts in report.discarded]),
        ("Failed boots", [_boot(facts) for facts in report.failed]),
        ("Left out: the client would have shaped the number", left_out(report.doubtful)),
        ("Not checked", list(course.not_checked(report.run, report.experiment))),
    ):
        if rows:
            lines += ["", title]
            for row in rows:
                lines += wrap(row, "  ")
    if report.arms and not report.invalid:
        lines += ["", *wrap(f"Outcome: {_outcome(report)}", "")]
    return lines


def _outcome(report: Report) -> str:
    adopted = [arm.arm for arm in report.arms if arm.verdict.word == "adopt"]
    undecided = [arm.arm for arm in report.arms if arm.verdict.word == "inconclusive"]
    rest = f"; undecided: {', '.join(undecided)}" if undecided else ""
    if any(check.status == "fail" for check in report.bench):
        rest += ". For the load that was met here: the bench check failed"
    if adopted:
        return f"adopt {', '.join(adopted)}{rest}"
    return f"keep {report.baseline}{rest}" if undecided else f"nothing survived; keep {report.baseline}"


def _boot(facts: BootFacts) -> str:
    return f"{facts.arm}, block {facts.block}: {ending(facts)}"
