"""The crossover of a sweep: the concurrency at which an arm turns from gain to loss, and its uncertainty.

At each level the block t says which side is shown; its intervals are simultaneous over the levels of one class and
measure (α / levels), so that the turn lies between the last level shown on one side and the first shown on the other
with the confidence of a single interval. It describes and never decides.

Between two levels the log ratio is taken as linear in c: an engine's step takes longer by about the same for each
request in flight. Linear in log c would move a turn by less than 0.1 between neighbouring integers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final, Literal

import polars as pl

from analysis import stats
from analysis.guards import relative
from analysis.lines import listed
from analysis.measures import COLUMNS
from analysis.stats import Estimate
from analysis.sweep import SHOWN
from profiles.units import format_percent

type Side = Literal["gain", "loss", "open"]

_SINGULAR: Final = {"gain": "gains", "loss": "loses"}
_PLURAL: Final = {"gain": "gain", "loss": "lose"}
_TITLES: Final = {"ttft": "TTFT", "decode_rate": "the decode rate"}
_MIX: Final = "the mix"


@dataclass(frozen=True, slots=True)
class Crossover:
    """One class (None: the mix) and measure of a sweep. Measures as in `sweep`: of `ttft` less is better, of
    `decode_rate` more. `estimates` and `shown` go with `levels`; their intervals are simultaneous over the levels."""

    workload: str | None
    measure: Literal["ttft", "decode_rate"]
    levels: tuple[int, ...]
    turn: float | None  # c at which the sign of the change turns, interpolated; None: it does not turn
    low: float | None  # its interval; None: open on that side, within the levels that were swept
    high: float | None
    sides: str  # in words: "gains up to c = 3, loses from c = 6 on", "gains at every c"
    estimates: tuple[Estimate, ...] = ()
    shown: tuple[Side, ...] = ()

    @property
    def reach(self) -> float | None:
        """How far from no change the widest of the intervals reaches, as a relative change."""
        bounds = [bound for item in self.estimates for bound in relative(item)[1:]]
        return None if not bounds or None in bounds else max(abs(bound or 0.0) for bound in bounds)


def crossovers(pairs: pl.DataFrame, alpha: float = stats.ALPHA) -> tuple[Crossover, ...]:
    """All of the `sweep` windows among these pairs: the mix, then classes by name. Empty below two levels."""
    swept = pairs.filter((pl.col("kind") == "sweep") & (pl.col("c") > 0))
    ratios = [
        (pl.col(column).log() - pl.col(f"{column}_base").log()).alias(measure)
        for measure, column in COLUMNS.items()
        if measure in SHOWN
    ]
    rows = swept.select("workload", "c", "block", *ratios)
    parts = (rows.with_columns(pl.lit(None, pl.String).alias("workload")), rows)
    means = pl.concat(part.group_by("workload", "c", "block").agg(pl.col(list(SHOWN)).mean()) for part in parts).sort(
        "workload", "c", "block", nulls_last=False
    )
    values: dict[str, dict[str | None, dict[int, list[float]]]] = {measure: {} for measure in SHOWN}
    for row in means.iter_rows(named=True):
        for measure, by_class in values.items():
            if row[measure] is not None:
                by_class.setdefault(row["workload"], {}).setdefault(row["c"], []).append(row[measure])
    return tuple(
        crossover(workload, shown, by_level, alpha)
        for measure, shown in SHOWN.items()
        for workload, by_level in values[measure].items()
        if len(by_level) > 1
    )


def crossover(
    workload: str | None,
    measure: Literal["ttft", "decode_rate"],
    by_level: Mapping[int, Sequence[float]],
    alpha: float = stats.ALPHA,
) -> Crossover:
    """From log ratios by level and block, arm against baseline, lower is better whatever the measure. `alpha` is
    one-sided and shared by the levels."""
    levels = tuple(sorted(by_level))
    found = [stats.paired_block_t(by_level[c], alpha / len(levels)) for c in levels]
    estimates = tuple(item for item in found if item is not None)
    shown = tuple(stats.direction(item, 0.0) for item in estimates)
    turn, low, high = _turn(levels, [item.mean for item in estimates], shown)
    return Crossover(
        workload=workload,
        measure=measure,
        levels=levels,
        turn=turn,
        low=low,
        high=high,
        sides=_sides(levels, shown),
        estimates=tuple(item.negated() if measure == "decode_rate" else item for item in estimates),
        shown=shown,
    )


def _runs(levels: Sequence[int], shown: Sequence[Side]) -> list[tuple[Side, list[int]]]:
    """Levels of the same shown side after each other, those left out that show none."""
    known = [(side, c) for c, side in zip(levels, shown, strict=True) if side != "open"]
    return [(side, [c for _, c in group]) for side, group in groupby(known, key=lambda item: item[0])]


def _turn(
    levels: Sequence[int], means: Sequence[float], shown: Sequence[Side]
) -> tuple[float | None, float | None, float | None]:
    """The turn and its bounds. With one side shown at one end alone, the turn is where the means leave it for good."""
    runs = _runs(levels, shown)
    if len(runs) == 2:
        low, high = runs[0][1][-1], runs[1][1][0]
        return _middle(_crossings(levels, means, low, high)), float(low), float(high)
    if len(runs) != 1:
        return None, None, None
    first, last = runs[0][1][0], runs[0][1][-1]
    if first == levels[0] and len(crossings := _crossings(levels, means, last, levels[-1])) % 2:
        return _middle(crossings), float(last), None
    if last == levels[-1] and len(crossings := _crossings(levels, means, levels[0], first)) % 2:
        return _middle(crossings), None, float(first)
    return None, None, None


def _crossings(levels: Sequence[int], means: Sequence[float], low: int, high: int) -> list[float]:
    """Where the means change their sign between two levels, by linear interpolation. A mean of 0 counts as above."""
    inside = [(c, mean) for c, mean in zip(levels, means, strict=True) if low <= c <= high]
    return [
        left + (right - left) * ours / (ours - theirs)
        for (left, ours), (right, theirs) in pairwise(inside)
        if (ours < 0) != (theirs < 0)
    ]


def _middle(crossings: Sequence[float]) -> float:
    """Noise around 0 may cross several times. Between two sides it does so an odd number of times: take the middle."""
    return crossings[len(crossings) // 2]


def _sides(levels: Sequence[int], shown: Sequence[Side], *, plural: bool = False) -> str:
    verbs = _PLURAL if plural else _SINGULAR
    runs = _runs(levels, shown)
    if not runs:
        return "cannot tell at any c"
    if len(runs) == 1 and len(runs[0][1]) == len(levels):
        return f"{verbs[runs[0][0]]} at every c"
    text = ", ".join(f"{verbs[side]} {_at(levels, shown, run)}" for side, run in runs)
    if len(runs) > 2:
        return f"{text}: more than one turn"
    return f"{text}, cannot tell elsewhere" if len(runs) == 1 else text


def _at(levels: Sequence[int], shown: Sequence[Side], run: Sequence[int]) -> str:
    """`up to c = 3`, `from c = 6 on` where every level out there shows the same, else the levels by name."""
    first, last = levels.index(run[0]), levels.index(run[-1])
    if len(run) > 1 and set(shown[: last + 1]) == {shown[first]}:
        return f"up to c = {run[-1]}"
    if len(run) > 1 and set(shown[first:]) == {shown[first]}:
        return f"from c = {run[0]} on"
    return f"at c = {listed([str(c) for c in run])}"


def crossover_document(found: Sequence[Crossover]) -> list[dict[str, Any]]:
    """For verdict.json. The class is null for the mix."""
    return [
        {
            "class": item.workload,
            "measure": item.measure,
            "turn": item.turn,
            "low": item.low,
            "high": item.high,
            "text": _sentence([item], all_of_them=False),
            "reach": item.reach,
            "levels": [
                {"c": c, "shown": side, **dict(zip(("change", "low", "high"), relative(estimate), strict=True))}
                for c, side, estimate in zip(item.levels, item.shown, item.estimates, strict=True)
            ],
        }
        for item in found
    ]


def crossover_lines(found: Sequence[Crossover]) -> Iterator[str]:
    """For a person: one sentence a measure, classes of which the same is true together."""
    for measure, title in _TITLES.items():
        groups: dict[tuple[Side, ...], list[Crossover]] = {}
        rows = [item for item in found if item.measure == measure]
        for item in rows:
            groups.setdefault(item.shown, []).append(item)
        parts = [_sentence(group, all_of_them=len(group) == len(rows) > 1) for group in groups.values()]
        if parts:
            yield f"crossover, {title}: {'; '.join(parts)}"


def _sentence(group: Sequence[Crossover], *, all_of_them: bool) -> str:
    names = "the mix and every class" if all_of_them else listed([item.workload or _MIX for item in group])
    text = f"{names} {_sides(group[0].levels, group[0].shown, plural=len(group) > 1)}"
    if not any(side != "open" for side in group[0].shown):
        reach = [item.reach for item in group if item.reach is not None]
        return f"{names}: cannot tell at any c{f', within ±{format_percent(max(reach))}' if reach else ''}"
    turns = sorted(item.turn for item in group if item.turn is not None)
    if not turns:
        return text
    about = f"{turns[0]:.1f}" if f"{turns[0]:.1f}" == f"{turns[-1]:.1f}" else f"{turns[0]:.1f} to {turns[-1]:.1f}"
    mean = "turn " if group[0].low is not None and group[0].high is not None else "mean turning "
    return f"{text}, the {mean}at about c = {about}"
