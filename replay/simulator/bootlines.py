"""What the engine prints while it boots and stops, in vLLM's words.

The first line says that this is a simulation. The others exist so that patterns made for real boot logs find here what
they look for: the arguments as given, the resolved configuration, the selected backend, the chronic warning that every
arm prints, the size of the KV cache, readiness.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from replay.simulator.faults import STUCK_AT_SHARE
from replay.simulator.steps import Settings

# The vLLM release whose lines these are.
IMITATED_VERSION: Final = "0.26.0"
API_SERVER: Final = "APIServer"
ENGINE_CORE: Final = "EngineCore"


@dataclass(frozen=True, slots=True)
class Line:
    """One line and when it is due: `share` of the boot time, 0 at its start and 1 when the socket opens."""

    share: float
    process: str
    text: str


def logged(text: str, source: str, wall_ns: int, level: str = "INFO") -> str:
    """A line as vLLM's logger writes it, without the prefix of the process."""
    stamp = datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%m-%d %H:%M:%S")
    return f"{level} {stamp} [{source}] {text}"


def prefixed(line: str, process: str, pid: int) -> str:
    return f"({process} pid={pid}) {line}"


def first_line(version: str, seed: int, speed: float, time_scale: float) -> str:
    """What this process is, with all that was drawn for this boot."""
    return (
        f"{version}: embedded engine, a simulation and not hardware (seed {seed}, speed factor {speed:.6f}, "
        f"time scale {time_scale:g}). The lines below imitate vLLM's."
    )


def boot_lines(
    *,
    given: Mapping[str, Any],
    settings: Settings,
    model: str,
    served_name: str,
    method: str | None,
    explicit_backend: bool,
    boot_ns: int,
    wall_ns: int,
    compiled: bool | None = None,
    dev_mode: bool = False,
) -> list[Line]:
    """The boot log between the first line and the start of the server. `given` are the arguments of the command.

    `compiled` says whether the graph came from the compile cache; None: there is no such cache, and no line of it.
    """
    drafts = settings.draft_tokens
    speculative = f"SpeculativeConfig(method='{method}', model=None, num_spec_tokens={drafts})" if drafts else "None"
    config = (
        f"model='{model}', speculative_config={speculative}, max_seq_len={settings.max_model_len}, "
        f"enforce_eager={settings.enforce_eager}, served_model_name={served_name}, "
        f"max_num_seqs={settings.max_num_seqs}, max_num_batched_tokens={settings.max_num_batched_tokens}, "
        f"enable_prefix_caching={settings.prefix_caching}, enable_chunked_prefill=True, "
        f"async_scheduling={settings.async_scheduling}"
    )
    lines: list[Line] = []

    def say(share: float, process: str, source: str, text: str, level: str = "INFO") -> None:
        lines.append(Line(share, process, logged(text, source, wall_ns + round(share * boot_ns), level)))

    say(0.0, API_SERVER, "api_utils.py:273", f"non-default args: {dict(given)!r}")
    if dev_mode:
        warning = "SECURITY WARNING: Development endpoints are enabled! This should NOT be used in production!"
        say(0.0, API_SERVER, "api_server.py:190", warning, "WARNING")
    say(0.05, API_SERVER, "model.py:1788", f"Using max model len {settings.max_model_len}")
    chunked = f"Chunked prefill is enabled with max_num_batched_tokens={settings.max_num_batched_tokens}."
    say(0.05, API_SERVER, "scheduler.py:252", chunked)
    if drafts > 1:
        say(
            0.05,
            API_SERVER,
            "speculative.py:722",
            "Enabling num_speculative_tokens > 1 will run multiple times of forward on same MTP layer,"
            "which may result in lower acceptance rate",
            "WARNING",
        )
    if settings.enforce_eager:
        eager = "Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent to setting -cc.mode=none"
        say(0.05, API_SERVER, "vllm.py:1062", eager, "WARNING")
        say(0.05, API_SERVER, "vllm.py:762", "Cudagraph is disabled under eager mode")
    scheduling = "enabled" if settings.async_scheduling else "disabled"
    say(0.05, API_SERVER, "vllm.py:1109", f"Asynchronous scheduling is {scheduling}.")
    say(0.1, ENGINE_CORE, "core.py:116", f"Initializing a V1 LLM engine (v{IMITATED_VERSION}) with config: {config}")
    backend = (
        "Using AttentionBackendEnum.FLASHINFER backend."
        if explicit_backend
        else "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN']."
    )
    say(0.2, ENGINE_CORE, "cuda.py:482", backend)
    say(
        0.3,
        ENGINE_CORE,
        "fused_moe.py:1090",
        "Using default MoE config. Performance might be sub-optimal! Config file not found at "
        "E=256,N=512,device_name=firsttoken_simulation,dtype=fp8_w8a8.json",
        "WARNING",
    )
    say(0.7, ENGINE_CORE, "default_loader.py:384", f"Loading weights took {0.5 * boot_ns / 1e9:.2f} seconds")
    for source, text in _compile_lines(compiled, settings.max_num_batched_tokens, boot_ns):
        say(0.75, ENGINE_CORE, source, text)
    size = settings.kv_tokens
    say(0.8, ENGINE_CORE, "kv_cache_utils.py:2177", f"GPU KV cache size: {size:,} tokens")
    times = f"{size / settings.max_model_len:.2f}x"
    fits = f"Maximum concurrency for {settings.max_model_len:,} tokens per request: {times}"
    say(0.8, ENGINE_CORE, "kv_cache_utils.py:2178", fits)
    init = f"init engine (profile, create kv cache, warmup model) took {0.3 * boot_ns / 1e9:.2f} s"
    say(1.0, ENGINE_CORE, "core.py:340", init)
    return lines


