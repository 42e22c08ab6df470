"""What varies between boots, classes and requests, as standard deviations of log latency.

The figures are assumptions of the reference simulation, and of no engine. They make two boots of the same arm in one
block differ by 2.3 % (standard deviation), of which the drift is a small part.
"""

from dataclasses import dataclass

import numpy as np

type Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Noise:
    """All as standard deviations of the logarithm, but for the drift (per boot) and the stalls (share, factor)."""

    boot: float = 0.015
    boot_by_class: float = 0.006
    drift: float = 0.0015  # each boot is slower than the one before it by this much
    wander: float = 0.006  # of a slow walk around the drift
    wander_kept: float = 0.8  # how much of the walk is left at the next boot
    request: float = 0.08
    stalls: float = 0.015  # share of requests that stall
    stall_factor: float = 1.5


def draw_boots(noise: Noise, boots: int, classes: int, rng: np.random.Generator) -> Floats:
    """Log factor of each boot and class, in the order of the run: shape (boots, classes)."""
    walk = np.zeros(boots)
    step = noise.wander * np.sqrt(1 - noise.wander_kept**2)
    at = rng.normal(0, noise.wander)
    for index in range(boots):
        walk[index] = at
        at = noise.wander_kept * at + rng.normal(0, step)
    whole = rng.normal(0, noise.boot, boots) + noise.drift * np.arange(boots) + walk
    by_class: Floats = rng.normal(0, noise.boot_by_class, (boots, classes))
    return by_class + whole[:, None]


def draw_requests(noise: Noise, boots: int, requests: int, rng: np.random.Generator) -> Floats:
    """Log factor of each request of each boot: shape (boots, requests)."""
    usual = rng.normal(0, noise.request, (boots, requests))
    stalled = rng.random((boots, requests)) < noise.stalls
    return np.where(stalled, usual + np.log(noise.stall_factor), usual)
