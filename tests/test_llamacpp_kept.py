"""The kept run of examples/llamacpp: judged again, and the counters of a real engine held against its answers."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from kept_run import arm_of, judge_again, unpack, verdicts

from analysis.acceptance import acceptance_by_class
from profiles.counters import acceptance
from profiles.experiment import load_experiment
from profiles.functional import probe_set
from profiles.runs import DONE, Boot, Run

EXAMPLE = Path(__file__).parents[1] / "examples" / "llamacpp"
ARMS = ("v0_cache", "v0_cache.aa", "v1_no_cache", "v2_self_draft", "v3_ngram_simple", "v4_ngram_mod")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return unpack(EXAMPLE, tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def judged(kept: Run) -> Any:
    return judge_again(kept)


def boots_of(kept: Run, arm: str) -> list[Boot]:
    return [boot for boot in kept.boots if boot.facts.arm == arm]


def test_the_example_is_the_rule_of_the_kept_run() -> None:
    experiment = load_experiment(EXAMPLE / "experiment.toml")
    told = orjson.loads((EXAMPLE / "report" / "verdict.json").read_bytes())
    assert told["rule_sha256"] == experiment.bytes_sha256
    assert [arm.name for arm in experiment.arms] == [name for name in ARMS if not name.endswith(".aa")]
    assert {probe.name for probe in probe_set(experiment).probes} == {"talk", "form", "stream"}


def test_the_recording_runs_the_engine_of_the_experiment() -> None:
    engine = tomllib.loads((EXAMPLE / "experiment.toml").read_text(encoding="utf-8"))["engine"]
    words = [word.format(host="h", port=1, model="m") for word in engine["argv"]]  # nothing else is to be filled in
    assert words[0] == "work/llama-server"
    assert '"engine"]["argv"]' in (EXAMPLE / "record_traffic.py").read_text(encoding="utf-8")


def test_the_kept_report_is_what_the_kept_run_gives(judged: Any) -> None:
    told = orjson.loads((EXAMPLE / "report" / "verdict.json").read_bytes())
    words = verdicts(judged)
    assert words == verdicts(told)
    assert words == {
        "v1_no_cache": "reject",
        "v2_self_draft": "reject",
        "v3_ngram_simple": "inconclusive",
        "v4_ngram_mod": "inconclusive",
    }


def test_every_boot_was_cold_proven_apart_and_proven_gone(kept: Run) -> None:
    assert Counter(boot.facts.arm for boot in kept.boots) == dict.fromkeys(ARMS, 3)
    for boot in kept.boots:
        facts = boot.facts
        assert (facts.status, facts.cold, facts.stop, facts.exit_code) == (DONE, True, "term", 0)
        proofs = {step.name: step.proof for step in facts.steps}
        # With the cache off the same salt finds nothing either, and nothing is proved.
        assert (proofs["isolation"] is None) == (facts.arm == "v1_no_cache")
        assert proofs["stop"] is not None
        assert "1 process gone" in proofs["stop"]


def test_the_counters_of_each_window_are_the_sums_of_its_answers(kept: Run) -> None:
    """Tokens, cached tokens, drafts: the engine counts them over all, and tells each request its own."""
    windows = 0
    for boot in kept.boots:
        for window in boot.facts.windows:
            windows += 1
            counters = window.counters or {}
            answers = [item.response for item in boot.outcomes if item.window == window.name]
            assert window.counters_void is None
            for name, counts in (
                ("tokens_predicted_total", [answer.output_tokens for answer in answers]),
                ("prompt_tokens_cached_total", [answer.cached_tokens for answer in answers]),
                ("spec_decode_num_draft_tokens_total", [answer.draft_tokens for answer in answers]),
                ("spec_decode_num_accepted_tokens_total", [answer.accepted_tokens for answer in answers]),
            ):
                assert counters[f"llamacpp:{name}"] == sum(count or 0 for count in counts), (boot.path.name, name)
            found = acceptance(counters)
            if found is not None:
                assert found.problem is None
                assert found.per_position is not None
                assert sum(found.per_position) == found.accepted
    assert windows == 18 * 5


def test_accepted_is_not_faster(kept: Run, judged: Any) -> None:
    found = acceptance_by_class(boots_of(kept, "v2_self_draft"))
    assert set(found) == {"chat_single", "json_extraction", "rag_2k"}
    assert {finding.rate for finding in found.values()} == {1.0}
    arm = arm_of(judged, "v2_self_draft")
    assert {measure["measure"]: measure["zone"] for measure in arm["measures"]} == {
        "ttft": "no gain",
        "tpot": "no gain",
    }
    assert any("TTFT of the mix is proven worse" in reason for reason in arm["reasons"])
    for item in arm["acceptance_gain"]["classes"]:
        assert item["step"]["low"] > item["more_tokens"]  # a step costs more than it brings, in each class


def test_drafts_that_are_seldom_bring_little_however_well_they_are_accepted(kept: Run) -> None:
    found = acceptance_by_class(boots_of(kept, "v4_ngram_mod"))
    documents, talk = found["json_extraction"], found["chat_single"]
    assert documents.rate == 1.0
    assert documents.length == pytest.approx(14.67, abs=0.01)
    assert documents.tokens == pytest.approx(1.79, abs=0.01)
    assert talk.rate is not None
    assert talk.rate < 0.05


def test_the_kept_run_holds_no_text_and_no_folder_of_a_person(kept: Run) -> None:
    for file in kept.path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert b"harbour" not in data, file
            assert b"/home/" not in data, file
            assert b"/root/" not in data, file
