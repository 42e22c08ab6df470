"""What can be refused before the first boot: a program, an image, a hook or an engine that is not there."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from profiles.errors import RuleError
from profiles.experiment_file import Arm, Engine, Experiment
from profiles.toml_lines import line_of
from profiles.units import SECOND_NS
from replay.engines.commands import call_now
from replay.engines.external import host_and_port, reaches
from replay.engines.ports import find_program, free_port, resolve
from replay.host import memory_total_bytes

ASK_LIMIT_NS = 30 * SECOND_NS
GIB = 1024**3

type Refuse = Callable[..., RuleError]


def check_launcher(experiment: Experiment) -> None:
    """Look for what the launcher will need. Starts nothing. Raises RuleError with file, line and key."""
    engine = experiment.file.engine
    assert engine is not None
    text = experiment.path.read_text(encoding="utf-8")

    def refuse(key: str, problem: str, hint: str = "") -> RuleError:
        return RuleError(experiment.path, key, problem, line=line_of(text, key), hint=hint)

    _check_memory(engine, refuse)
    _check_host(experiment, engine, refuse)
    if engine.launcher != "external":
        for arm in experiment.arms:
            if not (experiment.path.parent / arm.cwd).is_dir():
                raise refuse(_key(experiment, arm, "cwd"), f"{arm.cwd!r} is not a directory")
    if engine.launcher == "process":
        _check_programs(experiment, refuse)
    elif engine.launcher in ("docker", "podman"):
        _check_images(experiment, engine, refuse)
    elif engine.launcher == "command":
        _check_hooks(experiment, engine, refuse)
    else:
        _check_urls(experiment, refuse)


def _key(experiment: Experiment, arm: Arm, key: str) -> str:
    """Where the key stands that gives an arm this value: in its own table, or in the engine's."""
    for index, table in enumerate(experiment.file.arm):
        if table.name == arm.name and getattr(table, key):
            return f"arm[{index}].{key}"
    return f"engine.{key}"


def _check_memory(engine: Engine, refuse: Refuse) -> None:
    total = memory_total_bytes()
    if engine.launcher != "external" and total is not None and engine.min_available_gib * GIB >= total:
        raise refuse(
            "engine.min_available_gib",
            f"{engine.min_available_gib:g} GiB can never be available: this machine has {total / GIB:.1f} GiB",
            "Every boot would be discarded.",
        )


def _check_host(experiment: Experiment, engine: Engine, refuse: Refuse) -> None:
    """The host has an address, and one of ours where a port of it is to be found."""
    hint = "It is where the engine listens and where its requests go: an address of this machine, such as 127.0.0.1."
    try:
        resolve(engine.host)
        if any(not arm.port for arm in experiment.arms):
            free_port(engine.host)
    except (OSError, ValueError) as error:  # a name that cannot be one is a UnicodeError
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise refuse("engine.host", f"{engine.host!r} cannot be used: {reason}", hint) from None


def _check_programs(experiment: Experiment, refuse: Refuse) -> None:
    for arm in experiment.arms:
        if find_program(arm.argv[0], experiment.path.parent / arm.cwd) is None:
            raise refuse(
                _key(experiment, arm, "argv"),
                f"{arm.name}: the command {arm.argv[0]!r} does not exist or may not be run",
                "Give a program on PATH, or a path from cwd.",
            )


def _check_images(experiment: Experiment, engine: Engine, refuse: Refuse) -> None:
    program, cwd = engine.launcher, experiment.path.parent
    if shutil.which(program) is None:
        raise refuse("engine.launcher", f"there is no {program} on PATH")
    # Whether there is an image is the daemon's to say: first whether it answers at all.
    asked = call_now([program, "version"], env=os.environ, cwd=cwd, limit_ns=ASK_LIMIT_NS)
    if asked.code != 0:
        raise refuse(
            "engine.launcher", f"{program} does not answer: {asked.said}", "Start its daemon, or join its group."
        )
    for image, arm in {arm.image: arm for arm in reversed(experiment.arms)}.items():
        inspect = [program, "image", "inspect", image]
        asked = call_now(inspect, env=os.environ, cwd=cwd, limit_ns=ASK_LIMIT_NS)
        if asked.code != 0:
            raise refuse(
                _key(experiment, arm, "image"),
                f"{program} has no image {image!r} here: {asked.said}",
                f"Nothing is pulled while a run goes on, so that all boots have one image: `{program} pull {image}`.",
            )


def _check_hooks(experiment: Experiment, engine: Engine, refuse: Refuse) -> None:
    assert engine.hooks is not None  # the rule was checked
    cwd: Path = experiment.path.parent / experiment.arms[0].cwd
    for name in ("start", "stop", "alive", "logs", "wipe"):
        hook = getattr(engine.hooks, name)
        if hook and not re.search(r"[{}]", hook[0]) and find_program(hook[0], cwd) is None:
            raise refuse(
                f"engine.hooks.{name}",
                f"the command {hook[0]!r} does not exist or may not be run",
                "A hook is a program and its arguments, not a line of a shell.",
            )


def _check_urls(experiment: Experiment, refuse: Refuse) -> None:
    for arm in experiment.arms:
        if "{" not in arm.url and not reaches(*host_and_port(arm.url)):
            raise refuse(
                _key(experiment, arm, "url"),
                f"{arm.name}: nothing answers at {arm.url}",
                "The launcher `external` measures an engine that is up already: start it first.",
            )
