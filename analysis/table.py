"""The report for a terminal: 80 columns, plain text, nothing that needs colour to be read.

The table of verdicts stands first, a line per arm. What the run is and what stands against each arm follow, and last
what to do.
"""

from collections.abc import Iterable

from analysis import course
from analysis.alone import alone_lines
from analysis.arm_points import class_sentence, points, reasons, split_measures, zones
from analysis.described import described
from analysis.doubt import left_out
from analysis.endings import ending
from analysis.findings import ArmReport, Report
from analysis.heading import circumstances, heading, reference_note
from analysis.lines import CELL, COLUMNS_SHOWN, WIDTH, bullet, format_cell, labelled, wrap
from analysis.next_steps import next_steps
from analysis.outcome import outcome
from analysis.relative import relative_report, relative_text
from analysis.split.shown import best_split_lines
from analysis.verdict import MeasureFinding
from profiles.runs import BootFacts

_NAME, _WORD = 16, 18


def format_report(report: Report, relative: bool = False) -> str:
    """The whole report, without a final newline. `relative`: without absolute figures, host names and paths."""
    if relative:
        report = relative_report(report)
    lines = [*heading(report), "", *_table(report), "", *circumstances(report)]
    for arm in report.arms:
        lines += ["", *_arm(arm, report)]
    lines += _tail(report)
    text = "\n".join(lines)
    return relative_text(text, report) if report.relative else text


def _table(report: Report) -> list[str]:
    if not report.arms:
        return alone_lines(report.data, report.relative)
    # Two columns are what 80 characters hold; further measures are in the sentences of each arm.
    shown = report.arms[0].measures[:COLUMNS_SHOWN]
    titles = [_column_title(finding) for finding in shown]
    lines = [_row("ARM", "VERDICT", titles, "R"), "─" * WIDTH]
    for arm in report.arms:
        name = arm.arm
        if len(name) > _NAME:
            lines += wrap(name)
            name = ""
        changes = [format_cell(finding.estimate) for finding in arm.measures[:COLUMNS_SHOWN]]
        lines.append(_row(name, arm.verdict.word, changes, str(arm.blocks)))
    direction = "".join(f", of {finding.title} more is better" for finding in shown if finding.higher)
    reference = f" {note}." if (note := reference_note(report)) else ""
    return lines + wrap(
        f"Changes against {report.baseline}, less is faster{direction}; [interval]; R: blocks that count.{reference}"
    )


def _column_title(finding: MeasureFinding) -> str:
    title = f"{finding.title} % [{100 * (1 - 2 * finding.alpha):.3g} %]"
    return title if len(title) <= CELL else f"{finding.measure} %"


def level(report: Report) -> str:
    """Of the intervals, in per cent: 90 with one look, 95 with two."""
    return f"{100 - 10 / len(report.experiment.looks):g}"


def _row(name: str, word: str, cells: Iterable[str], blocks: str) -> str:
    columns = [name.ljust(_NAME), word.ljust(_WORD), *(cell.ljust(CELL) for cell in cells), blocks]
    return " ".join(columns).rstrip()


def _arm(arm: ArmReport, report: Report) -> list[str]:
    lines = wrap(f"{arm.arm}: {arm.verdict.word}")
    for text in (arm.verdict.action, *reasons(arm, report), zones(arm)):
        lines += bullet(text)
    for finding in split_measures(arm):
        lines += bullet(f"{finding.title} by class (simultaneous intervals):")
        for item in finding.classes:
            lines += wrap(class_sentence(item, arm, finding), "      ")
    for text in points(arm, report):
        lines += bullet(text)
    return lines + described(arm, report)


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
    for text in best_split_lines(report.best_split):
        lines += ["", *wrap(text)]
    if told := outcome(report):
        lines += ["", *labelled("Outcome:", told)]
    steps = next_steps(report)
    if steps:
        lines += ["", "Next"]
        for step in steps:
            lines += bullet(step)
    return lines


def _boot(facts: BootFacts) -> str:
    return f"{facts.arm}, block {facts.block}: {ending(facts)}"
