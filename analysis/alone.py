"""A run of the baseline alone: nothing is compared, so what was measured is shown itself, window by window.

Medians over the requests of all boots that count, both copies together. They describe this engine on this load; a
median over requests says nothing of how boots differ, which is what A/A is for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from analysis.bench import Bench
from analysis.bench_check import copies
from analysis.lines import WIDTH, wrap
from profiles.units import SECOND_NS, format_duration

_WINDOW: Final = 30
_NUMBER: Final = 11


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """A window, or one class of it. Medians in ns; None without a value."""

    window: str
    workload: str | None  # None: all classes of the window
    requests: int
    ttft_p50_ns: float | None
    ttft_p90_ns: float | None
    tpot_p50_ns: float | None


def measured_windows(bench: Bench) -> list[MeasuredWindow]:
    """Every window that was measured on the baseline, in the order of a boot, with its classes where it has several."""
    rows = bench.frame.filter(pl.col("arm").is_in(copies(bench)))
    played = rows["window"].unique(maintain_order=True).to_list()
    order = [str(window["name"]) for window in bench.run.manifest.get("windows") or [] if window["name"] in played]
    found = []
    for name in dict.fromkeys([*order, *played]):
        own = rows.filter(pl.col("window") == name)
        classes = sorted(own["workload"].unique().to_list())
        single = classes[0] if len(classes) == 1 else None
        found.append(_describe(name, single, own))
        if single is None:
            found += [_describe(name, workload, own.filter(pl.col("workload") == workload)) for workload in classes]
    return found


def alone_lines(bench: Bench, relative: bool = False) -> list[str]:
    """In place of the table of verdicts."""
    told = f"Nothing is compared: {bench.baseline} is the only arm."
    if relative:
        return wrap(f"{told} What its boots measured is absolute, and left out here.")
    head = ["n", "TTFT p50", "TTFT p90", "TPOT p50", "tokens/s"]
    return [
        *wrap(f"{told} What its boots measured, both copies together:"),
        "",
        "WINDOW".ljust(_WINDOW) + "".join(title.rjust(_NUMBER - 1) for title in head),
        "─" * WIDTH,
        *_rows(measured_windows(bench)),
    ]


def _rows(windows: list[MeasuredWindow]) -> Iterator[str]:
    above = None
    for item in windows:
        name = item.window if item.window != above else f"  {item.workload}"
        above = item.window
        rate = None if item.tpot_p50_ns is None else SECOND_NS / item.tpot_p50_ns
        cells = [
            str(item.requests),
            *(_time(ns) for ns in (item.ttft_p50_ns, item.ttft_p90_ns, item.tpot_p50_ns)),
            "–" if rate is None else f"{rate:.1f}",
        ]
        if len(name) >= _WINDOW:
            yield name
            name = ""
        yield name.ljust(_WINDOW) + "".join(cell.rjust(_NUMBER - 1) for cell in cells)


def _time(ns: float | None) -> str:
    return "–" if ns is None else format_duration(ns)


def _describe(window: str, workload: str | None, rows: pl.DataFrame) -> MeasuredWindow:
    def quantile(column: str, share: float) -> float | None:
        value = rows[column].drop_nulls().quantile(share, "linear")
        return None if value is None else float(value)

    return MeasuredWindow(
        window,
        workload,
        rows.height,
        quantile("ttft_ns", 0.5),
        quantile("ttft_ns", 0.9),
        quantile("tpot_ns", 0.5),
    )
