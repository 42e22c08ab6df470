"""examples/dgx-spark, as far as it goes without such a machine: plans, command lines, and lines of a GB10's log.

The load is of the article's shape, 29 to 159,000 prompt tokens at c = 1 to 3. The log lines are of our own making, in
the forms that public logs of this chip have.
"""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from click.testing import CliRunner, Result
from handmade_capture import exchange, write_capture

from analysis.boot_log import NOTED, allowed_lines, judge_logs, new_lines
from firsttoken import cli
from profiles.build import build_profile
from profiles.experiment import Arm, Experiment, load_experiment
from profiles.profile import read_profile
from profiles.records import Exchange
from profiles.runs import AA_SUFFIX, Boot, BootFacts, Run
from profiles.units import MINUTE_NS, SECOND_NS, parse_duration
from replay.bootlog import scan_log
from replay.engines import Launch
from replay.engines.container_client import client_environment, run_command
from replay.launch_plan import plan_launch
from replay.rundir import BootFolder

EXAMPLE = Path(__file__).parents[1] / "examples" / "dgx-spark"
FILES = ("experiment.toml", "experiment-docker.toml")
ARMS = ("v0_baseline", "v1_flashinfer", "v2_async", "v3_spec3")

# -- a load of the article's shape -------------------------------------------------------------------------------------

# Prompt tokens, output tokens, seconds, and what is asked.
WORKLOADS: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (29, 160, 4, {"content": "Which chips share their memory with the processor?"}),
    (90, 180, 5, {"content": "Kérlek, írd le röviden, hogy miért fontos a késleltetés, és mit jelent az első token."}),
    (900, 400, 9, {"content": "Review this: ```python\ndef f(x):\n    return x + 1\n```"}),
    (1500, 250, 6, {"content": "Copy the record.", "response_format": {"type": "json_object"}}),
    (32_000, 200, 15, {"content": "Which passage answers? " + "Passage. " * 40}),
    (159_000, 400, 85, {"content": "Summarise sections 1, 2 and 3. " + "Section. " * 60}),
)


