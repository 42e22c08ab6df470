"""The table of requests: `ProfileRow` as polars types. Whoever makes a part of it gets the rest as nulls."""

from typing import Any, get_args

import msgspec
import polars as pl

from profiles.profile import ProfileRow

_TYPES: dict[Any, pl.DataType] = {
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
    bool: pl.Boolean(),
    list[int]: pl.List(pl.Int64()),
}


def _column_type(annotation: Any) -> pl.DataType:
    """`int | None` is a nullable column of the type that stands first."""
    return _TYPES[annotation] if annotation in _TYPES else _TYPES[get_args(annotation)[0]]


# Column name to type, in the order of `ProfileRow`.
SCHEMA: dict[str, pl.DataType] = {
    field.name: _column_type(field.type) for field in msgspec.structs.fields(ProfileRow)
} | {"request": pl.UInt32()}

_WITHOUT_DEFAULT = {
    field.name: field.default for field in msgspec.structs.fields(ProfileRow) if isinstance(field.default, bool | int)
}


def complete(requests: pl.DataFrame) -> pl.DataFrame:
    """The same rows with every column of `SCHEMA`, in its order and of its type.

    What is missing is null, or its default where a row must have one. Columns that no profile has are left out.

    Raises polars' InvalidOperationError where a value does not fit its column.
    """
    columns = []
    for name, kind in SCHEMA.items():
        if name in requests.columns:
            columns.append(pl.col(name).cast(kind))
        else:
            columns.append(pl.lit(_WITHOUT_DEFAULT.get(name), dtype=kind).alias(name))
    return requests.select(columns)
