"""Conditions of the class rules: `COLUMN OPERATOR VALUE`, read and checked. What they mean for a frame is `classify`'s.

`classes.toml` documents the language at its head. A condition that cannot hold by its form (an unknown column, a word
where a number is needed) raises `ConditionError`, whose hint says what to write.
"""

import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, Literal

import msgspec

from profiles.dialects import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, OTHER, RESPONSES
from profiles.profile import ProfileRow
from profiles.requests import FORMATS, ROLES

Value = int | float | str | bool
Operator = Literal["==", "!=", ">", ">=", "<", "<=", "in", "like", "known", "unknown"]

NUMBER: Final = "number"
TEXT: Final = "text"
TRUTH: Final = "true or false"

# Known of a recorded request, but not columns of every profile.
_RECORDED = {"unread": TEXT, "audios": NUMBER, "videos": NUMBER}
_DERIVED = {"input_tokens": NUMBER, "input_counted_by": TEXT, "turns": NUMBER}
# What a class is not told by: itself, and what is counted once all classes are known.
_NOT_ASKED = frozenset(("request", "workload", "workload_rule", "in_flight", "deps"))
_KINDS = {int: NUMBER, float: NUMBER, str: TEXT, bool: TRUTH}
# Columns whose words come from a fixed list. A word that is not on it never matches, so it is a mistake.
_WORDS = {
    "endpoint": frozenset((CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS, OTHER)),
    "last_role": ROLES | {OTHER},
    "response_format": FORMATS | {OTHER},
}


def _kind_of(annotation: object) -> str | None:
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((_KINDS[option] for option in options if option in _KINDS), None)


def _columns() -> dict[str, str]:
    fields = {field.name: _kind_of(field.type) for field in msgspec.structs.fields(ProfileRow)}
    known = {name: kind for name, kind in fields.items() if kind is not None and name not in _NOT_ASKED}
    return known | _RECORDED | _DERIVED


# Column → what it holds.
COLUMNS: Final = _columns()


class ConditionError(ValueError):
    """A condition that cannot be accepted, and what to write instead."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. With `times` its one value is a factor: the column is compared with value × that column."""

    column: str
    operator: Operator
    values: tuple[Value, ...] = ()
    times: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if self.times is None else (self.column, self.times)

    def text(self, column: str | None = None) -> str:
        """The condition for a reader: `prompt_tokens ≥ 4096`. `column` is the name to show in its place."""
        name = column or self.column
        if self.operator in ("known", "unknown"):
            return f"{name} {self.operator}"
        sign = {">=": "≥", "<=": "≤", "==": "=", "!=": "≠"}.get(self.operator, self.operator)
        if self.times is not None:
            return f"{name} {sign} {self.values[0]} × {self.times}"
        shown = ", ".join("true" if each is True else "false" if each is False else str(each) for each in self.values)
        return f"{name} {sign} [{shown}]" if len(self.values) > 1 else f"{name} {sign} {shown}"


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """`Did you mean 'x'?` for the nearest known word, or else what is given."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else otherwise


_FORM = "Write COLUMN OPERATOR VALUE, such as: tools > 0, last_role == tool, finish in [stop, length], tools unknown."
_CONDITION = re.compile(r"\s*([A-Za-z_]\w*)\s*([^\w\s\[\"'.-]+|\w+)\s*(.*?)\s*", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d[\d_]*(?:\.\d+)?")
_PRODUCT = re.compile(r"([+-]?\d[\d_]*(?:\.\d+)?)\s*\*\s*([A-Za-z_]\w*)")
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
_ITEM = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s,"'\[\]]+))\s*""")
_OPERATORS = typing.get_args(Operator)
_ORDERED = (">", ">=", "<", "<=")
_EASILY_MEANT = {"=": "==", "is": "==", "<>": "!=", "=>": ">=", "=<": "<=", "≥": ">=", "≤": "<=", "≠": "!="}


