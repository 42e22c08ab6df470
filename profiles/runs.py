"""RUN/: what `replay` writes and `analysis` reads.

    RUN/
      manifest.json        format firsttoken/run: rule hashes, profile hash, arms, order of the boots, environment
      experiment.toml      the rule, byte for byte as it was before the first boot
      events.jsonl         what happened when: rule_fixed, boot_started, boot_ready, window_done, boot_done, ...
      boots/BB-SS-ARM/     block, slot and arm; a repeated boot has -r2, -r3 behind it
        boot.json          `BootFacts`, written when the boot has ended; without it the boot was interrupted
        engine.log         the engine's output from its first byte
        outcomes.jsonl     one `Outcome` per request, appended as each one ends
        metrics-NN.prom    /metrics after window NN; 00 is before the first one

Only manifest.json and a boot's own boot.json are ever rewritten, atomically. A run that was stopped goes on at the
next boot: what a boot without boot.json holds is kept and not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from profiles.errors import FormatError
from profiles.files import decode_line, read_document, read_lines
from profiles.records import Outcome, Record

FORMAT: Final = "firsttoken/run"
BOOT_FORMAT: Final = "firsttoken/boot"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
RULE: Final = "experiment.toml"
EVENTS: Final = "events.jsonl"
BOOTS: Final = "boots"
BOOT: Final = "boot.json"
LOG: Final = "engine.log"
OUTCOMES: Final = "outcomes.jsonl"

# The second copy of the baseline. A dot cannot stand in an arm's name, so the two never collide.
AA_SUFFIX: Final = ".aa"

# How a boot ended.
DONE: Final = "done"
FAILED: Final = "failed"  # the arm caused it: it died, hung or would not boot; counts against the arm
DISCARDED: Final = "discarded"  # the surroundings caused it; replaced, visibly


class WindowFacts(Record, frozen=True, kw_only=True):
    """One window of a boot: a fixed list of requests at one concurrency, or a limited time."""

    name: str  # closed-c2, single-code, closed-c8
    kind: str  # closed, single
    c: int
    deciding: bool
    workload: str | None = None  # the class of a `single` window
    limit_ns: int | None = None
    started_ns: int
    ended_ns: int
    requests: int  # how many were sent
    output_tokens: int = 0  # of the requests that ended well inside the window, by usage
    # Counter deltas around the window, by the metric's own name; None: the engine has no /metrics.
    counters: dict[str, float] | None = None
    # Why the counters cannot be used (a restart, an engine that never went idle).
    counters_void: str | None = None


class LogFinding(Record, frozen=True, kw_only=True):
    """One known line of a boot log. `signature` is the line without its times, numbers and paths."""

    id: str  # row of the pattern table
    severity: str
    signature: str
    count: int = 1
    line: int = 0  # of engine.log, the first time
    while_serving: bool = False  # it came after the engine was ready
    fields: list[str] = []  # what the pattern captured, the first time


class LagFacts(Record, frozen=True, kw_only=True):
    """How late the client's own event loop was during the deciding windows."""

    p50_ns: int
    p99_ns: int
    max_ns: int
    samples: int


class BootFacts(Record, frozen=True, kw_only=True):
    """One cold boot: boot.json."""

    format: str = BOOT_FORMAT
    version: int = VERSION
    arm: str  # with AA_SUFFIX for the second baseline copy
    block: int  # from 1
    slot: int  # from 1, position in the block
    attempt: int = 1
    status: str
    reason: str | None = None  # why it failed or was discarded
    argv: list[str]
    wall_ns: int
    mono_ns: int  # the anchor: both clocks read together
    spawned_ns: int | None = None
    ready_ns: int | None = None  # a real token came from the wanted model
    stopped_ns: int | None = None  # told to stop
    gone_ns: int | None = None  # proven gone: every process, and the port
    stop: str | None = None  # how it went: term, kill, died
    exit_code: int | None = None
    processes: int = 0  # how many the engine had
    simulated: bool = False  # the embedded engine: nothing of it is hardware
    model: str | None = None
    engine_version: str | None = None
    findings: list[LogFinding] = []
    windows: list[WindowFacts] = []
    lag: LagFacts | None = None
    override: dict[str, Any] = {}  # what was changed in every recorded body, such as model, cache_salt


@dataclass(frozen=True, slots=True)
class Boot:
    """A boot read back: its folder, its facts and its outcomes."""

    path: Path
    facts: BootFacts
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run read back. `boots` are those that ended; `interrupted` are folders without a boot.json."""

    path: Path
    manifest: dict[str, Any]
    boots: tuple[Boot, ...]
    interrupted: tuple[Path, ...]
    events: tuple[dict[str, Any], ...]


def boot_folder_name(block: int, slot: int, arm: str, attempt: int = 1) -> str:
    """`02-03-v1_flashinfer`, with `-r2` behind it for a second attempt."""
    return f"{block:02d}-{slot:02d}-{arm}" + (f"-r{attempt}" if attempt > 1 else "")


def read_boot_facts(path: Path) -> BootFacts:
    """boot.json of a boot folder, its format and version checked."""
    document = read_document(path / BOOT, BOOT_FORMAT, (VERSION,))
    try:
        return msgspec.convert(document, BootFacts)
    except msgspec.ValidationError as error:
        raise FormatError(path / BOOT, str(error)) from None


def read_outcomes(path: Path) -> Iterator[Outcome]:
    """The outcomes of a boot folder, in the order in which they ended."""
    file = path / OUTCOMES
    if file.exists():
        for number, line in read_lines(file):
            yield decode_line(file, number, line, Outcome)


def read_run(path: Path) -> Run:
    """Read a run directory, finished or not. Raises FormatError with file and line."""
    if not path.is_dir():
        problem = "not a directory" if path.exists() else "no such directory"
        raise FormatError(path, problem, hint="A run is the directory that `firsttoken replay -o` wrote.")
    manifest = read_document(path / MANIFEST, FORMAT, (VERSION,))
    boots: list[Boot] = []
    interrupted: list[Path] = []
    for folder in sorted((path / BOOTS).glob("*")) if (path / BOOTS).is_dir() else ():
        if (folder / BOOT).exists():
            boots.append(Boot(folder, read_boot_facts(folder), tuple(read_outcomes(folder))))
        elif folder.is_dir():
            interrupted.append(folder)
    events = path / EVENTS
    lines = [decode_line(events, number, line, dict) for number, line in read_lines(events)] if events.exists() else []
    return Run(path, manifest, tuple(boots), tuple(interrupted), tuple(lines))
