"""Lines of a terminal: at most 80 columns, folded so that no number is parted from its unit."""

import re
import textwrap
from collections.abc import Sequence
from typing import Final

from analysis.guards import relative
from analysis.stats import Estimate
from profiles.units import format_change

WIDTH: Final = 80
CELL: Final = 20  # the width of a column of changes
COLUMNS_SHOWN: Final = 2  # so many of them fit beside an arm and its verdict
_SHARE = re.compile(r"(c[=≥]\d+) (?=\d)")  # `c=12 60 %`
# Spaces before a unit, beside an arrow, inside `c = 3` and `10 h 05 min`.
_TIGHT = re.compile(
    r" (?=%|→|(?:ns|µs|ms|s|min|h|points)\b)|(?<=→) |(?<=\bc) (?=[=≥] \d)|(?<=\bc [=≥]) (?=\d)"
    r"|(?<=\bh) (?=\d\d\b)|(?<=\bmin) (?=\d\d s\b)"
)


def bullet(text: str) -> list[str]:
    """A point below an arm."""
    return fold(text, "  - ", "    ")


def labelled(label: str, text: str) -> list[str]:
    """A line of the head: its label stands in the first column."""
    return fold(text, f"{label:<8} ", " " * 9)


def wrap(text: str, indent: str = "") -> list[str]:
    """A paragraph, its further lines two columns deeper. At least one line."""
    return fold(text, indent, indent + "  ") or [""]


def fold(text: str, first: str, rest: str) -> list[str]:
    """Lines of at most 80 columns that part no number from its unit."""
    text = _SHARE.sub("\\1\u00a0", _TIGHT.sub("\u00a0", text))
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def listed(names: Sequence[str]) -> str:
    """`json, rag and code`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def format_estimate(estimate: Estimate | None) -> str:
    """`−4.8 % [−6.0 %, −3.7 %]`, or why there is no number."""
    change, low, high = relative(estimate)
    if change is None:
        return "not measured"
    if low is None or high is None:
        return f"{format_change(change)} [no interval]"
    return f"{format_change(change)} [{format_change(low)}, {format_change(high)}]"


def format_cell(estimate: Estimate | None) -> str:
    """`−15.9 [−16.8, −15.0]` in per cent, in as few digits as keep it inside its column."""
    change, low, high = relative(estimate)
    if change is None:
        return "not measured"
    for digits in (1, 0):
        text = _percents(change, low, high, digits)
        if len(text) <= CELL:
            return text
    return f"×{1 + change:.2g}, see --json"


def _percents(change: float, low: float | None, high: float | None, digits: int) -> str:
    def show(value: float) -> str:
        return f"{round(100 * value, digits) + 0.0:+.{digits}f}".replace("-", "−")

    if low is None or high is None:
        return f"{show(change)} [none]"
    return f"{show(change)} [{show(low)}, {show(high)}]"
