"""What experiment.toml is refused for, with its place and in words that a person may write."""

from pathlib import Path

import pytest

from profiles.errors import RuleError
from profiles.experiment import load_experiment
from profiles.experiment_file import ArmTable, Engine, Load, Table

HEAD = '[rule]\nid = "t"\n[profile]\npath = "p"\n'
ARMS = '[engine]\nargv = ["e"]\n[[arm]]\nname = "v0"\n'


def refusal(folder: Path, text: str) -> str:
    path = folder / "e.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleError) as refused:
        load_experiment(path)
    return str(refused.value).removeprefix(str(folder))


def timeouts(table: type[Table]) -> list[str]:
    found = [name for name in table.__struct_fields__ if name.endswith("_timeout")]
    assert found
    return found


@pytest.mark.parametrize("key", timeouts(Load))
@pytest.mark.parametrize("value", ["0s", "0ms", "0.0h"])
def test_a_limit_of_a_request_is_above_0(tmp_path: Path, key: str, value: str) -> None:
    text = f'{HEAD}{ARMS}[load]\n{key} = "{value}"\n'
    assert f"/e.toml:10: load.{key}: '{value}' would end everything at once" in refusal(tmp_path, text)


@pytest.mark.parametrize("key", timeouts(Engine))
def test_a_limit_of_an_engine_is_above_0(tmp_path: Path, key: str) -> None:
    text = f'{HEAD}[engine]\nargv = ["e"]\n{key} = "0s"\n[[arm]]\nname = "v0"\n'
    assert f"/e.toml:7: engine.{key}: '0s' would end everything at once" in refusal(tmp_path, text)


@pytest.mark.parametrize("key", timeouts(ArmTable))
def test_a_limit_of_an_arm_is_above_0(tmp_path: Path, key: str) -> None:
    assert f"/e.toml:9: arm[0].{key}: '0s' would" in refusal(tmp_path, f'{HEAD}{ARMS}{key} = "0s"\n')


def test_a_window_of_no_time_is_refused_and_idle_time_may_be_cut_to_nothing(tmp_path: Path) -> None:
    said = refusal(tmp_path, f'{HEAD}{ARMS}[load]\nalso = ["closed c=8 for 0s"]\n')
    assert "/e.toml:10: load.also: 'closed c=8 for 0s' would send nothing" in said
    (tmp_path / "cut.toml").write_text(f'{HEAD}{ARMS}[load]\nidle_cap = "0s"\n')
    assert load_experiment(tmp_path / "cut.toml").file.load.idle_cap == "0s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[engine]\nlauncher = "systemd"\n',
            ':6: engine.launcher: \'systemd\' is unknown; write "command", "docker", "external", "podman" or "process"',
        ),
        (
            '[[arm]]\nname = "v0"\nchanges = ["x"]\n',
            """:7: arm[0].changes[0]: 'x' is unknown; write "kv_cache", "output" or "prefix_cache\"""",
        ),
        ("[engine]\nport = '80'\n", ":6: engine.port: must be a whole number, and a text in quotes stands there"),
        ("[engine]\nport = 1.5\n", ":6: engine.port: must be a whole number, and a number stands there"),
        ('[engine]\nargv = "vllm"\n', ":6: engine.argv: must be a list in brackets, and a text in quotes stands there"),
        ("[engine]\nargv = [1]\n", ":6: engine.argv[0]: must be a text in quotes, and a whole number stands there"),
        (
            "[engine]\nenv = { A = 1 }\n",
            ":6: engine.env[...]: must be a text in quotes, and a whole number stands there",
        ),
        ("[engine]\ncool_down_c = true\n", ":6: engine.cool_down_c: must be a number, and true or false stands there"),
        ("[arm]\nname = 'v0'\n", ":5: arm: must be a list in brackets, and a table stands there"),
        ("[[arm]]\nargs = ['x']\n", ":5: arm[0].name: is missing"),
        ("[design]\nblocks = 2026-01-01\n", ":6: design.blocks: must be a whole number, and a date stands there"),
        ("[load\n", ":5: not TOML: Expected ']' at the end of a table declaration in column 6"),
        ("[load]\nalso = [\n", ":6: not TOML: "),
    ],
)
def test_what_may_stand_there_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    found = refusal(tmp_path, HEAD + text)
    assert found.startswith(f"/e.toml{said}")
    for word in ("enum", "`", "object", "$", "line 5, column"):
        assert word not in found


def test_a_rule_of_another_schema_and_one_without_a_profile_say_so(tmp_path: Path) -> None:
    assert ":2: rule.schema: 2 is unknown; write 1" in refusal(tmp_path, "[rule]\nschema = 2\nid = 't'\n")
    assert "e.toml: profile: is missing" in refusal(tmp_path, "[rule]\nid = 't'\n")
