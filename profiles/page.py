"""The concurrency report as one HTML page that loads nothing, and its first chart as a picture for a README.

The page holds the charts as SVG, and under them the numbers exactly: each is a `<data value="…">` element, whose value
is the integer (nanoseconds, requests) or the unrounded share. Equal views give equal bytes.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from profiles.caveats import caveats
from profiles.charts.classes import ALL, class_rows, classes, level_groups
from profiles.charts.course import course, drawn_gaps, gaps
from profiles.charts.shares import row_name, shares, small_percent
from profiles.charts.style import COLOURS, Spec, colour, complete, page_templates, plain, render, thousands
from profiles.charts.weekly import WEEKDAYS, short_number, weekly
from profiles.errors import UsageError
from profiles.files import tool_version, write_whole
from profiles.histogram import counted, format_levels, format_span, level_rows
from profiles.load_report import headline
from profiles.units import SECOND_NS, format_duration
from profiles.view import LoadView

FORMAT: Final = "firsttoken/concurrency-page"
VERSION: Final = 1
_TEMPLATES: Final = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure of the page. `svg` is "" where there is nothing to draw, and `why` says so."""

    heading: str
    svg: str
    how: str  # one line that says how to read it
    why: str = ""


def write_page(view: LoadView, path: Path, *, title: str, inputs: Sequence[tuple[str, str]] = ()) -> None:
    """Write the page, 0600. `inputs` are the (name, sha256) of what the view was read from.

    Raises UsageError where the file cannot be written.
    """
    _write(path, render_page(view, title=title, inputs=inputs))


def write_picture(view: LoadView, path: Path) -> None:
    """Write the chart of shares alone as an SVG file, 0600. Raises UsageError where it cannot be written."""
    _write(path, render_picture(view))


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None


def render_picture(view: LoadView) -> str:
    """The chart of shares with the sentence above it, on a white ground."""
    said = headline(view)
    reads = "Time by how many are in flight; arrivals by c, the concurrency that a request meets, itself included."
    title = {"text": textwrap.wrap(_bound(said), 88, break_on_hyphens=False), "subtitle": reads}
    spec = shares(view) | {"title": title}
    return render(complete(spec, colour("ground")), said) + "\n"


def render_page(view: LoadView, *, title: str, inputs: Sequence[tuple[str, str]] = ()) -> str:
    """The page as text."""
    environment = page_templates(_TEMPLATES)
    environment.filters |= {
        "duration": format_duration,
        "percent": small_percent,
        "levels": format_levels,
        "plain": plain,
    }
    environment.filters["thousands"] = thousands
    return environment.get_template("concurrency.html.j2").render(
        view=view,
        title=title,
        headline=_bound(headline(view)),
        facts=_facts(view),
        charts=_charts(view),
        levels=_levels(view),
        groups=level_groups(view.total.max),
        joint=[(name, held) for name, held in view.classes.items() if held.requests],
        weekdays=WEEKDAYS,
        caveats=caveats(view),
        colours=COLOURS,
        inputs=inputs,
        tool=tool_version(),
        format=f"{FORMAT} {VERSION}",
    )


