"""What the observed time supports: the bound of each share of arrivals, and what "never above c" is worth. Pure.

Requests of one day depend on each other, so days are what is resampled and counted, never requests.

* The share of arrivals at c or more: a bootstrap of whole days (percentiles, 95 %) from ten days on; with fewer, the
  lowest and the highest day; with one day, no bound.
* "Never above c": the exact bound of Clopper and Pearson on the share of days, and of hours, that go above c. With no
  such day among n it is 1 − 0.05^(1/n): 14 clean days say "at most 19 % of days", 336 clean hours "at most 0.89 % of
  hours", if hours were independent. A day or an hour counts if more than half of it was observed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.calendar import Day, Hour
from profiles.concurrency import CROWD, Concurrency

DAYS_TO_RESAMPLE = 10
RESAMPLES = 2000
CONFIDENCE = 0.95
_MOST = 0.5  # of a day or an hour
# Beyond this level reach is listed at 24, 32, 48, 64, 96 and so on.
_LAST_SINGLE_LEVEL = 16

BOOTSTRAP = "bootstrap"
RANGE = "range"
ONE_DAY = "one day"


@dataclass(frozen=True, slots=True)
class Reach:
    """The share of arrivals at c or more, and how sure that is."""

    c: int
    share: float
    low: float | None  # of 95 %, or the lowest day; None where there is no bound
    high: float | None
    how: str  # BOOTSTRAP, RANGE or ONE_DAY
    days: int  # days with arrivals, which it rests on


@dataclass(frozen=True, slots=True)
class Bound:
    """How often the load goes above c, by days or by hours."""

    c: int
    unit: str  # "day" or "hour"
    counted: int  # days or hours of which more than half was observed
    left_out: int  # those of which less was observed
    above: int  # of the counted ones, how many went above c
    share_high: float | None  # exact upper bound of their share (95 %, one-sided); None where none is counted


def read_reach(total: Concurrency, days: Sequence[Day], seed: int = 1) -> tuple[Reach, ...]:
    """A row for each level that is listed, from 1 to the maximum. Empty without arrivals."""
    levels = list(_listed(max(total.arrivals_at, default=0)))
    with_arrivals = [day.measured for day in days if day.measured.requests]
    if not levels:
        return ()
    at_least = np.array(
        [[sum(n for c, n in day.arrivals_at.items() if c >= level) for level in levels] for day in with_arrivals]
    )
    how, low, high = _bounds(at_least, seed)
    return tuple(
        Reach(
            c=level,
            share=total.reach(level) or 0.0,
            low=None if low is None else float(low[at]),
            high=None if high is None else float(high[at]),
            how=how,
            days=len(with_arrivals),
        )
        for at, level in enumerate(levels)
    )


type _Shares = NDArray[np.float64]


def _bounds(at_least: NDArray[np.int64], seed: int) -> tuple[str, _Shares | None, _Shares | None]:
    """Bounds of each level's share. `at_least` has a row for each day; its first column, c ≥ 1, is all arrivals."""
    days = len(at_least)
    if days < 2:
        return ONE_DAY, None, None
    if days < DAYS_TO_RESAMPLE:
        shares = at_least / at_least[:, :1]
        return RANGE, shares.min(axis=0), shares.max(axis=0)
    drawn = np.random.default_rng(seed).multinomial(days, np.full(days, 1 / days), size=RESAMPLES) @ at_least
    low, high = np.quantile(drawn / drawn[:, :1], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return BOOTSTRAP, low, high


def _listed(highest: int) -> Iterable[int]:
    """Every level up to 16, then two per doubling, and the highest."""
    yield from range(1, min(highest, _LAST_SINGLE_LEVEL) + 1)
    level = _LAST_SINGLE_LEVEL
    while level < highest:
        for each in (level * 3 // 2, level * 2):
            if each < highest:
                yield each
        level *= 2
    if highest > _LAST_SINGLE_LEVEL:
        yield highest


def read_bounds(highest: int, days: Sequence[Day], hours: Sequence[Hour]) -> tuple[Bound, ...]:
    """Bounds of "never above": for the highest level that was seen and for c = 8, by days and by hours."""
    by_day = [(day.measured.observed_ns, day.length_ns, day.measured.max) for day in days]
    by_hour = [(hour.observed_ns, hour.length_ns, hour.max) for hour in hours]
    return tuple(
        _bound(c, unit, units) for c in sorted({highest, CROWD}) for unit, units in (("day", by_day), ("hour", by_hour))
    )


def _bound(c: int, unit: str, units: Sequence[tuple[int, int, int]]) -> Bound:
    counted = [most for observed_ns, length_ns, most in units if observed_ns > _MOST * length_ns]
    above = sum(most > c for most in counted)
    share_high = share_at_most(above, len(counted)) if counted else None
    return Bound(c, unit, len(counted), len(units) - len(counted), above, share_high)


def share_at_most(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The exact one-sided upper bound of Clopper and Pearson: the largest share p for which as few events as these in
    so many trials still have a chance of 1 − confidence."""
    if events == 0:
        return float(1 - (1 - confidence) ** (1 / trials))
    if events == trials:
        return 1.0
    from scipy.special import betaincinv

    return float(betaincinv(events + 1, trials - events, confidence))
