"""What is not the arm's fault: a GPU that slowed down, others on the machine, a full disk. Memory is in `memory`.

`throttled` and `foreign_load` judge the samples of deciding windows and return whether the boot is spoilt, with what
was seen in words. Where nothing could be judged the words begin with `NOT_CHECKED`, so that a report can say so.
"""

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from profiles.runs import NOT_CHECKED, Step, Telemetry
from profiles.units import SECOND_NS, format_bytes, format_duration
from replay.clock import Clock
from replay.gpus import memory_used, read_gpu_processes, read_gpus
from replay.host import PROC, Host, OffLoop

# Clocks that were taken away. A power cap is not among them: an H200 under full load lives at its cap (1470 of 1980 MHz
# in bf16 products), in each arm alike.
SLOWED_BY = frozenset({"hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake"})
# A quarter less clock in a twentieth of the time moves a mean by 1.7 %, under the 2 % that matter.
SLOWED_SHARE = 0.05
# A GB10 that lost its power contract sits at 500 to 850 of 3003 MHz and names no reason; well, it runs at 2400 to 2490.
# Between these is room for a clock that somebody locked (2100), or that a power cap holds down.
LOW_CLOCK = 0.4
# Below this utilisation a low clock is sleep and not sickness.
LOADED = 0.5
# One core that streams takes 5 to 10 % of the memory bandwidth that a GB10's CPU and GPU share: more than the material
# line of 2 %. A desktop at rest takes 0.1 to 0.3.
FOREIGN_CORES = 1.0
FOREIGN_SHARE = 0.1
# What a flooding log and /metrics can write between two looks a second apart. log_limit_mib has its own watch.
DISK_FLOOR_BYTES = 512 * 1024**2
COOL_POLL_NS = 2 * SECOND_NS


def throttled(samples: Sequence[Telemetry]) -> tuple[bool, str]:
    """A GPU was slowed down, or ran far below its clock without saying why. With what was seen."""
    if not samples:
        return False, f"{NOT_CHECKED}no sample fell into a deciding window"
    rows: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            rows.setdefault(gpu.get("index", 0), []).append(gpu)
    judged = {index: seen for index, gpus in sorted(rows.items()) if (seen := _judge_gpu(index, gpus)) is not None}
    if not judged:
        why = "no GPU says what slows it down, or its clock" if rows else "no GPU sensor answers (nvidia-smi)"
        return False, f"{NOT_CHECKED}{why}"
    broken = [words for spoilt, words in judged.values() if spoilt]
    return bool(broken), "; ".join(broken or [words for _, words in judged.values()])


def _judge_gpu(index: int, gpus: Sequence[dict[str, Any]]) -> tuple[bool, str] | None:
    known = [gpu["throttle"] for gpu in gpus if gpu.get("throttle") is not None]
    slowed = [SLOWED_BY & set(reasons) for reasons in known if SLOWED_BY & set(reasons)]
    loaded = [
        (gpu["clock_mhz"], gpu["clock_max_mhz"])
        for gpu in gpus
        if gpu.get("clock_mhz") is not None and gpu.get("clock_max_mhz") and (gpu.get("utilisation") or 0) >= LOADED
    ]
    if not known and not loaded:
        return None
    hottest = max((gpu["temperature_c"] for gpu in gpus if gpu.get("temperature_c") is not None), default=None)
    heat = "" if hottest is None else f", at most {hottest:g} °C"
    if is_often(len(slowed), len(known), SLOWED_SHARE):
        reasons = ", ".join(sorted(frozenset().union(*slowed)))
        return True, f"GPU {index} was slowed down by {reasons} in {len(slowed)} of {len(known)} samples{heat}"
    if not loaded:
        return False, f"GPU {index} named no slowdown; its clock was not judged, it was never under load{heat}"
    clock, most = median(clock for clock, _ in loaded), max(most for _, most in loaded)
    at = f"{clock:.0f} of {most:.0f} MHz under load"
    if clock < LOW_CLOCK * most:
        cure = "a GB10 in this state has to be unplugged for a minute"
        return True, f"GPU {index} ran at {at} and named no reason ({cure})"
    named = "" if known else "; what slows it down is not known"
    return False, f"GPU {index} ran at {at}{heat}{named}"


