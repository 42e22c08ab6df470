"""The rules of the house that a tool can check: who may import whom, how long a module may be, who reads the clock."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("capture", "profiles", "replay", "analysis")
MODULES = [*sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")), ROOT / "firsttoken.py"]


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_stages_import_only_profiles_and_never_each_other(path: Path) -> None:
    package = package_of(path)
    if package == "firsttoken":
        return
    ours = {name.split(".")[0] for name in imported(path)} & {*PACKAGES, "firsttoken"}
    assert ours <= {package, "profiles"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_is_longer_than_500_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


def test_only_the_clock_reads_the_clock_on_the_replay_side() -> None:
    readers = [path for path in MODULES if package_of(path) == "replay" and "time" in imported(path)]
    assert [path.name for path in readers] == ["clock.py"]


def test_analysis_reads_no_clock_and_opens_no_socket() -> None:
    for path in MODULES:
        if package_of(path) == "analysis":
            assert not imported(path) & {"time", "socket", "httpx", "asyncio", "random"}, path


def test_every_package_opens_with_a_tour() -> None:
    for package in (*PACKAGES, "replay/simulator"):
        text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
        assert text is not None
        assert "1. " in text, f"{package}: its docstring is not a numbered tour"


def test_the_wheel_holds_the_four_packages_and_the_front_door(tmp_path: Path) -> None:
    from zipfile import ZipFile

    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        top = {name.split("/")[0] for name in archive.namelist()}
        names = set(archive.namelist())
    assert {name for name in top if not name.endswith(".dist-info")} == {*PACKAGES, "firsttoken.py"}
    assert "replay/boot_log_patterns.tsv" in names


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    for requirement in wanted:
        (line,) = [line for line in text.splitlines() if line.strip().startswith(f'"{requirement}"')]
        assert "#" in line, f"{requirement} has no reason beside it"


def test_the_locks_name_no_registry_and_agree() -> None:
    def pins(name: str) -> dict[str, str]:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text
        heads = [line.split(";")[0].strip(" \\") for line in text.splitlines() if "==" in line and line[0] not in " #"]
        return dict(head.split("==") for head in heads)

    run, dev = pins("constraints.txt"), pins("constraints-dev.txt")
    assert {name: dev.get(name) for name in run} == run


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['firsttoken', '--help']\n"
        "import firsttoken\n"
        "try:\n    firsttoken.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'mitmproxy', 'polars', 'scipy', 'numpy', 'httpx', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Commands, in the order of the work" in done.stdout


PROFILE = ("build", "import", "builtin", "show", "diff", "classes", "shape", "synthesise", "export")
COMMANDS = ("record", "concurrency", "profile", *(f"profile {name}" for name in PROFILE), "replay", "report", "engine")
COMMANDS = (*COMMANDS, "selftest", "demo", "init", "validate", "plan", "doctor")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(command: str) -> None:
    from click.testing import CliRunner

    from firsttoken import cli

    shown = CliRunner().invoke(cli, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert command == "profile" or "Example" in shown.output
