"""The table of known lines, and what real boots of real engines say by it."""

from pathlib import Path
from typing import Any

import pytest

from profiles.errors import RuleError
from replay.bootlog import patterns, scan_log, table_sha256
from replay.log_facts import chosen_engine, compile_cache, selection, split_settings
from replay.log_table import SEVERITIES, literals

SHARED = Path(__file__).parents[2] / "shared"
SAMPLES = SHARED / "reference" / "boot_log_samples.txt"
REAL = SHARED / "real-engines"
# Rows that real boots asked for, beside the 70 of the reference, each with a line as such a boot printed it.
OWN_SAMPLES = {
    "V32": "max_num_scheduled_tokens is set to 2048 based on the speculative decoding settings. This may",
    "V33": "Model Runner V2 requires Triton; using the V1 model runner instead.",
    "V34": "Found ulimit of 20000 and failed to automatically increase with error x",
    "V35": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    "V36": "Value error, User-specified max_model_len (400000) is greater than the derived max_model_len",
    "V37": "OSError: [Errno 98] Address already in use",
    "P27": "INFO 11-30 13:45:20 [gpu_worker.py:378] Using V2 Model Runner",
    "S07": "[2026-05-15 08:40:40] max_total_num_tokens=350257, chunked_prefill_size=8192, context_len=262144",
    "S08": "[2026-08-28 21:32:38] Load weight end. elapsed=787.55 s, type=X, avail mem=29.01 GB",
    "S09": "[2026-05-15 08:40:32 TP0] Capture cuda graph end. Time elapsed: 54.61 s. mem usage=1.93 GB.",
    "S10": "server_args=ServerArgs(model_path='m', tp_size=1, attention_backend='triton', port=30000)",
    "S11": "[2026-05-15 08:40:32] Cache flushed successfully!",
    "S12": "Cache not flushed because there are pending requests. #queue-req: 0, #running-req: 29",
    "L08": "srv    load_model: initializing, n_slots = 4, n_ctx_slot = 4096, kv_unified = 'false'",
    "L09": "cmn          init: llama threadpool init, n_threads = 2",
    "L10": "W llama_context: n_ctx_seq (16384) > n_ctx_train (8192) -- possible training context overflow",
    "L11": "W common_chat_peg_parse: unparsed peg-native output: x",
    "L12": "W srv  llama_server: CORS is set to allow all origins ('*') and no API key is set",
    "V38": "  Value error, Currently, async scheduling is only supported with EAGLE/MTP kind of speculation",
    "V39": "WARNING [k.py:258] No FlashInfer autotune cache entries found.Falling back to default tactics.",
    "V40": "WARNING 11-30 14:01:38 [flashinfer.py:369] Failed to connect to NVIDIA artifactory: Max retries exceeded",
    "V41": "WARNING [cpu_worker.py:130] Speculative decoding on CPU without Intel OpenMP in LD_PRELOAD costs.",
    "V42": "INFO 11-30 14:04:29 [launcher.py:100] [shutdown] API server: shutdown triggered",
    "P28": "INFO [m.py:1] Using configuration from /x/E=128,N=768,device_name=NVIDIA_H200.json for MoE layer.",
    "A01": "main.py: error: unrecognized arguments: --no-such-flag",
    "A02": "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    "L13": "0.00.287.491 E srv    send_error: task id = 2, error: Context size has been exceeded.",
}


def test_ids_are_unique_severities_known_and_every_row_has_a_plain_text() -> None:
    table = patterns()
    assert len({pattern.id for pattern in table}) == len(table) == 70 + len(OWN_SAMPLES)
    assert {pattern.severity for pattern in table} == set(SEVERITIES)
    assert [pattern.id for pattern in table if not literals(pattern.regex.pattern)] == []


def samples() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [line] for name, line in OWN_SAMPLES.items()}
    for line in SAMPLES.read_text(encoding="utf-8").splitlines():
        name, bar, text = line.partition("|")
        if bar and not line.startswith("#"):
            found.setdefault(name, []).append(text)
    return found


