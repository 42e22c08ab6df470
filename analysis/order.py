"""Order and drift: does the place of a boot in the run show in the baseline's own boots?

A machine that warms up or slows down over a run moves all arms. Random order inside the blocks keeps that out of the
differences between arms; here it is looked for and told. Places count every boot of the run, in the order in which they
really ran, those that failed or were discarded as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.bench import Bench
from analysis.measures import COLUMNS, TITLES
from profiles.runs import AA_SUFFIX, BootFacts
from profiles.units import format_change

LEAST_BOOTS: Final = 4
# With fewer boots no order at all reaches p = 0.01: 2 / 5! = 0.017.
TELLING_BOOTS: Final = 6
DRIFT_P: Final = 0.01
# All orders of so many boots are looked at; above that, as many random ones.
EXACT_BOOTS: Final = 7
DRAWS: Final = 19_999

type Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """One measure of the baseline's boots (its copy too) against their place in the run, counted in boots from 1."""

    measure: str
    boots: int
    spearman: float | None  # None with fewer than 4 boots
    p: float | None  # exact or by permutation, two-sided
    drift_per_boot: float | None  # slope of the boot's mean log per place: 0.001 is 0.1 % slower from boot to boot


def check_order(bench: Bench) -> tuple[OrderCheck, ...]:
    """One check per measure of the rule. None of an engine that was up already: nothing was booted."""
    if not bench.cold:
        return ()
    places = boot_places([boot.facts for boot in bench.run.boots])
    copies = (bench.baseline, bench.baseline + AA_SUFFIX)
    own = bench.frame.filter(pl.col("arm").is_in(copies) & pl.col("deciding"))
    found = []
    for rule in bench.experiment.file.measure:
        if rule.name not in COLUMNS:
            continue
        levels = _boot_levels(own, COLUMNS[rule.name])
        at = [(places[key], level) for key, level in levels.items() if key in places]
        found.append(_check(rule.name, sorted(at)))
    return tuple(found)


def boot_places(boots: Sequence[BootFacts]) -> dict[tuple[str, int], int]:
    """(arm, block) → the place of its boot in the run, from 1; of several attempts the last one's.

    Instants of two processes share no clock but the wall's, so that is the one they are put in order by.
    """

    def began_ns(facts: BootFacts) -> tuple[int, int, int, int]:
        since_ns = 0 if facts.spawned_ns is None else facts.spawned_ns - facts.mono_ns
        return facts.wall_ns + since_ns, facts.block, facts.slot, facts.attempt

    ordered = sorted((facts for facts in boots if not facts.pilot), key=began_ns)
    return {(facts.arm, facts.block): place for place, facts in enumerate(ordered, start=1)}


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation, ties at their mean rank. None with fewer than two values, or where one side has no spread."""
    ranks = [_ranks(np.asarray(side, dtype=float)) for side in (first, second)]
    if len(first) < 2 or any(side.std() == 0 for side in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def spearman_p(correlation: float, count: int) -> float:
    """Two-sided: how often a random order of so many boots is as far from 0. Exact to 7 boots, else by permutation.

    The random orders are seeded: a report made twice says the same.
    """
    null = _null(count)
    # A correlation of ranks has few values; rounding must not part equal ones.
    extreme = int(np.count_nonzero(null >= abs(correlation) - 1e-9))
    return extreme / len(null) if count <= EXACT_BOOTS else (extreme + 1) / (len(null) + 1)


@lru_cache
def _null(count: int) -> Floats:
    """|Spearman| of all orders of 1..count, or of seeded random ones."""
    ranks = np.arange(count, dtype=float)
    if count <= EXACT_BOOTS:
        orders = np.array(list(permutations(ranks)))
    else:
        orders = np.random.default_rng(count).permuted(np.tile(ranks, (DRAWS, 1)), axis=1)
    centred = ranks - ranks.mean()
    return np.asarray(np.abs((orders - ranks.mean()) @ centred / (centred @ centred)), dtype=float)


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=float)


def _boot_levels(rows: pl.DataFrame, column: str) -> dict[tuple[str, int], float]:
    """(arm, block) → mean log of a boot, each request less its mean over the boots: a lost one moves nothing."""
    logs = rows.drop_nulls(column).with_columns(pl.col(column).log().alias("log"))
    own = logs.with_columns((pl.col("log") - pl.col("log").mean().over("window", "index")).alias("own"))
    table = own.group_by("arm", "block").agg(pl.col("own").mean())
    return {(arm, block): level for arm, block, level in table.iter_rows()}


def _check(measure: str, at: Sequence[tuple[int, float]]) -> OrderCheck:
    boots = len(at)
    if boots < LEAST_BOOTS:
        return OrderCheck(measure, boots, None, None, None)
    places, levels = (np.array(side, dtype=float) for side in zip(*at, strict=True))
    correlation = spearman(places.tolist(), levels.tolist())
    centred = places - places.mean()
    slope = float(centred @ levels / (centred @ centred))
    p = None if correlation is None else spearman_p(correlation, boots)
    return OrderCheck(measure, boots, correlation, p, slope)


def order_document(checks: Sequence[OrderCheck]) -> list[dict[str, Any]]:
    """For verdict.json."""
    return [
        {
            "measure": check.measure,
            "boots": check.boots,
            "spearman": check.spearman,
            "p": check.p,
            "drift_per_boot": check.drift_per_boot,
        }
        for check in checks
    ]


def drifted(check: OrderCheck) -> bool:
    """Whether the order shows: p below 0.01."""
    return check.p is not None and check.p < DRIFT_P


def order_lines(checks: Sequence[OrderCheck]) -> Iterator[str]:
    """For a person: a sentence for what drifted, one for what did not."""
    seen = [check for check in checks if drifted(check)]
    if seen:
        yield (
            f"the machine drifted: {'; '.join(map(_said, seen))}; random order inside blocks keeps it out of the "
            "differences, but check cooling"
        )
    calm = [check for check in checks if not drifted(check) and check.drift_per_boot is not None]
    if calm:
        few = calm[0].boots < TELLING_BOOTS
        yield f"{'too few boots to call a drift' if few else 'no drift seen'}: {'; '.join(map(_said, calm))}"


def _said(check: OrderCheck) -> str:
    drift = format_change(check.drift_per_boot or 0.0, 2)
    title = TITLES.get(check.measure, check.measure)
    if check.spearman is None:
        return f"{title} {drift} per boot over {check.boots} boots"
    rank = f"{check.spearman:+.2f}".replace("-", "−")
    p = "" if check.p is None or not drifted(check) else f", p = {max(check.p, 0.0001):.2g}"
    return f"{title} {drift} per boot, Spearman {rank} over {check.boots} boots{p}"
