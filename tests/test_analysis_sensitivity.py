"""How far a verdict leans on the weights: each level alone, by busy time, class mixes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import CLASSES, Effect, Synthetic
from test_analysis_report import arm_of, judged, measure_of, squeeze

from analysis.sensitivity import BUSY_TIME, EQUAL_CLASSES, PROFILE_ARRIVALS, Scenario, met_levels, sensitivity_lines
from analysis.stats import Estimate, Zone
from profiles.records import Outcome
from profiles.units import MILLISECOND_NS, SECOND_NS


def scenarios_of(document: dict[str, Any], measure: str = "ttft") -> dict[str, dict[str, Any]]:
    found = arm_of(document, "v1")["sensitivity"]
    return {item["weights"]: item for item in found if item["measure"] == measure}


def slower(chosen: Callable[[Outcome], bool], factor: float) -> Callable[[str, int, Outcome], Outcome]:
    """TTFT of the arm's chosen requests times this factor."""

    def edit(arm: str, block: int, outcome: Outcome) -> Outcome:
        sent_ns, first_ns = outcome.send_started_ns, outcome.response.first_token_ns
        if arm != "v1" or sent_ns is None or first_ns is None or not chosen(outcome):
            return outcome
        moved_ns = sent_ns + round((first_ns - sent_ns) * factor)
        response = msgspec.structs.replace(outcome.response, first_token_ns=moved_ns, first_byte_ns=moved_ns)
        return msgspec.structs.replace(outcome, response=response)

    return edit


def spend(manifest: dict[str, Any]) -> None:
    manifest["profile"]["time_ns_at"] = {"0": 900, "1": 10, "2": 10, "3": 80}


def test_an_effect_of_all_requests_holds_for_every_weighting(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.10)}, edit_manifest=spend, requests=120)
    document, result = judged(tmp_path, run)
    found = scenarios_of(document)
    assert set(found) == {
        *(f"with all arrivals at c = {c}" for c in (1, 2, 3)),
        BUSY_TIME,
        EQUAL_CLASSES,
        *(f"without {name}" for name in CLASSES),
    }
    for item in found.values():
        assert (item["zone"], item["same"]) == ("gain", True)
        assert item["change"] == pytest.approx(-0.10, abs=0.02)
    assert "weights: TTFT is a gain, TPOT is no gain for every weighting tried (9)" in squeeze(result.stdout)


def test_a_gain_at_one_level_is_told_to_come_from_there(tmp_path: Path) -> None:
    edit = slower(lambda outcome: outcome.c == 1, 0.8)
    document, result = judged(tmp_path, Synthetic({"v1": Effect()}, edit_outcome=edit, requests=150))
    assert measure_of(arm_of(document, "v1"), "ttft")["zone"] == "gain"
    found = scenarios_of(document)
    assert [found[f"with all arrivals at c = {c}"]["zone"] for c in (1, 2, 3)] == ["gain", "no gain", "no gain"]
    text = squeeze(result.stdout)
    assert "TTFT is a gain only because of c = 1: no gain with all arrivals at c = 2 or 3" in text


def test_busy_time_weighs_the_level_at_which_production_spends_its_time(tmp_path: Path) -> None:
    """c = 3 has a tenth of the arrivals and, here, eight tenths of the busy time."""
    edit = slower(lambda outcome: outcome.c == 3, 0.8)
    run = Synthetic({"v1": Effect()}, edit_outcome=edit, edit_manifest=spend, requests=120)
    document, _ = judged(tmp_path, run)
    found = scenarios_of(document)
    assert found[BUSY_TIME]["change"] == pytest.approx(0.8**0.8 - 1, abs=0.01)
    assert measure_of(arm_of(document, "v1"), "ttft")["change"] == pytest.approx(0.8**0.1 - 1, abs=0.01)
    unknown, _ = judged(tmp_path / "unknown", Synthetic({"v1": Effect()}))
    assert BUSY_TIME not in scenarios_of(unknown)


def test_equal_classes_and_a_class_left_out(tmp_path: Path) -> None:
    """Three requests in four are chat; only long RAG becomes faster."""

    def relabel(arm: str, block: int, outcome: Outcome) -> Outcome:
        named = msgspec.structs.replace(outcome, workload="rag_long" if outcome.request % 4 == 2 else "chat")
        return slower(lambda item: item.workload == "rag_long", 0.7)(arm, block, named)

    document, _ = judged(tmp_path, Synthetic({"v1": Effect()}, edit_outcome=relabel, requests=120))
    found = scenarios_of(document)
    assert found[EQUAL_CLASSES]["change"] == pytest.approx(0.7**0.5 - 1, abs=0.01)
    assert found["without chat"]["change"] == pytest.approx(-0.3, abs=0.01)
    assert (found["without rag_long"]["zone"], found["without rag_long"]["same"]) == ("no gain", False)


