"""Where a key stands in a TOML text. tomllib forgets it, and an error without its line costs a search at night."""

import difflib
import re
from pathlib import Path

from profiles.errors import RuleError

_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`(?: - at `\$\.?(.*)`)?")
_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)


def rule_error(path: Path, text: str, message: str, known_keys: set[str]) -> RuleError:
    """The validator's message as an error with key, line and, for an unknown key, the nearest known one."""
    unknown = _UNKNOWN.fullmatch(message)
    if unknown is not None:
        key = ".".join(part for part in (unknown[2], unknown[1]) if part)
        close = difflib.get_close_matches(unknown[1], sorted(known_keys), n=1)
        hint = f"Did you mean {close[0]!r}?" if close else ""
        return RuleError(path, key, "unknown key", line=line_of(text, key), hint=hint)
    at = _AT.fullmatch(message)
    assert at is not None
    key = at[2] or ""
    return RuleError(path, key, at[1], line=line_of(text, key))


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
