"""Order and drift: what the place of a boot does to the baseline's boots, and what is said about it."""

from itertools import permutations
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import Effect, Synthetic
from test_analysis_report import arm_of, judged, squeeze

from analysis.order import OrderCheck, boot_places, order_lines, spearman, spearman_p
from profiles.records import Outcome
from profiles.runs import BootFacts
from profiles.units import HOUR_NS


def test_spearman_of_ranks_and_of_ties() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 400]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    # 1 − 6·Σd² / (n(n²−1)) with d = 0, −1, 1, 0, 0
    assert spearman([1, 2, 3, 4, 5], [1, 3, 2, 4, 5]) == pytest.approx(1 - 6 * 2 / 120)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert spearman([1, 2, 3, 4], [5, 6, 6, 7]) == pytest.approx(4.5 / np.sqrt(5 * 4.5))
    assert spearman([1, 2, 3], [7, 7, 7]) is None
    assert spearman([1], [2]) is None


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9, unique=True), st.floats(0.1, 3))
def test_spearman_sees_order_alone(values: list[float], power: float) -> None:
    places = list(range(len(values)))
    stretched = [float(np.sign(value)) * abs(value) ** 3 * power for value in values]
    if len(set(stretched)) == len(values):
        assert spearman(places, stretched) == pytest.approx(spearman(places, values))


@pytest.mark.parametrize(("count", "p"), [(4, 2 / 24), (5, 2 / 120), (6, 2 / 720), (7, 2 / 5040)])
def test_a_perfect_order_has_the_smallest_p_that_so_few_boots_allow(count: int, p: float) -> None:
    assert spearman_p(1.0, count) == pytest.approx(p)
    assert spearman_p(-1.0, count) == pytest.approx(p)
    assert spearman_p(0.0, count) == 1.0


def test_p_is_the_share_of_all_orders_that_are_as_far_from_none() -> None:
    seen = spearman(range(5), (1, 0, 2, 4, 3))
    assert seen is not None
    others = [spearman(range(5), order) or 0.0 for order in permutations(range(5))]
    assert spearman_p(seen, 5) == pytest.approx(np.mean([abs(other) >= abs(seen) - 1e-9 for other in others]))


def test_above_seven_boots_p_is_drawn_with_a_seed() -> None:
    # Tables of critical values for ten pairs: 0.648 at 5 %, 0.794 at 1 %. Two million random orders: 0.0088.
    assert spearman_p(1 - 6 * 58 / 990, 10) == pytest.approx(0.05, abs=0.005)
    assert spearman_p(1 - 6 * 34 / 990, 10) == pytest.approx(0.0088, abs=0.002)
    assert spearman_p(0.5, 12) == spearman_p(-0.5, 12)
    assert 0 < spearman_p(1.0, 20) < 0.001


def test_places_follow_the_clock_and_count_every_boot() -> None:
    run = Synthetic({"v1": Effect()})
    order = [("v1", 1, 1), ("v0", 1, 2), ("v0.aa", 1, 3), ("v0", 2, 1), ("v1", 2, 2)]
    boots = [run.boot_facts(arm, block, slot, Effect()) for arm, block, slot in order]
    assert boot_places(boots) == {("v1", 1): 1, ("v0", 1): 2, ("v0.aa", 1): 3, ("v0", 2): 4, ("v1", 2): 5}
    # Block 2 began before the machine was restarted, its first boot was repeated after that: another monotonic clock.
    again = msgspec.structs.replace(
        boots[3], attempt=2, wall_ns=boots[3].wall_ns + 90 * HOUR_NS, mono_ns=0, spawned_ns=0
    )
    assert boot_places([again, *boots])["v0", 2] == 6
    assert boot_places([again, *boots])["v1", 2] == 5


def test_a_calm_run_says_so_for_every_measure(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect()}))
    assert [(item["measure"], item["boots"]) for item in document["order"]] == [("ttft", 10), ("tpot", 10)]
    for item in document["order"]:
        assert -1 < item["spearman"] < 1
        assert item["p"] > 0.01
        assert abs(item["drift_per_boot"]) < 0.001
    assert "no drift seen: TTFT " in squeeze(result.stdout)
    assert "over 10 boots" in squeeze(result.stdout)


def test_a_machine_that_drifts_is_named_and_the_verdicts_stand(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.10), "v2": Effect()}, blocks=10, drift=0.003, boot_sd=0.003)
    document, result = judged(tmp_path, run)
    for item in document["order"]:
        assert item["p"] < 0.01
        assert item["spearman"] > 0.9
        assert item["drift_per_boot"] == pytest.approx(0.003, abs=0.0004)
        assert item["boots"] == 20
    text = squeeze(result.stdout)
    assert "the machine drifted: TTFT +0.3" in text
    assert "random order inside blocks keeps it out of the differences, but check cooling" in text
    assert {arm["arm"]: arm["verdict"] for arm in document["arms"]} == {"v1": "adopt", "v2": "reject"}


def test_a_request_that_one_boot_lacks_is_no_drift(tmp_path: Path) -> None:
    """The longest requests are missing from the later boots: their mean would fall, no request became faster."""

    def thin(arm: str, block: int, outcome: Outcome) -> Outcome | None:
        return None if block > 3 and outcome.request % 60 == 2 else outcome

    def level(folder: Path, run: Synthetic) -> float:
        document, _ = judged(folder, run)
        found: float = document["order"][0]["drift_per_boot"]
        return found

    whole = level(tmp_path / "whole", Synthetic({"v1": Effect()}))
    less = level(tmp_path / "less", Synthetic({"v1": Effect()}, edit_outcome=thin))
    assert less == pytest.approx(whole, abs=5e-5)


def test_three_boots_have_no_order_and_four_no_verdict_about_it(tmp_path: Path) -> None:
    def without_copy(facts: BootFacts) -> BootFacts | None:
        return None if facts.arm == "v0.aa" else facts

    document, _ = judged(tmp_path / "three", Synthetic({"v1": Effect()}, blocks=3, edit_boot=without_copy))
    assert document["order"][0] == {
        "measure": "ttft",
        "boots": 3,
        "spearman": None,
        "p": None,
        "drift_per_boot": None,
    }
    _, result = judged(tmp_path / "four", Synthetic({"v1": Effect()}, blocks=2))
    assert "too few boots to call a drift: TTFT " in squeeze(result.stdout)
    assert arm_of(document, "v1")["blocks"] == 3


def test_the_lines_part_what_drifted_from_what_did_not() -> None:
    drifted = OrderCheck("ttft", 10, 0.95, 0.0002, 0.004)
    calm = OrderCheck("tpot", 10, -0.12, 0.74, -0.0002)
    assert list(order_lines([drifted, calm])) == [
        "the machine drifted: TTFT +0.40 % per boot, Spearman +0.95 over 10 boots, p = 0.0002; random order inside "
        "blocks keeps it out of the differences, but check cooling",
        "no drift seen: TPOT −0.02 % per boot, Spearman −0.12 over 10 boots",
    ]
    assert list(order_lines([])) == []
