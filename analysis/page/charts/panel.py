"""A specification with its heading and what it says in words, and what all panels share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from analysis.stats import Estimate
from profiles.charts.style import Spec, colour, plain
from profiles.units import format_change

WIDTH: Final = 400  # of a whole panel, in pixels
NAME_CHARS: Final = 20
_CHAR: Final = 6.4  # of a label, in pixels

# A change in per cent beside a tick: `+10`, `−2.5`, and 0 without a sign.
SIGNED: Final = "datum.value == 0 ? '0' : format(datum.value, '+.3~r')"

# Role of a direction -> its colour and shape. Lower is better, so a gain points to the left.
DIRECTIONS: Final = ("gain", "open", "loss")
DIRECTION_COLOURS: Final = {"gain": "arrivals", "open": "muted", "loss": "busy"}
DIRECTION_SHAPES: Final = {"gain": "triangle-left", "open": "circle", "loss": "triangle-right"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. `alt` is what it says to those who do not see it; `wide` pictures have a row of their own."""

    heading: str
    spec: Spec
    alt: str
    wide: bool = False


def percents(value: float) -> float:
    """A log ratio as a change in per cent, in as many digits as a picture shows."""
    return round(100 * math.expm1(max(-50.0, min(value, 50.0))), 3)


def say(estimate: Estimate | None) -> str:
    """`−4.8 % [−6.0 %, −3.7 %]`, for a tooltip and for a sentence."""
    if estimate is None:
        return "not measured"
    mean = format_change(percents(estimate.mean) / 100)
    if estimate.low is None or estimate.high is None:
        return f"{mean} [no interval]"
    return f"{mean} [{format_change(percents(estimate.low) / 100)}, {format_change(percents(estimate.high) / 100)}]"


def shortened(name: str, chars: int = NAME_CHARS) -> str:
    """Foreign text as a label: what cannot be shown is a question mark, and what is too long ends with dots."""
    shown = plain(name)
    return shown if len(shown) <= chars else shown[: chars - 1] + "…"


def room_for(names: Iterable[str]) -> int:
    """Pixels that labels of these names need."""
    return 18 + round(_CHAR * max(map(len, names), default=0))


def reference_line(at: float = 0.0, role: str = "ink", *, axis: str = "x", dash: Sequence[int] = ()) -> Spec:
    """A thin line across the whole panel, at one value of an axis."""
    mark: Spec = {"type": "rule", "color": colour(role), "strokeWidth": 1}
    if dash:
        mark["strokeDash"] = list(dash)
    return {"data": {"values": [{"at": at}]}, "mark": mark, "encoding": {axis: {"field": "at", "type": "quantitative"}}}


def key(domain: Sequence[str], colours: Sequence[str], **legend: Any) -> Spec:
    """A colour scale over names, its legend above the panel."""
    return {
        "scale": {"domain": list(domain), "range": [colour(role) for role in colours]},
        "legend": {"orient": "top", "title": None, "direction": "horizontal", **legend},
    }
