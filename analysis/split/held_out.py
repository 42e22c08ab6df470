"""Which of several arms each class gets, chosen in the other blocks and valued in the one left out.

The best of several estimates looks better than it is. So each block is valued with the choice that the other blocks
made, which knows nothing of its noise; the choice that is then named uses all blocks. Pure: arrays in, arrays out.

The blocks share their choices, so where the choice of a class changes with the block left out, the block values vary
together and s / √R is too small. For those classes the interval adds what Nadeau and Bengio add for cross-validation
(Inference for the Generalization Error, 2003): s² · n_test / n_train, which is s² / (R−1) here.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.stats import Estimate

type Floats = NDArray[np.float64]


def picks(differences: Floats) -> NDArray[np.intp]:
    """Class × block → the arm with the lowest mean over the other blocks; the first one where none is lower.

    `differences`: arm × class × block, log ratios against the baseline, lower is better, NaN where there is no value.
    The baseline itself stands first, as zeros. An arm without a value in the other blocks is not chosen.
    """
    known = ~np.isnan(differences)
    values = np.where(known, differences, 0.0)
    others = known.sum(axis=2, keepdims=True) - known
    sums = values.sum(axis=2, keepdims=True) - values
    means = np.where(others > 0, sums / np.maximum(others, 1), np.inf)
    return np.asarray(means.argmin(axis=0))


def choice(differences: Floats) -> NDArray[np.intp]:
    """Class → the arm with the lowest mean over all blocks. Same form of input as `picks`."""
    known = ~np.isnan(differences)
    counts = known.sum(axis=2)
    sums = np.where(known, differences, 0.0).sum(axis=2)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.inf).argmin(axis=0))


def chosen_values(differences: Floats, chosen: NDArray[np.intp]) -> Floats:
    """Class × block, from the arm chosen for each. `chosen`: class × block."""
    return np.asarray(np.take_along_axis(differences, chosen[None], axis=0)[0])


def mix_values(differences: Floats, weights: Floats, part: NDArray[np.bool_] | None = None) -> Floats:
    """Block → mean over classes, weighted by requests. Both class × block; NaN in a block without a value.

    `part`: what these classes alone bring to that mean, as if the others stood at 0.
    """
    counted = np.where(np.isnan(differences), 0.0, weights)
    total = counted.sum(axis=0)
    rows = slice(None) if part is None else part
    sums = (np.where(counted > 0, differences, 0.0) * counted)[rows].sum(axis=0)
    return np.where(total > 0, sums / np.where(total > 0, total, 1.0), np.nan)


def known_values(values: Floats) -> list[float]:
    """Those that are numbers, for the block t."""
    return [float(value) for value in values[~np.isnan(values)]]


def held_out_estimate(values: Floats, unsure: Floats, alpha: float) -> Estimate | None:
    """The block t over held-out `values`, with the addition for `unsure`, the part of each that comes from classes
    whose choice is not the same in all blocks. h² = t² · (s² / R + s_unsure² / (R−1))."""
    known = ~np.isnan(values)
    plain = stats.paired_block_t(known_values(values), alpha)
    if plain is None or plain.half_width is None or plain.sd is None:
        return plain
    extra = float(np.var(unsure[known], ddof=1)) / (plain.blocks - 1)
    half_width = math.hypot(plain.half_width, stats.critical_t(plain.blocks, alpha) * math.sqrt(extra))
    return replace(plain, half_width=half_width)