def body(number: int) -> bytes:
    fields = dict(WORKLOADS[number % 6][3])
    messages = [{"role": "user", "content": f"{number}: {fields.pop('content')}"}]
    return orjson.dumps({"model": "qwen3.6-35b", "stream": True, "max_tokens": 512, "messages": messages} | fields)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 hours in groups of ten requests: six alone, three that meet one other, one that meets two."""
    folder = tmp_path_factory.mktemp("article")
    written: list[tuple[Exchange, bytes | None]] = []
    number = 0
    for group in range(48):
        now_ns = group * 31 * MINUTE_NS + SECOND_NS
        ends: list[int] = []
        for place in range(10):
            kind = number % 6 if place < 6 else number % 4  # the long ones run alone
            prompt, output, seconds, _ = WORKLOADS[kind]
            early_ns = {6: 2, 7: 2, 8: 2, 9: 1}.get(place, -1) * SECOND_NS
            start_ns = (ends[-2 if place == 9 else -1] - early_ns) if ends else now_ns
            ends.append(start_ns + seconds * SECOND_NS)
            asked = body(number - number % 6 + kind)
            written.append((exchange(f"r{number}", start_ns, ends[-1], asked, tokens=(prompt, output)), asked))
            number += 1
    written.sort(key=lambda item: item[0].end_ns)
    write_capture(folder / "capture", written, close_ns=25 * 3600 * SECOND_NS)
    build_profile([folder / "capture"], folder / "my-profile")
    return folder / "my-profile"


@pytest.fixture
def folder(profile: Path, tmp_path: Path) -> Path:
    """The example beside its profile, as its owner has it."""
    for name in FILES:
        shutil.copy(EXAMPLE / name, tmp_path / name)
    (tmp_path / "my-profile").symlink_to(profile)
    return tmp_path


def firsttoken(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_the_load_is_the_articles(profile: Path) -> None:
    rows = read_profile(profile).rows()
    tokens = {row.prompt_tokens for row in rows}
    assert tokens == {29, 90, 900, 1500, 32_000, 159_000}
    assert {row.workload for row in rows} == {
        *("chat_single", "chat_single.hu", "code", "json_extraction", "rag_32k", "rag_128k"),
    }
    shown = firsttoken("concurrency", profile, "--json")
    assert shown.exit_code == 0, shown.output
    assert orjson.loads(shown.stdout)["max"] == 3


# -- the plan ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_it_is_valid_and_planned_with_its_boots(folder: Path, name: str) -> None:
    checked = firsttoken("validate", folder / name)
    assert checked.exit_code == 0, checked.output
    assert "4 arms, 5 blocks, 2 measures, 3 guards, 3 skipped" in checked.stdout
    planned = firsttoken("plan", folder / name, "--boot-time", "1h", "--sd", "2", "--json")
    assert planned.exit_code == 0, planned.output
    plan = orjson.loads(planned.stdout)
    pilots = {"experiment.toml": 4, "experiment-docker.toml": 1}[name]  # prewarm boots each arm once
    assert plan["boots"] == {"arms": 5, "blocks": 5, "pilots": pilots, "total": 25 + pilots}
    assert (plan["mode"], plan["warnings"]) == ("observed", [])
    windows = {window["name"]: window for window in plan["windows"]}
    assert [window for window in windows if windows[window]["deciding"]] == ["observed"]
    assert windows["observed"]["requests"] == 120
    assert windows["single-rag_128k"]["requests"] == 4
    assert windows["closed-c8-for-60s"]["c"] == 8
    roles = {guard["metric"]: guard["role"] for guard in plan["guards"]}
    assert roles == {"ttft_p90": "deciding", "error_rate": "deciding", "throughput@c=8": "advisory"}


def test_who_has_not_recorded_yet_declares_the_operating_point_as_the_readme_says(folder: Path) -> None:
    """A twentieth of the prompts' length: their number and kinds are what is planned."""
    made = firsttoken(
        *("profile", "builtin", "single-stream", "-o", folder / "generated", "--scale", "0.05", "--requests", "48"),
        *("--model", "qwen3.6-35b"),
    )
    assert made.exit_code == 0, made.output
    (declared,) = re.findall(r"```toml\n(\[profile\].*?)```", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.S)
    file = folder / FILES[0]
    head, _, rest = file.read_text(encoding="utf-8").partition("[profile]\n")
    file.write_text(f"{head}{declared}[engine]\n{rest.partition('[engine]')[2]}", encoding="utf-8")
    planned = firsttoken("plan", file, "--sd", "2", "--boot-time", "1h", "--json")
    assert planned.exit_code == 0, planned.output
    plan = orjson.loads(planned.stdout)
    assert plan["mode"] == "closed"
    assert {window["c"] for window in plan["windows"] if window["deciding"]} == {1, 2, 3}


