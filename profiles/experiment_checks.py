"""What a rule cannot hold, and what a profile cannot carry. Each refusal names the key, its line and the way out."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from profiles.concurrency import Concurrency, OperatingPoint
from profiles.errors import RuleError
from profiles.experiment_file import ArmTable, Experiment, GuardRule
from profiles.launcher_checks import check_launchers
from profiles.measurable import SUBJECTS, settings_for
from profiles.toml_lines import line_of
from profiles.units import HOUR_NS, parse_duration

# Requests per boot below which a two-sided 95 % interval of the quantile does not exist (reference: order statistics).
QUANTILE_NEEDS = {"p90": 36, "p95": 72, "p99": 368}
_GUARD = re.compile(
    r"(?P<quantile>ttft_(?:p90|p95|p99))|(?P<errors>error_rate)|(?P<measure>ttft|tpot|throughput)@c=(?P<c>\d+)"
)


def guard_parts(metric: str) -> dict[str, str] | None:
    """The parts of a guard's metric (`quantile`, `errors`, or `measure` and `c`), or None for an unknown one."""
    match = _GUARD.fullmatch(metric)
    return None if match is None else {name: part for name, part in match.groupdict().items() if part}


# Measures are named as they are on the recorded mix at the operating point, or as they are in a closed loop at c.
_MEASURE = re.compile(r"(?P<measure>ttft|tpot)|(?P<at>ttft|tpot|throughput)@c=(?P<c>\d+)")


def measure_parts(name: str) -> dict[str, str] | None:
    """The parts of a measure's name: `measure`, and `c` where it is one of a closed loop. None for an unknown one."""
    match = _MEASURE.fullmatch(name)
    if match is None:
        return None
    return {"measure": match["measure"]} if match["c"] is None else {"measure": match["at"], "c": match["c"]}


def requests_for_error_rate(ceiling: float, looks: int = 1) -> int:
    """Requests without an error that show a rate below the ceiling: exact one-sided 95 % bound (1 % needs 299). With
    several looks each has its share of the 5 %, so more are needed."""
    return math.ceil(math.log(0.05 / looks) / math.log1p(-ceiling))


type Refuse = Callable[..., RuleError]


def check_rule(experiment: Experiment, text: str = "") -> None:
    """Refuse what the rule cannot hold, whatever the profile says. Raises RuleError."""

    def refuse(key: str, problem: str, hint: str = "") -> RuleError:
        return RuleError(experiment.path, key, problem, line=line_of(text, key), hint=hint)

    _check_load(experiment, refuse)
    _check_engine(experiment, refuse)
    _check_design(experiment, refuse)
    _check_measures(experiment, refuse)
    _check_boot_log(experiment, refuse)
    check_launchers(experiment, refuse)
    for index, guard in enumerate(experiment.file.guard):
        _check_guard(experiment, guard, partial(refuse, f"guard[{index}].metric"))


def _check_load(experiment: Experiment, refuse: Refuse) -> None:
    file = experiment.file
    if file.load.requests_per_boot < 1:
        raise refuse("load.requests_per_boot", "must be at least 1")
    for name in ("warmup_per_class", "warmup_rounds", "single_requests", "sweep_requests"):
        if getattr(file.load, name) < 0:
            raise refuse(f"load.{name}", "must not be negative")
    highest = max((also.c for also in experiment.also if also.kind == "sweep"), default=0)
    if file.load.sweep_requests < 2 * highest:
        raise refuse(
            "load.sweep_requests",
            f"{file.load.sweep_requests} requests cannot hold c = {highest}; it needs {2 * highest}",
            "Raise it, or sweep less far.",
        )
    if not 0 < file.load.max_error_share <= 1:
        raise refuse("load.max_error_share", "must be above 0 and at most 1")
    if not 0 < file.profile.operating_point.cover <= 1:
        raise refuse("profile.operating_point", "cover must be above 0 and at most 1")
    _check_point(experiment, refuse)
    _check_durations(experiment, refuse)


