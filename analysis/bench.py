"""What all arms of a run are judged with: the frame of the blocks that may be looked at, the rule, the course."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from analysis import contrasts, course, stats
from analysis.contrasts import Contrast
from analysis.course import Course
from analysis.load import load_frame
from analysis.measures import MIN_TOKENS, with_measures
from analysis.stats import Pooled
from profiles.experiment import Experiment, MeasureRule
from profiles.experiment_checks import measure_parts
from profiles.runs import Run


@dataclass(frozen=True, slots=True)
class Bench:
    """`frame` holds the measured requests of the blocks that a declared look covers; `planned` is how many deciding
    requests each boot was asked; `alpha` is one-sided, its share for one look. `cold` is False where the engine was up
    already: then a block is no replicate. `pooled` holds the spread that all arms share, by class (None: the mix) and
    measure, where the rule asks for that."""

    run: Run
    experiment: Experiment
    frame: pl.DataFrame
    baseline: str
    planned: int
    course: Course
    alpha: float
    cold: bool = True
    pooled: Mapping[tuple[str | None, str], Pooled] = field(default_factory=dict)

    def alpha_for(self, rule: MeasureRule) -> float:
        """One-sided alpha of a measure. Without a material line every arm without an effect has its chance to be
        adopted by luck (12 % with three of them at 5 %), so all arms share it; with one that chance is tiny."""
        arms = sum(arm.name != self.baseline for arm in self.experiment.arms)
        bare = rule.material.relative == 0 and rule.material.absolute_ms == 0
        return self.alpha / max(1, arms) if bare else self.alpha

    def contrast(self, arm: str, base: str) -> Contrast:
        """Pairs of an arm with another one; against the baseline, with both of its boots in each block. Of A/A both
        sides are the baseline's, and each has to be whole."""
        copy = str(self.run.manifest.get("aa") or "") or None
        beside = copy if base == self.baseline and copy != arm else None
        return contrasts.contrast(self.frame, arm, base, self.planned, beside, excused=arm != copy)


def make_bench(run: Run, experiment: Experiment) -> Bench:
    """Load a run for judging. Raises FirsttokenError if no boot was measured to its end."""
    course.require_boots(run)
    seen = course.course_of(run, experiment)
    of_tpot = (rule for rule in experiment.file.measure if (measure_parts(rule.name) or {}).get("measure") == "tpot")
    tokens = next((rule.min_tokens for rule in of_tpot), MIN_TOKENS)
    frame = load_frame(run).filter(pl.col("block").is_in(sorted(seen.blocks)))
    windows: list[dict[str, Any]] = run.manifest.get("windows") or []
    return Bench(
        run=run,
        experiment=experiment,
        frame=with_measures(frame, tokens),
        baseline=str(run.manifest.get("baseline") or experiment.baseline.name),
        planned=sum(int(window.get("requests") or 0) for window in windows if window.get("deciding")),
        course=seen,
        alpha=stats.ALPHA / len(experiment.looks),
        cold=bool(run.manifest.get("cold", True)) and all(boot.facts.cold for boot in run.boots),
    )
