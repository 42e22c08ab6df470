"""What a load is like: when requests come, how long they are, of which class, in which conversations. Columns in, one
frozen `Character` out, which `encode` turns into JSON as it is.

What a profile does not tell is None, and `Character.unknown` says why. Requests of 0 prompt and 0 output tokens are
failures that some traces write down so: they stay out of the load and count as errors. Everything is done by polars
aggregation or by numpy on a few columns at a time, and a class, a day or a tenant at most is looped over in Python.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from profiles.arrivals import SEED, Instants, measure_arrivals, place, variation
from profiles.character import (
    UNKNOWN,
    Cached,
    Character,
    ClassLoad,
    Coverage,
    Errors,
    Limit,
    Sessions,
    Tenant,
)
from profiles.concurrency import union
from profiles.days import class_codes, days_of
from profiles.lengths import Joint, Quantile, describe, estimate, together

TOP_TENANTS = 10
CANCELLED_BY_CLIENT = "cancelled_by_client"
COLUMNS: dict[str, type[pl.DataType] | pl.DataType] = {
    "arrival_ns": pl.Int64, "end_ns": pl.Int64, "ttft_ns": pl.Int64, "outcome": pl.String, "model": pl.String,
    "stream": pl.Boolean, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "cached_tokens": pl.Int64,
    "token_source": pl.String, "finish": pl.String, "max_tokens": pl.Int64, "language": pl.String,
    "workload": pl.String, "session": pl.Int64, "session_source": pl.String, "turn": pl.Int64,
    "link": pl.String, "deps": pl.List(pl.Int64), "think_ns": pl.Int64, "think_kind": pl.String, "tenant": pl.Int64,
}  # fmt: skip


def characterise(
    requests: pl.DataFrame | pl.LazyFrame,
    windows: Sequence[tuple[int, int]],
    zero_wall_ns: int | None,
    seed: int = SEED,
) -> Character:
    """The whole character. `requests` has any of the columns of ProfileRow, `arrival_ns` at least; `windows` are
    [open, close) on its clock and may overlap; `seed` draws the spread of quantised arrivals.
    """
    lazy = _with_columns(requests)
    observed = union(windows)
    failed_empty = ((pl.col("prompt_tokens") == 0) & (pl.col("output_tokens").fill_null(0) == 0)).fill_null(value=False)
    facts = lazy.select(
        pl.len().alias("all"), failed_empty.sum().alias("zero"), pl.col("arrival_ns").is_sorted().alias("sorted")
    ).collect()
    total, zero, in_order = facts.row(0)
    if not in_order:
        lazy = lazy.sort("arrival_ns", maintain_order=True)
    load = lazy.filter(~failed_empty) if zero else lazy
    arrival_ns = _column(load, "arrival_ns")
    arrivals = measure_arrivals(arrival_ns, observed, seed)
    outcomes = _tally(lazy, "outcome")
    languages = _languages(load)
    tenants, tenant_count = _tenants(load, observed)
    overall, classes = _class_loads(load)
    found = Character(
        coverage=Coverage(
            requests=total,
            zero_token_requests=zero,
            outside_windows=len(arrival_ns) - (arrivals.count if arrivals else 0),
            windows=len(windows),
            observed_ns=sum(close - opened for opened, close in observed),
            zero_wall_ns=zero_wall_ns,
        ),
        arrivals=arrivals,
        prompt_tokens=describe(_column(load, "prompt_tokens")),
        output_tokens=describe(_column(load, "output_tokens")),
        joint=_joint(load),
        cached=_cached(load),
        finishes=_tally(load, "finish"),
        outcomes=outcomes,
        errors=_errors(outcomes, total, zero, _zero_ok(lazy.filter(failed_empty)) if zero else 0),
        limit=_limit(load),
        streaming=load.select(pl.col("stream").mean()).collect().item(),
        token_sources=_tally(load, "token_source"),
        models=_tally(load, "model"),
        sessions=_sessions(load),
        overall=overall,
        classes=classes,
        languages=languages,
        tenants=tenants,
        tenant_count=tenant_count,
        days=tuple(days_of(load, arrival_ns, observed, zero_wall_ns)),
        unknown={},
    )
    found.unknown.update(_unknown(found))
    return found


def _unknown(found: Character) -> dict[str, str]:
    """Why each empty field is empty."""
    reasons = {
        "arrivals": "no request arrived inside a window",
        "prompt_tokens": "no request tells its prompt tokens",
        "output_tokens": "no request tells its output tokens",
        "joint": "no request tells both its prompt and its output tokens",
        "cached": "no request tells how much of its prompt was cached",
        "finishes": "no request tells why its answer ended",
        "outcomes": "no request tells its outcome",
        "errors": "no request tells its outcome, and none has 0 tokens",
        "limit": "no request has both max_tokens and output tokens",
        "streaming": "no request tells whether it was streamed",
        "token_sources": "no request tells who counted its tokens",
        "models": "no request names its model",
        "sessions": "no request has a session",
        "languages": "no request has a language",
        "tenants": "no request has a tenant",
        "days": "fewer than two days were observed",
    }
    empty = {name: reason for name, reason in reasons.items() if not getattr(found, name) and name != "streaming"}
    if found.streaming is None:
        empty["streaming"] = reasons["streaming"]
    if found.arrivals is not None and found.arrivals.burstiness is None:
        empty["burstiness"] = f"{found.arrivals.gaps} inter-arrival times are too few for a word"
    return empty


def _with_columns(requests: pl.DataFrame | pl.LazyFrame) -> pl.LazyFrame:
    lazy = requests.lazy()
    have = set(lazy.collect_schema().names())
    return lazy.select(
        (pl.col(name) if name in have else pl.lit(None)).cast(kind).alias(name) for name, kind in COLUMNS.items()
    )


def _column(lazy: pl.LazyFrame, name: str, keep: pl.Expr | None = None) -> Instants:
    """The values that are known, as int64."""
    chosen = lazy if keep is None else lazy.filter(keep)
    return chosen.select(pl.col(name).drop_nulls()).collect().to_series().to_numpy()


def _tally(lazy: pl.LazyFrame, name: str) -> dict[str, int]:
    """Requests per value, the most frequent first. Empty where no request tells."""
    counted = lazy.group_by(name).len().collect().sort(["len", name], descending=[True, False], nulls_last=True)
    values = {value: count for value, count in counted.iter_rows() if value is not None}
    silent = sum(count for value, count in counted.iter_rows() if value is None)
    return values | {UNKNOWN: silent} if values and silent else values


def _zero_ok(zeros: pl.LazyFrame) -> int:
    """Requests of 0 tokens whose outcome is no failure by itself."""
    fine = pl.col("outcome").fill_null("ok").is_in(["ok", CANCELLED_BY_CLIENT])
    return int(zeros.select(fine.sum()).collect().item())


def _errors(outcomes: dict[str, int], total: int, zero: int, zero_ok: int) -> Errors | None:
    known = {name: count for name, count in outcomes.items() if name != UNKNOWN}
    if not known and not zero:
        return None
    failed = sum(count for name, count in known.items() if name not in ("ok", CANCELLED_BY_CLIENT)) + zero_ok
    # Where no outcome is known at all, a request with tokens went well.
    judged = sum(known.values()) if known else total
    return Errors(judged, failed, failed / judged) if judged else None


def _joint(load: pl.LazyFrame) -> Joint | None:
    pairs = load.select("prompt_tokens", "output_tokens").drop_nulls().collect()
    return together(pairs["prompt_tokens"].to_numpy(), pairs["output_tokens"].to_numpy())


def _cached(load: pl.LazyFrame) -> Cached | None:
    p, c = pl.col("p"), pl.col("c")
    sums = (
        load.select(pl.col("prompt_tokens").alias("p"), pl.col("cached_tokens").alias("c"))
        .drop_nulls()
        .select(
            pl.len().alias("n"), (c > 0).sum().alias("hits"), p.sum().alias("p"), c.sum().alias("c"),
            (p.cast(pl.Float64) ** 2).sum().alias("pp"), (c.cast(pl.Float64) ** 2).sum().alias("cc"),
            (p.cast(pl.Float64) * c).sum().alias("pc"),
        )
        .collect()
    )  # fmt: skip
    n, hits, prompt, cached, pp, cc, pc = sums.row(0)
    if not n:
        return None
    share = cached / prompt if prompt else None
    error = None
    if share is not None and n > 1:
        squares = max(0.0, cc - 2 * share * pc + share * share * pp)
        error = (n / (n - 1) * squares) ** 0.5 / prompt
    return Cached(n, hits, prompt, cached, share, error)


def _limit(load: pl.LazyFrame) -> Limit | None:
    asked = load.filter(pl.col("max_tokens") > 0, pl.col("output_tokens").is_not_null())
    used = asked.select((1000 * pl.col("output_tokens") / pl.col("max_tokens")).round().cast(pl.Int64)).collect()
    described = describe(used.to_series().to_numpy())
    if described is None:
        return None
    at_limit = asked.select((pl.col("output_tokens") >= pl.col("max_tokens")).sum()).collect().item()
    return Limit(described.n, described, at_limit)


def _sessions(load: pl.LazyFrame) -> Sessions | None:
    held = load.filter(pl.col("session").is_not_null())
    # A retry and a branch have the turn of what they repeat. Where no turn is told, each request is one.
    told = pl.coalesce(pl.col("turn").max() + 1, pl.len()).cast(pl.Int64).alias("turns")
    turns = held.group_by("session").agg(told, pl.len().cast(pl.Int64)).select("turns", "len").collect()
    described = describe(turns["turns"].to_numpy())
    if described is None:
        return None
    links = _tally(held, "link")
    kind = pl.col("think_kind")
    return Sessions(
        sessions=described.n,
        with_session=int(turns["len"].sum()),
        without_session=load.select(pl.col("session").null_count()).collect().item(),
        turns=described,
        think_human=describe(_column(held, "think_ns", kind == "human")),
        think_tool=describe(_column(held, "think_ns", kind == "tool")),
        think_other=describe(_column(held, "think_ns", kind.is_null() | ~kind.is_in(["human", "tool"]))),
        branches=links.get("branch", 0) if links else None,
        fan_in=load.select((pl.col("deps").list.len() > 0).sum()).collect().item(),
        links=links,
        sources=_tally(held, "session_source"),
    )


def _class_loads(load: pl.LazyFrame) -> tuple[ClassLoad, tuple[ClassLoad, ...]]:
    session = pl.col("session")
    counted = (
        load.group_by("workload")
        .agg(pl.len().alias("n"), (session.drop_nulls().n_unique() + session.null_count()).alias("independent"))
        .collect()
        .sort(["n", "workload"], descending=[True, False], nulls_last=True)
    )
    everything = load.select(session.drop_nulls().n_unique() + session.null_count()).collect().item()
    names, sizes, independent = (counted[name].to_list() for name in ("workload", "n", "independent"))
    order = np.argsort(class_codes(load, names), kind="stable")
    bounds = [0, *np.cumsum(sizes).tolist()]
    # One measure at a time: of ten million requests a column weighs 80 MB.
    sure = [
        _sure(load.select(name).collect().to_series(), order, bounds, [*independent, everything])
        for name in ("prompt_tokens", "output_tokens", "ttft_ns")
    ]
    loads = [
        ClassLoad(
            workload=UNKNOWN if name is None else name,
            requests=size,
            independent=alone,
            measured_ttft=ttft.n,
            prompt_p50=prompt.p50,
            prompt_p90=prompt.p90,
            output_p50=output.p50,
            output_p90=output.p90,
            ttft_p50_ns=ttft.p50,
            ttft_p90_ns=ttft.p90,
        )
        for name, size, alone, prompt, output, ttft in zip(
            [*names, "all"], [*sizes, sum(sizes)], [*independent, everything], *sure, strict=True
        )
    ]
    return loads[-1], tuple(loads[:-1])


class _Sure(NamedTuple):
    n: int
    p50: Quantile | None
    p90: Quantile | None


def _sure(column: pl.Series, order: Instants, bounds: Sequence[int], independent: Sequence[int]) -> list[_Sure]:
    """Quantiles of each class, `order` its requests from `bounds` to `bounds`, and of all requests at last."""
    values = column.fill_null(-1).to_numpy()[order]
    found = []
    for (start, stop), alone in zip([*pairwise(bounds), (0, len(values))], independent, strict=True):
        piece = values[start:stop]
        piece.sort()  # in place: the last one sorts all of them
        known = piece[np.searchsorted(piece, 0) :]
        m = max(1, round(alone * len(known) / max(1, len(piece))))
        found.append(_Sure(len(known), estimate(known, 0.5, m), estimate(known, 0.9, m)))
    return found


def _languages(load: pl.LazyFrame) -> tuple[tuple[str, str | None, int], ...]:
    counted = load.group_by("workload", "language").len().collect()
    if counted["language"].is_null().all():
        return ()
    counted = counted.sort(["len", "workload", "language"], descending=[True, False, False], nulls_last=True)
    return tuple((workload or UNKNOWN, language, count) for workload, language, count in counted.iter_rows())


def _tenants(load: pl.LazyFrame, observed: Sequence[tuple[int, int]]) -> tuple[tuple[Tenant, ...], int | None]:
    counted = load.group_by("tenant").len().collect().drop_nulls().sort(["len", "tenant"], descending=[True, False])
    if not counted.height:
        return (), None
    told = int(counted["len"].sum())
    top = []
    for tenant, count in counted.head(TOP_TENANTS).iter_rows():
        at_ns = _column(load, "arrival_ns", pl.col("tenant") == tenant)
        window = place(at_ns, observed)
        gaps = np.diff(at_ns)[(window[1:] == window[:-1]) & (window[1:] >= 0)]
        top.append(Tenant(tenant, count, count / told, variation(gaps)))
    return tuple(top), counted.height
