"""Class rules as polars expressions over a table of requests, whatever columns it has."""

import re
from typing import Final

import polars as pl

from profiles.class_conditions import COLUMNS, COMPARE, NUMBER, TEXT, Condition
from profiles.class_rules import Rule, Rules

COUNTED_BY: Final = "input_counted_by"


class Seen:
    """Columns of a table as expressions of a type that conditions can rely on. A column that is missing is null."""

    def __init__(self, schema: pl.Schema, chars_per_token: int) -> None:
        self._schema = schema
        self._chars_per_token = chars_per_token

    def has(self, column: str) -> bool:
        """Whether anything can be known of a column."""
        sources = {
            "input_tokens": ("prompt_tokens", "input_chars"),
            COUNTED_BY: ("prompt_tokens", "input_chars"),
            "turns": ("user_turns", "turn"),
        }.get(column, (column,))
        return any(self._schema.get(source, pl.Null()) != pl.Null() for source in sources)

    def value(self, column: str) -> pl.Expr:
        """The column, derived ones included."""
        if column == "input_tokens":
            return pl.coalesce(self.value("prompt_tokens"), self.value("input_chars") // self._chars_per_token)
        if column == COUNTED_BY:
            return pl.lit(pl.Series(self.counts)).gather(self.counted_by())
        if column == "turns":
            return pl.coalesce(self.value("user_turns"), self.value("turn") + 1)
        return self._own(column)

    @property
    def counts(self) -> tuple[str, str, None]:
        """What `input_tokens` may have been counted by, None where it is unknown."""
        return "prompt_tokens", f"input_chars/{self._chars_per_token}", None

    def counted_by(self) -> pl.Expr:
        """Index into `counts`."""
        by_chars = self.value("input_chars").is_not_null()
        otherwise = pl.when(by_chars).then(pl.lit(1, pl.UInt16)).otherwise(pl.lit(2, pl.UInt16))
        return pl.when(self.value("prompt_tokens").is_not_null()).then(pl.lit(0, pl.UInt16)).otherwise(otherwise)

    def _own(self, column: str) -> pl.Expr:
        kind = COLUMNS.get(column, TEXT)
        type_ = pl.Int64() if kind == NUMBER else pl.String() if kind == TEXT else pl.Boolean()
        if not self.has(column):
            return pl.lit(None, type_)
        own = self._schema[column]
        if kind == NUMBER and own.is_float():
            return pl.col(column).fill_nan(None)  # NaN would be greater than any number
        if own == type_:
            return pl.col(column)
        # Narrow integers would overflow in a product.
        return pl.col(column).cast(type_ if kind != NUMBER or own.is_integer() else pl.Float64(), strict=False)


def condition_holds(seen: Seen, condition: Condition) -> pl.Expr:
    """Whether a condition holds: true, false, or null where the column is unknown."""
    value = seen.value(condition.column)
    match condition.operator:
        case "known":
            return value.is_not_null()
        case "unknown":
            return value.is_null()
        case "in":
            return value.is_in(list(condition.values))
        case "like":
            return pl.any_horizontal([_is_like(value, str(pattern)) for pattern in condition.values])
    limit: pl.Expr = pl.lit(condition.values[0])
    if condition.times is not None:
        limit = limit * seen.value(condition.times)
    compared: pl.Expr = COMPARE[condition.operator](value, limit)
    return compared


def _is_like(value: pl.Expr, pattern: str) -> pl.Expr:
    first, *between, last = pattern.split("*") if "*" in pattern else (pattern, pattern)
    if "*" not in pattern:
        return value == pattern
    if not any(between) and not (first and last):  # the forms that need no regular expression, which is slow
        if last:
            return value.str.ends_with(last)
        return value.str.starts_with(first)
    if not first and not last and len(between) == 1:
        return value.str.contains(between[0], literal=True)
    form = ".*".join(re.escape(part) for part in pattern.split("*"))
    return value.str.contains(f"(?s)^{form}$")


def _can_hold(seen: Seen, rule: Rule) -> bool:
    """Whether the columns of a rule are there at all."""
    return all(
        condition.operator == "unknown" or all(seen.has(column) for column in condition.columns)
        for condition in rule.conditions
    )


def first_rule(seen: Seen, rules: Rules) -> pl.Expr:
    """Index of the first rule that holds. A rule that needs a missing column is not even asked."""
    ordered = [rule for _, rule in rules.ordered()]
    first: pl.Expr = pl.lit(len(ordered) - 1, pl.UInt16)
    for index, rule in reversed([*enumerate(ordered)][:-1]):
        if _can_hold(seen, rule):
            holds = pl.all_horizontal([condition_holds(seen, condition) for condition in rule.conditions])
            first = pl.when(holds).then(pl.lit(index, pl.UInt16)).otherwise(first)
    return first
