"""The statistics against reference values (verdict reference §3, §4 and §6), computed independently of this code."""

import math

import pytest

from analysis import stats
from analysis.sequences import anytime, anytime_lines, may_stop
from analysis.settle import ASSUMED_BLOCK_SD, blocks_for_measure, how_often, one_boot_statement, planned_effect, settle
from analysis.stats import Estimate, paired_block_t
from analysis.verdict import GuardFinding, MeasureFinding
from profiles.experiment_checks import QUANTILE_NEEDS

BASE = (-0.912, -0.905, -0.921, -0.898, -0.915)
CANDIDATE = (-0.958, -0.969, -0.951, -0.949, -0.972)
DIFFERENCES = [ours - theirs for ours, theirs in zip(CANDIDATE, BASE, strict=True)]


def estimate_of(differences: list[float], alpha: float = 0.05) -> Estimate:
    estimate = paired_block_t(differences, alpha)
    assert estimate is not None
    return estimate


def test_paired_block_t_has_the_reference_interval() -> None:
    estimate = estimate_of(DIFFERENCES)
    assert estimate.blocks == 5
    assert estimate.mean == pytest.approx(-0.0496, abs=1e-12)
    assert estimate.sd == pytest.approx(0.012856904759700, abs=1e-14)
    assert estimate.low == pytest.approx(-0.061857655567664, abs=1e-14)
    assert estimate.high == pytest.approx(-0.037342344432336, abs=1e-14)
    percent = [100 * math.expm1(value) for value in (estimate.mean, estimate.low or 0, estimate.high or 0)]
    assert percent == pytest.approx([-4.839001, -5.998332, -3.665372], abs=1e-6)


def test_p_values_have_their_reference() -> None:
    estimate = estimate_of(DIFFERENCES)
    assert stats.p_value(estimate) == pytest.approx(0.000992866925, abs=1e-12)
    assert stats.p_below(estimate, math.log(0.98)) == pytest.approx(0.003460418666, abs=1e-12)
    assert stats.zone(estimate, math.log(0.98)) == "gain"


def test_p_values_of_blocks_without_spread_are_numbers() -> None:
    assert stats.p_value(estimate_of([0.0, 0.0, 0.0])) == 1.0
    assert stats.p_value(estimate_of([-0.125, -0.125, -0.125])) == 0.0
    assert stats.p_value(estimate_of([0.1])) is None


@pytest.mark.parametrize(
    ("blocks", "alpha", "expected"),
    [
        (2, 0.05, 6.313751514800932),
        (3, 0.05, 2.919985580355516),
        (5, 0.05, 2.131846786326649),
        (5, 0.05 / 5, 3.7469473879811),  # simultaneous over five classes
        (5, 0.05 / 2, 2.7764451051978),  # two looks
        (8, 0.05 / 2, 2.3646242515928),
    ],
)
def test_critical_t(blocks: int, alpha: float, expected: float) -> None:
    assert stats.critical_t(blocks, alpha) == pytest.approx(expected, rel=1e-9)


def test_block_t_of_the_randomised_block_example() -> None:
    base, arm = (-0.912, -0.905, -0.921), (-0.958, -0.969, -0.951)
    estimate = estimate_of([ours - theirs for ours, theirs in zip(arm, base, strict=True)])
    assert (estimate.low, estimate.high) == pytest.approx((-0.075343, -0.017991), abs=1e-6)


ROWS = ((-0.912, -0.905, -0.921), (-0.908, -0.899, -0.930), (-0.900, -0.911, -0.915), (-0.958, -0.969, -0.951))
CELLS = [(str(arm), block, value) for arm, row in enumerate(ROWS) for block, value in enumerate(row)]


def test_the_pooled_spread_of_the_randomised_block_example() -> None:
    pooled = stats.pooled_spread(CELLS)
    assert pooled is not None
    assert pooled.mse == pytest.approx(1.170277777778e-4, rel=1e-11)
    assert pooled.df == 6
    estimate = paired_block_t([ours - theirs for ours, theirs in zip(ROWS[3], ROWS[0], strict=True)], 0.05, pooled)
    assert estimate is not None
    assert estimate.half_width == pytest.approx(0.017163740676, abs=1e-12)
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((-0.046667, -0.063830, -0.029503), abs=1e-6)
    # The p of the same interval: at its own end it is the alpha that made it.
    assert stats.p_below(estimate, estimate.high or 0) == pytest.approx(0.05, abs=1e-9)


