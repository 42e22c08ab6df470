"""The kept run of examples/ladder-vllm-gpu, vLLM on a real GPU: judged again, and what only such a machine showed."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from kept_run import arm_of, folders_named, judge_again, texts, unpack, verdicts

from profiles.counters import acceptance
from profiles.runs import DONE, FAILED, TELEMETRY, Boot, Run, Telemetry
from replay.bootlog import scan_log
from replay.discards import spoilt
from replay.log_end import last_words, log_end

KNOWN_FOLDERS = {"/srv", "/usr", "/v1", "/inference", "/docs"}  # the last three are routes of vLLM's server
EXAMPLE = Path(__file__).parents[1] / "examples" / "ladder-vllm-gpu"
ARMS = ("v0_ngram2", "v0_ngram2.aa", "v1_flash_attn", "v2_no_prefix_cache", "v3_ngram3", "v4_no_speculation")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return unpack(EXAMPLE, tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def judged(kept: Run) -> Any:
    return judge_again(kept)


def measured(kept: Run) -> list[Boot]:
    return [boot for boot in kept.boots if boot.facts.status == DONE]


def test_the_kept_report_is_what_the_kept_run_gives(judged: Any) -> None:
    told = orjson.loads((EXAMPLE / "report" / "verdict.json").read_bytes())
    assert told["rule_sha256"] == judged["rule_sha256"]
    words = verdicts(judged)
    assert words == verdicts(told)
    assert set(words.values()) == {"inconclusive", "reject"}


def test_a_flag_that_changes_nothing_is_not_adopted_though_its_blocks_agree(judged: Any) -> None:
    arm = arm_of(judged, "v1_flash_attn")
    assert "TTFT gains materially, TPOT is no worse, but adopt is blocked" in arm["reasons"][0]
    assert "so narrow an interval is luck" in arm["reasons"][0]
    assert arm["boot_log"]["changes_nothing"]
    assert "more blocks" in arm["settle_otherwise"]


def test_what_drafts_cost_this_model_is_found(judged: Any) -> None:
    arm = arm_of(judged, "v4_no_speculation")
    tpot = next(item for item in arm["measures"] if item["measure"] == "tpot")
    assert tpot["zone"] == "gain"
    assert arm["boot_log"]["notes"][:2] == ["model runner: V2, v0_ngram2 V1", "async scheduling: on, v0_ngram2 off"]


def test_every_arm_was_booted_three_times_and_the_refused_one_once(kept: Run) -> None:
    assert Counter(boot.facts.arm for boot in measured(kept)) == dict.fromkeys(ARMS, 3)
    (refused,) = (boot for boot in kept.boots if boot.facts.status == FAILED)
    assert (refused.facts.arm, refused.facts.diagnosis, refused.facts.exit_code) == ("v5_async", "died_in_boot", 1)
    said = last_words(log_end(refused.path / "engine.log"))
    assert said.endswith("EAGLE/MTP/Draft Model/NGram GPU/DSpark kind of speculative decoding")


def test_logs_of_a_gpu_give_the_kv_cache_the_compile_cache_and_what_was_selected(kept: Run) -> None:
    """From the logs themselves, by today's table."""
    for boot in measured(kept):
        facts = scan_log(boot.path / "engine.log")
        drafts = boot.facts.arm != "v4_no_speculation"
        assert facts.kv_tokens is not None
        assert 1_900_000 < facts.kv_tokens < 1_930_000
        assert facts.compile_cache == boot.facts.compile_cache
        assert facts.selection["attention_backends"] == ["FLASH_ATTN"]
        assert facts.selection["model_runner"] == ("V1" if drafts else "V2")
        assert facts.selection["async_scheduling"] is not drafts
        assert any("VLLM_WORKER_MULTIPROCESSING_METHOD" in finding.fields for finding in facts.findings)
    cold = [(boot.facts.arm, boot.facts.block) for boot in measured(kept) if boot.facts.compile_cache == "cold"]
    assert sorted(cold) == [("v1_flash_attn", 1), ("v3_ngram3", 1), ("v4_no_speculation", 1)]


def test_every_engine_went_when_it_was_told_with_all_its_workers(kept: Run) -> None:
    for boot in measured(kept):
        facts = boot.facts
        assert (facts.stop, facts.exit_code, facts.diagnosis) == ("term", 0, None)
        assert facts.processes >= 3
        assert facts.gone_ns is not None
        assert facts.stopped_ns is not None
        assert facts.gone_ns - facts.stopped_ns < 5_000_000_000


def test_no_default_condition_finds_fault_with_a_gpu_that_was_well(kept: Run) -> None:
    conditions = ["client_lag_p99_ms > 20", "invalid_window", "thermal_throttle", "foreign_load"]
    for boot in measured(kept):
        lines = (boot.path / TELEMETRY).read_bytes().splitlines()
        samples = [msgspec.json.decode(line, type=Telemetry) for line in lines]
        reason, checked = spoilt(conditions, boot.facts.windows, samples)
        assert reason is None
        assert "nobody else was on a GPU" in checked["foreign_load"]
        assert "GPU 0" in checked["thermal_throttle"]
        assert max(gpu["memory_used_bytes"] for sample in samples for gpu in sample.gpus) > 40 * 1024**3


def test_longer_drafts_are_accepted_less_often_and_bring_more_tokens(kept: Run) -> None:
    found: dict[str, list[Any]] = {}
    for boot in measured(kept):
        counted = acceptance(boot.facts.windows[0].counters or {})
        if counted is not None:
            found.setdefault(boot.facts.arm, []).append(counted)
    assert "v4_no_speculation" not in found
    two, three = found["v0_ngram2"], found["v3_ngram3"]
    assert max(item.rate for item in three) < min(item.rate for item in two)
    assert min(item.length for item in three) > max(item.length for item in two)


def test_no_machine_path_is_kept(kept: Run) -> None:
    files = list(texts(kept, EXAMPLE))
    assert len(files) > 100
    for file, text in files:
        folders = folders_named(text)
        assert folders <= KNOWN_FOLDERS, (file, folders - KNOWN_FOLDERS)
