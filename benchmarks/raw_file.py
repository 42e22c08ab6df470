"""A raw file of a benchmark: one JSON line per batch, appended as it ends, so that a stopped run can still be read."""

from collections.abc import Iterator
from pathlib import Path

import msgspec


class RawFile:
    """Appends lines to a new file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def add(self, line: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._file.close()


def read_raw_lines[T](path: Path, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    """Every line of a raw file. Raises msgspec.DecodeError where one is not ours."""
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)
