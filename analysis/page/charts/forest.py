"""The change of every arm on one measure: the mix, its classes and the A/A copy, against the lines that decide."""

import json
import math
from dataclasses import dataclass
from typing import Final

from analysis.page.charts.panel import (
    DIRECTION_COLOURS,
    DIRECTION_SHAPES,
    DIRECTIONS,
    SIGNED,
    WIDTH,
    Panel,
    key,
    percents,
    room_for,
    say,
    shortened,
)
from analysis.stats import Direction, Estimate
from profiles.charts.style import Spec, colour, named_rows
from profiles.units import format_change

MIX: Final = "mix"
CLASS: Final = "class"
COPY: Final = "copy"
_ROW: Final = 19
# An interval from two blocks can reach anywhere. What lies beyond so many times the largest effect ends with an arrow.
_REACH: Final = 3.0
_LEAST_REACH: Final = 0.06


@dataclass(frozen=True, slots=True)
class Effect:
    """One row: a log ratio, lower is better. Its name is that of an arm (`mix`, `copy`) or of a class.

    `line` is the material line of a class; None where it has none to show.
    """

    name: str
    kind: str
    estimate: Estimate | None
    direction: Direction
    line: float | None = None


def forest(title: str, rows: list[Effect], line: float, limit: float, *, higher: bool = False) -> Panel | None:
    """`line` is the material line and `limit` that of "no worse", both as log ratios. `higher`: more is better.

    None where no row has an estimate.
    """
    shown = [row for row in rows if row.estimate is not None]
    if not shown:
        return None
    names = [shortened(row.name) for row in rows]
    left = room_for(names)
    lowest, highest = _domain(shown, line, limit)
    y = named_rows(
        names,
        left,
        labelFontWeight={
            "condition": {
                "test": f"indexof({json.dumps([at for at, row in enumerate(rows) if row.kind == MIX])},"
                " datum.value) >= 0",
                "value": "bold",
            },
            "value": "normal",
        },
    )
    better = "more" if higher else "less"
    x: Spec = {
        "type": "quantitative",
        "scale": {"domain": [lowest, highest], "nice": False},
        "axis": {
            "title": f"change of {title} in %, {better} is better",
            "tickCount": 6,
            "labelExpr": SIGNED,
        },
    }
    values = [_mark(at, row, lowest, highest) for at, row in enumerate(rows) if row.estimate is not None]
    ends = [
        {"row": value["row"], "at": value[side], "shape": shape, "hue": value["hue"], "tip": value["tip"]}
        for value in values
        for side, shape, cut in (("low", "triangle-left", "cut_low"), ("high", "triangle-right", "cut_high"))
        if value[cut]
    ]
    direction: Spec = {"field": "direction", "type": "nominal"}
    hue = direction | key(DIRECTIONS, [DIRECTION_COLOURS[name] for name in DIRECTIONS])
    shapes = tuple(reversed(DIRECTIONS)) if higher else DIRECTIONS
    legend = hue["legend"] | {"symbolSize": 90}
    hue = hue | {"legend": legend}
    shape = direction | {
        "scale": {"domain": list(DIRECTIONS), "range": [DIRECTION_SHAPES[name] for name in shapes]},
        "legend": legend,
    }
    drawn: Spec = {"field": "hue", "type": "nominal", "scale": None}
    tip: Spec = {"field": "tip"}
    within = [value for value in values if lowest <= value["mean"] <= highest]
    layers: list[Spec] = [
        _separators(rows, y),
        *_lines(x, line, limit),
        _ticks(rows, x, y, lowest, highest),
        {
            "data": {"values": values},
            "mark": {"type": "rule"},
            "encoding": {
                "y": y,
                "x": {"field": "low"} | x,
                "x2": {"field": "high"},
                "color": drawn,
                "strokeWidth": {"field": "stroke", "type": "quantitative", "scale": None},
                "tooltip": tip,
            },
        },
        {
            "data": {"values": ends},
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 36},
            "encoding": {
                "y": y,
                "x": {"field": "at"} | x,
                "shape": {"field": "shape", "type": "nominal", "scale": None},
                "color": drawn,
                "tooltip": tip,
            },
        },
        {
            "data": {"values": within},
            "mark": {"type": "point", "filled": True, "opacity": 1},
            "encoding": {
                "y": y,
                "x": {"field": "mean"} | x,
                "color": hue,
                "shape": shape,
                "size": {"field": "size", "type": "quantitative", "scale": None},
                "tooltip": tip,
            },
        },
    ]
    spec = {
        "width": WIDTH - left - 22,
        "height": _ROW * len(rows),
        "layer": layers,
    }
    said = "; ".join(f"{row.name} {say(row.estimate)}" for row in rows if row.kind != CLASS)
    return Panel(title, spec, f"Change of {title} on the mix: {said}.")


