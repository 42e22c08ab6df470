"""Lines of a file in pieces, each with its number, and the account of what was read and dropped.

A piece is some megabytes, so that a file of ten million rows needs no more memory than its typed columns.
"""

import csv
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from profiles.errors import FormatError
from profiles.files import opened
from profiles.units import format_percent

PIECE_BYTES: Final = 8 * 1024 * 1024
LONGEST_LINE_BYTES: Final = 256 * 1024 * 1024
# Dropped lines that are told one by one: the first ones, whichever check found them.
MOST_TOLD: Final = 10
TORN: Final = "torn last line"


@dataclass(slots=True)
class Tally:
    """What was read of a file, and what was dropped for which reason."""

    path: Path
    read: int = 0
    bad: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)
    torn_line: int = 0  # the last line, where it has no newline

    def drop(self, line: int, reason: str) -> None:
        """Drop one bad row."""
        if line == self.torn_line:
            reason = f"{TORN}: {reason}"
        else:
            self.bad += 1
        self._count(reason, 1)
        insort(self.lines, (line, reason))
        del self.lines[MOST_TOLD:]

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Leave rows out that are not bad, but not load either."""
        if count:
            self._count(reason, count)

    def _count(self, reason: str, count: int) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count

    def keep(self, rows: pl.DataFrame, faults: dict[str, pl.Expr]) -> pl.DataFrame:
        """The rows that have none of the faults; the others are dropped. `rows` has the column `line`."""
        why = pl.coalesce(*(pl.when(fault.fill_null(True)).then(pl.lit(reason)) for reason, fault in faults.items()))
        rows = rows.with_columns(why.alias("why"))
        if rows["why"].null_count() < rows.height:
            for line, reason in rows.filter(pl.col("why").is_not_null()).select("line", "why").iter_rows():
                self.drop(line, reason)
            rows = rows.filter(pl.col("why").is_null())
        return rows.drop("why")

    def check(self, max_bad: float) -> None:
        """Raise FormatError where more than this share of the rows is bad."""
        if self.bad <= max_bad * self.read:
            return
        told = "; ".join(f"line {line}: {reason}" for line, reason in self.lines[:5])
        raise FormatError(
            self.path,
            f"{self.bad} of {self.read} rows cannot be read ({told})",
            line=self.lines[0][0],
            hint=f"At most {format_percent(max_bad, 2)} may be bad. If the rest is right, raise it with --max-bad.",
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive lines without their ends. `first` is the number of the first, from 1."""

    first: int
    lines: pl.Series
    torn: bool = False  # its last line has no newline

    def numbered(self) -> pl.DataFrame:
        """Columns `line` and `text`, blank lines left out."""
        numbers = pl.int_range(self.first, self.first + self.lines.len(), eager=True)
        return pl.DataFrame({"line": numbers, "text": self.lines}).filter(pl.col("text").str.contains(r"\S"))


