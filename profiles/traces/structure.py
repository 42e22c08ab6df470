"""What a trace tells of shared prefixes and conversations, as columns of a profile."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from profiles.prefixes import PrefixLinks, chain
from profiles.scan import KEYED
from profiles.structure import find_structure
from profiles.traces.imported import Ids, Imported


@dataclass(frozen=True, slots=True)
class Structured:
    """Requests with what is known of their structure. `prefix` and `segments` are for `write_profile`."""

    requests: pl.DataFrame
    prefix: dict[str, Any] | None = None
    segments: pl.DataFrame | None = None
    notes: tuple[str, ...] = ()


def structured(whole: Imported) -> Structured:
    """Block ids and keyed ids of prompts become references between requests; no id is left."""
    if KEYED in whole.requests.columns:
        # Of a list without times, each request ends before the next begins.
        timed = "end_ns" in whole.requests.columns
        found = find_structure(
            [whole.requests.with_columns(pl.col("end_ns" if timed else "arrival_ns").alias("end_ns"))]
        )
        requests = whole.requests.drop(KEYED).with_columns(found.columns.get_columns())
        requests = requests if timed else requests.drop("think_ns")
        return Structured(requests, found.prefix, found.segments, (found.sentence,))
    if whole.ids is None:
        return Structured(whole.requests, whole.prefix)
    requests, prefix = _with_prefixes(whole.requests, whole.ids)
    return Structured(requests, prefix)


def _with_prefixes(requests: pl.DataFrame, ids: Ids) -> tuple[pl.DataFrame, dict[str, Any]]:
    links = _linked(ids)
    if links.unchained:
        # Ids of blocks alone: a block is shared only where all before it are.
        known: dict[tuple[int, Any], int] = {}
        chained = [
            np.array(chain(ids.flat[start:end].tolist(), known), np.int64)
            for start, end in zip(ids.starts[:-1], ids.starts[1:], strict=True)
        ]
        flat = np.concatenate(chained) if chained else ids.flat
        links = _linked(Ids(flat, ids.starts, ids.block, ids.tail))
    found = links.columns()
    told = pl.Series(found.blocks > 0)
    requests = requests.with_columns(
        pl.Series("blocks", found.blocks),
        pl.Series("prefix_ref", found.prefix_ref),
        pl.Series("prefix_blocks", found.prefix_blocks),
    ).with_columns(
        pl.when(told & (pl.col("prefix_ref") >= 0)).then("prefix_ref").alias("prefix_ref"),
        *(pl.when(told).then(name).alias(name) for name in ("blocks", "prefix_blocks")),
    )
    return requests, {"unit": "tokens", "block": ids.block, "tail": ids.tail}


def _linked(ids: Ids) -> PrefixLinks:
    links = PrefixLinks()
    for start, end in zip(ids.starts[:-1].tolist(), ids.starts[1:].tolist(), strict=True):
        links.add(ids.flat[start:end])
    return links
