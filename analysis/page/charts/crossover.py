"""The sweep: change of TTFT and of the decode rate over c, a row per class, and the c at which the sign turns.

All rows of a measure are drawn into one view, each in a band of its own with the same scale: as many views as rows
would take as many times as long to draw.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, Literal

from analysis.crossover import Crossover
from analysis.page.charts.panel import WIDTH, Panel, percents, say, shortened
from analysis.sweep import SweepPoint
from profiles.charts.style import Spec, colour
from profiles.units import format_change

MIX: Final = "the mix"
# More rows than these are a table.
MOST_CLASSES: Final = 6
_COLUMNS: Final[tuple[tuple[Literal["ttft", "decode_rate"], str, str], ...]] = (
    ("ttft", "c, TTFT in %", "arrivals"),
    ("decode_rate", "c, decode rate in %", "busy"),
)
_LEFT: Final = 42
_BETWEEN: Final = 14
_ROW: Final = 84
# Of a band: its name stands in the first part, and the largest change fills the rest.
_NAME: Final = 0.24
_MIDDLE: Final = (1 + _NAME) / 2
_HALF: Final = (1 - _NAME) / 2 * 0.9
# An interval from two blocks can reach anywhere; the picture ends at so many times the largest change.
_REACH: Final = 3.0
_LEAST: Final = 4.0


def crossover(arm: str, points: Sequence[SweepPoint], turns: Sequence[Crossover]) -> Panel | None:
    """Two views, TTFT and decode rate, with a band for the mix and for each class. None without a sweep."""
    if not points:
        return None
    levels = sorted({point.c for point in points})
    names = drawn_classes(points)
    views = []
    for measure, title, role in _COLUMNS:
        held = [point for point in points if point.measure == measure]
        turned = [turn for turn in turns if turn.measure == measure]
        views.append(_view(held, names, turned, levels, title, role))
    said = "; ".join(
        f"{item.workload or MIX}, {'TTFT' if item.measure == 'ttft' else 'decode rate'}: {item.sides}"
        for item in turns
        if item.workload in names
    )
    where = f"c = {levels[0]} to {levels[-1]}" if len(levels) > 1 else f"c = {levels[0]}"
    alt = f"Change of {arm} over {where}. {said or 'The numbers are in the table below'}."
    return Panel(shortened(arm, 40), {"hconcat": views, "spacing": _BETWEEN}, alt)


def drawn_classes(points: Sequence[SweepPoint]) -> list[str | None]:
    """The mix, then the classes by name; of many those that change most, as the table holds them all."""
    most: dict[str, float] = {}
    for point in points:
        if point.workload is not None:
            most[point.workload] = max(most.get(point.workload, 0.0), abs(point.estimate.mean))
    chosen = sorted(most, key=lambda name: (-most[name], name))[:MOST_CLASSES]
    return [*([None] if any(point.workload is None for point in points) else []), *sorted(chosen)]


def _view(
    points: Sequence[SweepPoint],
    names: Sequence[str | None],
    turns: Sequence[Crossover],
    levels: Sequence[int],
    title: str,
    role: str,
) -> Spec:
    reach = _reach([point for point in points if point.workload in names])
    rows = {name: at for at, name in enumerate(names)}
    values = [_value(point, rows[point.workload], reach) for point in points if point.workload in rows]
    turned = {turn.workload: turn.turn for turn in turns if turn.workload in rows and turn.turn is not None}
    x: Spec = {
        "field": "c",
        "type": "quantitative",
        "scale": {"domain": [levels[0] - 0.3, levels[-1] + 0.3], "nice": False},
        "axis": {"title": title, "values": list(levels), "format": "d", "grid": False, "labelOverlap": True},
    }
    half = round(reach / 1.1, 1)
    ticks = [
        (round(at + _MIDDLE - side * half / reach * _HALF, 4), format_change(side * half / 100, 0) if side else "0")
        for at in range(len(names))
        for side in (1, 0, -1)
    ]
    places = [place for place, _ in ticks]
    labels = [label.removesuffix(" %") for _, label in ticks]
    y: Spec = {
        "type": "quantitative",
        "scale": {"domain": [0, len(names)], "reverse": True, "nice": False},
        "axis": {
            "title": None,
            "values": places,
            "labelExpr": f"{json.dumps(labels)}[indexof({json.dumps(places)}, datum.value)]",
            "labelFontSize": 11,
            "domain": False,
            "ticks": False,
            "grid": False,
            "minExtent": _LEFT - 8,
        },
    }
    heads = [{"row": at, "name": _head(name, turned)} for name, at in rows.items()]
    zeros = [{"row": at + _MIDDLE} for at in range(len(names))]
    crossings = [
        {"c": at, "from": rows[name] + _MIDDLE - _HALF, "to": rows[name] + _MIDDLE + _HALF}
        for name, at in turned.items()
    ]
    data, hue = {"values": values}, colour(role)
    band: Spec = {"detail": {"field": "row"}}
    layers: list[Spec] = [
        {
            "data": data,
            "mark": {"type": "area", "color": hue, "opacity": 0.25},
            "encoding": {"x": x, "y": {"field": "low"} | y, "y2": {"field": "high"}} | band,
        },
        {
            "data": {"values": zeros},
            "mark": {"type": "rule", "color": colour("ink"), "strokeWidth": 1},
            "encoding": {"y": {"field": "row"} | y},
        },
        {
            "data": {"values": crossings},
            "mark": {"type": "rule", "color": colour("ink"), "strokeDash": [3, 3]},
            "encoding": {"x": x, "y": {"field": "from"} | y, "y2": {"field": "to"}},
        },
        {
            "data": data,
            "mark": {"type": "line", "color": hue, "strokeWidth": 2, "point": {"color": hue, "size": 32, "opacity": 1}},
            "encoding": {"x": x, "y": {"field": "at"} | y, "tooltip": {"field": "tip"}} | band,
        },
        {
            "data": {"values": heads},
            "mark": {"type": "text", "align": "left", "baseline": "top", "x": 0, "dy": 4, "fontWeight": "bold"},
            "encoding": {"y": {"field": "row"} | y, "text": {"field": "name"}},
        },
    ]
    width = (WIDTH - 2 * _LEFT - _BETWEEN - 12) // 2
    return {"width": width, "height": _ROW * len(names), "layer": layers}


def _value(point: SweepPoint, row: int, reach: float) -> dict[str, Any]:
    estimate = point.estimate
    low, high = (estimate.mean if end is None else end for end in (estimate.low, estimate.high))

    def place(value: float) -> float:
        return round(row + _MIDDLE - max(-1.0, min(1.0, percents(value) / reach)) * _HALF, 4)

    return {
        "row": row,
        "c": point.c,
        "at": place(estimate.mean),
        "low": place(low),
        "high": place(high),
        "tip": f"{shortened(point.workload or MIX, 60)}, c = {point.c}: {say(estimate)}",
    }


def _reach(points: Sequence[SweepPoint]) -> float:
    """The largest shown change in per cent, the same for all rows of a measure."""
    means = [abs(percents(point.estimate.mean)) for point in points]
    ends = [
        abs(percents(end)) for point in points for end in (point.estimate.low, point.estimate.high) if end is not None
    ]
    farthest = max([_LEAST, *(_REACH * mean for mean in means)])
    return 1.1 * max([_LEAST, *means, *(min(farthest, end) for end in ends)])


def _head(name: str | None, turned: dict[str | None, float]) -> str:
    shown = shortened(name or MIX, 16)
    return f"{shown}, turns at c ≈ {turned[name]:.1f}" if name in turned else shown
