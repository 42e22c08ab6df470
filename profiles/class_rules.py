"""The file of class rules: `classes.toml`, or one that a user puts in its place, as checked data.

`read_rules` refuses what can never work: an unknown column, a class that is never reached, a file whose last class does
not take what is left. Two hashes identify the rules, as those of an experiment do: of the bytes, and of the meaning.
"""

import hashlib
import re
import string
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import orjson

from profiles.class_conditions import COLUMNS, Condition, ConditionError, implies, read_condition, suggest
from profiles.errors import RuleError
from profiles.experiment_file import Table
from profiles.profile import ALL
from profiles.toml_lines import line_of, not_toml, rule_error

DEFAULT_RULES: Final = Path(__file__).with_name("classes.toml")


class Case(Table, frozen=True, kw_only=True):
    """One of the cases of a class."""

    when: str | list[str] = []
    says: str = ""


class ClassTable(Table, frozen=True, kw_only=True):
    """[[class]] as written."""

    name: str
    why: str
    when: str | list[str] = []
    any: list[str | Case] = []
    says: str = ""
    language: bool = True


class RulesFile(Table, frozen=True, kw_only=True, rename={"class_": "class"}):
    """The file as written."""

    schema: Literal[1] = 1
    chars_per_token: int = 4
    class_: list[ClassTable]


@dataclass(frozen=True, slots=True)
class Rule:
    """One case of a class: it takes a request when all conditions hold.

    `says` is a text in pieces: a literal, or the name of a column whose value stands there.
    """

    conditions: tuple[Condition, ...]
    says: tuple["str | Shown", ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """The value of a column, inside a text."""

    column: str


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """A class and its rules, in order."""

    name: str
    why: str
    rules: tuple[Rule, ...]
    language: bool  # whether it has languages of its own, such as `chat_single.hu`


@dataclass(frozen=True, slots=True)
class Rules:
    """A checked file of rules. The last class takes whatever is left."""

    name: str  # of the file, without its folder
    classes: tuple[WorkloadClass, ...]
    chars_per_token: int
    sha256: str  # of the bytes
    semantic_sha256: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.classes)

    def ordered(self) -> Iterator[tuple[WorkloadClass, Rule]]:
        """Every rule with its class, in the order in which they are asked."""
        for each in self.classes:
            for rule in each.rules:
                yield each, rule

    def document(self) -> dict[str, Any]:
        """The rules as plain data: file, hashes, and each class with its conditions and what it says."""
        return {
            "file": self.name,
            "sha256": self.sha256,
            "semantic_sha256": self.semantic_sha256,
            **_meaning(self.chars_per_token, self.classes, why=True),
        }


