"""The command `firsttoken engine`. Flags that vLLM has carry vLLM's names and meaning; the others are the simulation's.

An unknown flag is a usage error, as in vLLM: an arm that is misspelt must not run as the baseline.
"""

from typing import Any

import click
import msgspec

from replay.simulator.options import SIMULATION_ONLY, simulation_options


class Speculation(msgspec.Struct):
    """The part of vLLM's speculative config that changes something here."""

    method: str
    num_speculative_tokens: int


def _read_speculation(ctx: click.Context, param: click.Parameter, value: str | None) -> Speculation | None:
    """JSON, as vLLM's --speculative-config takes it."""
    if value is None:
        return None
    try:
        config = msgspec.json.decode(value, type=Speculation)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None
    if not 1 <= config.num_speculative_tokens <= 16:
        raise click.BadParameter("num_speculative_tokens must be between 1 and 16")
    return config


@click.command()
@click.option("--model", default="simulated", show_default=True, help="Name of the model, as root in /v1/models.")
@click.option("--served-model-name", help="Name that requests use.  [default: the model]")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--max-model-len", type=click.IntRange(min=2), default=32_768, show_default=True)
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--max-num-batched-tokens", type=click.IntRange(min=1), default=2_048, show_default=True)
@click.option(
    "--num-gpu-blocks-override", type=click.IntRange(min=1), default=8_192, show_default=True, help="KV cache."
)
@click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=True, show_default=True)
@click.option(
    "--speculative-config",
    metavar="JSON",
    callback=_read_speculation,
    help="Draft length; without it nothing is drafted.",
)
@click.option("--async-scheduling/--no-async-scheduling", default=True, show_default=True)
@click.option(
    "--attention-backend",
    type=click.Choice(["FLASHINFER"], case_sensitive=False),
    help="Names the backend that is chosen anyway.",
)
@click.option("--enforce-eager", is_flag=True, help="No captured graphs: slower steps, and the log says so.")
@click.option(
    "--enable-prompt-tokens-details/--no-enable-prompt-tokens-details",
    default=True,
    show_default=True,
    help="Cached tokens in usage; off in vLLM unless it is given.",
)
@simulation_options
@click.pass_context
def engine(ctx: click.Context, /, **flags: Any) -> None:
    """Run the embedded engine: a simulation of a vLLM server, for tests, demos and calibration.

    It speaks OpenAI's streaming API, /health, /v1/models and /metrics in vLLM's names. Prefill and decode share the
    machine, so the first token waits longer with longer prompts and more requests in flight; speculative decoding
    accepts more on predictable text. A token is a word. Nothing it measures says anything about hardware.

    A request shows a fault when it asks for one, in the header "firsttoken-fault" or the field "firsttoken_fault":
    error_in_stream, cut, stall:2s or http_500. In the same way it asks for a shape, in "firsttoken-shape" or
    "firsttoken_shape": reasoning:8 (or reasoning_content:8), tools:6, k:4, early_role, comments, joined by commas.

    It calls the tools that the last user message names, answers with JSON of the schema that is asked for, thinks
    where enable_thinking is set, and ends at a stop sequence. The flags from --break-tool-arguments to --no-tools
    break that, so that an arm can.

    POST /reset_prefix_cache is there with VLLM_SERVER_DEV_MODE=1 in the environment, as in vLLM.

    \b
    Example:
      firsttoken engine --port 8000 \\
        --speculative-config '{"method":"mtp","num_speculative_tokens":2}'
      curl -N http://127.0.0.1:8000/v1/chat/completions \\
        -H 'content-type: application/json' \\
        -d '{"stream":true,"messages":[{"role":"user","content":"What is C?"}]}'

    Exit codes: 0 told to stop, 1 failure, 2 wrong usage; a fault that is asked for has its own.
    """
    import secrets

    from profiles.errors import UsageError
    from replay.simulator import lifecycle
    from replay.simulator.options import faults_of
    from replay.simulator.steps import Settings

    speculation: Speculation | None = flags["speculative_config"]
    settings = Settings(
        max_num_seqs=flags["max_num_seqs"],
        max_num_batched_tokens=flags["max_num_batched_tokens"],
        max_model_len=flags["max_model_len"],
        kv_blocks=flags["num_gpu_blocks_override"],
        draft_tokens=speculation.num_speculative_tokens if speculation else 0,
        prefix_caching=flags["enable_prefix_caching"],
        async_scheduling=flags["async_scheduling"],
        enforce_eager=flags["enforce_eager"],
    )
    if settings.kv_tokens < settings.max_model_len:
        raise UsageError(
            f"the KV cache holds {settings.kv_tokens} tokens, one request may need {settings.max_model_len}",
            "Lower --max-model-len or raise --num-gpu-blocks-override.",
        )
    faults = faults_of(flags)
    if flags["port"] == 0 and (faults.twin or faults.restart_after is not None):
        raise UsageError("two processes cannot agree on a port that is drawn", "Give --port.")
    seed = secrets.randbits(32) if flags["seed"] is None else flags["seed"]
    plan = lifecycle.Plan(
        settings=settings,
        host=flags["host"],
        port=flags["port"],
        model=flags["model"],
        served_name=flags["served_model_name"] or flags["model"],
        seed=seed,
        speed_sd=flags["speed_sd"],
        time_scale=flags["time_scale"],
        boot_ns=flags["boot_time"],
        method=speculation.method if speculation else None,
        explicit_backend=flags["attention_backend"] is not None,
        given=_given(ctx, flags),
        truth=flags["truth"],
        kv_jitter=flags["kv_jitter"],
        cached_in_usage=flags["enable_prompt_tokens_details"],
        faults=faults,
    )
    ctx.exit(lifecycle.run(plan, click.echo))


def _given(ctx: click.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """The engine's arguments that were given, by name, as plain values."""
    given: dict[str, Any] = {}
    for name, value in flags.items():
        source = ctx.get_parameter_source(name)
        if source is click.core.ParameterSource.COMMANDLINE and name not in SIMULATION_ONLY:
            given[name] = msgspec.to_builtins(value) if isinstance(value, Speculation) else value
    return given
