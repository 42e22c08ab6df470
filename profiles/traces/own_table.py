"""Our own requests as CSV or Parquet, as `profile export csv` and `parquet` write them: columns of a profile, in ns.

A table that others made works as well, if it has `arrival_ns` and names its columns as `ProfileRow` does.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from profiles.errors import FormatError
from profiles.table import SCHEMA
from profiles.traces.imported import Asked, Imported
from profiles.traces.rows import CsvFile, Tally
from profiles.traces.timeline import Clock, arrange, windows_of

CSV: Final = "csv"
PARQUET: Final = "parquet"
# Key of the metadata of an exported Parquet file.
METADATA: Final = "firsttoken"
_REFERENCES: Final = ("parent", "prefix_ref")
_PREFIX: Final = ("blocks", "prefix_ref", "prefix_blocks")
# Made anew for the new profile, or pointing to what the table does not hold.
_NOT_TAKEN: Final = ("in_flight", "body", "capture")
_INSTANTS: Final = ("dispatch_ns",)


def read_csv(path: Path, asked: Asked) -> Imported:
    """Raises FormatError."""
    tally = Tally(path)
    file = CsvFile(path, tally)
    file.places(("arrival_ns",), CSV)
    known = [name for name in file.head if name in SCHEMA]
    batches = []
    for batch in file.batches(file.places(known, CSV)):
        given = {name: pl.col(name).str.strip_chars().replace("", None) for name in known}
        rows = batch.select("line", *(_typed(name, text).alias(name) for name, text in given.items()))
        empty = batch.select("line", *(text.is_null().alias(name) for name, text in given.items()))
        joined = pl.concat([rows, empty.select(pl.all().exclude("line").name.prefix("no_"))], how="horizontal")
        faults = {f"{name} is no {SCHEMA[name]}": pl.col(name).is_null() & ~pl.col(f"no_{name}") for name in known}
        sound = tally.keep(joined, {"no arrival_ns": pl.col("no_arrival_ns"), **faults})
        batches.append(sound.select("line", *known))
    tally.check(asked.max_bad)
    rows = pl.concat(batches)
    notes = _notes(file.head)
    if any(name in known for name in _PREFIX):
        rows = rows.drop(_PREFIX, strict=False)
        notes.append("shared prefixes are left out: a CSV does not tell the size of their blocks (Parquet does)")
    return _arranged(path, CSV, rows, tally, asked, notes, {})


def _typed(name: str, text: pl.Expr) -> pl.Expr:
    kind = SCHEMA[name]
    if kind == pl.Boolean():
        return text.str.to_lowercase().replace_strict({"true": True, "false": False}, default=None)
    if kind == pl.List(pl.Int64()):
        return text.str.split(" ").list.eval(pl.element().cast(pl.Int64, strict=False))
    return text.cast(kind, strict=False)


def read_parquet(path: Path, asked: Asked) -> Imported:
    """Raises FormatError."""
    tally = Tally(path)
    try:
        told = json.loads(pl.read_parquet_metadata(path).get(METADATA, "{}"))
        table = pl.scan_parquet(path)
        names = table.collect_schema().names()
        if "arrival_ns" not in names:
            raise FormatError(path, f"no column 'arrival_ns' ({', '.join(names)[:200]})")
        known = [name for name in names if name in SCHEMA]
        rows = table.select(pl.col(name).cast(SCHEMA[name]) for name in known).collect()
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise FormatError(path, f"not a readable Parquet file ({str(error).splitlines()[0]})") from None
    tally.read = rows.height
    rows = rows.with_columns(pl.int_range(1, pl.len() + 1).alias("line"))
    rows = tally.keep(rows, {"no arrival_ns": pl.col("arrival_ns").is_null()})
    tally.check(asked.max_bad)
    notes = _notes(names)
    if not told.get("prefix") and any(name in names for name in _PREFIX):
        rows = rows.drop(_PREFIX, strict=False)
        notes.append("shared prefixes are left out: the file does not tell the size of their blocks")
    return _arranged(path, PARQUET, rows, tally, asked, notes, told)


def _notes(names: list[str]) -> list[str]:
    notes = ["unit: ns, as the names of the columns say"]
    if unknown := [name for name in names if name not in SCHEMA]:
        notes.append(f"columns that no profile has are left out: {', '.join(unknown)[:200]}")
    return notes


def _arranged(
    path: Path, format_name: str, rows: pl.DataFrame, tally: Tally, asked: Asked, notes: list[str], told: dict[str, Any]
) -> Imported:
    rows = _renumbered(rows)
    windows = windows_of(asked, "ns") or [(int(opened), int(close)) for opened, close in told.get("windows", ())]
    zero_wall_ns = told.get("zero_wall_ns")
    if zero_wall_ns is None:
        notes.append("zone: not known, nor the date")
    rows = rows.rename({"arrival_ns": "at_ns"})
    zero = min((opened for opened, _ in windows), default=rows["at_ns"].min() or 0)
    moved = [pl.col(name) - zero for name in _INSTANTS if name in rows.columns]
    made = arrange(
        path, format_name, rows.with_columns(moved).drop(_NOT_TAKEN, strict=False), Clock("ns"), tally, asked, notes,
        windows=windows,
    )  # fmt: skip
    wall = None if zero_wall_ns is None else int(zero_wall_ns) + made.zero_clock_ns
    return replace(made, zero_wall_ns=wall, prefix=told.get("prefix"))


def _renumbered(rows: pl.DataFrame) -> pl.DataFrame:
    """In order of arrival, with references that are positions. One to a row that is not there is none."""
    rows = rows.sort("arrival_ns", maintain_order=True)
    if "request" not in rows.columns:
        return rows.drop(*_REFERENCES, "deps", strict=False)
    numbers = rows["request"].cast(pl.Int64).fill_null(-1)
    position = pl.DataFrame({"number": numbers, "position": np.arange(rows.height)})
    position = position.filter(pl.col("number") >= 0).unique("number", keep="first")
    for name in _REFERENCES:
        if name in rows.columns:
            found = rows.select(pl.col(name).alias("number")).join(
                position, on="number", how="left", maintain_order="left"
            )
            rows = rows.with_columns(found["position"].alias(name))
    if "deps" in rows.columns:
        flat = rows.select(pl.int_range(pl.len()).alias("at"), pl.col("deps").alias("number")).explode("number")
        flat = flat.join(position, on="number", how="left", maintain_order="left")
        deps = flat.group_by("at", maintain_order=True).agg(pl.col("position").drop_nulls().alias("deps"))["deps"]
        rows = rows.with_columns(deps.set(deps.list.len() == 0, None))
    if "prefix_ref" in rows.columns and "prefix_blocks" in rows.columns:
        lost = pl.col("prefix_ref").is_null() & (pl.col("prefix_blocks") > 0)
        rows = rows.with_columns(pl.when(lost).then(0).otherwise("prefix_blocks").alias("prefix_blocks"))
    return rows.drop("request")