def foreign_load(samples: Sequence[Telemetry]) -> tuple[bool, str]:
    """Others used the CPUs, or somebody else's process was on a GPU. With what was seen."""
    if not samples:
        return False, f"{NOT_CHECKED}no sample fell into a deciding window"
    looked = [sample.gpu_strangers for sample in samples if sample.gpu_strangers is not None]
    strangers = sorted({name for names in looked for name in names})
    cores = [sample.others_busy for sample in samples if sample.others_busy is not None]
    busy = sum(each > FOREIGN_CORES for each in cores)
    found = []
    if is_often(busy, len(cores), FOREIGN_SHARE):
        named = [name for sample in samples for name in sample.others]
        top = f" ({', '.join(named[-3:])})" if named else ""
        found.append(
            f"others used more than {FOREIGN_CORES:g} core in {busy} of {len(cores)} samples,"
            f" {max(cores):.1f} at most{top}"
        )
    if strangers:
        found.append(f"another program computes on a GPU: {', '.join(strangers)}")
    if found:
        return True, "; ".join(found)
    if not cores and not looked:
        return False, f"{NOT_CHECKED}the engine's processes are not known, so theirs cannot be told from others'"
    cpu = f"others used {fmean(cores):.2f} cores on average" if cores else "the load of others on the CPUs is not known"
    gpu = "nobody else was on a GPU" if looked else "other programs on a GPU cannot be seen here"
    return False, f"{cpu}; {gpu}"


def is_often(count: int, samples: int, share: float) -> bool:
    """At least `share` of the samples, and at least two of them where there are two: one is a glitch."""
    return count > 0 and count >= max(min(2, samples), math.ceil(share * samples))


async def gpu_strangers(
    ours: Sequence[int] = (), off_loop: OffLoop = asyncio.to_thread, gpus: list[dict[str, Any]] | None = None
) -> list[str] | None:
    """Programs that compute on a GPU and neither are of `ours` nor descend from one; None where nothing can be seen.

    `gpus` is what `read_gpus` has just said, where it was asked already.

    Before a spawn `ours` is empty, and whoever is there takes part in the measurement, also one whose pid counts in
    another container.
    """
    apps: list[tuple[int, str]] | None = await off_loop(partial(read_gpu_processes, gpus=gpus))
    if apps is None:
        return None
    host = Host()
    others = (False,) if ours else (False, None)
    return [f"{name} (pid {pid})" for pid, name in apps if host.descends(pid, ours) in others]


async def gpu_free(clock: Clock, off_loop: OffLoop = asyncio.to_thread) -> Step:
    """Who computes on a GPU before the spawn. Without a proof somebody does, or nobody can tell.

    Facts: seen, and memory_used_bytes by the index of each GPU that has memory of its own.
    """
    began_ns, gpus = clock.now_ns(), await off_loop(read_gpus)
    seen = await gpu_strangers(off_loop=off_loop, gpus=gpus)
    used = {str(index): count for index, count in memory_used(gpus).items()}
    facts: dict[str, Any] = {"seen": seen, "memory_used_bytes": used}
    if seen is None:
        facts["missing"] = "no GPU sensor answers (nvidia-smi)"
    proof = "no other program seen on a GPU" if seen == [] else None
    return Step(name="gpu_free", began_ns=began_ns, ended_ns=clock.now_ns(), proof=proof, facts=facts)


async def cool_down(
    limit_c: float,
    timeout_ns: int,
    clock: Clock,
    *,
    read: Callable[[], list[dict[str, Any]]] = read_gpus,
    off_loop: OffLoop = asyncio.to_thread,
) -> Step:
    """Wait until the hottest GPU is no warmer than `limit_c`, at most `timeout_ns`.

    Facts: from_c, to_c, limit_c. Without a proof it stayed too warm, or no sensor answers; `missing` says which, and
    the boot goes on.
    """
    began_ns = clock.now_ns()
    from_c: float | None = None
    while True:
        gpus: list[dict[str, Any]] = await off_loop(read)
        hottest = max((gpu["temperature_c"] for gpu in gpus if gpu.get("temperature_c") is not None), default=None)
        now_ns = clock.now_ns()
        from_c = hottest if from_c is None else from_c
        if hottest is None or hottest <= limit_c or now_ns - began_ns >= timeout_ns:
            break
        await clock.sleep_until_ns(min(now_ns + COOL_POLL_NS, began_ns + timeout_ns))
    facts: dict[str, Any] = {"from_c": from_c, "to_c": hottest, "limit_c": limit_c}
    proof = None
    if hottest is None:
        facts["missing"] = "no GPU says its temperature"
    elif hottest <= limit_c:
        proof = f"the hottest GPU is at {hottest:g} °C, no warmer than {limit_c:g} °C"
    else:
        facts["missing"] = f"still {hottest:g} °C after {format_duration(now_ns - began_ns)}"
    return Step(name="cool_down", began_ns=began_ns, ended_ns=now_ns, proof=proof, facts=facts)


def disk_full(path: Path, floor_bytes: int = DISK_FLOOR_BYTES) -> str | None:
    """The sentence, if the file system of `path` has less free than the floor, or no more inodes."""
    try:
        system = os.statvfs(path)
    except OSError:
        return None  # the next write says what is wrong
    free = system.f_bavail * system.f_frsize
    if free < floor_bytes:
        return f"{path}: only {format_bytes(free)} are free on its disk, and a run needs {format_bytes(floor_bytes)}"
    if system.f_files and not system.f_favail:
        return f"{path}: its disk can hold no more files (no free inodes)"
    return None


def boot_id(proc: Path = PROC) -> str | None:
    """Changes whenever the host is started."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
