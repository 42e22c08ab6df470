"""What the keys of [engine] and [[arm]] resolve to, and which a launcher refuses."""

from pathlib import Path

import pytest

from profiles.errors import RuleError
from profiles.experiment import Experiment, load_experiment

HEAD = '[rule]\nid = "r"\n[profile]\npath = "profile"\n'


def load(folder: Path, text: str) -> Experiment:
    path = folder / "experiment.toml"
    path.write_text(HEAD + text)
    return load_experiment(path)


def test_what_an_arm_adds_stays_for_those_that_extend_it(tmp_path: Path) -> None:
    text = """
[engine]
launcher = "docker"
image = "vllm:1"
argv = ["--model", "m"]
container_args = ["--gpus", "all"]
env = { A = "1", B = "1" }
stop_timeout = "30s"
[[arm]]
name = "v0"
[[arm]]
name = "v1"
args = ["--x"]
env = { B = "2" }
container_args = ["--ipc=host"]
image = "vllm:2"
port = 9000
cwd = "elsewhere"
ready_timeout = "5min"
[[arm]]
name = "v2"
args = ["--y"]
stop_timeout = "1s"
[[arm]]
name = "v3"
extends = "v0"
argv = ["--other"]
port = 0
"""
    v0, v1, v2, v3 = load(tmp_path, text).arms
    assert (v0.argv, v0.env, v0.image, v0.container_args) == (
        ("--model", "m"),
        {"A": "1", "B": "1"},
        "vllm:1",
        ("--gpus", "all"),
    )
    assert (v0.port, v0.cwd, v0.ready_timeout, v0.stop_timeout) == (0, ".", "1200s", "30s")
    assert v1.argv == ("--model", "m", "--x")
    assert v2.argv == ("--model", "m", "--x", "--y")
    assert v2.env == v1.env == {"A": "1", "B": "2"}
    assert v2.container_args == v1.container_args == ("--gpus", "all", "--ipc=host")
    assert (v2.image, v2.port, v2.cwd, v2.ready_timeout, v2.stop_timeout) == ("vllm:2", 9000, "elsewhere", "5min", "1s")
    assert (v3.argv, v3.image, v3.port, v3.extends) == (("--other",), "vllm:1", 0, "v0")


def test_an_arm_on_another_port_may_extend_one_with_a_fixed_port(tmp_path: Path) -> None:
    text = '[engine]\nargv = ["e"]\nport = 8000\n[[arm]]\nname = "a"\n[[arm]]\nname = "b"\nport = 0\n'
    assert [arm.port for arm in load(tmp_path, text).arms] == [8000, 0]


@pytest.mark.parametrize(
    "engine",
    [
        'launcher = "podman"\nimage = "vllm:1"',
        'launcher = "command"\n[engine.hooks]\nstart = ["a"]\nstop = ["b"]',
        'launcher = "external"\nurl = "https://gateway.example/v2"',
    ],
)
def test_only_a_process_needs_a_command_line(tmp_path: Path, engine: str) -> None:
    assert load(tmp_path, f'[engine]\n{engine}\n[[arm]]\nname = "v0"\n').baseline.argv == ()


ARM = '[[arm]]\nname = "v0"\n'
HOOKS = '[engine.hooks]\nstart = ["a"]\nstop = ["b"]\n'
EXTERNAL = '[engine]\nlauncher = "external"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[engine]\n{ARM}", ":6: arm[0].argv: no command line"),
        (f'[engine]\nargv = ["e"]\nimage = "i"\n{ARM}', ':7: engine.image: launcher = "process" does not read it'),
        (f'[engine]\nargv = ["e"]\n{ARM}url = "http://h:1"\n', ':9: arm[0].url: launcher = "process" does not read it'),
        (f'[engine]\nargv = ["e"]\n{ARM}container_args = ["x"]\n', ":9: arm[0].container_args: launcher ="),
        (f'[engine]\nargv = ["e"]\n{HOOKS}{ARM}', '.hooks: launcher = "process" does not read it; "command" does'),
        (f'[engine]\nlauncher = "docker"\n{ARM}', ":7: arm[0].image: v0 has no image"),
        (f'[engine]\nlauncher = "docker"\nimage = "-v"\n{ARM}', ":7: engine.image: '-v' is not the name of an image"),
        (
            f'[engine]\nlauncher = "docker"\nimage = "i"\n{ARM}container_args = ["--rm"]\n',
            ":10: arm[0].container_args: --rm belongs to the launcher",
        ),
        (
            f'[engine]\nlauncher = "docker"\nimage = "i"\ncontainer_args = ["--restart=always"]\n{ARM}',
            ":8: engine.container_args: --restart belongs to the launcher",
        ),
        (
            f'[engine]\nlauncher = "docker"\nimage = "i"\ncontainer_args = ["--label", "firsttoken.run=1"]\n{ARM}',
            ":8: engine.container_args: 'firsttoken.run=1': labels that begin with firsttoken. say what is ours",
        ),
        (f'[engine]\nlauncher = "command"\n{ARM}', ":6: engine.launcher: the launcher `command` needs [engine.hooks]"),
        (
            f'[engine]\nlauncher = "command"\n[engine.hooks]\nstart = ["a"]\nstop = []\n{ARM}',
            ":9: engine.hooks.stop: must hold a program",
        ),
        (f"{EXTERNAL}{ARM}", ":7: arm[0].url: v0 has no url"),
        (f'{EXTERNAL}{ARM}url = "ftp://h"\n', ":9: arm[0].url: 'ftp://h' is not the URL of an engine"),
        (f'{EXTERNAL}{ARM}url = "http://h:99999"\n', ":9: arm[0].url: 'http://h:99999' is not a URL"),
        (f'{EXTERNAL}{ARM}url = "http://me:pw@h"\n', ":9: arm[0].url: a URL with a password would be written"),
        (f'{EXTERNAL}{ARM}url = "http://h/?a=1"\n', ":9: arm[0].url: 'http://h/?a=1' must end with its path"),
        (f'{EXTERNAL}{ARM}url = "http://h"\nport = 1\n', ':10: arm[0].port: launcher = "external" does not read it'),
        (f'{EXTERNAL}cache_dirs = ["c"]\n{ARM}url = "http://h"\n', ":7: engine.cache_dirs: an external"),
        (
            f'{EXTERNAL}url = "http://h"\n{ARM}[[arm]]\nname = "v1"\nurl = "http://h/"\n',
            ":12: arm[1].url: v0 and v1 have the same url, so they are one engine, compared with itself",
        ),
        (f'[engine]\nargv = ["e"]\n{ARM}ready_timeout = "5"\n', ":9: arm[0].ready_timeout: '5' is not a duration"),
        (f'[engine]\nargv = ["e"]\nstop_timeout = "x"\n{ARM}', ":7: engine.stop_timeout: 'x' is not a duration"),
        (f'[engine]\nargv = ["e"]\n{ARM}port = 70000\n', ":9: arm[0].port: must be from 0 to 65535"),
    ],
)  # fmt: skip
def test_a_key_that_the_launcher_would_ignore_or_lacks_is_refused_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(RuleError) as refused:
        load(tmp_path, text)
    assert said in str(refused.value)
