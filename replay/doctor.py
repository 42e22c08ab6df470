"""Is this machine fit for an evening of boots? Looks, asks and reads; starts no engine and changes nothing.

Each check is a function that gives a `Check`: ok, warn (the run will go, and something of it will be worth less) or
fail (it would not come through), with what to do. Without an experiment only what every run needs is looked at.
"""

import importlib
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from profiles.errors import FirsttokenError
from profiles.experiment import Arm, Experiment
from profiles.planned import check_profile, read_facts
from profiles.profile import read_profile
from profiles.units import MICROSECOND_NS, MILLISECOND_NS, format_bytes, format_duration
from replay import caches, gpus
from replay.clock import Clock
from replay.engines import check_launcher, port_refuses
from replay.environment import without_key
from replay.host import PROC, parse_meminfo

type Status = Literal["ok", "warn", "fail"]

LEAST_PYTHON: Final = (3, 12)
# Import names of what the main job needs; without uvloop it is only less exact.
PACKAGES: Final = tuple(
    "mitmproxy httpx httptools sniffio numpy polars click orjson scipy msgspec prometheus_client psutil rich zstandard "
    "brotli vl_convert jinja2 tzdata".split()
)
LEAST_DISK: Final = 1_000_000_000
ENOUGH_DISK: Final = 10_000_000_000
LEAST_FILES: Final = 256
ENOUGH_FILES: Final = 1024
COARSE_CLOCK_NS: Final = 100 * MICROSECOND_NS
STEP_NS: Final = 20 * MILLISECOND_NS
# The client and its measuring need most of a core for themselves.
FREE_CORES: Final = 1.0
SWAPPED_BYTES: Final = 256 * 1024**2
GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it stands, what was seen, and what to do about it."""

    name: str
    status: Status
    seen: str
    hint: str = ""


def examine(
    experiment: Experiment | None,
    *,
    place: Path,
    clock: Clock,
    env: Mapping[str, str] = os.environ,
    proc: Path = PROC,
    gpu_tool: str = gpus.TOOL,
) -> Iterator[Check]:
    """All checks, in the order in which they matter. `place` is where the run will be written."""
    began = (clock.now_ns(), clock.wall_ns())
    yield check_python(sys.version_info[:3])
    yield check_packages(PACKAGES)
    yield check_disk(place)
    yield check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_port(experiment)
    yield check_cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(), _load())
    memory = parse_meminfo(_text(proc / "meminfo"))
    yield check_memory(memory, experiment)
    yield check_swap(memory)
    found = gpus.read_gpus(gpu_tool)
    yield check_gpus(found, gpus.read_gpu_processes(gpu_tool, found), experiment)
    if experiment is not None:
        yield from _of_experiment(experiment, place, env)
    # Last, so that the other checks lie between the two looks at it.
    yield check_clock(clock, began)


def _of_experiment(experiment: Experiment, place: Path, env: Mapping[str, str]) -> Iterator[Check]:
    engine = experiment.file.engine
    yield _asked("profile", lambda: _fits(experiment))
    if engine is None:
        yield Check("engine", "fail", "the experiment has no [engine]", "Name what starts it: see `firsttoken init`.")
        return
    yield _asked("engine", lambda: _launches(experiment))
    yield check_key(engine.api_key_env, experiment.arms, env)
    yield _asked("caches", lambda: _caches(experiment, place))
    if not engine.drop_page_cache:
        yield Check("page cache", "ok", "left as it is (drop_page_cache is off)")
    elif os.access(caches.DROP_CACHES, os.W_OK):
        yield Check("page cache", "ok", "may be dropped before each boot")
    else:
        yield Check("page cache", "fail", "may be dropped by root only", "Run as root, or leave drop_page_cache out.")


def _asked(name: str, ask: Callable[[], Check]) -> Check:
    """What the run itself would refuse, as a check."""
    try:
        return ask()
    except FirsttokenError as error:
        return Check(name, "fail", error.problem, error.hint)


def check_python(version: Sequence[int]) -> Check:
    """The interpreter that runs us."""
    said = ".".join(map(str, version))
    if tuple(version[:2]) < LEAST_PYTHON:
        return Check("python", "fail", said, "3.12 or later is needed.")
    return Check("python", "ok", said)


def check_packages(names: Sequence[str]) -> Check:
    """Really imports them: a package built for another machine is found, and fails."""
    import replay.lean_httpx  # noqa: F401  before anything that imports httpx

    broken = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a foreign package does when it is loaded
            broken.append(f"{name} ({type(error).__name__})")
    if broken:
        return Check("packages", "fail", f"cannot be imported: {', '.join(broken)}", "Install firsttoken again.")
    try:
        importlib.import_module("uvloop")
    except ImportError:
        return Check("packages", "warn", "all but uvloop", "Without it instants are read a little later.")
    return Check("packages", "ok", f"{len(names) + 1} can be imported")


def check_disk(place: Path, usage: Callable[[Path], Any] = shutil.disk_usage) -> Check:
    """Free space where the run will be, and whether it may be written there."""
    folder = place.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return Check("disk", "fail", f"{folder} may not be written to", "Give another place with --out.")
    free = int(usage(folder).free)
    said = f"{format_bytes(free)} free at {folder}"
    if free < LEAST_DISK:
        return Check("disk", "fail", said, "A run that cannot write stops: make room, or give another --out.")
    if free < ENOUGH_DISK:
        return Check("disk", "warn", said, "Engine logs may take 1 GB a boot (engine.log_limit_mib).")
    return Check("disk", "ok", said)


def check_files(limit: int) -> Check:
    """`ulimit -n`: connections, logs and pipes."""
    if limit == resource.RLIM_INFINITY or limit >= ENOUGH_FILES:
        return Check("open files", "ok", "no limit" if limit == resource.RLIM_INFINITY else f"{limit} allowed")
    status: Status = "fail" if limit < LEAST_FILES else "warn"
    return Check("open files", status, f"{limit} allowed", f"`ulimit -n {ENOUGH_FILES}` before the run.")


def check_port(experiment: Experiment | None) -> Check:
    """Whether a port of the engine's host can be bound, and a fixed one is free."""
    engine = experiment.file.engine if experiment is not None else None
    host = engine.host if engine is not None else "127.0.0.1"
    if engine is not None and engine.launcher == "external":
        return Check("port", "ok", "none is needed: the engine is up already")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return Check("port", "fail", f"none can be bound on {host} ({error.strerror})", "See engine.host.")
    fixed = sorted({arm.port for arm in experiment.arms if arm.port}) if experiment is not None else []
    taken = [port for port in fixed if not port_refuses(host, port)]
    if taken:
        return Check(
            "port",
            "fail",
            f"{', '.join(map(str, taken))} on {host} is in use",
            "Stop what is there, or write port = 0.",
        )
    return Check("port", "ok", f"{host} can be bound" + (f", {', '.join(map(str, fixed))} free" if fixed else ""))


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def check_cores(cores: int | None, load: float | None) -> Check:
    """Cores for us, and how many others use now."""
    said = f"{cores or 'an unknown number of'} for us" + (f", load {load:.1f}" if load is not None else "")
    if cores is not None and cores < 2:
        return Check("cores", "warn", said, "The client and the engine share one: `firsttoken selftest` measures it.")
    if cores is not None and load is not None and cores - load < FREE_CORES:
        return Check("cores", "warn", said, "Something else keeps them busy: boots may be discarded as foreign_load.")
    return Check("cores", "ok", said)


