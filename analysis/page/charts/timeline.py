"""Every boot in its place: how long it booted, how long it was measured, what was discarded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from analysis.page.charts.panel import Panel, key, room_for, shortened
from profiles.charts.style import Spec, colour, named_rows
from profiles.units import format_duration, format_percent

BOOTING: Final = "booting"
MEASURING: Final = "in windows"
BESIDE: Final = "warm-up and stop"
LOST: Final = "not counted"
_WIDTH: Final = 860
_FIRST: Final = 92
_FLAGS: Final = 170
_ROW: Final = 20
_FONT: Final = 11


@dataclass(frozen=True, slots=True)
class BootRow:
    """A boot. Spans are shares of the longest boot; `first` and `flags` stand beside its bar."""

    name: str
    status: str  # done, failed, discarded
    boot_ns: int | None  # from spawn to ready
    measured_ns: int | None  # the sum of its windows
    spent_ns: int | None  # from spawn to proven death
    first: str  # TTFT of its first request
    flags: str
    new_block: bool

    @property
    def lost(self) -> bool:
        return self.status != "done"


def timeline(rows: Sequence[BootRow], *, relative: bool = False) -> Panel | None:
    """A row per slot. `relative`: lengths are shares of the longest boot. None without a boot."""
    longest = max((row.spent_ns or row.boot_ns or 0 for row in rows), default=0)
    if not rows:
        return None
    names = [row.name for row in rows]
    left = room_for(shortened(name, 30) for name in names)
    width = _WIDTH - left - _FIRST - _FLAGS
    unit, title = _unit(longest, relative)
    bars = [bar for at, row in enumerate(rows) for bar in _bars(at, row, unit, relative)]
    y = named_rows(
        [shortened(name, 30) for name in names],
        left,
        labelFontSize=_FONT,
    )
    x: Spec = {
        "type": "quantitative",
        "scale": {"domain": [0, max(longest / unit, 1e-9)], "nice": False},
        "axis": {"title": title, "tickCount": 6, "format": "~%" if relative else "~g", "orient": "top"},
    }
    kinds = [BOOTING, MEASURING, BESIDE, LOST]
    first = [{"row": at, "label": row.first, "lost": row.lost} for at, row in enumerate(rows)]
    flags = [{"row": at, "label": shortened(row.flags, 27), "tip": row.flags} for at, row in enumerate(rows)]
    blocks = [{"row": at} for at, row in enumerate(rows) if row.new_block and at]
    end = _WIDTH - left - 20
    text: Spec = {"type": "text", "align": "left", "fontSize": _FONT}
    layers: list[Spec] = [
        {
            "data": {"values": blocks},
            "mark": {
                "type": "rule",
                "color": colour("line"),
                "x": -left,
                "x2": end,
                "yOffset": -_ROW / 2,
            },
            "encoding": {"y": y},
        },
        {
            "data": {"values": bars},
            "mark": {"type": "bar", "height": {"band": 0.62}},
            "encoding": {
                "y": y,
                "x": {"field": "from"} | x,
                "x2": {"field": "to"},
                "color": {"field": "kind", "type": "nominal"} | key(kinds, ["busy", "ramp4", "area", "wall"]),
                "tooltip": {"field": "tip"},
            },
        },
        {
            "data": {"values": first},
            "mark": text | {"x": width + 10},
            "encoding": {"y": y, "text": {"field": "label"}},
        },
        {
            "data": {"values": flags},
            "mark": text | {"x": width + _FIRST, "color": colour("muted")},
            "encoding": {"y": y, "text": {"field": "label"}, "tooltip": {"field": "tip"}},
        },
        {
            "data": {"values": [{"label": "first TTFT", "at": width + 10}, {"label": "log", "at": width + _FIRST}]},
            "mark": text | {"y": -8, "color": colour("muted")},
            "encoding": {"x": {"field": "at", "type": "quantitative", "scale": None}, "text": {"field": "label"}},
        },
    ]
    spec: Spec = {
        "width": width,
        "height": _ROW * len(rows),
        "layer": layers,
        "resolve": {"scale": {"x": "independent"}},
    }
    lost = sum(row.lost for row in rows)
    said = f"{len(rows)} boots in their order, {lost} of them not counted"
    if not relative and longest:
        said += f"; the longest took {format_duration(longest)}"
    return Panel("Boots", spec, said + ".", wide=True)


def _bars(at: int, row: BootRow, unit: float, relative: bool) -> list[dict[str, Any]]:
    booted = row.boot_ns or 0
    end = row.spent_ns if row.spent_ns is not None else booted
    ready = min(booted, end)
    told = min(end, ready + (row.measured_ns or 0))
    parts = [(BOOTING, 0, ready), (MEASURING, ready, told), (BESIDE, told, end)] if not row.lost else [(LOST, 0, end)]
    return [
        {
            "row": at,
            "kind": kind,
            "from": round(start / unit, 6),
            "to": round(stop / unit, 6),
            "tip": f"{shortened(row.name, 60)}, {kind}: {_length(stop - start, unit, relative)}",
        }
        for kind, start, stop in parts
        if stop > start
    ]


def _length(span_ns: float, unit: float, relative: bool) -> str:
    return f"{format_percent(span_ns / unit)} of the longest boot" if relative else format_duration(span_ns)


def _unit(longest: int, relative: bool) -> tuple[float, str]:
    if relative:
        return float(longest or 1), "share of the longest boot"
    for limit_ns, unit_ns, name in ((180e9, 1e9, "s"), (3 * 3600e9, 60e9, "min")):
        if longest < limit_ns:
            return unit_ns, f"time since the start of the boot, in {name}"
    return 3600e9, "time since the start of the boot, in h"
