"""The sections with pictures that describe and decide nothing: acceptance against gain, and the sweep."""

from collections.abc import Iterator
from typing import Final

from analysis.findings import ArmReport, Report
from analysis.page.charts.acceptance import LEAST_POINTS, Point, acceptance
from analysis.page.charts.crossover import MIX, MOST_CLASSES, crossover
from analysis.page.charts.panel import Panel
from analysis.page.parts import Cell, Section, Table, estimate_cells, interval, number, share, text

_CHANGE: Final = ("change", "low", "high")


def acceptances(report: Report) -> Section:
    """Acceptance length of the baseline against the change of TPOT; a table alone below four classes."""
    panels: list[Panel] = []
    rows: list[list[Cell]] = []
    for arm in report.arms:
        points = []
        for item in arm.shown.acceptance_gain:
            if item.base_length is not None and item.estimate is not None:
                points.append(Point(item.workload, item.base_length, item.estimate))
            rows.append(
                [
                    text(arm.arm),
                    text(item.workload),
                    number(item.base_length, _two(item.base_length)),
                    number(item.own_length, _two(item.own_length)),
                    share(item.base_rate),
                    share(item.own_rate),
                    *estimate_cells(item.estimate),
                ]
            )
        panel = acceptance(arm.arm, points)
        panels += [panel] if panel else []
    how = (
        "A point per class: how many tokens a step of the baseline yields (1 + accepted per draft), against the arm's"
        " change of TPOT; below 0 is faster. A longer draft should pay where drafts are accepted. Rates are not"
        " comparable between draft lengths."
    )
    head = ("arm", "class", "length, baseline", "length, arm", "rate, baseline", "rate, arm", *_CHANGE)
    table = Table("acceptance-numbers", "Mean acceptance length and change of TPOT by class.", head, rows)
    why = "" if panels else f"Too few classes for a picture, {LEAST_POINTS} are needed: see the numbers."
    if not rows:
        why = "No engine of this run told how many drafted tokens were accepted, class by class."
    return Section("acceptance", "Acceptance against gain", how, panels, [table] if rows else [], why)


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def sweeps(report: Report) -> Section:
    """The crossover over low concurrency."""
    panels: list[Panel] = []
    rows: list[list[Cell]] = []
    turns: list[list[Cell]] = []
    levels_swept = sorted({point.c for arm in report.arms for point in arm.shown.sweep})
    for arm in report.arms:
        panel = crossover(arm.arm, arm.shown.sweep, arm.shown.crossover)
        panels += [panel] if panel else []
        rows += _sweep_rows(arm, levels_swept)
        turns += [
            [
                text(arm.arm),
                text(item.workload or MIX),
                text("TTFT" if item.measure == "ttft" else "decode rate"),
                *(number(end, f"{end:.2f}" if end is not None else "") for end in (item.turn, item.low, item.high)),
                text(item.sides),
            ]
            for item in arm.shown.crossover
        ]
    how = (
        "Change against the baseline at each c in %, with its band: of TTFT (left) less is better, of the decode rate"
        " (right) more. Where the line crosses 0 the arm turns from help to harm. It describes and decides nothing."
    )
    tables = []
    if turns:
        head = ("arm", "class", "measure", "turns at c", "low", "high", "reads as")
        tables.append(Table("turns", "Where the sign turns, and how surely.", head, turns))
    if rows:
        columns = ("arm", "class", "measure", *(f"c = {c}" for c in levels_swept))
        said = "Relative changes at each level of the sweep, with intervals."
        tables.append(Table("sweep-numbers", said, columns, rows))
    why = "" if panels else 'This run has no sweep. With also = ["sweep c=1..8"] in [load], a rule asks for one.'
    if any(len(_classes(arm)) > MOST_CLASSES for arm in report.arms):
        why = f"Drawn are the mix and the {MOST_CLASSES} classes that change most; the table has all."
    return Section("crossover", "Low-concurrency crossover", how, panels, tables, why)


def _classes(arm: ArmReport) -> set[str]:
    return {point.workload for point in arm.shown.sweep if point.workload is not None}


def _sweep_rows(arm: ArmReport, swept: list[int]) -> Iterator[list[Cell]]:
    """A row per class and measure, a column per level."""
    cells: dict[tuple[str | None, str], dict[int, Cell]] = {}
    for point in arm.shown.sweep:
        mean, _, _ = estimate_cells(point.estimate)
        shown = Cell(f"{mean.shown} {interval(point.estimate)}", mean.value)
        cells.setdefault((point.workload, point.measure), {})[point.c] = shown
    for (workload, measure), held in cells.items():
        title = "TTFT" if measure == "ttft" else "decode rate"
        yield [text(arm.arm), text(workload or MIX), text(title), *(held.get(c, text("")) for c in swept)]