def check_memory(memory: Mapping[str, int], experiment: Experiment | None) -> Check:
    """What may be had without swapping."""
    available = memory.get("MemAvailable")
    if available is None:
        return Check("memory", "warn", "this system does not say", "memory_tolerance_gib cannot be checked here.")
    engine = experiment.file.engine if experiment is not None else None
    least = engine.min_available_gib * GIB if engine is not None else GIB
    said = f"{available / GIB:.1f} of {memory.get('MemTotal', 0) / GIB:.1f} GiB available"
    if available < least:
        return Check("memory", "fail", said, "Below engine.min_available_gib an engine is stopped.")
    return Check("memory", "ok", said)


def check_swap(memory: Mapping[str, int]) -> Check:
    """Whether the machine has swapped already."""
    total, free = memory.get("SwapTotal"), memory.get("SwapFree")
    if total is None or free is None:
        return Check("swap", "ok", "this system does not say")
    if total == 0:
        return Check("swap", "ok", "none")
    said = f"{(total - free) / GIB:.1f} of {total / GIB:.1f} GiB used"
    if total - free > SWAPPED_BYTES:
        return Check("swap", "warn", said, "What was swapped comes back slowly: free memory, or turn swap off and on.")
    return Check("swap", "ok", said)


def check_gpus(
    found: Sequence[Mapping[str, Any]], users: Sequence[tuple[int, str]] | None, experiment: Experiment | None
) -> Check:
    """What `nvidia-smi` says of the GPUs, who uses them, and whether they are slowed down."""
    asked = experiment is not None and "thermal_throttle" in experiment.file.discard.when
    if not found:
        hint = "discard.when asks for thermal_throttle, and nobody can see it here." if asked else ""
        return Check("gpu", "warn" if asked else "ok", "no nvidia-smi, or no GPU that it knows", hint)
    slowed = sorted({why for gpu in found for why in gpu.get("throttle") or () if "thermal" in why or "brake" in why})
    hottest = max((gpu["temperature_c"] for gpu in found if gpu.get("temperature_c") is not None), default=None)
    said = f"{len(found)}" + (f", hottest {hottest:.0f} °C" if hottest is not None else "")
    if slowed:
        return Check("gpu", "warn", f"{said}, slowed down: {', '.join(slowed)}", "Let it cool down before the run.")
    if users:
        named = ", ".join(f"{name} (pid {pid})" for pid, name in users[:3])
        return Check("gpu", "warn", f"{said}, in use by {named}", "Stop what does not belong to the run.")
    return Check("gpu", "ok", said)


