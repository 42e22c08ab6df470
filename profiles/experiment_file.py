"""The tables of experiment.toml, as typed data, and what they resolve to. Form only; checks are in `experiment_checks`.

Names follow DESIGN §5 and §10. Every default is written here, once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Unknown keys are errors."""


class RuleHead(Table, frozen=True, kw_only=True):
    """[rule]: its name and the question that it answers."""

    id: str
    schema: Literal[1] = 1
    question: str = ""


class OperatingPointChoice(Table, frozen=True, kw_only=True):
    """Which concurrency levels decide: those that cover this share of the arrivals.

    A profile that nobody recorded has no arrivals. For it they are `declared`: `levels` holds the share of the arrivals
    at each c, and `reason` says where that comes from. The report says so with every verdict.
    """

    basis: Literal["arrivals", "declared"] = "arrivals"
    cover: float = 0.95
    levels: dict[str, float] = {}
    reason: str = ""


class ProfileChoice(Table, frozen=True, kw_only=True):
    """[profile]: the load to replay. A relative path starts at the experiment file."""

    path: str
    min_observed_h: float = 0.0
    operating_point: OperatingPointChoice = OperatingPointChoice()
    mix: Literal["as-recorded"] = "as-recorded"


class Load(Table, frozen=True, kw_only=True):
    """[load]: what each boot is asked. Deciding windows are fixed lists of requests, run to completion.

    `observed` replays recorded busy periods with their sessions and think time, `timed` the whole timeline uncut, and
    `closed` the mix at each level that production reaches, weighted by arrivals. A load without recorded arrivals has
    no busy periods: for it `observed` is `closed`, and the run says so.
    """

    deciding: Literal["observed", "closed", "timed"] = "observed"
    requests_per_boot: int = 400
    idle_cap: str = "5s"  # an idle gap of `observed` is cut to this
    also: list[str] = msgspec.field(default_factory=lambda: ["single", "closed c=8 for 60s"])
    single_requests: int = 16  # per class, in `single` windows
    sweep_requests: int = 32  # at each c of a sweep
    output_length: Literal["capped", "natural", "forced"] = "capped"
    # Ask for usage in every event (vLLM, SGLang): TPOT then knows how many tokens the first event held. It makes
    # events longer, so it is the same for all arms and stated in the run.
    running_usage: bool = False
    warmup_per_class: int = 2
    warmup_rounds: int = 0  # 0: found by a pilot boot of the baseline, then the same for every boot
    # The stages of a request, each with its own limit. A prefill of 128k tokens takes more than a minute on a GB10.
    connect_timeout: str = "10s"
    write_timeout: str = "120s"  # while the engine takes nothing of a body
    first_token_timeout: str = "300s"
    gap_timeout: str = "120s"  # between two pieces of an answer
    request_timeout: str = "600s"  # from first to last byte
    # When a boot is given up early: no token of any request in flight for so long, or so many failures.
    stall_timeout: str = "300s"
    max_error_share: float = 0.5


class Contrast(Table, frozen=True, kw_only=True):
    """Against which arm a gain is adopted, and to which step it is attributed."""

    adopt: Literal["baseline"] = "baseline"
    attribute: Literal["previous", "baseline"] = "previous"


class Design(Table, frozen=True, kw_only=True):
    """[design]: how many cold boots, in which order."""

    blocks: int = 5
    looks: list[int] = []  # empty: one look, after the last block
    seed: int = 1
    ladder: Literal["cumulative", "flat"] = "cumulative"
    contrast: Contrast = Contrast()
    # paired: the spread of each arm's own block differences. pooled: one spread for all arms, sharper with two or three
    # blocks, and wrong where one arm scatters more than the others.
    variance: Literal["paired", "pooled"] = "paired"


class Material(Table, frozen=True, kw_only=True):
    """The smallest gain worth adopting: both must hold."""

    relative: float = 0.02
    absolute_ms: float = 0.0


