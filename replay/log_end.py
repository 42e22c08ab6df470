"""What the end of a log says about why the engine ended.

The last line rarely tells. When a worker of vLLM fails, its parent prints a traceback of its own behind the worker's,
which only points at "root cause above", and an error in the settings is told by a detail under the exception's line.
Errors behind the line by which an engine says that it was told to end are no cause: a clean stop prints them too.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from replay.log_signature import without_secrets

# A worker's last words stood 5 kB before the end; its whole traceback, and its parent's, fit in this.
END_BYTES: Final = 64 * 1024
# How far before the line of a stop a cause may stand: further up it belongs to some request.
_STOP_LINES: Final = 150
LONGEST_WORDS: Final = 200

_HEAD = re.compile(
    r"^(?:[\w.-]+\s+\| )?(?:\([\w.@-]+(?: [\w.-]+)? pid=\d+\) ?)*"
    r"(?:(?:DEBUG|(?P<mild>INFO|WARNING)|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?"
    r"|\d+\.\d\d\.\d{3}\.\d{3} (?:(?P<mild_too>[DIW])|E) )?"
)
_CAUSE = re.compile(r"out of memory|\b\w*(?:Error|Exception|Interrupt)\b ?[:(]|\bfatal\b|\berror:", re.IGNORECASE)
_POINTER = re.compile(
    r"root cause above|engine core initialization failed|\bvalidation errors? for \w+$|^Traceback|traceback for the",
    re.IGNORECASE,
)
# pydantic's details, indented under its exception.
_DETAIL = re.compile(r"\[type=\w+, input_value=")
_STOP = re.compile(r"\[shutdown\] |Shutdown initiated \(timeout=")


def log_end(log: Path) -> tuple[str, ...]:
    """The lines at the end of a log that are not empty, a bounded read. Nothing where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())


def last_words(lines: Sequence[str]) -> str:
    """The line that says why the engine ended, shortened: the last one that names a cause, else the one by which it
    says that it was told to end, else simply the last one. "" of no lines."""
    if not lines:
        return ""
    stop = next((at for at, line in enumerate(lines) if _STOP.search(line)), None)
    before = lines if stop is None else lines[max(0, stop - _STOP_LINES) : stop]
    causes = [line for line in before if _names_cause(line)]
    said = causes[-1] if causes else lines[-1 if stop is None else stop]
    # The settings that pydantic repeats behind its message would fill the sentence.
    return without_secrets(_DETAIL.split(said, maxsplit=1)[0].strip())[:LONGEST_WORDS]


def _names_cause(line: str) -> bool:
    head = _HEAD.match(line)
    assert head is not None  # it may be empty
    if head["mild"] or head["mild_too"]:  # a warning quotes the error that may come of it
        return False
    bare = line[head.end() :]
    if bare[:1].isspace():  # source text of a traceback
        return _DETAIL.search(bare) is not None
    return _CAUSE.search(bare) is not None and _POINTER.search(bare) is None
