"""Where a key stands in a TOML text. tomllib forgets it, and an error without its line costs a search at night.

The validator's own words are those of a type checker. Here they become what a person may write there.
"""

import difflib
import re
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any, Final

import msgspec

from profiles.errors import RuleError

_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`(?: - at `\$\.?(.*)`)?")
_MISSING = re.compile(r"Object missing required field `(.+?)`(?: - at `\$\.?(.*)`)?")
_CHOICE = re.compile(r"Invalid enum value (.+?) - at `\$\.?(.*)`", re.DOTALL)
_TYPE = re.compile(r"Expected `(.+?)`, got `(.+?)`(?: - at `\$\.?(.*)`)?")
_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_PLACE = re.compile(r"(.*?) \((?:at line (\d+), column (\d+)|at end of document)\)")
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text in quotes",
    "bool": "true or false",
    "array": "a list in brackets",
    "object": "a table",
    "date": "a date",
    "datetime": "a date",
    "time": "a time of day",
}


def not_toml(path: Path, text: str, error: TOMLDecodeError) -> RuleError:
    """What is not TOML, with its line."""
    found = _PLACE.fullmatch(str(error))
    if found is None:
        return RuleError(path, "", f"not TOML: {error}")
    line = int(found[2]) if found[2] else max(1, len(text.splitlines()))
    column = f" in column {found[3]}" if found[3] else " at the end"
    return RuleError(path, "", f"not TOML: {found[1]}{column}", line=line)


def rule_error(
    path: Path, text: str, message: str, known_keys: set[str], form: type[msgspec.Struct] | None = None
) -> RuleError:
    """The validator's message as an error with key, line and, for an unknown key, the nearest known one.

    `form` is the type of the whole file: it says what may stand in the place of a word that is unknown.
    """
    unknown = _UNKNOWN.fullmatch(message)
    if unknown is not None:
        key = ".".join(part for part in (unknown[2], unknown[1]) if part)
        close = difflib.get_close_matches(unknown[1], sorted(known_keys), n=1)
        hint = f"Did you mean {close[0]!r}?" if close else ""
        return RuleError(path, key, "unknown key", line=line_of(text, key), hint=hint)
    key, problem = _said(message, form)
    return RuleError(path, key, problem, line=line_of(text, key))


def _said(message: str, form: type[msgspec.Struct] | None) -> tuple[str, str]:
    """The key and what is wrong with it."""
    if missing := _MISSING.fullmatch(message):
        return ".".join(part for part in (missing[2], missing[1]) if part), "is missing"
    if choice := _CHOICE.fullmatch(message):
        known = _choices(form, choice[2])
        return choice[2], f"{choice[1]} is unknown" + (f"; write {_one_of(known)}" if known else "")
    if wrong := _TYPE.fullmatch(message):
        wanted = [_WORDS.get(word, word) for word in wrong[1].split(" | ") if word != "null"]
        return wrong[3] or "", f"must be {_one_of(wanted)}, and {_WORDS.get(wrong[2], wrong[2])} stands there"
    at = _AT.fullmatch(message)
    assert at is not None
    return at[2] or "", at[1]


def _one_of(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _choices(form: type[msgspec.Struct] | None, key: str) -> list[str]:
    """The words that may stand at a key such as `engine.launcher` or `arm[0].changes[1]`, as they are written."""
    if form is None:
        return []
    from msgspec import inspect

    at: list[Any] = [inspect.type_info(form)]
    for name in re.findall(r"\w+|\[", key.replace("[...]", "[")):
        if name.isdigit():
            continue
        found: list[Any] = []
        for kind in at:
            if isinstance(kind, inspect.StructType):
                found += [field.type for field in kind.fields if field.encode_name == name]
            elif isinstance(kind, inspect.ListType) and name == "[":
                found.append(kind.item_type)
            elif isinstance(kind, inspect.DictType) and name == "[":
                found.append(kind.value_type)
        at = [kind for item in found for kind in (item.types if isinstance(item, inspect.UnionType) else (item,))]
    return [
        f'"{value}"' if isinstance(value, str) else str(value)
        for kind in at
        if isinstance(kind, inspect.LiteralType)
        for value in kind.values
    ]


_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.]+)\s*\]")


def line_of(text: str, key: str) -> int:
    """Line of a key such as `arm[2].args` or `load.also` in TOML text, counted from 1; 0 where it is not written."""
    table, _, name = key.rpartition(".")
    seen: dict[str, int] = {}
    current = ""
    fallback = 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header is not None:
            current = header[2]
            if header[1] == "[[":
                seen[current] = seen.get(current, -1) + 1
                current = f"{current}[{seen[current]}]"
            if current in (table, key) or current.split("[")[0] == key:
                fallback = fallback or number
        elif current == table and re.match(rf"\s*\"?{re.escape(name.split('[')[0])}\"?\s*=", line):
            return number
        elif table.startswith(f"{current}.") or not current:
            inner = table[len(current) + 1 :] if current else table
            if inner and re.match(rf"\s*{re.escape(inner.split('.')[0].split('[')[0])}\s*=", line):
                return number
    return fallback
