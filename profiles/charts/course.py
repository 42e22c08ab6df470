"""N(t) over the whole time: maximum, 95th and 50th percentile of each step. No line crosses a gap."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from profiles.charts.style import WIDTH, Spec, colour
from profiles.units import HOUR_NS, MINUTE_NS, SECOND_NS
from profiles.view import LoadView

if TYPE_CHECKING:
    from profiles.calendar import Span
    from profiles.concurrency import Window

_NARROWEST_GAP: Final = 1 / 400  # of the whole time: about the width of a line
_ROOM_FOR_TEXT: Final = 0.13
_TICKS: Final = 9
_DAY_NS: Final = 24 * HOUR_NS
_TICK_STEPS_NS: Final = (
    *(step * SECOND_NS for step in (1, 5, 15, 30)),
    *(step * MINUTE_NS for step in (1, 5, 15, 30)),
    *(step * HOUR_NS for step in (1, 3, 6, 12)),
    *(step * _DAY_NS for step in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_LINES: Final = (
    ("max", "maximum", "area"),
    ("p95", "p95: at or below for 95 % of the time", "busy"),
    ("p50", "p50: at or below for half of the time", "arrivals"),
)


def course(view: LoadView) -> Spec | None:
    """Time to the right, requests in flight upwards, gaps as grey ground. None where no time was observed."""
    if not view.windows or not view.spans:
        return None
    first, last = view.windows[0][0], view.windows[-1][1]

    def at(instant_ns: int) -> float:
        return (instant_ns - first) / (last - first)

    seen = drawn_gaps(view.windows)
    points = [point | {"at": at(point["at"])} for point in _steps(view.spans, first, last, seen)]
    ticks = [(at(instant_ns), label) for instant_ns, label in _ticks(view, first, last)]
    places = [place for place, _ in ticks]
    x = {
        "field": "at",
        "type": "quantitative",
        "scale": {"domain": [0.0, 1.0], "nice": False},
        "axis": {
            "values": places,
            "labelExpr": f"{json.dumps([label for _, label in ticks])}[indexof({json.dumps(places)}, datum.value)]",
            "title": f"time in {view.zone}" if view.zone else "time since the first window opened",
            "titlePadding": 8,
            "labelLineHeight": 15,
            "grid": False,
            "labelFlush": False,
        },
    }
    ground = [{"at": at(opened), "to": at(close)} for opened, close in seen]
    middles = [{"at": (gap["at"] + gap["to"]) / 2} for gap in ground if gap["to"] - gap["at"] > _ROOM_FOR_TEXT]
    layers: list[Spec] = [
        {
            "data": {"values": ground},
            "mark": {"type": "rect", "color": colour("gap"), "y": 0, "y2": "height"},
            "encoding": {"x": x, "x2": {"field": "to"}},
        },
        *_lines(points, x, max(1, view.total.max)),
        {
            "data": {"values": middles},
            "mark": {"type": "text", "color": colour("muted"), "y": 12},
            "encoding": {"x": x, "text": {"value": "not observed"}},
        },
    ]
    return {"width": WIDTH - 66, "height": 190, "layer": layers}


def gaps(windows: "Sequence[Window]") -> "list[Window]":
    """The times between the windows. Nobody knows what happened in them."""
    return [(left[1], right[0]) for left, right in pairwise(windows)]


def drawn_gaps(windows: "Sequence[Window]") -> "list[Window]":
    """Those that are wide enough to be seen at this length."""
    if not windows:
        return []
    least_ns = (windows[-1][1] - windows[0][0]) * _NARROWEST_GAP
    return [gap for gap in gaps(windows) if gap[1] - gap[0] >= least_ns]


def _lines(points: Sequence[Spec], x: Spec, highest: int) -> list[Spec]:
    axis = {"title": "in flight", "tickMinStep": 1, "tickCount": min(highest, 5), "format": "d", "domain": False}
    y = {"field": "k", "type": "quantitative", "axis": axis, "scale": {"domain": [0, highest]}, "stack": None}
    key = {
        "field": "line",
        "type": "nominal",
        "scale": {"domain": [name for _, name, _ in _LINES], "range": [colour(role) for _, _, role in _LINES]},
        "legend": {"orient": "top", "title": None, "direction": "horizontal"},
    }
    layers: list[Spec] = []
    for value, name, _ in _LINES:
        mark: Spec = {"type": "area"} if value == "max" else {"type": "line", "strokeWidth": 2}
        values = [{"at": one["at"], "run": one["run"], "k": one[value], "line": name} for one in points]
        encoding = {"x": x, "y": y, "detail": {"field": "run", "type": "nominal"}, "color": key}
        layers.append(
            {
                "data": {"values": values},
                "mark": mark | {"interpolate": "step-after", "opacity": 1},
                "encoding": encoding,
            }
        )
    return layers


def _steps(spans: "Sequence[Span]", first: int, last: int, seen: "Sequence[Window]") -> list[Spec]:
    """A point where each step begins, outside the gaps. Steps that touch are a run, and its last point closes it."""
    edges = [first, *(edge for gap in seen for edge in gap), last]
    pieces: list[tuple[int, int, Span]] = []
    for opened, close in zip(edges[::2], edges[1::2], strict=True):
        for span in spans:
            start, end = max(span.start_ns, opened), min(span.end_ns, close)
            if start < end and span.max is not None:
                pieces.append((start, end, span))
    points: list[Spec] = []
    run = 0
    for place, (start, end, span) in enumerate(pieces):
        values = {"run": run, "max": span.max, "p95": span.p95, "p50": span.p50}
        points.append(values | {"at": start})
        if place + 1 == len(pieces) or pieces[place + 1][0] != end:
            points.append(values | {"at": end})
            run += 1
    return points


def _ticks(view: LoadView, first: int, last: int) -> list[tuple[int, Any]]:
    """Instants and their labels: round local times where the zone is known, else the time since the start."""
    step_ns = next((step for step in _TICK_STEPS_NS if (last - first) / step <= _TICKS), _TICK_STEPS_NS[-1])
    if view.zone is None or view.zero_wall_ns is None:
        return [(at, _since(at - first, step_ns)) for at in range(first, last + 1, step_ns)]
    zone = ZoneInfo(view.zone)
    opened = datetime.fromtimestamp((view.zero_wall_ns + first) / SECOND_NS, UTC).astimezone(zone)
    midnight = opened.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    ticks: list[tuple[int, Any]] = []
    round_time = midnight  # on the local clock, which a change of it does not stretch
    while True:
        instant_ns = round(round_time.replace(tzinfo=zone).timestamp()) * SECOND_NS - view.zero_wall_ns
        if instant_ns > last:
            return ticks
        if instant_ns >= first:
            new_day = not ticks or round_time.hour == round_time.minute == round_time.second == 0
            ticks.append((instant_ns, _clock(round_time, step_ns, new_day)))
        round_time += timedelta(microseconds=step_ns // 1000)


def _clock(moment: datetime, step_ns: int, new_day: bool) -> Any:
    day = f"{moment:%a} {moment.day} {moment:%b}"
    if step_ns >= 28 * _DAY_NS:
        return f"{moment.day} {moment:%b} {moment.year}"
    if step_ns >= _DAY_NS:
        return day
    time = f"{moment:%H:%M}" if step_ns >= MINUTE_NS else f"{moment:%H:%M:%S}"
    return [time, day] if new_day else time


def _since(elapsed_ns: int, step_ns: int) -> str:
    for unit, scale in (("d", _DAY_NS), ("h", HOUR_NS), ("min", MINUTE_NS)):
        if step_ns >= scale:
            return f"{elapsed_ns // scale} {unit}"
    return f"{elapsed_ns // SECOND_NS} s"
