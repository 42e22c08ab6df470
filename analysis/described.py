"""What describes an arm and never decides: how it met the load, the sweep, throughput at a fixed c."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from analysis.acceptance_gain import acceptance_gain_lines
from analysis.crossover import crossover_lines
from analysis.findings import ArmReport, Report
from analysis.lines import WIDTH, bullet, format_cell
from analysis.operating_point import format_levels
from analysis.parity import parity_lines
from analysis.sensitivity import sensitivity_lines
from analysis.split.shown import split_lines
from analysis.sweep import SweepPoint
from profiles.units import format_duration

_INDENT, _NAME, _CELL, _RATES = 6, 18, 7, 18
# Levels beside each other in 80 columns.
LEVELS: Final = (WIDTH - _INDENT - _NAME) // _CELL
TITLES: Final = {"ttft": "TTFT", "decode_rate": "decode rate"}
MIX: Final = "the mix"


def described(arm: ArmReport, report: Report) -> list[str]:
    """The lines below an arm."""
    shown = arm.shown
    more = (
        *split_lines(shown.split),
        *acceptance_gain_lines(shown.acceptance_gain),
        *sensitivity_lines(shown.sensitivity),
        *parity_lines(shown.output_lengths),
        *load_points(arm, report),
    )
    lines = [line for text in more for line in bullet(text)]
    lines += _throughput(arm, report)
    lines += [line for text in crossover_lines(shown.crossover) for line in bullet(text)]
    # Where no sign turns, the sentences say it all; the page has the numbers.
    if any(item.turn is not None for item in shown.crossover):
        lines += bullet(
            f"sweep, change against {report.baseline} in %: of TTFT less is better, of the decode rate more "
            "(describes, decides nothing)"
        )
        lines += sweep_table(arm.shown.sweep)
    return lines


def load_points(arm: ArmReport, report: Report) -> Iterator[str]:
    """How the arm met the recorded load, and what its boots left behind."""
    shown = arm.shown
    if shown.arrivals_at:
        met = next((check.baseline for check in report.bench if check.name == "arrivals" and check.baseline), None)
        theirs = f"; those of {report.baseline} {format_levels(met)}" if met else ""
        yield f"its requests met {format_levels(shown.arrivals_at)}{theirs}"
    if shown.queue:
        yield shown.queue
    yield from (f"remark: {remark}" for remark in shown.remarks)


def _throughput(arm: ArmReport, report: Report) -> list[str]:
    """Output tokens per second, unless a guard says it already. Where a measure is judged by them, they are told."""
    guarded = {guard.metric for guard in arm.guards} - {item.measure for item in arm.measures}
    rates = [item for item in arm.shown.throughput if item.workload or f"throughput@c={item.c}" not in guarded]
    lines: list[str] = []
    for limit_ns, c in dict.fromkeys((item.limit_ns, item.c) for item in rates):
        limit = "" if report.relative else f" in {format_duration(limit_ns)}"
        lines += bullet(f"tokens/s at c = {c}{limit}, change in % ({rates_role(arm, c)})")
        for item in rates:
            if (item.limit_ns, item.c) == (limit_ns, c):
                rates_text = f"{_number(item.base_tokens_per_s)} → {_number(item.tokens_per_s)}".rjust(_RATES) + "  "
                numbers = "" if report.relative else rates_text
                lines += _row(f"  {item.workload or MIX}", f"{numbers}{format_cell(item.estimate)}")
    return lines


def rates_role(arm: ArmReport, c: int) -> str:
    """What the rates at this c are to the verdict: of a measure, of a deciding guard, or nothing."""
    name = f"throughput@c={c}"
    if any(item.measure == name for item in arm.measures):
        return f"the rates of {name}, which decides"
    if any(guard.metric == name and guard.role == "deciding" for guard in arm.guards):
        return f"beside the guard {name}, which decides by the mix"
    return "describes, decides nothing"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e6 else f"{value:.3g}"


def sweep_table(points: Sequence[SweepPoint]) -> list[str]:
    """Rows of classes, columns of c: `−12.3` per cent. More levels than fit go below each other."""
    lines: list[str] = []
    for measure, title in TITLES.items():
        cells = {(point.workload, point.c): _cell(point) for point in points if point.measure == measure}
        names = list(dict.fromkeys(name for name, _ in cells))
        swept = sorted({c for _, c in cells})
        for at in range(0, len(swept), LEVELS):
            part = swept[at : at + LEVELS]
            lines += _row(title, "".join(f"c={c}".rjust(_CELL) for c in part))
            for name in names:
                lines += _row(f"  {name or MIX}", "".join(cells.get((name, c), "–").rjust(_CELL) for c in part))
    return lines


def _row(name: str, columns: str) -> list[str]:
    """A name and its columns; a long name has a line of its own."""
    if len(name) > _NAME:
        return [" " * _INDENT + name[: WIDTH - _INDENT], " " * (_INDENT + _NAME) + columns]
    return [" " * _INDENT + name.ljust(_NAME) + columns]


def _cell(point: SweepPoint) -> str:
    change = 100 * math.expm1(min(point.estimate.mean, 50.0))
    for digits in (1, 0):
        text = f"{round(change, digits) + 0.0:+.{digits}f}"
        if len(text) < _CELL:
            return text.replace("-", "−")
    return "≫"
