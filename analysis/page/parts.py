"""What a page is made of: cells with their exact value, tables, figures, sections. `page` puts them into HTML."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from analysis.guards import relative as changes
from analysis.page.charts.panel import Panel
from analysis.stats import Estimate
from profiles.units import format_change, format_duration, format_percent

NONE: Final = "–"
type Words = Callable[[str], str]  # foreign or composed text as this page may show it


@dataclass(frozen=True, slots=True)
class Cell:
    """What a reader sees, and the number behind it exactly; None where it is words."""

    shown: str
    value: float | int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below a head. The first cell of each row names it."""

    id: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def numeric(self) -> list[bool]:
        """Column by column: whether it holds numbers, which stand below each other by their last digit."""
        return [any(row[at].value is not None for row in self.rows) for at in range(len(self.head))]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: what it shows, how to read it, its pictures and the numbers below them.

    `why` says why there is nothing to draw.
    """

    id: str
    heading: str
    how: str
    panels: Sequence[Panel] = ()
    tables: Sequence[Table] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """A named list of sentences or log lines; `code` lines are shown as they are."""

    title: str
    rows: Sequence[str]
    code: bool = False


@dataclass(frozen=True, slots=True)
class Details:
    """All that the report says about one arm, folded."""

    id: str
    title: str
    lines: Sequence[Lines] = ()
    tables: Sequence[Table] = field(default=())


def text(shown: str) -> Cell:
    """A cell of words."""
    return Cell(shown or NONE)


def change(value: float | None) -> Cell:
    """A relative change, or a dash."""
    return Cell(NONE) if value is None else Cell(_change(value), value)


def share(value: float | None, digits: int = 1) -> Cell:
    """A share in per cent, or a dash."""
    return Cell(NONE) if value is None else Cell(format_percent(value, digits), value)


def number(value: float | int | None, shown: str = "") -> Cell:
    """A number as it stands, or a dash."""
    return Cell(NONE) if value is None else Cell(shown or f"{value:.3g}", value)


def span(ns: float | None) -> Cell:
    """A duration whose value is in nanoseconds, or a dash."""
    return Cell(NONE) if ns is None else Cell(format_duration(ns), ns)


def estimate_cells(estimate: Estimate | None) -> list[Cell]:
    """Change, low and high, as verdict.json has them."""
    return [change(value) for value in changes(estimate)]


def interval(estimate: Estimate | None) -> str:
    """`[−6.0 %, −3.7 %]`, or why there is none."""
    _, low, high = changes(estimate)
    if low is None or high is None:
        return "no interval"
    return f"[{_change(low)}, {_change(high)}]"


def _change(value: float) -> str:
    """Two boots can give an interval that no person reads."""
    return format_change(value) if value < 99 else f"×{1 + value:.1e}" if math.isfinite(value) else "∞"
