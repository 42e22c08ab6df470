"""Mean in flight by hour of day and weekday. An hour that was not observed is hatched, which is not the same as 0."""

from typing import Final

from profiles.charts.style import RAMP, WIDTH, Spec, colour, on_ramp
from profiles.view import LoadView

WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_HOURS: Final = tuple(f"{hour:02d}" for hour in range(24))
_CELL: Final = (28, 24)
# Three strokes across a square that a point's size of 4 × half² makes.
_HATCH: Final = "M-1,0L0,-1M-1,1L1,-1M0,1L1,0"


def weekly(view: LoadView) -> Spec | None:
    """A cell for each hour of the week with its number in it. None where nobody knows the wall clock."""
    if not view.cells:
        return None
    largest = max(cell.mean for cell in view.cells)
    seen, missing = [], {(day, hour) for day in range(len(WEEKDAYS)) for hour in range(len(_HOURS))}
    for cell in view.cells:
        step = min(int(len(RAMP) * cell.mean / largest), len(RAMP) - 1) if largest else 0
        missing.discard((cell.weekday, cell.hour))
        place = {"day": WEEKDAYS[cell.weekday], "hour": _HOURS[cell.hour]}
        seen.append(place | {"fill": colour(RAMP[step]), "ink": on_ramp(step), "label": short_number(cell.mean)})
    unseen = [{"day": WEEKDAYS[day], "hour": _HOURS[hour]} for day, hour in sorted(missing)]
    bare = {"domain": False, "ticks": False, "labelPadding": 6, "labelAngle": 0}
    x = {
        "field": "hour",
        "type": "nominal",
        "scale": {"domain": [*_HOURS], "padding": 0},
        "axis": bare | {"title": f"hour of day, {view.zone}", "titlePadding": 8},
    }
    y = {
        "field": "day",
        "type": "nominal",
        "scale": {"domain": [*WEEKDAYS], "padding": 0},
        "axis": bare | {"title": None},
    }
    edge = {"stroke": colour("ground"), "strokeWidth": 1.5}
    side = min(_CELL) - 2
    layers: list[Spec] = [
        {
            "data": {"values": unseen},
            "mark": {"type": "point", "shape": _HATCH, "size": side**2, "stroke": colour("hatch"), "opacity": 1}
            | {"strokeWidth": 1, "fill": None},
            "encoding": {"x": x, "y": y},
        },
        {
            "data": {"values": seen},
            "mark": {"type": "rect"} | edge,
            "encoding": {"x": x, "y": y, "fill": {"field": "fill", "type": "nominal", "scale": None}},
        },
        {
            "data": {"values": seen},
            "mark": {"type": "text", "fontSize": 10},
            "encoding": {
                "x": x,
                "y": y,
                "text": {"field": "label"},
                "color": {"field": "ink", "type": "nominal", "scale": None},
            },
        },
    ]
    width, height = _CELL[0] * len(_HOURS), _CELL[1] * len(WEEKDAYS)
    return {"width": min(width, WIDTH), "height": height, "layer": layers}


def short_number(mean: float) -> str:
    """Two significant digits at most: `0`, `.04`, `1.2`, `13`. Only nothing at all is 0."""
    if not mean:
        return "0"
    if mean < 0.005:
        return "<.01"
    if mean < 0.995:
        return f"{mean:.2f}".removeprefix("0")
    return f"{mean:.1f}" if mean < 9.95 else f"{mean:.0f}"
