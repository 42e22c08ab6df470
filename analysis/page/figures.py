"""The sections with pictures: each has one line that says how to read it, and its numbers as tables."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from analysis.bench_check import levels
from analysis.findings import ArmReport, Report
from analysis.measured import measured
from analysis.measures import higher_is_better, title_of
from analysis.page.charts.blocks import blocks
from analysis.page.charts.concurrency import ADVISES, DECIDES, concurrency, shown_levels
from analysis.page.charts.crossover import MIX
from analysis.page.charts.ecdf import Distribution, distribution, ecdf
from analysis.page.charts.forest import CLASS, COPY, Effect, forest
from analysis.page.charts.forest import MIX as FOREST_MIX
from analysis.page.charts.panel import Panel
from analysis.page.described import acceptances, sweeps
from analysis.page.parts import (
    Cell,
    Section,
    Table,
    change,
    estimate_cells,
    number,
    share,
    span,
    text,
)
from analysis.stats import Direction
from profiles.experiment_checks import guard_parts, measure_parts

SWEEP: Final = "sweep"
_DIRECTIONS: Final[Mapping[str, Direction]] = {"gain": "gain", "open": "open"}
_QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
_CHANGE: Final = ("change", "low", "high")


def chart_sections(report: Report) -> Iterator[Section]:
    """In the order of the questions: how much, for whom, how sure, under which load."""
    yield effects(report)
    yield distributions(report)
    yield block_differences(report)
    yield load(report)
    yield acceptances(report)
    yield sweeps(report)


def effects(report: Report) -> Section:
    """The forest plots, one per measure."""
    panels, rows = [], []
    for rule in report.experiment.file.measure:
        title, higher = title_of(rule.name), higher_is_better(rule.name)
        effects_of = [effect for arm in report.arms for effect in _effects(arm, rule.name)]
        effects_of += [
            Effect(f"A/A {report.baseline}", COPY, item.estimate, "open")
            for item in report.aa
            if item.measure == rule.name
        ]
        found = [item for arm in report.arms for item in arm.measures if item.measure == rule.name]
        told = [item.line for item in found if math.isfinite(item.line) and not item.line_left_out]
        line = next(iter(told), -math.inf)
        limit = math.log1p(-rule.margin if higher else rule.margin)
        panel = forest(title, effects_of, line, limit, higher=higher)
        panels += [panel] if panel else []
        for arm in report.arms:
            for item in (item for item in arm.measures if item.measure == rule.name):
                zone = f"{item.zone}, {item.no_worse}"
                rows.append([text(arm.arm), text(title), text(MIX), *estimate_cells(item.estimate), text(zone)])
                rows += [
                    [text(arm.arm), text(title), text(part.name), *estimate_cells(part.estimate), text(part.direction)]
                    for part in item.classes
                ]
    rows += [
        [text("A/A"), text(title_of(item.measure)), text(MIX), *estimate_cells(item.estimate), text("")]
        for item in report.aa
    ]
    how = (
        "Each line is an interval, its mark the estimate; of TTFT and TPOT less is faster. An arm gains where its whole"
        " interval lies beyond the dashed line, and is no worse where it lies short of the dotted one. The row of an"
        " arm (bold) is the recorded mix; below it its classes, with simultaneous intervals. A class has lines of its"
        " own, a tick on each side: milliseconds that the rule asks for are laid on at the mean of the class. The A/A"
        " row is the noise of the bench, at 99 % over all measures. An arrow: the interval goes on."
    )
    head = ("arm", "measure", "class", *_CHANGE, "reads as")
    table = Table("effects", "Relative changes; −0.05 is 5 % less.", head, rows)
    return Section(
        "effects", "Change against the baseline", how, panels, [table], "" if panels else "Nothing measured."
    )


def _effects(arm: ArmReport, measure: str) -> Iterator[Effect]:
    for item in arm.measures:
        if item.measure == measure:
            lost: Direction = "loss" if item.no_worse == "worse" else "open"
            yield Effect(arm.arm, FOREST_MIX, item.estimate, _DIRECTIONS["gain"] if item.zone == "gain" else lost)
            for part in item.classes:
                own = None if part.line_left_out else part.line
                yield Effect(part.name, CLASS, part.estimate, part.direction, own)


def distributions(report: Report) -> Section:
    """TTFT per boot. In a relative report every value is divided by the baseline's median."""
    relative = report.relative
    values = _ttft_by_boot(report)
    base = distribution(report.baseline, values.get(report.baseline, {}))
    heading = "TTFT of every boot"
    how = (
        "How many requests had their first token by then. A thin line is one boot, a thick one the mean of the boots'"
        " quantiles (geometric); dashed: the baseline. Further left is faster. The first panel is the baseline and its"
        " second copy: as far apart do equal engines lie."
    )
    if base is None:
        return Section("ttft", heading, how, why="No request of the baseline has a TTFT in a deciding window.")
    unit = base.median if relative else 1.0
    names = [report.run.manifest.get("aa") or report.baseline, *(arm.arm for arm in report.arms)]
    found = {name: distribution(name, values.get(name, {}), unit) for name in [report.baseline, *map(str, names)]}
    held = {name: item for name, item in found.items() if item is not None}
    base = held[report.baseline]
    everything = [value for item in held.values() for boot in item.boots.values() for value in (boot[0], boot[-1])]
    domain = (min(everything) * 0.95, max(everything) * 1.05)
    first = str(names[0]) if str(names[0]) in held else report.baseline
    order = [first, *(arm.arm for arm in report.arms if arm.arm in held)]
    panels = [ecdf(held[name], base, domain, both=name == first, relative=relative) for name in order]
    rows = [_quantile_row(item, values[name], relative) for name, item in held.items()]
    titles = [f"p{round(100 * part)}" for part in _QUANTILES]
    said = "in multiples of the baseline's median" if relative else "the value in nanoseconds"
    head = ("arm", "boots", "requests per boot", *titles, "lowest boot median", "highest boot median")
    table = Table("ttft-numbers", f"Mean of the boots' quantiles, {said}.", head, rows)
    missing = [arm.arm for arm in report.arms if arm.arm not in held]
    why = f"Not drawn, nothing was measured: {', '.join(missing)}." if missing else ""
    return Section("ttft", heading, how, panels, [table], why)