def read_condition(source: str) -> Condition:
    """The condition in a text. Raises ConditionError."""
    found = _CONDITION.fullmatch(source)
    if found is None:
        raise ConditionError(f"{source!r} is not a condition", _FORM)
    column, sign, rest = found[1], found[2], found[3]
    kind = _known_column(column)
    if sign not in _OPERATORS:
        meant = _EASILY_MEANT.get(sign)
        hint = f"Write {meant}." if meant else suggest(sign, _OPERATORS, f"Operators are {' '.join(_OPERATORS)}.")
        raise ConditionError(f"unknown operator {sign!r} in {source!r}", hint)
    operator = typing.cast(Operator, sign)
    if operator in ("known", "unknown"):
        if rest:
            raise ConditionError(f"{source!r} goes on after {operator!r}", f"Write {column} {operator}.")
        return Condition(column, operator)
    if not rest:
        raise ConditionError(f"{source!r} has no value", _FORM)
    if operator in _ORDERED and kind != NUMBER:
        raise ConditionError(f"{column} holds {kind}, and {operator} is for numbers", "Write ==, !=, in or like.")
    if operator == "like" and kind != TEXT:
        raise ConditionError(f"{column} holds a {kind}, and like is for text", "Compare it with == or >=.")
    product = _PRODUCT.fullmatch(rest)
    if product is not None and kind == NUMBER and operator not in ("in", "like"):
        return _product(source, column, operator, product)
    values = tuple(_value(column, kind, word) for word in _words(source, operator, rest))
    _check_words(column, operator, values)
    return Condition(column, operator, values)


def _known_column(column: str) -> str:
    if column not in COLUMNS:
        ask = "`firsttoken profile classes --columns` lists the columns."
        raise ConditionError(f"unknown column {column!r}", suggest(column, COLUMNS, ask))
    return COLUMNS[column]


def _product(source: str, column: str, operator: Operator, product: re.Match[str]) -> Condition:
    other = product[2]
    if _known_column(other) != NUMBER:
        raise ConditionError(f"{other} holds no number in {source!r}", "Multiply a column of numbers.")
    return Condition(column, operator, (_number(product[1]),), other)


def _words(source: str, operator: str, rest: str) -> list[str]:
    """The words of the right side: one, or those of a list."""
    listed = _LIST.fullmatch(rest)
    if listed is not None and operator not in ("in", "like"):
        raise ConditionError(f"{operator} takes one value in {source!r}", "Write in for one of several.")
    if listed is None and operator == "in":
        raise ConditionError(f"in needs a list in {source!r}", f"Write in [{rest}].")
    parts = listed[1].split(",") if listed is not None else [rest]
    found = [_ITEM.fullmatch(part) for part in parts]
    if not all(found):
        raise ConditionError(f"{rest!r} is not a value in {source!r}", 'Quote a text that holds blanks: "two words".')
    return [next(group for group in match.groups() if group is not None) for match in found if match is not None]


def _value(column: str, kind: str, word: str) -> Value:
    if kind == TEXT:
        return word
    if kind == TRUTH:
        if word in ("true", "false"):
            return word == "true"
        raise ConditionError(f"{column} is true or false, not {word!r}", f"Write {column} == true.")
    if _NUMBER.fullmatch(word) is None:
        hint = "Times another column it is written 1 * COLUMN." if word in COLUMNS else "Write digits, such as 4096."
        raise ConditionError(f"{column} holds a number, and {word!r} is none", hint)
    return _number(word)


def _number(word: str) -> int | float:
    return float(word) if "." in word else int(word)


def _check_words(column: str, operator: str, values: tuple[Value, ...]) -> None:
    words = _WORDS.get(column)
    if words is None or operator == "like":
        return
    for value in values:
        if value not in words:
            raise ConditionError(f"{column} is never {value!r}", suggest(str(value), words, f"It is {_one_of(words)}."))


def _one_of(words: Iterable[str]) -> str:
    *most, last = sorted(words)
    return f"{', '.join(most)} or {last}"


COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": eq,
    "!=": ne,
    ">": gt,
    ">=": ge,
    "<": lt,
    "<=": le,
}


def implies(held: Condition, asked: Condition) -> bool:
    """Whether `asked` surely holds where `held` does. False where it is not easily seen."""
    if held == asked:
        return True
    if held.column != asked.column or "unknown" in (held.operator, asked.operator):
        return False
    if asked.operator == "known":
        return True
    if held.times or asked.times or held.operator == "known" or "like" in (held.operator, asked.operator):
        return False
    if held.operator in ("==", "in"):
        return all(_satisfies(value, asked) for value in held.values)
    same_way = held.operator in _ORDERED and asked.operator in _ORDERED and held.operator[0] == asked.operator[0]
    return same_way and _satisfies(held.values[0], asked)


def _satisfies(value: Value, asked: Condition) -> bool:
    if asked.operator == "in":
        return value in asked.values
    return bool(COMPARE[asked.operator](value, asked.values[0]))
