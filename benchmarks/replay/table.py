"""The tables of a raw file, in Markdown: `python -m benchmarks.replay.table RAW.jsonl`."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import click
import numpy as np

from benchmarks.estimates import ByRound, paired_ratio, quantile
from benchmarks.replay.claims import MB, MS, S, make_claims
from benchmarks.replay.clients import FLOOR, KINDS
from benchmarks.replay.command import COMMAND
from benchmarks.replay.figures import (
    all_requests,
    batches,
    by_round,
    gap_errors_ns,
    help_ns,
    levels,
    median_of,
    over_engine_ns,
    per_token_errors,
    percentile,
    starts,
    ttft_errors_ns,
    wrong_of,
)
from benchmarks.replay.peers import NAMES
from benchmarks.replay.raw import LEVELS, TEN, BatchLine, Line, RunLine, SkippedLine, read_raw
from benchmarks.replay.schedule import SEVERAL, SEVERAL_TOLD, TRAPS

NOTHING = "-"
US = 1e3
ALL = (*KINDS, COMMAND, *NAMES)


@click.command()
@click.argument("raw", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(raw: Path) -> None:
    """Print the tables of a raw file."""
    click.echo(render(list(read_raw(raw))))


def render(lines: list[Line]) -> str:
    """All that a raw file says, as Markdown."""
    parts = [*_introduction(lines), _claims(lines)]
    for c in levels(lines):
        parts.append(f"#### c = {c}\n\n{_level(batches(lines, LEVELS, c))}")
    if traps := batches(lines, TEN):
        parts.append(f"#### Definition traps, c = 1\n\n{_traps(traps)}")
        parts.append(f"#### Weight: ten requests at c = 1 from a fresh start\n\n{_weight(lines)}")
    return "\n\n".join(parts) + "\n"


def _introduction(lines: list[Line]) -> Iterable[str]:
    for line in lines:
        if isinstance(line, RunLine):
            machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in line.machine.items())
            versions = ", ".join(f"{name} {value}" for name, value in line.versions.items())
            priority = "real-time priority" if line.realtime else "usual priority"
            quick = " A quick run: its figures prove nothing." if line.quick else ""
            yield f"Seed {line.seed}. Machine: {machine}. Engine and clients at {priority}. {versions}.{quick}"
        elif isinstance(line, SkippedLine):
            yield f"`{line.client}` was left out: {line.reason}"
    wrong: Counter[str] = Counter()
    for line in lines:
        if isinstance(line, BatchLine):
            wrong.update({f"{line.client}: {fault}": number for fault, number in line.faults.items()})
            if line.lost:
                wrong[f"{line.client}: no figure for a request"] += line.lost
    if wrong:
        yield "**Faults:** " + ", ".join(f"{number} × {what}" for what, number in wrong.items())


def _claims(lines: list[Line]) -> str:
    words = {True: "yes", False: "**no**", None: NOTHING}
    rows = [[claim.what, claim.limit, claim.measured, words[claim.holds]] for claim in make_claims(lines)]
    head = ["claim", "must be", "measured: median of the rounds (90 % interval; rounds)", "holds"]
    return "#### Claims\n\n" + _table(head, rows)


def _level(found: list[BatchLine]) -> str:
    ttft, gaps = by_round(found, median_of(ttft_errors_ns)), by_round(found, median_of(gap_errors_ns))

    def p99(errors: Callable[..., list[float]], unit: float) -> Callable[[str], str]:
        return lambda client: _shown(percentile(all_requests(found, client, errors), 99), unit)

    def requests(client: str) -> str:
        return str(len(all_requests(found, client, ttft_errors_ns)))

    def per_token(client: str) -> str:
        values = all_requests(found, client, per_token_errors)
        return f"{100 * float(np.median(values)):+.2f}".replace("-", "−") if values else NOTHING

    def connections(client: str) -> str:
        used = [line for line in found if line.client == client and line.connections is not None]
        return " / ".join(map(str, (used[0].connections, used[0].starts_requests))) if used else NOTHING

    columns = {
        "TTFT error p50 ms": _median(ttft, MS),
        "p99 ms": p99(ttft_errors_ns, MS),
        f"p50 / {FLOOR}": _compared(ttft),
        "gap error p50 µs": _median(gaps, US, 0),
        "p99 µs": p99(gap_errors_ns, US),
        f"gap p50 / {FLOOR}": _compared(gaps),
        "time per token, error p50 %": per_token,
        "connections / requests": connections,
        "requests": requests,
    }
    return _by_client(found, columns)


def _traps(found: list[BatchLine]) -> str:
    def trap(kind: str) -> Callable[[str], str]:
        def show(client: str) -> str:
            pairs = [pair for line in found if line.client == client for pair in line.pairs if pair.kind == kind]
            if not pairs:
                return NOTHING
            off = Counter(words for pair in pairs for words in wrong_of(pair))
            # What happens to most answers; a single late one is no definition.
            shown = [words for words, number in off.items() if number * 2 > len(pairs)]
            if kind in (SEVERAL, SEVERAL_TOLD) and (errors := per_token_errors(pairs)):
                shown.append(f"time per token {100 * float(np.median(errors)):+.1f} %".replace("-", "−"))
            errors_ms = [error / MS for error in ttft_errors_ns(pairs)]
            text = f"{float(np.median(errors_ms)):+.1f} ms".replace("-", "−") if errors_ms else "no TTFT"
            return "; ".join([text, *(shown or ["0 off"])])

        return show

    return _by_client(found, {f"`{kind}`": trap(kind) for kind in TRAPS})


def _weight(lines: list[Line]) -> str:
    found = starts(lines)
    columns = {
        "`--help` s": _median(help_ns(lines), S),
        "to the last byte, over the engine's time, s": _median(by_round(found, over_engine_ns), S),
        "CPU s": _median(by_round(found, lambda line: line.cpu_ns), S),
        "RSS MB": _median(by_round(found, lambda line: line.rss_bytes), MB, 0),
        "processes": _median(by_round(found, lambda line: line.processes), 1, 0),
    }
    return _by_client(found, columns)


def _median(figures: ByRound, unit: float, digits: int = 2) -> Callable[[str], str]:
    return lambda client: _shown(quantile(figures, client, 50), unit, digits)


def _shown(value: float | None, unit: float, digits: int | None = None) -> str:
    if value is None:
        return NOTHING
    places = (0 if unit == US else 2) if digits is None else digits
    return f"{value / unit:.{places}f}".replace("-", "−")


def _compared(figures: ByRound) -> Callable[[str], str]:
    def show(client: str) -> str:
        ratio = paired_ratio(figures, client, FLOOR)
        return NOTHING if ratio is None else f"{ratio.median:.2f}"

    return show


def _by_client(found: Iterable[BatchLine], columns: dict[str, Callable[[str], str]]) -> str:
    present = {line.client for line in found}
    rows = [[name, *(show(name) for show in columns.values())] for name in ALL if name in present]
    return _table(["client", *columns], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


if __name__ == "__main__":
    main()