def _ttft_by_boot(report: Report) -> "dict[str, dict[int, np.ndarray[Any, Any]]]":
    rows = report.data.frame.filter(pl.col("deciding")).drop_nulls("ttft_ns").select("arm", "block", "ttft_ns")
    parts = rows.partition_by("arm", "block", as_dict=True)
    found: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
    for (arm, block), part in sorted(parts.items(), key=lambda item: (str(item[0][0]), int(item[0][1]))):
        found.setdefault(str(arm), {})[int(block)] = part["ttft_ns"].to_numpy()
    return found


def _quantile_row(item: Distribution, values: "Mapping[int, np.ndarray[Any, Any]]", relative: bool) -> list[Cell]:
    from analysis.page.charts.ecdf import SHARES

    show = (lambda value: number(value, f"{value:.3f}")) if relative else span
    quantiles = np.interp(_QUANTILES, SHARES, np.log(item.mean))
    middle = [float(np.exp(np.interp(0.5, SHARES, np.log(boot)))) for boot in item.boots.values()]
    counts = sorted({held.size for held in values.values()})
    asked = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [
        text(item.arm),
        number(len(item.boots), str(len(item.boots))),
        text(asked),
        *(show(float(np.exp(value))) for value in quantiles),
        show(min(middle)),
        show(max(middle)),
    ]