def _domain(rows: list[Effect], line: float, limit: float) -> tuple[float, float]:
    """The shown range in per cent: every interval, unless it reaches far beyond the effects and the lines."""
    estimates = [row.estimate for row in rows if row.estimate is not None]
    lines = [value for value in (line, limit) if math.isfinite(value)]
    reach = max(_LEAST_REACH, _REACH * max(map(abs, [*(item.mean for item in estimates), *lines])))
    ends = [end for item in estimates for end in (item.low, item.high, item.mean) if end is not None]
    lowest = max(-reach, min([*ends, *(value - 0.01 for value in lines)]))
    highest = min(reach, max([*ends, *(value + 0.01 for value in lines)]))
    room = 0.03 * (highest - lowest)
    return percents(lowest - room), percents(highest + room)


def _mark(at: int, row: Effect, lowest: float, highest: float) -> Spec:
    estimate = row.estimate
    assert estimate is not None
    low = percents(estimate.mean if estimate.low is None else estimate.low)
    high = percents(estimate.mean if estimate.high is None else estimate.high)
    return {
        "row": at,
        "low": max(low, lowest),
        "high": min(high, highest),
        "cut_low": low < lowest,
        "cut_high": high > highest,
        "mean": percents(estimate.mean),
        "direction": row.direction,
        "hue": colour(DIRECTION_COLOURS[row.direction]),
        "size": 110 if row.kind == MIX else 50,
        "stroke": 3 if row.kind == MIX else 1.5,
        "tip": f"{shortened(row.name, 60)}: {say(estimate)}, {row.direction}",
    }


def _separators(rows: list[Effect], y: Spec) -> Spec:
    """The ground of every row that holds a mix."""
    data = {"values": [{"row": at} for at, row in enumerate(rows) if row.kind == MIX]}
    mark = {"type": "rect", "color": colour("gap"), "x": 0, "x2": "width", "height": {"band": 1}}
    return {"data": data, "mark": mark, "encoding": {"y": y}}


def _ticks(rows: list[Effect], x: Spec, y: Spec, lowest: float, highest: float) -> Spec:
    """The lines of the classes, a short stroke on the side of a gain and on that of a loss."""
    values = [
        {
            "row": at,
            "at": place,
            "hue": colour(DIRECTION_COLOURS[name]),
            "tip": f"{shortened(row.name, 60)}: its line of a {name} {format_change(place / 100)}",
        }
        for at, row in enumerate(rows)
        if row.line is not None and row.estimate is not None and math.isfinite(row.line)
        for name, place in (("gain", percents(row.line)), ("loss", percents(-row.line)))
        if lowest <= place <= highest
    ]
    mark: Spec = {"type": "tick", "thickness": 1.2, "size": 11, "opacity": 1}
    drawn: Spec = {"field": "hue", "type": "nominal", "scale": None}
    encoding: Spec = {"y": y, "x": {"field": "at"} | x, "color": drawn, "tooltip": {"field": "tip"}}
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


def _lines(x: Spec, line: float, limit: float) -> list[Spec]:
    """No change, the material line and the limit of "no worse", the last two named above the panel."""
    drawn: list[tuple[float, str, list[int], str]] = [(0.0, "ink", [], "")]
    for at, role, dash, name in ((line, "arrivals", [5, 3], "gain"), (limit, "busy", [2, 3], "margin")):
        if math.isfinite(at):
            drawn.append((percents(at), role, dash, f"{name} {format_change(math.expm1(at))}"))
    layers: list[Spec] = []
    for at, role, dash, name in drawn:
        data = {"values": [{"at": at, "name": name}]}
        place = {"field": "at"} | x
        rule: Spec = {"type": "rule", "color": colour(role), "strokeWidth": 1.2}
        if dash:
            rule["strokeDash"] = dash
        layers.append({"data": data, "mark": rule, "encoding": {"x": place}})
        if name:
            align = "right" if at < 0 else "left"
            text = {"type": "text", "align": align, "y": -7, "color": colour("muted"), "fontSize": 11}
            layers.append({"data": data, "mark": text, "encoding": {"x": place, "text": {"field": "name"}}})
    return layers
