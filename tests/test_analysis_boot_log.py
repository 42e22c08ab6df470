"""Boot logs in a report: what an arm chose, the size of the KV cache, kernels compiled in a window; acceptance."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic_run import GUARDS, Effect, Synthetic
from test_analysis_report import arm_of, judged, squeeze

from analysis.acceptance import acceptance_by_class, acceptance_by_window
from analysis.selection import differences, shows_no_difference
from profiles.records import OK, Outcome, ResponseFacts
from profiles.runs import Boot, BootFacts, LogFinding, WindowFacts


def chose(backend: str, scheduling: bool, **more: Any) -> dict[str, Any]:
    return {"engine": "vllm", "attention_backends": [backend], "async_scheduling": scheduling, **more}


def test_an_arm_that_names_what_was_selected_anyway_changes_nothing(tmp_path: Path) -> None:
    run = Synthetic(
        {
            "v1": Effect(selection=chose("FLASHINFER", True)),
            "v2": Effect(selection=chose("FLASHINFER", False)),
        },
        baseline=Effect(selection=chose("FLASHINFER", True)),
    )
    document, result = judged(tmp_path, run)
    assert [arm_of(document, name)["boot_log"]["changes_nothing"] for name in ("v1", "v2")] == [True, False]
    assert [arm_of(document, name)["boot_log"]["same_as_baseline"] for name in ("v1", "v2")] == [True, False]
    text = squeeze(result.stdout)
    assert "changes nothing the boot log shows against v0: same backend, same scheduling" in text
    assert arm_of(document, "v2")["boot_log"]["notes"] == ["async scheduling: off, v1 on"]


def test_a_step_back_to_the_baseline_is_seen(tmp_path: Path) -> None:
    run = Synthetic(
        {"v1": Effect(selection=chose("FLASHINFER", False)), "v2": Effect(selection=chose("FLASHINFER", True))},
        baseline=Effect(selection=chose("FLASHINFER", True)),
    )
    document, result = judged(tmp_path, run)
    log = arm_of(document, "v2")["boot_log"]
    assert (log["changes_nothing"], log["same_as_baseline"]) == (False, True)
    assert "nothing in the boot log tells it from the baseline v0" in squeeze(result.stdout)


def facts(number: int = 1, **changed: Any) -> BootFacts:
    plain: dict[str, Any] = {"arm": "v1", "slot": 1, "status": "done", "argv": [], "wall_ns": 0, "mono_ns": 0}
    return BootFacts(block=number, **(plain | changed))


def configured(*configs: Mapping[str, str]) -> list[BootFacts]:
    return [facts(number, selection=chose("A", True, config=dict(config))) for number, config in enumerate(configs, 1)]


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ({"max_num_seqs": "8"}, {"max_num_seqs": "8"}, True),
        ({"max_num_seqs": "8"}, {"max_num_seqs": "4"}, False),
        ({"port": "8000", "host": "'0.0.0.0'"}, {"port": "9000", "host": "'127.0.0.1'"}, True),
        ({"download_dir": "'/srv/a/cache'"}, {"download_dir": "'/srv/b/cache'"}, True),
        ({"cache": "{'dir': '/x/ab12ab12ab12/c'}"}, {"cache": "{'dir': '/y/cd34cd34cd34/c'}"}, True),
        ({"model": "'/srv/fp8/qwen'"}, {"model": "'/srv/bf16/qwen'"}, False),
        ({"a": "1", "new": "2"}, {"a": "1"}, False),
    ],
)
def test_a_configuration_is_compared_without_places(ours: dict[str, str], theirs: dict[str, str], same: bool) -> None:
    sides = configured(ours, ours), configured(theirs)
    assert shows_no_difference(*sides, {}, {}) is same
    assert bool(differences(*sides, "v0")) is not same


def test_what_differs_between_boots_of_one_arm_tells_nothing() -> None:
    ours = configured({"k": "2", "seed": "1"}, {"k": "2", "seed": "2"})
    assert shows_no_difference(ours, configured({"k": "2", "seed": "3"}), {}, {})
    assert not shows_no_difference(ours, configured({"k": "3", "seed": "3"}), {}, {})


def test_another_environment_is_not_nothing_and_a_silent_log_is_not_either() -> None:
    same = configured({"k": "2"})
    assert not shows_no_difference(same, same, {"VLLM_FAST": "1"}, {})
    silent = [facts(selection={"engine": "vllm", "version": "1"})]
    assert not shows_no_difference(silent, silent, {}, {})
    assert not shows_no_difference([], [], {}, {})


def test_the_choices_of_a_step_are_named() -> None:
    before = [facts(selection=chose("FLASH_ATTN", True, graphs={"FULL": 51}, layers_offloaded=[33, 33]))]
    after = [facts(selection=chose("FLASHINFER", False, graphs={"PIECEWISE": 49}, layers_offloaded=[20, 33]))]
    assert differences(after, before, "v0") == [
        "attention backends: FLASHINFER, v0 FLASH_ATTN",
        "async scheduling: off, v0 on",
        "graphs: PIECEWISE 49, v0 FULL 51",
        "layers offloaded: 20 of 33, v0 33 of 33",
    ]


def edited(change: Callable[[BootFacts], dict[str, Any]]) -> Callable[[BootFacts], BootFacts]:
    return lambda boot: msgspec.structs.replace(boot, **change(boot))


def judged_arm(tmp_path: Path, **options: Any) -> dict[str, Any]:
    run = Synthetic({"v1": Effect(ttft=-0.2, **options.pop("effect", {}))}, **options)
    return arm_of(judged(tmp_path, run)[0], "v1")


def test_a_kv_cache_of_another_size_blocks_adopt_unless_declared(tmp_path: Path) -> None:
    baseline = Effect(kv_tokens=874_048)
    arm = judged_arm(tmp_path, baseline=baseline, effect={"kv_tokens": 843_664})
    assert arm["verdict"] == "inconclusive"
    blocker = "its KV cache holds 843,664 tokens, that of v0 874,048 (−3.5 %, tolerance 2 %), which is not declared"
    assert blocker in arm["reasons"][0]
    assert arm["boot_log"]["blockers"] == [f'{blocker}; declare changes = ["kv_cache"] if the arm means to do that']
    declared = judged_arm(tmp_path / "b", baseline=baseline, effect={"kv_tokens": 843_664, "changes": ("kv_cache",)})
    assert declared["verdict"] == "adopt"
    wider = GUARDS + "[boot_log]\nkv_tolerance = 0.05\n"
    assert (
        judged_arm(tmp_path / "c", baseline=baseline, effect={"kv_tokens": 843_664}, rule=wider)["verdict"] == "adopt"
    )
    assert judged_arm(tmp_path / "d", baseline=baseline, effect={"kv_tokens": 870_000})["verdict"] == "adopt"


def test_a_kv_cache_that_differs_between_the_boots_of_an_arm_blocks_adopt(tmp_path: Path) -> None:
    """Declared or not: boots of one configuration should hold as much."""
    edit = edited(lambda boot: {"kv_tokens": 700_000 + 50_000 * (boot.block == 2 and boot.arm == "v1")})
    arm = judged_arm(tmp_path, edit_boot=edit, effect={"changes": ("kv_cache",)})
    assert arm["verdict"] == "inconclusive"
    assert "the KV cache of v1 differs between its boots, 700,000 to 750,000 tokens" in arm["reasons"][0]


def test_what_the_kv_cache_shows_is_printed_whatever_the_verdict(tmp_path: Path) -> None:
    """An arm that gains nothing, or has too few blocks, is not asked what blocks its adoption."""
    apart = "the KV cache of v1 differs between its boots, 92,128 to 121,568 tokens (tolerance 2 %)"
    for blocks in (2, 5):
        edit = edited(lambda boot: {"kv_tokens": {1: 121_568, 2: 92_128}.get(boot.block, 118_848)})
        run = Synthetic({"v1": Effect(ttft=0.0)}, edit_boot=edit, blocks=blocks)
        assert squeeze(judged(tmp_path / str(blocks), run)[1].stdout).count(apart) == 1
    document, result = judged(tmp_path / "adopt", Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=edit))
    assert "adopt is blocked: the KV cache of v1 differs" in arm_of(document, "v1")["reasons"][0]
    assert "boot log: the KV cache of v1 differs" not in squeeze(result.stdout)  # it stands in the reason


@pytest.mark.parametrize(("kv", "nothing"), [(131_072, True), (130_000, True), (92_128, False)])
def test_a_kv_cache_of_another_size_is_a_difference(tmp_path: Path, kv: int, nothing: bool) -> None:
    chosen = {"attention_backends": ["FLASH_ATTN"]}

    def edit(boot: BootFacts) -> dict[str, Any]:
        odd = (boot.arm, boot.block) == ("v1", 2)
        return {"selection": chosen, "kv_tokens": kv if odd else 131_072}

    for number, changes in enumerate(((), ("kv_cache",))):
        run = Synthetic({"v1": Effect(ttft=0.0, changes=changes)}, edit_boot=edited(edit))
        document, result = judged(tmp_path / str(number), run)
        log = arm_of(document, "v1")["boot_log"]
        assert (log["changes_nothing"], log["same_as_baseline"]) == (nothing, nothing)
        assert ("changes nothing the boot log shows" in squeeze(result.stdout)) is nothing


def test_a_log_that_does_not_tell_the_size_blocks_nothing(tmp_path: Path) -> None:
    assert judged_arm(tmp_path, baseline=Effect(kv_tokens=5), effect={"kv_tokens": None})["verdict"] == "adopt"


def jit(window: str | None) -> list[LogFinding]:
    kernel = "rejection_greedy_sample_kernel"
    return [
        LogFinding(
            id="V16", severity="runtime-slow", signature="jit", while_serving=True, window=window, fields=[kernel]
        )
    ]


def test_a_kernel_compiled_in_the_baselines_windows_blocks_adopt(tmp_path: Path) -> None:
    slow = edited(lambda boot: {"findings": jit("closed-c1") if boot.arm.startswith("v0") else []})
    arm = judged_arm(tmp_path, edit_boot=slow)
    assert arm["verdict"] == "inconclusive"
    assert "the baseline compiled inside a deciding window in 100 % of its boots, the arm in 0 %" in arm["reasons"][0]


def test_a_kernel_compiled_in_the_arms_windows_is_noted_and_blocks_nothing(tmp_path: Path) -> None:
    slow = edited(lambda boot: {"findings": jit("closed-c1") if (boot.arm, boot.block) == ("v1", 2) else []})
    arm = judged_arm(tmp_path, edit_boot=slow)
    assert arm["verdict"] == "adopt"
    note = "compiled while it served, in closed-c1 of 1 of 5 boots: rejection_greedy_sample_kernel"
    assert arm["boot_log"]["notes"] == [note]


@pytest.mark.parametrize("window", ["warmup", None])
def test_a_kernel_compiled_in_the_warm_up_is_what_the_warm_up_is_for(tmp_path: Path, window: str | None) -> None:
    slow = edited(lambda boot: {"findings": jit(window)})
    log = judged_arm(tmp_path, edit_boot=slow)["boot_log"]
    assert (log["notes"], log["blockers"], log["noted"]) == ([], [], [])


def test_mixed_compile_caches_are_named(tmp_path: Path) -> None:
    first_cold = edited(lambda boot: {"compile_cache": "cold" if boot.block == 1 and boot.arm == "v1" else "warm"})
    arm = judged_arm(tmp_path, edit_boot=first_cold)
    assert arm["verdict"] == "adopt"
    (note,) = arm["boot_log"]["notes"]
    assert note.startswith("the compile cache of its boots was cold in 1 and warm in 4 boots")
    apart = edited(lambda boot: {"compile_cache": "cold" if boot.arm == "v1" else "warm"})
    (note,) = judged_arm(tmp_path / "b", edit_boot=apart)["boot_log"]["notes"]
    assert note.startswith("its compile cache was cold, that of v0 warm")


def test_a_boot_that_downloaded_its_weights_is_named(tmp_path: Path) -> None:
    slow = edited(lambda boot: {"selection": {"download_ns": 10**9 * (boot.block == 1)}})
    (note,) = judged_arm(tmp_path, edit_boot=slow)["boot_log"]["notes"]
    assert note == "weights were downloaded in 1 of 5 boots: their time is the network's"


def test_what_the_allow_list_silences_is_shown(tmp_path: Path) -> None:
    line = LogFinding(id="V06", severity="fallback", signature="setting cudagraph_mode=PIECEWISE")
    rule = GUARDS + '[boot_log]\nallow = [{ signature = "cudagraph_mode", reason = "known here" }]\n'
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2, findings=(line,))}, rule=rule))
    log = arm_of(document, "v1")["boot_log"]
    assert (log["clean"], log["new"]) == (True, [])
    assert log["allowed"] == [{"signature": "setting cudagraph_mode=PIECEWISE", "reason": "known here"}]
    assert "new, allowed by the rule (known here): setting cudagraph_mode=PIECEWISE" in squeeze(result.stdout)


def test_metrics_that_are_not_there_are_said_with_their_reason(tmp_path: Path) -> None:
    """Case L09."""

    def without(boot: BootFacts) -> dict[str, Any]:
        return {
            "windows": [
                msgspec.structs.replace(window, counters_void="no /metrics (HTTP 501)") for window in boot.windows
            ]
        }

    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.2)}, edit_boot=edited(without)))
    assert arm_of(document, "v1")["verdict"] == "adopt"
    assert any("windows: no /metrics (HTTP 501); the verdict stands on" in item for item in document["warnings"])


def window(name: str = "single-code", **changed: Any) -> WindowFacts:
    plain: dict[str, Any] = {
        "name": name,
        "kind": "single",
        "c": 1,
        "deciding": False,
        "workload": "code",
        "started_ns": 0,
        "ended_ns": 1,
        "requests": 1,
    }
    return WindowFacts(**(plain | changed))


def boot(*windows: WindowFacts, outcomes: tuple[Outcome, ...] = ()) -> Boot:
    return Boot(Path(), facts(windows=list(windows)), outcomes)


def counters(engine: str) -> dict[str, float]:
    name = f"{engine}:spec_decode_num"
    return {
        f"{name}_drafts_total": 100.0,
        f"{name}_draft_tokens_total": 200.0,
        f"{name}_accepted_tokens_total": 150.0,
        f'{name}_accepted_tokens_per_pos_total{{position="0"}}': 90.0,
        f'{name}_accepted_tokens_per_pos_total{{position="1"}}': 60.0,
    }


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_acceptance_by_counters_has_length_rate_and_positions(engine: str) -> None:
    found = acceptance_by_class([boot(window(counters=counters(engine))), boot(window(counters=counters(engine)))])
    code = found["code"]
    assert (code.length, code.rate, code.position_rates, code.source) == (2.5, 0.75, (0.9, 0.6), "counters")


def test_acceptance_of_every_window_is_there_too() -> None:
    mix = window("closed-c1", kind="closed", workload=None, counters=counters("vllm"))
    assert acceptance_by_class([boot(mix)]) == {}
    assert acceptance_by_window([boot(mix, window(counters=None))]).keys() == {"closed-c1"}


def test_counters_that_contradict_each_other_are_said() -> None:
    wrong = counters("vllm") | {"vllm:spec_decode_num_accepted_tokens_total": 140.0}
    assert "the positions hold 150 accepted tokens" in str(
        acceptance_by_class([boot(window(counters=wrong))])["code"].problem
    )


def test_acceptance_of_sglang_is_the_mean_of_its_gauge() -> None:
    gauges = ({"sglang:spec_accept_length": 2.0, "sglang:spec_accept_rate": 0.4}, {"sglang:spec_accept_length": 3.0})
    code = acceptance_by_class([boot(window(gauges=found)) for found in gauges])["code"]
    assert (code.length, code.rate, code.position_rates, code.source) == (2.5, 0.4, None, "gauge")


def test_answers_that_tell_of_drafts_give_a_rate() -> None:
    def outcome(drafted: int | None, accepted: int | None) -> Outcome:
        response = ResponseFacts(draft_tokens=drafted, accepted_tokens=accepted)
        return Outcome(
            window="single-code", c=1, index=0, request=0, workload="code", end_ns=1, outcome=OK, response=response
        )

    outcomes = (outcome(46, 39), outcome(None, None), outcome(54, 11))
    code = acceptance_by_class([boot(window(), outcomes=outcomes)])["code"]
    assert (code.length, code.rate, code.source) == (None, 0.5, "answers")