def _check_durations(experiment: Experiment, refuse: Refuse) -> None:
    """Each is one, and a limit is above 0: idle time may be cut to nothing, a request cannot end at once."""
    file = experiment.file
    named = (
        "connect_timeout",
        "write_timeout",
        "first_token_timeout",
        "gap_timeout",
        "request_timeout",
        "stall_timeout",
    )
    durations = {f"load.{name}": getattr(file.load, name) for name in (*named, "idle_cap")}
    if file.engine is not None:
        for name in ("ready_timeout", "stop_timeout", "cool_down_timeout"):
            durations[f"engine.{name}"] = getattr(file.engine, name)
    for index, arm in enumerate(file.arm):
        own = {"ready_timeout": arm.ready_timeout, "stop_timeout": arm.stop_timeout}
        durations |= {f"arm[{index}].{name}": value for name, value in own.items() if value}
    for key, duration in durations.items():
        try:
            parsed_ns = parse_duration(duration)
        except ValueError as error:
            raise refuse(key, str(error)) from None
        if parsed_ns == 0 and key.endswith("_timeout"):
            raise refuse(key, f"{duration!r} would end everything at once", "Write a time above 0, such as 60s.")


def _check_engine(experiment: Experiment, refuse: Refuse) -> None:
    """What each boot finds and leaves: caches, temperature, memory."""
    rules = experiment.file.engine
    if rules is None:
        return
    for name in ("min_available_gib", "memory_tolerance_gib", "log_limit_mib"):
        if not 0 < getattr(rules, name) < math.inf:
            raise refuse(f"engine.{name}", "must be a number above 0")
    if rules.cool_down_c is not None and not 0 < rules.cool_down_c < math.inf:
        raise refuse("engine.cool_down_c", "must be a temperature in °C above 0, such as 50")
    if any(not entry.strip() for entry in rules.cache_dirs):
        raise refuse("engine.cache_dirs", "an entry is empty")
    hook = rules.hooks is not None and bool(rules.hooks.wipe)
    if rules.cache == "wipe" and not rules.cache_dirs and not hook:
        hint = 'Name them, such as cache_dirs = ["~/.cache/vllm/torch_compile_cache", "~/.triton"].'
        if rules.launcher in ("docker", "podman"):
            hint += ' A container that mounts no cache starts without one: then cache = "keep" is cold each time.'
        raise refuse("engine.cache", 'cache = "wipe" needs cache_dirs: what is to be emptied', hint)
    cold = {"cache": rules.cache != "keep", "drop_page_cache": rules.drop_page_cache}
    for name, asked in cold.items():
        if rules.launcher == "external" and asked:
            raise refuse(f"engine.{name}", "an engine that is up already has no cold boot to prepare", "Leave it out.")


def _check_point(experiment: Experiment, refuse: Refuse) -> None:
    point = experiment.file.profile.operating_point
    declared = 'write basis = "declared", levels = { "1" = 0.7, "2" = 0.3 } and a reason'
    if point.basis == "arrivals" and (point.levels or point.reason):
        raise refuse("profile.operating_point", f"levels are for a declared operating point: {declared}")
    if point.basis == "arrivals":
        return
    if not point.levels or not all(c.isascii() and c.isdigit() and int(c) for c in point.levels):
        raise refuse("profile.operating_point", f"its levels are whole numbers from 1: {declared}")
    if not all(0 < share < math.inf for share in point.levels.values()):
        raise refuse("profile.operating_point", "the share of each level must be above 0")
    if not point.reason.strip():
        raise refuse("profile.operating_point", "a declared operating point needs its reason")


# With fewer blocks nothing is decided (DESIGN §10.7).
LEAST_BLOCKS = 3


def _check_design(experiment: Experiment, refuse: Refuse) -> None:
    file = experiment.file
    if file.design.blocks < 1:
        raise refuse("design.blocks", "must be at least 1; at least 3 for a verdict")
    looks = file.design.looks
    if looks and (sorted(set(looks)) != looks or looks[-1] != file.design.blocks):
        raise refuse("design.looks", f"must rise and end with the number of blocks, {file.design.blocks}")
    if len(looks) > 1 and looks[0] < LEAST_BLOCKS:
        raise refuse(
            "design.looks",
            f"a look after {looks[0]} of the blocks cannot decide anything, and takes its share of alpha",
            f"The first look may come after block {LEAST_BLOCKS}.",
        )
    for entry in file.discard.when:
        if discard_condition(entry) is None:
            words = ", ".join(f'"{word}"' for word in DISCARD_WORDS)
            known = f'{words}, "client_lag_p99_ms > 20" or "schedule_lag_p99_ms > 20"'
            raise refuse("discard.when", f"{entry!r} is unknown; write {known}")


