"""Known lines of an engine's log, by a table of patterns, and what they say about the boot.

What they mean for an arm is judged by `analysis`, against the baseline's own boots: a GB10 prints "performance might be
sub-optimal" in every configuration, so an absolute rule would reject every arm. The absence of a warning proves nothing
either, so the lines that name what was selected are kept too (`log_facts`).

A log is whatever an engine writes: gigabytes, colours, progress bars that end their lines with a bare CR, bytes of no
encoding, a line of megabytes. It is read as bytes in blocks; memory depends on none of that. A line whose text without
its digits was seen before and held nothing is not looked at again.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final

from profiles.credentials import REMOVED, without_tokens
from profiles.runs import LogFinding
from replay.log_facts import chosen_engine, compile_cache, kv_tokens, selection
from replay.log_table import ANY, Pattern, literals, patterns, table_sha256

__all__ = ["LogFacts", "Pattern", "count_lines", "patterns", "scan_log", "signature", "table_sha256"]

BLOCK_BYTES: Final = 256 * 1024
LONGEST_LINE_BYTES: Final = 64 * 1024
MOST_FINDINGS: Final = 2000  # different ones; what comes behind them is only counted
_MOST_SHAPES, _LONGEST_SHAPE = 8192, 1024
_LONGEST_WARNING_LINES = 8


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log says. `findings`: one per pattern, signature and phase, in order of first appearance."""

    findings: list[LogFinding] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    engine: str | None = None  # vllm, sglang, llamacpp; None where the log does not show it
    selection: dict[str, Any] = field(default_factory=dict)  # keys: `profiles.selection`
    kv_tokens: int | None = None
    compile_cache: str | None = None  # cold, warm, mixed; None: nothing was compiled, or it does not say
    cut_lines: int = 0  # longer than LONGEST_LINE_BYTES: their rest was not read
    uncounted: int = 0  # matches beyond MOST_FINDINGS


