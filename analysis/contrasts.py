"""An arm against another one, block by block: the same request in both boots of a block makes a pair.

Within a block the differences of logarithms are averaged over the pairs of all deciding windows. Requests were given to
the concurrency levels by their share of arrivals, so this plain mean is the mix at the observed operating point.

A block boots the baseline twice. Against the baseline, the reference is the mean of the two logarithms: what one boot
of it happened to be counts half, which takes a quarter off the variance between blocks at no machine time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from analysis.measures import COLUMNS
from profiles.records import ENGINE, TIMEOUT
from profiles.units import MILLISECOND_NS

KEY: Final = ["block", "window", "index"]
# A block counts if at least this share of its requests can be paired, what the arm itself broke left aside.
LEAST_PAIRED: Final = 0.98
_SIDE = ["ttft_ns", "tpot_ns", "cached_tokens", "prompt_tokens"]


@dataclass(frozen=True, slots=True)
class Contrast:
    """The pairs of an arm and its reference: `pairs` has a row per request, the reference's columns end in `_base`.

    Where the reference was booted twice in a block, `_base` of a measure is the geometric mean of both boots, and
    `_first` and `_copy` are theirs alone.

    `blocks` are those that count, `discarded` those that do not, each with its reason, and `broken` those in which the
    arm's own failures left nothing to compare.
    """

    arm: str
    base: str
    pairs: pl.DataFrame
    blocks: tuple[int, ...]
    discarded: tuple[tuple[int, str], ...] = ()
    broken: tuple[int, ...] = ()
    copy: str | None = None  # the second boot of the reference in each block


def contrast(frame: pl.DataFrame, arm: str, base: str, planned: int, copy: str | None = None) -> Contrast:
    """Pair `arm` with `base`, and with its second `copy` in the same block where there is one.

    `frame` comes from `with_measures`; `planned` deciding requests were asked.
    """
    left = frame.filter(pl.col("arm") == arm)
    right = frame.filter(pl.col("arm") == base)
    own_fault = ~pl.col("settled") & (pl.col("origin") == ENGINE)
    ours = left.filter("deciding").group_by("block").agg(pl.len().alias("asked"), own_fault.sum().alias("fault"))
    theirs = right.filter("deciding").group_by("block").agg(pl.len().alias("asked_base"))
    both = left.filter(pl.col("settled") & pl.col("deciding")).join(right.filter("settled"), on=KEY, how="semi")
    common = both.group_by("block").agg(pl.len().alias("common"))
    counts = ours.join(theirs, on="block").join(common, on="block", how="left").sort("block").fill_null(0)
    blocks: list[int] = []
    discarded: list[tuple[int, str]] = []
    broken: list[int] = []
    for block, asked, fault, asked_base, paired in counts.iter_rows():
        wanted = max(planned, asked, asked_base)
        if (paired + fault) / wanted < LEAST_PAIRED:
            discarded.append((block, f"only {paired} of {wanted} requests could be paired with {base}"))
        elif paired == 0:
            broken.append(block)
        else:
            blocks.append(block)
    keep = pl.col("settled") & pl.col("block").is_in(blocks)
    measures = list(COLUMNS.values())
    again = frame.filter(keep & (pl.col("arm") == copy) if copy else pl.lit(False)).select([*KEY, *measures])
    pairs = (
        left.filter(keep)
        .select([*KEY, "kind", "deciding", "c", "workload", *_SIDE])
        .join(right.filter(keep).select([*KEY, *_SIDE]), on=KEY, how="inner", suffix="_base")
        .join(again, on=KEY, how="left", suffix="_copy", maintain_order="left")
        .with_columns(*(pl.col(f"{name}_base").alias(f"{name}_first") for name in measures))
        .with_columns(*(_both_boots(name).alias(f"{name}_base") for name in measures))
    )
    return Contrast(arm, base, pairs, tuple(blocks), tuple(discarded), tuple(broken), copy)


def _both_boots(name: str) -> pl.Expr:
    """Geometric mean of a measure over the two boots of the reference; of one alone where the other lacks it."""
    first, copy = pl.col(f"{name}_first").cast(pl.Float64), pl.col(f"{name}_copy").cast(pl.Float64)
    both = (first.log() + copy.log()) / 2
    return pl.when(copy.is_null() | first.is_null()).then(first).otherwise(both.exp())


def deciding_pairs(pairs: pl.DataFrame) -> pl.DataFrame:
    """The pairs of the deciding windows."""
    return pairs.filter("deciding")


@dataclass(frozen=True, slots=True)
class BlockMeans:
    """One measure over one set of pairs. `differences`: block → mean of ln(arm / base); `base`: mean of ln base in ns.

    A block without a value is left out of both.
    """

    differences: dict[int, float] = field(default_factory=dict)
    base: dict[int, float] = field(default_factory=dict)

    @property
    def base_geomean_ms(self) -> float | None:
        """Geometric mean of the base in ms: over the pairs of a block, then over blocks. None without a value."""
        return math.exp(sum(self.base.values()) / len(self.base)) / MILLISECOND_NS if self.base else None


def block_means(pairs: pl.DataFrame) -> dict[str, BlockMeans]:
    """Measure → its means over all these pairs."""
    return _means(pairs.group_by("block").agg(*_logs()).sort("block"))


def class_means(pairs: pl.DataFrame) -> dict[str, dict[str, BlockMeans]]:
    """Workload class, in the order of names → measure → its means over the pairs of the class."""
    table = pairs.group_by("workload", "block").agg(*_logs()).sort("workload", "block")
    parts = table.partition_by("workload", as_dict=True, maintain_order=True)
    return {str(name): _means(part) for (name,), part in parts.items()}


def _logs() -> list[pl.Expr]:
    expressions = []
    for measure, column in COLUMNS.items():
        base = pl.col(f"{column}_base").log()
        ratio = pl.col(column).log() - base
        expressions.append(ratio.mean().alias(measure))
        expressions.append(base.filter(ratio.is_not_null()).mean().alias(f"{measure}_base"))
    return expressions


def _means(table: pl.DataFrame) -> dict[str, BlockMeans]:
    found = {measure: BlockMeans() for measure in COLUMNS}
    for row in table.iter_rows(named=True):
        for measure, means in found.items():
            if row[measure] is not None:
                means.differences[row["block"]] = row[measure]
                means.base[row["block"]] = row[f"{measure}_base"]
    return found


def quantile_differences(pairs: pl.DataFrame, measure: str, share: float) -> dict[int, float]:
    """Block → ln of the arm's quantile − mean ln of the quantiles of the base's boots.

    Never pools boots before the quantile (type 7): averaged requests have thinner tails than any boot.
    """
    column = COLUMNS[measure]
    both = pairs.drop_nulls([column, f"{column}_first"])
    own, first, copy = (
        pl.col(name).quantile(share, "linear").log() for name in (column, f"{column}_first", f"{column}_copy")
    )
    table = both.group_by("block").agg(own.alias("own"), first.alias("first"), copy.alias("copy"))
    base = pl.mean_horizontal("first", "copy")
    table = table.select("block", (pl.col("own") - base).alias("d")).drop_nulls("d").sort("block")
    return dict(zip(table["block"].to_list(), table["d"].to_list(), strict=True))


def coverage(pairs: pl.DataFrame, measure: str) -> float | None:
    """Share of the pairs that have this measure on both sides. None without a pair."""
    column = COLUMNS[measure]
    if pairs.is_empty():
        return None
    return float(pairs.select((pl.col(column).is_not_null() & pl.col(f"{column}_base").is_not_null()).mean()).item())


def fewest_values(pairs: pl.DataFrame, measure: str) -> int:
    """The fewest pairs with this measure in any block; 0 without a block."""
    column = COLUMNS[measure]
    counts = pairs.drop_nulls([column, f"{column}_base"]).group_by("block").len()["len"].to_list()
    return min(counts, default=0)


def cached_shares(pairs: pl.DataFrame) -> tuple[float, float] | None:
    """Cached tokens as a share of prompt tokens, arm and base, or None where neither engine reports them.

    vLLM leaves the field out when it is 0. So once an engine of this comparison reports it, a request without it counts
    as 0; if none does, nothing is known.
    """
    reported = pairs.filter(pl.col("cached_tokens").is_not_null() | pl.col("cached_tokens_base").is_not_null())
    if reported.is_empty():
        return None
    shares = [_cached_share(pairs, side) for side in ("", "_base")]
    return None if shares[0] is None or shares[1] is None else (shares[0], shares[1])


def _cached_share(pairs: pl.DataFrame, side: str) -> float | None:
    known = pairs.drop_nulls([f"prompt_tokens{side}"])
    prompt = int(known[f"prompt_tokens{side}"].sum())
    return int(known[f"cached_tokens{side}"].sum()) / prompt if prompt else None


def failures(frame: pl.DataFrame, arm: str, blocks: Sequence[int] | None = None) -> tuple[int, int]:
    """Deciding requests of an arm that its engine failed or let run into the time-out, and all of them."""
    rows = frame.filter((pl.col("arm") == arm) & pl.col("deciding"))
    if blocks is not None:
        rows = rows.filter(pl.col("block").is_in(list(blocks)))
    failed = rows.filter((pl.col("outcome") == TIMEOUT) | (~pl.col("settled") & (pl.col("origin") == ENGINE)))
    return failed.height, rows.height
