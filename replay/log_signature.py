"""What stays of a log line when all that differs from boot to boot is taken out. Pure."""

import re
from functools import lru_cache
from typing import Final

from profiles.credentials import REMOVED, without_tokens

# The value of an argument that holds a key. Engines print their arguments, and nothing of a key is kept but in the log.
_SECRET = re.compile(
    r"(\b\w*(?:api_?key|hf_token|password|secret)\w*['\"]?\s*[:=]\s*)"
    r"(?!None\b|\[\])(\[[^\]]*\]?|'[^']*'?|\"[^\"]*\"?|[^\s,)}]+)",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """A line of a log without the keys that it shows."""
    return without_tokens(_SECRET.sub(rf"\g<1>{REMOVED}", text))[0]


# Order matters: a prefix hides the level, a path hides numbers.
_NOISE = (
    (re.compile(r"^[\w.-]+\s+\|\s+"), ""),  # docker-compose's container name
    (re.compile(r"^(?:\([\w.@-]+(?: [\w.-]+)? pid=\d+\)\s*)+"), ""),
    (re.compile(r"^\[rank\d+\]:\s*"), ""),
    # A progress bar is what it is about; how far it came is no part of it.
    (re.compile(r":?\s*\d+%\|.*$"), ""),
    (re.compile(r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}[.,\d]*Z?(?: (?:[DTEP]P\d+)(?: [DTEP]P\d+)*(?=\]))?"), ""),
    (re.compile(r"\b\d{2}-\d{2} \d{2}:\d{2}:\d{2}\b"), ""),
    (re.compile(r"\[?\b[WIEF]\d{4} \d{2}:\d{2}:\d{2}\.\d+(?: +\d+)? [\w./-]+:\d+\]"), ""),  # glog and c10
    (re.compile(r"^\d+\.\d{2}\.\d{3}\.\d{3} "), ""),  # llama.cpp's time since start
    (re.compile(r"\[[\w./-]+\.(?:py|cpp|cu|rs):\d+\]"), ""),
    (re.compile(r"\b([\w.-]+\.(?:py|cpp|cu|rs|c|h)):\d+\b"), r"\1"),
    (re.compile(r"\bpid[= ]\d+"), "pid"),
    (re.compile(r"://[^\s/'\",]+"), "://#"),
    (re.compile(r"(?<![\w/.])(?:~|[A-Za-z]:)?/[^\s:,'\"]*/"), ".../"),  # the last part stays: it says which table
    (re.compile(r"\b0x[0-9a-f]+\b"), "#"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "#"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{12,}\b"), "#"),
    (re.compile(r"\b\d+\.\d+(?:[eE][+-]?\d+)?(?=%|x\b|s\b|\b)"), "#"),
    (re.compile(r"(?<![\[(])\b\d{1,3}(?:,\d{3})+\b(?![\])])"), "#"),  # 729,696, but not the shape [128,128]
    (re.compile(r"\b\d+(?= ?(?:ns|us|ms|s|secs?|seconds|minutes|[KMGT]i?B|bytes|tokens|%)(?:\W|$))"), "#"),
    # llama.cpp says several lines of each request, with its slot and its task.
    (re.compile(r"\bid +-?\d+ \| task -?\d+\b"), "id # | task #"),
    (re.compile(r"\b(id_task|task id|id_slot) = -?\d+\b"), r"\1 = #"),
    (re.compile(r"\b\d+(?= (?:accepted|generated)\b)"), "#"),
    (re.compile(r"\[\]|\(\)"), ""),
    (re.compile(r"\s+"), " "),
)
LONGEST_SIGNATURE: Final = 240


@lru_cache(maxsize=1024)
def signature(line: str) -> str:
    """A line without its times, process ids, paths, hashes and measured numbers, so that two boots print the same one.

    What tells classes of a line apart stays: names of files, kernels and backends, whole numbers of a setting.
    """
    line = without_secrets(line[: 16 * LONGEST_SIGNATURE])
    for regex, replacement in _NOISE:
        line = regex.sub(replacement, line)
    return line.strip(" -:")[:LONGEST_SIGNATURE]
