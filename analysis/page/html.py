"""The report as one HTML page that loads nothing: verdicts first, then pictures, then all that they rest on.

Two forms: with Vega in the page, once for all charts, so that each mark has its tooltip; and `static`, plain SVG
without any script, for mail, a pull request or a strict policy. The interactive page holds the same SVG, and draws a
chart live where it comes into sight, so it also reads without scripts and on paper. `relative` leaves out every
absolute figure, host name, path and date. Equal runs give equal bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analysis.arm_points import zone_words
from analysis.findings import ArmReport, Report
from analysis.guards import relative as changes
from analysis.heading import fixed, reference_note
from analysis.measures import title_of
from analysis.next_steps import next_steps
from analysis.outcome import outcome
from analysis.page.arms import arm_details
from analysis.page.boots import boots
from analysis.page.figures import chart_sections
from analysis.page.parts import NONE, Cell, Section, Words, change, interval
from analysis.page.run import amendments, bench_lines, environment, lists, looks, rule_text
from analysis.page.script import begin_bundle, data_json, drawing, packed, policy
from analysis.page.svg import picture
from analysis.relative import AUTHORS_WORDS, relative_report, words_of
from analysis.scrub import scrub
from analysis.split.shown import best_split_lines
from analysis.table import level
from profiles.charts.style import COLOURS, Spec, complete, page_templates, plain
from profiles.errors import UsageError
from profiles.files import tool_version, write_whole
from profiles.units import format_duration, format_percent

FORMAT: Final = "firsttoken/report-page"
VERSION: Final = 1
NAME: Final = "report.html"
_TEMPLATES: Final = Path(__file__).parent / "templates"

# Word -> its sign. Each has a colour too, by its class in the style sheet; none needs it to be told apart.
SIGNS: Final = {
    "adopt": "✓",
    "reject": "✕",
    "workload-dependent": "◐",
    "inconclusive": "?",
    "invalid": "⊘",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A panel as SVG text. `place` is where its specification stands in the data block."""

    heading: str
    svg: str
    place: int
    wide: bool


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One arm in the first table."""

    arm: str
    anchor: str
    word: str
    sign: str
    action: str
    reasons: Sequence[str]
    cells: Sequence[tuple[str, Cell, str, str]]  # measure, change, interval, zones
    blocks: int
    settle: str


def write_page(report: Report, path: Path, *, static: bool = False, relative: bool = False) -> None:
    """Write the page, 0600. Raises UsageError where the file cannot be written."""
    text = render_page(report, static=static, relative=relative)
    try:
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None


def render_page(report: Report, *, static: bool = False, relative: bool = False) -> str:
    """The page as text."""
    from markupsafe import Markup

    if not static:
        begin_bundle()  # beside the drawing below
    tell = _teller(report, relative)
    if relative:
        report = relative_report(report)
    sections = [*chart_sections(report), boots(report, tell)]
    specs: list[Spec] = []
    drawn = [(section, _draw(section, specs)) for section in sections]
    bundle = None if static else begin_bundle().result()
    experiment = report.experiment
    jinja = page_templates(_TEMPLATES)
    jinja.filters |= {"plain": plain, "bound": _bound}
    return jinja.get_template("report.html.j2").render(
        policy=policy(bundle.script, drawing()) if bundle else policy(),
        drawing=Markup(drawing()),
        packed={"vega": bundle.packed, "specs": packed(data_json(specs))} if bundle else {},
        colours=COLOURS,
        rule_id=experiment.file.rule.id,
        question=tell(experiment.file.rule.question),
        headline=_headline(report),
        banners=_banners(report, tell),
        titles=[title_of(rule.name) for rule in experiment.file.measure],
        level=f"{level(report)} %",
        rows=[_verdict_row(place, arm, tell, report.relative) for place, arm in enumerate(report.arms, start=1)],
        reference=reference_note(report),
        aa=_aa(report),
        bench=bench_lines(report, tell),
        sections=drawn,
        arms=arm_details(report, tell),
        steps=[tell(step) for step in next_steps(report)],
        split=[tell(line) for line in best_split_lines(report.best_split)],
        lists=[*amendments(report, tell), *lists(report, tell)],
        fixed=f"The rule was {fixed(report)}.",
        looks=looks(report),
        hashes=(experiment.bytes_sha256, experiment.semantic_sha256),
        rule_text=None if relative else rule_text(report),
        environment=environment(report),
        relative=relative,
        static=static,
        tool=tool_version(),
        format=f"{FORMAT} {VERSION}",
    )


def _headline(report: Report) -> str:
    """What to do, in one sentence."""
    told = outcome(report)
    if told is not None:
        return told[:1].upper() + told[1:]
    return "This run is invalid: nothing can be said from it" if report.invalid else "No arm beside the baseline"


def _teller(report: Report, relative: bool) -> Words:
    """How composed text is shown: as it is, or without what is absolute. By the words of the report as it was read."""
    if not relative:
        return str
    words = words_of(report)
    return lambda text: scrub(text, words)


def _bound(text: str) -> str:
    """`97 %` and `c = 1` do not break over two lines."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%").replace("c = ", "c\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _draw(section: Section, specs: list[Spec]) -> list[Picture]:
    """The panels of a section as SVG; their specifications are appended to `specs`."""
    from markupsafe import Markup

    pictures = []
    for panel in section.panels:
        spec = complete(panel.spec)
        # Nothing in the page names an address: the live chart does without it too.
        specs.append({key: value for key, value in spec.items() if key != "$schema"})
        pictures.append(Picture(panel.heading, Markup(picture(panel)), len(specs) - 1, panel.wide))
    return pictures


def _banners(report: Report, tell: Words) -> list[tuple[str, str, str]]:
    """Kind, title, sentence: what must be known before any number."""
    banners = [("invalid", "Invalid run", tell(reason)) for reason in report.invalid]
    if report.relative:
        banners.append(("relative", "Relative figures only", f"{AUTHORS_WORDS[:1].upper()}{AUTHORS_WORDS[1:]}."))
    if report.simulated:
        banners.append(("simulated", "Simulated engine", "No number here is about hardware."))
    if report.post_hoc:
        banners.append(("post-hoc", "Post hoc", tell(report.post_hoc)))
    if not report.cold:
        said = (
            "The engine was up already. Blocks are visits to one engine and no replicates of a boot: the intervals"
            " leave out what varies between boots, and nothing is decided."
        )
        banners.append(("not-cold", "No cold boot", said))
    return banners


def _verdict_row(place: int, arm: ArmReport, tell: Words, relative: bool) -> VerdictRow:
    cells = []
    for item in arm.measures:
        mean, _, _ = changes(item.estimate)
        shown = interval(item.estimate) if item.estimate is not None else ""
        cells.append((item.title, change(mean), shown, zone_words(item)))
    settle = ""
    if arm.settle is not None:
        hours = "" if relative else f" = {format_duration(arm.settle.hours * 3600e9)} of machine time"
        settle = f"would settle it: {arm.settle.blocks} blocks in all{hours}"
    if arm.settle_otherwise is not None:
        settle = f"{settle}; " if settle else "would settle it: "
        settle += tell(arm.settle_otherwise)
    word = arm.verdict.word
    reasons = [tell(reason) for reason in arm.verdict.reasons]
    return VerdictRow(
        arm.arm, f"arm-{place}", word, SIGNS[word], tell(arm.verdict.action), reasons, cells, arm.blocks, settle
    )


def _aa(report: Report) -> list[tuple[str, Cell, str, Cell]]:
    """Measure, change, interval and the smallest bias that this A/A could have seen."""
    found = []
    for item in report.aa:
        mean, _, _ = changes(item.estimate)
        half = item.estimate.half_width if item.estimate else None
        bias = None if half is None else math.expm1(min(half, 50.0))
        shown = Cell(NONE) if bias is None else Cell(format_percent(bias), bias)
        found.append((title_of(item.measure), change(mean), interval(item.estimate), shown))
    return found
