"""Requests to a PROFILE directory, whoever found them: a recording, an imported trace, a generator, a shaping.

1. order       by arrival, stable; positions become rows
2. structure   sessions and shared prefixes, where the requests carry keyed ids
3. rows        in pieces: class, in flight, all columns in their order; one Parquet file in the end
4. concurrency of all requests and of each class, where ends are known
5. manifest    what went in, what came out, what cannot be measured with it

All of it goes into a sibling directory that is renamed at the end: a profile is there whole or not at all.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from profiles.captures import Interval, body_fields
from profiles.classify import Rules, classify_frame, read_rules, what_is_unseen
from profiles.concurrency import COVER, Concurrency, Window, union
from profiles.dialects import EMBEDDINGS
from profiles.files import (
    FILE_MODE,
    encode,
    sha256_of,
    tool_version,
    write_document,
)
from profiles.measurable import NEEDS_CONTENT, NEEDS_RECORDED_TEXT, NO_CONCURRENCY, NO_OUTPUT_LENGTH
from profiles.profile import (
    ALL,
    BODIES,
    CONCURRENCY,
    FORMAT,
    MANIFEST,
    REQUESTS,
    SEGMENTS,
    VERSION,
    Profile,
    read_profile,
)
from profiles.profile_folder import replacing
from profiles.scan import METHOD, Pieces
from profiles.sessions import SessionColumns
from profiles.structure import Structure, find_structure
from profiles.sweep import Line, Stays, in_order_of_start, sweep, sweep_groups
from profiles.table import SCHEMA, complete

# Rows that are worked on at once.
BATCH_ROWS: Final = 250_000
# Columns that hold rows; in what is given they hold positions.
_REFERENCES: Final = ("parent", "prefix_ref")


@dataclass(slots=True)
class _Counted:
    """What the manifest says of all rows, added up batch by batch."""

    outcomes: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    sessions: Counter[str] = field(default_factory=Counter)
    uncounted: int = 0  # answers that ended well without a count of their tokens
    names: list[str] = field(default_factory=list)  # of classes, in order of appearance
    groups: list[Any] = field(default_factory=list)  # class of each row, as an index into `names`

    def take(self, rows: pl.DataFrame) -> None:
        self.outcomes.update(_counts(rows, "outcome"))
        self.models.update(_counts(rows, "model"))
        self.sessions.update(_counts(rows, "session_source"))
        unknown = (pl.col("outcome") == "ok") & pl.col("output_tokens").is_null() & (pl.col("endpoint") != EMBEDDINGS)
        self.uncounted += rows.filter(unknown).height
        for name in rows["workload"].unique(maintain_order=True):
            if name not in self.names:
                self.names.append(name)
        code = {name: at for at, name in enumerate(self.names)}
        self.groups.append(rows["workload"].replace_strict(code, return_dtype=pl.Int32).to_numpy())


def _counts(rows: pl.DataFrame, column: str) -> dict[str, int]:
    found = rows.group_by(column, maintain_order=True).len()
    return {name or "": count for name, count in found.iter_rows()}


def write_profile(
    out: Path,
    requests: pl.DataFrame | Pieces,
    *,
    source: Mapping[str, Any],
    windows: Sequence[Window],
    zero_wall_ns: int | None,
    unfinished: Sequence[Interval] = (),
    dropped: Mapping[str, int] | None = None,
    bodies: Iterable[tuple[int, bytes]] = (),
    segments: pl.DataFrame | None = None,
    content: str = "none",
    synthetic: bool = False,
    not_measurable: Sequence[str] | None = None,
    prefix: Mapping[str, Any] | None = None,
    warnings: list[str] | None = None,
    rules: Rules | None = None,
    force: bool = False,
    now_wall_ns: Callable[[], int] = time.time_ns,
) -> Profile:
    """Write the profile of `requests` to the new directory `out`, and return it.

    `requests` has any of the columns of `table.SCHEMA`, at least `arrival_ns`; the rest become null. What refers to
    other requests (`parent`, `prefix_ref`, `deps`, the numbers of `bodies`, column `request` of `segments`) refers to
    positions in `requests`. Instants, `windows` and `unfinished` count from the profile's zero, whose wall clock is
    `zero_wall_ns`, or None where it is not known.

    `source` says where it comes from: `kind`, `inputs` and what else its maker wants to be known. `content` is `full`
    with the recorded text, `synthetic` with rebuilt text, `structure` with lengths and shared prefixes, else `none`.
    `synthetic` marks load that nobody produced. `warnings` are added to, and are part of the manifest.

    Raises UsageError where `out` exists, unless `force` is given and it holds a profile and nothing else, and
    FirsttokenError where it cannot be written.
    """
    warnings = [] if warnings is None else warnings
    rules = read_rules(None) if rules is None else rules
    pieces = requests if isinstance(requests, Pieces) else _Frame(requests)
    observed = union(windows)
    with replacing(out, force=force) as folder:
        order, flight = _in_order(pieces, observed, unfinished)
        counted = _Counted()
        found = _write_rows(folder, pieces, order, flight, rules, counted)
        if content == "none" and found is not None and found.prefix is not None:
            content = "structure"
        if segments is not None:
            _write_table(folder / SEGMENTS, _renumbered_segments(segments, order))
        elif found is not None and found.segments is not None:
            _write_table(folder / SEGMENTS, found.segments)
        written = _write_bodies(folder / BODIES, bodies, order, folder / REQUESTS)
        measured = {} if flight is None else _measured(flight, counted, observed)
        _write_table(folder / CONCURRENCY, _concurrency_table(measured))
        cannot = _not_measurable(content, not_measurable, counted, measured=bool(measured), warnings=warnings)
        point = measured[ALL].operating_point(COVER) if measured else None
        workloads = _workloads(counted)
        described = dict(source)
        write_document(
            folder / MANIFEST,
            {
                "format": FORMAT,
                "version": VERSION,
                "tool": tool_version(),
                "created_wall_ns": now_wall_ns(),
                "zero_wall_ns": zero_wall_ns,
                "inputs": described.pop("inputs", []),
                "source": described,
                "synthetic": synthetic,
                "windows": [[opened, close] for opened, close in observed],
                "observed_ns": sum(close - opened for opened, close in observed),
                "requests": len(order),
                "unfinished": [[stay.start_ns, stay.end_ns] for stay in unfinished],
                "outcomes": {name: count for name, count in counted.outcomes.most_common() if name},
                "dropped": dict(dropped or {}),
                "content": content,
                "bodies": written,
                "models": dict(counted.models.most_common()),
                "workloads": workloads,
                "rules": {
                    "file": rules.name,
                    "sha256": rules.sha256,
                    "semantic_sha256": rules.semantic_sha256,
                },
                "unseen": what_is_unseen(pl.scan_parquet(folder / REQUESTS), rules),
                "sessions": {name or "none": count for name, count in counted.sessions.most_common()},
                "sessions_told_by": _sessions_told_by(counted, found),
                "prefix": dict(prefix) if prefix is not None else None if found is None else found.prefix,
                "operating_point": _stated_point(point, measured),
                "not_measurable": cannot,
                "warnings": warnings,
                "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
            },
        )
    return read_profile(out)


# --- Order, structure, rows.


class _Frame:
    """A table in memory, read as pieces are."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame, self.rows, self.keyed = frame, frame.height, 0

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        present = [name for name in names if name in self._frame.columns]
        missing = [pl.lit(None, dtype=SCHEMA[name]).alias(name) for name in names if name not in present]
        found: pl.DataFrame = self._frame.select(*present, *missing)
        return found

    def take(self, positions: Any) -> pl.DataFrame:
        found: pl.DataFrame = self._frame[positions]
        return found