def ready_lines(host: str, port: int, wall_ns: int) -> list[Line]:
    """Printed once the socket listens."""
    where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return [
        Line(1.0, API_SERVER, logged(f"Starting vLLM server on {where}", "api_server.py:677", wall_ns)),
        Line(1.0, API_SERVER, "INFO:     Waiting for application startup."),
        Line(1.0, API_SERVER, "INFO:     Application startup complete."),
    ]


def shutdown_lines(wall_ns: int) -> list[Line]:
    return [
        Line(0.0, API_SERVER, logged("[shutdown] API server: shutdown triggered", "launcher.py:100", wall_ns)),
        Line(0.0, ENGINE_CORE, logged("[shutdown] EngineCore: start mode=abort timeout=0s", "core.py:1432", wall_ns)),
        Line(0.0, API_SERVER, "INFO:     Application shutdown complete."),
    ]


def _compile_lines(compiled: bool | None, tokens: int, boot_ns: int) -> list[tuple[str, str]]:
    if compiled is None:
        return []
    seconds = 0.2 * boot_ns / 1e9
    if compiled:
        loaded = (
            f"Directly load the compiled graph(s) for compile range (1, {tokens}) from the cache, took {seconds:.3f} s"
        )
        return [("backends.py:285", loaded)]
    return [
        ("backends.py:390", f"Compiling a graph for compile range (1, {tokens}) takes {seconds:.2f} s"),
        ("monitor.py:48", f"torch.compile took {1.2 * seconds:.2f} s in total"),
    ]


def failed_boot_lines(wall_ns: int, *, out_of_memory: bool = False) -> list[Line]:
    """A boot that dies, as `--die-in-boot` asks. The last line names no cause, as in vLLM."""
    texts = [(ENGINE_CORE, logged("EngineCore failed to start.", "core.py:1110", wall_ns, "ERROR"))]
    if out_of_memory:
        problem = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of "
        )
        problem += "121.69 GiB of which 1.13 GiB is free."
        texts.append((ENGINE_CORE, logged(problem, "core.py:1110", wall_ns, "ERROR")))
    texts.append((API_SERVER, "RuntimeError: Engine core initialization failed. See root cause above."))
    return [Line(STUCK_AT_SHARE, process, text) for process, text in texts]


def reset_line(held_blocks: int, wall_ns: int) -> Line:
    """What became of a reset: it fails while a request holds blocks."""
    if not held_blocks:
        return Line(0.0, ENGINE_CORE, logged("Successfully reset prefix cache", "block_pool.py:612", wall_ns))
    failed = f"Failed to reset prefix cache because some blocks ({held_blocks}) are not freed yet"
    return Line(0.0, ENGINE_CORE, logged(failed, "block_pool.py:601", wall_ns, "WARNING"))


def jit_line(kernel: str, wall_ns: int) -> Line:
    """A kernel that is compiled while serving."""
    text = f"Triton kernel JIT compilation during inference: {kernel}. This causes a latency spike; consider extending "
    text += "warmup to cover this shape/config."
    return Line(0.0, ENGINE_CORE, logged(text, "jit_monitor.py:103", wall_ns, "WARNING"))


def death_line(wall_ns: int) -> Line:
    """A running engine that dies, as `--die-after` asks."""
    text = "EngineCore encountered a fatal error."
    return Line(0.0, ENGINE_CORE, logged(text, "core.py:1120", wall_ns, "ERROR"))
