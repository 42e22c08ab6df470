"""How coarse the clock of a trace is, and how its batches can be spread again.

A log that is written every three seconds gives all its requests the same instant. Such arrivals look far burstier than
they were: spread over their three seconds, those of a well-known trace are nearly Poisson.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from profiles.units import MILLISECOND_NS

# Below this share of arrivals that share an instant, or this step, a clock is fine enough to be taken as it is.
LEAST_SHARED: Final = 0.01
LEAST_STEP_NS: Final = 100 * MILLISECOND_NS
# Batches: gaps between distinct instants are multiples of one step, give or take one per cent of it.
_TOLERANCE: Final = 0.01
_MOST_OFF: Final = 0.05
_FEWEST_JUMPS: Final = 20  # fewer may have a large common divisor by chance


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps in which a clock went."""

    resolution_ns: int  # greatest common divisor of all gaps; 0 where there are too few to tell
    step_ns: int  # from batch to batch, or the resolution
    instants: int  # distinct
    shared: float  # share of gaps that are zero

    @property
    def coarse(self) -> bool:
        """Whether what is computed from gaps between arrivals is an artefact of the clock."""
        return self.step_ns >= LEAST_STEP_NS or (self.shared >= LEAST_SHARED and self.step_ns > 0)


def find_steps(arrival_ns: NDArray[np.int64]) -> Steps:
    """The steps of sorted arrivals."""
    gaps = np.diff(arrival_ns)
    jumps = gaps[gaps > 0]
    if not len(jumps):
        return Steps(0, 0, min(len(arrival_ns), 1), float(len(gaps) > 0))
    if len(jumps) < _FEWEST_JUMPS:
        return Steps(0, 0, len(jumps) + 1, 1 - len(jumps) / len(gaps))
    resolution = int(np.gcd.reduce(jumps))
    return Steps(resolution, _batch_step(jumps, resolution), len(jumps) + 1, 1 - len(jumps) / len(gaps))


def _batch_step(jumps: NDArray[np.int64], resolution: int) -> int:
    candidate = float(np.quantile(jumps, 0.1))
    near = jumps[jumps < 1.5 * candidate]
    step = round(float(np.median(near)))
    if step < 10 * resolution:
        return resolution
    off = np.abs(jumps - np.rint(jumps / step) * step) > _TOLERANCE * step
    return step if float(off.mean()) <= _MOST_OFF else resolution


def spread(arrival_ns: NDArray[np.int64], step_ns: int, seed: int) -> NDArray[np.int64]:
    """Sorted arrivals, each moved forward by less than one step, uniformly. Their order stays, and no batch reaches
    into the next.
    """
    instants, batch = np.unique(arrival_ns, return_inverse=True)
    room = np.full(len(instants), step_ns, dtype=np.int64)
    room[:-1] = np.minimum(room[:-1], np.diff(instants))
    # Sorted as batch + draw, the draws of a batch stay in it and rise with its requests.
    draws = np.sort(batch + np.random.default_rng(seed).random(len(arrival_ns))) - batch
    return np.asarray(arrival_ns + np.clip((draws * room[batch]).astype(np.int64), 0, room[batch] - 1))


def gap_cv(arrival_ns: NDArray[np.int64]) -> float | None:
    """Standard deviation of the gaps between arrivals by their mean, n − 1 in the variance. None below two gaps."""
    gaps: Any = np.diff(arrival_ns)
    mean = gaps.mean() if len(gaps) > 1 else 0
    return float(gaps.std(ddof=1) / mean) if mean else None
