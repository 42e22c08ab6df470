"""The kept run of examples/ladder-vllm-cpu: it can be judged again, tells no path, holds no text, and adds up."""

from pathlib import Path

import orjson
import pytest
from kept_run import folders_named, judge_again, texts, unpack, verdicts

from profiles.counters import acceptance, acceptance_told
from profiles.records import OK
from profiles.runs import DONE, FAILED, Run

EXAMPLE = Path(__file__).parents[1] / "examples" / "ladder-vllm-cpu"
ROUTES = ("/v1", "/inference", "/docs")  # of vLLM's server; it ran in a folder below /srv


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return unpack(EXAMPLE, tmp_path_factory.mktemp("kept"))


def test_the_kept_report_is_what_the_kept_run_gives(kept: Run) -> None:
    again, told = judge_again(kept), orjson.loads((EXAMPLE / "report" / "verdict.json").read_bytes())
    assert verdicts(again) == verdicts(told)
    assert again["rule_sha256"] == told["rule_sha256"]


def test_three_blocks_of_every_arm_were_booted_and_the_refused_one_once(kept: Run) -> None:
    done = [(boot.facts.arm, boot.facts.block) for boot in kept.boots if boot.facts.status == DONE]
    arms = ["v0_baseline", "v0_baseline.aa", "v1_attention", "v2_batched_tokens", "v3_spec3"]
    assert sorted(done) == [(arm, block) for arm in arms for block in (1, 2, 3)]
    (refused,) = (boot for boot in kept.boots if boot.facts.status == FAILED)
    assert (refused.facts.arm, refused.facts.diagnosis) == ("v4_async", "died_in_boot")
    assert "async scheduling is only supported" in (refused.facts.reason or "")
    assert all(boot.facts.gone_ns is not None for boot in kept.boots)


def test_in_every_window_the_answers_drafts_are_those_of_the_counters(kept: Run) -> None:
    windows = 0
    for boot in kept.boots:
        for window in boot.facts.windows:
            outcomes = [outcome for outcome in boot.outcomes if outcome.window == window.name]
            if window.limit_ns is None and all(outcome.outcome == OK for outcome in outcomes):
                counted = acceptance(window.counters or {})
                assert counted is not None
                told = acceptance_told(outcome.response for outcome in outcomes)
                assert counted == told, (boot.path.name, window.name)
                assert counted.problem is None
                windows += 1
    assert windows == 15 * 7  # observed, and each of six classes alone


def test_no_prompt_and_no_machine_path_is_kept(kept: Run) -> None:
    lines = (EXAMPLE / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [orjson.loads(line)["content"][:40] for line in lines]
    files = list(texts(kept, EXAMPLE))
    assert len(files) > 60
    for file, text in files:
        assert not any(prompt in text for prompt in prompts), file
        assert folders_named(text) <= {"/srv", "/usr", *ROUTES}, file