def test_a_missing_boot_takes_a_degree_of_freedom_and_a_shift_of_a_block_none() -> None:
    whole = stats.pooled_spread(CELLS)
    assert whole is not None
    shifted = stats.pooled_spread([(arm, block, value + block) for arm, block, value in CELLS])
    assert shifted is not None
    assert shifted.mse == pytest.approx(whole.mse, rel=1e-9)
    assert shifted.df == 6
    less = stats.pooled_spread(CELLS[:-1])
    assert less is not None
    assert less.df == 5
    assert stats.pooled_spread([]) is None
    assert stats.pooled_spread(CELLS[:3]) is None


def test_a_pooled_spread_gives_one_block_no_interval() -> None:
    one = paired_block_t([-0.05], 0.05, stats.Pooled(1e-4, 6))
    assert one == Estimate(1, -0.05)


@pytest.mark.parametrize(
    ("alpha", "low", "high"),
    [(0.025, -0.080715023634, -0.018484976366), (0.05, -0.075472604539, -0.023727395461)],
)
def test_the_t_confidence_sequence_has_its_reference(alpha: float, low: float, high: float) -> None:
    found = anytime(estimate_of(DIFFERENCES), alpha)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)


def test_an_anytime_interval_is_wider_than_the_one_of_a_declared_look_and_may_not_exist() -> None:
    plain, wide = estimate_of(DIFFERENCES), anytime(estimate_of(DIFFERENCES))
    assert wide is not None
    assert (wide.half_width or 0) > (plain.half_width or math.inf)
    two = anytime(estimate_of(DIFFERENCES[:2]), 0.005)
    assert two is not None
    assert two.half_width is None  # q ≥ k
    assert anytime(None) is None
    pooled = paired_block_t(DIFFERENCES, 0.05, stats.Pooled(1e-4, 12))
    assert (anytime(pooled) or plain).half_width is None


def test_whether_a_run_may_stop_early_is_said_and_decides_nothing() -> None:
    line = math.log(0.98)
    estimate = estimate_of(DIFFERENCES)
    clear = MeasureFinding("ttft", "gain", "no worse", estimate, line, 0.05)
    (said,) = anytime_lines([clear])
    assert said.startswith("may I stop early? Valid after any number of blocks: TTFT −4.8 % [−7.3 %, −2.3 %]: clear of")
    close = MeasureFinding("tpot", "gain", "no worse", estimate, math.log(0.97), 0.05)
    assert [may_stop(finding) for finding in (clear, close)] == [True, False]
    (said,) = anytime_lines([clear, close])
    assert "not clear of the lines yet (decides nothing)" in said
    assert list(anytime_lines([open_at(-0.1)])) == []


@pytest.mark.parametrize(("df", "factor"), [(2, 2.12), (4, 1.56), (9, 1.29)])
def test_the_upper_limit_of_an_observed_spread(df: int, factor: float) -> None:
    assert stats.sd_upper(1.0, df) == pytest.approx(factor, abs=5e-3)
    assert stats.sd_upper(0.02, df) == pytest.approx(0.02 * stats.sd_upper(1.0, df))


def test_no_block_gives_nothing_and_one_block_no_interval() -> None:
    assert paired_block_t([]) is None
    one = estimate_of([-0.05])
    assert (one.mean, one.half_width, one.low, one.high) == (-0.05, None, None, None)
    assert stats.zone(one, math.log(0.98)) == "open"
    assert stats.no_worse(one, 0.05) == "not shown"
    assert stats.direction(one, math.log(0.98)) == "open"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.06, -0.03, "gain"), (-0.01, 0.01, "no gain"), (-0.03, -0.01, "open"), (0.02, 0.04, "no gain")],
)
def test_zones_need_the_whole_interval_on_one_side_of_the_line(low: float, high: float, expected: str) -> None:
    estimate = Estimate(5, (low + high) / 2, 0.01, (high - low) / 2)
    assert stats.zone(estimate, math.log(0.98)) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(-0.01, 0.04, "no worse"), (0.05, 0.07, "worse"), (0.04, 0.06, "not shown")]
)
def test_non_inferiority_against_a_margin_of_five_per_cent(low: float, high: float, expected: str) -> None:
    assert stats.no_worse(Estimate(5, (low + high) / 2, 0.01, (high - low) / 2), 0.05) == expected


@pytest.mark.parametrize(
    ("relative", "absolute_ms", "geomean_ms", "expected"),
    [
        (0.02, 0.0, 100.0, math.log(0.98)),
        (0.02, 5.0, 1000.0, math.log(0.98)),  # 5 ms of 1 s are half a per cent: the relative line is stricter
        (0.02, 5.0, 100.0, math.log(0.95)),
        (0.02, 5.0, 5.0, -math.inf),  # no gain can be 5 ms
        (0.02, 5.0, None, math.log(0.98)),
        (0.0, 0.0, 100.0, 0.0),
    ],
)
def test_material_line_is_the_stricter_condition(
    relative: float, absolute_ms: float, geomean_ms: float | None, expected: float
) -> None:
    assert stats.material_line(relative, absolute_ms, geomean_ms) == pytest.approx(expected)


