"""`variance = "pooled"`: one spread between blocks for all arms of a run, as in a randomised complete block.

With two or three blocks it is much sharper than the spread of one arm's own differences, and it is right only as far as
all arms scatter alike: an arm that scatters three times as much gets 90 % intervals that hold in 78 % of the cases. So
it is a choice of the rule and never the default, the report says so, and arms that scatter more are named.
"""

from collections.abc import Mapping
from typing import Final

from analysis import stats
from analysis.bench import Bench
from analysis.contrasts import BlockMeans
from analysis.measured import measured
from analysis.measures import title_of
from analysis.stats import Pooled
from profiles.units import format_percent

# An arm whose boots scatter this much more than those of all others does not belong under one spread.
UNEQUAL: Final = 2.0

type Key = tuple[str | None, str]  # class (None: the mix), measure
type Cells = dict[str, dict[int, float]]  # arm → block → mean log, but for a constant per block


def pool(bench: Bench) -> tuple[dict[Key, Pooled], list[str]]:
    """The pooled spread by class (None: the mix) and measure, and what a reader must know about it.

    Empty where the rule asks for the paired one. All arms that have blocks in common with the baseline take part, the
    baseline and its copy among them.
    """
    if bench.experiment.file.design.variance != "pooled":
        return {}, []
    cells: dict[Key, Cells] = {}
    copy = str(bench.run.manifest.get("aa") or "")
    for key, means in _by_key(bench, copy).items():
        # The reference of the arms is the middle of both copies, so these lie half their difference to either side.
        half = {block: value / 2 for block, value in means.differences.items()}
        cells[key] = {copy: half, bench.baseline: {block: -value for block, value in half.items()}}
    for arm in bench.experiment.arms:
        if arm.name != bench.baseline:
            for key, means in _by_key(bench, arm.name).items():
                of_key = cells.setdefault(key, {bench.baseline: {}})
                of_key[arm.name] = dict(means.differences)
                alone = dict.fromkeys(means.differences.keys() - of_key[bench.baseline].keys(), 0.0)
                of_key[bench.baseline].update(alone)
    found = {key: spread for key, of_key in cells.items() if (spread := _spread(of_key)) is not None}
    return found, _warnings(bench, found, cells)


def _by_key(bench: Bench, arm: str) -> dict[Key, BlockMeans]:
    if not arm:
        return {}
    found: dict[Key, BlockMeans] = {}
    for name, item in measured(bench.experiment.file.measure, bench.run, bench.contrast(arm, bench.baseline)).items():
        found[None, name] = item.mix
        found |= {(workload, name): means for workload, means in item.classes.items()}
    return found


def _spread(cells: Cells) -> Pooled | None:
    return stats.pooled_spread([(arm, block, value) for arm, own in cells.items() for block, value in own.items()])


def _warnings(bench: Bench, found: Mapping[Key, Pooled], cells: Mapping[Key, Cells]) -> list[str]:
    names = [rule.name for rule in bench.experiment.file.measure if (None, rule.name) in found]
    if not names:
        return ["the rule pools the spread between boots over all arms, and there are too few blocks to do so"]
    spreads = ", ".join(
        f"{title_of(name)} {format_percent(found[None, name].sd(), 2)} with {found[None, name].df} degrees of freedom"
        for name in names
    )
    said = [
        f"the variance is pooled over all arms, as the rule asks (sd of the difference of two boots: {spreads}): the "
        "intervals of an arm that scatters more than the others are too narrow"
    ]
    for name in names:
        for arm, times in _unequal(cells[None, name], bench.baseline).items():
            said.append(
                f"{title_of(name)} of {arm} scatters {times:.1f} times as much as that of the others: its intervals "
                'are too narrow; variance = "paired" takes each arm by itself'
            )
    return said


def _unequal(cells: Cells, baseline: str) -> dict[str, float]:
    """Arms whose differences to the baseline scatter more than those of the others → how many times as much.

    Twice happens by chance to one arm in thirty, with five blocks and five arms.
    """
    found = {}
    for arm, own in cells.items():
        others = _spread({name: item for name, item in cells.items() if name != arm})
        estimate = stats.paired_block_t([value - cells[baseline].get(block, 0.0) for block, value in own.items()])
        if arm == baseline or others is None or others.mse == 0 or estimate is None or estimate.sd is None:
            continue
        times = estimate.sd / others.sd()
        if times > UNEQUAL:
            found[arm] = times
    return found
