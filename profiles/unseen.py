"""Which classes could not be told in a table of requests, because nobody recorded what they are told by."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from profiles.class_conditions import Condition
from profiles.class_rules import Rules
from profiles.rule_columns import Seen, condition_holds, first_rule
from profiles.units import format_percent

# A request that was recorded may have no limit and ask for no format. These are unseen where its body was not read.
_MAY_BE_ABSENT = frozenset(("response_format", "max_tokens", "temperature", "last_role", "schema"))
# None of these says that something was not recorded.
_MAY_BE_NULL = frozenset(("unread", "origin", "think_ns", "think_kind", "parent", "link", "session_source"))

_REASONS = {
    "no text was recorded": ("code_share", "language"),
    "what was asked for was not recorded": (
        *("messages", "user_turns", "last_role", "tools", "tool_results", "images", "audios", "videos", "stream", "n"),
        *("response_format", "schema", "max_tokens", "temperature", "reasoning", "system_chars", "turns"),
    ),
    "the answers do not tell": ("prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "finish"),
}
_REASON_OF = {column: reason for reason, columns in _REASONS.items() for column in columns}

_RULE = "__rule"


def what_is_unseen(requests: pl.DataFrame | pl.LazyFrame, rules: Rules) -> list[str]:
    """Plain sentences, one per reason: which classes, what is unknown, of how many requests, where those are now.

    A class counts as unseen for a request if one of its rules could have held, had its columns been known, and the
    request went to a later class. Empty if the rules saw all that they ask for.
    """
    table = _without_empty_columns(requests.lazy())
    seen = Seen(table.collect_schema(), rules.chars_per_token)
    ordered = list(rules.ordered())
    spoke = table.with_columns(first_rule(seen, rules).alias(_RULE))
    if seen.has("workload"):  # what a source gave was not told by these rules
        names = pl.lit(pl.Series([each.name for each, _ in ordered])).gather(pl.col(_RULE))
        own = pl.col("workload").cast(pl.String).str.split(".").list.first() == names
        spoke = spoke.filter(own | pl.col("workload").is_null())
    blind = _Blind(seen, rules)
    counted = spoke.group_by(_RULE).agg(pl.len(), *blind.counts(), _by_chars(seen), *_no_language(seen))
    rows = counted.collect(engine="streaming").sort(_RULE).to_dicts()
    total = sum(row["len"] for row in rows)
    sentences = blind.sentences(rows, total) + _taken_unseen(rows, rules, total)
    by_chars = sum(
        row["by_chars"] for row in rows if any(_is_input(held) for held in ordered[row[_RULE]][1].conditions)
    )
    if by_chars:
        share = _share(by_chars, total)
        sentences.append(
            f"lengths: prompt_tokens is unknown for {share} of the requests: {seen.counts[1]} told their class"
        )
    no_language = sum(row.get("no_language", 0) for row in rows if ordered[row[_RULE]][0].language)
    if no_language:
        share = _share(no_language, total)
        sentences.append(
            f"languages: no text was recorded, so language is unknown for {share} of the requests: their class has none"
        )
    return sentences


def _without_empty_columns(table: pl.LazyFrame) -> pl.LazyFrame:
    """Only columns that hold anything: a rule on one that holds nothing is then not asked at all."""
    known = table.select(pl.all().count()).collect(engine="streaming").row(0, named=True)
    return table.select([column for column, count in known.items() if count])


def _by_chars(seen: Seen) -> pl.Expr:
    return (seen.counted_by() == 1).sum().alias("by_chars")


def _no_language(seen: Seen) -> list[pl.Expr]:
    """Requests without any text. Where there was text, the language could not be told, which is no secret of ours."""
    silent = seen.value("language").is_null() & seen.value("code_share").is_null()
    return [(silent & (pl.col(_RULE) >= 0)).sum().alias("no_language")]  # with a column: a literal sums to one row


def _is_input(condition: Condition) -> bool:
    return "input_tokens" in condition.columns


@dataclass(frozen=True, slots=True)
class _Blind:
    """Which requests a class may have missed, by the column that was unknown."""

    seen: Seen
    rules: Rules

    def columns(self) -> list[str]:
        asked = {
            column: None for _, rule in self.rules.ordered() for held in rule.conditions for column in held.columns
        }
        return [column for column in asked if column not in _MAY_BE_NULL]

    def _classes_of(self, column: str) -> list[int]:
        return [
            index
            for index, each in enumerate(self.rules.classes)
            if any(column in held.columns for rule in each.rules for held in rule.conditions if _compares(held))
        ]

    def counts(self) -> Iterable[pl.Expr]:
        """Per column and class: the requests that went on to later classes because the column was unknown."""
        after = 0  # the first rule behind this class
        behind = []
        for each in self.rules.classes:
            after += len(each.rules)
            behind.append(pl.col(_RULE) >= after)
        for column in self.columns():
            for index in self._classes_of(column):
                blind = [self._blind(rule.conditions, column) for rule in self.rules.classes[index].rules]
                missed = behind[index] & pl.any_horizontal([each for each in blind if each is not None])
                yield missed.sum().alias(f"{column}/{index}")

    def _blind(self, conditions: Sequence[Condition], column: str) -> pl.Expr | None:
        """Whether a rule could have held, had the column been known."""
        if not any(column in held.columns for held in conditions if _compares(held)):
            return None
        may_hold = []
        for held in conditions:
            holds = condition_holds(self.seen, held).fill_null(False)
            if _compares(held):
                holds = holds | pl.any_horizontal([self._unseen(each) for each in held.columns])
            may_hold.append(holds)
        return self._unseen(column) & pl.all_horizontal(may_hold)

    def _unseen(self, column: str) -> pl.Expr:
        if column in _MAY_BE_NULL:
            return pl.lit(False)
        # Profiles that count no audio and no video still tell by the images whether the parts were looked at.
        source = "images" if column in ("audios", "videos") and not self.seen.has(column) else column
        unseen = self.seen.value(source).is_null()
        return unseen & self.seen.value("messages").is_null() if column in _MAY_BE_ABSENT else unseen

    def sentences(self, rows: Sequence[dict[str, int]], total: int) -> list[str]:
        ordered = [each.name for each, _ in self.rules.ordered()]
        # Columns that are unknown for one reason and for as many requests are said in one sentence.
        said: dict[tuple[str, int], tuple[list[str], list[int], Counter[str]]] = defaultdict(
            lambda: ([], [], Counter())
        )
        for column in self.columns():
            missed = {index: [row[f"{column}/{index}"] for row in rows] for index in self._classes_of(column)}
            most = max((sum(counts) for counts in missed.values()), default=0)
            if not most:
                continue
            columns, classes, went_to = said[_REASON_OF.get(column, ""), most]
            columns.append(column)
            for index, counts in missed.items():
                if any(counts):
                    classes.append(index)
                    for row, count in zip(rows, counts, strict=True):
                        went_to[ordered[row[_RULE]]] += count
        return [
            f"{_listed(self.rules.names[index] for index in sorted(set(classes)))}: {reason and f'{reason}, so '}"
            f"{_are(columns)} unknown for {_share(most, total)} of the requests: such requests are "
            f"{_most(went_to)} here"
            for (reason, most), (columns, classes, went_to) in said.items()
        ]


def _taken_unseen(rows: Sequence[dict[str, int]], rules: Rules, total: int) -> list[str]:
    """Requests whose class was told although something was unknown: the rule says so itself."""
    ordered = list(rules.ordered())
    said: dict[tuple[str, ...], tuple[list[str], int]] = {}
    for row in rows:
        each, rule = ordered[row[_RULE]]
        unknown = tuple(held.column for held in rule.conditions if held.operator == "unknown")
        if unknown:
            names, count = said.get(unknown, ([], 0))
            said[unknown] = ([*dict.fromkeys([*names, each.name])], count + row["len"])
    return [
        f"{_listed(names)}: {_are(columns)} unknown for {_share(count, total)} of the requests: "
        f"the rest of the rule told their class"
        for columns, (names, count) in said.items()
    ]


def _most(counts: Counter[str]) -> str:
    """The classes where most of them are: three, and whether there are more."""
    names = [name for name, count in counts.most_common() if count]
    return _listed(names if len(names) <= 3 else [*names[:3], "others"], "or")


def _share(count: int, total: int) -> str:
    return format_percent(count / total) if count / total >= 0.001 else "less than 0.1 %"


def _compares(condition: Condition) -> bool:
    return condition.operator != "unknown"


def _are(columns: Sequence[str]) -> str:
    return f"{_listed(columns)} {'is' if len(columns) == 1 else 'are'}"


def _listed(words: Iterable[str], last: str = "and") -> str:
    *most, end = words
    return f"{', '.join(most)} {last} {end}" if most else end
