"""The parts of a plan, and what a person should know of them before the first boot, in sentences."""

import math
from dataclasses import dataclass
from typing import Final

from analysis import stats
from analysis.measures import title_of
from analysis.plan.chances import Chance
from analysis.verdict import MIN_BLOCKS
from profiles.experiment import Experiment
from profiles.experiment_checks import LoadFacts
from profiles.planned import PlannedWindow

# Below it a design is not worth its machine time.
LEAST_CHANCE: Final = 0.2
WANTED_EFFECT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Boots:
    """How many engines are started. `arms` counts the second copy of the baseline."""

    arms: int
    blocks: int
    pilots: int

    @property
    def total(self) -> int:
        return self.arms * self.blocks + self.pilots


@dataclass(frozen=True, slots=True)
class Hours:
    """The machine time. `source`: run, stated, estimated; unknown where nobody knows how long a request takes."""

    source: str
    per_boot: float | None

    def of(self, boots: int) -> float | None:
        return None if self.per_boot is None else self.per_boot * boots


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """What one measure can show by itself. `null_rejected`: the chance that an arm without any effect is shown to have
    no material gain. `blocks_for_wanted`: for a gain of `WANTED_EFFECT`, None where 60 blocks do not show it."""

    name: str
    line: float  # log ratio, lower is better; −inf where no gain can be material
    higher: bool  # more of it is a gain
    baseline_ms: float | None
    sd: float
    smallest_gain: float | None
    smallest_loss: float | None  # shown to be worse than the margin
    null_rejected: float
    blocks_for_wanted: int | None


@dataclass(frozen=True, slots=True)
class GuardPlan:
    """A guard. `chance`: that an arm which changes nothing passes it; None for one that only advises."""

    metric: str
    role: str
    limit: float
    chance: float | None
    sd: float | None = None
    requests: int | None = None  # of an error rate, over all blocks
    allowed: int | None = None  # and how many of them may fail


def warnings_of(
    experiment: Experiment,
    load: LoadFacts,
    kind: str,
    windows: tuple[PlannedWindow, ...],
    boots: Boots,
    hours: Hours,
    measures: tuple[MeasurePlan, ...],
    found: tuple[Chance, ...],
    guards: tuple[GuardPlan, ...],
) -> list[str]:
    """Everything that a person should know before the first boot."""
    said = []
    if len(experiment.arms) == 1:
        said.append("There is no arm beside the baseline yet: add an [[arm]]. What follows holds for any one of them.")
    engine = experiment.file.engine
    if engine is not None and engine.launcher == "external":
        said.append(
            "An external engine is not cold-booted, and a cold boot is the replicate: every verdict will be "
            "inconclusive, whatever the chances below."
        )
    if boots.blocks < MIN_BLOCKS:
        said.append(f"{boots.blocks} blocks: below {MIN_BLOCKS} every verdict is inconclusive.")
    if kind == "closed":
        played = {window.c for window in windows if window.deciding}
        out = [f"c = {c}" for c in load.point.levels if c not in played]
        if out:
            said.append(f"{', '.join(out)} left out: too few requests per boot to hold it.")
    for measure in measures:
        if not math.isfinite(measure.line):
            said.append(
                f"No gain on {title_of(measure.name)} can be material: its baseline is {measure.baseline_ms:.3g} ms, "
                "not more than the absolute part of its line. Lower absolute_ms."
            )
    if boots.blocks >= MIN_BLOCKS and all(chance.decided < LEAST_CHANCE for chance in found if not chance.mixed):
        said.append(_too_weak(boots, hours, measures))
    for guard in guards:
        if guard.role == "deciding" and guard.allowed == 0:
            said.append(
                f"One failed request in {guard.requests}, and {guard.metric} is not shown. Add requests or blocks."
            )
        if guard.role == "deciding" and guard.chance is not None and guard.chance < 0.5:
            said.append(
                f"The guard {guard.metric} will block most adopts: an arm that changes nothing passes it in "
                f"{100 * guard.chance:.0f} % of runs. Widen its margin, add requests or blocks, or make it advisory."
            )
    return said


def _too_weak(boots: Boots, hours: Hours, measures: tuple[MeasurePlan, ...]) -> str:
    text = "This design decides next to nothing: below 20 % for every effect listed."
    needed = [measure.blocks_for_wanted for measure in measures]
    known = [blocks for blocks in needed if blocks is not None]
    if not known:
        return f"{text} More than {stats.MOST_BLOCKS} blocks would be needed: lower the noise, or ask for less."
    blocks = min(known)
    name = measures[needed.index(blocks)].name
    whole = hours.of(boots.arms * blocks + boots.pilots)
    time = f", {whole:.1f} h" if whole is not None else ""
    return f"{text} A gain of {100 * WANTED_EFFECT:.0f} % on {title_of(name)} needs {blocks} blocks{time}."
