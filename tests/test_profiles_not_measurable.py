"""What a profile cannot measure is refused by name before a run, and not shown after one."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_run import Effect, Synthetic

from analysis.document import verdict_document
from analysis.judge import judge
from analysis.table import format_report
from profiles.concurrency import OperatingPoint
from profiles.errors import RuleError
from profiles.experiment import Experiment, LoadFacts, check_against_profile, load_experiment
from profiles.measurable import ACCEPTANCE, GUIDED_DECODING, NEEDS_CONTENT, NEEDS_RECORDED_TEXT, settings_for
from profiles.runs import read_run
from profiles.units import HOUR_NS

HEAD = """
[rule]
id = "test"
[profile]
path = "profile"
[engine]
argv = {argv}
[design]
ladder = "cumulative"
"""


def load(folder: Path, arms: str, argv: str = '["serve", "--port", "{port}"]') -> Experiment:
    path = folder / "experiment.toml"
    path.write_text(HEAD.replace("{argv}", argv) + arms, encoding="utf-8")
    return load_experiment(path)


def check(experiment: Experiment, *, content: str = "synthetic", missing: Any = NEEDS_RECORDED_TEXT) -> None:
    point = OperatingPoint((1,), {1: 1.0}, 0.95, 1.0)
    load = LoadFacts(point, {1: 10}, HOUR_NS, 1)
    check_against_profile(experiment, load=load, content=content, not_measurable=missing)


SPECULATING = """
[[arm]]
name = "v0"
[[arm]]
name = "v1"
args = ["--async-scheduling"]
[[arm]]
name = "v2"
args = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":3}']
[[arm]]
name = "v3"
args = ["--max-num-seqs", "4"]
"""


def test_an_arm_that_changes_speculation_is_refused_by_name_with_key_line_and_way_out(tmp_path: Path) -> None:
    with pytest.raises(RuleError) as caught:
        check(load(tmp_path, SPECULATING))
    assert caught.value.key == "arm[2].args"
    line = (tmp_path / "experiment.toml").read_text().splitlines().index('name = "v2"') + 2
    assert str(caught.value).startswith(f"{tmp_path / 'experiment.toml'}:{line}: arm[2].args: v2 changes speculative")
    assert "'acceptance' is not measurable with this profile" in caught.value.problem
    assert "--speculative-config" in caught.value.problem
    for way_out in ("--bodies full", "profile builtin", "[[skipped]]"):
        assert way_out in caught.value.hint


def test_a_profile_without_bodies_names_it_too_and_first(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="'acceptance' is not measurable"):
        check(load(tmp_path, SPECULATING), content="none", missing=NEEDS_CONTENT)
    with pytest.raises(RuleError, match="holds no request bodies") as caught:
        check(load(tmp_path, '[[arm]]\nname = "v0"\n'), content="structure", missing=NEEDS_CONTENT)
    assert "firsttoken profile synthesise" in caught.value.hint


def test_with_the_recorded_text_every_arm_is_allowed(tmp_path: Path) -> None:
    check(load(tmp_path, SPECULATING), content="full", missing=["output length"])


def test_rebuilt_text_is_load_for_arms_that_all_speculate_alike(tmp_path: Path) -> None:
    same = """
