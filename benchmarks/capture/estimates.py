"""From batches to figures per round and variant. Medians and ratios over the rounds: `benchmarks.estimates`."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from benchmarks.capture.raw import BatchLine
from benchmarks.estimates import ByRound


def by_round(batches: Iterable[BatchLine], mode: str, figure: Callable[[BatchLine], float | None]) -> ByRound:
    """A figure of every batch of one mode. A batch that has none, or a wrong answer, is left out."""
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for line in batches:
        if line.mode == mode and not line.batch.wrong:
            value = figure(line)
            if value is not None:
                found[line.variant][line.round] = value
    return dict(found)


def cpu_per_request(line: BatchLine) -> float | None:
    """CPU nanoseconds per request, of the proxy process alone."""
    return None if line.cpu_proxy_ns is None else line.cpu_proxy_ns / line.requests


def cpu_per_request_all(line: BatchLine) -> float | None:
    """The same with the children of the proxy."""
    return None if line.cpu_all_ns is None else line.cpu_all_ns / line.requests


def ttft_median(line: BatchLine) -> float | None:
    return float(np.median(line.batch.ttft_ns)) if line.batch.ttft_ns else None


def ttft_p10(line: BatchLine) -> float | None:
    return float(np.percentile(line.batch.ttft_ns, 10)) if line.batch.ttft_ns else None


def transit_median(line: BatchLine) -> float | None:
    return float(line.batch.transit_ns[1]) if line.batch.transit_ns else None


def transit_p90(line: BatchLine) -> float | None:
    return float(line.batch.transit_ns[2]) if line.batch.transit_ns else None


def requests_per_second(line: BatchLine) -> float | None:
    return line.requests / line.batch.wall_ns * 1e9 if line.batch.wall_ns else None


def added(figures: ByRound, over: str = "direct") -> ByRound:
    """Each figure less that of another variant in the same round."""
    base = figures.get(over, {})
    return {
        variant: {number: value - base[number] for number, value in rounds.items() if number in base}
        for variant, rounds in figures.items()
        if variant != over
    }


def cpu_per_chunk(
    batches: list[BatchLine], mode: str, cost: Callable[[BatchLine], float | None], short: str = "short"
) -> ByRound:
    """CPU nanoseconds per chunk: what a stream costs more than a short answer, over the chunks that it has more."""
    more = {line.chunks for line in batches if line.mode == mode}
    if len(more) != 1:
        return {}
    chunks = more.pop() - 1  # a short answer has one
    streams, shorts = by_round(batches, mode, cost), by_round(batches, short, cost)
    return {
        variant: {number: (value - base[number]) / chunks for number, value in rounds.items() if number in base}
        for variant, rounds in streams.items()
        if (base := shorts.get(variant, {}))
    }