def _check_boot_log(experiment: Experiment, refuse: Refuse) -> None:
    for index, allowed in enumerate(experiment.file.boot_log.allow):
        if not allowed.signature.strip():
            raise refuse("boot_log.allow", f"entry {index + 1} has an empty signature, which would allow every line")


def _check_measures(experiment: Experiment, refuse: Refuse) -> None:
    measures = experiment.file.measure
    names = [measure.name for measure in measures]
    for index, measure in enumerate(measures):
        key = f"measure[{index}].name"
        parts = measure_parts(measure.name)
        if parts is None:
            known = "ttft, tpot, ttft@c=N, tpot@c=N, throughput@c=N"
            raise refuse(key, f"{measure.name!r} is unknown", f"Known: {known}.")
        if "c" in parts:
            _check_measured(experiment, int(parts["c"]), partial(refuse, key))
        elif measure.headroom_reason is not None:
            raise refuse(key, "a headroom_reason is for a measure at a concurrency of its own", "Leave it out.")
        if parts["measure"] == "throughput" and measure.material.absolute_ms:
            raise refuse(f"measure[{index}].material", "a throughput has no milliseconds: leave absolute_ms out")
        if measure.headroom_reason is not None and not measure.headroom_reason.strip():
            raise refuse(f"measure[{index}].headroom_reason", "is empty: write down why this point may decide")
    if not names or len(set(names)) != len(names):
        raise refuse("measure", "each measure must appear once, and at least one is needed")
    for index, measure in enumerate(measures):
        if not (0 <= measure.material.relative < 1 and measure.material.absolute_ms >= 0 and measure.margin > 0):
            raise refuse(f"measure[{index}].margin", "material must be in 0..1 and margin above 0")
        if measure.name.startswith("throughput") and measure.margin >= 1:
            raise refuse(f"measure[{index}].margin", "a throughput cannot fall by 100 %: write a margin below 1")


def _check_measured(experiment: Experiment, c: int, refuse: Refuse) -> None:
    """Refuse a metric at a concurrency that no window of a boot holds."""
    if not any(window.kind == "closed" and window.c == c for window in experiment.also):
        raise refuse(f"nothing measures c = {c}", f'Add "closed c={c} for 60s" to load.also.')


def _check_guard(experiment: Experiment, guard: GuardRule, refuse: Refuse) -> None:
    parts = guard_parts(guard.metric)
    if parts is None:
        raise refuse(f"{guard.metric!r} is unknown", "Known: ttft_p90, ttft_p95, ttft_p99, error_rate, throughput@c=N.")
    requests = experiment.file.load.requests_per_boot
    if "errors" in parts:
        if guard.max is None or not 0 < guard.max < 1:
            raise refuse("error_rate needs max between 0 and 1, such as max = 0.01")
        needed = requests_for_error_rate(guard.max, len(experiment.looks))
        planned = requests * experiment.file.design.blocks
        if planned < needed:
            raise refuse(
                f"a ceiling of {100 * guard.max:g} % cannot be shown by {planned} requests per arm; it needs {needed}",
                "Raise load.requests_per_boot or design.blocks, or the ceiling.",
            )
        return
    higher_is_better = parts.get("measure") == "throughput"
    if (guard.direction == "higher") != higher_is_better:
        raise refuse(f'needs direction = "{"higher" if higher_is_better else "lower"}"')
    if guard.margin is None or guard.margin <= 0:
        raise refuse("needs a margin above 0, such as margin = 0.10")
    if higher_is_better and guard.margin >= 1:
        raise refuse("a throughput cannot fall by 100 %: write a margin below 1")
    if "quantile" in parts:
        needed = QUANTILE_NEEDS[parts["quantile"].removeprefix("ttft_")]
        if requests < needed:
            raise refuse(
                f"{guard.metric} cannot be judged with {requests} requests per boot; it needs {needed}",
                "Raise load.requests_per_boot, or guard a lower quantile.",
            )
    else:
        _check_measured(experiment, int(parts["c"]), refuse)


