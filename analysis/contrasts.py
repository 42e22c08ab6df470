"""An arm against another one, block by block: the same request in both boots of a block makes a pair.

Within a block the differences of logarithms are averaged over the pairs of all deciding windows. Requests were given to
the concurrency levels by their share of arrivals, so this plain mean is the mix at the observed operating point.

A block boots the baseline twice, and each of its boots that holds enough of the requests serves as the reference. Where
both do, it is the mean of the two logarithms: what one boot happened to be counts half, which takes a quarter off the
variance between blocks at no machine time. Where one does, it serves alone. All of them are held against the arm over
the same requests, those that they have in common.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from analysis.measures import COLUMNS
from profiles.records import ENGINE, TIMEOUT
from profiles.units import MILLISECOND_NS

KEY: Final = ["block", "window", "index"]
# A boot serves as a reference if it holds at least this share of its deciding requests; that of an arm counts if it
# does so with what its own engine broke left aside.
LEAST_PAIRED: Final = 0.98
_SIDE = ["ttft_ns", "tpot_ns", "cached_tokens", "prompt_tokens"]


@dataclass(frozen=True, slots=True)
class Held:
    """Deciding requests of one boot: asked for, settled, and failed by its engine."""

    wanted: int
    settled: int
    fault: int

    @property
    def serves(self) -> bool:
        """Whether others can be held against this boot."""
        return self.settled / self.wanted >= LEAST_PAIRED

    def said(self, name: str) -> str:
        """What it lacks: `v0 answered only 150 of 200 requests`."""
        return f"{name} answered only {self.settled} of {self.wanted} requests"


@dataclass(frozen=True, slots=True)
class Contrast:
    """The pairs of an arm and its reference: `pairs` has a row per request, the reference's columns end in `_base`.

    `served` names the boots that are the reference in each block that counts. A row's `boots` says how many of them
    played its window; `_base` of a measure is the geometric mean over them, null where one lacks it, and `_first` and
    `_copy` are theirs alone.

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
    served: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def references(self) -> int:
        """How many boots of the reference a block is held against: the fewest of any block."""
        return min((len(names) for names in self.served.values()), default=1)


def contrast(
    frame: pl.DataFrame, arm: str, base: str, planned: int, copy: str | None = None, *, excused: bool = True
) -> Contrast:
    """Pair `arm` with `base`, and with its second `copy` in the same block where there is one.

    `frame` comes from `with_measures`; `planned` deciding requests were asked. What the engine of an arm broke discards
    no block, it counts against the arm; with `excused` off it does: a baseline is not judged, it has to be whole.
    """
    held = held_by_boot(frame, planned)
    blocks: list[int] = []
    discarded: list[tuple[int, str]] = []
    served: dict[int, tuple[str, ...]] = {}
    for block in sorted(block for name, block in held if name == arm):
        boots = [name for name in (base, copy) if name is not None and (name, block) in held]
        serving = tuple(name for name in boots if held[name, block].serves)
        own = held[arm, block]
        lost = own.wanted - own.settled - (own.fault if excused else 0)
        if boots and not serving:
            discarded.append((block, " and ".join(held[name, block].said(name) for name in boots)))
        elif boots and (own.wanted - lost) / own.wanted < LEAST_PAIRED:
            of_others = f"{arm} lost {lost} of {own.wanted} requests through no fault of its engine"
            discarded.append((block, of_others if excused else own.said(arm)))
        elif boots:
            blocks.append(block)
            served[block] = serving
    pairs = _pairs(frame.filter("settled"), arm, (base, copy), served)
    compared = set(pairs.filter("deciding")["block"].unique().to_list())
    broken = tuple(block for block in blocks if block not in compared)
    usable = tuple(block for block in blocks if block in compared)
    pairs = pairs.filter(pl.col("block").is_in(usable)) if broken else pairs
    served = {block: served[block] for block in usable}
    return Contrast(arm, base, pairs, usable, tuple(discarded), broken, copy, served)


def held_by_boot(frame: pl.DataFrame, planned: int) -> dict[tuple[str, int], Held]:
    """(arm, block) → what its boot holds of the deciding requests, as many as any boot of the block was asked."""
    fault = ~pl.col("settled") & (pl.col("origin") == ENGINE)
    counts = frame.filter("deciding").group_by("arm", "block")
    table = counts.agg(pl.len().alias("asked"), pl.col("settled").sum(), fault.sum().alias("fault"))
    table = table.with_columns(pl.col("asked").max().over("block").clip(planned).alias("wanted"))
    rows = table.select("arm", "block", "wanted", "settled", "fault").iter_rows()
    return {(arm, block): Held(*counted) for arm, block, *counted in rows}


def _pairs(
    settled: pl.DataFrame, arm: str, sides: tuple[str, str | None], served: Mapping[int, tuple[str, ...]]
) -> pl.DataFrame:
    """A row per request that the arm and every boot serving in its window have."""
    serving = [(block, name) for block, names in served.items() for name in names]
    schema = {"block": pl.Int64, "arm": pl.String}
    theirs = settled.join(pl.DataFrame(serving, schema=schema, orient="row"), on=["block", "arm"], how="semi")
    pairs = (
        settled.filter((pl.col("arm") == arm) & pl.col("block").is_in(list(served)))
        .select([*KEY, "kind", "deciding", "c", "workload", *_SIDE])
        .join(
            theirs.group_by("block", "window").agg(pl.col("arm").n_unique().alias("boots")),
            on=["block", "window"],
            how="inner",
            maintain_order="left",
        )
    )
    names = ("first", "copy")
    for name, side in zip(names, sides, strict=True):
        rows = theirs.filter(pl.col("arm") == side if side is not None else pl.lit(False))
        renamed = rows.select(*KEY, *(pl.col(key).alias(f"{key}_{name}") for key in (*_SIDE, "settled")))
        pairs = pairs.join(renamed, on=KEY, how="left", maintain_order="left")
    there = pl.sum_horizontal(pl.col(f"settled_{name}").is_not_null() for name in names)
    tokens = [pl.coalesce(f"{key}_first", f"{key}_copy").alias(f"{key}_base") for key in _SIDE[2:]]
    measures = [_over_boots(key).alias(f"{key}_base") for key in COLUMNS.values()]
    return pairs.filter(there == pl.col("boots")).with_columns(*measures, *tokens).drop("settled_first", "settled_copy")


def _over_boots(name: str) -> pl.Expr:
    """Geometric mean of a measure over the boots of the reference; null where one of them lacks it."""
    sides = [pl.col(f"{name}_{side}").cast(pl.Float64) for side in ("first", "copy")]
    known = pl.sum_horizontal(side.is_not_null() for side in sides)
    # One boot alone is taken as it is: no rounding by way of the logarithm.
    value = pl.when(known == 1).then(pl.coalesce(sides)).otherwise(pl.mean_horizontal(s.log() for s in sides).exp())
    return pl.when(known == pl.col("boots")).then(value)


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
    """Block → ln of the arm's quantile − mean ln of the quantiles of the base's boots, over the same requests.

    Never pools boots before the quantile (type 7): averaged requests have thinner tails than any boot.
    """
    column = COLUMNS[measure]
    both = pairs.drop_nulls([column, f"{column}_base"])
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
