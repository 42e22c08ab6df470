"""How far a verdict leans on the arrival weights: the same effects, weighted otherwise.

The deciding pairs are the recorded mix at the observed operating point. Here each level of c stands alone, levels are
weighted by the time that production spends at them, classes count the same or one is left out. A zone that only one
weighting gives is worth knowing before anything is adopted. Describes, decides nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from analysis import stats
from analysis.bench import Bench
from analysis.bench_check import RECORDED_PACE, copies, levels
from analysis.contrasts import KEY
from analysis.guards import relative
from analysis.measures import COLUMNS, title_of
from analysis.stats import Estimate, Zone
from analysis.verdict import MeasureFinding

# A level or a class with fewer requests per block says nothing alone.
LEAST_REQUESTS: Final = 5
BUSY_TIME: Final = "weighted by busy time"
PROFILE_ARRIVALS: Final = "weighted by the profile's arrivals"
EQUAL_CLASSES: Final = "with every class counting the same"
_ALONE: Final = "with all arrivals at c = "
_ZONES: Final[dict[Zone, str]] = {"gain": "a gain", "no gain": "no gain", "open": "open"}

type Cell = tuple[int, str]  # level, class
type Weights = Mapping[Cell, float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One measure under other weights than the rule's. `same`: the zone is the one that the rule's weights give,
    which is `by_rule`."""

    measure: str
    weights: str  # in words, such as "with all arrivals at c = 1" or "weighted by busy time"
    estimate: Estimate | None
    zone: Zone
    same: bool
    by_rule: Zone


def scenarios(
    bench: Bench, pairs: pl.DataFrame, measures: Sequence[MeasureFinding], boots: int = 1
) -> tuple[Scenario, ...]:
    """The deciding pairs of an arm, weighted otherwise. Describes, decides nothing. `boots`: of the reference."""
    if pairs.is_empty():
        return ()
    at_levels = with_levels(bench, pairs)
    found = []
    for finding in measures:
        if finding.measure not in COLUMNS or finding.estimate is None:
            continue
        cells = _cells(at_levels, finding.measure)
        # Where arms share their spread, the zone by the rule leans on it, and so do these.
        spread = bench.pooled.get((None, finding.measure))
        for words, weights in _weightings(bench, cells).items():
            estimate = stats.paired_block_t(_differences(cells, weights), finding.alpha, spread, boots)
            zone = stats.zone(estimate, finding.line)
            found.append(Scenario(finding.measure, words, estimate, zone, zone == finding.zone, finding.zone))
    return tuple(found)


def with_levels(bench: Bench, pairs: pl.DataFrame) -> pl.DataFrame:
    """The pairs with `level`: the c that was held, or at the recorded pace the one that the request met as sent.

    It is counted in a boot of the reference, so that a slow arm does not choose its own level: in the baseline's first,
    in its copy where that one lacks the request.
    """
    if not bool((pairs["c"] == 0).any()):
        return pairs.with_columns(pl.col("c").alias("level"))
    paced = bench.frame.filter(pl.col("deciding") & (pl.col("c") == 0)).drop_nulls(["send_started_ns", "end_ns"])
    boots = [paced.filter(pl.col("arm") == name).partition_by("block", "window") for name in copies(bench)]
    parts = [part for own in boots for part in own]
    met = [part.select([*KEY, pl.Series("met", met_levels(*_instants(part)))]) for part in parts]
    if not met:
        return pairs.with_columns(pl.col("c").alias("level"))
    level = pl.when(pl.col("c") > 0).then(pl.col("c")).otherwise(pl.col("met")).alias("level")
    first = pl.concat(met).unique(KEY, keep="first", maintain_order=True)
    return pairs.join(first, on=KEY, how="left").with_columns(level).drop_nulls("level")


def _instants(part: pl.DataFrame) -> tuple[list[int], list[int]]:
    return part["send_started_ns"].to_list(), part["end_ns"].to_list()


def met_levels(started_ns: Sequence[int], ended_ns: Sequence[int]) -> list[int]:
    """How many requests were in flight when each one was sent, itself included; half-open intervals."""
    starts, ends = np.asarray(started_ns, dtype=np.int64), np.sort(np.asarray(ended_ns, dtype=np.int64))
    order = np.argsort(starts, kind="stable")
    before = np.empty(len(starts), dtype=np.int64)
    before[order] = np.arange(len(starts))
    return [max(1, int(count)) for count in before - np.searchsorted(ends, starts, side="right") + 1]


