"""The tables of a raw file, in Markdown: `python -m benchmarks.capture.table RAW.jsonl`."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from benchmarks.capture.claims import MB, batches_of, make_claims
from benchmarks.capture.estimates import (
    added,
    by_round,
    cpu_per_chunk,
    cpu_per_request,
    cpu_per_request_all,
    requests_per_second,
    transit_median,
    transit_p90,
    ttft_median,
    ttft_p10,
)
from benchmarks.capture.raw import BatchLine, Line, MemoryLine, RunLine, SkippedLine, read_raw
from benchmarks.capture.scenarios import ALL
from benchmarks.estimates import ByRound, paired_ratio, quantile

NOTHING = "-"
MS, US = 1e6, 1e3


@click.command()
@click.argument("raw", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(raw: Path) -> None:
    """Print the tables of a raw file."""
    click.echo(render(list(read_raw(raw))))


def render(lines: list[Line]) -> str:
    """All that a raw file says, as Markdown."""
    parts = [*_introduction(lines), _claims(lines)]
    for title, table in (
        ("Time to first token, c = 1, short answers", _ttft(batches_of(lines, "ttft"))),
        ("Requests, c = 8, short answers", _requests(batches_of(lines, "requests"), "c=8")),
        ("Chunks, c = 8", _chunks(batches_of(lines, "chunks"))),
        ("Paced streams: first token after 50 ms, 200 chunks 5 ms apart", _paced(batches_of(lines, "paced"))),
        ("Request bodies of 1 MB, c = 1", _bodies(batches_of(lines, "bodies"))),
        ("Memory", _memory([line for line in lines if isinstance(line, MemoryLine)])),
    ):
        if table:
            parts.append(f"### {title}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def _introduction(lines: list[Line]) -> Iterable[str]:
    for line in lines:
        if isinstance(line, RunLine):
            machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in line.machine.items())
            quick = " A quick run: its figures prove nothing." if line.quick else ""
            yield f"Seed {line.seed}. Machine: {machine}.{quick}"
        elif isinstance(line, SkippedLine):
            yield f"`{line.variant}` was left out: {line.reason}"
    wrong: Counter[str] = Counter()
    for line in lines:
        if isinstance(line, BatchLine | MemoryLine):
            faults = line.batch.wrong if isinstance(line, BatchLine) else line.wrong
            for fault, number in faults.items():
                wrong[f"{line.variant}: {fault}"] += number
    if wrong:
        yield "**Wrong answers** (their batches are left out): " + ", ".join(
            f"{n} x {what}" for what, n in wrong.items()
        )


def _claims(lines: list[Line]) -> str:
    words = {True: "yes", False: "**no**", None: NOTHING}
    rows = [[claim.what, claim.limit, claim.measured, words[claim.holds]] for claim in make_claims(lines)]
    return "### Claims\n\n" + _table(
        ["claim", "must be", "measured: median of the rounds (90 % interval; rounds; ratio of p10)", "holds"], rows
    )


def _ttft(batches: list[BatchLine]) -> str:
    if not batches:
        return ""
    figures = {mode: by_round(batches, mode, ttft_median) for mode in ("keep", "new")}
    lows = {mode: by_round(batches, mode, ttft_p10) for mode in ("keep", "new")}
    columns: dict[str, Callable[[str], str]] = {}
    for mode, words in (("keep", "kept"), ("new", "new")):
        columns |= {
            f"{words} p10 ms": _scaled(lows[mode], 50, MS),
            f"{words} p50 ms": _scaled(figures[mode], 50, MS),
            f"{words} added ms": _scaled(added(figures[mode]), 50, MS),
            f"{words} added / stock": _compared(added(figures[mode]), "stock"),
        }
    return _by_variant(batches, columns)


def _requests(batches: list[BatchLine], mode: str) -> str:
    if not batches:
        return ""
    alone, whole = by_round(batches, mode, cpu_per_request), by_round(batches, mode, cpu_per_request_all)
    return _by_variant(
        batches,
        {
            "CPU p10 µs": _scaled(alone, 10, US, 0),
            "CPU p50 µs": _scaled(alone, 50, US, 0),
            "/ stock": _compared(alone, "stock"),
            "/ pass": _compared(alone, "pass"),
            "with children p50 µs": _scaled(whole, 50, US, 0),
            "with children / stock": _compared(whole, "stock"),
            "with children / pass": _compared(whole, "pass"),
            "requests / s p50": _scaled(by_round(batches, mode, requests_per_second), 50, 1, 0),
        },
    )


def _chunks(batches: list[BatchLine]) -> str:
    if not batches:
        return ""
    columns: dict[str, Callable[[str], str]] = {}
    for mode in ("paced", "burst"):
        alone, whole = cpu_per_chunk(batches, mode, cpu_per_request), cpu_per_chunk(batches, mode, cpu_per_request_all)
        columns |= {
            f"{mode} CPU p10 µs": _scaled(alone, 10, US, 1),
            f"{mode} CPU p50 µs": _scaled(alone, 50, US, 1),
            f"{mode} / stock": _compared(alone, "stock"),
            f"{mode} / pass": _compared(alone, "pass"),
            f"{mode} with children p50 µs": _scaled(whole, 50, US, 1),
            f"{mode} with children / pass": _compared(whole, "pass"),
        }
    return _by_variant(batches, columns)


def _paced(batches: list[BatchLine]) -> str:
    tables = []
    for mode in dict.fromkeys(line.mode for line in batches):
        ttft = by_round(batches, mode, ttft_median)
        columns = {
            "TTFT p50 ms": _scaled(ttft, 50, MS),
            "added TTFT ms": _scaled(added(ttft), 50, MS),
            "transit p50 µs": _scaled(by_round(batches, mode, transit_median), 50, US, 0),
            "transit p90 µs": _scaled(by_round(batches, mode, transit_p90), 50, US, 0),
            "CPU per stream ms": _scaled(by_round(batches, mode, cpu_per_request), 50, MS),
            "with children ms": _scaled(by_round(batches, mode, cpu_per_request_all), 50, MS),
            "CPU / stock": _compared(by_round(batches, mode, cpu_per_request), "stock"),
        }
        tables.append(f"{mode}\n\n" + _by_variant([line for line in batches if line.mode == mode], columns))
    return "\n\n".join(tables)


def _bodies(batches: list[BatchLine]) -> str:
    if not batches:
        return ""
    ttft = by_round(batches, "1 MB", ttft_median)
    cpu, whole = by_round(batches, "1 MB", cpu_per_request), by_round(batches, "1 MB", cpu_per_request_all)
    return _by_variant(
        batches,
        {
            "TTFT p50 ms": _scaled(ttft, 50, MS),
            "added ms": _scaled(added(ttft), 50, MS),
            "CPU p50 ms": _scaled(cpu, 50, MS),
            "/ stock": _compared(cpu, "stock"),
            "/ pass": _compared(cpu, "pass"),
            "with children p50 ms": _scaled(whole, 50, MS),
        },
    )


def _memory(lines: list[MemoryLine]) -> str:
    rows = []
    for line in lines:
        memory = line.memory
        pss = NOTHING if memory.pss_all_bytes is None else f"{memory.pss_all_bytes / MB:.1f}"
        sizes = [f"{memory.rss_bytes / MB:.1f}", f"{memory.rss_all_bytes / MB:.1f}", pss]
        rows.append([line.variant, f"{line.requests:,}", str(line.bodies), *sizes])
    head = ["variant", "requests", "bodies of 1 MB", "RSS proxy MB", "RSS with children MB", "Pss with children MB"]
    return _table(head, rows) if rows else ""


def _scaled(figures: ByRound, percent: float, unit: float, digits: int = 2) -> Callable[[str], str]:
    def show(variant: str) -> str:
        value = quantile(figures, variant, percent)
        return NOTHING if value is None else f"{value / unit:.{digits}f}".replace("-", "−")

    return show


def _compared(figures: ByRound, below: str) -> Callable[[str], str]:
    def show(variant: str) -> str:
        ratio = paired_ratio(figures, variant, below)
        return NOTHING if ratio is None else f"{ratio.median:.3f}".replace("-", "−")

    return show


def _by_variant(batches: list[BatchLine], columns: dict[str, Callable[[str], str]]) -> str:
    present = {line.variant for line in batches}
    rows = [[name, *(show(name) for show in columns.values())] for name in ALL if name in present]
    return _table(["variant", *columns], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


if __name__ == "__main__":
    main()
