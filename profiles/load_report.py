"""A LoadView as text for an 80-column terminal, and as the document of `concurrency --json`.

The order is that of the questions: what to do, the table, what an experiment measures of it, the classes, how sure the
shares are, and when the load comes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from profiles import histogram
from profiles.caveats import at_most, left_out
from profiles.concurrency import Concurrency
from profiles.confidence import BOOTSTRAP, RANGE, Bound, Reach
from profiles.histogram import (
    WIDTH,
    counted,
    filled,
    format_levels,
    format_point,
    format_share,
    format_span,
    table,
)
from profiles.units import HOUR_NS, MINUTE_NS, format_duration, format_percent
from profiles.view import DECIDING, SYNTHETIC, LoadView

_SIGNS = {DECIDING: "◆", SYNTHETIC: "◇"}
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SHADES = "░▒▓█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_DAY_NS = 24 * HOUR_NS
_CLASSES = 12  # in the text; the rest is one line
_REACH_ROWS = 10


def headline(view: LoadView) -> str:
    """What to do, in one plain sentence, with what must be known before it is believed."""
    sentence = histogram.headline(view.total, view.point)
    doubts = ["with a stated service time"] * bool(view.estimate) + ["of a shaped load"] * view.shaped
    if doubts:
        sentence = f"Estimate, {', '.join(doubts)}: {sentence}"
    if view.synthetic:  # it has no operating point, and nothing follows from it
        most = f"{view.total.mean:.1f} in flight on average, at most {view.total.max}"
        sentence = f"Synthetic load, nobody's production: {most}, as it was made. It says nothing about yours."
    return sentence


def render(view: LoadView) -> str:
    """The whole text, without a final newline."""
    marks = {level: _SIGNS[what] for level, what in view.marked.items()}
    paragraphs = [
        filled(headline(view)),
        table(view.total, marks),
        "\n".join(map(filled, _facts(view))),
        _class_table(view),
        _reach_table(view),
        "\n".join(map(filled, _never_above(view))),
        _course(view),
        _heat_map(view),
        filled(_clock(view)),
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


# --- Facts below the table.


def _facts(view: LoadView) -> Iterable[str]:
    total = view.total
    if view.estimate:
        yield f"estimate: nobody saw these requests end; they are taken to last {view.estimate}"
    if view.origin:
        yield f"source: {view.origin}"
    if view.point.levels:
        how = "synthetic" if view.synthetic else "estimated" if view.estimate or view.shaped else "observed"
        yield f"{how} operating point: {format_point(view.point)}"
    deciding, synthetic = (
        tuple(level for level, what in view.marked.items() if what == kind) for kind in (DECIDING, SYNTHETIC)
    )
    if deciding:
        yield f"{_SIGNS[DECIDING]} the experiment decides at c = {format_levels(deciding)}"
    if synthetic:
        share = total.reach(min(synthetic)) or 0.0
        reached = f"{format_share(share)} of arrivals reach it" if share else "no arrival reaches it"
        yield f"{_SIGNS[SYNTHETIC]} it also measures a synthetic c = {format_levels(synthetic)}; {reached}"
    yield (
        f"mean {total.mean:.2f} in flight over the wall time; {counted(total.requests, 'request')} in"
        f" {format_span(total.observed_ns)} ({counted(len(view.windows), 'window')})"
    )


def _class_table(view: LoadView) -> str:
    """Of each class, the share of its arrivals that meets each total: the joint table class × c, row by row."""
    classes = {name: measured for name, measured in view.classes.items() if measured.requests}
    if len(classes) < 2:
        return ""
    ranges = _ranges(max(max(measured.arrivals_at) for measured in classes.values()))
    label = max(len("class"), *map(len, classes))
    label = min(label, WIDTH - 8 - 8 - 6 * len(ranges))
    every = sum(measured.requests for measured in classes.values())
    lines = [
        "arrivals of each class by the c that they meet, all classes together",
        f"{'class':{label}}{'n':>8}{'share':>8}{''.join(f'{name:>6}' for name, _, _ in ranges)}",
    ]
    for name, measured in list(classes.items())[:_CLASSES]:
        cells = "".join(f"{_share_of(measured, low, high):>6}" for _, low, high in ranges)
        share = format_percent(measured.requests / every, 0)
        lines.append(f"{name[:label]:{label}}{measured.requests:>8}{share:>8}{cells}")
    if len(classes) > _CLASSES:
        rest = list(classes.values())[_CLASSES:]
        lines.append(f"and {len(rest)} more classes with {counted(sum(one.requests for one in rest), 'request')}")
    return "\n".join(lines)


def _ranges(highest: int) -> list[tuple[str, int, int | None]]:
    """At most seven columns: name, lowest and highest level."""
    edges = [level for level in (1, 2, 3, 4, 5, 9, 17) if level <= highest]
    closed = [*(edge - 1 for edge in edges[1:]), None]
    names = []
    for low, high in zip(edges, closed, strict=True):
        last = highest if high is None else high
        names.append(f"{low}" if low == last else f"{low}–{last}" if last < 100 else f"{low}+")
    return list(zip(names, edges, closed, strict=True))


def _share_of(measured: Concurrency, low: int, high: int | None) -> str:
    held = sum(n for c, n in measured.arrivals_at.items() if c >= low and (high is None or c <= high))
    share = held / measured.requests
    return "<1 %" if 0 < share < 0.005 else format_percent(share, 0) if held else "–"


# --- How sure.


def _reach_table(view: LoadView) -> str:
    rows = [row for row in view.reach if row.c > 1]
    if not rows:
        return ""
    listed = rows if len(rows) <= _REACH_ROWS else [*rows[: _REACH_ROWS - 3], *_spread(rows[_REACH_ROWS - 3 :])]
    label = max(4, len(str(listed[-1].c)))
    lines = [f"{'c ≥':>{label}}  of arrivals  {_how(rows[0], view)}"]
    for row in listed:
        bound = "" if row.low is None or row.high is None else f"{format_share(row.low)} to {format_share(row.high)}"
        lines.append(f"{row.c:>{label}}{format_share(row.share):>13}  {bound}".rstrip())
    return "\n".join(lines)


def _spread(rows: Sequence[Reach]) -> list[Reach]:
    """The first, one in the middle, and the last."""
    return [rows[at] for at in sorted({0, len(rows) // 2, len(rows) - 1})]


def _how(row: Reach, view: LoadView) -> str:
    if row.how == BOOTSTRAP:
        return f"95 %, bootstrap of {row.days} whole days (seed {view.seed})"
    if row.how == RANGE:
        return f"lowest to highest of {row.days} days: too few for a bound"
    return "one day with arrivals: no bound"


def _never_above(view: LoadView) -> Iterable[str]:
    """What is known of levels that were never reached, or nearly never."""
    by_level: dict[int, list[Bound]] = {}
    for bound in view.bounds:
        by_level.setdefault(bound.c, []).append(bound)
    span = format_span(view.total.observed_ns)
    for c, bounds in by_level.items():
        known = [bound for bound in bounds if bound.share_high is not None]
        if c > view.total.max:
            continue  # nothing that its maximum does not say better
        said = f"never above {c} in {span} observed" if c == view.total.max else f"above {c} at times"
        if not known:
            yield f"{said}; no hour was observed for more than half of it, so nothing is known of other hours"
            continue
        counts = " and ".join(f"{bound.above} of {counted(bound.counted, bound.unit)}" for bound in known)
        yield f"{said}: {counts} above it{at_most(known)}{left_out(known)}"


# --- When.


def _course(view: LoadView) -> str:
    """N(t) over the whole time as one line: for each column the highest p95 of the spans in it."""
    if len(view.spans) < 4 or not view.total.max:
        return ""
    per_column = -(-len(view.spans) // (WIDTH - 4))
    columns = [view.spans[at : at + per_column] for at in range(0, len(view.spans), per_column)]
    values = [max((span.p95 for span in column if span.p95 is not None), default=None) for column in columns]
    highest = max((value for value in values if value is not None), default=0)
    drawn = "".join(" " if value is None else _height(value, highest) for value in values)
    step = format_duration(per_column * view.span_ns)
    head = f"N(t): p95 of each {step}, highest column {highest}; blank where nothing was observed"
    begin, end = _instant(view, view.spans[0].start_ns), _instant(view, view.spans[-1].end_ns)
    width = max(len(columns), len(begin) + len(end) + 2)
    return "\n".join([filled(head), f"    {drawn}".rstrip(), f"    {begin}{end:>{width - len(begin)}}"])


def _height(value: int, highest: int) -> str:
    return "·" if not value else _HEIGHTS[-(-value * len(_HEIGHTS) // highest) - 1]


def _heat_map(view: LoadView) -> str:
    """Hour of day × weekday: a shade for the mean in flight, a number for the most. Where there is more than a day."""
    if not view.cells or view.windows[-1][1] - view.windows[0][0] <= _DAY_NS:
        return ""
    largest = max(cell.mean for cell in view.cells)
    highest = max(cell.max for cell in view.cells)
    scale = 10 ** max(0, len(str(highest)) - 2)
    of = {(cell.weekday, cell.hour): cell for cell in view.cells}
    lines = ["    " + "".join(f"{hour:>3}" for hour in range(24))]
    for weekday in sorted({cell.weekday for cell in view.cells}):
        line = _WEEKDAYS[weekday] + " "
        for hour in range(24):
            cell = of.get((weekday, hour))
            line += "   " if cell is None else _shade(cell.mean, largest) + f"{cell.max // scale:>2}"
        lines.append(line.rstrip())
    unit = f" in units of {scale}" if scale > 1 else ""
    head = (
        f"hour × weekday: the most in flight{unit}; shade: mean in flight, up to {largest:.2f};"
        " blank where nothing was observed"
    )
    return "\n".join([filled(head), *lines])


def _shade(mean: float, largest: float) -> str:
    if not mean:
        return "·"
    return _SHADES[min(int(mean / largest * len(_SHADES)), len(_SHADES) - 1)]


def _clock(view: LoadView) -> str:
    if view.zone is None:
        return f"no hours and weekdays: {view.no_calendar}"
    return f"hours and days are those of {view.zone}"


def _instant(view: LoadView, at_ns: int) -> str:
    if view.zero_wall_ns is None or view.zone is None:
        return f"+{format_duration(at_ns)}"
    from zoneinfo import ZoneInfo

    wall_us = (view.zero_wall_ns + at_ns) // 1000
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=wall_us)).astimezone(ZoneInfo(view.zone))
    form = "%H:%M:%S" if view.span_ns < MINUTE_NS else "%H:%M"
    return local.strftime(f"%Y-%m-%d {form}")


# --- JSON.


def document(view: LoadView) -> dict[str, Any]:
    """The contract of DESIGN §9, and beside it what else the report shows. What nobody knows is null, with a reason."""
    return histogram.document(view.total) | {
        "headline": headline(view),
        "operating_point": asdict(view.point),
        "marked": {str(level): what for level, what in view.marked.items()},
        "synthetic": view.synthetic,
        "estimate": view.estimate,
        "origin": view.origin,
        "shaped": view.shaped,
        "windows": [list(window) for window in view.windows],
        "classes": {name: histogram.document(measured) for name, measured in view.classes.items()},
        "reach": [asdict(row) for row in view.reach],
        "seed": view.seed,
        "bounds": [asdict(bound) for bound in view.bounds],
        "zero_wall_ns": view.zero_wall_ns,
        "zone": view.zone,
        "no_calendar": view.no_calendar or None,
        "by_hour": [
            {
                "weekday": cell.weekday,
                "hour": cell.hour,
                "observed_ns": cell.observed_ns,
                "time_ns_at": _keyed(cell.time_ns_at),
                "arrivals_at": _keyed(cell.arrivals_at),
                "mean": cell.mean,
                "max": cell.max,
            }
            for cell in view.cells
        ],
        "days": [
            {
                "day": day.label,
                "weekday": day.weekday,
                "start_ns": day.start_ns,
                "length_ns": day.length_ns,
                **histogram.document(day.measured),
            }
            for day in view.days
        ],
        "spans": [asdict(span) for span in view.spans],
    }


def _keyed(counts: dict[int, int]) -> dict[str, int]:
    return {str(level): count for level, count in counts.items()}
