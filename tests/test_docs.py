"""The documented commands exist with these options, and the README's experiment loads. That they work is the end-to-end
tests'."""

import contextlib
import re
import shlex
from pathlib import Path

import click
import pytest

from firsttoken import cli
from profiles.experiment import load_experiment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))]
DOCUMENTED = [line for page in PAGES for line in re.findall(r"^\$ firsttoken (.+)$", page, re.MULTILINE)]


def test_the_readme_shows_the_whole_pipeline() -> None:
    pipeline = ["record", "concurrency", "profile", "init", "plan", "replay", "report"]
    assert [line.split()[0] for line in DOCUMENTED][: len(pipeline)] == pipeline


@pytest.mark.parametrize("line", DOCUMENTED)
def test_a_documented_command_parses(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ca.pem", "our.pem"):  # files that a reader has
        Path(name).touch()
    command: click.Command | None = cli
    words = shlex.split(line)
    context = click.Context(cli)
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
    assert command is not None
    with contextlib.suppress(click.exceptions.Exit):  # an option such as --schema answers at once
        command.make_context("documented", words)  # raises UsageError for an option that does not exist


def test_every_link_between_documents_leads_somewhere() -> None:
    for path in (ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if link.startswith("http"):
                continue
            name, _, anchor = link.partition("#")
            target = path if not name else (path.parent / name).resolve()
            assert target.exists(), f"{path.name}: {link}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
                assert anchor in slugs, f"{path.name}: {link}"


def test_the_example_experiment_loads(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    experiment = load_experiment(path)
    assert [arm.name for arm in experiment.arms] == ["v0_baseline", "v1_flashinfer"]
    assert experiment.arms[1].argv[-2:] == ("--attention-backend", "flashinfer")


def test_the_rule_of_the_reference_loads_with_arms_added(tmp_path: Path) -> None:
    example = ROOT.parent / "shared" / "reference" / "rule-example.toml"
    if not example.exists():
        pytest.skip("the reference is not beside this checkout")
    path = tmp_path / "experiment.toml"
    arms = '\n[engine]\nargv = ["vllm"]\n[[arm]]\nname = "v0"\n[[arm]]\nname = "v1"\nargs = ["--x"]\n'
    path.write_text(example.read_text(encoding="utf-8") + arms, encoding="utf-8")
    experiment = load_experiment(path)
    assert experiment.file.design.blocks == 5
    assert experiment.also[1].c == 8
    assert [item.arm for item in experiment.file.skipped] == [
        "nvfp4_marlin_moe",
        "fastsafetensors",
        "other_tool_parser",
    ]


def test_make_names_what_the_readme_promises() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