@dataclass(frozen=True, slots=True)
class _Flight:
    """Who was in flight: the requests in order of arrival, then those whose end nobody saw."""

    line: Line
    order: Any  # of the line's stays, their place here
    rows: int

    @property
    def others(self) -> Any:
        """Others at the arrival of each row."""
        found = np.empty(len(self.order), dtype=np.int64)
        found[self.order] = self.line.others
        return found[: self.rows]


def _in_order(
    pieces: Pieces | _Frame, observed: Sequence[Window], unfinished: Sequence[Interval]
) -> tuple[Any, _Flight | None]:
    """The position of each row, and who was in flight: None where the requests have no ends or no window."""
    keys = pieces.columns(["arrival_ns", "end_ns"]).cast(pl.Int64)
    arrival_ns = keys["arrival_ns"].to_numpy()
    order = np.argsort(arrival_ns, kind="stable")
    if keys["end_ns"].null_count() or not observed or not (pieces.rows or unfinished):
        return order, None
    start_ns, end_ns, by_start = in_order_of_start(
        arrival_ns[order],
        keys["end_ns"].to_numpy()[order],
        [(stay.start_ns, stay.end_ns) for stay in unfinished if stay.end_ns is not None],
    )
    return order, _Flight(Line(start_ns, end_ns, observed), by_start, len(order))


