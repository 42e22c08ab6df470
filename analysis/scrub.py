"""Text without what is absolute: latencies, rates, sizes, lengths in tokens, dates, versions, hosts, paths and models.

Patterns, so no list of them is complete: what the tool itself writes is known to pass, what a person writes may not.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

LEFT_OUT: Final = "…"

_NUMBER = r"[−+-]?\d[\d.,]*(?:e[+-]?\d+)?"
_UNITS = (
    "ns|us|µs|μs|ms|s|sec|secs|seconds?|min|mins|minutes?|h|hrs?|hours?|days?|weeks?|[kKMGT]i?B|B|bytes?|"
    "[kMG]?Hz|[mk]?W|°?C|tokens?/s|tok/s|requests?/s|req/s|tokens|[kM] tokens"
)
# `300 s`, and `2411 of 3003 MHz`, `5 to 9 ms`.
_QUANTITY = re.compile(
    rf"(?<![\w.])(?:{_NUMBER}\s?(?:of|to|and|or|against|→|–|-|/)\s?)?{_NUMBER}(\s?)({_UNITS})(?![\w%])"
)
# A number inside a name such as closed-c8-for-60s.
_IN_NAME = re.compile(r"(?<=-)\d[\d.]*(?=(?:ns|us|ms|s|min|h)\b)")
# `client_lag_p99_ms > 20`, `kv_gb=12`: the unit stands in the name.
_NAMED = re.compile(r"(_(?:ns|us|ms|s|min|h|mb|gb|mib|gib|bytes|tokens|mhz|c|w)\b\s*(?:[<>]=?|[=:])\s*)\d[\d.,]*")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"`<>)\]]+", re.IGNORECASE)
_QUOTED_PATH = re.compile(r"(['\"`])(?:~\w*|\.{1,2})?/[^'\"`\n]*\1")
_PATH = re.compile(r"(?<![\w/.<])(?:~\w*|\$\{?\w+\}?|\.{1,2})?/[^\s'\"`,;:<>)\]]*[^\s'\"`,;:<>)\].]")
_FILE = re.compile(r"(?<![\w/])[\w.-]+(?:/[\w.*-]+)*/[\w.*-]+\.[a-z]{1,11}\b")
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])|\[?\b[0-9a-f]*(?::[0-9a-f]*){3,7}\b\]?")
_HOST_PORT = re.compile(r"\b[A-Za-z][\w.-]*:\d{2,5}\b")
_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?|\b\d{2}:\d{2}:\d{2}\b"
)
# `4,096 prompt tokens`, with one word or two between.
_TOKENS = re.compile(rf"(?<![\w.=@]){_NUMBER}(?=\s(?:(?!and\b|or\b|of\b|to\b)[a-z-]+\s){{1,2}}tokens?\b)")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:[\\/](?:[^\s'\"`<>|]*[^\s'\"`<>|,;:.)])?|\\\\[\w.$-]+(?:\\[\w.$-]+)*")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
_MONTH = rf"(?:(?:{_MONTHS})\.?|January|February|March|April|June|July|August|September|October|November|December)"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?\b\.?"
_CALENDAR = re.compile(
    rf"\b{_MONTH} {_DAY}(?:,? \d{{4}}\b)?|\b{_DAY} {_MONTH}(?:,? \d{{4}}\b)?(?!\w)|\b{_MONTH},? \d{{4}}\b"
    r"|\b\d{1,2}[./]\d{1,2}[./](?:\d{4}|\d{2})\b(?!\.)"
)
# `gpu01.corp.example`, `spark-1.lan`, `gpu7.rack`: three parts, a part with a digit before a word, or a known ending.
_ENDINGS = "com|org|net|io|ai|dev|cloud|local|localdomain|lan|internal|intranet|corp|home|edu|gov|eu|de|uk|fr|ch|jp|cn"
_HOST = re.compile(
    r"(?<![\w./@-])(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+\.[a-z]{2,}"
    r"|[a-z-]+\d[a-z0-9-]*\.(?!aa\b|jsonl?\b|toml\b|ya?ml\b|log\b|html\b|md\b|csv\b|txt\b|py\b)[a-z]{2,}"
    rf"|[a-z0-9-]+\.(?:{_ENDINGS}))\b(?![\w-])",
    re.IGNORECASE,
)
# `org/Model-8B`, `org/model3`, and `Model-8B` alone.
_MODEL = re.compile(
    r"(?<![\w./-])(?:[A-Za-z][\w.]*/(?:[A-Za-z][\w.]*-[\w.-]*\w|[A-Za-z]{3,}[\w.]*\d\w*)"
    r"|[A-Za-z][\w.]*-[\w.-]*/[A-Za-z](?:[\w.-]*\w)?|[A-Za-z][\w.]*-(?:[\w.]+-)*(?:\d+x)?\d[\d.]*[bBM](?:-[\w.-]*\w)?)"
    r"(?![\w/])"
)
# The version of an engine or a driver; that of this tool stays.
_VERSION = re.compile(
    r"(?<!firsttoken )(?<![\w.])v?\d+\.\d+\.\d+(?:[.+-]?\w+)*|\b((?:vllm|sglang|cuda|driver|torch|triton|version) )"
    r"v?\d[\w.]*\w",
    re.IGNORECASE,
)
_PROCESS = re.compile(r"\b(pid|process|port)([ =])\d+\b", re.IGNORECASE)

# What goes as a whole, in this order.
_WHOLE: Final = (
    _URL, _WINDOWS_PATH, _QUOTED_PATH, _MODEL, _PATH, _FILE, _DATE, _ADDRESS, _HOST_PORT, _HOST, _CALENDAR
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Words:
    """What text is scrubbed by: names that stay as they are, and words that go wherever they stand."""

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def scrub(text: str, words: Words | None = None) -> str:
    """Take out what is absolute: `no token for 300 s` becomes `no token for … s`."""
    words = words if words is not None else Words()
    if not words.keep:
        return _scrub_part(text, words.drop)
    parts = _either(words.keep).split(text)
    return "".join(part if index % 2 else _scrub_part(part, words.drop) for index, part in enumerate(parts))


def _scrub_part(text: str, drop: Sequence[str]) -> str:
    if drop:
        text = _either(drop).sub(LEFT_OUT, text)
    for pattern in _WHOLE:
        text = pattern.sub(LEFT_OUT, text)
    text = _VERSION.sub(lambda found: f"{found[1] or ''}{LEFT_OUT}", text)
    text = _TOKENS.sub(LEFT_OUT, text)
    text = _PROCESS.sub(rf"\1\2{LEFT_OUT}", text)
    text = _NAMED.sub(rf"\g<1>{LEFT_OUT}", text)
    text = _QUANTITY.sub(rf"{LEFT_OUT}\1\2", text)
    return _IN_NAME.sub(LEFT_OUT, text)


@lru_cache(maxsize=8)
def _either(names: tuple[str, ...]) -> re.Pattern[str]:
    """Whole names only, the longest first."""
    longest = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<![\w/.-])({'|'.join(map(re.escape, longest))})(?![\w/-])")
