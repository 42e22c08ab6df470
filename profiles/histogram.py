"""Concurrency as text for an 80-column terminal, and as the contract of `concurrency --json`.

The order is that of the questions: what to do, the table, the operating point, and what "never above" rests on. The
whole report, with classes, hours and days, is in `load_report`.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profiles.concurrency import CROWD, Concurrency, OperatingPoint
from profiles.units import HOUR_NS, format_duration, format_percent

WIDTH = 80
# Beyond this level rows stand for 17–32, 33–64 and so on: a screen holds the whole table.
_LAST_SINGLE_LEVEL = 16
_LISTED_LEVELS = 8
_NUMBER = 9  # "  100.0 % "
_EIGHTHS = " ▏▎▍▌▋▊▉"


def render(measured: Concurrency, windows: int = 1) -> str:
    """The whole text, without a final newline. `windows` is how many windows the observed time is made of."""
    paragraphs = [
        filled(headline(measured)),
        table(measured),
        "\n".join(filled(line) for line in _footer(measured, windows)),
    ]
    return "\n\n".join(paragraphs)


def document(measured: Concurrency) -> dict[str, Any]:
    """The contract of `concurrency --json` (DESIGN §9): every level up to the maximum has its key.

    The share maps are empty where their whole is zero.
    """
    times = range(measured.max + 1)
    points = range(1, measured.max + 1)
    return {
        "observed_ns": measured.observed_ns,
        "time_ns_at": _dense(measured.time_ns_at, times, 0),
        "share_wall": _dense(measured.share_wall, times, 0.0),
        "share_busy": _dense(measured.share_busy, points, 0.0) if measured.busy_ns else {},
        "arrivals_at": _dense(measured.arrivals_at, points, 0),
        "share_arrivals": _dense(measured.share_arrivals, points, 0.0) if measured.requests else {},
        "mean": measured.mean,
        "max": measured.max,
        "requests": measured.requests,
    }


def headline(measured: Concurrency, point: OperatingPoint | None = None) -> str:
    """What to do, in one plain sentence. `point` is the operating point, where it has another cover than usual."""
    span = format_span(measured.observed_ns)
    point = measured.operating_point() if point is None else point
    if not point.levels:
        return f"No request arrived in {span}: there is nothing to measure at."
    levels = format_levels(point.levels)
    share = _floor_percent(point.reached)
    return f"{share} of requests arrive at c = {levels}; {_crowd(measured)} in {span}: measure TTFT at c = {levels}."


def _crowd(measured: Concurrency) -> str:
    if measured.max <= CROWD:
        return f"above {CROWD} never"
    share = measured.reach(CROWD + 1)
    if not share:  # they came before their window
        return f"none arrives above {CROWD}, at most {measured.max} in flight"
    return f"{format_share(share)} above {CROWD}, at most {measured.max}"


def format_span(observed_ns: int) -> str:
    """Observed time for people: `14 days`, `2.5 days`, below two days `2 h 10 min`."""
    days = observed_ns / (24 * HOUR_NS)
    return f"{days:.1f}".removesuffix(".0") + " days" if days >= 1.95 else format_duration(observed_ns)


def format_share(share: float) -> str:
    """A share as a percentage in which what is rare is not nothing: `12.3 %`, `<0.1 %`."""
    return "<0.1 %" if 0 < share < 0.0005 else format_percent(share)


def format_levels(levels: Sequence[int]) -> str:
    """Levels for people: `2`, `1–3` where they follow on each other, else `1, 3`, of many `34 levels of 1–40`."""
    if len(levels) > 1 and levels[-1] - levels[0] == len(levels) - 1:
        return f"{levels[0]}–{levels[-1]}"
    if len(levels) > _LISTED_LEVELS:
        return f"{len(levels)} levels of {levels[0]}–{levels[-1]}"
    return ", ".join(map(str, levels))


def format_point(point: OperatingPoint) -> str:
    """`c = 1 (62.5 %), 2 (37.5 %)`. Of a long list the heaviest say enough."""
    heaviest = sorted(sorted(point.levels, key=lambda c: -point.weights[c])[:_LISTED_LEVELS])
    listed = ", ".join(f"{c} ({format_share(point.weights[c])})" for c in heaviest)
    more = len(point.levels) - len(heaviest)
    return f"c = {listed}" + (f" and {more} more up to {point.levels[-1]}" if more else "")


def bar(share: float, columns: int) -> str:
    """A bar in eighths of a column. A share above 0 is never invisible."""
    eighths = round(share * columns * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def table(measured: Concurrency, marks: Mapping[int, str] | None = None) -> str:
    """Shares of wall time, busy time and arrivals side by side, each with its bar; a column's largest share fills it.

    `marks` are signs of one column beside some levels.
    """
    rows = level_rows(measured.max)
    names = [format_levels(levels) for levels in rows]
    label = max(4, *map(len, names))
    columns = (WIDTH - label - 2 - 3 * _NUMBER) // 3
    shares = [
        [sum(part.get(level, 0.0) for level in levels) for levels in rows]
        for part in (measured.share_wall, measured.share_busy, measured.share_arrivals)
    ]
    head = "".join(f"{name:<{_NUMBER + columns}}" for name in ("  wall time", "  busy time", "  arrivals"))
    lines = [f"{'c':>{label}}{head}".rstrip()]
    for at, (levels, name) in enumerate(zip(rows, names, strict=True)):
        cells = [
            _cell(part[at], max(part), columns) if levels[0] or not nth else " " * (_NUMBER + columns)
            for nth, part in enumerate(shares)
        ]
        mark = next((marks[level] for level in levels if level in marks), "") if marks else ""
        lines.append(f"{name:>{label}}{''.join(cells)} {mark}".rstrip())
    return "\n".join(lines)


def _cell(share: float, largest: float, columns: int) -> str:
    drawn = bar(share / largest, columns - 1) if largest else ""
    return f"{format_share(share):>{_NUMBER - 1}} {drawn:<{columns}}"


def level_rows(highest: int) -> list[list[int]]:
    """The levels of each row: single ones first, then ranges that double."""
    rows = [[c] for c in range(min(highest, _LAST_SINGLE_LEVEL) + 1)]
    first = _LAST_SINGLE_LEVEL + 1
    while first <= highest:
        last = min(2 * (first - 1), highest)
        rows.append(list(range(first, last + 1)))
        first = last + 1
    return rows


def _footer(measured: Concurrency, windows: int) -> Iterable[str]:
    point = measured.operating_point()
    if point.levels:
        yield f"observed operating point: {format_point(point)}"
    span = format_duration(measured.observed_ns)
    yield (
        f"mean {measured.mean:.2f} in flight over the wall time; {counted(measured.requests, 'request')} in {span}"
        f" ({counted(windows, 'window')})"
    )
    yield f"never above {measured.max} in {span} observed; {_what_it_tells(measured.observed_ns)}"


def _what_it_tells(observed_ns: int) -> str:
    """The exact bound of zero events: with n clean hours the share of worse ones is at most 1 − 0.05^(1/n) (95 %)."""
    hours = observed_ns // HOUR_NS
    if hours < 2:
        return "so little time tells nothing about other hours"
    bound = 1 - 0.05 ** (1 / hours)
    return f"at most {format_percent(bound)} of hours go higher (95 %, if hours were independent)"


def _dense[T](values: Mapping[int, T], levels: Iterable[int], missing: T) -> dict[str, T]:
    return {str(level): values.get(level, missing) for level in levels}


def counted(count: int, noun: str) -> str:
    """`1 request`, `2 requests`, `3 classes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def _floor_percent(share: float) -> str:
    """Rounded down, so that 100 % means all. The small rounding first undoes 0.29 × 100 = 28.999…"""
    return f"{math.floor(round(100 * share, 6))} %"


def filled(text: str) -> str:
    """A paragraph of WIDTH columns."""
    return unbound(textwrap.fill(bound(text), WIDTH, break_on_hyphens=False, subsequent_indent="  "))


_TOGETHER = re.compile(r"(?<=\d) (?=%|\(|[a-zµ]{1,3}\b)|(?<=\bc) (?=[=≥])|(?<=[=≥]) (?=\d)")


def bound(text: str) -> str:
    """The same text with blanks that do not break in `97 %`, `c = 1`, `3 (4.6 %)` and `9 h`: a line that ends in the
    middle of one is hard to read."""
    return _TOGETHER.sub("\N{NO-BREAK SPACE}", text)


def unbound(text: str) -> str:
    """The text of `bound` as it was."""
    return text.replace("\N{NO-BREAK SPACE}", " ")
