"""At which c the arrivals of each class come: one bar per class, the busy ones first."""

from collections.abc import Mapping
from typing import Final

from profiles.charts.style import RAMP, WIDTH, Spec, colour, named_rows, on_ramp, plain, thousands
from profiles.histogram import format_levels
from profiles.view import LoadView

LISTED: Final = 12
ALL: Final = "all classes"
_ROW: Final = 25
_CHAR: Final = 6  # of a name, in pixels
_COUNTS: Final = 150
_NAME_CHARS: Final = 24
_ROOM_FOR_TEXT: Final = 0.075


def classes(view: LoadView) -> Spec | None:
    """Bars of 100 %, cut at the total c that each arrival met. None where no class has an arrival."""
    rows = class_rows(view)
    if not rows:
        return None
    groups = level_groups(view.total.max)
    names = [name for name, _ in rows]
    total = view.total.requests
    pieces, counts = [], []
    for place, (_, arrivals_at) in enumerate(rows):
        requests = sum(arrivals_at.values())
        counts.append({"row": place, "label": f"{thousands(requests)} ({_percent(requests / total)})"})
        left = 0.0
        for step, group in enumerate(groups):
            share = sum(count for c, count in arrivals_at.items() if c in group) / requests
            if share:
                pieces.append(
                    {
                        "row": place,
                        "from": left,
                        "to": left + share,
                        "middle": left + share / 2,
                        "c": format_levels(group),
                        "label": _percent(share) if share >= _ROOM_FOR_TEXT else "",
                        "ink": on_ramp(_ramp_step(step, len(groups))),
                    }
                )
            left += share
    beside = 24 + _CHAR * max(map(len, names))
    y = named_rows(names, beside)
    x = {"type": "quantitative", "axis": None, "scale": {"domain": [0, 1], "nice": False}}
    key = {
        "scale": {
            "domain": [format_levels(group) for group in groups],
            "range": [colour(RAMP[_ramp_step(step, len(groups))]) for step in range(len(groups))],
        },
        "legend": {
            "orient": "top",
            "title": "c that the request meets",
            "titleOrient": "left",
            "direction": "horizontal",
        },
    }
    width = WIDTH - beside - _COUNTS
    bars: list[Spec] = [
        {
            "data": {"values": pieces},
            "mark": {"type": "bar", "height": {"band": 0.72}, "stroke": colour("ground"), "strokeWidth": 1},
            "encoding": {
                "y": y,
                "x": {"field": "from"} | x,
                "x2": {"field": "to"},
                "color": {"field": "c", "type": "nominal"} | key,
            },
        },
        {
            "data": {"values": pieces},
            "mark": {"type": "text", "fontSize": 11},
            "encoding": {
                "y": y,
                "x": {"field": "middle"} | x,
                "text": {"field": "label"},
                "stroke": {"value": None},
                "fill": {"field": "ink", "type": "nominal", "scale": None},
            },
        },
        {
            "data": {"values": counts},
            "mark": {"type": "text", "align": "left", "color": colour("muted"), "x": width + 10},
            "encoding": {"y": y, "text": {"field": "label"}},
        },
    ]
    return {"width": width, "height": _ROW * len(rows), "layer": bars}


def class_rows(view: LoadView) -> list[tuple[str, Mapping[int, int]]]:
    """All classes together, then each with arrivals, the busiest first; beyond twelve the rest are one row."""
    busy = {name: held.arrivals_at for name, held in view.classes.items() if held.requests}
    names = sorted(busy, key=lambda name: (-sum(busy[name].values()), name))
    if not names:
        return []
    rows: list[tuple[str, Mapping[int, int]]] = [(ALL, view.total.arrivals_at)] if len(names) > 1 else []
    shown = names if len(names) <= LISTED else names[: LISTED - 1]
    rows += [(_shortened(name), busy[name]) for name in shown]
    if rest := names[len(shown) :]:
        merged: dict[int, int] = {}
        for name in rest:
            for c, count in busy[name].items():
                merged[c] = merged.get(c, 0) + count
        rows.append((f"{len(rest)} others", merged))
    return rows


def level_groups(highest: int) -> list[range]:
    """At most seven groups of levels, one for each step of the ramp: single levels as far as they fit, then ranges
    that double. Of a very high load the lowest ranges are one."""
    if highest <= len(RAMP):
        return [range(c, c + 1) for c in range(1, highest + 1)]
    starts = [1, 2, 3, 4, 5, 9] if highest <= 16 else [1, 2, *(2**power + 1 for power in range(1, 40))]
    starts = [start for start in starts if start <= highest]
    starts = [1, *starts[max(1, len(starts) - len(RAMP) + 1) :]]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], highest + 1], strict=True)]


def _ramp_step(step: int, groups: int) -> int:
    """A short list is spread over the ramp; one group alone takes its middle."""
    return round(step * (len(RAMP) - 1) / (groups - 1)) if groups > 1 else len(RAMP) // 2


def _shortened(name: str) -> str:
    shown = plain(name)
    return shown if len(shown) <= _NAME_CHARS else shown[: _NAME_CHARS - 1] + "…"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.005 else "<1 %"
