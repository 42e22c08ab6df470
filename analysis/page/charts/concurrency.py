"""How many arrivals meet each c, and at which c the run measured: deciding, or beside the verdict."""

from collections.abc import Mapping
from typing import Final

from analysis.page.charts.panel import WIDTH, Panel, key
from profiles.charts.shares import small_percent
from profiles.charts.style import Spec, colour
from profiles.units import format_percent

DECIDES: Final = "decides"
ADVISES: Final = "advisory"
_ROW: Final = 26
_ROW_OF_TWO: Final = 34
_LEFT: Final = 52
_BESIDE: Final = 96
MOST_LEVELS: Final = 24


def concurrency(profile: Mapping[int, int], met: Mapping[int, int], marked: Mapping[int, str]) -> Panel | None:
    """`profile` and `met`: arrivals by c, as recorded and as the baseline met them; `marked`: c → `DECIDES` or
    `ADVISES`. None where neither an arrival nor a level is known."""
    levels = shown_levels(profile, met, marked)
    if not levels:
        return None
    bars = [
        {"c": c, "who": who, "share": share, "tip": f"c = {c}: {format_percent(share)} of the arrivals, {who}"}
        for who, held in (("recorded", profile), ("met by the baseline", met))
        if (total := sum(held.values()))
        for c in levels
        if (share := held.get(c, 0) / total) or who == "recorded"
    ]
    names = list(dict.fromkeys(str(bar["who"]) for bar in bars))
    place: Spec = {
        "field": "c",
        "type": "nominal",
        "scale": {"domain": levels, "padding": 0.2},
        "axis": {
            "domain": False,
            "ticks": False,
            "labelPadding": 8,
            "title": None,
            "labelExpr": "'c = ' + datum.value",
        },
    }
    most = max([float(str(bar["share"])) for bar in bars], default=1.0) or 1.0
    x: Spec = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, most * 1.25]},
        "axis": None,
    }
    data = {"values": bars}
    offset: Spec = {"field": "who", "scale": {"domain": names}}
    width = WIDTH - _LEFT - _BESIDE
    shape: Spec = {
        "type": "point",
        "shape": "diamond",
        "size": 80,
        "x": width + 8,
        "stroke": colour("ink"),
        "opacity": 1,
    }
    marks = {"values": [{"c": c, "role": role} for c, role in marked.items() if c in levels]}
    layers: list[Spec] = [
        {
            "data": data,
            "mark": {"type": "bar"},
            "encoding": {
                "y": place,
                "yOffset": offset,
                "x": x,
                "color": {"field": "who", "type": "nominal"} | key(names, ["arrivals", "wall"][: len(names)]),
                "tooltip": {"field": "tip"},
            },
        },
        {
            "data": {"values": [bar | {"label": small_percent(float(str(bar["share"])))} for bar in bars]},
            "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11},
            "encoding": {"y": place, "yOffset": offset, "x": x, "text": {"field": "label"}},
        },
        {
            "data": marks,
            "mark": shape,
            "encoding": {
                "y": place,
                "fill": {"condition": {"test": f"datum.role == '{DECIDES}'", "value": colour("ink")}, "value": None},
            },
        },
        {
            "data": marks,
            "mark": {"type": "text", "align": "left", "x": width + 20},
            "encoding": {"y": place, "text": {"field": "role"}},
        },
    ]
    spec: Spec = {"width": width, "height": (_ROW if len(names) < 2 else _ROW_OF_TWO) * len(levels), "layer": layers}
    deciding = [c for c, role in marked.items() if role == DECIDES]
    said = ", ".join(
        f"{format_percent(float(str(bar['share'])))} at c = {bar['c']}" for bar in bars if bar["who"] == "recorded"
    )
    decided = f" The run decides at c = {', '.join(map(str, deciding))}." if deciding else ""
    return Panel("Arrivals at each c", spec, f"Arrivals as recorded: {said or 'not known'}.{decided}")


def shown_levels(profile: Mapping[int, int], met: Mapping[int, int], marked: Mapping[int, str]) -> list[int]:
    """Every level up to the highest with an arrival or a mark; of a very high load those that hold something."""
    highest = max([*(c for held in (profile, met) for c, count in held.items() if count), *marked], default=0)
    if highest <= MOST_LEVELS:
        return list(range(1, highest + 1))
    some = {c for held in (profile, met) for c, count in held.items() if count} | set(marked)
    return sorted(some)[:MOST_LEVELS]
