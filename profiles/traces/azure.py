"""Azure LLM inference trace, layout of 2023 and 2024: `TIMESTAMP,ContextTokens,GeneratedTokens`.

The times are dates with seven digits of a second and without a zone. The files have CRLF, and no newline at their end.
"""

from pathlib import Path
from typing import Final

import polars as pl

from profiles.traces.imported import Asked, Imported
from profiles.traces.instants import date_ns
from profiles.traces.rows import CsvFile, Tally, whole
from profiles.traces.timeline import Clock, arrange, windows_of

NAME: Final = "azure"
COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
IMAGES: Final = "NumImages"  # of the multimodal trace of 2025


def read(path: Path, asked: Asked) -> Imported:
    """Raises FormatError."""
    tally = Tally(path)
    file = CsvFile(path, tally)
    columns = (*COLUMNS, IMAGES) if IMAGES in file.head else COLUMNS
    batches, zoned = [], True
    for batch in file.batches(file.places(columns, NAME)):
        at_ns, has_zone = date_ns(batch["TIMESTAMP"], asked.zone)
        zoned = zoned and has_zone
        rows = batch.select(
            pl.col("line"),
            at_ns.alias("at_ns"),
            whole("ContextTokens").alias("prompt_tokens"),
            whole("GeneratedTokens").alias("output_tokens"),
            *([whole(IMAGES).alias("images")] if IMAGES in columns else []),
        )
        batches.append(
            tally.keep(
                rows,
                {
                    "TIMESTAMP is no date": pl.col("at_ns").is_null(),
                    "ContextTokens is no count": ~(pl.col("prompt_tokens") >= 0),
                    "GeneratedTokens is no count": ~(pl.col("output_tokens") >= 0),
                },
            )
        )
    tally.check(asked.max_bad)
    rows = pl.concat(batches).with_columns(
        pl.lit("imported").alias("token_source"),
        pl.when(pl.col("output_tokens") > 0).then(pl.lit("ok")).alias("outcome"),
    )
    notes = [
        "unit: dates, exact to 100 ns",
        "zone: named by each date" if zoned else f"zone: the dates name none, so {asked.zone} is taken (--zone)",
        "missing: end and first token (no concurrency, no TTFT), model, sessions, shared prefixes",
    ]
    return arrange(path, NAME, rows, Clock("date", wall=True), tally, asked, notes, windows=windows_of(asked, "date"))
