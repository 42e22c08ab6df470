"""BurstGPT, both layouts, told by the names of the columns: the third file has two more, in second and third place.

Times are whole seconds from the first midnight of the trace. A row without any token is a request that failed: it is
kept as an error, and its lengths are unknown, so that it counts in the error rate and in no quantile of a length.
"""

import re
from pathlib import Path
from typing import Final

import polars as pl

from profiles.traces.imported import Asked, Imported
from profiles.traces.instants import decimal_ns
from profiles.traces.rows import CsvFile, Tally, whole
from profiles.traces.timeline import Clock, arrange, windows_of

NAME: Final = "burstgpt"
COLUMNS: Final = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
SESSION, ELAPSED = "Session ID", "Elapsed time"
RULE: Final = "imported: Log Type"


def read(path: Path, asked: Asked) -> Imported:
    """Raises FormatError."""
    tally = Tally(path)
    file = CsvFile(path, tally)
    more = tuple(name for name in (SESSION, ELAPSED) if name in file.head)
    batches = [_typed(batch, more, tally) for batch in file.batches(file.places((*COLUMNS, *more), NAME))]
    tally.check(asked.max_bad)
    rows = pl.concat(batches)
    failed = int((rows["outcome"] == "error").sum())
    notes = ["unit: seconds from the first midnight of the trace", "zone: not known, nor the date"]
    if failed:
        notes.append(f"{failed} of {rows.height} requests have no token: they failed, and are kept as errors")
    missing = ["first token (no TTFT)", *(["end"] if ELAPSED not in more else [])]
    missing += ["sessions"] if SESSION not in more else []
    notes.append(f"missing: {', '.join([*missing, 'shared prefixes'])}")
    return arrange(path, NAME, rows, Clock("s"), tally, asked, notes, windows=windows_of(asked, "s"))


def _classes(log_types: pl.Series) -> dict[str | None, str | None]:
    """`Conversation log` is a class `conversation`."""
    found: dict[str | None, str | None] = {None: None}
    for name in log_types.drop_nulls().unique():
        found[name] = re.sub(r"[^a-z0-9]+", "_", name.strip().lower().removesuffix(" log")) or None
    return found


def _typed(batch: pl.DataFrame, more: tuple[str, ...], tally: Tally) -> pl.DataFrame:
    at_ns = decimal_ns(batch["Timestamp"], "s").alias("at_ns")
    made: list[pl.Series | pl.Expr] = [
        at_ns,
        whole("Request tokens").alias("prompt_tokens"),
        whole("Response tokens").alias("output_tokens"),
        whole("Total tokens").alias("total"),
        pl.col("Model").str.strip_chars().cast(pl.Categorical).alias("model"),
        batch["Log Type"].replace_strict(_classes(batch["Log Type"]), return_dtype=pl.Categorical).alias("workload"),
    ]
    faults = {
        "Timestamp is no number": pl.col("at_ns").is_null(),
        "Request tokens is no count": ~(pl.col("prompt_tokens") >= 0),
        "Response tokens is no count": ~(pl.col("output_tokens") >= 0),
        "Request and Response tokens do not make Total tokens": (
            pl.col("prompt_tokens") + pl.col("output_tokens") != pl.col("total")
        ),
    }
    if ELAPSED in more:
        made.append((at_ns + decimal_ns(batch[ELAPSED], "s")).alias("end_ns"))
        faults["Elapsed time is no number"] = pl.col("end_ns").is_null() | (pl.col("end_ns") < pl.col("at_ns"))
    if SESSION in more:
        key = pl.col(SESSION).str.strip_chars()
        made.append(pl.when(key != "").then(key).cast(pl.Categorical).alias("session_key"))
    rows = tally.keep(batch.select("line", *made), faults).drop("total")
    failed = (pl.col("prompt_tokens") == 0) & (pl.col("output_tokens") == 0)
    return rows.with_columns(
        *(pl.when(~failed).then(pl.col(name)).alias(name) for name in ("prompt_tokens", "output_tokens")),
        pl.when(failed)
        .then(pl.lit("error"))
        .when(pl.col("output_tokens") > 0)
        .then(pl.lit("ok"))
        .cast(pl.Categorical)
        .alias("outcome"),
        pl.when(~failed).then(pl.lit("imported")).cast(pl.Categorical).alias("token_source"),
        pl.lit(RULE).cast(pl.Categorical).alias("workload_rule"),
    )
