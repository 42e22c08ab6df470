"""Distributions of token counts and times: quantiles, how sure they are, and two lengths together. Pure numpy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

type Whole = NDArray[np.int64]
type Numbers = Whole | NDArray[np.float64]
type Places = NDArray[np.int32]

QUANTILES = (0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)
_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a whole column holds. Quantiles interpolate linearly between neighbours: p50 of 1, 2 is 1.5."""

    n: int
    sum: int
    mean: float
    std: float | None  # ddof 1; None of a single value
    min: int
    max: int
    quantiles: dict[str, float]  # p1, p5, p10, p25, p50, p75, p90, p95, p99


@dataclass(frozen=True, slots=True)
class Quantile:
    """A nearest-rank quantile, always one of the values, and its standard error on the log scale.

    The error is a sixth of the distance between the order statistics three errors of rank, √(q(1 − q)/m), above and
    below, m the independent values: nearer ones are themselves too unsure in a small sample. None where they lie
    beyond the ends (a median takes ten values, a p90 82), or at 0.
    """

    value: int
    log_error: float | None


@dataclass(frozen=True, slots=True)
class Joint:
    """Prompt and output length of one request, together. Requests that lack one of them are left out."""

    n: int
    pearson: float | None  # None where one of the lengths never varies
    spearman: float | None  # average ranks
    # [prompt from, output from, requests]: cells of powers of two, 0 alone, then 1, 2–3, 4–7 …
    cells: tuple[tuple[int, int, int], ...]


def describe(values: Numbers) -> Distribution | None:
    """None of no values. Sorts a copy."""
    if not len(values):
        return None
    ordered = np.sort(values)
    found = np.quantile(ordered, QUANTILES)
    return Distribution(
        n=len(ordered),
        sum=int(ordered.sum()),
        mean=float(ordered.mean()),
        std=float(ordered.std(ddof=1)) if len(ordered) > 1 else None,
        min=int(ordered[0]),
        max=int(ordered[-1]),
        quantiles={f"p{round(100 * q)}": float(value) for q, value in zip(QUANTILES, found, strict=True)},
    )


def quantile(values: Sequence[int], share: float) -> int | None:
    """The nearest-rank quantile, always one of the values. None of an empty list."""
    if not len(values):
        return None
    return int(np.sort(np.asarray(values))[_rank(share, len(values))])


def estimate(ordered: Numbers, share: float, independent: int) -> Quantile | None:
    """The nearest-rank quantile of ascending values of which `independent` do not lean on others. None of none."""
    n = len(ordered)
    if not n:
        return None
    reach = _ERRORS * math.sqrt(share * (1 - share) / max(1, independent))
    value = int(ordered[_rank(share, n)])
    error = None
    if reach < share < 1 - reach:
        low, high = float(ordered[_rank(share - reach, n)]), float(ordered[_rank(share + reach, n)])
        error = math.log(high / low) / (2 * _ERRORS) if low > 0 else None
    return Quantile(value, error)


def _rank(share: float, n: int) -> int:
    # 0.9 × 10 is 9.000000000000002 in some orders of rounding; a hair below keeps the ninth.
    return min(n - 1, max(0, math.ceil(share * n - 1e-9) - 1))


def together(prompt: Whole, output: Whole) -> Joint | None:
    """Two lengths per request, of the same requests in the same order. None of no requests."""
    if not len(prompt):
        return None
    sides = [coded(values) for values in (prompt, output)]
    values = [distinct.astype(np.float64) for distinct, _ in sides]
    counts = [np.bincount(places) for _, places in sides]
    # The average rank of a value is the middle of the ranks that its copies take.
    ranks = [np.cumsum(count) - (count - 1) / 2 for count in counts]
    powers = [np.frexp(distinct)[1].astype(np.int64) for distinct in values]
    cells = np.zeros(64 * 64, np.int64)
    for a, b in _pieces(sides[0][1], sides[1][1]):
        cells += np.bincount(powers[0][a] * 64 + powers[1][b], minlength=len(cells))
    return Joint(
        n=len(prompt),
        pearson=_correlation(values, counts, sides[0][1], sides[1][1]),
        spearman=_correlation(ranks, counts, sides[0][1], sides[1][1]),
        cells=tuple(
            (_lowest(int(cell) // 64), _lowest(int(cell) % 64), int(cells[cell])) for cell in np.flatnonzero(cells)
        ),
    )


def _correlation(
    values: Sequence[NDArray[np.float64]], counts: Sequence[NDArray[np.int64]], a: Places, b: Places
) -> float | None:
    """Pearson's r of `values[0][a]` and `values[1][b]`, piece by piece. None where a side never varies."""
    n = len(a)
    centred = [value - float(value @ count) / n for value, count in zip(values, counts, strict=True)]
    squares = [float((value * value) @ count) for value, count in zip(centred, counts, strict=True)]
    if any(len(value) < 2 for value in values):
        return None
    product = sum(float(centred[0][x] @ centred[1][y]) for x, y in _pieces(a, b))
    return product / math.sqrt(squares[0] * squares[1])


def _pieces(a: Places, b: Places, size: int = 1 << 20) -> Iterator[tuple[Places, Places]]:
    for start in range(0, len(a), size):
        yield a[start : start + size], b[start : start + size]


def coded(values: Whole) -> tuple[Whole, Places]:
    """The distinct values, ascending, and the position of each value among them. Small ones need no sorting."""
    if len(values) and int(values.min()) >= -1 and int(values.max()) < 1 << 24:
        from_one = values + 1  # −1 stands for unknown
        small = np.flatnonzero(np.bincount(from_one))
        places = np.zeros(int(small[-1]) + 1, np.int32)
        places[small] = np.arange(len(small))
        found = places[from_one]
        small -= 1
        return small, found
    distinct, inverse = np.unique(values, return_inverse=True)
    return distinct, inverse.astype(np.int32)


def _lowest(power: int) -> int:
    return 1 << (power - 1) if power else 0