def _write_rows(
    folder: Path, pieces: Pieces | _Frame, order: Any, flight: _Flight | None, rules: Rules, counted: _Counted
) -> Structure | None:
    rank = _rank(order)
    in_flight = None if flight is None else flight.others
    batches = [order[at : at + BATCH_ROWS] for at in range(0, len(order), BATCH_ROWS)]
    structure = None
    if pieces.keyed:
        structure = find_structure(pieces.take(batch) for batch in batches)
    paths = []
    for number, batch in enumerate(batches):
        first = number * BATCH_ROWS
        rows = pieces.take(batch)
        made: list[Any] = [pl.Series("request", np.arange(first, first + len(batch)))]
        if in_flight is not None:
            made.append(pl.Series("in_flight", in_flight[first : first + len(batch)]))
        rows = _renumbered(rows, rank).with_columns(made)
        if structure is not None:
            rows = rows.with_columns(structure.columns.slice(first, len(batch)).get_columns())
        rows = classify_frame(complete(rows), rules).select(list(SCHEMA))
        assert isinstance(rows, pl.DataFrame)
        counted.take(rows)
        paths.append(folder / f"{REQUESTS}.{number}")
        _write_table(paths[-1], rows)
    _join(paths, folder / REQUESTS)
    return structure


def _rank(order: Any) -> Any:
    """The row of each position."""
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _renumbered(rows: pl.DataFrame, rank: Any) -> pl.DataFrame:
    made: list[Any] = []
    for name in _REFERENCES:
        if name in rows.columns and rows[name].null_count() < rows.height:
            made.append(_moved(rows[name], rank))
    if "deps" in rows.columns and rows["deps"].null_count() < rows.height:
        flat = rows.select(pl.int_range(pl.len()).alias("at"), pl.col("deps")).explode("deps")
        moved = flat.with_columns(_moved(flat["deps"], rank)).group_by("at", maintain_order=True).agg("deps")
        none = rows["deps"].is_null()
        made.append(moved["deps"].set(none, None) if none.any() else moved["deps"])
    return rows.with_columns(made) if made else rows


def _moved(positions: pl.Series, rank: Any) -> pl.Series:
    known = positions.is_not_null().to_numpy()
    rows = np.zeros(len(positions), dtype=np.int64)
    rows[known] = rank[positions.drop_nulls().to_numpy()]
    return pl.Series(positions.name, rows).set(positions.is_null(), None)


# --- Files.


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_table(path: Path, table: pl.DataFrame) -> None:
    _create(path)
    table.write_parquet(path)
    _sync(path)


def _join(paths: Sequence[Path], out: Path) -> None:
    """Several tables one after another as one file."""
    if len(paths) == 1:
        paths[0].rename(out)
        return
    _create(out)
    if paths:
        pl.scan_parquet(list(paths)).sink_parquet(out, maintain_order=True)
    else:
        pl.DataFrame(schema=SCHEMA).write_parquet(out)
    _sync(out)
    for path in paths:
        path.unlink()


def _renumbered_segments(segments: pl.DataFrame, order: Any) -> pl.DataFrame:
    rows = _moved(segments["request"], _rank(order)).cast(pl.UInt32)
    return segments.with_columns(rows).sort("request", "seq")