def _bound(text: str) -> str:
    """`97 %` and `c = 1` do not break over two lines."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%").replace("c = ", "c\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _facts(view: LoadView) -> list[tuple[str, str, str]]:
    """Label, number, and what stands under it."""
    total, point = view.total, view.point
    windows = "1 window" if len(view.windows) == 1 else f"{len(view.windows)} windows"
    reached = f"{small_percent(point.reached)} of arrivals" if point.levels else "no arrivals"
    return [
        ("operating point", f"c = {format_levels(point.levels)}" if point.levels else "none", reached),
        ("at most in flight", f"{total.max}", "of all that was observed"),
        ("mean in flight", f"{total.mean:.2f}", "over the wall time"),
        (
            "requests",
            thousands(total.requests),
            "in 1 class" if len(view.classes) == 1 else f"in {len(view.classes)} classes",
        ),
        ("observed", format_span(total.observed_ns), f"in {windows}"),
    ]


def _charts(view: LoadView) -> list[Chart]:
    first, last = _instant(view, view.windows[0][0]), _instant(view, view.windows[-1][1])
    point = view.point
    lost = len(gaps(view.windows)) - len(drawn_gaps(view.windows))
    narrow = f" {counted(lost, 'gap')} too narrow to be seen." if lost else ""
    steps = f"in steps of {format_duration(view.span_ns)}"
    held = (
        f"The shaded rows hold {small_percent(point.reached)} of the arrivals: measure there." if point.levels else ""
    )
    marks = " ◆ the experiment decides here, ◇ it measures a synthetic load." if view.marked else ""
    return [
        _chart(
            "What share lies at each c",
            shares(view),
            _shares_alt(view),
            "Time counts how many are in flight; an arrival counts itself. Busy time leaves out idle time."
            f" Users feel the arrivals, so verdicts weigh by them. {held}{marks}",
        ),
        _chart(
            "How many were in flight, over time",
            course(view),
            f"Requests in flight from {first} to {last}: at most {view.total.max}, {view.total.mean:.2f} on average.",
            f"From {first} to {last}, {steps}. Grey ground was not observed.{narrow}",
        ),
        _chart(
            "When it is busy",
            weekly(view),
            _weekly_alt(view),
            "Mean in flight in each hour of the week. A hatched hour was not observed, which is not the same as 0.",
            f"No hours and weekdays: {view.no_calendar}.",
        ),
        _chart(
            "Who meets whom",
            classes(view),
            _classes_alt(view),
            "Each bar is all arrivals of one class, cut at the c that they meet: all requests in flight, of any class."
            " To the right: how many, and their share of all.",
            "No request arrived.",
        ),
    ]


def _chart(heading: str, spec: Spec | None, alt: str, how: str, why: str = "") -> Chart:
    from markupsafe import Markup

    if spec is None:
        return Chart(heading, "", how, why)
    # In HTML the element needs no namespace, and a page without one holds no address at all.
    svg = render(complete(spec), alt).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    return Chart(heading, Markup(svg), how)


def _shares_alt(view: LoadView) -> str:
    arrivals = view.total.share_arrivals
    rows = [(row_name(row), sum(arrivals.get(c, 0.0) for c in row)) for row in level_rows(view.total.max)[1:]]
    listed = ", ".join(f"{small_percent(share)} at {name}" for name, share in rows if share)
    return f"{headline(view)} Arrivals: {listed or 'none'}."


def _weekly_alt(view: LoadView) -> str:
    if not view.cells:
        return ""
    busiest = max(view.cells, key=lambda cell: cell.mean)
    missing = 7 * 24 - len(view.cells)
    return (
        f"Mean in flight by hour and weekday. Busiest: {WEEKDAYS[busiest.weekday]} {busiest.hour:02d}:00,"
        f" {short_number(busiest.mean)} in flight. {missing} of 168 hours were not observed."
    )


def _classes_alt(view: LoadView) -> str:
    rows = [(name, held.get(1, 0) / sum(held.values())) for name, held in class_rows(view) if name != ALL]
    return "Share of arrivals that find nobody else: " + ", ".join(
        f"{name} {small_percent(share)}" for name, share in rows
    )


def _levels(view: LoadView) -> list[dict[str, Any]]:
    """Every level with time or arrivals, and every marked one, exactly."""
    total = view.total
    levels = sorted({*total.time_ns_at, *total.arrivals_at, *view.marked})
    return [
        {
            "c": c,
            "time_ns": total.time_ns_at.get(c, 0),
            "wall": total.share_wall.get(c, 0.0),
            "busy": total.share_busy.get(c, 0.0) if c else None,
            "arrivals": total.arrivals_at.get(c, 0) if c else None,
            "share": total.share_arrivals.get(c, 0.0) if c else None,
            "reach": total.reach(c) if c else None,
            "observed": c in view.point.levels,
            "marked": view.marked.get(c, ""),
        }
        for c in levels
    ]


def _instant(view: LoadView, at_ns: int) -> str:
    """`Mon 16 Nov 2026, 09:30`, or the time since the zero where nobody knows the wall clock."""
    if view.zone is None or view.zero_wall_ns is None:
        return f"{format_duration(at_ns)} after the start" if at_ns else "the start"
    moment = datetime.fromtimestamp((view.zero_wall_ns + at_ns) // SECOND_NS, UTC).astimezone(ZoneInfo(view.zone))
    return f"{moment:%a} {moment.day} {moment:%b %Y, %H:%M}"
