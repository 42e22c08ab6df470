"""Output tokens per second of the closed windows at a fixed c: of the mix, and of each class that plays alone.

A window counts its tokens until its time limit, so that the drain behind it is nobody's. One that the client would
shape has no number (`doubt`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis import stats
from analysis.contrasts import Contrast
from analysis.load import counting_boots
from analysis.stats import Estimate
from profiles.runs import Run, WindowFacts
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
        ours, theirs = (
            {window.name: window for window in boots[name, block].facts.windows if _limited(window)}
            for name in (contrast.arm, contrast.base)
        )
        for name, window in ours.items():
            pair = [tokens_per_s([found]) for found in (window, theirs.get(name)) if found is not None]
            if len(pair) == 2 and pair[0] and pair[1]:
                key = (window.c, window.workload, window.limit_ns or 0)
                rates.setdefault(key, []).append((pair[0], pair[1]))
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
        ours, theirs = (
            tokens_per_s(_at(boots[name, block].facts.windows, c)) for name in (contrast.arm, contrast.base)
        )
        if ours and theirs:
            differences[block] = math.log(ours / theirs)
    return differences


def unsound_blocks(run: Run, contrast: Contrast, c: int) -> tuple[int, ...]:
    """Blocks whose closed windows at c give no number: the client would have shaped that of one side."""
    boots = counting_boots(run)
    sides = (contrast.arm, contrast.base)
    return tuple(
        block
        for block in contrast.blocks
        if any(_is_unsound(window) for name in sides for window in _at(boots[name, block].facts.windows, c))
    )


def tokens_per_s(windows: Sequence[WindowFacts]) -> float | None:
    """Tokens over time of these windows together; None where there is none, or where one of them is unsound."""
    if not windows or any(map(_is_unsound, windows)):
        return None
    length_ns = sum(window.limit_ns or window.ended_ns - window.started_ns for window in windows)
    return sum(window.output_tokens for window in windows) * SECOND_NS / length_ns if length_ns > 0 else None


def _at(windows: Sequence[WindowFacts], c: int) -> list[WindowFacts]:
    """The window of the mix at c, the limited one first; where only classes were played, all of theirs."""
    at_c = [window for window in windows if window.kind == "closed" and window.c == c]
    mixed = [window for window in at_c if window.workload is None]
    return sorted(mixed, key=lambda window: window.limit_ns is None)[:1] or at_c


def _is_unsound(window: WindowFacts) -> bool:
    return window.invalid is not None and not window.deciding


def _limited(window: WindowFacts) -> bool:
    return window.kind == "closed" and window.limit_ns is not None and not window.deciding


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
