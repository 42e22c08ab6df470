"""The lines of a raw file: JSON, one document a line, appended as the benchmark goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.raw_file import read_raw_lines
from benchmarks.replay.pairs import Pair

LEVELS, TEN = "levels", "ten"


class RunLine(msgspec.Struct, frozen=True, tag="run"):
    """The first line: how the benchmark was run, and on what. `rounds` is the plan; a slow machine plays fewer."""

    seed: int
    quick: bool
    rounds: int
    realtime: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    started_wall_ns: int


class SkippedLine(msgspec.Struct, frozen=True, tag="skipped"):
    """A client that could not run, or failed; it takes no further part."""

    client: str
    reason: str


class BatchLine(msgspec.Struct, frozen=True, tag="batch"):
    """One batch of one client at one level of concurrency.

    `lost` counts requests without a figure, `faults` what the client says went wrong. `connections` carried requests
    of this start, `starts_requests` of them. `cpu_ns` and `rss_bytes` are of the client's processes; for a tool that
    plays several levels in one start they stand in its first line only.
    """

    scenario: str
    round: int
    client: str
    c: int
    requests: int
    lost: int
    pairs: list[Pair]
    faults: dict[str, int] = {}
    connections: int | None = None
    starts_requests: int | None = None
    cpu_ns: int | None = None
    rss_bytes: int | None = None
    processes: int | None = None
    # From the start of the process to the last byte that the engine sent, and how long the engine had work meanwhile.
    to_last_byte_ns: int | None = None
    engine_ns: int | None = None


class HelpLine(msgspec.Struct, frozen=True, tag="help"):
    """How long `--help` took."""

    round: int
    client: str
    wall_ns: int


Line = RunLine | SkippedLine | BatchLine | HelpLine


def read_raw(path: Path) -> Iterator[Line]:
    """Every line of a raw file. Raises msgspec.DecodeError where one is not ours."""
    return read_raw_lines(path, msgspec.json.Decoder(Line))
