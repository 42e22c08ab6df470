"""experiment.toml: arms, load, design and the rule that decides, fixed before the first boot.

1. `load_experiment` reads the file into typed tables. An unknown key is an error with its line and a suggestion: a typo
   must not silently drop a guard.
2. `Experiment.arms` resolves the ladder: what each arm adds to the engine's command line.
3. `check_rule` refuses what the rule cannot hold whatever the profile says: a guard with too few requests, an arm that
   extends nothing.
4. `check_against_profile` refuses what this profile cannot carry: an operating point that production never reaches, a
   profile observed too briefly or without the content that a replay needs.

Two hashes identify a rule: of the bytes (sha256sum prints the same), and of its meaning (canonical JSON of the typed
form), so that a reformatted file is told apart from a changed rule.
"""

import hashlib
import re
import tomllib
from pathlib import Path

import msgspec
import orjson

from profiles import experiment_file
from profiles.errors import RuleError
from profiles.experiment_checks import LoadFacts, check_against_profile, check_rule, load_facts
from profiles.experiment_file import AlsoWindow, Arm, Experiment, ExperimentFile, GuardRule, MeasureRule, Table
from profiles.toml_lines import line_of, not_toml, rule_error
from profiles.units import SECOND_NS, parse_duration

__all__ = [
    "AlsoWindow",
    "Arm",
    "Experiment",
    "ExperimentFile",
    "GuardRule",
    "LoadFacts",
    "MeasureRule",
    "check_against_profile",
    "load_experiment",
    "load_facts",
]


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment file. Raises RuleError with file, line and key."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise RuleError(path, "", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RuleError(path, "", "not UTF-8 text") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise not_toml(path, text, error) from None
    try:
        file = msgspec.convert(tables, ExperimentFile)
    except msgspec.ValidationError as error:
        raise rule_error(path, text, str(error), _known_keys(), ExperimentFile) from None
    meaning = orjson.dumps(msgspec.to_builtins(file), option=orjson.OPT_SORT_KEYS)
    experiment = Experiment(
        path=path,
        file=file,
        arms=resolve_arms(path, text, file),
        also=tuple(window for entry in file.load.also for window in _parse_also(path, text, entry)),
        bytes_sha256=hashlib.sha256(data).hexdigest(),
        semantic_sha256=hashlib.sha256(meaning).hexdigest(),
    )
    check_rule(experiment, text)
    return experiment


# Above it a client in one process would shape the result (benchmarks/README.md, replay).
HIGHEST_C = 64
_ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


def resolve_arms(path: Path, text: str, file: ExperimentFile) -> tuple[Arm, ...]:
    """The arms with the ladder resolved, the baseline first.

    With `ladder = "cumulative"` an arm that names nothing in `extends` extends the one before it.
    """

    def refuse(index: int, key: str, problem: str) -> RuleError:
        where = f"arm[{index}].{key}"
        return RuleError(path, where, problem, line=line_of(text, where))

    resolved: dict[str, Arm] = {}
    marked = [table.name for table in file.arm if table.baseline]
    if len(marked) > 1:
        raise refuse(1, "baseline", f"only one arm is the baseline, these say so: {', '.join(marked)}")
    for index, table in enumerate(file.arm):
        if _ARM_NAME.fullmatch(table.name) is None:
            raise refuse(index, "name", f"{table.name!r} may hold letters, digits, _ and - only")
        if table.name in resolved:
            raise refuse(index, "name", f"{table.name!r} is the name of two arms")
        parent_name = table.extends
        if parent_name is None and file.design.ladder == "cumulative" and index > 0:
            parent_name = file.arm[index - 1].name
        if parent_name and parent_name not in resolved:
            raise refuse(index, "extends", f"{parent_name!r} is not an arm above this one")
        parent = resolved.get(parent_name or "")
        engine = file.engine
        base_argv = parent.argv if parent else tuple(engine.argv if engine else ())
        base_env = parent.env if parent else dict(engine.env if engine else {})
        argv = tuple(table.argv) + tuple(table.args) if table.argv else base_argv + tuple(table.args)
        if not argv and (engine is None or engine.launcher == "process"):
            raise refuse(index, "argv", "no command line: give [engine] argv, or argv here")
        resolved[table.name] = Arm(
            name=table.name,
            argv=argv,
            env={**base_env, **table.env},
            extends=parent.name if parent else None,
            changes=frozenset(table.changes) | (parent.changes if parent else frozenset()),
            note=table.note,
            image=table.image or (parent.image if parent else engine.image if engine else ""),
            container_args=(parent.container_args if parent else tuple(engine.container_args if engine else ()))
            + tuple(table.container_args),
            cwd=table.cwd or (parent.cwd if parent else engine.cwd if engine else "."),
            url=table.url or (parent.url if parent else engine.url if engine else ""),
            port=table.port if table.port is not None else parent.port if parent else engine.port if engine else 0,
            ready_timeout=table.ready_timeout
            or (parent.ready_timeout if parent else engine.ready_timeout if engine else "1200s"),
            stop_timeout=table.stop_timeout
            or (parent.stop_timeout if parent else engine.stop_timeout if engine else "60s"),
        )
    baseline = marked[0] if marked else next(iter(resolved), "")
    return tuple(sorted(resolved.values(), key=lambda arm: arm.name != baseline))


_ALSO_CLOSED = re.compile(r"closed c=(\d+)(?: for (\S+))?( per class)?")
_ALSO_SWEEP = re.compile(r"sweep c=(\d+)\.\.(\d+)")


def _parse_also(path: Path, text: str, entry: str) -> list[AlsoWindow]:
    if entry == "single":
        return [AlsoWindow("single", 1, None)]
    line = line_of(text, "load.also")
    sweep = _ALSO_SWEEP.fullmatch(entry)
    if sweep is not None and 1 <= int(sweep[1]) <= int(sweep[2]) <= HIGHEST_C:
        return [AlsoWindow("sweep", c, None) for c in range(int(sweep[1]), int(sweep[2]) + 1)]
    match = _ALSO_CLOSED.fullmatch(entry)
    if match is None or not 1 <= int(match[1]) <= HIGHEST_C:
        known = '"single", "sweep c=1..8", "closed c=8 for 60s" or "closed c=8 for 60s per class"'
        problem = f"{entry!r} is not a window; write {known}, with c from 1 to {HIGHEST_C}"
        raise RuleError(path, "load.also", problem, line=line)
    try:
        limit_ns = parse_duration(match[2]) if match[2] else 60 * SECOND_NS
    except ValueError as error:
        raise RuleError(path, "load.also", str(error), line=line) from None
    if limit_ns == 0:
        raise RuleError(path, "load.also", f"{entry!r} would send nothing; write a time above 0", line=line)
    return [AlsoWindow("closed", int(match[1]), limit_ns, per_class=match[3] is not None)]


def _known_keys() -> set[str]:
    tables = [item for item in vars(experiment_file).values() if isinstance(item, type) and issubclass(item, Table)]
    return {name for table in tables for name in table.__struct_fields__}