def test_at_the_recorded_pace_levels_are_those_that_the_requests_met_as_sent(tmp_path: Path) -> None:
    """Requests in pairs: the second of each comes while the first runs, and it alone is faster."""

    def in_pairs(arm: str, block: int, outcome: Outcome) -> Outcome:
        assert outcome.send_started_ns is not None
        back_ns = (10 * SECOND_NS - 50 * MILLISECOND_NS) * (outcome.request % 2)
        instants = {name: getattr(outcome, name) - back_ns for name in ("due_ns", "send_started_ns", "end_ns")}
        response = msgspec.structs.replace(
            outcome.response,
            **{
                name: getattr(outcome.response, name) - back_ns
                for name in ("first_byte_ns", "first_token_ns", "last_token_ns")
            },
        )
        moved = msgspec.structs.replace(outcome, response=response, **instants)
        return slower(lambda item: item.request % 2 == 1, 0.8)(arm, block, moved)

    run = Synthetic({"v1": Effect()}, mode="observed", edit_outcome=in_pairs, requests=80)
    document, _ = judged(tmp_path, run)
    found = scenarios_of(document)
    assert found["with all arrivals at c = 2"]["change"] == pytest.approx(-0.2, abs=0.01)
    assert found["with all arrivals at c = 1"]["change"] == pytest.approx(0.0, abs=0.01)
    # Two thirds and one third of the profile's arrivals at these two levels; half and half were replayed.
    assert found[PROFILE_ARRIVALS]["change"] == pytest.approx(0.8 ** (1 / 3) - 1, abs=0.01)


def test_an_arm_that_piles_up_its_requests_chooses_no_level_of_its_own(tmp_path: Path) -> None:
    def pile_up(arm: str, block: int, outcome: Outcome) -> Outcome:
        longer_ns = 15 * SECOND_NS if arm == "v1" else 0
        return msgspec.structs.replace(outcome, end_ns=outcome.end_ns + longer_ns)

    document, _ = judged(tmp_path, Synthetic({"v1": Effect()}, mode="observed", edit_outcome=pile_up))
    assert not [words for words in scenarios_of(document) if "arrivals" in words]


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [
        ([0, 2, 4, 12], [10, 5, 12, 13], [1, 2, 3, 1]),  # one ends as the last one starts: half-open
        ([4, 0, 2], [12, 10, 5], [3, 1, 2]),  # in any order
        ([0, 0, 0], [5, 5, 5], [1, 2, 3]),
        ([], [], []),
    ],
)
def test_levels_count_the_requests_in_flight(starts: list[int], ends: list[int], expected: list[int]) -> None:
    assert met_levels(starts, ends) == expected


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50)), max_size=30))
def test_levels_agree_with_counting_by_hand(spans: list[tuple[int, int]]) -> None:
    starts, ends = [start for start, _ in spans], [start + length for start, length in spans]
    found = met_levels(starts, ends)
    for index, start in enumerate(starts):
        earlier = [other for other in range(len(starts)) if (starts[other], other) < (start, index)]
        assert found[index] == 1 + sum(ends[other] > start for other in earlier)


def scenario(weights: str, zone: Zone, by_rule: Zone, interval: float | None = 0.01) -> Scenario:
    return Scenario("ttft", weights, Estimate(5, -0.05, 0.01, interval), zone, zone == by_rule, by_rule)


def test_the_sentence_names_what_flips_the_zone_before_what_is_too_thin_to_tell() -> None:
    found = [
        scenario("with all arrivals at c = 1", "gain", "gain"),
        scenario("with all arrivals at c = 2", "open", "gain"),
        scenario("without rag_long", "no gain", "gain"),
    ]
    assert list(sensitivity_lines(found)) == [
        "weights: TTFT is a gain by the rule's weights; no gain without rag_long; open with all arrivals at c = 2"
    ]
    assert list(sensitivity_lines([scenario("without rag_long", "open", "open", None)])) == []


def test_one_block_and_no_pair_give_no_sentence(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect()}, blocks=1))
    assert "weights:" not in result.stdout
    assert {item["low"] for item in arm_of(document, "v1")["sensitivity"]} == {None}
