"""Output-length parity: an arm that answers at another length does other work, and its numbers say less.

The same request in both boots of a block, each answered to its end: the log ratio of the output tokens by usage,
averaged over the pairs of a block, the interval over blocks. A request that ran into its time-out or broke has no
length. Under `capped` an answer ends at the recorded length at the latest, so an arm that would say more cannot show
it; where every answer of both sides reaches its cap, the difference is 0 without a spread.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from analysis import stats
from analysis.bench import Bench
from analysis.contrasts import KEY, Contrast
from analysis.guards import relative
from analysis.stats import Estimate
from profiles.experiment import Arm
from profiles.records import OK
from profiles.units import format_change

# 99 % two-sided: parity blocks an adopt, so chance must rarely do it. Below 2 % it is no other work to speak of.
ALPHA: Final = 0.005
LEAST_CHANGE: Final = 0.02


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Output tokens of an arm against the baseline's, the same requests: log ratio over blocks."""

    estimate: Estimate | None
    arm_tokens: int
    base_tokens: int
    status: Literal["same", "differs", "not known"]
    capped: bool = False  # the recorded length was the cap: longer answers cannot show


def output_lengths(bench: Bench, against: Contrast) -> OutputLengths | None:
    """None where no usage tells the output tokens of both sides.

    A count of 0 beside an answer has no logarithm: such a pair counts into the sums only.
    """
    rows = bench.frame.filter(
        pl.col("deciding") & (pl.col("outcome") == OK) & pl.col("block").is_in(list(against.blocks))
    ).select([*KEY, "arm", "output_tokens"])
    # One boot of the reference in each block: the baseline's first where it serves, else the copy.
    first = [(block, names[0]) for block, names in against.served.items()]
    chosen = pl.DataFrame(first, schema={"block": pl.Int64, "arm": pl.String}, orient="row")
    right = rows.join(chosen, on=["block", "arm"], how="semi").drop("arm")
    left = rows.filter(pl.col("arm") == against.arm).drop("arm")
    pairs = left.join(right, on=KEY, how="inner", suffix="_base").drop_nulls()
    if pairs.is_empty():
        return None
    some = pairs.filter((pl.col("output_tokens") > 0) & (pl.col("output_tokens_base") > 0))
    ratio = (pl.col("output_tokens").log() - pl.col("output_tokens_base").log()).mean()
    differences = some.group_by("block").agg(ratio.alias("d")).sort("block")["d"].to_list()
    estimate = stats.paired_block_t(differences, ALPHA)
    return OutputLengths(
        estimate,
        int(pairs["output_tokens"].sum()),
        int(pairs["output_tokens_base"].sum()),
        _status(estimate),
        bench.experiment.file.load.output_length == "capped",
    )


def _status(estimate: Estimate | None) -> Literal["same", "differs", "not known"]:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "not known"
    apart = estimate.low > 0 or estimate.high < 0
    return "differs" if apart and abs(math.expm1(estimate.mean)) > LEAST_CHANGE else "same"


def length_blockers(found: OutputLengths | None, arm: Arm) -> list[str]:
    """Why an undeclared difference (`changes = ["output"]` declares it) blocks adopt."""
    if found is None or found.status != "differs" or "output" in arm.changes:
        return []
    return [
        f"output length differs without being declared ({_change(found)}); declare "
        f'changes = ["output"] if the arm means to do that'
    ]


def parity_document(found: OutputLengths | None) -> dict[str, Any] | None:
    """For verdict.json."""
    if found is None:
        return None
    change, low, high = relative(found.estimate)
    return {
        "status": found.status,
        "change": change,
        "low": low,
        "high": high,
        "tokens": found.arm_tokens,
        "baseline_tokens": found.base_tokens,
        "capped": found.capped,
    }


def parity_lines(found: OutputLengths | None) -> Iterator[str]:
    """For a person. Nothing where every pair has the same length."""
    if found is None or found.estimate is None or (found.arm_tokens == found.base_tokens and not found.estimate.mean):
        return
    word = {"same": "no other work", "differs": "other work", "not known": "cannot tell from one block"}[found.status]
    cap = ", capped at the recorded length" if found.capped else ""
    yield f"output length {_change(found)}: {word}{cap}"


def _change(found: OutputLengths) -> str:
    change, low, high = relative(found.estimate)
    if change is None:
        return "not known"
    if low is None or high is None:
        return f"{format_change(change)} tokens"
    return f"{format_change(change)} tokens [{format_change(low)}, {format_change(high)}] at 99 %"
