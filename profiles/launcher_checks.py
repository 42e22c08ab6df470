"""What a launcher cannot take: each of `process`, `docker`, `podman`, `command` and `external` has its own keys.

A key that a launcher would ignore is refused: the arm would look different and run the same.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from profiles.errors import RuleError
from profiles.experiment_file import Arm, ArmTable, Engine, Experiment

type Refuse = Callable[..., RuleError]

CONTAINERS: Final = ("docker", "podman")
# What only some launchers read. What all read, or what only describes an arm (argv, args, env), is not here.
_READERS: Final = {
    "image": CONTAINERS,
    "container_args": CONTAINERS,
    "hooks": ("command",),
    "url": ("external",),
    "cwd": ("process", *CONTAINERS, "command"),
    "port": ("process", *CONTAINERS, "command"),
}
# Options of `run` that belong to the launcher: with them a container is not found again, or its log is lost.
_OURS: Final = frozenset("--name --detach -d --rm --restart --cidfile --pull -it -ti -i -t --interactive --tty".split())


def check_launchers(experiment: Experiment, refuse: Refuse) -> None:
    """Refuse keys that do not go with the launcher, and keys that it needs and are not there. Raises RuleError."""
    engine = experiment.file.engine
    if engine is None:
        return
    _check_mix(engine, engine, "engine", refuse)
    tables = {table.name: (index, table) for index, table in enumerate(experiment.file.arm)}
    for arm in experiment.arms:
        index, table = tables[arm.name]
        _check_mix(engine, table, f"arm[{index}]", refuse)
        _check_arm(engine, arm, table, f"arm[{index}]", refuse)
    if engine.launcher == "command":
        _check_hooks(engine, refuse)
    if engine.launcher == "external":
        _check_external(experiment, engine, tables, refuse)


def _check_mix(engine: Engine, table: Engine | ArmTable, where: str, refuse: Refuse) -> None:
    """Keys of one table that this launcher does not read."""
    default = Engine()
    for key, readers in _READERS.items():
        value = getattr(table, key, None)
        given = bool(value) and value != getattr(default, key)
        if given and engine.launcher not in readers:
            who = " and ".join(f'"{name}"' for name in readers)
            raise refuse(f"{where}.{key}", f'launcher = "{engine.launcher}" does not read it; {who} do{_s(readers)}')


def _s(readers: tuple[str, ...]) -> str:
    return "es" if len(readers) == 1 else ""


def _check_arm(engine: Engine, arm: Arm, table: ArmTable, where: str, refuse: Refuse) -> None:
    key_of = {key: f"{where}.{key}" if getattr(table, key) else f"engine.{key}" for key in ("image", "container_args")}
    if engine.launcher in CONTAINERS and not arm.image:
        raise refuse(f"{where}.image", f"{arm.name} has no image: give [engine] image, or image here")
    if engine.launcher == "process" and not arm.argv:
        raise refuse(f"{where}.argv", "no command line: give [engine] argv, or argv here")
    if arm.image.startswith("-") or any(space in arm.image for space in " \t\n"):
        raise refuse(key_of["image"], f"{arm.image!r} is not the name of an image")
    for word in arm.container_args:
        option = word.split("=")[0]
        if option in _OURS:
            raise refuse(key_of["container_args"], f"{option} belongs to the launcher, which starts and finds it again")
        if "firsttoken." in word:
            raise refuse(key_of["container_args"], f"{word!r}: labels that begin with firsttoken. say what is ours")
    if not 0 <= arm.port <= 65535:
        raise refuse(f"{where}.port" if table.port is not None else "engine.port", "must be from 0 to 65535")


def _check_hooks(engine: Engine, refuse: Refuse) -> None:
    if engine.hooks is None:
        raise refuse(
            "engine.launcher",
            "the launcher `command` needs [engine.hooks] with start and stop",
            'Such as start = ["systemctl", "--user", "start", "vllm@{port}"].',
        )
    for name in ("start", "stop"):
        if not getattr(engine.hooks, name):
            raise refuse(f"engine.hooks.{name}", "must hold a program and its arguments")


def _check_external(
    experiment: Experiment, engine: Engine, tables: dict[str, tuple[int, ArmTable]], refuse: Refuse
) -> None:
    """An engine that is up already has a URL of its own, and nothing of it is prepared."""
    if engine.cache_dirs:
        raise refuse("engine.cache_dirs", "an external engine is not booted here, so its caches cannot be prepared")
    for arm in experiment.arms:
        index, table = tables[arm.name]
        key = f"arm[{index}].url" if table.url or not engine.url else "engine.url"
        if not arm.url:
            raise refuse(key, f"{arm.name} has no url: an external engine is found there", 'url = "http://host:8000".')
        _check_url(arm.url, partial_refuse(refuse, key))
    shared = [url for url, count in Counter(arm.url.rstrip("/") for arm in experiment.arms).items() if count > 1]
    if shared:
        first, second = [arm.name for arm in experiment.arms if arm.url.rstrip("/") == shared[0]][:2]
        raise refuse(
            f"arm[{tables[second][0]}].url" if tables[second][1].url else "engine.url",
            f"{first} and {second} have the same url, so they are one engine, compared with itself",
            "Give each arm an engine of its own, or let firsttoken start them with another launcher.",
        )


def partial_refuse(refuse: Refuse, key: str) -> Refuse:
    """`refuse` for one key."""
    return lambda problem, hint="": refuse(key, problem, hint)


def _check_url(url: str, refuse: Refuse) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise refuse(f"{url!r} is not a URL: {error}") from None
    if "{" in (parts.netloc or url):
        return  # {host} and {port} are filled in later
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise refuse(f"{url!r} is not the URL of an engine", "Write it as http://host:8000.")
    if parts.username or parts.password:
        raise refuse("a URL with a password would be written into the run", "Use api_key_env, the name of a variable.")
    if parts.query or parts.fragment:
        raise refuse(f"{url!r} must end with its path")
