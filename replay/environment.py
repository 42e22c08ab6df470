"""The environment of an engine: what it is started with, what of that is written down, and where its key comes from.

A changed variable is a changed engine: one of vLLM's selects the kernels. A value is written down where its name says
that an engine reads it, never where it may be a credential; of everything else the arm sets, the name alone.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from profiles.errors import RuleError, UsageError
from profiles.experiment_file import Arm, Experiment
from profiles.toml_lines import line_of

# What engines, their libraries, their compilers and their drivers read.
ENGINES_READ: Final = re.compile(
    r"(VLLM|SGLANG|SGL|LLAMA|GGML|TRTLLM|TLLM|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|FLASH_ATTENTION|XFORMERS"
    r"|NCCL|UCX|GLOO|CUDA|CUDNN|CUBLAS|NVIDIA|NVTE|CUTE|CUTLASS|DG|ROCM|HIP|HSA|RCCL|AMD|MIOPEN|AITER"
    r"|HF|HUGGINGFACE|TRANSFORMERS|TOKENIZERS|SAFETENSORS|OMP|MKL|OPENBLAS|KMP|GOMP|NUMEXPR|RAY|XDG_CACHE"
    r"|MALLOC|LD)(_\w*)?|PYTHON(PATH|HOME|HASHSEED|MALLOC|OPTIMIZE)"
)
# The end of TOKENIZERS_PARALLELISM is no secret.
CREDENTIAL: Final = re.compile(r"KEY|TOKEN(?!IZER)|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|SIGNATURE", re.IGNORECASE)
_USER_IN_URL: Final = re.compile(r"://[^/\s]*@")
# Launchers whose engine, or whose hooks, get our own environment too.
INHERITING: Final = ("process", "command")

type Variables = dict[str, str | None]  # None: there is a value, and it is not written down


def stated_value(name: str, value: str) -> str | None:
    """The value as it may be written down, None where only the name may be."""
    if ENGINES_READ.fullmatch(name) is None or CREDENTIAL.search(name) or _USER_IN_URL.search(value):
        return None
    return value


def stated(variables: Mapping[str, str]) -> Variables:
    """What an arm sets: every name, the values that may be written down."""
    return {name: stated_value(name, value) for name, value in sorted(variables.items())}


def inherited(launcher: str, env: Mapping[str, str] | None = None) -> Variables:
    """What an engine of this launcher gets from our own environment, as far as engines read it."""
    own = os.environ if env is None else env
    return stated({name: own[name] for name in own if ENGINES_READ.fullmatch(name)}) if launcher in INHERITING else {}


def stated_arguments(words: Sequence[str]) -> list[str]:
    """Arguments of a container's client, without the values of what they set in its environment."""
    found: list[str] = []
    for word in words:
        option, equals, rest = word.partition("=")
        if found and found[-1] in ("-e", "--env"):
            found.append(_stated_setting(word))
        elif equals and option in ("-e", "--env"):
            found.append(f"{option}={_stated_setting(rest)}")
        else:
            found.append(word)
    return found


def _stated_setting(setting: str) -> str:
    name, equals, value = setting.partition("=")
    return setting if not equals or stated_value(name, value) is not None else f"{name}=..."


def check_unchanged(launcher: str, before: Mapping[str, str | None] | None) -> None:
    """Raise UsageError where engines would now inherit other values than those of this run's first boot.

    A run of an earlier version says nothing (None). A value that is not written down cannot be compared.
    """
    if before is None:
        return
    now = inherited(launcher)
    changes = [
        f"{name} {_said(before, name)} and {_said(now, name, now=True)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name) or (name in before) != (name in now)
    ]
    if changes:
        raise UsageError(
            f"the environment of the engines has changed since this run's first boot: {'; '.join(changes)}",
            "Boots before and after it could not be compared: set it back, or start a new run.",
        )


def _said(variables: Mapping[str, str | None], name: str, *, now: bool = False) -> str:
    verb = "is" if now else "was"
    if name not in variables:
        return f"{verb} not set"
    value = variables[name]
    return f"{verb} {value!r}" if value is not None else f"{verb} set"


def engine_key(variable: str, arm: Arm, env: Mapping[str, str] | None = None) -> str:
    """The key that an arm's engine asks for: from the arm's environment, else from our own. "" where none is set."""
    own = os.environ if env is None else env
    return (arm.env.get(variable) or own.get(variable, "")) if variable else ""


def without_key(variable: str, arms: Iterable[Arm], env: Mapping[str, str] | None = None) -> list[str]:
    """Arms whose key is asked for and not there."""
    return [arm.name for arm in arms if variable and not engine_key(variable, arm, env)]


def check_key(experiment: Experiment) -> None:
    """Raise RuleError where a key is named and an arm has none: every request of it would be refused."""
    engine = experiment.file.engine
    variable = engine.api_key_env if engine is not None else ""
    lacking = without_key(variable, experiment.arms)
    if lacking:
        key, text = "engine.api_key_env", experiment.path.read_text(encoding="utf-8")
        raise RuleError(
            experiment.path,
            key,
            f"{variable} is set neither in the env of {', '.join(lacking)} nor in the environment of this command",
            line=line_of(text, key),
            hint=f"export {variable}=... in the shell of the run, or leave api_key_env out if no key is asked for.",
        )
