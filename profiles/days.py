"""Drift between days: each observed day against all the others. The median of the others comes from counts per value,
so that a year of days costs one pass over the rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiles.arrivals import Instants, place
from profiles.character import Day
from profiles.lengths import coded
from profiles.units import HOUR_NS

DAY_NS = 24 * HOUR_NS


def days_of(
    load: pl.LazyFrame, arrival_ns: Instants, observed: Sequence[tuple[int, int]], zero_wall_ns: int | None
) -> Iterator[Day]:
    zero_ns = zero_wall_ns or 0
    # A night's hour of a day is not that day: it takes part if more than half of it was observed.
    seen_ns = {day: ns for day, ns in _observed_per_day(observed, zero_ns).items() if 2 * ns > DAY_NS}
    if len(seen_ns) < 2:
        return
    first = min(seen_ns)
    inside = place(arrival_ns, observed) >= 0
    days = list(range(first, max(seen_ns) + 1))
    starts = np.array([day * DAY_NS - zero_ns for day in [*days, days[-1] + 1]], np.int64)
    bounds = np.searchsorted(arrival_ns[inside], starts)
    counts = np.diff(bounds)
    prompts = _day_medians(load, "prompt_tokens", inside, bounds)
    outputs = _day_medians(load, "output_tokens", inside, bounds)
    names = load.select(pl.col("workload").unique()).collect().to_series().to_list()
    codes = class_codes(load, names)[inside]
    mixes = np.array([np.bincount(codes[a:b], minlength=len(names)) for a, b in pairwise(bounds)])
    whole, total, total_ns = mixes.sum(axis=0), int(counts.sum()), sum(seen_ns.values())
    for at, day in enumerate(days):
        if day not in seen_ns:
            continue
        count, span_ns = int(counts[at]), seen_ns[day]
        rate = count / span_ns
        other_ns, others = total_ns - span_ns, total - count
        (prompt, prompt_rest), (output, output_rest) = prompts[at], outputs[at]
        yield Day(
            day=day - first,
            date=None if zero_wall_ns is None else datetime.fromtimestamp(day * 86_400, UTC).date().isoformat(),
            requests=count,
            observed_ns=span_ns,
            rate_per_s=rate * 1e9,
            rate_change=_change(rate, others / other_ns if other_ns else None),
            prompt_p50=prompt,
            prompt_p50_change=_change(prompt, prompt_rest),
            output_p50=output,
            output_p50_change=_change(output, output_rest),
            class_mix_distance=distance(mixes[at], whole - mixes[at]),
        )


def _observed_per_day(observed: Iterable[tuple[int, int]], zero_ns: int) -> dict[int, int]:
    """Observed time by day number; days without any have no key."""
    seen: dict[int, int] = {}
    for opened, close in observed:
        at, end = opened + zero_ns, close + zero_ns
        while at < end:
            day = at // DAY_NS
            until = min(end, (day + 1) * DAY_NS)
            seen[day] = seen.get(day, 0) + until - at
            at = until
    return seen


def _day_medians(
    load: pl.LazyFrame, name: str, inside: NDArray[np.bool_], bounds: Instants
) -> list[tuple[int | None, int | None]]:
    """The nearest-rank median of each day and of all the others, by counts per value."""
    values = load.select(pl.col(name).fill_null(-1)).collect().to_series().to_numpy()[inside]
    distinct, codes = coded(values)
    first = int(np.searchsorted(distinct, 0))  # those before it are unknown

    def median(counts: Instants) -> int | None:
        n = int(counts.sum())
        return int(distinct[first + np.searchsorted(np.cumsum(counts), (n + 1) // 2)]) if n else None

    whole = np.bincount(codes, minlength=len(distinct))[first:]
    medians = []
    for start, stop in pairwise(bounds):
        counts = np.bincount(codes[start:stop], minlength=len(distinct))[first:]
        medians.append((median(counts), median(whole - counts)))
    return medians


def class_codes(load: pl.LazyFrame, names: Sequence[str | None]) -> NDArray[np.int32]:
    """The position of each request's class in `names`."""
    table = pl.LazyFrame({"workload": pl.Series(names, dtype=pl.String), "code": range(len(names))})
    coded = load.select("workload").join(
        table.with_columns(pl.col("code").cast(pl.Int32)), on="workload", how="left", nulls_equal=True,
        maintain_order="left",
    )  # fmt: skip
    return coded.select("code").collect().to_series().to_numpy()


def distance(a: NDArray[np.int64], b: NDArray[np.int64]) -> float | None:
    """Total variation distance of two tables of counts: half the sum of |share − share|. None where one is empty."""
    if not a.sum() or not b.sum():
        return None
    return float(np.abs(a / a.sum() - b / b.sum()).sum() / 2)


def _change(value: float | None, of: float | None) -> float | None:
    return value / of - 1 if value is not None and of else None