def scan_log(
    path: Path,
    table: Sequence[Pattern] | None = None,
    *,
    ready_offset: int | None = None,
    phases: Sequence[tuple[int, str]] = (),
) -> LogFacts:
    """Read a log to its end. It may take seconds per gigabyte: call it in a thread.

    `ready_offset` is the size that the log had when the engine was ready: a line that starts there or behind came while
    serving. `phases` are pairs of such a size and the name of the window that began then, rising; "" for none.
    A log that does not exist has no lines.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return LogFacts()
    with file:
        return _Scan(tuple(table) if table is not None else patterns(), ready_offset, phases).read(file)


def count_lines(data: bytes, table: Sequence[Pattern], *severities: str) -> int:
    """How many lines of a piece of log match a row of these severities, such as what a warm-up round added."""
    rows = tuple(row for row in table if row.severity in severities)
    scan = _Scan(rows, None, ())
    for line in data.splitlines():
        scan.take_line([line], 0, 0)
    return sum(finding.count for finding in scan.found.values())


@dataclass(slots=True)
class _Found:
    """A finding that is still growing."""

    pattern: Pattern
    signature: str
    line: int
    serving: bool
    window: str | None
    fields: list[str]
    last: str  # text of the latest line: of a progress bar, its final state
    count: int = 1


class _Scan:
    """One pass over one log."""

    def __init__(
        self, table: tuple[Pattern, ...], ready_offset: int | None, phases: Sequence[tuple[int, str]]
    ) -> None:
        self.found: dict[tuple[str, str, bool, str | None], _Found] = {}
        self._ready_offset = ready_offset
        self._phases = list(phases)
        self._marks = sorted({offset for offset, _ in phases} | ({ready_offset} if ready_offset is not None else set()))
        self._rows: list[tuple[Pattern, tuple[bytes, ...]]] = [
            (row, tuple(text.encode() for text in literals(row.regex.pattern))) for row in table
        ]
        # Rows without a plain text in them must look at every line; a table of one's own may have some.
        self._always = any(not texts for _, texts in self._rows)
        self._literals = {text for _, texts in self._rows for text in texts}
        self._dull: set[bytes] = set()
        self._serving = False
        self._window: str | None = None
        self._cut = 0
        self._uncounted = 0
        self._warned: set[tuple[str, int]] = set()  # pattern and line of a warning that was already counted

    def read(self, file: IO[bytes]) -> LogFacts:
        number, size = 0, 0
        for offset, chunk in self._split_at_marks(self._chunks(file)):
            self._enter(offset)
            lines = chunk.split(b"\n")
            if not lines[-1]:
                lines.pop()
            self._warned.clear()
            if b"\x1b" in chunk:
                lines = [_ANSI.sub(b"", line) for line in lines]
            for at in range(len(lines)):
                self.take_line(lines, at, number + at + 1)
            number += len(lines)
            size = offset + len(chunk)
        end = file.tell()
        return self._facts(number, max(size, end))

    def _chunks(self, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """Offset and bytes of whole lines, of BLOCK_BYTES and a line at most. A line that is too long is cut."""
        carry, start, skipping = b"", 0, False
        while block := file.read(BLOCK_BYTES):
            data = carry + block
            if skipping:
                end = data.find(b"\n") + 1
                start += end or len(data)
                carry, skipping = data[end:] if end else b"", not end
                continue
            end = _whole_lines(data)
            if end:
                yield start, data[:end]
                carry, start = data[end:], start + end
            elif len(data) > LONGEST_LINE_BYTES:
                # A progress bar never ends its line: its states are told apart by CR, and the last ones may be cut.
                end = data.rfind(b"\r") + 1
                self._cut += not end
                yield start, data[: end or LONGEST_LINE_BYTES]
                skipping = not end
                carry, start = data[end:] if end else b"", start + (end or len(data))
            else:
                carry = data
        if carry:
            yield start, carry

    def _split_at_marks(self, chunks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """The same bytes, parted at the first line that starts at or behind a mark."""
        for offset, chunk in chunks:
            for mark in self._marks:
                inside = mark - offset
                if 0 < inside < len(chunk):
                    end = chunk.find(b"\n", inside - 1) + 1
                    if 0 < end < len(chunk):
                        yield offset, chunk[:end]
                        offset, chunk = offset + end, chunk[end:]
            yield offset, chunk

    def _enter(self, offset: int) -> None:
        self._serving = self._ready_offset is not None and offset >= self._ready_offset
        names = [name for mark, name in self._phases if mark <= offset]
        self._window = (names[-1] or None) if names else None

    def take_line(self, lines: list[bytes], at: int, number: int) -> None:
        """One line of the file, which may hold several states of a progress bar."""
        line = lines[at]
        if b"\r" in line:
            for state in _last_states(line):
                self._take(state, lines, at, number)
        else:
            self._take(line, lines, at, number)

    def _take(self, raw: bytes, lines: list[bytes], at: int, number: int) -> None:
        if len(raw) > LONGEST_LINE_BYTES:
            raw = raw[:LONGEST_LINE_BYTES]
            self._cut += 1
        shape = raw.translate(None, b"0123456789")
        if shape in self._dull:
            return
        # Literals have no digits, so two lines of one shape hold the same ones.
        hits = {text for text in self._literals if text in shape}
        if not hits and not self._always:
            if len(self._dull) >= _MOST_SHAPES:
                self._dull.clear()
            if len(shape) <= _LONGEST_SHAPE:
                self._dull.add(shape)
            return
        text = raw.decode("utf-8", "replace")
        joined: str | None = None
        for row, texts in self._rows:
            if texts and hits.isdisjoint(texts):
                continue
            match = row.regex.search(text)
            said, key = text, number
            if match is None:
                if joined is None:
                    joined, head = _whole_warning(lines, at)
                if not joined or (match := row.regex.search(joined)) is None:
                    continue
                said, key = joined, number - (at - head)
                if (row.id, key) in self._warned:
                    continue
                self._warned.add((row.id, key))
            self._keep(row, match, said, key)

    def _keep(self, row: Pattern, match: re.Match[str], text: str, number: int) -> None:
        key = (row.id, signature(text), self._serving, self._window)
        known = self.found.get(key)
        if known is not None:
            known.count += 1
            known.last = text
        elif len(self.found) >= MOST_FINDINGS:
            self._uncounted += 1
        else:
            fields = [_without_secrets(group or "") for group in match.groups()]
            self.found[key] = _Found(row, key[1], number, self._serving, self._window, fields, text)

    def _facts(self, lines: int, size: int) -> LogFacts:
        engine = chosen_engine((found.pattern.engine, found.pattern.severity) for found in self.found.values())
        kept = [
            found for found in self.found.values() if engine is None or found.pattern.engine in (engine, ANY)
        ]
        findings = [
            LogFinding(
                id=found.pattern.id,
                severity=found.pattern.severity,
                signature=found.signature,
                count=found.count,
                line=found.line,
                while_serving=found.serving,
                window=found.window,
                fields=found.fields,
            )
            for found in kept
        ]
        boot = [(found.pattern.id, found.fields, found.last) for found in kept if not found.serving]
        facts = selection(engine, boot)
        return LogFacts(
            findings=findings,
            lines=lines,
            bytes=size,
            engine=engine,
            selection=facts,
            kv_tokens=kv_tokens(facts),
            compile_cache=compile_cache({found.pattern.severity for found in kept if not found.serving}),
            cut_lines=self._cut,
            uncounted=self._uncounted,
        )


_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def _whole_lines(data: bytes) -> int:
    """Length of the whole lines at the head of `data`, cut before a line that belongs to the one above it."""
    end = data.rfind(b"\n", 0, len(data) - 1) + 1  # what follows the last line is not known yet
    best = end
    for _ in range(_LONGEST_WARNING_LINES):
        if not end or data[end : end + 1] not in (b" ", b"\t"):
            break
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end or best


def _last_states(line: bytes) -> list[bytes]:
    """The pieces of a line between CRs; of each progress bar only its last state."""
    states: dict[bytes, bytes] = {}
    for piece in line.split(b"\r"):
        if piece:
            head, bar, _ = piece.partition(b"%|")
            states[head.rstrip(b"0123456789 ") if bar else piece] = piece
    return list(states.values())


_PREFIX = re.compile(rb"^(?:\([\w.@-]+(?: [\w.-]+)? pid=\d+\) ?)?")


def _whole_warning(lines: list[bytes], at: int) -> tuple[str, int]:
    """A warning of Python that is spread over lines, joined, and where it starts; "" where line `at` is in none."""
    head = at
    while head > max(0, at - _LONGEST_WARNING_LINES) and _continues(lines[head]):
        head -= 1
    if b"Warning:" not in lines[head]:
        return "", at
    end = head + 1
    while end < min(len(lines), head + _LONGEST_WARNING_LINES) and _continues(lines[end]):
        end += 1
    if end - head < 2:
        return "", at
    bare = [_PREFIX.sub(b"", line[:LONGEST_LINE_BYTES]).strip() for line in lines[head:end]]
    return b" ".join(bare).decode("utf-8", "replace"), head


def _continues(line: bytes) -> bool:
    return _PREFIX.sub(b"", line[:256])[:1] in (b" ", b"\t")


# The value of an argument that holds a key. Engines print their arguments, and nothing of a key is kept but in the log.
_SECRET = re.compile(
    r"(\b\w*(?:api_?key|hf_token|password|secret)\w*['\"]?\s*[:=]\s*)"
    r"(?!None\b|\[\])(\[[^\]]*\]?|'[^']*'?|\"[^\"]*\"?|[^\s,)}]+)",
    re.IGNORECASE,
)


def _without_secrets(text: str) -> str:
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
    (re.compile(r"\b\d{1,3}(?:,\d{3})+\b"), "#"),
    (re.compile(r"\b\d+(?= ?(?:ns|us|ms|s|secs?|seconds|minutes|[KMGT]i?B|bytes|tokens|%)(?:\W|$))"), "#"),
    (re.compile(r"\[\]|\(\)"), ""),
    (re.compile(r"\s+"), " "),
)
LONGEST_SIGNATURE: Final = 240


@lru_cache(maxsize=1024)
def signature(line: str) -> str:
    """A line without its times, process ids, paths, hashes and measured numbers, so that two boots print the same one.

    What tells classes of a line apart stays: names of files, kernels and backends, whole numbers of a setting.
    """
    line = _without_secrets(line[: 16 * LONGEST_SIGNATURE])
    for regex, replacement in _NOISE:
        line = regex.sub(replacement, line)
    return line.strip(" -:")[:LONGEST_SIGNATURE]