class MeasureRule(Table, frozen=True, kw_only=True):
    """[[measure]], in order: the first one decides first.

    `ttft` and `tpot` are those of the recorded mix at the operating point. `throughput@c=8` (more is better),
    `ttft@c=8` and `tpot@c=8` are those of a closed window of `load.also`; where production never reaches that c, they
    may decide only for a `headroom_reason`.
    """

    name: str
    material: Material = Material()
    margin: float = 0.05
    min_tokens: int = 16  # tpot counts requests with at least this many tokens after the first event
    headroom_reason: str | None = None


class GuardRule(Table, frozen=True, kw_only=True):
    """[[guard]]: what an arm must not make worse. `ttft_p90`, `error_rate`, `throughput@c=8` and their kind."""

    metric: str
    margin: float | None = None
    max: float | None = None
    direction: Literal["lower", "higher"] = "lower"
    role: Literal["deciding", "advisory"] = "deciding"
    headroom_reason: str | None = None


class Functional(Table, frozen=True, kw_only=True):
    """[functional]: a small fixed prompt set that every boot is asked beside the load, never timed.

    An arm that answers it otherwise than the baseline does, beyond what the baseline's own copy does, is broken.
    """

    prompts: Literal["builtin", "off"] = "builtin"
    file: str = ""  # a prompt set of one's own instead, JSON lines; relative to the experiment file
    on_broken: Literal["reject", "note"] = "reject"


class Mixed(Table, frozen=True, kw_only=True):
    """[mixed]: what to do with an arm that gains on one class and loses on another."""

    action: Literal["keep-baseline", "adopt-on-mix"] = "keep-baseline"


class AllowedLine(Table, frozen=True, kw_only=True):
    """A boot-log signature that is known and harmless here, with the reason."""

    signature: str
    reason: str


class BootLogRule(Table, frozen=True, kw_only=True):
    """[boot_log]: which lines of an arm's boot log count against it."""

    mode: Literal["no-new-vs-baseline"] = "no-new-vs-baseline"
    patterns: str = ""  # a table of one's own beside the built-in one, tab-separated; relative to the experiment file
    kv_tolerance: float = 0.02  # by how much the size of the KV cache may differ between boots
    allow: list[AllowedLine] = []
    on_dirty: Literal["reject", "note"] = "reject"


class Discard(Table, frozen=True, kw_only=True):
    """[discard]: faults of the surroundings, for which a boot is replaced. What the arm causes counts against it."""

    when: list[str] = msgspec.field(
        default_factory=lambda: [
            "client_lag_p99_ms > 20",
            "invalid_window",
            "thermal_throttle",
            "foreign_load",
        ]
    )
    replacement_boots_max: int = 2
    show: Literal["always"] = "always"


class Skipped(Table, frozen=True, kw_only=True):
    """[[skipped]]: an arm that was left out, and why. A quietly skipped arm biases a sweep."""

    arm: str
    reason: str


class Hooks(Table, frozen=True, kw_only=True):
    """[engine.hooks]: commands of the launcher `command`, for an engine under systemd, ssh or anything else.

    Each is an argv in which `{host}`, `{port}`, `{model}`, `{arm}`, `{log}` and `{args}` (the arm's argv, one word
    each) are filled in. `start` returns when the engine is told to start, `stop` when it is told to stop, and `alive`
    exits with 0 while it lives. `logs` prints the engine's output until it is stopped.
    """

    start: list[str]
    stop: list[str]
    alive: list[str] = []
    logs: list[str] = []
    wipe: list[str] = []  # empties the engine's own caches, for cache = "wipe"


