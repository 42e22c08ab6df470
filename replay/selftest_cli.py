"""The command `selftest`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from replay.selftest import Errors, Level

FORMAT = "firsttoken/selftest"
TOO_BUSY_EXIT = 4
INTERRUPTED_EXIT = 130


def _read_levels(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    try:
        levels = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r}: write concurrencies with commas between, such as 1,3,8") from None
    if not all(1 <= level <= 256 for level in levels):
        raise click.BadParameter(f"{value!r}: each concurrency is between 1 and 256")
    return levels


@click.command(short_help="Measure how wrong the client is on this machine.")
@click.option("--c", "levels", default="1,3,8", show_default=True, metavar="C,…", callback=_read_levels,
              help="Requests in flight at once, one measurement each.")  # fmt: skip
@click.option("--requests", type=click.IntRange(10, 2000), default=40, show_default=True, help="At each concurrency.")
@click.option("--json", "as_json", is_flag=True, help="Print one strict JSON document.")
@click.pass_context
def selftest(context: click.Context, levels: tuple[int, ...], requests: int, as_json: bool) -> None:
    """Show how wrong the client of `replay` is on this machine.

    The embedded engine runs beside it as a process of its own and notes when it handed each token to the kernel. Every
    instant that the client measured is held against that. No number here says anything about an engine of yours.

    \b
    Example:
      firsttoken selftest
      firsttoken selftest --c 1,3,8,32 --requests 200 --json

    Exit codes: 0 done, 1 the engine did not come up, 4 the machine is too busy to be trusted, 130 Ctrl-C.
    """
    import asyncio
    import tempfile
    from pathlib import Path

    from replay.clock import fine_event_loop

    with tempfile.TemporaryDirectory(prefix="firsttoken-selftest-") as name:
        measured = asyncio.run(_run(levels, requests, Path(name), context), loop_factory=fine_event_loop)
    doubts = [doubt for level in measured for doubt in level.doubts()]
    if as_json:
        from profiles.files import encode_pretty

        click.echo(encode_pretty(_document(measured, doubts)).decode(), nl=False)
    else:
        for line in [*_table(measured), "", *_sentences(measured, doubts)]:
            click.echo(line)
    if doubts:
        context.exit(TOO_BUSY_EXIT)


async def _run(levels: Sequence[int], requests: int, folder: "Path", context: click.Context) -> "list[Level]":
    import asyncio
    import signal

    from replay.clock import SystemClock
    from replay.selftest import measure

    task = asyncio.current_task()
    assert task is not None
    # A hangup too: the engine has a session of its own, so a closed terminal would leave it running.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await measure(levels, requests, SystemClock(), folder)
    except asyncio.CancelledError:
        click.echo("Stopped; the engine is gone.", err=True)
        context.exit(INTERRUPTED_EXIT)


def _table(levels: "Sequence[Level]") -> list[str]:
    rows = [
        "             TTFT error, ms    gap error, ms    start, ms  loop lag  connec-",
        "  c  sent     p50      p99      p50      p99       p50     p99, ms    tions",
    ]
    for level in levels:
        lag_ns = level.loop_lag_p99_ns
        rows.append(
            f"{level.c:3d} {level.requests:5d} {_ms(level.ttft, 'p50_ns'):>7}  {_ms(level.ttft, 'p99_ns'):>7}  "
            f"{_ms(level.gap, 'p50_ns'):>7}  {_ms(level.gap, 'p99_ns'):>7}   {_ms(level.start, 'p50_ns'):>7}   "
            f"{'–' if lag_ns is None else f'{lag_ns / 1e6:.2f}':>9} {level.connections:>8}"
        )
    return rows


def _ms(errors: "Errors | None", name: str) -> str:
    return "–" if errors is None else f"{getattr(errors, name) / 1e6:.2f}".replace("-", "−")


def _sentences(levels: "Sequence[Level]", doubts: Sequence[str]) -> list[str]:
    import textwrap

    from profiles.units import format_duration
    from replay.client import MEASURED_TO_C
    from replay.selftest import above_measured, smallest_difference_ns

    said: list[str] = []
    smallest_ns = smallest_difference_ns(levels)
    worst_ns = max((level.ttft.p50_ns for level in levels if level.ttft is not None), default=None)
    if doubts:
        said.append("This machine is too busy for its client to be trusted now:")
        said += doubts
    elif smallest_ns is not None and worst_ns is not None:
        said.append(
            f"This client reads a first token about {format_duration(worst_ns)} late, the same in every arm; what "
            f"scatters around that is far below differences of {format_duration(smallest_ns)} and more."
        )
    if above := above_measured([level.c for level in levels]):
        listed = ", ".join(f"c = {c}" for c in above)
        said.append(f"{listed}: above c = {MEASURED_TO_C} the client would shape the result.")
    return [line for sentence in said for line in textwrap.wrap(sentence, 79)]


def _document(levels: "Sequence[Level]", doubts: Sequence[str]) -> dict[str, Any]:
    from dataclasses import asdict

    from profiles.files import tool_version
    from replay.client import MEASURED_TO_C
    from replay.doubt import LOOP_LAG_P99_NS
    from replay.selftest import ERROR_P50_NS, ERROR_P99_NS, smallest_difference_ns

    return {
        "format": FORMAT,
        "version": 1,
        "tool": tool_version(),
        "levels": [asdict(level) for level in levels],
        "trusted": not doubts,
        "doubts": list(doubts),
        "limits": {
            "ttft_error_p50_ns": ERROR_P50_NS,
            "ttft_error_p99_ns": ERROR_P99_NS,
            "loop_lag_p99_ns": LOOP_LAG_P99_NS,
            "measured_to_c": MEASURED_TO_C,
        },
        "smallest_difference_ns": smallest_difference_ns(levels),
    }