@pytest.mark.skipif(not SAMPLES.exists(), reason="the collection of real log lines is not beside this checkout")
def test_every_pattern_matches_its_sample_and_no_other_pattern_does(tmp_path: Path) -> None:
    for name, lines in samples().items():
        for line in lines:
            assert [row.id for row in patterns() if row.regex.search(line)] == [name], line
            log = tmp_path / "one.log"
            log.write_text(line + "\n", encoding="utf-8")
            assert [item.id for item in scan_log(log).findings] == [name], line
    assert samples().keys() == {row.id for row in patterns()}


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        (r"KV cache size: ([\d,]+) tokens", (" cache size: ", "KV cache size: ")),
        (r"one thing|another \d thing", ("one thing", "another ")),
        (r"(?i)any case", ()),
        (r"\d+|[abc]+", ()),
        (r"long text|\w+", ()),
        (r"optional?l text", ("optional"[:-1],)),
        (r"a\.b\[c\] value=\d", ("a.b[c] value=",)),
        (r"x(?:group text)?yyyyy", ("yyyyy",)),
        (r"[]|]abcde|fghijk", ("abcde", "fghijk")),
    ],
)
def test_a_text_that_every_match_holds(expression: str, texts: tuple[str, ...]) -> None:
    found = literals(expression)
    assert len(found) == 0 if not texts else all(text in texts for text in found)
    assert not any(char.isdigit() for text in found for char in text)


HEAD = "id\tengine\tseverity\tregex\tnote\n"


def own_table(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "own.tsv"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_table_of_ones_own_is_added_and_changes_the_hash(tmp_path: Path) -> None:
    file = own_table(tmp_path, f"{HEAD}# mine\n\nX1\tany\tfallback\tslow path taken: (\\w+)\tof our patch\n")
    table = patterns(file)
    assert (table[-1].id, table[-1].note, len(table)) == ("X1", "of our patch", len(patterns()) + 1)
    log = tmp_path / "engine.log"
    log.write_text("INFO slow path taken: a\n")
    assert [(item.id, item.fields) for item in scan_log(log, table).findings] == [("X1", ["a"])]
    assert table_sha256(table) != table_sha256(patterns())
    other = own_table(tmp_path, f"{HEAD}X1\tany\tfallback\tslow path taken: (\\w+)\tanother note\n")
    assert table_sha256(patterns(other)) == table_sha256(table)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("X1\tany\tfallback", "this one has 3"),
        ("X1 any fallback regex", "this one has 1"),
        ("\tany\tfallback\tx+", "the id is empty"),
        ("X1\tvvlm\tfallback\tabc", "engine 'vvlm' is unknown"),
        ("X1\tany\tfalback\tabc", "severity 'falback' is unknown"),
        ("X1\tany\tfallback\ta(b", "not a regular expression"),
        ("X1\tany\tfallback\tx*", "matches every line"),
        ("V01\tvllm\tfallback\tabc", "'V01' is the id of another row of the built-in table"),
        ("X0\tvllm\tfallback\tabc", "'X0' is the id of another row of this file"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: str, says: str) -> None:
    file = own_table(tmp_path, f"{HEAD}X0\tany\tbenign\tabc\n{row}\n")
    with pytest.raises(RuleError, match=says) as caught:
        patterns(file)
    assert (caught.value.path, caught.value.line) == (file, 3)


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"missing\.tsv: cannot be read: No such file"):
        patterns(tmp_path / "missing.tsv")


def test_settings_are_split_at_their_outer_commas() -> None:
    text = "model='a, b', config={'x': [1, 2], 'y': 'z='}, dtype=torch.bfloat16, hf_token='abc', api_key=None, odd"
    assert split_settings(text) == {
        "model": "'a, b'",
        "config": "{'x': [1, 2], 'y': 'z='}",
        "dtype": "torch.bfloat16",
        "hf_token": "[removed]",
        "api_key": "None",
    }


def test_arguments_that_are_no_literals_are_read_too() -> None:
    facts = selection("vllm", [("P19", ["{'a': 1, 'config': <Thing x=1, y=2>}"], "")])
    assert facts["arguments"] == {"a": "1", "config": "<Thing x=1, y=2>"}


def test_the_engine_is_the_one_that_shows_itself_most() -> None:
    assert chosen_engine([("vllm", "fact"), ("vllm", "fact"), ("llamacpp", "ready")]) == "vllm"
    assert chosen_engine([("vllm", "fallback"), ("sglang", "fact"), ("any", "fact")]) == "sglang"
    assert chosen_engine([("vllm", "fact"), ("sglang", "fact")]) is None
    assert chosen_engine([("vllm", "fatal")]) is None


def test_a_compile_cache_is_cold_warm_mixed_or_unknown() -> None:
    assert compile_cache({"cache-cold", "fact"}) == "cold"
    assert compile_cache({"cache-warm"}) == "warm"
    assert compile_cache({"cache-cold", "cache-warm"}) == "mixed"
    assert compile_cache({"fact"}) is None


