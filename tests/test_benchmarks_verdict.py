"""What the calibration compares the verdict with: each procedure against its reference value (verdict reference §6)."""

import math

import pytest

from benchmarks.verdict import procedures
from profiles.experiment_checks import QUANTILE_NEEDS, requests_for_error_rate

BASE = (-0.912, -0.905, -0.921, -0.898, -0.915)
CANDIDATE = (-0.958, -0.969, -0.951, -0.949, -0.972)
DIFFERENCES = [ours - theirs for ours, theirs in zip(CANDIDATE, BASE, strict=True)]


def test_welch_has_the_reference_interval_and_degrees_of_freedom() -> None:
    low, high, df = procedures.welch(CANDIDATE, BASE, 0.05)
    assert (low, high) == pytest.approx((-0.061017357529, -0.038182642471), abs=1e-12)
    assert df == pytest.approx(7.825305909629, abs=1e-9)


def test_permutations_have_their_exact_p() -> None:
    assert procedures.sign_flip_p(DIFFERENCES) == pytest.approx(0.0625)
    assert procedures.permutation_p(CANDIDATE, BASE) == pytest.approx(0.007936507937, abs=1e-12)


@pytest.mark.parametrize(("boots", "least"), [(3, 0.10), (4, 2 / 70)])
def test_few_boots_cannot_reach_a_small_p_however_far_apart(boots: int, least: float) -> None:
    slow, fast = range(boots), range(100, 100 + boots)
    assert procedures.permutation_p(list(map(float, fast)), list(map(float, slow))) == pytest.approx(least)
    assert procedures.sign_flip_p([1.0] * boots) == pytest.approx(2 / 2**boots)


def test_fieller_has_the_reference_ratio_and_interval() -> None:
    ratio, low, high = procedures.fieller([384, 380, 387, 388, 379], [402, 405, 398, 407, 400], 0.025)
    assert (ratio, low, high) == pytest.approx((0.953280318, 0.936959618, 0.969842480), abs=1e-9)
    with pytest.raises(ValueError, match="not told from 0"):
        procedures.fieller([1, 2, 3], [-1, 0, 1], 0.025)


def test_holm_adjusts_the_reference_family_in_any_order() -> None:
    assert procedures.holm([0.012, 0.03, 0.2]) == pytest.approx([0.036, 0.06, 0.2])
    assert procedures.holm([0.2, 0.012, 0.03]) == pytest.approx([0.2, 0.036, 0.06])
    assert procedures.holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert procedures.holm([0.6, 0.7]) == [1.0, 1.0]
    assert procedures.holm([]) == []


def test_quantiles_of_a_hundred_values_have_the_reference_intervals() -> None:
    values = [number / 10 for number in range(1, 101)]
    assert procedures.quantile_interval(values, 0.95, 0.025) == (9.0, 10.0)
    assert procedures.quantile_interval(values, 0.50, 0.025) == (4.0, 6.1)


@pytest.mark.parametrize(("share", "two_sided", "one_sided"), [(0.90, 36, 29), (0.95, 72, 59), (0.99, 368, 299)])
def test_a_quantile_needs_this_many_requests(share: float, two_sided: int, one_sided: int) -> None:
    assert procedures.least_requests(share, 0.025) == two_sided == QUANTILE_NEEDS[f"p{100 * share:.0f}"]
    assert procedures.least_requests(share, 0.05) == one_sided == requests_for_error_rate(1 - share)
    values = [float(value) for value in range(two_sided)]
    assert procedures.quantile_interval(values, share, 0.025)[1] == values[-1]
    assert procedures.quantile_interval(values[1:], share, 0.025)[1] == math.inf


def test_early_stopping_at_p99_and_99_per_cent_needs_459() -> None:
    assert procedures.least_requests(0.99, 0.01) == 459