def read_pieces(path: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """The lines of a text file. Bytes that are not UTF-8 become a mark that no number has. Raises FormatError."""
    first, rest = 1, b""
    with opened(path) as file:
        while data := file.read(piece_bytes):
            if first == 1 and not rest:
                data = _without_mark(path, data)
            end = data.rfind(b"\n")
            if end < 0:
                rest += data
                if len(rest) > LONGEST_LINE_BYTES:
                    raise FormatError(path, f"longer than {LONGEST_LINE_BYTES} bytes", line=first)
                continue
            piece = Piece(first, _lines(rest + data[:end]))
            rest = data[end + 1 :]
            yield piece
            first += piece.lines.len()
    if rest:
        yield Piece(first, _lines(rest), torn=True)


def _without_mark(path: Path, data: bytes) -> bytes:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FormatError(path, "is UTF-16", hint="Save it as UTF-8.")
    if data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")):
        raise FormatError(path, "is compressed", hint="Unpack it first.")
    return data.removeprefix(b"\xef\xbb\xbf")


def _lines(data: bytes) -> pl.Series:
    text = data.decode("utf-8", errors="replace")
    return pl.Series("text", [text]).str.split("\n").explode().str.strip_suffix("\r")


class CsvFile:
    """A comma-separated file, read by the names or places of its columns. A row is one line."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path = path
        self._tally = tally
        self._pieces = read_pieces(path)
        self._first = next(self._pieces, None)
        if self._first is None:
            raise FormatError(path, "is empty")
        self.head: list[str] = [name.strip() for name in _parsed(str(self._first.lines[0]))]

    def places(self, names: Sequence[str], format_name: str) -> dict[str, int]:
        """Where these columns are, by the header. Raises FormatError."""
        if missing := [name for name in names if name not in self.head]:
            raise FormatError(
                self.path,
                f"no column {missing[0]!r} in its header ({', '.join(self.head)[:200]})",
                line=1,
                hint=f"The format {format_name} has the columns {', '.join(names)}.",
            )
        return {name: self.head.index(name) for name in names}

    def batches(
        self, places: dict[str, int], *, header: bool = True, least: int | None = None, most: int = 0
    ) -> Iterator[pl.DataFrame]:
        """Columns `line` and those of `places` as text, piece by piece.

        `least` and `most` are the fields that a row may have; left out, it has as many as the first.
        """
        width = max(len(self.head), most)
        pieces = self._pieces_from_first()
        for piece in pieces:
            rows = piece.numbered()
            if header:
                rows = rows.filter(pl.col("line") > 1)
            if piece.torn and rows.height:
                self._tally.torn_line = int(rows["line"][-1])
            self._tally.read += rows.height
            rows = self._split(rows, width, width if least is None else least)
            yield rows.select("line", *(pl.col(f"field_{at}").alias(name) for name, at in places.items()))

    def _pieces_from_first(self) -> Iterator[Piece]:
        if self._first is not None:
            piece, self._first = self._first, None
            yield piece
        yield from self._pieces

    def _split(self, rows: pl.DataFrame, width: int, least: int) -> pl.DataFrame:
        quoted = rows["text"].str.contains('"', literal=True)
        fields = pl.col("text").str.split_exact(",", width).alias("fields")
        split = rows.with_columns(fields).unnest("fields")
        if quoted.any():
            split = split.with_columns(_quoted_fields(rows["text"], quoted, width))
        return self._tally.keep(
            split,
            {
                "too many fields": pl.col(f"field_{width}").is_not_null(),
                "too few fields": pl.col(f"field_{least - 1}").is_null() if least else pl.lit(False),
            },
        )


def _parsed(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _quoted_fields(lines: pl.Series, quoted: pl.Series, width: int) -> list[pl.Series]:
    """All fields anew, where quotes stand in some lines. A quoted field cannot hold a newline here."""
    columns: list[list[str | None]] = [[] for _ in range(width + 1)]
    for line, has_quote in zip(lines, quoted, strict=True):
        found: list[str | None] = [*(_parsed(line) if has_quote else line.split(","))]
        for at, column in enumerate(columns):
            column.append(found[at] if at < len(found) else None)
    return [pl.Series(f"field_{at}", column, dtype=pl.String) for at, column in enumerate(columns)]


def whole(column: str) -> pl.Expr:
    """A count in text, `19440110.0` included; null where it is not one."""
    text = pl.col(column).str.strip_chars()
    plain = text.cast(pl.Int64, strict=False)
    return plain.fill_null(text.str.strip_suffix(".0").cast(pl.Int64, strict=False)).alias(column)


def read_json[T](path: Path, form: type[T], tally: Tally) -> Iterator[tuple[int, T]]:
    """The records of a file of JSON lines, each with the number of its line. One that is no such record is dropped."""
    decode = msgspec.json.Decoder(form).decode
    for piece in read_pieces(path):
        numbered = piece.numbered()
        if piece.torn and numbered.height:
            tally.torn_line = int(numbered["line"][-1])
        tally.read += numbered.height
        for line, text in numbered.iter_rows():
            try:
                yield line, decode(text)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                tally.drop(line, reason_of(error))


def reason_of(error: Exception) -> str:
    """What is wrong with a JSON line, without quoting it: its text may be a prompt."""
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    return "not JSON" if isinstance(error, msgspec.DecodeError) else "not readable as text"
