"""Instants in the clock of a file to those of a profile: order, zero, windows, and whether the unit can be right."""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from profiles.captures import Interval
from profiles.concurrency import Window, censor
from profiles.errors import FormatError, UsageError
from profiles.traces.imported import Asked, Ids, Imported
from profiles.traces.instants import DIGITS, date_ns, decimal_ns, seconds_text
from profiles.traces.rows import Tally
from profiles.traces.steps import find_steps, gap_cv, spread
from profiles.units import HOUR_NS, SECOND_NS, format_duration, format_percent

ORDER: Final = "order"  # unit of a file without times: the order of its rows stands for them
# Requests per second that a trace can have. Outside, its unit is wrong.
LEAST_RATE, MOST_RATE = 0.001, 10_000.0
DAY_NS: Final = 24 * HOUR_NS
# Below this many requests a rate says nothing of the unit.
_FEWEST: Final = 10


@dataclass(frozen=True, slots=True)
class Clock:
    """What is known of the clock of a file."""

    unit: str  # for people: s, ms, date, order
    wall: bool = False  # its instants count from 1970
    doubtful: bool = False  # the file does not name the unit: then the rate has to be possible
    most_span_ns: int = 7 * DAY_NS  # of a doubtful one


def arrange(
    path: Path,
    format_name: str,
    rows: pl.DataFrame,
    clock: Clock,
    tally: Tally,
    asked: Asked,
    notes: list[str],
    *,
    ids: Ids | None = None,
    windows: list[Window] | None = None,
    bodies: dict[int, bytes] | None = None,
    unfinished: list[int] | None = None,
) -> Imported:
    """An `Imported` of the rows of a file, in any order.

    `rows` has `at_ns`, and perhaps `end_ns` and `first_token_ns`, in the clock of the file; `session_key`, whose equal
    values are one session, and `follows_ns`, the wait after the answer before; and columns of `table.SCHEMA`. `windows`
    and `unfinished` (arrivals whose end nobody saw) are in the same clock. `ids` and `bodies` go by position in `rows`.
    Raises FormatError.
    """
    if not rows.height and not windows and not unfinished:
        raise FormatError(path, f"no request of the format {format_name} in it")
    at = rows["at_ns"].to_numpy()
    if clock.unit != ORDER:
        notes += _order_notes(at)
    order = np.argsort(at, kind="stable")
    rows = rows[order]
    at = at[order]
    if ids is not None:
        ids = ids.take(order.astype(np.int64))
    if clock.doubtful and not asked.trust_unit:
        _check_unit(path, at, clock)
    earliest = at[:1].tolist()  # spread arrivals begin a little later than their clock
    rows, at = _dequantised(path, rows, at, clock, asked, notes)
    opened = windows or [_whole_window(rows, [*earliest, *(unfinished or [])])]
    zero = min(start for start, _ in opened)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    rows = _since(rows, zero)
    if "session_key" in rows.columns:
        rows = linked(rows)
    relative = [(start - zero, end - zero) for start, end in sorted(opened)]
    held = censor([Interval(start - zero, None) for start in unfinished or []], relative)
    tally.leave_out("unfinished", len(unfinished or []))
    return Imported(
        format=format_name,
        path=path,
        requests=rows,
        windows=relative,
        zero_wall_ns=zero if clock.wall else None,
        zero_clock_ns=zero,
        notes=notes,
        rows_read=tally.read,
        rows_kept=rows.height,
        dropped=dict(tally.counts),
        dropped_lines=tuple(tally.lines),
        unfinished=tuple((stay.start_ns, stay.end_ns) for stay in held if stay.end_ns is not None),
        ids=ids,
        bodies=sorted((int(rank[position]), body) for position, body in (bodies or {}).items()),
        unit=clock.unit,
        seed=asked.dequantise,
    )


def _order_notes(at: np.ndarray) -> list[str]:
    if len(at) < 2:
        return []
    late = int((at < np.maximum.accumulate(at)).sum())
    if not late:
        return ["order: by arrival"]
    if len(at) > 2 and bool((np.diff(at) <= 0).all()):
        return ["order: back to front; sorted by arrival"]
    return [f"order: {late} of {len(at)} rows stand after a later one; sorted by arrival"]


def rate_of(at: np.ndarray) -> float | None:
    """Requests per second, (n − 1) / span. None where there is no span."""
    span = int(at[-1] - at[0]) if len(at) else 0
    return (len(at) - 1) * SECOND_NS / span if span else None


def _check_unit(path: Path, at: np.ndarray, clock: Clock) -> None:
    span = int(at[-1] - at[0]) if len(at) else 0
    rate = rate_of(at)
    if rate is None:
        return
    odd_rate = len(at) >= _FEWEST and not LEAST_RATE <= rate <= MOST_RATE
    if not odd_rate and span <= clock.most_span_ns:
        return
    fitting = [
        f"in {unit} it would be {rate * 10 ** (DIGITS[clock.unit] - digits):.4g}/s over"
        f" {format_duration(span / 10 ** (DIGITS[clock.unit] - digits))}"
        for unit, digits in DIGITS.items()
        if unit != clock.unit and _fits(rate, span, DIGITS[clock.unit] - digits, clock)
    ]
    raise FormatError(
        path,
        f"with times in {clock.unit} it has {rate:.4g} requests/s over {span / DAY_NS:.1f} days, which is hardly right",
        hint=(f"{'; '.join(fitting).capitalize()}: say so with --unit. " if fitting else "Name the unit with --unit. ")
        + "If it is right, add --trust-unit.",
    )


