"""Workload class of each request, by the ordered rules of a file: the first that holds wins.

1. `read_rules` reads `classes.toml`, or the file that a user puts in its place.
2. `classify_frame` applies them to a table of requests, as polars expressions: no loop over rows.
3. `what_is_unseen` says which classes could not be told in a table, because nobody recorded what they are told by.
"""

from collections.abc import Iterable
from typing import Final

import polars as pl

from profiles.class_rules import Rule, Rules, read_rules
from profiles.rule_columns import COUNTED_BY, Seen, first_rule
from profiles.unseen import what_is_unseen

__all__ = ["Rules", "classify_frame", "read_rules", "what_is_unseen"]

GIVEN: Final = "given by its source"

_NOT_A_SUFFIX = ("en", "und")


def classify_frame[Frame: (pl.DataFrame, pl.LazyFrame)](requests: Frame, rules: Rules) -> Frame:
    """The same requests, with `workload` and `workload_rule` filled where they were null.

    `requests` has any of the columns of `ProfileRow`, and `unread`, `audios`, `videos` where they are known; what is
    missing is unknown. A class whose requests speak Hungarian is `chat_single.hu`. A class that was given stays.
    """
    if isinstance(requests, pl.DataFrame):
        return _classify(requests.lazy(), rules).collect(engine="streaming")
    return _classify(requests, rules)


# While a table is classified: 3 × the rule that spoke + how the input was counted, an index into all texts there are.
_KEY = "__key"


def _classify(requests: pl.LazyFrame, rules: Rules) -> pl.LazyFrame:
    seen = Seen(requests.collect_schema(), rules.chars_per_token)
    workload, text = _workload(seen, rules), _text(seen, rules)
    if seen.has("workload"):
        given = pl.col("workload")
        text = pl.when(given.is_null()).then(text).otherwise(pl.lit(GIVEN))
        workload = pl.coalesce(given.cast(pl.String), workload)
    if seen.has("workload_rule"):
        text = pl.coalesce(pl.col("workload_rule").cast(pl.String), text)
    keyed = requests.with_columns((first_rule(seen, rules) * 3 + seen.counted_by()).alias(_KEY))
    return keyed.with_columns(workload=workload, workload_rule=text).drop(_KEY)


def _look_up(values: Iterable[str | None]) -> pl.Expr:
    """The value that belongs to the key of each request."""
    return pl.lit(pl.Series(list(values), dtype=pl.String)).gather(pl.col(_KEY))


def _workload(seen: Seen, rules: Rules) -> pl.Expr:
    of_key = [each for each, _ in rules.ordered() for _ in seen.counts]
    name = _look_up(each.name for each in of_key)
    if not seen.has("language"):
        return name
    language = seen.value("language")
    speaks = pl.lit(pl.Series([each.language for each in of_key])).gather(pl.col(_KEY))
    is_suffix = language.is_in(list(_NOT_A_SUFFIX)).not_() & language.str.len_bytes().is_between(2, 3)
    suffix = pl.when(speaks & is_suffix).then(language)
    # A null makes the whole text null, so nothing is put together for the requests without a suffix.
    return pl.coalesce(pl.concat_str(name, pl.lit("."), suffix), name)


def _text(seen: Seen, rules: Rules) -> pl.Expr:
    """Which rule spoke. A text that shows no value is looked up, the others are put together: literal, value, …"""
    split = [_split(rule, counted_by or "unknown") for _, rule in rules.ordered() for counted_by in seen.counts]
    plain = _look_up(None if columns else literals[0] for literals, columns in split)
    most = max(len(columns) for _, columns in split)
    if most == 0:
        return plain
    parts = [_look_up(literals[0] if columns else None for literals, columns in split)]
    for at in range(most):
        value: pl.Expr = pl.lit("" if at else None, pl.String)
        for column in sorted({columns[at] for _, columns in split if len(columns) > at}):
            those = [key for key, (_, columns) in enumerate(split) if columns[at : at + 1] == [column]]
            shown = seen.value(column).cast(pl.String).fill_null("unknown")
            value = pl.when(pl.col(_KEY).is_in(those)).then(shown).otherwise(value)
        parts += [value, _look_up("".join(literals[at + 1 : at + 2]) for literals, _ in split)]
    return pl.coalesce(plain, pl.concat_str(parts))


def _split(rule: Rule, counted_by: str) -> tuple[list[str], list[str]]:
    """A rule's text as literals, and the columns whose values stand between them."""
    literals, columns = [""], []
    for piece in rule.says:
        if isinstance(piece, str):
            literals[-1] += piece
        elif piece.column == COUNTED_BY:
            literals[-1] += counted_by
        else:
            columns.append(piece.column)
            literals.append("")
    return literals, columns
