"""outcomes.jsonl read for what it is wanted for: whole outcomes when somebody asks, or only what a report needs.

The gaps between the tokens are most of such a file. A report needs none of them, so `read_measured` counts them as text
and makes no number of any.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import msgspec

from profiles.files import decode_line, opened, read_lines
from profiles.records import Outcome, Record

_NO_GAPS = msgspec.Raw(b"[]")


class MeasuredAnswer(Record, frozen=True, kw_only=True, gc=False):
    """The part of `ResponseFacts` from which measures are derived, under the same names."""

    first_token_ns: int | None = None
    last_token_ns: int | None = None
    token_gaps_ns: msgspec.Raw = _NO_GAPS
    first_event_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def token_events(self) -> int:
        """How many events carried tokens."""
        if self.first_token_ns is None:
            return 0
        gaps = bytes(self.token_gaps_ns)
        between = gaps.count(b",")
        return 2 + between if between or gaps.strip(b"[] ") else 1


class MeasuredOutcome(Record, frozen=True, kw_only=True):
    """The part of `Outcome` from which measures are derived, under the same names."""

    window: str
    c: int
    index: int
    request: int
    workload: str
    measured: bool = True
    due_ns: int | None = None
    send_started_ns: int | None = None
    end_ns: int
    outcome: str
    origin: str | None = None
    response: MeasuredAnswer


_LINES = msgspec.json.Decoder(MeasuredOutcome)


def read_measured(file: Path) -> list[MeasuredOutcome]:
    """The finished lines of an outcomes.jsonl, in the order in which they ended; none where there is no such file.

    Raises FormatError with file, line and key. Keys that it does not need are not checked.
    """
    if not file.exists():
        return []
    with opened(file) as raw:
        data = raw.read()
    try:
        return _LINES.decode_lines(data[: data.rfind(b"\n") + 1])
    except msgspec.DecodeError:
        # Slower, and it knows the line.
        return [decode_line(file, number, line, MeasuredOutcome) for number, line in read_lines(file)]


class StoredOutcomes(Sequence[Outcome]):
    """The outcomes of an outcomes.jsonl, read when somebody first asks. Then raises FormatError as `decode_line`."""

    __slots__ = ("_file", "_read")

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read: tuple[Outcome, ...] | None = None

    def _all(self) -> tuple[Outcome, ...]:
        if self._read is None:
            self._read = tuple(read_outcomes(self._file))
        return self._read

    @overload
    def __getitem__(self, index: int) -> Outcome: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Outcome]: ...
    def __getitem__(self, index: int | slice) -> Outcome | Sequence[Outcome]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self._all())


def read_outcomes(file: Path) -> Iterator[Outcome]:
    """The outcomes of an outcomes.jsonl, in the order in which they ended; none where there is no such file."""
    if file.exists():
        for number, line in read_lines(file):
            yield decode_line(file, number, line, Outcome)
