"""What real boots of real engines say, through the scan of a run: facts, warnings, arms compared, causes of death.

The logs beside this checkout are of vLLM 0.32 on a CPU, vLLM 0.26 on an H200 and llama.cpp; `data/logs` holds lines of
our own in their forms, so that the same is tested where those are absent.
"""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from analysis.selection import differences, shows_no_difference
from profiles.runs import BootFacts
from replay.bootlog import LogFacts, scan_log
from replay.log_end import last_words, log_end
from replay.log_table import patterns

OWN = Path(__file__).parent / "data" / "logs"
REAL = Path(__file__).parents[2] / "shared" / "real-engines"
ARMS, FAILING = REAL / "gpu" / "arms", REAL / "gpu" / "failing"
needs_logs = pytest.mark.skipif(not REAL.exists(), reason="the logs of real engines are not beside this checkout")
SECOND_NS = 1_000_000_000

# Arm → scheduling, runner, KV cache, seconds of compilation and of graph capture, attention, compile cache.
GPU_ARMS: Final = {
    "base-ngram2": (False, "V1", 843_664, 26.57, 6, "FLASH_ATTN", "cold"),
    "base-ngram2-warmcache": (False, "V1", 843_664, 5.08, 6, "FLASH_ATTN", "warm"),
    "ngram3": (False, "V1", 843_632, 35.88, 9, "FLASH_ATTN", "cold"),
    "ngram2-eager": (False, "V1", 847_088, None, None, "FLASH_ATTN", None),
    "ngram2-noprefix": (False, "V1", 843_664, 31.06, 7, "FLASH_ATTN", "cold"),
    "nospec": (True, "V2", 874_048, 32.41, 7, "FLASH_ATTN", "cold"),
    "nospec-noasync": (False, "V2", 874_048, 28.36, 6, "FLASH_ATTN", "cold"),
    "nospec-flashinfer": (True, "V2", 874_048, 27.04, 6, "FLASHINFER", "cold"),
    "moe-fp8": (True, "V1", 1_047_296, 39.37, 23, "FLASH_ATTN", "cold"),
    "tiny-eager": (True, "V2", 87_376_912, None, None, "FLASH_ATTN", None),
    "tiny-default": (True, "V2", 87_254_032, 10.21, 1, "FLASH_ATTN", "cold"),
}


def told(facts: LogFacts) -> tuple[Any, ...]:
    found = facts.selection
    seconds = [found[key] / SECOND_NS if key in found else None for key in ("compile_ns", "graph_capture_ns")]
    (attention,) = found["attention_backends"]
    return (found["async_scheduling"], found["model_runner"], facts.kv_tokens, *seconds, attention, facts.compile_cache)


@needs_logs
@pytest.mark.parametrize("arm", GPU_ARMS)
def test_an_arm_on_a_gpu_tells_what_it_selected(arm: str) -> None:
    facts = scan_log(ARMS / arm / "boot.log")
    assert told(facts) == GPU_ARMS[arm]
    config, arguments = facts.selection["config"], facts.selection["arguments"]
    assert config["enable_prefix_caching"] == str(arm != "ngram2-noprefix")
    assert ("ngram" in config["speculative_config"]) == ("ngram" in arm)
    assert ("ngram" in arguments.get("speculative_config", "")) == ("ngram" in arm)
    assert (facts.engine, facts.selection["version"], facts.cut_lines) == ("vllm", "0.26.0", 0)


@needs_logs
def test_every_arm_on_a_gpu_is_known() -> None:
    assert {path.parent.name for path in ARMS.glob("*/boot.log")} == GPU_ARMS.keys()


@needs_logs
def test_a_mixture_of_experts_in_fp8_tells_its_kernels() -> None:
    facts = scan_log(ARMS / "moe-fp8" / "boot.log")
    assert facts.selection["linear_kernels"] == {"Fp8LinearMethod": "DeepGemmFp8BlockScaledMMKernel"}
    assert facts.selection["moe_backends"] == ["TRITON Fp8"]
    (tuned,) = [item for item in facts.findings if item.id == "P28"]
    name = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert tuned.fields[0].endswith(name)
    assert not [item for item in facts.findings if item.id == "V01"]


# -- warnings ----------------------------------------------------------------------------------------------------------

# How a warning of vLLM begins → the row that flags it; None: noise, which no row may take.
WARNINGS: Final = {
    "Async scheduling not supported with": "V12",
    "max_num_scheduled_tokens is set to 2048": "V32",
    "min_p and logit_bias": "V20",
    "Enforce eager set": "V08",
    "Inductor compilation was disabled": "V10",
    "Found ulimit of": "V34",
    "Speculative decoding on CPU without": "V41",
    "Model Runner V2 ": "V33",
    "Triton kernel JIT compilation during inference": "V16",
    "No FlashInfer autotune cache entries": "V39",
    "Failed to connect to NVIDIA artifactory": "V40",
    "Triton is not installed": None,
    "libtcmalloc is not found": None,
    "libiomp is not found": None,
    "Reset SSM cache type": None,
    "CPU backend doesn't allow": None,
    "[shutdown] ": None,
}
WARNING = re.compile(r"^(?:\([\w-]+ pid=\d+\) )?WARNING \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]+:\d+\] (.*)")


