"""What all arms of a run are judged with: the frame of the blocks that may be looked at, the rule, the course."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from analysis import contrasts, course, stats
from analysis.contrasts import Contrast
from analysis.course import Course
from analysis.load import load_frame
from analysis.measures import MIN_TOKENS, with_measures
from profiles.experiment import Experiment
from profiles.runs import Run


@dataclass(frozen=True, slots=True)
class Bench:
    """`frame` holds the measured requests of the blocks that a declared look covers; `planned` is how many deciding
    requests each boot was asked; `alpha` is one-sided, its share for one look. `cold` is False where the engine was up
    already: then a block is no replicate."""

    run: Run
    experiment: Experiment
    frame: pl.DataFrame
    baseline: str
    planned: int
    course: Course
    alpha: float
    cold: bool = True

    def contrast(self, arm: str, base: str) -> Contrast:
        return contrasts.contrast(self.frame, arm, base, self.planned)


def make_bench(run: Run, experiment: Experiment) -> Bench:
    """Load a run for judging. Raises FirsttokenError if no boot was measured to its end."""
    course.require_boots(run)
    seen = course.course_of(run, experiment)
    tokens = next((rule.min_tokens for rule in experiment.file.measure if rule.name == "tpot"), MIN_TOKENS)
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
