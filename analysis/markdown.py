"""The report as Markdown for a pull request: verdicts first, reasons as points, the rest folded away.

GitHub shows what an engine or a user wrote as Markdown and HTML, so every such text is escaped: it can make no cell,
link, mention, image or tag of its own.
"""

import html
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from analysis import course
from analysis.alone import alone_lines
from analysis.arm_points import direction_words, points, reasons, split_measures, zone_words, zones
from analysis.described import described
from analysis.doubt import left_out
from analysis.endings import ending
from analysis.findings import ArmReport, Report
from analysis.guards import relative as changes_of
from analysis.heading import cautions, facts, fixed, reference_note
from analysis.next_steps import next_steps
from analysis.outcome import outcome
from analysis.relative import relative_report, relative_text
from analysis.split.shown import best_split_lines
from analysis.stats import Estimate
from profiles.files import tool_version
from profiles.runs import BootFacts

# Facts that a reader needs before the arms; the others are folded away.
_SHOWN: Final = ("Load", "Lines", "A/A", "Bench")
# What begins code, emphasis, a link, a cell, a struck word or a formula; `&`, `<` and `>` are escaped as HTML before.
_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
# What begins a list, a heading or a rule, where it stands first.
_FIRST = re.compile(r"^(\d*)([-+#=.)])")
# A mention, an issue and a bare address have no escape of their own; a space of no width parts them.
_LINKED = re.compile(r"(@(?=\w)|#(?=\d)|\bGH(?=-\d)|\b(?:https?|ftp|mailto)(?=:)|\bwww(?=\.))", re.IGNORECASE)
_NO_WIDTH: Final = "\u200b"


def format_markdown(report: Report, relative: bool = False) -> str:
    """The whole report, without a final newline. `relative`: without absolute figures, host names and paths."""
    if relative:
        report = relative_report(report)
    known = list(facts(report))
    told = outcome(report) or ("the run is invalid" if report.invalid else "none, nothing was compared")
    lines = [f"### Verdict: {escape(told)}", "", *(_table(report) if report.arms else _alone(report)), ""]
    if note := reference_note(report):
        lines += [f"{escape(note)}.", ""]
    lines += _points([*cautions(report), *(f"{label}: {text}" for label, text in known if label in _SHOWN)])
    for arm in report.arms:
        lines += ["", *_arm(arm, report)]
    if steps := next_steps(report):
        lines += ["", "**Next**", "", *(f"- {_with_commands(step)}" for step in steps)]
    for title, rows in _lists(report):
        lines += ["", f"**{title}**", "", *_points(rows)]
    lines += ["", *_folded("Everything else that was measured", _details(report, known))]
    lines += ["", _made(report)]
    text = "\n".join(lines)
    return relative_text(text, report) if report.relative else text


def escape(text: str) -> str:
    """Text that GitHub shows as it is, on one line: no cell, no code, no tag, no mention, no link, no issue number."""
    plain = html.escape(" ".join(text.split()), quote=False)
    marked = _FIRST.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", plain))
    return _LINKED.sub(rf"\1{_NO_WIDTH}", marked)


def _table(report: Report) -> list[str]:
    measures = [finding.title for finding in (report.arms[0].measures if report.arms else ())]
    level = f"{100 - 10 / len(report.experiment.looks):g} %"
    titles = ["Arm", "Verdict", *(f"{title} [{level}]" for title in measures), "Blocks"]
    rows = [
        [
            escape(arm.arm),
            f"**{arm.verdict.word}**",
            *(f"{_change(finding.estimate)}<br>{zone_words(finding)}" for finding in arm.measures),
            str(arm.blocks),
        ]
        for arm in report.arms
    ]
    return [_cells(titles), _cells(["---"] * len(titles)), *map(_cells, rows)]


def _alone(report: Report) -> list[str]:
    return ["```text", *alone_lines(report.data, report.relative), "```"]


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _change(estimate: Estimate | None) -> str:
    """`−4.8 % [−6.0, −3.7]`."""
    change, low, high = changes_of(estimate)
    if change is None:
        return "not measured"
    if low is None or high is None:
        return f"{_percent(change)} % [no interval]"
    return f"{_percent(change)} % [{_percent(low)}, {_percent(high)}]"


def _percent(change: float) -> str:
    if abs(change) >= 100:
        return f"×{1 + change:.2g}"
    return f"{100 * change:+.1f}".replace("-", "−")


def _points(texts: Iterable[str]) -> list[str]:
    return [f"- {escape(text)}" for text in texts]


def _with_commands(text: str) -> str:
    """A sentence of ours, its commands as code. What it quotes can hold no backtick after the split."""
    parts = text.split("`")
    return "".join(f"`{' '.join(part.split())}`" if index % 2 else escape(part) for index, part in enumerate(parts))


def _arm(arm: ArmReport, report: Report) -> Iterator[str]:
    yield f"**{escape(arm.arm)}**: {escape(arm.verdict.action)}"
    yield ""
    yield from _points([*reasons(arm, report), *points(arm, report)])
    for finding in split_measures(arm):
        yield ""
        yield _cells(["Class", f"{finding.title}, simultaneous intervals", "", "Acceptance length"])
        yield _cells(["---"] * 4)
        for item in finding.classes:
            base, own = arm.acceptance.get(item.name, (None, None))
            length = f"{base:.2f} → {own:.2f}" if base is not None and own is not None else "–"
            yield _cells([escape(item.name), _change(item.estimate), direction_words(item, finding), length])


def _lists(report: Report) -> Iterator[tuple[str, list[str]]]:
    manifest = report.run.manifest
    for title, rows in (
        ("Skipped arms", [f"{item['arm']}: {item['reason']}" for item in manifest.get("skipped") or []]),
        ("Discarded boots", [_boot(boot) for boot in report.discarded]),
        ("Failed boots", [_boot(boot) for boot in report.failed]),
    ):
        if rows:
            yield title, rows


def _boot(boot: BootFacts) -> str:
    return f"{boot.arm}, block {boot.block}: {ending(boot)}"


def _details(report: Report, known: Iterable[tuple[str, str]]) -> Iterator[str]:
    """In the terminal's form, which has tables of its own."""
    for label, text in known:
        if label not in _SHOWN:
            yield f"{label}: {text}"
    yield from best_split_lines(report.best_split)
    yield from (f"left out, the client would have shaped the number: {text}" for text in left_out(report.doubtful))
    yield from (f"not checked: {text}" for text in course.not_checked(report.run, report.experiment))
    for arm in report.arms:
        yield f"{arm.arm}: {zones(arm)}"
        yield from described(arm, report)


def _folded(title: str, lines: Iterable[str]) -> list[str]:
    """A fenced block inside <details>, its fence longer than any inside it."""
    body = list(chain(lines))
    if not body:
        return []
    longest = max((len(run) for line in body for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    body = [" ".join(line.splitlines()) for line in body]
    return [f"<details><summary>{title}</summary>", "", f"{fence}text", *body, fence, "", "</details>"]


def _made(report: Report) -> str:
    experiment = report.experiment
    blocks = f"{report.course.whole} of {report.course.planned} blocks, {len(report.run.boots)} boots"
    rule = f"rule {escape(experiment.file.rule.id)} (sha256 {experiment.bytes_sha256[:12]}), {fixed(report)}"
    return f"<sub>{tool_version()}: {blocks} against {escape(report.baseline)}; {rule}.</sub>"
