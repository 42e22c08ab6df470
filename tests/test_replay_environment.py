"""What an engine is started with, as far as it may be written down, and where its key comes from."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profiles.errors import RuleError, UsageError
from profiles.experiment import Experiment, load_experiment
from replay.environment import check_key, check_unchanged, engine_key, inherited, stated, stated_arguments
from replay.session import Session

HEAD = '[rule]\nid = "r"\n[profile]\npath = "profile"\n[engine]\nargv = ["sh"]\napi_key_env = "OUR_KEY"\n'


def rule(folder: Path, text: str) -> Experiment:
    path = folder / "experiment.toml"
    path.write_text(HEAD + text)
    return load_experiment(path)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("VLLM_ATTENTION_BACKEND", "FLASHINFER", "FLASHINFER"),
        ("NCCL_P2P_DISABLE", "1", "1"),
        ("TORCHINDUCTOR_CACHE_DIR", "/tmp/x", "/tmp/x"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("TOKENIZERS_PARALLELISM", "false", "false"),
        ("LD_PRELOAD", "a.so", "a.so"),
        ("HF_TOKEN", "hf_abc", None),
        ("HUGGING_FACE_HUB_TOKEN", "hf_abc", None),
        ("VLLM_API_KEY", "sk-1", None),
        ("VLLM_PASSWORD", "x", None),
        ("RAY_CLIENT_SECRET", "x", None),
        ("HF_ENDPOINT", "https://me:word@host/", None),
        ("MY_OWN", "value", None),  # whose meaning nobody knows
        ("LDFLAGS", "-lm", None),
    ],
)
def test_a_value_is_written_down_where_an_engine_reads_it_and_it_is_no_credential(
    name: str, value: str, kept: str | None
) -> None:
    assert stated({name: value}) == {name: kept}


def test_an_engine_inherits_ours_only_where_it_is_our_child() -> None:
    ours = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_abc", "EDITOR": "vi", "PATH": "/bin"}
    for launcher in ("process", "command"):
        assert inherited(launcher, ours) == {"HF_TOKEN": None, "NCCL_DEBUG": "INFO"}
    for launcher in ("docker", "podman", "external"):
        assert inherited(launcher, ours) == {}


def test_arguments_of_a_container_lose_the_values_of_what_they_set() -> None:
    words = ["--gpus", "all", "-e", "HF_TOKEN=hf_abc", "--env=VLLM_API_KEY=sk-1", "--env", "NCCL_DEBUG=INFO", "-e", "X"]
    assert stated_arguments(words) == [
        *("--gpus", "all", "-e", "HF_TOKEN=...", "--env=VLLM_API_KEY=...", "--env", "NCCL_DEBUG=INFO", "-e", "X"),
    ]


def test_an_environment_that_changed_is_refused_with_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    before = inherited("process")
    check_unchanged("process", before)
    check_unchanged("process", None)  # a run of an earlier version
    monkeypatch.setenv("VLLM_USE_V1", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    with pytest.raises(UsageError, match=r"HF_TOKEN was not set and is set; VLLM_USE_V1 was '0' and is '1'"):
        check_unchanged("process", before)
    check_unchanged("docker", {})


def test_the_key_is_the_arms_own_before_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = '[[arm]]\nname = "v0"\n[[arm]]\nname = "v1"\nenv = { OUR_KEY = "of-v1" }\n'
    experiment = rule(tmp_path, arms)
    v0, v1 = experiment.arms
    monkeypatch.setenv("OUR_KEY", "ours")
    check_key(experiment)
    sessions: list[Any] = [SimpleNamespace(experiment=experiment, arm=arm) for arm in (v0, v1)]
    assert [Session._headers(each) for each in sessions] == [
        {"authorization": "Bearer ours"},
        {"authorization": "Bearer of-v1"},
    ]
    assert engine_key("", v1) == ""


@pytest.mark.parametrize("value", [None, ""])
def test_a_key_that_is_named_and_not_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("OUR_KEY", raising=False)
    else:
        monkeypatch.setenv("OUR_KEY", value)
    experiment = rule(tmp_path, '[[arm]]\nname = "v0"\nenv = { OUR_KEY = "x" }\n[[arm]]\nname = "v1"\nextends = ""\n')
    with pytest.raises(RuleError, match=r":7: engine\.api_key_env: OUR_KEY is set neither in the env of v1 nor in"):
        check_key(experiment)