def test_nothing_is_material_against_a_line_of_minus_infinity() -> None:
    assert stats.zone(Estimate(5, -2.0, 0.01, 0.01), -math.inf) == "no gain"
    assert stats.direction(Estimate(5, 2.0, 0.01, 0.01), -math.inf) == "open"


@pytest.mark.parametrize(("errors", "expected"), [(0, 0.009936081945), (2, 0.020836230527)])
def test_clopper_pearson_upper_bound_of_300(errors: int, expected: float) -> None:
    assert stats.binomial_upper(errors, 300) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("trials", "expected"), [(336, 0.008876), (14, 0.192636)])
def test_zero_events_still_have_an_upper_bound(trials: int, expected: float) -> None:
    assert stats.binomial_upper(0, trials) == pytest.approx(expected, abs=1e-6)


def test_clopper_pearson_bounds_mirror_each_other() -> None:
    assert stats.binomial_lower(0, 300) == 0.0
    assert stats.binomial_upper(300, 300) == 1.0
    assert stats.binomial_lower(7, 300) == pytest.approx(1 - stats.binomial_upper(293, 300), abs=1e-12)


@pytest.mark.parametrize(("name", "needed"), [("p90", 36), ("p95", 72), ("p99", 368)])
def test_a_quantile_has_a_distribution_free_interval_from_this_many_values(name: str, needed: int) -> None:
    share = int(name[1:]) / 100
    assert QUANTILE_NEEDS[name] == needed
    # The largest of n values lies below the quantile with probability shareⁿ: that tail may hold 2.5 %.
    assert [share**n <= 0.025 for n in (needed - 1, needed)] == [False, True]


@pytest.mark.parametrize(
    ("effect", "material", "blocks", "power"),
    [
        (0.03, 0.0, 6, 0.8697),
        (0.05, 0.0, 4, 0.9503),
        (0.10, 0.0, 3, 0.9977),
        (0.05, 0.02, 6, 0.8812),
        (0.10, 0.02, 3, 0.9819),
        (0.0, 0.02, 10, 0.8201),  # to reject an arm that does nothing
    ],
)
def test_required_blocks_at_an_sd_of_2_3_per_cent(effect: float, material: float, blocks: int, power: float) -> None:
    distance = abs(math.log1p(-material) - math.log1p(-effect))
    assert stats.required_blocks(distance, 0.023) == blocks
    assert stats.power(blocks, distance, 0.023) == pytest.approx(power, abs=5e-5)


@pytest.mark.parametrize(
    ("sd", "material_0", "material_2", "material_3"),
    [
        (0.0118, (3, 3, 2), (10, 3, 2), (4, 2)),
        (0.0170, (4, 3, 2), (19, 4, 3), (6, 3)),
        (0.0232, (6, 4, 3), (34, 6, 3), (10, 3)),
        (0.0298, (8, 4, 3), (54, 8, 3), (15, 3)),
        (0.0435, (15, 7, 3), (None, 14, 4), (29, 4)),
    ],
)
def test_blocks_needed_for_three_five_and_ten_per_cent(
    sd: float, material_0: tuple[int, ...], material_2: tuple[int | None, ...], material_3: tuple[int, ...]
) -> None:
    def needed(material: float, *effects: float) -> tuple[int | None, ...]:
        line = math.log1p(-material)
        return tuple(stats.required_blocks(line - math.log1p(-effect), sd) for effect in effects)

    assert needed(0.0, 0.03, 0.05, 0.10) == material_0
    assert needed(0.02, 0.03, 0.05, 0.10) == material_2
    assert needed(0.03, 0.05, 0.10) == material_3


# Adopt and reject in per cent after 2, 3, 5, 7 and 10 blocks; 40,000 simulated runs a cell, material 2 %, sd 2.3 %.
ZONES = [
    (0.0, (0.7, 0.2, 0.05, 0, 0), (16, 28, 49, 65, 82)),
    (-0.02, (4.7, 5.0, 5.1, 5.1, 5.0), (5.0, 5.0, 5.1, 4.8, 4.9)),
    (-0.03, (9.7, 14, 21, 28, 37), (2, 1.3, 0.6, 0.3, 0.2)),
    (-0.05, (23, 46, 80, 93, 99), (0.2, 0, 0, 0, 0)),
    (-0.10, (59, 98, 100, 100, 100), (0, 0, 0, 0, 0)),
    (0.03, (0, 0, 0, 0, 0), (36, 76, 99, 100, 100)),
    (0.10, (0, 0, 0, 0, 0), (73, 100, 100, 100, 100)),
]


