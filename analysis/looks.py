"""Looks, and what was measured before the rule was amended.

An amended rule makes everything that was measured before it post hoc: shown, and never an adopt. An arm that a declared
look decided is not booted again; its estimate is marked, because stopping at a look favours what it looked like.
"""

from dataclasses import dataclass

from profiles.experiment import Experiment
from profiles.runs import Run


@dataclass(frozen=True, slots=True)
class Stopped:
    """An arm that is not booted again, decided by a declared look."""

    arm: str
    look: int  # blocks that it looked at
    verdict: str


def stopped_arms(run: Run) -> dict[str, Stopped]:
    """By arm, from the run's events."""
    return {}


def post_hoc_reason(run: Run, experiment: Experiment) -> str | None:
    """Why no arm of this run may be adopted: its rule was amended after boots were measured. None: it was not."""
    return None