def _write_bodies(path: Path, bodies: Iterable[tuple[int, bytes]], order: Any, requests: Path) -> int:
    """OpenAI Batch lines, except that a body which is not one line of JSON stands as text or base64 beside it."""
    import zstandard

    written = 0
    given = iter(bodies)
    first = next(given, None)
    if first is None:
        return 0
    rank = _rank(order)
    urls = pl.read_parquet(requests, columns=["path"])["path"].cast(pl.Categorical)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
            for position, body in _chained(first, given):
                row = int(rank[position])
                line = {"custom_id": str(row), "method": METHOD, "url": urls[row]}
                packed.write(encode(line | body_fields(body)) + b"\n")
                written += 1
        file.flush()
        os.fsync(file.fileno())
    return written


def _chained[T](first: T, rest: Iterator[T]) -> Iterator[T]:
    yield first
    yield from rest


# --- What is said of it.


def _measured(flight: _Flight, counted: _Counted, observed: list[Window]) -> dict[str, Concurrency]:
    """Of all requests (`all`), then of each class in order of its name. Of a class, time counts its own requests in
    flight; arrivals count its requests by the *total* they met."""
    names, line = tuple(sorted(counted.names)), flight.line
    code = np.array([names.index(name) for name in counted.names] or [0], dtype=np.int32)
    group = np.full(len(flight.order), -1, dtype=np.int32)
    if flight.rows:
        group[: flight.rows] = code[np.concatenate(counted.groups)]
    stays = Stays(line.start_ns, line.end_ns, group[flight.order], names, observed, None)
    return {ALL: sweep(stays, line)} | sweep_groups(stays, line)


def _concurrency_table(measured: Mapping[str, Concurrency]) -> pl.DataFrame:
    levels = [
        (scope, c, one.time_ns_at.get(c, 0), one.arrivals_at.get(c, 0))
        for scope, one in measured.items()
        for c in sorted(one.time_ns_at.keys() | one.arrivals_at.keys())
    ]
    schema = {"scope": pl.String(), "c": pl.Int64(), "time_ns": pl.Int64(), "arrivals": pl.Int64()}
    return pl.DataFrame(levels, schema=schema, orient="row")


def _workloads(counted: _Counted) -> dict[str, dict[str, Any]]:
    groups = np.concatenate(counted.groups) if counted.groups else np.zeros(0, dtype=np.int32)
    counts = Counter(dict(zip(counted.names, np.bincount(groups, minlength=len(counted.names)).tolist(), strict=True)))
    return {name: {"requests": count, "share": count / len(groups)} for name, count in counts.most_common()}


def _sessions_told_by(counted: _Counted, found: Structure | None) -> str:
    if found is not None:
        return found.sentence
    if not any(counted.sessions):
        return SessionColumns().sentence()
    told = ", ".join(f"{count} {name or 'alone or unknown'}" for name, count in counted.sessions.most_common())
    return f"sessions: as its source says ({told})"


def _stated_point(point: Any, measured: Mapping[str, Concurrency]) -> dict[str, Any]:
    if point is None:
        return {"levels": [], "weights": {}, "cover": COVER, "reached": 0.0, "max": None}
    return asdict(point) | {"max": measured[ALL].max}


def _not_measurable(
    content: str, given: Sequence[str] | None, counted: _Counted, *, measured: bool, warnings: list[str]
) -> list[str]:
    by_content = {"full": (), "synthetic": NEEDS_RECORDED_TEXT}.get(content, NEEDS_CONTENT)
    cannot = list(by_content if given is None else given)
    if counted.uncounted:
        answers = sum(map(len, counted.groups))
        warnings.append(
            f"{counted.uncounted} of {answers} answers carry no usage: their output length is unknown, and a replay"
            " cannot cap it. Clients ask for it with stream_options.include_usage."
        )
        cannot.append(NO_OUTPUT_LENGTH)
    if not measured:
        cannot.append(NO_CONCURRENCY)
    return list(dict.fromkeys(cannot))
