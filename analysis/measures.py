"""What is measured, as expressions on the frame of `load`. Definitions: DESIGN §4.

TTFT is the first event with generated output of any kind − the first byte sent. A request that ran into its time-out
before a token came is censored there: it enters at its limit, which still favours its arm, but it never drops out.
TPOT is (last token − first token) / (output tokens − k₁), k₁ being the tokens of the first event: what one event brings
at once took no decode time. Where the engine does not tell k₁ it is taken as 1.
"""

from typing import Final

import polars as pl

from profiles.experiment_checks import measure_parts
from profiles.records import OK, TIMEOUT

# Measures by name, with the column that `with_measures` makes. All are better when lower.
COLUMNS: Final = {"ttft": "ttft_ns", "tpot": "tpot_ns"}
TITLES: Final = {"ttft": "TTFT", "tpot": "TPOT"}
MIN_TOKENS: Final = 16
# Of these more is better.
HIGHER_IS_BETTER: Final = frozenset({"throughput"})


def title_of(name: str) -> str:
    """A measure as a person reads it: `TTFT`, `throughput at c = 8`."""
    parts = measure_parts(name) or {"measure": name}
    title = TITLES.get(parts["measure"], parts["measure"])
    return f"{title} at c = {parts['c']}" if "c" in parts else title


def higher_is_better(name: str) -> bool:
    """Whether more of a measure is a gain."""
    return (measure_parts(name) or {}).get("measure") in HIGHER_IS_BETTER


def with_measures(frame: pl.DataFrame, min_tokens: int = MIN_TOKENS) -> pl.DataFrame:
    """The frame with `settled`, `ttft_ns`, `ttft_due_ns` and `tpot_ns`; null where a request has no such value.

    `settled` says that the request counts: it went well, or it is censored at its limit. `min_tokens` is how many
    tokens TPOT needs after the first event.
    """
    settled = pl.col("outcome").is_in([OK, TIMEOUT])
    return frame.with_columns(
        settled.alias("settled"),
        _positive(_first_output(pl.col("send_started_ns"))).alias("ttft_ns"),
        _positive(_first_output(pl.col("due_ns"))).alias("ttft_due_ns"),
        _tpot(min_tokens).alias("tpot_ns"),
        (pl.col("send_started_ns") - pl.col("due_ns")).alias("send_lag_ns"),
    )


def _first_output(start: pl.Expr) -> pl.Expr:
    censored = pl.when(pl.col("outcome") == TIMEOUT).then(pl.col("end_ns"))
    usable = pl.col("outcome").is_in([OK, TIMEOUT])
    return pl.when(usable).then(pl.coalesce(pl.col("first_token_ns"), censored) - start)


def _tpot(min_tokens: int) -> pl.Expr:
    after_first = pl.col("output_tokens") - pl.col("first_event_tokens").fill_null(1)
    spent = pl.col("last_token_ns") - pl.col("first_token_ns")
    # A span of 0 is an answer that came in one read: no decode time was seen, which is not a decode time of 0.
    usable = (pl.col("outcome") == OK) & (after_first >= min_tokens) & (spent > 0)
    return pl.when(usable).then(spent / after_first)


def _positive(value: pl.Expr) -> pl.Expr:
    return pl.when(value > 0).then(value)


def assumed_first_event_share(frame: pl.DataFrame) -> float | None:
    """Share of the TPOT values whose k₁ was taken as 1 although events carried several tokens. None without a value."""
    values = frame.filter(pl.col("tpot_ns").is_not_null())
    if values.is_empty():
        return None
    assumed = pl.col("first_event_tokens").is_null() & (pl.col("output_tokens") > pl.col("token_events"))
    return float(values.select(assumed.mean()).item())