def read_rules(path: Path | None = None) -> Rules:
    """The rules of a file, or the default ones. Raises RuleError with file, line and key."""
    shown = path or DEFAULT_RULES
    try:
        data = shown.read_bytes()
        text = data.decode("utf-8")
        tables = tomllib.loads(text)
        file = msgspec.convert(tables, RulesFile)
    except OSError as error:
        raise RuleError(shown, "", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RuleError(shown, "", "not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise not_toml(shown, text, error) from None
    except msgspec.ValidationError as error:
        keys = {*RulesFile.__struct_encode_fields__, *ClassTable.__struct_fields__, *Case.__struct_fields__}
        raise rule_error(shown, text, str(error), keys, RulesFile) from None
    classes = _Reader(shown, text).classes(file)
    return Rules(
        name=shown.name,
        classes=classes,
        chars_per_token=file.chars_per_token,
        sha256=hashlib.sha256(data).hexdigest(),
        semantic_sha256=_hash_meaning(file.chars_per_token, classes),
    )


def _hash_meaning(chars_per_token: int, classes: tuple[WorkloadClass, ...]) -> str:
    meaning = orjson.dumps(_meaning(chars_per_token, classes, why=False), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(meaning).hexdigest()


def _meaning(chars_per_token: int, classes: tuple[WorkloadClass, ...], *, why: bool) -> dict[str, Any]:
    return {
        "chars_per_token": chars_per_token,
        "classes": [
            {"name": each.name}
            | ({"why": each.why} if why else {})
            | {
                "language": each.language,
                "rules": [
                    {"when": [held.text() for held in rule.conditions], "says": _plain(rule.says)}
                    for rule in each.rules
                ],
            }
            for each in classes
        ],
    }


def _plain(says: tuple[str | Shown, ...]) -> str:
    return "".join(piece if isinstance(piece, str) else f"{{{piece.column}}}" for piece in says)


_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_BRACES = "{1} is the first condition, {model} the value of a column, {{ a brace."


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    text: str

    def classes(self, file: RulesFile) -> tuple[WorkloadClass, ...]:
        if file.chars_per_token < 1:
            raise self._refuse("chars_per_token", "must be 1 or more", "4 fits English prose.")
        if not file.class_:
            raise self._refuse("class", "no class", "`firsttoken profile classes` prints a file to begin with.")
        classes: list[WorkloadClass] = []
        for index, table in enumerate(file.class_):
            key = f"class[{index}].name"
            if _NAME.fullmatch(table.name) is None or table.name == ALL:
                hint = f"Write lower-case letters, digits and _, a letter first; {ALL!r} stands for all classes."
                raise self._refuse(key, f"{table.name!r} is no name for a class", hint)
            if table.name in (each.name for each in classes):
                hint = "List its cases in the `any` of one class, or give this one a name of its own."
                raise self._refuse(key, f"{table.name!r} is the name of two classes", hint)
            if not table.why.strip() or "\n" in table.why:
                raise self._refuse(f"class[{index}].why", "must be one line", "Say what sets its requests apart.")
            classes.append(WorkloadClass(table.name, table.why, self._rules(index, table), table.language))
        self._check_reach(classes)
        if classes[-1].rules[-1].conditions:
            hint = "End the file with a class without `when`, such as chat_single or other."
            raise self._refuse(f"class[{len(classes) - 1}]", "the last class does not take what is left", hint)
        return tuple(classes)

    def _rules(self, index: int, table: ClassTable) -> tuple[Rule, ...]:
        key = f"class[{index}]"
        shared = self._conditions(f"{key}.when", table.when)
        if not table.any:
            return (Rule(shared, self._says(f"{key}.says", table.says, shared)),)
        if table.says:
            raise self._refuse(f"{key}.says", "a class with `any` says it case by case", "Move it into the cases.")
        rules = []
        for at, case in enumerate(table.any):
            where = f"{key}.any[{at}]"
            written, says = (case, "") if isinstance(case, str) else (case.when, case.says)
            conditions = (*shared, *self._conditions(where, written))
            rules.append(Rule(conditions, self._says(where, says, conditions)))
        return tuple(rules)

    def _conditions(self, key: str, written: str | list[str]) -> tuple[Condition, ...]:
        read = []
        for source in [written] if isinstance(written, str) else written:
            try:
                read.append(read_condition(source))
            except ConditionError as error:
                raise self._refuse(key, error.problem, error.hint, near=source) from None
        return tuple(read)

    def _says(self, key: str, says: str, conditions: tuple[Condition, ...]) -> tuple[str | Shown, ...]:
        if not says:
            says = ", ".join(f"{{{at}}}" for at in range(1, len(conditions) + 1)) or "no other rule spoke"
        try:
            parsed = list(string.Formatter().parse(says))
        except ValueError as error:
            raise self._refuse(key, f"{says!r}: {error}", _BRACES, near=says) from None
        pieces: list[str | Shown] = []
        for literal, name, form, conversion in parsed:
            pieces.append(literal)
            if name is None:
                continue
            if name.isdecimal() and 1 <= int(name) <= len(conditions):
                pieces += _shown(conditions[int(name) - 1])
            elif name in COLUMNS and not form and not conversion:
                pieces.append(Shown(name))
            else:
                hint = suggest(name, COLUMNS, _BRACES)
                raise self._refuse(key, f"{says!r} has no value for {{{name}}}", hint, near=says)
        return tuple(piece for piece in pieces if piece)

    def _check_reach(self, classes: list[WorkloadClass]) -> None:
        """Refuse a rule all of whose requests an earlier rule takes."""
        earlier: list[tuple[str, Rule]] = []
        for index, each in enumerate(classes):
            for at, rule in enumerate(each.rules):
                for name, taken in earlier:
                    if all(any(implies(held, asked) for held in rule.conditions) for asked in taken.conditions):
                        own = name == each.name
                        key = f"class[{index}].any[{at}]" if len(each.rules) > 1 else f"class[{index}].name"
                        hint = "Remove it, or move it up." if own else f"Move it above {name}, or remove it."
                        what = "a case before it" if own else f"{name}, which stands before it,"
                        raise self._refuse(key, f"{each.name} is never reached here: {what} takes all of it", hint)
                earlier.append((each.name, rule))

    def _refuse(self, key: str, problem: str, hint: str, near: str = "") -> RuleError:
        line = line_of(self.text, key)
        if near and line:  # the line of a value inside a list that goes over several lines
            below = self.text.splitlines()[line - 1 :]
            line += next((at for at, text in enumerate(below) if near in text), 0)
        return RuleError(self.path, key, problem, line=line, hint=hint)


def _shown(condition: Condition) -> list[str | Shown]:
    """The condition's text. `input_tokens` reads as what was counted: the engine's tokens, or characters."""
    if condition.column != "input_tokens":
        return [condition.text()]
    return [Shown("input_counted_by"), condition.text().removeprefix(condition.column)]
