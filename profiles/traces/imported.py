"""What a reader of traces is asked, and what it gives."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiles.errors import UsageError

CEIL: Final = "ceil"  # the last block of a prompt may be partial
FLOOR: Final = "floor"  # the tail of a prompt after its last whole block has no id
UTC: Final = "UTC"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of an import. What a format cannot use is refused by `formats.check`, not ignored."""

    unit: str | None = None  # s, ms, us, ns; None: that of the format
    zone: str = UTC  # of dates that name none
    windows: tuple[str, ...] = ()  # START,END in the clock of the file
    dequantise: int | None = None  # seed
    bodies: bool = False  # keep them
    block: int | None = None  # tokens per block id; None: that of the format
    labels: tuple[tuple[str, str], ...] = ()  # our name of a field, the file's
    max_bad: float = 0.01  # largest share of bad rows
    trust_unit: bool = False  # the unit is right, however odd the rate
    # Of the ids by which prompts are compared, in all files of one import. Nobody keeps it.
    key: bytes = field(default_factory=lambda: os.urandom(32), repr=False)


@dataclass(frozen=True, slots=True)
class Ids:
    """Block ids of every request: those of request i are `flat[starts[i] : starts[i + 1]]`, dense from 0."""

    flat: NDArray[np.int64]
    starts: NDArray[np.int64]  # one more than there are requests
    block: int  # tokens of a block
    tail: str  # CEIL or FLOOR

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many blocks each request has."""
        return np.diff(self.starts)

    def take(self, order: NDArray[np.int64]) -> "Ids":
        """The ids of these requests, in this order."""
        lengths = self.lengths[order]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        shift = np.repeat(self.starts[:-1][order] - starts[:-1], lengths)
        return Ids(self.flat[np.arange(starts[-1]) + shift], starts, self.block, self.tail)

    def column(self) -> pl.Series:
        """As a column of lists."""
        flat = pl.Series(self.flat)
        rows = pl.DataFrame({"start": self.starts[:-1], "length": self.lengths})
        return rows.select(pl.lit(flat.implode()).list.slice("start", "length").alias("ids")).to_series()


@dataclass(frozen=True, slots=True)
class Imported:
    """One trace file as requests in order of arrival, instants from the profile's zero.

    `requests` has columns of `table.SCHEMA`. `rows_read` = `rows_kept` + the sum of `dropped`.
    """

    format: str
    path: Path
    requests: pl.DataFrame
    windows: list[tuple[int, int]]
    zero_wall_ns: int | None  # None where the file does not know the date
    zero_clock_ns: int  # what the clock of the file says at zero
    notes: list[str]
    rows_read: int
    rows_kept: int
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_lines: tuple[tuple[int, str], ...] = ()  # line and reason of the first few
    unfinished: tuple[tuple[int, int], ...] = ()  # arrived, no end seen: until the end of their window
    ids: Ids | None = None
    bodies: Sequence[tuple[int, bytes]] = ()  # position in `requests`, and the bytes
    unit: str | None = None
    seed: int | None = None
    prefix: dict[str, Any] | None = None  # how the shared prefixes in `requests` count, where they are there already


def join(parts: Sequence[Imported]) -> Imported:
    """Several files of one format as one. Raises UsageError where their clocks cannot be laid over each other."""
    if len(parts) == 1:
        return parts[0]
    if any(part.ids is not None for part in parts) or any(part.unit == "order" for part in parts):
        raise UsageError(
            f"{parts[1].path}: files of the format {parts[1].format} cannot be put together: each has its own clock and"
            " its own block ids",
            "Import them one at a time.",
        )
    zero = min(part.zero_clock_ns for part in parts)
    tables, windows, unfinished, bodies, notes = [], [], [], [], []
    dropped: dict[str, int] = {}
    position = 0
    sessions = 0
    for part in parts:
        shift = part.zero_clock_ns - zero
        tables.append(_moved(part.requests, shift, position, sessions))
        windows += [(opened + shift, close + shift) for opened, close in part.windows]
        unfinished += [(start + shift, end + shift) for start, end in part.unfinished]
        bodies += [(at + position, body) for at, body in part.bodies]
        notes += [f"{part.path.name}: {note}" for note in part.notes]
        for reason, count in part.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
        position += part.requests.height
        if "session" in part.requests.columns and part.requests.height:
            sessions += int(part.requests["session"].max() or 0) + 1  # type: ignore[arg-type]  # a whole number or None
    requests, bodies = _sorted(pl.concat(tables, how="diagonal_relaxed"), bodies)
    first = parts[0]
    return replace(
        first,
        requests=requests,
        windows=windows,
        zero_wall_ns=None if first.zero_wall_ns is None else zero,
        zero_clock_ns=zero,
        notes=notes,
        rows_read=sum(part.rows_read for part in parts),
        rows_kept=sum(part.rows_kept for part in parts),
        dropped=dropped,
        dropped_lines=tuple(line for part in parts for line in part.dropped_lines),
        unfinished=tuple(unfinished),
        bodies=bodies,
    )


def _moved(requests: pl.DataFrame, shift_ns: int, position: int, sessions: int) -> pl.DataFrame:
    by = {
        "arrival_ns": shift_ns,
        "end_ns": shift_ns,
        "first_token_ns": shift_ns,
        "parent": position,
        "session": sessions,
    }
    return requests.with_columns(pl.col(name) + step for name, step in by.items() if name in requests.columns)


def _sorted(requests: pl.DataFrame, bodies: list[tuple[int, bytes]]) -> tuple[pl.DataFrame, list[tuple[int, bytes]]]:
    order = np.argsort(requests["arrival_ns"].to_numpy(), kind="stable")
    rank = pl.Series(np.argsort(order, kind="stable"))
    requests = requests[order]
    for name in ("parent", "prefix_ref"):
        if name in requests.columns:
            known = requests[name].is_not_null()
            moved = rank.gather(requests[name].fill_null(0))
            requests = requests.with_columns(pl.when(known).then(moved).alias(name))
    return requests, sorted((int(rank[at]), body) for at, body in bodies)