def _fits(rate: float, span: int, shift: int, clock: Clock) -> bool:
    scale = 10.0**shift  # how much shorter times become
    return LEAST_RATE <= rate * scale <= MOST_RATE and SECOND_NS <= span / scale <= clock.most_span_ns


def _dequantised(
    path: Path, rows: pl.DataFrame, at: np.ndarray, clock: Clock, asked: Asked, notes: list[str]
) -> tuple[pl.DataFrame, np.ndarray]:
    """Say how coarse the arrivals are, and spread them where that was asked for."""
    if clock.unit == ORDER:
        return rows, at
    steps = find_steps(at)
    rate = rate_of(at)
    if rate is not None:
        notes.append(f"rate: {rate:.4g} requests/s over {format_duration(int(at[-1] - at[0]))}")
    if steps.coarse:
        raw, even = gap_cv(at), gap_cv(spread(at, steps.step_ns, asked.dequantise or 0))
        cv = f"; CV of the gaps {raw:.3g}, {even:.3g} if spread" if raw is not None and even is not None else ""
        notes.append(
            f"granularity: {len(at)} arrivals on {steps.instants} instants, {format_duration(steps.step_ns)} apart,"
            f" {format_percent(steps.shared)} together with the one before{cv}"
        )
    elif steps.resolution_ns:
        notes.append(f"granularity: {format_duration(steps.resolution_ns)}")
    if asked.dequantise is None:
        if steps.coarse:
            notes.append("arrivals are kept as they are; --dequantise SEED spreads them within their step")
        return rows, at
    if not steps.step_ns:
        raise UsageError(f"{path}: its arrivals have no step to be spread over", "Leave --dequantise out.")
    moved = spread(at, steps.step_ns, asked.dequantise)
    notes.append(f"arrivals spread uniformly within {format_duration(steps.step_ns)}, seed {asked.dequantise}")
    shift = pl.Series("shift", moved - at)
    later = [pl.col(name) + shift for name in ("at_ns", "end_ns", "first_token_ns") if name in rows.columns]
    return rows.with_columns(later), moved


def _whole_window(rows: pl.DataFrame, others: list[int]) -> Window:
    """From the first arrival to the last end; where ends are unknown, to just after the last arrival."""
    known = [start for start in (rows["at_ns"].max(), *others) if isinstance(start, int)]
    last = max(known) + 1
    end = rows["end_ns"].max() if "end_ns" in rows.columns else None
    return min(known), max(last, end) if isinstance(end, int) else last


def _since(rows: pl.DataFrame, zero: int) -> pl.DataFrame:
    made = [(pl.col("at_ns") - zero).alias("arrival_ns")]
    made += [pl.col(name) - zero for name in ("end_ns", "first_token_ns") if name in rows.columns]
    return rows.with_columns(made).drop("at_ns", "line", strict=False)


def linked(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows in order of arrival with `session`, `turn`, `parent`, `think_ns` and `link` of their `session_key`.

    A row without a key is no session. Think time is from the end of the turn before, where that is known and past.
    """
    key = pl.col("session_key")
    first = (
        rows.select("session_key")
        .with_row_index("at")
        .filter(key.is_not_null())
        .group_by("session_key")
        .agg(pl.col("at").min())
    )
    dense = first.sort("at").with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("session"))
    rows = rows.join(dense.select("session_key", "session"), on="session_key", how="left", maintain_order="left")
    known = pl.col("session").is_not_null()
    rows = rows.with_row_index("at").with_columns(
        pl.when(known).then(pl.col("at").cum_count().over("session") - 1).cast(pl.Int64).alias("turn"),
        pl.when(known).then(pl.col("at").shift(1).over("session")).cast(pl.Int64).alias("parent"),
        pl.when(known).then(pl.lit("imported")).alias("session_source"),
    )
    parent = pl.col("parent").is_null()
    wait = pl.lit(None, dtype=pl.Int64)
    if "end_ns" in rows.columns:
        wait = pl.col("arrival_ns") - pl.col("end_ns").shift(1).over("session")
    if "follows_ns" in rows.columns:
        wait = pl.coalesce("follows_ns", wait)
    rows = rows.with_columns(
        pl.when(known & parent).then(pl.lit("root")).when(known).then(pl.lit("declared")).alias("link"),
        pl.when(known & ~parent & (wait >= 0)).then(wait).alias("think_ns"),
    )
    return rows.drop("session_key", "at", "follows_ns", strict=False)


_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MINUTE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def _whole_date(text: str) -> str:
    """A day as its midnight, a minute as its first second."""
    if _DAY.fullmatch(text):
        return f"{text} 00:00:00"
    return f"{text}:00" if _MINUTE.fullmatch(text) else text


def windows_of(asked: Asked, unit: str) -> list[Window]:
    """The windows given as START,END, as numbers in `unit` or as dates. Raises UsageError."""
    found = []
    for text in asked.windows:
        parts = [part.strip() for part in text.split(",")]
        ends = pl.Series([_whole_date(part) for part in parts] if unit == "date" else parts)
        ns = date_ns(ends, asked.zone)[0] if unit == "date" else decimal_ns(ends, unit)
        if len(ends) != 2 or ns.null_count() or not int(ns[0]) < int(ns[1]):
            what = "dates" if unit == "date" else f"numbers in {unit}"
            raise UsageError(f"--window {text}: not START,END", f"Write two {what}, the first before the second.")
        found.append((int(ns[0]), int(ns[1])))
    found.sort()
    for (_, close), (opened, _) in pairwise(found):
        if opened < close:
            raise UsageError(
                f"--window {seconds_text(opened)}… begins inside the one before", "Windows must not overlap."
            )
    return found