def test_every_command_of_the_readme_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ *\$ (?:sudo )?firsttoken ([^#\n]+)", text, re.MULTILINE)
    lines += re.findall(r"`(?:sudo )?firsttoken ([^`]+ [^`]+)`", text)
    assert len(lines) >= 9
    for line in lines:
        command: click.Command | None = cli
        words = shlex.split(line)
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
        command.make_context("documented", words)  # raises UsageError for what does not exist


def experiments() -> list[Experiment]:
    return [load_experiment(EXAMPLE / name) for name in FILES]


def test_both_files_hold_the_same_rule() -> None:
    first, second = (experiment.file for experiment in experiments())
    for table in ("load", "design", "measure", "guard", "mixed", "boot_log", "discard", "arm", "skipped", "functional"):
        assert getattr(first, table) == getattr(second, table)
    assert [item.arm for item in first.skipped] == ["nvfp4_marlin_moe", "fastsafetensors", "other_tool_parser"]
    ours, theirs = first.engine, second.engine
    assert ours is not None
    assert theirs is not None
    differing = {name for name in ours.__struct_fields__ if getattr(ours, name) != getattr(theirs, name)}
    assert differing == {"launcher", "argv", "image", "container_args", "cache", "cache_dirs"}


def test_no_limit_is_shorter_than_the_prefill_of_the_longest_prompt() -> None:
    prefill_ns = 159_000 * 64 * SECOND_NS // 128_000  # 64 s at 128,000 tokens; longer ones are slower
    for experiment in experiments():
        file = experiment.file
        assert file.engine is not None
        load = file.load
        limits = (load.first_token_timeout, load.gap_timeout, load.request_timeout, load.stall_timeout)
        assert all(parse_duration(limit) > 2 * prefill_ns for limit in limits)
        assert parse_duration(load.first_token_timeout) > 8 * prefill_ns  # all eight slots may hold one
        assert parse_duration(file.engine.ready_timeout) >= 20 * MINUTE_NS
        assert file.engine.drop_page_cache
        assert (file.engine.min_available_gib, file.engine.cool_down_c) == (8.0, 50.0)
        for arm in experiment.arms:
            assert int(arm.argv[arm.argv.index("--max-model-len") + 1]) > 159_000 + 4096


# -- command lines -----------------------------------------------------------------------------------------------------

SERVE = "/models/Qwen3.6-35B-A3B-FP8 --served-model-name qwen3.6-35b --host {host} --port {port}"
PRODUCTION = (
    "--max-model-len 262144 --gpu-memory-utilization 0.6 --max-num-seqs 8 --max-num-batched-tokens 8192"
    " --enable-chunked-prefill --enable-prefix-caching"
    ' --speculative-config {"method":"mtp","num_speculative_tokens":2}'
    " --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder --enable-prompt-tokens-details"
)
ADDED = {
    "v0_baseline": "",
    "v1_flashinfer": " --attention-backend flashinfer",
    "v2_async": " --attention-backend flashinfer --async-scheduling",
    "v3_spec3": " --attention-backend flashinfer --async-scheduling"
    ' --speculative-config {"method":"mtp","num_speculative_tokens":3}',
}
ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "INFO", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def launches(name: str, tmp_path: Path) -> dict[str, tuple[Arm, Launch]]:
    experiment = load_experiment(EXAMPLE / name)
    return {
        arm.name: (arm, plan_launch(experiment, "0123456789abcdef", arm, arm.name, BootFolder(tmp_path / "01-01-x", 1)))
        for arm in experiment.arms
    }


def test_the_command_lines_without_docker(tmp_path: Path) -> None:
    made = launches("experiment.toml", tmp_path)
    assert tuple(made) == ARMS
    for name, (_, launch) in made.items():
        serve = SERVE.format(host="127.0.0.1", port=launch.port)
        assert launch.argv == tuple(f"vllm serve {serve} {PRODUCTION}{ADDED[name]}".split(" "))
        assert launch.env == ENVIRONMENT
        assert 1024 < launch.port < 65536


def test_the_command_lines_with_docker(tmp_path: Path) -> None:
    for name, (_, launch) in launches("experiment-docker.toml", tmp_path).items():
        port = launch.port
        expected = (
            "docker run --detach --pull never --name firsttoken-01234567-01-01-x"
            " --label firsttoken.run=0123456789abcdef --label firsttoken.boot=01-01-x"
            f" --publish 127.0.0.1:{port}:{port}"
            " --env VLLM_LOGGING_LEVEL --env HF_HUB_OFFLINE --env VLLM_NO_USAGE_STATS"
            " --gpus all --ipc host --ulimit memlock=-1 --ulimit stack=67108864 -v /models:/models:ro"
            f" vllm/vllm-openai:v0.24.0-ubuntu2404 {SERVE.format(host='0.0.0.0', port=port)} {PRODUCTION}{ADDED[name]}"
        )
        assert run_command("docker", launch) == expected.split(" ")
        assert ENVIRONMENT.items() <= client_environment(launch).items()


# -- the log of a GB10 -------------------------------------------------------------------------------------------------

TABLE = "E=256,N=512,device_name=NVIDIA_GB10,dtype=fp8_w8a8,block_shape=[128,128].json"
# {e}: prefix of the engine's process, {at}: time. What every boot of this chip prints, whatever its flags.
CHRONIC = f"""\
/usr/lib/python3/dist-packages/torch/cuda/__init__.py:435: UserWarning:
    Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.
    Minimum and Maximum cuda capability supported by this version of PyTorch is (8.0) - (12.0)
{{e}} INFO {{at}} [config.py:228] Setting attention block size to 1056 tokens to ensure \
that attention page size is >= mamba page size.
{{e}} WARNING {{at}} [config.py:388] Mamba cache mode is set to 'align' for \
Qwen3_5MoeForConditionalGeneration by default
{{e}} WARNING {{at}} [speculative.py:722] Enabling num_speculative_tokens > 1 will run multiple times of forward \
on same MTP layer,which may result in lower acceptance rate
{{e}} INFO {{at}} [__init__.py:261] Selected CutlassFP8ScaledMMLinearKernel for Fp8LinearMethod
{{e}} INFO {{at}} [fp8.py:396] Using TRITON Fp8 MoE backend out of potential \
backends: ['DEEPGEMM', 'TRITON', 'MARLIN'].
{{e}} WARNING {{at}} [fused_moe.py:1090] Using default MoE config. Performance might be sub-optimal! \
Config file not found at /usr/lib/{{pid}}/configs/{TABLE}
[rank0]:W0701 11:04:11.434000 {{pid}} torch/_inductor/utils.py:1679] Not enough SMs to use max_autotune_gemm mode
{{e}} INFO {{at}} [gpu_worker.py:436] Available KV cache memory: 35.72 GiB
{{e}} INFO {{at}} [kv_cache_utils.py:1319] GPU KV cache size: 467,{{kv}} tokens
{{e}} INFO {{at}} [vllm.py:769] Asynchronous scheduling is enabled.
"""
CONFIG = (
    "{e} INFO {at} [core.py:105] Initializing a V1 LLM engine (v0.24.0) with config: "
    "model='/models/Qwen3.6-35B-A3B-FP8', "
    "speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens={drafts})\n"
)
DEFAULT = (
    "{e} INFO {at} [cuda.py:334] Using FLASH_ATTN attention backend out of potential backends: "
    "['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION'].\n"
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|##| 11/11 [00:07<00:00,  6.86it/s]\n"
    "Capturing CUDA graphs (decode, FULL): 100%|##| 7/7 [00:03<00:00, 10.30it/s]\n"
)
FLASHINFER = (
    "{e} INFO {at} [cuda.py:318] Using AttentionBackendEnum.FLASHINFER backend.\n"
    "{e} WARNING {at} [compilation.py:1416] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for "
    "attention backend FlashInferBackend (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting "
    "cudagraph_mode=PIECEWISE\n"
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|##| 11/11 [00:07<00:00,  6.86it/s]\n"
)
DEEPGEMM = (
    "{e} WARNING {at} [vllm.py:900] Auto-disabled DeepGemm for model_type=qwen3_5_moe_text on Blackwell. DeepGemm E8M0 "
    "scale format causes accuracy degradation for this architecture. Falling back to CUTLASS.\n"
)
LOGS = {
    "v0_baseline": CONFIG.replace("{drafts}", "2") + CHRONIC + DEFAULT,
    "v1_flashinfer": CONFIG.replace("{drafts}", "2") + CHRONIC + FLASHINFER,
    "v2_async": CONFIG.replace("{drafts}", "2") + CHRONIC + FLASHINFER,
    "v3_spec3": CONFIG.replace("{drafts}", "3") + CHRONIC + FLASHINFER + DEEPGEMM,
}
UP = "(APIServer pid=1) INFO:     Application startup complete.\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two boots of each arm, and of the baseline's copy, with logs that differ in times, processes and memory."""
    boots = []
    for number, name in enumerate([*LOGS, f"v0_baseline{AA_SUFFIX}", *LOGS]):
        pid, block = 60 + 7 * number, 1 + number // 5
        text = LOGS[name.removesuffix(AA_SUFFIX)] + UP
        for mark, value in {"e": f"(EngineCore pid={pid})", "at": f"07-01 1{number}:04:11", "pid": str(pid)}.items():
            text = text.replace(f"{{{mark}}}", value)
        log = tmp_path / f"{number}.log"
        log.write_text(text.replace("{kv}", f"{600 + number}"), encoding="utf-8")
        found = scan_log(log)
        facts = BootFacts(
            arm=name, block=block, slot=1, status="done", argv=[], wall_ns=0, mono_ns=0,
            findings=found.findings, selection=found.selection, kv_tokens=found.kv_tokens,
        )  # fmt: skip
        boots.append(Boot(tmp_path, facts, ()))
    return Run(tmp_path, {}, tuple(boots), (), ())


@pytest.fixture(params=FILES)
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return load_experiment(EXAMPLE / request.param)


def arm_named(experiment: Experiment, name: str) -> Arm:
    (found,) = [arm for arm in experiment.arms if arm.name == name]
    return found


LOST_GRAPH = re.compile(
    r"WARNING CUDAGraphMode\.FULL_AND_PIECEWISE is not supported with spec-decode .*FlashInferBackend"
)


def test_the_baseline_tells_its_path_and_its_chronic_lines_count_nowhere(run: Run, experiment: Experiment) -> None:
    facts = run.boots[0].facts
    assert facts.selection["attention_backends"] == ["FLASH_ATTN"]
    assert facts.selection["moe_backends"] == ["TRITON Fp8"]
    assert facts.selection["linear_kernels"] == {"Fp8LinearMethod": "CutlassFP8ScaledMMLinearKernel"}
    assert facts.selection["attention_block_tokens"] == 1056
    assert (facts.selection["async_scheduling"], facts.kv_tokens) == (True, 467_600)
    assert {"V01", "V18", "V24", "V25", "V28"} <= {item.id for item in facts.findings}
    for arm in ARMS:
        for severities in (frozenset({"chronic-fallback"}), NOTED, frozenset({"benign"})):
            assert new_lines(run, experiment.file, arm, "v0_baseline", severities) == []


def test_flashinfer_with_drafts_loses_the_full_graph_and_is_flagged(run: Run, experiment: Experiment) -> None:
    log = judge_logs(run, experiment, arm_named(experiment, "v1_flashinfer"))
    (line,) = log.new
    assert LOST_GRAPH.match(line)
    assert (log.clean, log.blockers, log.allowed) == (False, (), ())
    assert "attention backends: FLASHINFER, v0_baseline FLASH_ATTN" in log.notes
    assert any(note.startswith("graphs: mixed prefill-decode, PIECEWISE 11, v0_baseline") for note in log.notes)


def test_async_scheduling_changes_nothing_where_it_is_on_anyway(run: Run, experiment: Experiment) -> None:
    log = judge_logs(run, experiment, arm_named(experiment, "v2_async"))
    assert log.changes_nothing == "v1_flashinfer"
    assert not log.same_as_baseline


def test_a_longer_draft_shows_in_the_configuration_and_an_allowed_line_with_its_reason(
    run: Run, experiment: Experiment
) -> None:
    log = judge_logs(run, experiment, arm_named(experiment, "v3_spec3"))
    assert [bool(LOST_GRAPH.match(line)) for line in log.new] == [True]
    assert log.changes_nothing is None
    assert "resolved configuration differs from v2_async in speculative_config" in log.notes
    ((line, reason),) = allowed_lines(run, experiment.file, "v3_spec3", "v0_baseline")
    assert line.startswith("WARNING Auto-disabled DeepGemm for model_type=qwen3_5_moe_text")
    assert reason.startswith("on purpose, for accuracy")


def test_another_table_of_kernels_is_no_chronic_line(run: Run, experiment: Experiment, tmp_path: Path) -> None:
    """The allow-list names one file. An arm that misses another one is flagged."""
    log = tmp_path / "other.log"
    line = "WARNING 07-01 11:05:29 [fused_moe.py:1090] Using default MoE config. Performance might be sub-optimal! "
    log.write_text(f"{line}Config file not found at /x/{TABLE.replace('N=512', 'N=1024')}\n", encoding="utf-8")
    facts = BootFacts(
        arm="v3_spec3", block=3, slot=1, status="done", argv=[], wall_ns=0, mono_ns=0, findings=scan_log(log).findings
    )
    more = Run(run.path, {}, (*run.boots, Boot(tmp_path, facts, ())), (), ())
    found = new_lines(more, experiment.file, "v3_spec3", "v0_baseline")
    assert [("N=1024" in line, bool(LOST_GRAPH.match(line))) for line in found] == [(False, True), (True, False)]


@pytest.mark.parametrize("name", FILES)
def test_each_allowed_signature_is_one_that_such_a_boot_has(run: Run, name: str) -> None:
    printed = {item.signature for boot in run.boots for item in boot.facts.findings}
    for entry in load_experiment(EXAMPLE / name).file.boot_log.allow:
        assert any(entry.signature in line for line in printed), entry.signature