def test_sglang_says_what_it_chose(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    names = ("S10", "S08", "S07", "S09")
    up = "[2026-07-27 08:54:44] The server is fired up and ready to roll!"
    log.write_text("\n".join([*(OWN_SAMPLES[name] for name in names), up]))
    facts = scan_log(log)
    assert facts.engine == "sglang"
    assert (facts.kv_tokens, facts.selection["attention_backends"]) == (350257, ["TRITON"])
    assert facts.selection["graph_capture_ns"] == 54_610_000_000
    assert facts.selection["config"]["tp_size"] == "1"


needs_logs = pytest.mark.skipif(not REAL.exists(), reason="the logs of real engines are not beside this checkout")
# Log below real-engines: facts that its boot shows.
REAL_FACTS: dict[str, dict[str, Any]] = {
    "boot-llamacpp.log": {"engine": "llamacpp", "threads": 2, "slots": 4, "slot_tokens": 4096, "kv_tokens": 16384},
    "boot-vllm-cpu.log": {"engine": "vllm", "version": "0.32.0", "model_runner": "V1", "kv_tokens": 2_097_152},
    "boot-vllm-cpu-compile.log": {"max_concurrency": 512.0, "init_ns": 142_020_000_000, "cache": "cold"},
    "boot-vllm-cpu-smollm2-ngram.log": {"kv_tokens": 46_592, "async_scheduling": False, "cache": None},
    "gpu/arms/base-ngram2/boot.log": {
        "attention_backends": ["FLASH_ATTN"],
        "flash_attention": "3",
        "async_scheduling": False,
        "model_runner": "V1",
        "kv_tokens": 843_664,
        "graphs": {"mixed prefill-decode, PIECEWISE": 49, "decode, FULL": 49},
        "graph_capture_ns": 6_000_000_000,
        "compile_ns": 26_570_000_000,
        "init_ns": 46_810_000_000,
        "version": "0.26.0",
        "cache": "cold",
    },
    "gpu/arms/base-ngram2-warmcache/boot.log": {"compile_ns": 5_080_000_000, "kv_tokens": 843_664, "cache": "warm"},
    "gpu/arms/nospec-flashinfer/boot.log": {"attention_backends": ["FLASHINFER"], "model_runner": "V2"},
    "gpu/arms/nospec-noasync/boot.log": {"async_scheduling": False, "attention_backends": ["FLASH_ATTN"]},
    "gpu/arms/nospec/boot.log": {"async_scheduling": True, "graphs": {"PIECEWISE": 51, "FULL": 51}},
    "gpu/arms/moe-fp8/boot.log": {
        "moe_backends": ["TRITON Fp8"],
        "linear_kernels": {"Fp8LinearMethod": "DeepGemmFp8BlockScaledMMKernel"},
        "kv_tokens": 1_047_296,
    },
    "gpu/arms/tiny-eager/boot.log": {"cache": None, "kv_tokens": 87_376_912},
    "gpu/failing/no-memory-for-kv.log": {"kv_bytes": -17_856_326_533},
}


@needs_logs
@pytest.mark.parametrize("name", REAL_FACTS)
def test_a_real_boot_shows_what_was_selected(name: str) -> None:
    log = scan_log(REAL / name)
    shown = log.selection | {"cache": log.compile_cache}
    assert {key: shown.get(key) for key in REAL_FACTS[name]} == REAL_FACTS[name]
    assert log.kv_tokens == log.selection.get("kv_tokens")


@needs_logs
def test_a_resolved_configuration_is_parsed() -> None:
    facts = scan_log(REAL / "gpu/arms/base-ngram2/boot.log").selection
    assert facts["config"]["dtype"] == "torch.bfloat16"
    assert facts["config"]["speculative_config"].startswith("SpeculativeConfig(method='ngram'")
    assert facts["config"]["compilation_config"].startswith("{")
    assert facts["arguments"]["max_model_len"] == "8192"


@needs_logs
def test_no_eager_arm_captures_graphs_and_no_failing_boot_is_ready() -> None:
    assert "graphs" not in scan_log(REAL / "gpu/arms/ngram2-eager/boot.log").selection
    for log in sorted((REAL / "gpu/failing").glob("*.log")):
        severities = {item.severity for item in scan_log(log).findings}
        assert ("ready" in severities) == log.name.startswith("booted"), log.name


@needs_logs
def test_a_kernel_compiled_after_ready_is_found_while_serving() -> None:
    path = REAL / "gpu/arms/base-ngram2/boot.log"
    ready = path.read_bytes().index(b"Application startup complete")
    found = [item for item in scan_log(path, ready_offset=ready).findings if item.severity == "runtime-slow"]
    assert [(item.count, item.while_serving, item.fields[0]) for item in found] == [
        (1, True, "rejection_greedy_sample_kernel")
    ]