def _cells(pairs: pl.DataFrame, measure: str) -> dict[int, dict[Cell, tuple[int, float]]]:
    """Block → (level, class) → pairs with this measure, and the sum of their log ratios."""
    column = COLUMNS[measure]
    ratio = pl.col(column).log() - pl.col(f"{column}_base").log()
    known = pairs.with_columns(ratio.alias("ratio")).drop_nulls("ratio")
    table = known.group_by("block", "level", "workload").agg(pl.len(), pl.col("ratio").sum())
    found: dict[int, dict[Cell, tuple[int, float]]] = {}
    for block, level, workload, count, total in table.sort("block", "level", "workload").iter_rows():
        found.setdefault(block, {})[int(level), str(workload)] = (count, total)
    return found


def _differences(cells: Mapping[int, Mapping[Cell, tuple[int, float]]], weights: Weights) -> list[float]:
    """Weighted means of the log ratio by block, where the weighted cells hold anything."""
    found = []
    for block in cells.values():
        whole = sum(weights.get(cell, 0.0) * count for cell, (count, _) in block.items())
        if whole > 0:
            found.append(sum(weights.get(cell, 0.0) * total for cell, (_, total) in block.items()) / whole)
    return found


def _weightings(bench: Bench, cells: Mapping[int, Mapping[Cell, tuple[int, float]]]) -> dict[str, Weights]:
    """Every weighting that these pairs allow, in words → the weight of a request in each cell."""
    counts: dict[Cell, int] = {}
    for block in cells.values():
        for cell, (count, _) in block.items():
            counts[cell] = counts.get(cell, 0) + count
    least = LEAST_REQUESTS * len(cells)
    by_level = _summed(counts, 0)
    by_class = _summed(counts, 1)
    found: dict[str, Weights] = {}
    if len(by_level) > 1:
        for level, count in by_level.items():
            if count >= least:
                found[f"{_ALONE}{level}"] = {cell: float(cell[0] == level) for cell in counts}
        profile = bench.run.manifest.get("profile") or {}
        shares = {BUSY_TIME: profile.get("time_ns_at")}
        if (bench.run.manifest.get("operating_point") or {}).get("mode") in RECORDED_PACE:
            shares[PROFILE_ARRIVALS] = profile.get("arrivals_at")
        for words, told in shares.items():
            wanted = levels(told or {})
            if sum(wanted.get(level, 0) > 0 for level in by_level) > 1:
                found[words] = {cell: wanted.get(cell[0], 0) / by_level[cell[0]] for cell in counts}
    if len(by_class) > 1:
        found[EQUAL_CLASSES] = {cell: 1 / by_class[cell[1]] for cell in counts}
        for name in by_class:
            found[f"without {name}"] = {cell: float(cell[1] != name) for cell in counts}
    return found


def _summed(counts: Mapping[Cell, int], part: int) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for cell, count in counts.items():
        found[cell[part]] = found.get(cell[part], 0) + count
    return dict(sorted(found.items()))


def sensitivity_document(found: Sequence[Scenario]) -> list[dict[str, Any]]:
    """For verdict.json."""
    documents = []
    for item in found:
        change, low, high = relative(item.estimate)
        documents.append(
            {
                "measure": item.measure,
                "weights": item.weights,
                "change": change,
                "low": low,
                "high": high,
                "zone": item.zone,
                "same": item.same,
            }
        )
    return documents


def sensitivity_lines(found: Sequence[Scenario]) -> Iterator[str]:
    """For a person: one sentence for the measures that hold, one for each other. Nothing where there is no interval."""
    by_measure = {name: [item for item in found if item.measure == name] for name in _measures(found)}
    holding = {name: own for name, own in by_measure.items() if all(item.same for item in own)}
    if holding:
        zones = ", ".join(f"{title_of(name)} is {_ZONES[own[0].by_rule]}" for name, own in holding.items())
        yield f"weights: {zones} for every weighting tried ({max(map(len, holding.values()))})"
    for name, own in by_measure.items():
        if name not in holding:
            yield f"weights: {title_of(name)} {_sentence(own, own[0].by_rule)}"


def _measures(found: Sequence[Scenario]) -> list[str]:
    judged = [item for item in found if item.estimate is not None and item.estimate.half_width is not None]
    return list(dict.fromkeys(item.measure for item in judged))


def _sentence(own: Sequence[Scenario], zone: Zone) -> str:
    alone = [item for item in own if item.weights.startswith(_ALONE)]
    winners = [item.weights.removeprefix(_ALONE) for item in alone if item.zone == "gain"]
    if zone == "gain" and len(winners) == 1 and all(item.zone != "open" for item in alone) and len(alone) > 1:
        rest = " or ".join(item.weights.removeprefix(_ALONE) for item in alone if item.zone != "gain")
        return f"is a gain only because of c = {winners[0]}: no gain with all arrivals at c = {rest}"
    parts = []
    for other in _ZONES:
        words = [item.weights for item in own if item.zone == other and not item.same]
        if words:
            parts.append(f"{_ZONES[other]} {', '.join(words)}")
    return f"is {_ZONES[zone]} by the rule's weights; {'; '.join(parts)}"
