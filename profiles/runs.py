"""RUN/: what `replay` writes and `analysis` reads.

    RUN/
      manifest.json        format firsttoken/run: rule hashes, profile hash, arms, order of the boots, environment
      experiment.toml      the rule, byte for byte as it was before the first boot, or since it was amended
      experiment.toml.1    the rule before its first amendment, byte for byte; .2 before the second, ...
      events.jsonl         what happened when: rule_fixed, boot_started, boot_ready, window_done, boot_done, look,
                           arm_decided, look_failed, arm_dropped, rule_amended, rule_reformatted, run_done, ...
      boots/BB-SS-ARM/     block, slot and arm; a repeated boot has -r2, -r3 behind it
        boot.json          `BootFacts`, written when the boot has ended; without it the boot was interrupted
        engine.log         the engine's output from its first byte
        outcomes.jsonl     one `Outcome` per request, appended as each one ends
        metrics-NN.prom    /metrics after window NN; 00 is before the first one
        functional.jsonl   one `FunctionalOutcome` per probe, asked after the last window and never timed
        telemetry.jsonl    `Telemetry`, a line a second: clocks, power, temperature, memory, our own lag

      pilots/ARM/          the same for a boot that warms caches or finds the warm-up; never measured

Only manifest.json and a boot's own boot.json are ever rewritten, atomically; an amendment rewrites the rule too. A run
that was stopped goes on at the next boot: what a boot without boot.json holds is kept and not used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from profiles.errors import FormatError
from profiles.files import decode_line, read_document, read_lines
from profiles.functional import FunctionalOutcome
from profiles.measured import StoredOutcomes
from profiles.records import Outcome, Record

FORMAT: Final = "firsttoken/run"
BOOT_FORMAT: Final = "firsttoken/boot"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
RULE: Final = "experiment.toml"
EVENTS: Final = "events.jsonl"
BOOTS: Final = "boots"
PILOTS: Final = "pilots"
BOOT: Final = "boot.json"
LOG: Final = "engine.log"
OUTCOMES: Final = "outcomes.jsonl"
FUNCTIONAL: Final = "functional.jsonl"
TELEMETRY: Final = "telemetry.jsonl"

# The second copy of the baseline. A dot cannot stand in an arm's name, so the two never collide.
AA_SUFFIX: Final = ".aa"

# How a boot ended.
DONE: Final = "done"
FAILED: Final = "failed"  # the arm caused it: it died, hung or would not boot; counts against the arm
DISCARDED: Final = "discarded"  # the surroundings caused it; replaced, visibly

# Verdicts after which an arm is not booted again, if a declared look finds them.
DECIDED: Final = frozenset({"adopt", "reject", "workload-dependent"})

# How the words of `BootFacts.checked` begin where a condition could not be looked at.
NOT_CHECKED: Final = "not checked: "


class LagFacts(Record, frozen=True, kw_only=True):
    """How late the client's own event loop was."""

    p50_ns: int
    p99_ns: int
    max_ns: int
    samples: int


class ScheduleLag(Record, frozen=True, kw_only=True):
    """How late requests were sent: send_started_ns − due_ns, absolute. Written by `replay.doubt`."""

    p50_ns: int
    p99_ns: int
    max_ns: int
    late_share: float  # of the requests, those more than 10 ms late
    slope: float | None = None  # ns of lag gained per ns of window; None with fewer than 10 requests
    requests: int


class WindowFacts(Record, frozen=True, kw_only=True):
    """One window of a boot: a fixed list of requests, or a limited time."""

    name: str  # observed, timed, closed-c2, single-code, sweep-c4, closed-c8-for-60s
    kind: str  # observed, timed, closed, single, sweep
    c: int  # 0 where it follows the recorded arrivals
    deciding: bool
    workload: str | None = None  # the class of a window that plays one class
    limit_ns: int | None = None
    started_ns: int
    ended_ns: int
    requests: int  # how many were sent
    # Start and drain cut off: from when all slots were first busy to when one first found nothing more to send.
    steady_from_ns: int | None = None
    steady_to_ns: int | None = None
    output_tokens: int = 0  # of the requests that ended well inside the window, by usage
    prompt_tokens: int | None = None  # by usage; None where a request did not say
    cached_tokens: int | None = None
    # Counter deltas around the window, by the metric's own name; None: the engine has no /metrics.
    counters: dict[str, float] | None = None
    # Why the counters cannot be used (a restart, an engine that never went idle).
    counters_void: str | None = None
    gauges: dict[str, float] = {}  # looked at while the window ran, where an engine has no counter; their means
    server_ttft_ns: int | None = None  # mean by the engine's own histogram: a cross-check only
    # How far the result can be trusted.
    schedule_lag: ScheduleLag | None = None
    loop_lag: LagFacts | None = None
    in_flight_mean: float | None = None  # over the steady part, weighted by time; the plan is c
    arrivals_at: dict[str, int] = {}  # requests by the concurrency that they met with themselves, as sent
    invalid: str | None = None  # why the client would shape this result; None: within the stated limits
    stopped_early: str | None = None  # a stall, too many errors