[[arm]]
name = "v0"
args = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}']
[[arm]]
name = "v1"
args = ["--async-scheduling", "--speculative_config={ \\"num_speculative_tokens\\": 2, \\"method\\": \\"mtp\\" }"]
"""
    check(load(tmp_path, same))


@pytest.mark.parametrize(
    ("arm", "key", "named"),
    [
        ('args = ["--speculative_config.num_speculative_tokens", "4"]', "args", "acceptance"),
        ('args = ["-md", "draft.gguf"]', "args", "acceptance"),
        ('args = ["--spec-type", "ngram-simple"]', "args", "acceptance"),
        ('args = ["--draft-max=8"]', "args", "acceptance"),
        ('args = ["--speculative-algorithm", "EAGLE"]', "args", "acceptance"),
        ('argv = ["sh", "-c", "exec llama-server --model-draft d.gguf --port {port}"]', "argv", "acceptance"),
        ('argv = ["docker", "run", "-e", "LLAMA_ARG_DRAFT_MAX=8", "engine"]', "argv", "acceptance"),
        ('env = { LLAMA_ARG_MODEL_DRAFT = "d.gguf" }', "env", "acceptance"),
        ('args = ["--guided-decoding-backend", "xgrammar"]', "args", "guided decoding cost"),
        ('args = ["--structured-outputs-config.backend", "guidance"]', "args", "guided decoding cost"),
        ('args = ["--grammar-backend", "llguidance"]', "args", "guided decoding cost"),
        ('extends = ""', "extends", "acceptance"),
    ],
)
def test_flags_of_all_engines_are_known(tmp_path: Path, arm: str, key: str, named: str) -> None:
    base = 'args = ["--num-speculative-tokens", "2"]' if key == "extends" else ""
    experiment = load(tmp_path, f'[[arm]]\nname = "v0"\n{base}\n[[arm]]\nname = "v1"\n{arm}\n')
    with pytest.raises(RuleError, match=f"{named!r} is not measurable") as caught:
        check(experiment)
    assert caught.value.key == f"arm[1].{key}"
    assert caught.value.line > 0


@pytest.mark.parametrize(
    "words",
    [
        ["--async-scheduling", "--max-num-seqs", "8"],
        ["--per-request-spec-decode-metrics", "summary"],
        ["--special-tokens", "keep", "--specifics"],
        ["--override", '{"note": "a --speculative-config inside JSON"}'],
        ["--served-model-name", "draft", "--seed", "-1"],
    ],
)
def test_other_flags_are_not_taken_for_speculation(words: list[str]) -> None:
    assert settings_for(ACCEPTANCE, words, {"VLLM_LOGGING_LEVEL": "INFO"}) == {}
    assert settings_for(GUIDED_DECODING, words, {}) == {}


def test_the_last_of_a_repeated_flag_counts() -> None:
    argv = ["serve", "--draft-max", "2", "--draft-max=3", "--draft-min", "-1"]
    assert settings_for(ACCEPTANCE, argv, {}) == {"--draft-max": 3, "--draft-min": -1}


def drafted(tmp_path: Path, missing: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """A run that is workload-dependent, with counters of a draft: its document and its table."""
    longer = Effect(
        tpot={"json_extraction": -0.16, "rag_long": -0.15, "short_qa": 0.09, "chat": 0.03},
        acceptance={"json_extraction": 2.949, "short_qa": 1.314},
    )
    run = Synthetic(
        {"v3_spec3": longer},
        baseline=Effect(acceptance={"json_extraction": 1.99, "short_qa": 1.292}),
        edit_manifest=lambda manifest: manifest["profile"].update(not_measurable=list(missing)),
    )
    path = run.write(tmp_path / "run")
    report = judge(read_run(path), load_experiment(path / "experiment.toml"))
    return verdict_document(report), " ".join(format_report(report).split())


def test_acceptance_over_rebuilt_text_is_not_shown_and_the_report_says_why(tmp_path: Path) -> None:
    document, text = drafted(tmp_path, NEEDS_RECORDED_TEXT)
    (arm,) = document["arms"]
    assert arm["verdict"] == "workload-dependent"
    assert arm["acceptance"] == []
    assert document["not_measurable"] == list(NEEDS_RECORDED_TEXT)
    assert "acceptance length" not in text
    assert "Profile not measurable: acceptance, guided decoding cost, output equality, answer length drift" in text


def test_acceptance_over_recorded_text_is_shown(tmp_path: Path) -> None:
    document, text = drafted(tmp_path, ())
    assert {item["class"] for item in document["arms"][0]["acceptance"]} == {"json_extraction", "short_qa"}
    assert document["not_measurable"] == []
    assert "acceptance length 2.99 → 3.95" in text
    assert "not measurable" not in text
