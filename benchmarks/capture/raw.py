"""The lines of a raw file: JSON, one document a line, appended as the benchmark goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.capture.jobs import Batch
from benchmarks.capture.measure import Memory
from benchmarks.raw_file import read_raw_lines


class RunLine(msgspec.Struct, frozen=True, tag="run"):
    """The first line: how the benchmark was run, and on what. `rounds` is the plan; a slow machine plays fewer."""

    seed: int
    quick: bool
    rounds: dict[str, int]
    machine: dict[str, Any]
    started_wall_ns: int


class SkippedLine(msgspec.Struct, frozen=True, tag="skipped"):
    """A variant that could not run, or that ended before its time."""

    variant: str
    reason: str


class BatchLine(msgspec.Struct, frozen=True, tag="batch"):
    """One batch of one variant. CPU is None for `direct`; `cpu_all_ns` adds the children of the proxy."""

    scenario: str
    mode: str
    round: int
    variant: str
    requests: int
    concurrency: int
    chunks: int
    cpu_proxy_ns: int | None
    cpu_all_ns: int | None
    batch: Batch


class MemoryLine(msgspec.Struct, frozen=True, tag="memory"):
    """Memory of a variant after so many requests and bodies of 1 MB since its start."""

    variant: str
    requests: int
    bodies: int
    memory: Memory
    wrong: dict[str, int]


Line = RunLine | SkippedLine | BatchLine | MemoryLine


def read_raw(path: Path) -> Iterator[Line]:
    """Every line of a raw file. Raises msgspec.DecodeError where one is not ours."""
    return read_raw_lines(path, msgspec.json.Decoder(Line))