_LAG_LIMIT = re.compile(r"((?:client|schedule)_lag_p99_ms)\s*>\s*(\d+(?:\.\d+)?)")
DISCARD_WORDS = ("invalid_window", "thermal_throttle", "foreign_load")


def discard_condition(entry: str) -> tuple[str, float | None] | None:
    """A discard condition as (name, limit): the limit of `client_lag_p99_ms` and `schedule_lag_p99_ms` in ms. None for
    an unknown one."""
    if entry in DISCARD_WORDS:
        return entry, None
    match = _LAG_LIMIT.fullmatch(entry)
    return None if match is None else (match[1], float(match[2]))


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """Where the requests of a profile arrive, as it bears on an experiment."""

    point: OperatingPoint
    arrivals_at: dict[int, int]  # by the concurrency that they meet; empty where it is declared
    observed_ns: int
    max: int | None  # None where it is declared
    time_ns_at: dict[int, int] = field(default_factory=dict)  # observed time by the concurrency that it was spent at

    def reach(self, c: int) -> float:
        """Share of the arrivals that meet this concurrency or more."""
        total = sum(self.arrivals_at.values())
        shares = {level: n / total for level, n in self.arrivals_at.items()} if total else self.point.weights
        return sum(share for level, share in shares.items() if level >= c)

    def lives(self) -> str:
        """Where production lives, as part of a sentence."""
        low, high = min(self.point.levels), max(self.point.levels)
        return f"production lives at c = {low}" + (f"–{high}" if high > low else "")


def load_facts(experiment: Experiment, *, measured: Concurrency | None, synthetic: bool) -> LoadFacts:
    """The operating point as it was observed, or as the rule declares it for a profile that has none.

    `measured` is the profile's concurrency, None where it is not known. Raises RuleError where the one is asked for and
    only the other can be had: what production does is not to be declared away, and a load that nobody produced has no
    operating point of its own.
    """
    choice = experiment.file.profile.operating_point
    key = "profile.operating_point"
    text = experiment.path.read_text(encoding="utf-8") if experiment.path.exists() else ""
    if choice.basis == "arrivals" and (measured is None or synthetic):
        kind = "is synthetic: nobody produced this load" if synthetic else "holds no ends of requests"
        raise RuleError(
            experiment.path,
            key,
            f"the profile {kind}, so it has no operating point",
            line=line_of(text, key),
            hint='Declare it below [profile]: operating_point = { basis = "declared", levels = { "1" = 0.7, "2" = 0.3 }'
            ', reason = "..." }. Or record production.',
        )
    if choice.basis == "arrivals":
        assert measured is not None
        point = measured.operating_point(choice.cover)
        return LoadFacts(point, measured.arrivals_at, measured.observed_ns, measured.max, measured.time_ns_at)
    if measured is not None and not synthetic:
        raise RuleError(
            experiment.path,
            key,
            "the profile was recorded and has an operating point of its own",
            line=line_of(text, key),
            hint="Leave basis, levels and reason out; to measure at another c as well, add it to load.also.",
        )
    whole = sum(choice.levels.values())
    weights = {int(c): share / whole for c, share in sorted(choice.levels.items(), key=lambda item: int(item[0]))}
    return LoadFacts(OperatingPoint(tuple(weights), weights, 1.0, 1.0), {}, 0, None)


# An operating point may decide only if at least this share of the arrivals reaches it (reference: verdict §8).
MIN_REACH = 0.01


# Content of a profile that can be sent: what was recorded, or words in its shape.
SENDABLE = ("full", "synthetic")


