"""Lines of a terminal: at most 80 columns, folded so that no number is parted from its unit."""

import textwrap
from typing import Final

from analysis.guards import relative
from analysis.stats import Estimate
from profiles.units import format_change

WIDTH: Final = 80


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
    for tight in (" %", " ms", " → "):
        text = text.replace(tight, tight.replace(" ", "\u00a0"))
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest)
    return [line.replace("\u00a0", " ") for line in lines]


def format_estimate(estimate: Estimate | None) -> str:
    """`−4.8 % [−6.0 %, −3.7 %]`, or why there is no number."""
    change, low, high = relative(estimate)
    if change is None:
        return "not measured"
    if low is None or high is None:
        return f"{format_change(change)} [no interval]"
    return f"{format_change(change)} [{format_change(low)}, {format_change(high)}]"
