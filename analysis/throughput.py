"""Output tokens per second of the closed windows at a fixed c: of the mix, and of each class that plays alone.

A window counts its tokens until its time limit, so that the drain behind it is nobody's. One that the client would
shape has no number (`doubt`): of two boots of the reference the other one serves alone, else the block is left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis import stats
from analysis.contrasts import Contrast
from analysis.load import counting_boots
from analysis.stats import Estimate
from profiles.runs import Boot, Run, WindowFacts
from profiles.units import SECOND_NS


@dataclass(frozen=True, slots=True)
class Throughput:
    """Output tokens per second of one limited window, arm against reference. `estimate` is the log ratio over blocks;
    the rates are geometric means over the same blocks."""

    c: int
    workload: str | None  # None: the mix
    limit_ns: int
    estimate: Estimate
    tokens_per_s: float
    base_tokens_per_s: float


def throughputs(run: Run, contrast: Contrast, alpha: float = stats.ALPHA) -> tuple[Throughput, ...]:
    """Every limited window that both sides have, in their order in a boot. Describes; decides nothing."""
    boots = counting_boots(run)
    rates: dict[tuple[int, str | None, int], list[tuple[float, float]]] = {}
    for block in contrast.blocks:
        reference = [
            {window.name: window for window in boot.facts.windows} for boot in _reference(boots, contrast, block)
        ]
        for window in filter(_limited, boots[contrast.arm, block].facts.windows):
            ours = tokens_per_s([window])
            found_in = [windows[window.name] for windows in reference if window.name in windows]
            theirs = _mean_rate([tokens_per_s([found]) for found in found_in])
            if ours and theirs:
                rates.setdefault((window.c, window.workload, window.limit_ns or 0), []).append((ours, theirs))
    found = []
    for (c, workload, limit_ns), pairs in rates.items():
        estimate = stats.paired_block_t([math.log(ours / theirs) for ours, theirs in pairs], alpha)
        if estimate is not None:
            own, base = (_geomean([pair[side] for pair in pairs]) for side in (0, 1))
            found.append(Throughput(c, workload, limit_ns, estimate, own, base))
    return tuple(found)


def throughput_differences(run: Run, contrast: Contrast, c: int) -> dict[int, float]:
    """Block → ln(arm / base) of output tokens per second in the closed windows at c."""
    boots = counting_boots(run)
    differences = {}
    for block in contrast.blocks:
        ours = tokens_per_s(_at(boots[contrast.arm, block].facts.windows, c))
        reference = _reference(boots, contrast, block)
        theirs = _mean_rate([tokens_per_s(_at(boot.facts.windows, c)) for boot in reference])
        if ours and theirs:
            differences[block] = math.log(ours / theirs)
    return differences


def class_differences(run: Run, contrast: Contrast, c: int) -> dict[str, dict[int, float]]:
    """The same of each class that was played alone at c: class → block → ln(arm / base)."""
    boots = counting_boots(run)
    found: dict[str, dict[int, float]] = {}
    for block in contrast.blocks:
        ours = boots[contrast.arm, block].facts.windows
        reference = [boot.facts.windows for boot in _reference(boots, contrast, block)]
        for name in sorted({window.workload for window in _closed(ours, c) if window.workload is not None}):
            rate = tokens_per_s(_of_class(ours, c, name))
            base = _mean_rate([tokens_per_s(_of_class(windows, c, name)) for windows in reference])
            if rate and base:
                found.setdefault(name, {})[block] = math.log(rate / base)
    return found


def unsound_blocks(run: Run, contrast: Contrast, c: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Blocks in which the client would have shaped closed windows at c: those that give no number, as the arm's or all
    of the reference's are spoilt, and those in which the other boot of the reference serves alone."""
    boots = counting_boots(run)

    def spoilt(name: str, block: int) -> bool:
        return any(map(_is_unsound, _at(boots[name, block].facts.windows, c)))

    none, one = [], []
    for block in contrast.blocks:
        theirs = [spoilt(name, block) for name in contrast.served[block]]
        if spoilt(contrast.arm, block) or all(theirs):
            none.append(block)
        elif any(theirs):
            one.append(block)
    return tuple(none), tuple(one)


def _reference(boots: Mapping[tuple[str, int], Boot], contrast: Contrast, block: int) -> list[Boot]:
    """The boots that are the reference in a block: the baseline has two."""
    return [boots[name, block] for name in contrast.served[block]]


def _mean_rate(rates: Sequence[float | None]) -> float | None:
    """The geometric mean of the rates that are known. None without one."""
    known = [rate for rate in rates if rate]
    return _geomean(known) if known else None


def tokens_per_s(windows: Sequence[WindowFacts]) -> float | None:
    """Tokens over time of these windows together; None where there is none, or where one of them is unsound."""
    if not windows or any(map(_is_unsound, windows)):
        return None
    length_ns = sum(window.limit_ns or window.ended_ns - window.started_ns for window in windows)
    return sum(window.output_tokens for window in windows) * SECOND_NS / length_ns if length_ns > 0 else None


def _at(windows: Sequence[WindowFacts], c: int) -> list[WindowFacts]:
    """The window of the mix at c, the limited one first; where only classes were played, all of theirs."""
    at_c = _closed(windows, c)
    mixed = [window for window in at_c if window.workload is None]
    return sorted(mixed, key=lambda window: window.limit_ns is None)[:1] or at_c


def _closed(windows: Sequence[WindowFacts], c: int) -> list[WindowFacts]:
    return [window for window in windows if window.kind == "closed" and window.c == c]


def _of_class(windows: Sequence[WindowFacts], c: int, workload: str) -> list[WindowFacts]:
    return [window for window in _closed(windows, c) if window.workload == workload]


def _is_unsound(window: WindowFacts) -> bool:
    return window.invalid is not None and not window.deciding


def _limited(window: WindowFacts) -> bool:
    return window.kind == "closed" and window.limit_ns is not None and not window.deciding


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
