"""What others do with the same numbers. None of it decides in the product; the reference compares them with it.

All but `fieller` work on means of log latency, one per boot; `alpha` is one-sided, as everywhere here.
"""

import math
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
from scipy import special


def welch(candidate: Sequence[float], base: Sequence[float], alpha: float) -> tuple[float, float, float]:
    """Interval of the difference of two independent groups of boots, and its degrees of freedom. Leaves out blocks."""
    sides = [np.asarray(side, dtype=float) for side in (candidate, base)]
    parts = [float(side.var(ddof=1)) / len(side) for side in sides]
    df = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    middle = float(sides[0].mean() - sides[1].mean())
    half_width = float(special.stdtrit(df, 1 - alpha)) * math.sqrt(sum(parts))
    return middle - half_width, middle + half_width, df


def sign_flip_p(differences: Sequence[float]) -> float:
    """Exact two-sided p over all signs of the block differences: never below 2 / 2^R."""
    sizes = np.asarray(differences, dtype=float)
    means = np.array([float(np.dot(signs, sizes)) for signs in product((-1.0, 1.0), repeat=len(sizes))])
    return float(np.mean(np.abs(means) >= abs(float(sizes.sum())) - 1e-12))


def permutation_p(candidate: Sequence[float], base: Sequence[float]) -> float:
    """Exact two-sided p over all ways to deal the boots into two groups: never below 2 / C(2R, R)."""
    values = np.asarray([*candidate, *base], dtype=float)
    size, whole = len(candidate), float(values.sum())

    def distance(total: float) -> float:
        return abs(total / size - (whole - total) / (len(values) - size))

    seen = distance(float(values[:size].sum()))
    dealt = [distance(float(values[list(chosen)].sum())) for chosen in combinations(range(len(values)), size)]
    return sum(other >= seen - 1e-12 for other in dealt) / len(dealt)


def fieller(candidate: Sequence[float], base: Sequence[float], alpha: float) -> tuple[float, float, float]:
    """Ratio of two means and its interval after Kalibera and Jones: boots paired by nothing, arithmetic means.

    Raises ValueError where the base's mean is not told from 0.
    """
    above, below = (np.asarray(side, dtype=float) for side in (candidate, base))
    t = float(special.stdtrit(min(len(above), len(below)) - 1, 1 - alpha))
    top, bottom = float(above.mean()), float(below.mean())
    top_part = t**2 * float(above.var(ddof=1)) / len(above)
    bottom_part = t**2 * float(below.var(ddof=1)) / len(below)
    whole = bottom**2 - bottom_part
    if whole <= 0:
        raise ValueError("the mean of the base is not told from 0, so no ratio has an interval")
    root = math.sqrt((top * bottom) ** 2 - whole * (top**2 - top_part))
    return top / bottom, (top * bottom - root) / whole, (top * bottom + root) / whole


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p of a family, step down: the smallest times K, the next times K−1, and never falling."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, at in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * p_values[at]))
        adjusted[at] = highest
    return adjusted


def quantile_interval(values: Sequence[float], share: float, alpha: float) -> tuple[float, float]:
    """Distribution-free interval of a quantile between two order statistics, each tail at most `alpha`.

    ±inf where so few values have none: that is what the least counts of a quantile guard stand for.
    """
    ordered = sorted(values)
    count = len(ordered)
    below = [float(special.bdtr(events, count, share)) for events in range(count + 1)]  # P(at most so many lie below)
    low = max((place for place in range(1, count + 1) if below[place - 1] <= alpha), default=0)
    high = min((place for place in range(1, count + 1) if 1 - below[place - 1] <= alpha), default=0)
    return (ordered[low - 1] if low else -math.inf, ordered[high - 1] if high else math.inf)


def least_requests(share: float, alpha: float) -> int:
    """The fewest values whose largest lies above a quantile but for `alpha`: n with shareⁿ ≤ alpha."""
    return math.ceil(math.log(alpha) / math.log(share) - 1e-12)