def logs_of_vllm() -> list[Path]:
    return [*sorted(REAL.glob("boot-vllm*.log")), *sorted(ARMS.glob("*/boot.log")), *sorted(FAILING.glob("*.log"))]


@needs_logs
def test_every_warning_of_every_real_boot_is_flagged_or_noise_as_it_should_be() -> None:
    seen: set[str] = set()
    for path in logs_of_vllm():
        for line in path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines():
            found = WARNING.match(line)
            if found is None:
                continue
            (known,) = [start for start in WARNINGS if found[1].startswith(start)]
            seen.add(known)
            rows = [row.id for row in patterns() if row.regex.search(line)]
            assert rows == ([WARNINGS[known]] if WARNINGS[known] else []), line
    assert seen == WARNINGS.keys()


@needs_logs
def test_lines_of_uvicorn_python_and_progress_are_no_findings_but_for_ready() -> None:
    for path in logs_of_vllm():
        for item in scan_log(path).findings:
            assert not item.signature.startswith("INFO: ") or item.id == "P21", item
            assert "resource_tracker" not in item.signature
            assert "it/s" not in item.signature
            assert len(item.signature) <= 240


@needs_logs
@pytest.mark.parametrize("name", ["boot-llamacpp.log", "boot-llamacpp-ctx-warnings.log"])
def test_llama_cpp_warns_of_a_context_it_was_not_trained_for_and_of_cors_never(name: str) -> None:
    facts = scan_log(REAL / name)
    flagged = [item.id for item in facts.findings if item.severity == "config-warn"]
    assert flagged == (["L10", "L10"] if "ctx" in name else [])
    assert [item.severity for item in facts.findings if item.id == "L12"] == ["benign"]


# -- the end -----------------------------------------------------------------------------------------------------------

END = b"""\
(APIServer pid=1) ERROR 11-30 13:31:29 [async_llm.py:780] AsyncLLM output_handler failed.
(APIServer pid=1) ERROR 11-30 13:31:29 [async_llm.py:780] vllm.v1.engine.exceptions.EngineDeadError: dead. See above.
(EngineCore pid=2) ERROR 11-30 13:31:29 [core.py:1330] EngineCore failed to start.
(EngineCore pid=2) WARNING 11-30 13:31:29 [jit_monitor.py:1] Triton kernel JIT compilation during inference: k. Slow
"""


@needs_logs
@pytest.mark.parametrize("arm", ["nospec", "base-ngram2"])
def test_errors_behind_the_line_of_a_shutdown_are_no_fault(tmp_path: Path, arm: str) -> None:
    whole = (ARMS / arm / "boot.log").read_bytes()
    log = tmp_path / "engine.log"
    log.write_bytes(whole + END)
    assert scan_log(log).findings == scan_log(ARMS / arm / "boot.log").findings
    at = whole.index(b"(APIServer", whole.index(b"Application startup complete"))
    log.write_bytes(whole[:at] + END + whole[at:])
    added = {item.id for item in scan_log(log).findings if item.fields[:1] in ([], ["k"])}
    assert {"P26", "V16"} <= added


# Log → what its end says, and the row of the table that says so too.
DEATHS: Final = {
    "unknown-flag": ("error: unrecognized arguments: --no-such-flag", "A01"),
    "port-in-use": ("OSError: [Errno 98] Address already in use", "V37"),
    "max-model-len-too-big": ("User-specified max_model_len (400000) is greater than the derived max_model_len", "V36"),
    "async-with-ngram": ("async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU/DSpark", "V38"),
    "flashinfer-not-installed": (
        "Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason: ['ImportError']",
        "V14",
    ),
    "gpu-already-in-use": (
        "Free memory on device cuda:0 (128.14/139.8 GiB) on startup is less than desired GPU memory utilization",
        "V35",
    ),
    "no-memory-for-kv": ("No available memory for the cache blocks.", "V35"),
    "no-memory-for-kv-tiny": ("No available memory for the cache blocks.", "V35"),
    "sigterm-early-in-boot": ("KeyboardInterrupt: terminated", None),
    "sigterm-late-in-boot-ignored": ("init engine (profile, create kv cache, warmup model) took 52.46 s", None),
    "booted-small-kv-gpu-shared": ("[shutdown] API server: shutdown triggered", None),
}


@needs_logs
@pytest.mark.parametrize("name", DEATHS)
def test_the_line_that_tells_is_found_and_not_the_generic_last_one(name: str) -> None:
    says, row = DEATHS[name]
    assert says in last_words(log_end(FAILING / f"{name}.log"))
    fatal = {item.id for item in scan_log(FAILING / f"{name}.log").findings if item.severity == "fatal"}
    assert fatal - {"P26"} == ({row} if row else set())


