"""Known lines of an engine's log, by a table of patterns.

What they mean for an arm is judged by `analysis`, against the baseline's own boots: a GB10 prints "performance might be
sub-optimal" in every configuration, so an absolute rule would reject every arm. The absence of a warning proves nothing
either, so the lines that name what was selected are kept too.
"""

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from profiles.runs import LogFinding


class Pattern(NamedTuple):
    """A row of the table."""

    id: str
    engine: str
    severity: str  # fatal, fallback, chronic-fallback, runtime-slow, config-warn, ..., fact, ready, benign
    regex: re.Pattern[str]


@cache
def patterns() -> tuple[Pattern, ...]:
    """The table that ships with the tool: boot_log_patterns.tsv."""
    text = files("replay").joinpath("boot_log_patterns.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()[1:] if line]
    return tuple(Pattern(row[0], row[1], row[2], re.compile(row[3])) for row in rows)


def scan(lines: Iterable[str], ready_line: int | None = None) -> list[LogFinding]:
    """The findings of a log, one per pattern and signature, in order of first appearance.

    `ready_line` is the number of lines that the log had when the engine was ready; what follows came while serving.
    """
    found: dict[tuple[str, str, bool], LogFinding] = {}
    for number, line in enumerate(lines, start=1):
        for pattern in patterns():
            match = pattern.regex.search(line)
            if match is None:
                continue
            serving = ready_line is not None and number > ready_line
            key = (pattern.id, signature(line), serving)
            known = found.get(key)
            if known is None:
                found[key] = LogFinding(
                    id=pattern.id,
                    severity=pattern.severity,
                    signature=key[1],
                    line=number,
                    while_serving=serving,
                    fields=[group or "" for group in match.groups()],
                )
            else:
                found[key] = LogFinding(
                    **{name: getattr(known, name) for name in known.__struct_fields__ if name != "count"},
                    count=known.count + 1,
                )
    return list(found.values())


# Order matters: a prefix hides the level, a path hides numbers.
_NOISE = (
    (re.compile(r"^\S+\s+\|\s+"), ""),  # docker-compose's container name
    (re.compile(r"^\((?:APIServer|EngineCore|Worker|VllmWorker)[^)]*\)\s*"), ""),
    (re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}[.,\d]*Z?"), ""),
    (re.compile(r"\b\d{2}-\d{2} \d{2}:\d{2}:\d{2}\b"), ""),
    (re.compile(r"^\d+\.\d{2}\.\d{3}\.\d{3} "), ""),  # llama.cpp's time since start
    (re.compile(r"\[[\w./-]+\.(?:py|cpp|cu|rs):\d+\]"), ""),
    (re.compile(r"\bpid[= ]\d+"), "pid"),
    (re.compile(r"(?<![\w/])/[^\s:,'\"]*/"), ".../"),  # a path keeps its last part: the file name says which table
    (re.compile(r"\b[0-9a-f]{12,}\b"), "#"),
    (re.compile(r"\b\d+\.\d+\b"), "#"),
    (re.compile(r"\s+"), " "),
)
LONGEST_SIGNATURE = 240


def signature(line: str) -> str:
    """A line without its times, process ids, paths and measured numbers, so that two boots print the same one."""
    for regex, replacement in _NOISE:
        line = regex.sub(replacement, line)
    return line.strip()[:LONGEST_SIGNATURE]