class LogFinding(Record, frozen=True, kw_only=True):
    """One known line of a boot log. `signature` is the line without its times, numbers and paths."""

    id: str  # row of the pattern table
    severity: str
    signature: str
    count: int = 1
    line: int = 0  # of engine.log, the first time
    while_serving: bool = False  # it came after the engine was ready
    window: str | None = None  # it came while this window or the warm-up ran
    fields: list[str] = []  # what the pattern captured, the first time


class Step(Record, frozen=True, kw_only=True):
    """A step of the cold-boot protocol: what was done, how long it took, and by what it is proved."""

    # port_free, caches, page_cache, cool_down, spawn, ready, identity, warm_up, isolation, functional, stop, memory
    name: str
    began_ns: int
    ended_ns: int
    proof: str | None = None  # what was seen, in words; None: not proved
    facts: dict[str, Any] = {}


class Telemetry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The machine at one instant. A sensor that is absent is null."""

    at_ns: int
    gpus: list[dict[str, Any]] = []  # index, clock_mhz, clock_max_mhz, power_w, temperature_c, utilisation, ...
    mem_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    cpu_busy: float | None = None  # share of all cores since the last line
    others_busy: float | None = None  # cores used by processes that are neither ours nor the engine's
    others: list[str] = []  # the busiest of them, while they are busy
    gpu_strangers: list[str] | None = None  # compute processes on a GPU that are not the engine's; null: not known
    engine_rss_bytes: int | None = None
    loop_lag_ns: int | None = None


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
    # The same in one word. Of a boot that failed: died_in_boot, hung_in_boot, not_ready, wrong_model, refused, died,
    # restarted, stalled, errors, memory, log_flood, twin, salt_ignored, not_reset. Of one that was discarded:
    # port_taken, twin, spoilt, halted, low_memory. Beside a boot that is done: not_stopped, workers_left, memory_held.
    diagnosis: str | None = None
    launcher: str = "process"
    cold: bool = True  # False: an engine that was up already
    pilot: bool = False  # booted to warm caches or to find the warm-up; never measured
    boot_id: str | None = None  # of the host: it changes when the machine was restarted
    steps: list[Step] = []
    identity: dict[str, Any] = {}  # what is known of this very process or container
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
    selection: dict[str, Any] = {}  # what the engine chose and measured in its boot: keys in `profiles.selection`
    compile_cache: str | None = None  # cold, warm, mixed; None: nothing was compiled, or the log does not say
    kv_tokens: int | None = None
    windows: list[WindowFacts] = []
    lag: LagFacts | None = None
    checked: dict[str, str] = {}  # by discard condition: what was seen, or NOT_CHECKED and why
    override: dict[str, Any] = {}  # what was changed in every recorded body, such as model, cache_salt
    # What the arm set and what engines read of our own environment; null: set, and not written down.
    env: dict[str, str | None] = {}


@dataclass(frozen=True, slots=True)
class Boot:
    """A boot read back: its folder, its facts and its outcomes, which are read when somebody first asks."""

    path: Path
    facts: BootFacts
    outcomes: Sequence[Outcome]


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


def read_functional(path: Path) -> Iterator[FunctionalOutcome]:
    """The functional probes of a boot folder, in the order in which they were asked. None where none was."""
    file = path / FUNCTIONAL
    if file.exists():
        for number, line in read_lines(file):
            yield decode_line(file, number, line, FunctionalOutcome)


def read_run(path: Path) -> Run:
    """Read a run directory, finished or not. Raises FormatError with file and line; so does whoever asks a boot for its
    outcomes."""
    if not path.is_dir():
        problem = "not a directory" if path.exists() else "no such directory"
        raise FormatError(path, problem, hint="A run is the directory that `firsttoken replay -o` wrote.")
    manifest = read_document(path / MANIFEST, FORMAT, (VERSION,))
    boots: list[Boot] = []
    interrupted: list[Path] = []
    for folder in sorted((path / BOOTS).glob("*")) if (path / BOOTS).is_dir() else ():
        if (folder / BOOT).exists():
            boots.append(Boot(folder, read_boot_facts(folder), StoredOutcomes(folder / OUTCOMES)))
        elif folder.is_dir():
            interrupted.append(folder)
    events = path / EVENTS
    lines = [decode_line(events, number, line, dict) for number, line in read_lines(events)] if events.exists() else []
    return Run(path, manifest, tuple(boots), tuple(interrupted), tuple(lines))
