"""examples/experiment.toml holds every key of every table with its default, and each of its variants loads."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiles import experiment_file
from profiles.experiment import load_experiment
from profiles.experiment_file import DEFAULT_MEASURES, ArmTable, Engine, ExperimentFile, RuleHead, Table
from replay.log_table import patterns

EXAMPLE = Path(__file__).parents[1] / "examples" / "experiment.toml"
TEXT = EXAMPLE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^# >>> (\w+)\n(.*?)^# <<<\n", re.MULTILINE | re.DOTALL)
BLOCKS = {found[1]: found[2] for found in BLOCK.finditer(TEXT)}

# Where each type stands. A key in parentheses is an inline table there.
HEADERS = {
    "RuleHead": "rule",
    "ProfileChoice": "profile",
    "OperatingPointChoice": "profile.operating_point",
    "Load": "load",
    "Design": "design",
    "Contrast": "design(contrast)",
    "MeasureRule": "measure",
    "Material": "measure(material)",
    "GuardRule": "guard",
    "Functional": "functional",
    "Mixed": "mixed",
    "BootLogRule": "boot_log",
    "AllowedLine": "boot_log(allow)",
    "Discard": "discard",
    "Skipped": "skipped",
    "Hooks": "engine.hooks",
    "Engine": "engine",
    "ArmTable": "arm",
    "ExperimentFile": "",
}
# Keys that have tables of their own, and those that show something else than their default.
TABLES = {"operating_point", "hooks"} | set(ExperimentFile.__struct_fields__)
SHOWN = {
    *("rule.question", "engine.argv", "engine.env", "engine.model", "boot_log.allow"),
    *("arm.note", "arm.baseline", "skipped.arm"),
}


def keys() -> dict[str, set[str]]:
    """Header → the keys that stand under it, in a comment or not; those of inline tables as `header(key)`."""
    found: dict[str, set[str]] = {}
    header = ""
    for line in TEXT.splitlines():
        bare = line.removeprefix("# ")
        if named := re.match(r"\[\[?([\w.]+)\]", bare):
            header = named[1]
            found.setdefault("", set()).add(header.split(".")[0])
        elif given := re.match(r"(\w+) = (.*)", bare):
            found.setdefault(header, set()).add(given[1])
            inner = re.findall(r"(\w+) = ", given[2].split("  #")[0])
            found.setdefault(f"{header}({given[1]})", set()).update(inner)
    return found


def tables() -> list[type[Table]]:
    return [
        item
        for item in vars(experiment_file).values()
        if isinstance(item, type) and issubclass(item, Table) and item is not Table
    ]


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.__name__)
def test_every_key_of_every_table_stands_in_the_example(table: type[Table]) -> None:
    found = keys()[HEADERS[table.__name__]]
    assert set(table.__struct_fields__) - TABLES <= found | (TABLES & set(table.__struct_fields__))
    if table is ExperimentFile:
        assert set(table.__struct_fields__) == found


def test_what_is_not_a_choice_of_the_example_has_its_default() -> None:
    given = tomllib.loads(TEXT)
    file = load_experiment(EXAMPLE).file
    for name in ("load", "design", "functional", "mixed", "boot_log", "discard", "profile", "engine", "rule"):
        table = getattr(file, name)
        for key, default in zip(table.__struct_fields__, _defaults(type(table)), strict=True):
            if key in given[name] and f"{name}.{key}" not in SHOWN and default is not msgspec.NODEFAULT:
                assert getattr(table, key) == default, f"{name}.{key}"
    assert file.measure == list(DEFAULT_MEASURES)


def _defaults(table: type[msgspec.Struct]) -> list[Any]:
    found = []
    for field in msgspec.structs.fields(table):
        made = field.default_factory
        found.append(made() if made is not msgspec.NODEFAULT else field.default)
    return found


def test_what_each_key_does_stands_beside_it() -> None:
    lines = [line.removeprefix("# ") for line in TEXT.splitlines()]
    given = {found[1] for line in lines if (found := re.match(r"(\w+) = ", line))}
    told = {found[1] for line in lines if (found := re.match(r"(\w+) = .*  ?# |(\w+) = \S+\s+# ", line))}
    # The hooks and the launchers are explained above theirs.
    assert given - told == {"start", "stop"}


@pytest.mark.parametrize("variant", [name for name in BLOCKS if name != "process"])
def test_each_launcher_loads_with_its_comment_signs_taken_away(variant: str, tmp_path: Path) -> None:
    lines = BLOCKS[variant].splitlines()
    assert all(line == "#" or line.startswith("# ") for line in lines)
    plain = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines) + "\n"
    path = tmp_path / "experiment.toml"
    path.write_text(TEXT.replace(BLOCKS["process"], plain), encoding="utf-8")
    loaded = load_experiment(path)
    assert loaded.file.engine is not None
    assert loaded.file.engine.launcher == variant
    assert [arm.name for arm in loaded.arms][:2] == ["v0", "v1"]


def test_podman_is_docker_by_another_name(tmp_path: Path) -> None:
    plain = "\n".join(line[2:] for line in BLOCKS["docker"].splitlines()).replace('"docker"', '"podman"') + "\n"
    path = tmp_path / "experiment.toml"
    path.write_text(TEXT.replace(BLOCKS["process"], plain), encoding="utf-8")
    engine = load_experiment(path).file.engine
    assert engine is not None
    assert engine.launcher == "podman"


@pytest.mark.parametrize(
    ("table", "commented"),
    [(Engine, "cool_down_c = 50.0"), (RuleHead, 'basis = "declared"')],
    ids=["cool_down", "declared"],
)
def test_other_choices_in_comments_are_keys_that_load(table: type[Table], commented: str, tmp_path: Path) -> None:
    text = TEXT
    if "declared" in commented:
        text = text.replace('basis = "arrivals"', '# basis = "arrivals"', 1)
        for key in ("basis", "levels", "reason"):
            text = re.sub(rf"^# ({key} = (?!\"arrivals\"))", r"\1", text, count=1, flags=re.MULTILINE)
    else:
        text = text.replace(f"# {commented}", commented, 1)
    path = tmp_path / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    file = load_experiment(path).file
    assert file.engine is not None
    assert (file.profile.operating_point.basis == "declared") == ("declared" in commented)
    assert (file.engine.cool_down_c == 50.0) == ("cool_down" in commented)


def test_the_arms_show_what_an_arm_may_say() -> None:
    arms = {arm.name: arm for arm in load_experiment(EXAMPLE).arms}
    assert arms["v1"].argv == (*arms["v0"].argv, *arms["v1"].argv[-2:])
    assert (arms["v2"].argv[0], arms["v2"].cwd, arms["v2"].port) == ("vllm-nightly", "nightly", 8001)
    assert set(ArmTable.__struct_fields__) <= keys()["arm"]


def test_the_row_of_a_pattern_table_is_one(tmp_path: Path) -> None:
    (row,) = re.findall(r"^#   (M01\t.*)$", TEXT, re.MULTILINE)
    table = tmp_path / "mine.tsv"
    table.write_text(row + "\n", encoding="utf-8")
    assert [found.severity for found in patterns(table) if found.id == "M01"] == ["fallback"]


def test_the_example_is_no_wider_than_a_page() -> None:
    assert max(map(len, TEXT.splitlines())) <= 120