class Engine(Table, frozen=True, kw_only=True):
    """[engine]: what all arms share. `{host}`, `{port}`, `{bind}` and `{model}` in argv, env and url are filled in."""

    # process: argv here; docker, podman: argv inside `image`; command: `hooks`; external: it is up already at `url`.
    launcher: Literal["process", "docker", "podman", "command", "external"] = "process"
    argv: list[str] = []
    env: dict[str, str] = {}
    image: str = ""
    container_args: list[str] = []  # between `run` and the image, such as ["--gpus", "all", "--ipc", "host"]
    hooks: Hooks | None = None
    url: str = ""
    model: str = ""  # the served name; empty: the recorded one
    cwd: str = "."
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one per boot
    api_key_env: str = ""  # name of the variable that holds the key; the key itself is never written
    ready_timeout: str = "1200s"
    stop_timeout: str = "60s"
    # How passes are kept apart in the prefix cache (DESIGN §10.12). `reset` asks the engine and wants the proof.
    cache_isolation: Literal["salt", "nonce", "reset", "none"] = "salt"
    # Compile and kernel caches on disk, the same for all arms: `wipe` empties cache_dirs before each boot, `prewarm`
    # boots every arm once unmeasured, `keep` leaves them as they are.
    cache: Literal["keep", "wipe", "prewarm"] = "keep"
    cache_dirs: list[str] = []
    drop_page_cache: bool = False  # needs root
    cool_down_c: float | None = None  # wait before a boot until the hottest GPU is no warmer
    cool_down_timeout: str = "600s"
    min_available_gib: float = 1.0  # below this the engine is stopped, before the host freezes
    memory_tolerance_gib: float = 2.0  # what may be missing of MemAvailable after a stop
    log_limit_mib: int = 1024  # an engine that prints more is stopped


class ArmTable(Table, frozen=True, kw_only=True):
    """[[arm]]: what it adds to the engine, or to the arm that it extends."""

    name: str
    baseline: bool = False
    extends: str | None = None  # "" extends nothing but the engine
    args: list[str] = []
    argv: list[str] = []  # replaces the whole command line
    env: dict[str, str] = {}
    image: str = ""
    container_args: list[str] = []  # added to the engine's
    cwd: str = ""
    url: str = ""  # of the launcher `external`
    port: int | None = None
    ready_timeout: str = ""
    stop_timeout: str = ""
    changes: list[Literal["prefix_cache", "output", "kv_cache"]] = []
    note: str = ""


# Time to first token first (DESIGN §5).
DEFAULT_MEASURES = (
    MeasureRule(name="ttft", material=Material(relative=0.02, absolute_ms=5.0), margin=0.05),
    MeasureRule(name="tpot", material=Material(relative=0.03), margin=0.05),
)


class ExperimentFile(Table, frozen=True, kw_only=True):
    """The file as written."""

    rule: RuleHead
    profile: ProfileChoice
    engine: Engine | None = None
    arm: list[ArmTable] = []
    load: Load = Load()
    design: Design = Design()
    measure: list[MeasureRule] = msgspec.field(default_factory=lambda: list(DEFAULT_MEASURES))
    guard: list[GuardRule] = []
    functional: Functional = Functional()
    mixed: Mixed = Mixed()
    boot_log: BootLogRule = BootLogRule()
    discard: Discard = Discard()
    skipped: list[Skipped] = []


@dataclass(frozen=True, slots=True)
class Arm:
    """An engine configuration, the ladder resolved. `changes` also holds what it inherits."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    extends: str | None
    changes: frozenset[str]
    note: str = ""
    image: str = ""
    container_args: tuple[str, ...] = ()
    cwd: str = "."  # from the experiment file
    url: str = ""
    port: int = 0
    ready_timeout: str = "1200s"
    stop_timeout: str = "60s"


@dataclass(frozen=True, slots=True)
class AlsoWindow:
    """An advisory window: `single` runs each class alone at c = 1, `closed` holds c for a time, `sweep` plays a list at
    c. With `per_class` a closed window is one per class."""

    kind: Literal["single", "closed", "sweep"]
    c: int
    limit_ns: int | None
    per_class: bool = False


@dataclass(frozen=True, slots=True)
class Experiment:
    """A checked experiment. `arms[0]` is the baseline."""

    path: Path
    file: ExperimentFile
    arms: tuple[Arm, ...]
    also: tuple[AlsoWindow, ...]
    bytes_sha256: str
    semantic_sha256: str

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    @property
    def profile_path(self) -> Path:
        return self.path.parent / self.file.profile.path

    @property
    def looks(self) -> tuple[int, ...]:
        return tuple(self.file.design.looks) or (self.file.design.blocks,)
