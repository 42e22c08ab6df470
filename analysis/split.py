"""What separate engine instances per class would be worth on the recorded mix, and where the line lies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.bench import Bench
from analysis.stats import Estimate
from analysis.verdict import MeasureFinding


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """The arm that a class would get."""

    workload: str
    arm: str
    share: float  # of the requests of the mix
    estimate: Estimate | None  # that arm against the baseline, on this class


@dataclass(frozen=True, slots=True)
class WorkloadSplit:
    """One measure, one arm that is workload-dependent on it."""

    arm: str
    measure: str
    choices: tuple[ClassChoice, ...]
    worth: (
        Estimate | None
    )  # log ratio of the split mix against the baseline, honest about having chosen by the same data
    whole: Estimate | None  # the arm for everybody, for comparison
    # The share of the gaining classes in the mix from which on the arm gains on the mix; None: at no share.
    line: float | None
    line_low: float | None
    line_high: float | None
    share_now: float  # of the gaining classes
    limits: tuple[str, ...]  # what this number cannot know: memory for two engines, another c in each, caches


def splits(bench: Bench, arm: str, measures: Sequence[MeasureFinding]) -> tuple[WorkloadSplit, ...]:
    """One for each measure on which the arm is workload-dependent."""
    return ()


def split_document(found: Sequence[WorkloadSplit]) -> list[dict[str, Any]]:
    """For verdict.json."""
    return []


def split_lines(found: Sequence[WorkloadSplit]) -> Iterator[str]:
    """For a person."""
    yield from ()
