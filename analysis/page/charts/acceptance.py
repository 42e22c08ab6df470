"""Acceptance against gain: does the change of TPOT follow how well the baseline's drafts are accepted?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analysis.page.charts.labels import Frame, place_labels
from analysis.page.charts.panel import SIGNED, WIDTH, Panel, percents, reference_line, say, shortened
from analysis.stats import Estimate
from profiles.charts.style import Spec, colour

LEAST_POINTS: Final = 4
# A line through fewer classes than this says more about one of them than about all.
LEAST_FITTED: Final = 6
_LEFT: Final = 50
_HEIGHT: Final = 210


@dataclass(frozen=True, slots=True)
class Point:
    """One class: mean acceptance length of the baseline, and the arm's change of TPOT as a log ratio."""

    workload: str
    base_length: float
    estimate: Estimate


def acceptance(arm: str, points: Sequence[Point]) -> Panel | None:
    """A scatter from four classes on, with a fitted line from six on. None below."""
    if len(points) < LEAST_POINTS:
        return None
    values: list[dict[str, Any]] = [
        {
            "length": round(point.base_length, 4),
            "change": percents(point.estimate.mean),
            "low": percents(point.estimate.mean if point.estimate.low is None else point.estimate.low),
            "high": percents(point.estimate.mean if point.estimate.high is None else point.estimate.high),
            "label": shortened(point.workload),
            "tip": f"{shortened(point.workload, 60)}: length {point.base_length:.2f}, TPOT {say(point.estimate)}",
        }
        for point in points
    ]
    lengths = [point.base_length for point in points]
    room = max(0.1, 0.12 * (max(lengths) - min(lengths)))
    lowest, highest = min(lengths) - room, max(lengths) + 3 * room
    x: Spec = {
        "field": "length",
        "type": "quantitative",
        "scale": {"domain": [lowest, highest], "nice": False, "zero": False},
        "axis": {"title": "mean acceptance length of the baseline", "tickCount": 5, "grid": False},
    }
    bottom, top = min(value["low"] for value in values), max(value["high"] for value in values)
    bottom, top = min(bottom, 0.0), max(top, 0.0)
    edge = 0.06 * (top - bottom) or 1.0
    bottom, top = bottom - edge, top + edge
    y: Spec = {
        "type": "quantitative",
        "scale": {"domain": [bottom, top], "nice": False, "zero": False},
        "axis": {"title": "change of TPOT in %", "labelExpr": SIGNED, "tickCount": 5, "domain": False},
    }
    data = {"values": values}
    frame = Frame(lowest, highest, bottom, top, WIDTH - _LEFT - 20, _HEIGHT)
    labels = place_labels([(value["length"], value["change"], value["label"]) for value in values], frame)
    layers: list[Spec] = [
        reference_line(axis="y"),
        *_fitted(points, x, y),
        {
            "data": data,
            "mark": {"type": "rule", "color": colour("wall"), "strokeWidth": 1.5},
            "encoding": {"x": x, "y": {"field": "low"} | y, "y2": {"field": "high"}},
        },
        {
            "data": data,
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 70, "color": colour("arrivals")},
            "encoding": {"x": x, "y": {"field": "change"} | y, "tooltip": {"field": "tip"}},
        },
        *(
            {
                "data": {"values": [{"at": at, "height": height, "label": name} for at, height, name, _ in held]},
                "mark": {"type": "text", "align": align, "baseline": "middle", "fontSize": 11},
                "encoding": {"x": x | {"field": "at"}, "y": {"field": "height"} | y, "text": {"field": "label"}},
            }
            for align in ("left", "right")
            if (held := [label for label in labels if label[3] == align])
        ),
    ]
    said = "; ".join(f"{point.workload} {point.base_length:.2f}, {say(point.estimate)}" for point in points)
    spec: Spec = {"width": WIDTH - _LEFT - 20, "height": _HEIGHT, "layer": layers}
    return Panel(shortened(arm, 40), spec, f"Acceptance length of the baseline and change of TPOT of {arm}: {said}.")


def _fitted(points: Sequence[Point], x: Spec, y: Spec) -> list[Spec]:
    """Least squares through the log ratios, drawn between the outermost classes."""
    lengths = [point.base_length for point in points]
    if len(points) < LEAST_FITTED or max(lengths) - min(lengths) < 1e-9:
        return []
    slope, cut = (float(part) for part in np.polyfit(lengths, [point.estimate.mean for point in points], 1))
    ends = [{"length": at, "change": percents(cut + slope * at)} for at in (min(lengths), max(lengths))]
    mark = {"type": "line", "color": colour("muted"), "strokeDash": [5, 3], "strokeWidth": 1.5}
    return [{"data": {"values": ends}, "mark": mark, "encoding": {"x": x, "y": {"field": "change"} | y}}]
