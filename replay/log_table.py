"""The table of known log lines: which engine prints what, how bad it is, and why.

boot_log_patterns.tsv ships with the tool. A table of one's own in the same form, named by [boot_log].patterns, is added
to it. Columns, parted by tabs:

    id        of the row, unique over both tables
    engine    vllm, sglang, llamacpp, or any
    severity  one of `SEVERITIES`
    regex     searched for in a line without its colours
    note      for a person; may be left out
"""

import hashlib
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from profiles.errors import RuleError

ANY: Final = "any"
ENGINES: Final = ("vllm", "sglang", "llamacpp", ANY)
SEVERITIES: Final = {
    "fatal": "the engine does not come up, or ends",
    "fallback": "something slower than what was asked for; counts against an arm whose baseline lacks it",
    "fallback-intended": "a fallback that a flag asked for",
    "chronic-fallback": "printed by every arm on some machines; counts where the baseline lacks this very line",
    "runtime-slow": "work that belonged before the measurement",
    "config-warn": "a setting is not what it says",
    "kernel-warn": "one kernel or shape is not tuned",
    "hardware-warn": "a feature that this machine lacks",
    "benign": "harmless",
    "fact": "what was selected or measured",
    "ready": "the engine says that it is up",
    "cache-cold": "something was compiled",
    "cache-warm": "something was found compiled",
    "reset-ok": "the prefix cache was emptied",
    "reset-fail": "the prefix cache was not emptied",
    "shutdown": "the engine was told to end: what it warns of behind this line is no fault",
}
_LEAST_COLUMNS, _MOST_COLUMNS = 4, 5


class Pattern(NamedTuple):
    """A row of the table."""

    id: str
    engine: str
    severity: str
    regex: re.Pattern[str]
    note: str = ""


@cache
def built_in() -> tuple[Pattern, ...]:
    """The table that ships with the tool."""
    text = files("replay").joinpath("boot_log_patterns.tsv").read_text(encoding="utf-8")
    return tuple(_read_rows(text, Path("boot_log_patterns.tsv"), ()))


def patterns(extra: Path | None = None) -> tuple[Pattern, ...]:
    """The built-in table, with the rows of `extra` behind it. Raises RuleError with file and line."""
    if extra is None:
        return built_in()
    try:
        text = extra.read_bytes().decode("utf-8")
    except OSError as error:
        raise RuleError(extra, "", f"cannot be read: {error.strerror}", hint="boot_log.patterns names it.") from None
    except UnicodeDecodeError:
        raise RuleError(extra, "", "not UTF-8 text") from None
    return (*built_in(), *_read_rows(text, extra, built_in()))


def table_sha256(table: Iterable[Pattern]) -> str:
    """One hash for what a table finds. A note may change without a run becoming another one."""
    rows = [[row.id, row.engine, row.severity, row.regex.pattern] for row in table]
    return hashlib.sha256(orjson.dumps(rows)).hexdigest()


def _read_rows(text: str, path: Path, above: tuple[Pattern, ...]) -> list[Pattern]:
    known = {row.id for row in above}
    rows: list[Pattern] = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line.strip() or line.startswith("#") or (number == 1 and line.startswith("id\t")):
            continue
        row = _read_row(line, path, number)
        if row.id in known:
            hint = "A row of the built-in table cannot be replaced; an allow-list entry silences it."
            where = "the built-in table" if any(row.id == other.id for other in above) else "this file"
            raise RuleError(path, "", f"{row.id!r} is the id of another row of {where}", line=number, hint=hint)
        known.add(row.id)
        rows.append(row)
    return rows


def _read_row(line: str, path: Path, number: int) -> Pattern:
    def refuse(problem: str, hint: str = "") -> RuleError:
        return RuleError(path, "", problem, line=number, hint=hint)

    cells = line.split("\t")
    if not _LEAST_COLUMNS <= len(cells) <= _MOST_COLUMNS:
        columns = "id, engine, severity, regex, note"
        raise refuse(f"a row has the columns {columns}, parted by tabs; this one has {len(cells)}")
    name, engine, severity, expression = (cell.strip() if at < 3 else cell for at, cell in enumerate(cells[:4]))
    if not name:
        raise refuse("the id is empty")
    if engine not in ENGINES:
        raise refuse(f"engine {engine!r} is unknown", f"Known: {', '.join(ENGINES)}.")
    if severity not in SEVERITIES:
        raise refuse(f"severity {severity!r} is unknown", f"Known: {', '.join(SEVERITIES)}.")
    try:
        regex = re.compile(expression)
    except re.error as error:
        raise refuse(f"not a regular expression: {error}") from None
    if regex.search("") is not None:
        raise refuse("this expression matches every line, an empty one too")
    return Pattern(name, engine, severity, regex, cells[4] if len(cells) > 4 else "")


@lru_cache(maxsize=1024)
def literals(expression: str) -> tuple[str, ...]:
    """Texts without digits of which every match holds at least one, or () where none can be told.

    They make a search fast: a line that holds none of them is not looked at. Conservative: what is optional, repeated,
    inside a group or a class is left out, and an expression with flags has none.
    """
    if "(?" in expression and re.search(r"\(\?[aiLmsux-]+\)", expression):
        return ()
    best = [_longest(part) for part in _alternatives(expression)]
    return tuple(best) if all(best) else ()


_SHORTEST_LITERAL = 4


def _alternatives(expression: str) -> list[str]:
    """The expression split at the bars that stand outside groups and classes."""
    parts, depth, in_class, start, at = [], 0, False, 0, 0
    while at < len(expression):
        char = expression[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            at += 1 if expression[at + 1 : at + 2] == "]" else 2 if expression[at + 1 : at + 3] == "^]" else 0
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(expression[start:at])
            start = at + 1
        at += 1
    return [*parts, expression[start:]]


# A class, a group, an escape or a plain character, with what repeats it.
_ATOM = re.compile(r"(\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|[^\\])([*+?]\??|\{\d*,?\d*\}\??)?", re.DOTALL)


def _longest(part: str) -> str:
    """The longest plain run of an alternative. Empty where it is too short to be worth a search."""
    runs, run, depth, at = [""], "", 0, 0
    while at < len(part):
        match = _ATOM.match(part, at)
        assert match is not None
        atom, repeated = match[1], match[2]
        at = match.end()
        if atom in ("(", ")"):
            depth += 1 if atom == "(" else -1
            at = match.start() + 1  # what follows "(" is no repetition: `(?:`
            if atom == ")" and repeated:
                at = match.end()
        plain = _plain(atom)
        if depth == 0 and plain and not repeated:
            run += plain
        else:
            runs.append(run)
            run = ""
    longest = max((*runs, run), key=len)
    return longest if len(longest) >= _SHORTEST_LITERAL else ""


def _plain(atom: str) -> str:
    """The character that an atom stands for, or "" if it stands for several or is a digit."""
    if len(atom) == 2 and atom[0] == "\\":
        return "" if atom[1].isalnum() or atom[1].isspace() else atom[1]
    if len(atom) == 1 and not atom.isdigit() and atom not in ".^$|()[]{}*+?\\":
        return atom
    return ""
