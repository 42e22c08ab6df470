"""One measure of an arm against the baseline, as arrays of class × block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.measures import COLUMNS
from analysis.split.held_out import Floats


@dataclass(frozen=True, slots=True)
class ClassBlocks:
    """`differences`: mean of ln(arm / baseline) over the pairs, NaN without one; `counts`: pairs that have the measure;
    `base`: mean of ln baseline in ns over the same pairs. All class × block."""

    differences: Floats
    counts: Floats
    base: Floats


def class_blocks(
    pairs: pl.DataFrame, blocks: Sequence[int], measures: Sequence[str]
) -> tuple[list[str], dict[str, ClassBlocks]]:
    """Classes by name, and each measure over these blocks. `pairs` as in `Contrast`."""
    names = sorted(str(name) for name in pairs["workload"].unique().to_list())
    row_of = {name: row for row, name in enumerate(names)}
    column_of = {block: column for column, block in enumerate(blocks)}
    found = {}
    for measure in measures:
        base = pl.col(f"{COLUMNS[measure]}_base").log()
        ratio = pl.col(COLUMNS[measure]).log() - base
        rows = pairs.group_by("workload", "block").agg(
            ratio.mean().alias("d"), ratio.count().alias("n"), base.filter(ratio.is_not_null()).mean().alias("base")
        )
        table = ClassBlocks(*(np.full((len(names), len(blocks)), empty) for empty in (np.nan, 0.0, np.nan)))
        for name, block, difference, count, level in rows.iter_rows():
            if difference is not None and block in column_of:
                cell = row_of[str(name)], column_of[block]
                table.differences[cell], table.counts[cell], table.base[cell] = difference, count, level
        found[measure] = table
    return names, found


def narrowed(names: Sequence[str], tables: Mapping[str, ClassBlocks], wanted: Sequence[str]) -> dict[str, ClassBlocks]:
    """The same tables with these classes only, in this order."""
    rows = [names.index(name) for name in wanted]
    return {
        measure: ClassBlocks(table.differences[rows], table.counts[rows], table.base[rows])
        for measure, table in tables.items()
    }
