"""What a report shows beside the verdicts: cached tokens by their sources, the sweep, throughput, a queue at c = 8."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic_run import Effect, Synthetic, with_windows
from test_analysis_report import arm_of, judged, squeeze, words

from analysis.batch_caps import batch_cap, queue_note
from analysis.cached import share_by_counters, share_by_windows
from analysis.described import sweep_table
from analysis.stats import Estimate
from analysis.sweep import SweepPoint
from profiles.records import Outcome
from profiles.runs import BootFacts, WindowFacts
from profiles.units import SECOND_NS


def with_counters(facts: BootFacts, cached: int, void: str | None = None) -> BootFacts:
    counters = {"vllm:prefix_cache_hits_total": float(cached), "vllm:prefix_cache_queries_total": 1000.0}
    return with_windows(facts, "observed", counters=counters, counters_void=void)


def counted(arm_cached: int, base_cached: int, changes: tuple[str, ...] = (), **more: Any) -> Synthetic:
    """A run whose engines say nothing in their usage, only by their counters."""

    def count(facts: BootFacts) -> BootFacts:
        return with_counters(facts, arm_cached if facts.arm == "v1" else base_cached)

    return Synthetic({"v1": Effect(ttft=-0.2, changes=changes)}, mode="observed", edit_boot=count, **more)


def test_cached_tokens_come_from_the_counters_where_usage_lacks_them(tmp_path: Path) -> None:
    document, result = judged(tmp_path, counted(400, 100))
    arm = arm_of(document, "v1")
    assert arm["verdict"] == "inconclusive"
    assert "cached tokens differ without being declared (40.0 % of the prompt against 10.0 %)" in arm["reasons"][0]
    assert (arm["cached_share"], arm["cached_source"]) == ({"arm": 0.4, "baseline": 0.1}, "counters")
    assert "cached prompt tokens 40.0 %, baseline 10.0 %, by the engine's counters" in squeeze(result.stdout)


def test_a_declared_difference_by_the_counters_is_only_shown(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, counted(400, 100, changes=("prefix_cache",)))
    assert words(document) == {"v1": "adopt"}


def test_an_engine_that_counts_no_hit_has_none(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, counted(0, 0))
    assert arm_of(document, "v1")["cached_share"] == {"arm": 0.0, "baseline": 0.0}
    assert words(document) == {"v1": "adopt"}


def test_usage_of_both_sides_goes_before_the_counters(tmp_path: Path) -> None:
    run = counted(400, 100)
    run.arms["v1"], run.baseline = Effect(ttft=-0.2, cached=200), Effect(cached=200)
    arm = arm_of(judged(tmp_path, run)[0], "v1")
    assert (arm["cached_share"], arm["cached_source"]) == ({"arm": 0.2, "baseline": 0.2}, "usage")


def test_counters_speak_where_only_one_side_has_usage(tmp_path: Path) -> None:
    """Without them the baseline would count as 0, as vLLM leaves the field out there."""
    run = counted(200, 200)
    run.arms["v1"] = Effect(ttft=-0.2, cached=200)
    arm = arm_of(judged(tmp_path, run)[0], "v1")
    assert (arm["cached_share"], arm["cached_source"]) == ({"arm": 0.2, "baseline": 0.2}, "counters")


def test_void_counters_leave_it_unknown_and_the_report_says_so(tmp_path: Path) -> None:
    run = counted(0, 0)
    run.edit_boot = lambda facts: with_counters(facts, 400, void="the engine restarted inside the window")
    document, result = judged(tmp_path, run)
    assert arm_of(document, "v1")["cached_share"] is None
    assert "no engine tells them, so nobody knows whether arm and baseline agree" in squeeze(result.stdout)


def window(**changes: Any) -> WindowFacts:
    plain: dict[str, Any] = {
        "name": "observed",
        "kind": "observed",
        "c": 0,
        "deciding": True,
        "started_ns": 0,
        "ended_ns": 1,
    }
    return WindowFacts(requests=1, **(plain | changes))


def test_shares_are_pooled_over_windows_and_unknown_where_one_is() -> None:
    told = [window(cached_tokens=10, prompt_tokens=100), window(cached_tokens=80, prompt_tokens=200)]
    assert share_by_windows(told) == pytest.approx(0.3)
    assert share_by_windows([*told, window(prompt_tokens=100)]) is None
    assert share_by_windows([]) is None
    hits = [window(counters={"sglang:cached_tokens_total": n, "sglang:prompt_tokens_total": 100.0}) for n in (10, 40)]
    assert share_by_counters(hits) == pytest.approx(0.25)
    assert share_by_counters([*hits, window(counters=None)]) is None
    assert share_by_counters([*hits, window(counters={"vllm:generation_tokens_total": 5.0})]) is None
    off = window(counters={"vllm:prefix_cache_hits_total": 0.0, "vllm:prefix_cache_queries_total": 0.0})
    assert share_by_counters([off]) == 0.0  # its prefix cache is off
    assert share_by_counters([]) is None


EXACT: dict[str, Any] = {"boot_sd": 0.0, "noise_sd": 0.0}


def test_the_sweep_shows_where_an_arm_begins_to_hurt(tmp_path: Path) -> None:
    effect = Effect(ttft={"chat": -0.2}, tpot=0.25, ttft_at={1: 0.0, 2: 0.5})
    document, result = judged(tmp_path, Synthetic({"v1": effect}, sweep=(1, 2), **EXACT))
    points = arm_of(document, "v1")["sweep"]
    found = {(point["class"], point["c"], point["measure"]): point["change"] for point in points}
    mix = math.exp(math.log(0.8) / 4)
    expected: dict[tuple[str | None, int, str], Any] = {
        (None, 1, "ttft"): pytest.approx(mix - 1),
        (None, 2, "ttft"): pytest.approx(1.5 * mix - 1),
        ("chat", 1, "ttft"): pytest.approx(-0.2),
        ("chat", 2, "ttft"): pytest.approx(0.2),
        **{(name, 1, "ttft"): pytest.approx(0.0, abs=1e-9) for name in ("json_extraction", "rag_long", "short_qa")},
        **{(name, 2, "ttft"): pytest.approx(0.5) for name in ("json_extraction", "rag_long", "short_qa")},
        **{
            (name, c, "decode_rate"): pytest.approx(-0.2)
            for name in (None, "chat", "json_extraction", "rag_long", "short_qa")
            for c in (1, 2)
        },
    }
    assert found == expected
    assert {point["blocks"] for point in points} == {5}
    lines = result.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("      TTFT "))
    assert lines[at : at + 3] == [
        "      TTFT                  c=1    c=2",
        "        the mix            −5.4  +41.9",
        "        chat              −20.0  +20.0",
    ]
    assert "        short_qa          −20.0  −20.0" in lines  # its decode rate


def test_the_sweep_decides_nothing(tmp_path: Path) -> None:
    hurts = Effect(ttft=-0.2, ttft_at={1: 5.0})
    assert words(judged(tmp_path, Synthetic({"v1": hurts}, sweep=(1,)))[0]) == {"v1": "adopt"}


def test_a_level_of_the_sweep_that_the_client_would_shape_is_left_out(tmp_path: Path) -> None:
    def spoil(facts: BootFacts) -> BootFacts:
        return with_windows(facts, "sweep-c2", invalid="requests were sent 31.0 ms late (p99)")

    document, result = judged(tmp_path, Synthetic({"v1": Effect()}, sweep=(1, 2), edit_boot=spoil))
    assert {point["c"] for point in arm_of(document, "v1")["sweep"]} == {1}
    assert "sweep-c2 in 15 boots, such as " in squeeze(result.stdout)


def test_more_levels_than_fit_go_below_each_other() -> None:
    points = [SweepPoint("a_class_with_a_long_name", c, "ttft", Estimate(1, math.log(1 + c))) for c in range(1, 11)]
    assert sweep_table(points) == [
        "      TTFT                  c=1    c=2    c=3    c=4    c=5    c=6    c=7    c=8",
        "        a_class_with_a_long_name",
        "                         +100.0 +200.0 +300.0 +400.0 +500.0 +600.0 +700.0 +800.0",
        "      TTFT                  c=9   c=10",
        "        a_class_with_a_long_name",
        "                         +900.0  +1000",
    ]


def test_throughput_is_shown_per_class(tmp_path: Path) -> None:
    effect = Effect(tokens={"chat": 0.1, "rag_long": -0.5})
    document, result = judged(tmp_path, Synthetic({"v1": effect}, per_class=True))
    rates = {item["class"]: item for item in arm_of(document, "v1")["throughput"]}
    assert set(rates) == {None, "chat", "json_extraction", "rag_long", "short_qa"}
    expected = math.exp(sum(math.log((6600 + 10 * n) / (6000 + 10 * n)) for n in range(1, 6)) / 5) - 1
    assert rates["chat"]["change"] == pytest.approx(expected)
    assert rates["chat"]["baseline_tokens_per_s"] == pytest.approx(100.5, abs=0.01)
    assert (rates["chat"]["c"], rates["chat"]["limit_ns"], rates["chat"]["blocks"]) == (8, 60 * SECOND_NS, 5)
    assert "        chat                     100 → 110  +10.0 [+9.9, +10.0]" in result.stdout.splitlines()
    # The guard says that of the mix.
    assert "        the mix" not in result.stdout


def test_a_guard_over_classes_alone_takes_them_together(tmp_path: Path) -> None:
    def no_mix(facts: BootFacts) -> BootFacts:
        windows = [window for window in facts.windows if window.name != "closed-c8"]
        return msgspec.structs.replace(facts, windows=windows)

    run = Synthetic({"v1": Effect(tokens={"chat": 0.4})}, per_class=True, edit_boot=no_mix)
    guard = arm_of(judged(tmp_path, run)[0], "v1")["guards"][1]
    assert guard["value"] == pytest.approx(0.1, abs=0.001)


@pytest.mark.parametrize(
    ("argv", "selection", "cap"),
    [
        (["engine"], {}, None),
        (["engine", "--max-num-seqs", "4"], {}, 4),
        (["engine", "--max_num_seqs=4"], {}, 4),
        (["engine", "--max-num-seqs", "4", "--max-num-seqs", "6"], {}, 6),
        (["bash", "-c", "vllm serve m --max-num-seqs 2"], {}, 2),
        (["sglang", "--max-running-requests", "3"], {}, 3),
        (["llama-server", "-np", "1"], {}, 1),
        (["llama-server", "--parallel", "-1"], {}, None),
        (["engine", "--data-parallel-size", "2"], {}, None),
        (["engine", "--max-num-seqs", "64"], {"config": {"max_num_seqs": "16"}}, 16),
        (["engine"], {"arguments": {"max_num_seqs": "5"}}, 5),
        (["llama-server"], {"slots": 4}, 4),
        (["engine"], {"config": {"max_num_seqs": "None"}}, None),
    ],
)
def test_how_many_requests_an_arm_runs_at_once(argv: list[str], selection: dict[str, Any], cap: int | None) -> None:
    facts = BootFacts(arm="v1", block=1, slot=1, status="done", argv=[], wall_ns=0, mono_ns=0, selection=selection)
    assert batch_cap(argv, [facts]) == cap


def test_only_levels_above_the_cap_measure_a_queue() -> None:
    windows = [{"c": c} for c in (0, 1, 4, 8, 6, 8)]
    assert queue_note(4, windows) == "runs at most 4 requests at once: c = 6, 8 measures its queue"
    assert queue_note(8, windows) is None
    assert queue_note(None, windows) is None


def test_the_report_says_that_c_8_measures_a_queue(tmp_path: Path) -> None:
    capped = Effect(selection={"engine": "vllm", "config": {"max_num_seqs": "4"}})
    document, result = judged(tmp_path, Synthetic({"v1": capped, "v2": Effect()}, baseline=capped))
    assert [arm_of(document, name)["batch_cap"] for name in ("v1", "v2")] == [4, None]
    assert arm_of(document, "v1")["queue"] == "runs at most 4 requests at once: c = 8 measures its queue"
    assert arm_of(document, "v2")["queue"] is None
    assert "the baseline v0 runs at most 4 requests at once: c = 8 measures its queue" in document["warnings"]
    assert "- runs at most 4 requests at once: c = 8 measures its queue" in squeeze(result.stdout)


def test_one_block_of_a_sweep_has_a_change_and_no_interval(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, sweep=(1,), blocks=1))
    for point in arm_of(document, "v1")["sweep"]:
        assert (point["low"], point["high"], point["blocks"]) == (None, None, 1)


def test_a_sweep_without_a_value_has_no_point(tmp_path: Path) -> None:
    def short(arm: str, block: int, outcome: Outcome) -> Outcome:
        response = msgspec.structs.replace(outcome.response, output_tokens=3)
        return msgspec.structs.replace(outcome, response=response) if outcome.window == "sweep-c1" else outcome

    document, _ = judged(tmp_path, Synthetic({"v1": Effect()}, sweep=(1,), edit_outcome=short))
    assert {point["measure"] for point in arm_of(document, "v1")["sweep"]} == {"ttft"}