def check_key(variable: str, arms: Sequence[Arm], env: Mapping[str, str]) -> Check:
    """The variable that holds the engine's key, never the key."""
    if not variable:
        return Check("api key", "ok", "none is asked for")
    lacking = without_key(variable, arms, env)
    if not lacking:
        return Check("api key", "ok", f"{variable} is set")
    which = f" for {', '.join(lacking)}" if len(lacking) < len(arms) else ""
    return Check("api key", "fail", f"{variable} is not set{which}", f"export {variable}=... in the shell of the run.")


def _fits(experiment: Experiment) -> Check:
    facts = read_facts(read_profile(experiment.profile_path))
    check_profile(experiment, facts)
    return Check("profile", "ok", f"{experiment.profile_path}: {facts.to_send} requests to send")


def _launches(experiment: Experiment) -> Check:
    engine = experiment.file.engine
    assert engine is not None
    check_launcher(experiment)
    found = {
        "process": "its programs are there",
        "command": "its hooks are there",
        "external": "it answers",
    }.get(engine.launcher, f"{engine.launcher} answers and has the images")
    return Check("engine", "ok", f"{engine.launcher}: {found}")


def _caches(experiment: Experiment, place: Path) -> Check:
    engine = experiment.file.engine
    assert engine is not None
    dirs = caches.check_caches(experiment, keep=(place, experiment.profile_path))
    missing = [str(path) for path in dirs if not path.is_dir()]
    if missing:
        hint = "That is right if no engine ran yet; else correct cache_dirs."
        return Check("caches", "warn", f"not there: {', '.join(missing)}", hint)
    return Check("caches", "ok", f"{engine.cache}: {len(dirs)} directories" if dirs else f"{engine.cache}: none named")


def check_clock(clock: Clock, began: tuple[int, int]) -> Check:
    """Resolution of the monotonic clock, and whether the wall clock was moved while we looked."""
    steps = []
    last = clock.now_ns()
    for _ in range(2000):
        now = clock.now_ns()
        if now > last:
            steps.append(now - last)
        last = now
    resolution = min(steps, default=None)
    if resolution is None or resolution > COARSE_CLOCK_NS:
        seen = "it does not move" if resolution is None else f"steps of {format_duration(resolution)}"
        return Check("clock", "fail", seen, "TTFT of a few ms cannot be measured on this clock.")
    moved = (clock.wall_ns() - began[1]) - (clock.now_ns() - began[0])
    if abs(moved) > STEP_NS:
        hint = "Durations do not use it; anchors do. Let it be slewed (chrony, systemd-timesyncd), not stepped."
        return Check("clock", "warn", f"the wall clock was moved by {format_duration(moved)} meanwhile", hint)
    return Check("clock", "ok", f"steps of {format_duration(resolution)}, wall clock steady")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
