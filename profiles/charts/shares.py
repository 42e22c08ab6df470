"""Share of wall time, busy time and arrivals at each c, side by side, and where to measure."""

from collections.abc import Mapping, Sequence
from typing import Final

from profiles.charts.style import WIDTH, Spec, colour
from profiles.histogram import format_levels, format_share, level_rows
from profiles.view import DECIDING, LoadView

_ROW: Final = 23
_CHAR: Final = 6  # of a label, in pixels
_MARKS: Final = 78
_BRACKET: Final = 122
_BETWEEN: Final = 14
# A share above 0 is never invisible.
_SHORTEST_BAR: Final = 0.006
_LEVEL_AXIS: Final[Spec] = {"domain": False, "ticks": False, "labelPadding": 8, "title": None}


def shares(view: LoadView) -> Spec:
    """Three panels with a row for each c. A level that an experiment measures has its row even if nobody reached it."""
    total = view.total
    rows = level_rows(max([total.max, *view.marked]))
    names = [row_name(row) for row in rows]
    observed = [row_name(row) for row in rows if any(c in row for c in view.point.levels)]
    panels = [
        ("wall", "wall time", total.share_wall, rows),
        ("busy", "busy time", total.share_busy, rows[1:]),
        ("arrivals", "arrivals", total.share_arrivals, rows[1:]),
    ]
    largest = max(_sum(held, row) for _, _, held, where in panels for row in where) if len(rows) > 1 else 1.0
    beside = _BRACKET + _BETWEEN + (_MARKS + _BETWEEN if view.marked else 0)
    labels = 20 + _CHAR * max(map(len, names))
    width = (WIDTH - labels - beside) // len(panels) - _BETWEEN
    height = _ROW * len(rows)
    place: Spec = {"field": "row", "type": "nominal", "scale": {"domain": names, "padding": 0}, "axis": None}
    columns: list[Spec] = []
    for role, title, held, where in panels:
        here = place if columns else place | {"axis": _LEVEL_AXIS}
        layers = [_shade(observed, here), *_bars(where, held, colour(role), largest, here)]
        columns.append({"width": width, "height": height, "title": _over(title), "layer": layers})
    if view.marked:
        layers = [_shade(observed, place), *_marks(rows, view.marked, place)]
        columns.append({"width": _MARKS, "height": height, "title": _over("experiment"), "layer": layers})
    columns.append({"width": _BRACKET, "height": height, "layer": _bracket(view.point.levels, observed, place)})
    return {"hconcat": columns, "spacing": _BETWEEN}


def row_name(row: Sequence[int]) -> str:
    """`idle`, `c = 3`, `c = 17–32`."""
    return f"c = {format_levels(row)}" if row[-1] else "idle"


def small_percent(share: float) -> str:
    """`62.5 %`, `<0.1 %`, and only for none at all `0 %`."""
    return format_share(share) if share else "0 %"


def _sum(held: Mapping[int, float], row: Sequence[int]) -> float:
    return sum(held.get(c, 0.0) for c in row)


def _shade(observed: Sequence[str], place: Spec) -> Spec:
    """The ground of the rows of the observed operating point."""
    data = {"values": [{"row": name} for name in observed]}
    mark = {"type": "rect", "color": colour("shade"), "x": 0, "x2": "width"}
    return {"data": data, "mark": mark, "encoding": {"y": place}}


def _bars(
    where: Sequence[Sequence[int]], held: Mapping[int, float], fill: str, largest: float, place: Spec
) -> list[Spec]:
    values = []
    for row in where:
        share = _sum(held, row)
        drawn = max(share, _SHORTEST_BAR * largest) if share else 0.0
        values.append({"row": row_name(row), "drawn": drawn, "label": small_percent(share)})
    data = {"values": values}
    # The room to the right of the longest bar is for its number.
    x = {"field": "drawn", "type": "quantitative", "axis": None, "scale": {"domain": [0, largest * 1.5]}}
    number = {"type": "text", "align": "left", "dx": 5}
    return [
        {
            "data": data,
            "mark": {"type": "bar", "color": fill, "height": {"band": 0.64}},
            "encoding": {"y": place, "x": x},
        },
        {"data": data, "mark": number, "encoding": {"y": place, "x": x, "text": {"field": "label"}}},
    ]


def _marks(rows: Sequence[Sequence[int]], marked: Mapping[int, str], place: Spec) -> list[Spec]:
    """What an experiment does at each level: filled where it decides, hollow where the load is synthetic."""
    values = []
    for row in rows:
        if said := {marked[c] for c in row if c in marked}:
            decides = DECIDING in said
            values.append({"row": row_name(row), "decides": decides, "label": "decides" if decides else "synthetic"})
    data, ink = {"values": values}, colour("ink")
    point = {"type": "point", "shape": "diamond", "size": 80, "x": 7, "stroke": ink, "strokeWidth": 1.5, "opacity": 1}
    fill = {"condition": {"test": "datum.decides", "value": ink}, "value": None}
    text = {"type": "text", "align": "left", "x": 18}
    return [
        {"data": data, "mark": point, "encoding": {"y": place, "fill": fill}},
        {"data": data, "mark": text, "encoding": {"y": place, "text": {"field": "label"}}},
    ]


def _bracket(levels: Sequence[int], observed: Sequence[str], place: Spec) -> list[Spec]:
    values = [{"row": name, "label": ""} for name in observed]
    if values:
        text = f"measure at c = {format_levels(levels)}"
        values[0]["label"] = text if len(text) <= len("measure at c = 1–12") else "measure here"
    data, deep = {"values": values}, colour("arrivals")
    rule = {"type": "rect", "x": 0, "x2": 3, "color": deep}
    text_mark = {"type": "text", "align": "left", "x": 9, "fontWeight": "bold", "color": deep}
    return [
        {"data": data, "mark": rule, "encoding": {"y": place}},
        {"data": data, "mark": text_mark, "encoding": {"y": place, "text": {"field": "label"}}},
    ]


def _over(text: str) -> Spec:
    """The title of one panel."""
    return {
        "text": text,
        "fontSize": 12,
        "fontWeight": "normal",
        "color": colour("muted"),
        "frame": "group",
        "offset": 6,
    }
