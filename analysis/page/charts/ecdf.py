"""TTFT as a distribution: a thin line per boot, a thick one for the mean of the boots' quantiles."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analysis.page.charts.panel import WIDTH, Panel, key, shortened
from profiles.charts.style import Spec, colour
from profiles.units import format_duration

# Each boot is drawn through so many of its quantiles, whatever the number of its requests.
POINTS: Final = 200
SHARES: Final = tuple(round((place + 0.5) / POINTS, 4) for place in range(POINTS))
_LEFT: Final = 46


@dataclass(frozen=True, slots=True)
class Distribution:
    """An arm's boots, each as its quantiles at `SHARES`; the values are ns, or ratios to the baseline's median."""

    arm: str
    boots: Mapping[int, Sequence[float]]  # by block

    @property
    def mean(self) -> list[float]:
        """Geometric mean over the boots of each quantile."""
        table = np.log(np.array([list(values) for values in self.boots.values()]))
        return [float(value) for value in np.exp(table.mean(axis=0))]

    @property
    def median(self) -> float:
        """Of the mean line."""
        line = self.mean
        return math.sqrt(line[POINTS // 2 - 1] * line[POINTS // 2])


def distribution(arm: str, values: Mapping[int, "np.ndarray[Any, Any]"], unit: float = 1.0) -> Distribution | None:
    """The distribution of an arm from the values of its blocks, each divided by `unit`. None without a value."""
    boots = {block: [float(q) / unit for q in np.quantile(held, SHARES)] for block, held in values.items() if held.size}
    return Distribution(arm, boots) if boots else None


def ecdf(
    own: Distribution, base: Distribution, domain: tuple[float, float], *, both: bool = False, relative: bool = False
) -> Panel:
    """One arm's boots and their mean, with the mean of the baseline, dashed. With `both` the baseline's boots too.

    `domain` is the shown range, the same in all panels of a page. The values are ns, with `relative` ratios.
    """
    scale = 1.0 if relative else 1e-6
    arms = [base, own] if own.arm != base.arm else [base]
    names = [item.arm for item in arms]
    roles = ["busy", "arrivals"][: len(names)]
    thin = [
        _row(item.arm, f"block {block}", values, scale) | {"hue": colour(role)}
        for item, role in zip(arms, roles, strict=True)
        if item is own or both
        for block, values in item.boots.items()
    ]
    # The dashed line lies on top, so that both are seen where they are one.
    thick = [_row(item.arm, "mean of the boots", item.mean, scale) for item in reversed(arms)]
    arm: Spec = {"field": "arm", "type": "nominal"}
    symbol = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 400, "labelExpr": _labels(names)}
    hue = arm | key(names, roles, **symbol)
    dash = arm | {"scale": {"domain": names, "range": [[5, 4], [1, 0]][: len(names)]}, "legend": hue["legend"]}
    low, high = (end * scale for end in domain)
    x: Spec = {
        "field": "x",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {
            "title": "TTFT, multiple of the baseline's median (log)" if relative else "TTFT in ms (log)",
            "tickCount": 5,
            "format": "~r" if relative else "~s" if high >= 1e5 else ",~r",
            "labelOverlap": True,
            "gridOpacity": 0.6,
        },
    }
    y: Spec = {
        "field": "y",
        "type": "quantitative",
        "scale": {"domain": [0, 1]},
        "axis": {"title": "share of requests", "format": "~%", "tickCount": 5, "domain": False},
    }
    tip: Spec = {"field": "tip"}
    flat = [{"flatten": ["x", "y"]}]
    line: Spec = {"type": "line"}
    over = {"name": "over", "select": {"type": "point", "fields": ["boot", "arm"], "on": "pointerover"}}
    spec: Spec = {
        "width": WIDTH - _LEFT - 20,
        "height": 190,
        "layer": [
            {
                "data": {"values": thin},
                "transform": flat,
                "params": [over],
                "mark": line,
                "encoding": {
                    "x": x,
                    "y": y,
                    "detail": [{"field": "boot"}, {"field": "arm"}],
                    "color": {"field": "hue", "scale": None},
                    "strokeWidth": {"condition": {"param": "over", "value": 2.5, "empty": False}, "value": 1},
                    "opacity": {"condition": {"param": "over", "value": 1, "empty": False}, "value": 0.5},
                    "tooltip": tip,
                },
            },
            {
                "data": {"values": thick},
                "transform": flat,
                "mark": line | {"strokeWidth": 2.5, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": hue, "strokeDash": dash, "order": {"field": "y"}, "tooltip": tip},
            },
        ],
    }
    alt = f"TTFT of {own.arm} over {len(own.boots)} boots: median {_said(own.median, relative)}"
    if own.arm != base.arm:
        alt += f", that of {base.arm} {_said(base.median, relative)}"
    heading = f"{base.arm} and its copy" if both and own is not base else own.arm
    return Panel(shortened(heading, 40), spec, alt + ".")


def _row(arm: str, boot: str, values: Sequence[float], scale: float) -> dict[str, Any]:
    # Four significant digits are finer than a pixel.
    x = [float(f"{value * scale:.4g}") for value in values]
    return {"arm": arm, "boot": boot, "x": x, "y": list(SHARES), "tip": f"{shortened(arm, 60)}, {boot}"}


def _labels(names: Sequence[str]) -> str:
    return f"{json.dumps({name: shortened(name, 24) for name in names})}[datum.label]"


def _said(value: float, relative: bool) -> str:
    return f"{value:.2f} times the baseline's" if relative else format_duration(value)
