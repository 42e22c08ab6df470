"""Cached prompt tokens of an arm and the baseline. They must agree, or the cache explains a gain as well as the flags.

Three sources, the first that tells of both sides: the usage of the answers, the sums of the windows, the engine's own
counters around them. One that only one engine has comes last: vLLM leaves `cached_tokens` out where it is 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from analysis import contrasts
from analysis.bench import Bench
from analysis.contrasts import Contrast
from analysis.load import counting_boots
from profiles.counters import cached_tokens
from profiles.runs import WindowFacts

USAGE = "usage"
WINDOWS = "windows"
COUNTERS = "counters"


@dataclass(frozen=True, slots=True)
class CachedShares:
    """Cached tokens as a share of the prompt tokens in the deciding windows of the blocks that count."""

    arm: float
    base: float
    source: str


def cached_shares(bench: Bench, against: Contrast) -> CachedShares | None:
    """Both shares from one source, or None where no source tells of both."""
    pairs = contrasts.deciding_pairs(against.pairs)
    by_usage = contrasts.cached_shares(pairs)
    told = [pairs[f"cached_tokens{side}"].count() > 0 for side in ("", "_base")]
    if by_usage is not None and all(told):
        return CachedShares(*by_usage, USAGE)
    # One boot of the reference in each block: the baseline's first where it serves, else the copy.
    first = [window for block, names in against.served.items() for window in _deciding(bench, names[0], [block])]
    sides = [_deciding(bench, against.arm, against.blocks), first]
    for share, source in ((share_by_windows, WINDOWS), (share_by_counters, COUNTERS)):
        ours, theirs = (share(windows) for windows in sides)
        if ours is not None and theirs is not None:
            return CachedShares(ours, theirs, source)
    return None if by_usage is None else CachedShares(*by_usage, USAGE)


def share_of_boots(bench: Bench, arms: Sequence[str]) -> float | None:
    """Cached tokens of these arms' deciding requests over all blocks, as a share of their prompt tokens."""
    rows = bench.frame.filter(pl.col("arm").is_in(arms) & pl.col("deciding")).drop_nulls("prompt_tokens")
    if rows["cached_tokens"].count() and (prompt := int(rows["prompt_tokens"].sum())):
        return int(rows["cached_tokens"].sum()) / prompt
    windows = [window for arm in arms for window in _deciding(bench, arm, bench.course.blocks)]
    share = share_by_windows(windows)
    return share if share is not None else share_by_counters(windows)


def share_by_windows(windows: Iterable[WindowFacts]) -> float | None:
    """The share by the usage that each window summed up; None where one of them does not know it."""
    cached = prompt = 0
    for window in windows:
        if window.cached_tokens is None or window.prompt_tokens is None:
            return None
        cached, prompt = cached + window.cached_tokens, prompt + window.prompt_tokens
    return cached / prompt if prompt else None


def share_by_counters(windows: Iterable[WindowFacts]) -> float | None:
    """The share by the engine's counters; None where one window has none that can be used.

    An engine whose prefix cache is off looks nothing up: that is a share of 0.
    """
    cached = asked = 0.0
    known = False
    for window in windows:
        found = cached_tokens(window.counters) if window.counters and not window.counters_void else None
        if found is None:
            return None
        known = True
        cached, asked = cached + found.cached, asked + found.asked
    if not known:
        return None
    return cached / asked if asked else 0.0


def _deciding(bench: Bench, arm: str, blocks: Iterable[int]) -> list[WindowFacts]:
    boots = counting_boots(bench.run)
    return [
        window
        for block in sorted(blocks)
        if (boot := boots.get((arm, block))) is not None
        for window in boot.facts.windows
        if window.deciding
    ]
