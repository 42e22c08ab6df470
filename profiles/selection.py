"""What an engine selected and measured while it booted, as its log says: `BootFacts.selection`.

A key is absent where the log does not tell; a backend that was passed over in silence shows only in the line that names
the chosen one. Written by `replay.log_facts`, compared by `analysis.boot_log`.
"""

from typing import Final, TypedDict


class Selection(TypedDict, total=False):
    """Lists are sorted and without repeats. Sizes in tokens or bytes, times in ns."""

    engine: str  # vllm, sglang, llamacpp
    version: str
    # What was chosen, by the engine or by a flag.
    attention_backends: list[str]  # upper case
    moe_backends: list[str]
    linear_kernels: dict[str, str]  # layer method → kernel
    flash_attention: str  # version of FlashAttention, or llama.cpp's enabled, disabled
    model_runner: str  # V1, V2
    async_scheduling: bool
    attention_block_tokens: int  # of a hybrid model: shorter prefixes are never found in the cache
    graphs: dict[str, int | None]  # kind of CUDA graph → how many were captured
    layers_offloaded: list[int]  # llama.cpp: on the GPU, of all
    graph_splits: int
    slots: int
    slot_tokens: int
    threads: int
    config: dict[str, str]  # the resolved configuration
    arguments: dict[str, str]  # those that differ from the defaults
    # What differs from boot to boot.
    kv_tokens: int
    kv_bytes: int
    max_concurrency: float  # requests of the longest length that the KV cache holds
    model_bytes: int
    weights_ns: int
    model_ns: int
    download_ns: int  # above 0: the time of this boot is the network's
    compile_ns: int
    profile_ns: int
    graph_capture_ns: int
    graph_bytes: int
    init_ns: int


# What tells two arms apart. `config` is compared beside them, for it holds paths and ports.
CHOICES: Final = (
    *("engine", "version", "attention_backends", "moe_backends", "linear_kernels", "flash_attention", "model_runner"),
    *("async_scheduling", "attention_block_tokens", "graphs", "layers_offloaded", "graph_splits"),
    *("slots", "slot_tokens", "threads"),
)