def block_differences(report: Report) -> Section:
    """Per arm and for the A/A copy, the differences that the verdict averages."""
    panels: list[Panel] = []
    rows: list[list[Cell]] = []
    planned = report.course.planned
    copy = report.run.manifest.get("aa")
    known = set(report.data.frame["arm"].unique().to_list())
    for arm in [*(arm.arm for arm in report.arms), *([str(copy)] if copy in known else [])]:
        pairs = report.data.contrast(arm, report.baseline)
        found = measured(report.experiment.file.measure, report.data.run, pairs)
        named = {title_of(name): _natural(name, item.mix.differences) for name, item in found.items()}
        panel = blocks(arm, report.baseline, named, planned)
        panels += [panel] if panel else []
        for title, held in named.items():
            cells = [change(math.expm1(held[block])) if block in held else text("") for block in range(1, planned + 1)]
            rows.append([text(arm), text(title), *cells])
    how = (
        "One mark per block: the arm against the baseline of the same block, averaged over its requests. Two levels"
        " mean boots of two kinds, a slope means drift that the blocks did not take out. The verdict is a t interval"
        " over these marks."
    )
    if copy and str(copy) in known:
        how += (
            f" An arm is held against the mean of both boots of {report.baseline}, {copy} against the other one alone:"
            " its marks scatter more."
        )
    head = ("arm", "measure", *(f"block {block}" for block in range(1, planned + 1)))
    table = Table("block-numbers", "Relative changes of each block on the recorded mix.", head, rows)
    why = "" if panels else "No block can be compared."
    return Section("blocks", "Block by block", how, panels, [table] if rows else [], why)


def _natural(measure: str, differences: Mapping[int, float]) -> dict[int, float]:
    """The changes of the measure itself: of those of which more is better the sign is turned back."""
    sign = -1 if higher_is_better(measure) else 1
    return {block: sign * value for block, value in differences.items()}


def load(report: Report) -> Section:
    """Arrivals by c, with the levels that were measured."""
    profile = levels((report.run.manifest.get("profile") or {}).get("arrivals_at") or {})
    met: dict[int, int] = next(
        (check.baseline for check in report.bench if check.name == "arrivals" and check.baseline), {}
    )
    marked = _marked(report)
    panel = concurrency(profile, met, marked)
    total, total_met = sum(profile.values()), sum(met.values())
    rows = [
        [
            Cell(f"c = {c}", c),
            *([] if report.relative else [number(profile.get(c, 0), str(profile.get(c, 0)))]),
            share(profile.get(c, 0) / total if total else None),
            *([share(met.get(c, 0) / total_met)] if total_met else []),
            text(marked.get(c, "")),
        ]
        for c in shown_levels(profile, met, marked)
    ]
    how = (
        "Share of the recorded arrivals that meet each c, the request itself counted. ◆ the verdict comes from there,"
        " ◇ it is shown beside the verdict and decides nothing."
    )
    head = (
        "level",
        *([] if report.relative else ["arrivals"]),
        "share",
        *(["met by the baseline"] if total_met else []),
        "role",
    )
    table = Table("load-numbers", "Arrivals of the profile by the concurrency that they meet.", head, rows)
    why = "" if panel else "The profile's arrivals are not known."
    return Section(
        "load", "The load, and where it was measured", how, [panel] if panel else [], [table] if rows else [], why
    )


def _decided_at(report: Report) -> set[int]:
    """Levels of measures and of deciding guards that have a c of their own."""
    rules = [measure_parts(rule.name) for rule in report.experiment.file.measure]
    rules += [guard_parts(item.metric) for arm in report.arms for item in arm.guards if item.role == "deciding"]
    return {int(parts["c"]) for parts in rules if parts and "c" in parts}


def _marked(report: Report) -> dict[int, str]:
    """Level → what the run did there. At the recorded pace the levels of the operating point decide."""
    manifest = report.run.manifest
    roles: dict[int, str] = {}
    for window in manifest.get("windows") or []:
        c = int(window.get("c") or 0)
        if window.get("deciding"):
            reached = [c] if c else (manifest.get("operating_point") or {}).get("levels") or []
            roles.update(dict.fromkeys(map(int, reached), DECIDES))
        elif c and window.get("kind") in ("closed", SWEEP):
            advises = ADVISES if window["kind"] == "closed" else SWEEP
            roles[c] = roles[c] if roles.get(c) in (DECIDES, ADVISES) else advises
    roles.update(dict.fromkeys(_decided_at(report) & roles.keys(), DECIDES))
    return dict(sorted(roles.items()))