def check_against_profile(
    experiment: Experiment,
    *,
    load: LoadFacts,
    content: str,
    not_measurable: Sequence[str] = (),
) -> None:
    """Refuse what this profile cannot carry.

    `not_measurable` is the manifest's: an arm that changes what bears on a name in it is refused by that name.
    """
    path, file = experiment.path, experiment.file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if load.observed_ns < file.profile.min_observed_h * HOUR_NS:
        hours = load.observed_ns / HOUR_NS
        raise RuleError(
            path,
            "profile.min_observed_h",
            f"the profile was observed for {hours:.2f} h, the rule asks for {file.profile.min_observed_h:g} h",
            line=line_of(text, "profile.min_observed_h"),
            hint="Record for longer, or lower the number before the first boot.",
        )
    _refuse_unmeasurable(experiment, text, not_measurable)
    if content not in SENDABLE:
        raise RuleError(
            path,
            "profile.path",
            "the profile holds no request bodies, so there is nothing to send",
            line=line_of(text, "profile.path"),
            hint="Record with `firsttoken record --bodies full` on a machine where prompts may be stored, or rebuild"
            " prompts of the same lengths with `firsttoken profile synthesise`.",
        )
    for index, measure in enumerate(file.measure):
        parts = measure_parts(measure.name) or {}
        if "c" not in parts or measure.headroom_reason or load.reach(int(parts["c"])) >= MIN_REACH:
            continue
        c, key = int(parts["c"]), f"measure[{index}].name"
        raise RuleError(
            path,
            key,
            f"{measure.name} may not decide: {load.lives()}, and {_reach(load, c)}",
            line=line_of(text, key),
            hint='Decide by "ttft" and "tpot", which are measured where production lives; keep this one in view as a'
            f' [[guard]] metric = "{measure.name}" with role = "advisory"; or write down a headroom_reason.',
        )
    for index, guard in enumerate(file.guard):
        parts = guard_parts(guard.metric) or {}
        if guard.role != "deciding" or "c" not in parts or guard.headroom_reason:
            continue
        c = int(parts["c"])
        if load.reach(c) < MIN_REACH:
            raise RuleError(
                path,
                f"guard[{index}].metric",
                f"{_reach(load, c)}, so {guard.metric} may not decide",
                line=line_of(text, f"guard[{index}].metric"),
                hint='Make it role = "advisory", or write down a headroom_reason.',
            )


def _reach(load: LoadFacts, c: int) -> str:
    total = sum(load.arrivals_at.values())
    above = sum(count for level, count in load.arrivals_at.items() if level >= c)
    counted = f" ({above} of {total})" if total else ""
    return f"{100 * load.reach(c):.1f} % of the arrivals reach c = {c}{counted}"


def _refuse_unmeasurable(experiment: Experiment, text: str, not_measurable: Sequence[str]) -> None:
    """The first arm in the file that is set otherwise than the baseline in what the profile cannot measure."""
    arms = {arm.name: arm for arm in experiment.arms}
    for name, subject in SUBJECTS.items():
        if name not in not_measurable or not arms:
            continue
        wanted = settings_for(name, experiment.baseline.argv, experiment.baseline.env)
        for index, table in enumerate(experiment.file.arm):
            arm = arms[table.name]
            own = settings_for(name, arm.argv, arm.env)
            differing = [flag for flag in {**wanted, **own} if wanted.get(flag, _UNSET) != own.get(flag, _UNSET)]
            if differing:
                key = f"arm[{index}].{_key_of(table, name)}"
                raise RuleError(
                    experiment.path,
                    key,
                    f"{table.name} changes {subject} ({', '.join(differing)}), and {name!r} is not measurable with this"
                    " profile: it does not hold the recorded text",
                    line=line_of(text, key),
                    hint="Record with `firsttoken record --bodies full`, replay a built-in profile"
                    " (`firsttoken profile builtin`), or move the arm to [[skipped]] with this reason.",
                )


_UNSET = object()


def _key_of(table: ArmTable, name: str) -> str:
    """The key of the arm that says it; its name where it only inherits, or leaves out what the baseline has."""
    if settings_for(name, table.args, {}):
        return "args"
    if settings_for(name, table.argv, {}):
        return "argv"
    if settings_for(name, (), table.env):
        return "env"
    return "extends" if table.extends is not None else "argv" if table.argv else "name"
