"""The options that only the simulation has: its times, its draws, its truth, and how it misbehaves.

They are the same in all arms and no engine has them, so the boot log leaves them out of its arguments.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from profiles.units import parse_duration
from replay.simulator.faults import Faults, read_death, read_early_ready


def _read(read: Callable[[str], Any], ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """An option's value by a function that raises ValueError in words."""
    try:
        return None if value is None else read(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_read_duration = partial(_read, parse_duration)
_COUNT = click.IntRange(min=0)

_OPTIONS = (
    click.option(
        "--boot-time", default="300ms", show_default=True, callback=_read_duration, help="Drawn within 10 % of it."
    ),
    click.option("--seed", type=int, help="Of this boot's draws.  [default: drawn by the system, and printed]"),
    click.option(
        "--speed-sd", type=click.FloatRange(0, 0.5), default=0.003, show_default=True, help="Of the speed factor."
    ),
    click.option(
        "--time-scale", type=click.FloatRange(0.01, 100), default=1.0, show_default=True, help="On all steps."
    ),
    click.option("--kv-jitter", type=click.FloatRange(0, 0.5), default=0.0, help="Of the KV cache's size, per boot."),
    click.option("--truth", type=click.Path(path_type=Path, dir_okay=False), help="Ground truth, as JSON lines."),
    click.option(
        "--compile-cache",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="A first boot is cold, three times as long; later ones are warm.",
    ),
    click.option("--jit-shapes", is_flag=True, help="A new batch or prefill size compiles a kernel first."),
    click.option(
        "--die-in-boot",
        metavar="CODE|SIGNAL|oom",
        callback=partial(_read, read_death),
        help="Fail while booting: with an exit code, by a signal, out of memory.",
    ),
    click.option(
        "--hang-in-boot",
        type=click.Choice(["silent", "503"]),
        help="Never listen; or listen and answer 503 for ever.",
    ),
    click.option(
        "--early-ready",
        metavar="DURATION[:error]",
        callback=partial(_read, read_early_ready),
        help="/health says 200 so long before chat stops saying 503, or 200 with an error.",
    ),
    click.option("--die-after", type=_COUNT, metavar="N", help="Crash on the request after N."),
    click.option("--hang-after", type=_COUNT, metavar="N", help="After N requests no more tokens; /health stays 200."),
    click.option("--errors-after", type=_COUNT, metavar="N", help="After N requests every one gets a 500."),
    click.option(
        "--restart-after", type=_COUNT, metavar="N", help="Crash on the request after N; a supervisor boots it again."
    ),
    click.option("--ignore-sigterm", is_flag=True, help="Only SIGKILL ends it."),
    click.option("--spawn-child", is_flag=True, help="Leave a child that outlives a kill of this process alone."),
    click.option(
        "--leave-grandchildren",
        type=click.Choice(["plain", "renamed"]),
        help="Leave workers in sessions of their own that ignore SIGTERM; renamed as vLLM's are.",
    ),
    click.option("--reuse-port", is_flag=True, help="Bind with SO_REUSEPORT, as older vLLM does."),
    click.option("--twin", is_flag=True, help="A second process answers a part of the connections."),
    click.option(
        "--flood-log", type=_COUNT, metavar="MIB", default=0, help="Print noise: half in the boot, half while serving."
    ),
    click.option("--ignore-cache-salt", is_flag=True, help="A salt keeps nothing apart in the prefix cache."),
    click.option("--break-tool-arguments", is_flag=True, help="A stream loses the end of a tool call's arguments."),
    click.option("--leak-reasoning", is_flag=True, help="Reasoning comes as text, in its marks."),
    click.option("--ignore-schema", is_flag=True, help="What is asked for as JSON comes as text."),
    click.option("--wrong-finish-reason", is_flag=True, help="It is always stop."),
    click.option(
        "--drift-length", type=click.FloatRange(0.1, 10), default=1.0, help="Answers so many times their length."
    ),
    click.option("--nondeterministic", is_flag=True, help="The same request gets other words each time."),
    click.option("--no-tools", is_flag=True, help="A request with tools is refused."),
    click.option("--no-metrics", is_flag=True, help="/metrics is a 404."),
    click.option("--metrics-lag", default="0ms", callback=_read_duration, help="Counters may be so old."),
)
SIMULATION_ONLY = frozenset(
    "boot_time seed speed_sd time_scale kv_jitter truth compile_cache jit_shapes die_in_boot hang_in_boot early_ready "
    "die_after hang_after errors_after restart_after ignore_sigterm spawn_child leave_grandchildren reuse_port twin "
    "flood_log ignore_cache_salt break_tool_arguments leak_reasoning ignore_schema wrong_finish_reason drift_length "
    "nondeterministic no_tools no_metrics metrics_lag".split()
)


def simulation_options[F: Callable[..., Any]](command: F) -> F:
    """Give a command all of them, in the order above."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def faults_of(flags: dict[str, Any]) -> Faults:
    """The faults among a command's values."""
    same = (
        "die_in_boot hang_in_boot early_ready die_after hang_after errors_after restart_after ignore_sigterm "
        "spawn_child leave_grandchildren reuse_port twin compile_cache jit_shapes ignore_cache_salt "
        "break_tool_arguments leak_reasoning ignore_schema wrong_finish_reason drift_length nondeterministic no_tools"
    ).split()
    return Faults(
        **{name: flags[name] for name in same},
        flood_mib=flags["flood_log"],
        metrics=not flags["no_metrics"],
        metrics_lag_ns=flags["metrics_lag"],
    )
