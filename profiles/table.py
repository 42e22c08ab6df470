"""The table of requests: `ProfileRow` as polars types. Whoever makes a part of it gets the rest as nulls."""

from operator import attrgetter
from typing import Any, Final, get_args

import msgspec
import polars as pl

from profiles.profile import ProfileRow
from profiles.records import RequestFacts

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

# Columns that are fields of `RequestFacts`. The first three are known of a body that nobody could read, too.
HEADS: Final = ("model", "stream", "unread")
ASKED: Final = tuple(name for name in RequestFacts.__struct_fields__ if name in SCHEMA and name not in HEADS)
_read_asked = attrgetter(*ASKED)
_NOT_ASKED: Final = (None,) * len(ASKED)


def asked_of(facts: RequestFacts) -> tuple[Any, ...]:
    """What a body asked for: the values of ASKED. Of one that was not read nothing is known; the facts hold 0."""
    return _NOT_ASKED if facts.unread is not None else _read_asked(facts)


def facts_row(facts: RequestFacts) -> dict[str, Any]:
    """The columns HEADS and ASKED of one request, by name."""
    return {name: getattr(facts, name) for name in HEADS} | dict(zip(ASKED, asked_of(facts), strict=True))


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
