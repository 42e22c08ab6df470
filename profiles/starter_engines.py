"""The `[engine]` table of a starter, for each kind of engine. What nobody but the user knows is a TODO."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class EngineText:
    """`lines` of `[engine]` without its model; an example of one arm, and whether usage comes in every event."""

    lines: tuple[str, ...]
    running_usage: bool
    arm: str
    arm_args: str


_SALT: Final = 'cache_isolation = "salt"\t# vLLM keeps passes apart by cache_salt; each boot proves it'
_NONCE: Final = 'cache_isolation = "nonce"\t# a word at the head of each conversation keeps passes apart'
_READY: Final = (
    'ready_timeout = "1200s"\t# until a real token comes: the first boot may compile kernels',
    'stop_timeout = "60s"',
)

ENGINES: Final = {
    "vllm": EngineText(
        lines=(
            'launcher = "process"',
            'argv = ["vllm", "serve", "TODO/model-or-path", "--served-model-name", "{model}",',
            '        "--host", "{host}", "--port", "{port}", "--enable-prompt-tokens-details"]',
            _SALT,
            *_READY,
        ),
        running_usage=True,
        arm="v1_flashinfer",
        arm_args='["--attention-backend", "FLASHINFER"]',
    ),
    "sglang": EngineText(
        lines=(
            'launcher = "process"',
            'argv = ["python3", "-m", "sglang.launch_server", "--model-path", "TODO/model-or-path",',
            '        "--served-model-name", "{model}", "--host", "{host}", "--port", "{port}",',
            '        "--enable-metrics", "--enable-cache-report"]',
            _NONCE,
            *_READY,
        ),
        running_usage=True,
        arm="v1_flashinfer",
        arm_args='["--attention-backend", "flashinfer"]',
    ),
    "llamacpp": EngineText(
        lines=(
            'launcher = "process"',
            "# -c is the context of all slots together, and -np the slots: below 8 of them c = 8 measures a queue.",
            'argv = ["llama-server", "-m", "TODO/model.gguf", "--alias", "{model}", "--host", "{host}",',
            '        "--port", "{port}", "-c", "65536", "-np", "8", "--metrics", "--no-webui"]',
            _NONCE + "; llama.cpp ignores cache_salt",
            *_READY,
        ),
        running_usage=False,
        arm="v1_flash_attention",
        arm_args='["-fa", "on"]',
    ),
    "docker": EngineText(
        lines=(
            'launcher = "docker"\t# or "podman"; nothing is pulled while a run goes on',
            'image = "vllm/vllm-openai:TODO-tag"',
            'container_args = ["--gpus", "all", "--ipc", "host", "-v", "TODO/models:/models:ro"]',
            "# Behind the image's own entry point. {bind} is the address inside the container.",
            'argv = ["--model", "/models/TODO", "--served-model-name", "{model}",',
            '        "--host", "{bind}", "--port", "{port}", "--enable-prompt-tokens-details"]',
            _SALT,
            *_READY,
        ),
        running_usage=True,
        arm="v1_flashinfer",
        arm_args='["--attention-backend", "FLASHINFER"]',
    ),
}
