"""Known lines of an engine's log, by a table of patterns, and what they say about the boot.

What they mean for an arm is judged by `analysis`, against the baseline's own boots: a GB10 prints "performance might be
sub-optimal" in every configuration, so an absolute rule would reject every arm. The absence of a warning proves nothing
either, so the lines that name what was selected are kept too (`log_facts`). Behind the line by which an engine says
that it was told to end no fault is kept: a clean stop prints errors with their tracebacks.

A log is whatever an engine writes: gigabytes, colours, progress bars that end their lines with a bare CR, bytes of no
encoding, a line of megabytes. It is read as bytes in blocks; memory depends on none of that. A line whose text without
its digits was seen before and held nothing is not looked at again.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from profiles.runs import LogFinding
from replay.log_facts import chosen_engine, compile_cache, kv_tokens, selection
from replay.log_signature import signature, without_secrets
from replay.log_table import ANY, Pattern, literals, patterns, table_sha256

__all__ = ["LogFacts", "Pattern", "patterns", "scan_log", "signature", "slow_lines", "table_sha256"]

BLOCK_BYTES: Final = 256 * 1024
LONGEST_LINE_BYTES: Final = 64 * 1024
MOST_FINDINGS: Final = 2000  # different ones; what comes behind them is only counted
_MOST_SHAPES, _LONGEST_SHAPE = 8192, 1024
_LONGEST_WARNING_LINES = 8
SHUTDOWN: Final = "shutdown"
# Not kept behind the line of a shutdown.
_FAULTS: Final = frozenset(
    ("fatal", "fallback", "chronic-fallback", "runtime-slow", "config-warn", "kernel-warn", "hardware-warn")
)


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


def slow_lines(path: Path, table: Sequence[Pattern], offset: int = 0) -> int:
    """How many lines behind `offset` say that something was compiled, such as what a round of warm-up added."""
    rows = tuple(row for row in table if row.severity in ("runtime-slow", "cache-cold"))
    scan = _Scan(rows, None, ())
    try:
        with path.open("rb") as file:
            file.seek(offset)
            scan.read(file)
    except FileNotFoundError:
        return 0
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

    def __init__(self, table: tuple[Pattern, ...], ready_offset: int | None, phases: Sequence[tuple[int, str]]) -> None:
        self.found: dict[tuple[str, str, bool, str | None], _Found] = {}
        self._ready_offset = ready_offset
        self._phases = list(phases)
        self._marks = sorted({offset for offset, _ in phases} | ({ready_offset} if ready_offset is not None else set()))
        # Rows by the plain text that a match holds. Texts are compared in latin-1, which takes any byte.
        self._rows: dict[str, list[Pattern]] = {}
        # Rows without a plain text must look at every line; a table of one's own may have some.
        self._always: list[Pattern] = []
        for row in table:
            texts = literals(row.regex.pattern)
            for text in texts:
                self._rows.setdefault(text.encode().decode("latin-1"), []).append(row)
            if not texts:
                self._always.append(row)
        self._rank = {row.id: at for at, row in enumerate(table)}
        self._by_word: dict[bytes, list[str]] = {}
        self._bare: list[str] = []
        for text in self._rows:
            word = _inner_word(text.encode("latin-1"))
            if word:
                self._by_word.setdefault(word, []).append(text)
            else:
                self._bare.append(text)
        self._dull: set[bytes] = set()
        self._serving = False
        self._ending = False
        self._window: str | None = None
        self._cut = 0
        self._uncounted = 0
        self._warned: set[tuple[str, int]] = set()  # pattern and line of a warning that was already counted

    def read(self, file: IO[bytes]) -> LogFacts:
        number, whole = 0, True
        for offset, chunk in self._split_at_marks(self._chunks(file)):
            self._enter(offset)
            lines = chunk.split(b"\n")
            whole = not lines[-1]
            if whole:
                lines.pop()
            if b"\x1b" in chunk:
                lines = [_ANSI.sub(b"", line) for line in lines]
            self.take_lines(lines, number, bars=b"\r" in chunk)
            number += len(lines) if whole else len(lines) - 1
        return self._facts(number if whole else number + 1, file.tell())

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
                yield start, data[:end] if end else data[:LONGEST_LINE_BYTES] + b"\n"
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

    def take_lines(self, lines: list[bytes], number: int, *, bars: bool = True) -> None:
        """Lines of the file behind line `number`. With `bars` a line may hold several states of a progress bar."""
        self._warned.clear()
        dull = self._dull
        for at, line in enumerate(lines):
            # Most lines of a log are of a few shapes: this is what a gigabyte costs.
            if line.translate(None, b"0123456789") in dull:
                continue
            for state in _last_states(line) if bars and line.find(b"\r") >= 0 else (line,):
                self._take(state, lines, at, number + at + 1)

    def _take(self, raw: bytes, lines: list[bytes], at: int, number: int) -> None:
        if len(raw) > LONGEST_LINE_BYTES:
            raw = raw[:LONGEST_LINE_BYTES]
            self._cut += 1
        shape = raw.translate(None, b"0123456789")
        hits = self._hits(shape)
        if not hits and not self._always:
            if len(self._dull) >= _MOST_SHAPES:
                self._dull.clear()
            if len(shape) <= _LONGEST_SHAPE:
                self._dull.add(shape)
            return
        said_here = raw.decode("utf-8", "replace")
        joined: str | None = None
        rows = {row.id: row for text in hits for row in self._rows[text]}
        for row in sorted((*rows.values(), *self._always), key=lambda row: self._rank[row.id]):
            match = row.regex.search(said_here)
            said, key = said_here, number
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

    def _hits(self, shape: bytes) -> list[str]:
        """The texts of rows in a line without digits. They have none, so lines of one shape hold the same texts."""
        plain = shape.decode("latin-1")
        words = self._by_word.keys() & set(shape.split())
        return [
            *(text for word in words for text in self._by_word[word] if text in plain),
            *(text for text in self._bare if text in plain),
        ]

    def _keep(self, row: Pattern, match: re.Match[str], text: str, number: int) -> None:
        if self._ending and row.severity in _FAULTS:
            return
        self._ending = self._ending or row.severity == SHUTDOWN
        key = (row.id, signature(text), self._serving, self._window)
        known = self.found.get(key)
        if known is not None:
            known.count += 1
            known.last = text
        elif len(self.found) >= MOST_FINDINGS:
            self._uncounted += 1
        else:
            fields = [without_secrets(group or "") for group in match.groups()]
            self.found[key] = _Found(row, key[1], number, self._serving, self._window, fields, text)

    def _facts(self, lines: int, size: int) -> LogFacts:
        engine = chosen_engine((found.pattern.engine, found.pattern.severity) for found in self.found.values())
        kept = [found for found in self.found.values() if engine is None or found.pattern.engine in (engine, ANY)]
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


def _inner_word(text: bytes) -> bytes:
    """The longest word of a text that has blanks on both sides in it; a line holds the text only with this word."""
    words = text.split()
    if words and not text[:1].isspace():
        del words[0]
    if words and not text[-1:].isspace():
        del words[-1]
    return max(words, key=len, default=b"")


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