@pytest.mark.parametrize(("effect", "adopt", "reject"), ZONES)
def test_the_noncentral_t_gives_the_simulated_chance_of_each_zone(
    effect: float, adopt: tuple[float, ...], reject: tuple[float, ...]
) -> None:
    distance = math.log(0.98) - math.log1p(effect)
    for expected, sign in ((adopt, 1), (reject, -1)):
        found = [100 * stats.power(blocks, sign * distance, 0.023) for blocks in (2, 3, 5, 7, 10)]
        assert found == pytest.approx(expected, abs=1.0)


def test_a_plan_of_too_many_blocks_is_none() -> None:
    assert stats.required_blocks(0.001, 0.05) is None
    assert stats.required_blocks(0.01, 0.0) == 2
    assert stats.power(1, 0.1, 0.01) == 0.0


def open_at(mean: float, blocks: int = 1, sd: float | None = None) -> MeasureFinding:
    half_width = None if sd is None else 2 * sd
    estimate = Estimate(blocks, mean, sd, half_width)
    return MeasureFinding("ttft", "open", "not shown", estimate, math.log(0.98), 0.05)


def test_one_boot_per_arm_is_told_in_the_words_of_the_reference() -> None:
    assert one_boot_statement(open_at(math.log1p(-0.036)), "v3_spec3", 0.05) == (
        "n=1: v3_spec3 TTFT −3.6 % observed, descriptive only. One boot per arm: no between-boot variance known. "
        "Under an assumed boot sd of 1.5 % two identical boots differ at least this much 12 % of the time. "
        "To decide a 5 % effect against a 2 % line: 6 blocks."
    )
    assert planned_effect(math.log(0.98)) == pytest.approx(0.05)
    assert blocks_for_measure(open_at(0.0), 0.05) == 6


@pytest.mark.parametrize(("change", "often"), [(0.02, 0.41), (0.03, 0.22), (0.04, 0.10)])
def test_how_often_identical_boots_differ(change: float, often: float) -> None:
    """The reference counts them in a simulation whose block differences scatter by 2.44 %, and calls that 2.3 %."""
    assert stats.chance_of_difference(change, 0.0244) == pytest.approx(often, abs=0.005)
    assert stats.chance_of_difference(change, ASSUMED_BLOCK_SD) == pytest.approx(often, abs=0.025)


def test_the_largest_difference_of_the_article_is_an_ordinary_one() -> None:
    assert [how_often(change) for change in (-0.036, -0.024, -0.022)] == ["12 %", "30 %", "34 %"]
    assert how_often(-0.2) == "less than 1 %"


def test_chance_of_a_difference_falls_with_its_size() -> None:
    assert stats.chance_of_difference(0.0, ASSUMED_BLOCK_SD) == pytest.approx(1.0)
    chances = [stats.chance_of_difference(change, ASSUMED_BLOCK_SD) for change in (0.02, -0.03, 0.04)]
    assert chances == sorted(chances, reverse=True)


def test_settle_multiplies_blocks_by_the_hours_of_a_block() -> None:
    found = settle([open_at(-0.02)], [], blocks=1, hours_per_block=5 / 3, alpha=0.05)
    assert found is not None
    assert (found.blocks, found.hours) == (6, 10.0)


def test_settle_asks_for_more_than_there_was() -> None:
    found = settle([open_at(-0.02, 5, 0.001)], [], blocks=5, hours_per_block=1, alpha=0.05)
    assert found is not None
    assert found.blocks == 6


def test_nothing_settles_what_more_blocks_cannot() -> None:
    decided = MeasureFinding("ttft", "gain", "no worse", Estimate(5, -0.1, 0.01, 0.01), math.log(0.98), 0.05)
    assert settle([decided], [], blocks=5, hours_per_block=1, alpha=0.05) is None
    assert settle([open_at(-0.02, 5, 0.5)], [], blocks=5, hours_per_block=1, alpha=0.05) is None
    hopeless = GuardFinding("error_rate", "deciding", "not shown", 0.01)
    assert settle([decided], [hopeless], blocks=5, hours_per_block=1, alpha=0.05) is None


def test_type_7_quantiles_are_the_ones_that_polars_takes() -> None:
    import polars as pl

    values = pl.Series([number / 10 for number in range(1, 101)])
    found = [values.quantile(share, "linear") for share in (0.5, 0.95, 0.99)]
    assert found == pytest.approx([5.05, 9.505, 9.901])
