"""The share of some classes in the mix from which on an arm gains on the whole mix, with its interval. Pure.

With a share p of requests in the gaining classes the mix effect of block k is v_k(p) = p·g_k + (1−p)·l_k: g_k over the
gaining classes, l_k over the others, each weighted as recorded. The estimate is the share at which the mean of v(p)
crosses the line. The interval is its inversion: every share at which the block t interval of v(p) holds the line
(Fieller's way for a ratio of two means). That set need not be one piece; the interval covers all of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from analysis import stats

_GRID: Final = np.linspace(0.0, 1.0, 201)
_HALVINGS: Final = 40


@dataclass(frozen=True, slots=True)
class MixLine:
    """`share` is None where the arm gains at no share, and 0 where it gains at any. `low` and `high` lie in 0..1; both
    are None where no share is in doubt, or where there are too few blocks for an interval."""

    share: float | None
    low: float | None
    high: float | None


def mix_line(
    gaining: Sequence[float], others: Sequence[float], line_at: Callable[[float], float], alpha: float
) -> MixLine:
    """Where p·g + (1−p)·l falls below a line for good. `line_at`: share → the line there, which may be −inf.

    `gaining` and `others` hold a log ratio per block, lower is better. `alpha` is one-sided.
    """
    blocks = len(gaining)
    ours, theirs = np.asarray(gaining), np.asarray(others)

    def excess(share: float) -> float:
        return float((share * ours + (1 - share) * theirs).mean()) - line_at(share)

    def held(share: float) -> bool:
        values = share * ours + (1 - share) * theirs
        half = stats.critical_t(blocks, alpha) * float(values.std(ddof=1)) / math.sqrt(blocks)
        return abs(excess(share)) <= half

    grid = [float(share) for share in _GRID]
    above = [index for index, share in enumerate(grid) if excess(share) >= 0]
    found: float | None
    if not above:
        found = 0.0
    elif above[-1] == len(grid) - 1:
        found = None
    else:
        found = _edge(grid[above[-1]], grid[above[-1] + 1], lambda share: excess(share) >= 0)
    if blocks < 2:
        return MixLine(found, None, None)
    points = sorted({*grid, *([found] if found is not None else [])})
    inside = [index for index, share in enumerate(points) if held(share)]
    if not inside:
        return MixLine(found, found, found)
    first, last = inside[0], inside[-1]
    low = points[0] if first == 0 else _edge(points[first], points[first - 1], held)
    high = points[-1] if last == len(points) - 1 else _edge(points[last], points[last + 1], held)
    return MixLine(found, *((low, high) if found is None else (min(low, found), max(high, found))))


def _edge(inside: float, outside: float, holds: Callable[[float], bool]) -> float:
    """Where `holds` ends between a share at which it is true and one at which it is not."""
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside
