"""The difference of each block, in the order of the blocks: drift, and boots of two kinds."""

from collections.abc import Mapping
from typing import Any, Final

from analysis.page.charts.panel import SIGNED, WIDTH, Panel, key, percents, reference_line, shortened
from profiles.charts.style import Spec, colour
from profiles.units import format_change

_LEFT: Final = 50
# Of the measures, in their order; a rule with more of them begins anew.
_ROLES: Final = ("arrivals", "busy", "muted", "ramp3")
_SHAPES: Final = ("circle", "square", "triangle-up", "diamond")


def blocks(arm: str, against: str, differences: Mapping[str, Mapping[int, float]], planned: int) -> Panel | None:
    """`differences`: title of a measure → block → log ratio. None without a block."""
    titles = [title for title, held in differences.items() if held]
    if not titles:
        return None
    values: list[dict[str, Any]] = [
        {
            "block": block,
            "change": percents(value),
            "measure": title,
            "hue": colour(_ROLES[at % len(_ROLES)]),
            "tip": f"{title}, block {block}: {format_change(percents(value) / 100)}",
        }
        for at, title in enumerate(titles)
        for block, value in sorted(differences[title].items())
    ]
    last = max([planned, *(value["block"] for value in values)])
    x: Spec = {
        "field": "block",
        "type": "quantitative",
        "scale": {"domain": [0.5, last + 0.5], "nice": False},
        "axis": {"title": "block, in the order of time", "tickMinStep": 1, "format": "d", "grid": False},
    }
    farthest = max(4.0, *(abs(value["change"]) for value in values)) * 1.1
    y: Spec = {
        "field": "change",
        "type": "quantitative",
        "scale": {"domain": [-farthest, farthest], "nice": False},
        "axis": {"title": "change in %", "labelExpr": SIGNED, "tickCount": 5, "domain": False},
    }
    measure: Spec = {"field": "measure", "type": "nominal"}
    hue = measure | key(titles, [_ROLES[at % len(_ROLES)] for at in range(len(titles))])
    shapes = [_SHAPES[at % len(_SHAPES)] for at in range(len(titles))]
    shape = measure | {"scale": {"domain": titles, "range": shapes}, "legend": hue["legend"]}
    data = {"values": values}
    spec: Spec = {
        "width": WIDTH - _LEFT - 20,
        "height": 120,
        "layer": [
            reference_line(axis="y"),
            {
                "data": data,
                "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.5},
                "encoding": {"x": x, "y": y, "color": {"field": "hue", "scale": None}},
            },
            {
                "data": data,
                "mark": {"type": "point", "filled": True, "opacity": 1, "size": 60},
                "encoding": {"x": x, "y": y, "color": hue, "shape": shape, "tooltip": {"field": "tip"}},
            },
        ],
    }
    said = "; ".join(
        f"{title} from {format_change(min(part) / 100)} to {format_change(max(part) / 100)}"
        for title in titles
        if (part := [value["change"] for value in values if value["measure"] == title])
    )
    return Panel(shortened(arm, 40), spec, f"Block differences of {arm} against {against}: {said}.")
