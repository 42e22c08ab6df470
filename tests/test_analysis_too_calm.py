"""Blocks that agree too well: a gain is not adopted where an arm scatters far less than the boots it is held against.

The numbers are those of a ladder on an H200 (examples/ladder-vllm-gpu): a flag that names what vLLM chooses anyway had
three blocks within 1 % of −19 % TTFT, while the two copies of the baseline lay 2 to 28 % apart.
"""

import math

import numpy as np
import pytest

from analysis import stats
from analysis.aa import TOO_CALM, AaJudgement
from analysis.findings import AaFinding
from analysis.stats import Pooled, paired_block_t
from analysis.verdict import MeasureFinding

CALM = (-0.2131, -0.2129, -0.2210)
LIVELY = (-0.0675, 0.2419, -0.1805)
COPIES = (-0.2467, -0.0217, 0.0235)


def finding(differences: tuple[float, ...], pooled: Pooled | None = None) -> MeasureFinding:
    estimate = paired_block_t(differences, pooled=pooled)
    return MeasureFinding("ttft", zone="gain", no_worse="no worse", estimate=estimate, line=-0.05, margin=0.1)


def judgement(copies: tuple[float, ...] = COPIES) -> AaJudgement:
    estimate = paired_block_t(copies)
    assert estimate is not None
    return AaJudgement((AaFinding("ttft", estimate),))


def test_the_f_test_has_its_reference() -> None:
    """With two and two degrees of freedom it is 1 / (1 + F); the tables give F(4, 4) = 6.388 at 5 %."""
    assert stats.p_calmer(1.0, 2, 3.0, 2) == pytest.approx(0.1)
    assert stats.p_calmer(1.0, 4, math.sqrt(6.38823), 4) == pytest.approx(0.05, abs=1e-6)
    assert stats.p_calmer(0.0, 2, 1.0, 2) == 0.0
    assert stats.p_calmer(0.0, 2, 0.0, 2) == 1.0  # the baseline does not scatter either


def test_a_gain_of_blocks_that_agree_too_well_is_held_up() -> None:
    (reason,) = judgement().too_calm([finding(CALM)], 2)
    assert reason == (
        "the blocks agree on the gain on TTFT to 0.5 %, but the baseline's boots that they are held against scatter by "
        "7.2 % alone: so narrow an interval is luck (p = 0.4 %)"
    )


def test_what_scatters_as_the_baseline_does_is_not() -> None:
    assert judgement().too_calm([finding(LIVELY)], 2) == []
    assert judgement((-0.004, 0.003, 0.002)).too_calm([finding(CALM)], 2) == []


def test_one_boot_as_the_reference_scatters_more_than_the_mean_of_two() -> None:
    """Differences of 1.7 % are too calm against one boot of this baseline, and possible against the mean of both."""
    differences = (-0.2, -0.217, -0.234)
    assert judgement().too_calm([finding(differences)], 2) == []
    assert len(judgement().too_calm([finding(differences)], 1)) == 1


def test_a_spread_that_all_arms_lend_is_believed() -> None:
    assert judgement().too_calm([finding(CALM, Pooled(mse=0.0001, df=8))], 2) == []


@pytest.mark.parametrize(("blocks", "share"), [(3, 0.017), (5, 0.0075)])
def test_arms_that_scatter_alike_are_seldom_held_up(blocks: int, share: float) -> None:
    """What it costs: so often a true gain, were every boot equally noisy, would be called luck."""
    draws = np.random.default_rng(7).standard_normal((200_000, blocks, 3))
    arm = np.std(draws[..., 0] - draws[..., 1:].mean(axis=-1), axis=1, ddof=1)
    copy = np.std(draws[..., 1] - draws[..., 2], axis=1, ddof=1)
    critical = next(x for x in np.arange(1, 40, 0.01) if stats.p_calmer(1.0, blocks - 1, x, blocks - 1) < TOO_CALM)
    assert np.mean(copy / 2 > critical * arm) == pytest.approx(share, abs=0.002)