@needs_logs
def test_every_failing_boot_is_known() -> None:
    assert {path.stem for path in FAILING.glob("*.log")} == DEATHS.keys()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], ""),
        (["INFO a", "b"], "b"),
        (["ValueError: bad", "x", "RuntimeError: Engine core initialization failed. See root cause above."], "Value"),
        (["    raise ValueError(", "last"], "last"),
        (["Error: 1 validation error for C", "  no x [type=value_error, input_value=A((), {})]", "x"], "no x"),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried", "[rank0]:[W1 x.cpp:1] Warning: y"], "torch.OutOf"),
        (["E1Error: x", "(A pid=1) WARNING 11-30 13:58:50 [s.py:2] this can cause `OSError: [Errno 24]`"], "E1Error"),
        (["0.00.001.002 W srv  f: error: mild", "0.00.001.003 E srv  f: error: hard", "bye"], "0.00.001.003 E"),
        (["v1 | (A pid=3) ERROR 11-30 13:58:50 [s.py:2] OSError: full", "v1 | (A pid=3) bye"], "v1 | (A pid=3) ERROR"),
        (["main.py: error: unrecognized arguments: --api-key=sk-abcdefghijklmnopqrstuvwx12345"], "main.py: error"),
        (["OSError: before", "I [shutdown] API server: x", "DeadError: after"], "OSError: before"),
        (["fine", "I [shutdown] API server: x", "DeadError: after", "bye"], "I [shutdown] API"),
        (["OSError: of a request", *["fine"] * 200, "I [shutdown] API server: x", "bye"], "I [shutdown] API"),
    ],
)
def test_what_the_end_of_a_log_says(lines: list[str], says: str) -> None:
    found = last_words(lines)
    assert found.startswith(says)
    assert bool(found) == bool(says)
    assert "sk-abcdef" not in found


def test_the_end_of_a_long_log_is_read_and_no_more(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert log_end(log) == ()
    log.write_bytes(b"OSError: long ago\n" + b"x" * 70_000 + b"\n\xff\xfe late\rprogress\n\n")
    lines = log_end(log)
    assert lines[1:] == ("\ufffd\ufffd late", "progress")
    assert last_words(lines) == "progress"


# -- arms compared -----------------------------------------------------------------------------------------------------


def boots(arm: str) -> list[BootFacts]:
    found = scan_log(ARMS / arm / "boot.log")
    plain: dict[str, Any] = {"block": 1, "slot": 1, "status": "done", "argv": [], "wall_ns": 0, "mono_ns": 0}
    return [BootFacts(arm=arm, selection=found.selection, kv_tokens=found.kv_tokens, **plain)]


@needs_logs
@pytest.mark.parametrize(
    ("arm", "against", "says"),
    [
        ("base-ngram2-warmcache", "base-ngram2", []),
        ("ngram3", "base-ngram2", ["resolved configuration differs from base-ngram2 in speculative_config"]),
        ("ngram2-noprefix", "base-ngram2", ["enable_prefix_caching"]),
        ("nospec-flashinfer", "nospec", ["attention backends: FLASHINFER, nospec FLASH_ATTN"]),
        ("nospec-noasync", "nospec", ["async scheduling: off, nospec on"]),
        # One flag, and three things change.
        ("base-ngram2", "nospec", ["model runner: V1, nospec V2", "async scheduling: off, nospec on", "speculative"]),
    ],
)
def test_what_tells_two_real_arms_apart(arm: str, against: str, says: list[str]) -> None:
    own, other = boots(arm), boots(against)
    assert shows_no_difference(own, other, {}, {}) is (not says)
    told = differences(own, other, against)
    assert bool(told) is bool(says)
    for part in says:
        assert any(part in sentence for sentence in told), told


# -- the same on lines of our own --------------------------------------------------------------------------------------


def test_the_facts_and_flags_of_a_boot_like_the_real_ones() -> None:
    path = OWN / "vllm_ngram.log"
    ready = path.read_bytes().index(b"INFO:     Application startup complete")
    facts = scan_log(path, ready_offset=ready)
    assert told(facts) == (False, "V1", 843_664, 26.57, 6, "FLASH_ATTN", "cold")
    assert facts.selection["graphs"] == {"decode, FULL": 49}
    assert facts.selection["config"]["enable_prefix_caching"] == "True"
    assert facts.selection["arguments"]["max_model_len"] == "8192"
    flagged = [(item.id, item.while_serving) for item in facts.findings if item.severity not in ("fact", "ready")]
    assert flagged == [
        ("V34", False),
        ("V12", False),
        ("V33", False),
        ("V20", False),
        ("P13", False),
        ("P13", False),
        ("V22", False),
        ("V39", False),
        ("V16", True),
        ("V42", True),  # and nothing of what stands behind it
    ]
    (tactic,) = [item for item in facts.findings if item.id == "V22"]
    assert "2026" not in tactic.signature
    assert "812" not in tactic.signature


def test_a_worker_that_failed_tells_the_cause_and_not_its_parent() -> None:
    words = last_words(log_end(OWN / "vllm_worker_failed.log"))
    assert words.startswith("(EngineCore pid=202) ValueError: Free memory on device cuda:0 (28.14/121.69 GiB)")
    fatal = {item.id for item in scan_log(OWN / "vllm_worker_failed.log").findings if item.severity == "fatal"}
    assert fatal == {"P26", "V35"}
