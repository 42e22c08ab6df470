"""What `replay` says before the first boot, once, and what it refuses of --resume."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_replay_run import folder, write_experiment
from unbooted import Unbooted

from profiles.experiment import load_experiment
from profiles.profile import read_profile
from profiles.runs import EVENTS, MANIFEST
from replay.cli import replay
from replay.clock import SystemClock
from replay.plan import plan_run

__all__ = ["folder"]

FEW = "design.blocks = 1: no verdict can follow from 1 block, at least 3 are needed."


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    Unbooted(monkeypatch).takes_s = lambda place: 0


def invoke(folder: Path, *flags: str, run: str = "run") -> Result:
    return CliRunner().invoke(replay, [str(folder / "experiment.toml"), "-o", str(folder / run), *flags])


def notes(folder: Path, change: str = "", to: str = "") -> tuple[str, ...]:
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace(change, to))
    experiment = load_experiment(path)
    return plan_run(experiment, read_profile(experiment.profile_path), SystemClock()).notes


@pytest.mark.parametrize(("blocks", "said"), [(1, True), (2, True), (3, False)])
def test_a_design_that_no_verdict_can_follow_from_is_said(folder: Path, blocks: int, said: bool) -> None:
    write_experiment(folder, blocks=blocks)
    assert any("no verdict can follow" in note for note in notes(folder)) is said


@pytest.mark.parametrize(("c", "said"), [(32, False), (33, True), (64, True)])
def test_a_window_above_what_the_client_is_measured_to_is_said(folder: Path, c: int, said: bool) -> None:
    write_experiment(folder, blocks=3)
    found = [note for note in notes(folder, "closed c=8 for 100ms", f"closed c={c} for 100ms") if "at once" in note]
    sentence = (
        f"closed-c{c}-for-0.1s: more than 32 at once, up to which this client is measured. It would shape the "
        "result, so such a window is marked invalid."
    )
    assert found == [sentence] * said


def test_notes_come_once_and_not_with_a_refusal_or_a_resume(folder: Path, command: None) -> None:
    write_experiment(folder)
    assert f"Note: {FEW}" in " ".join(invoke(folder).stderr.split())
    refused = invoke(folder)
    assert isinstance(refused.exception, Exception)
    assert "Note:" not in refused.stderr
    resumed = invoke(folder, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "Note:" not in resumed.stderr


def test_notes_of_an_amended_rule_are_said_again(folder: Path, command: None) -> None:
    path = write_experiment(folder)
    invoke(folder)
    path.write_text(path.read_text().replace("blocks = 1", "blocks = 2"))
    amended = invoke(folder, "--resume", "--amend", "one more")
    assert amended.exit_code == 0, amended.output
    assert "no verdict can follow from 2 blocks" in " ".join(amended.stderr.split())


@pytest.mark.parametrize("exists", [False, True])
def test_a_resume_of_no_run_starts_none(folder: Path, command: None, exists: bool) -> None:
    write_experiment(folder)
    if exists:
        (folder / "rum").mkdir()
    refused = invoke(folder, "--resume", run="rum")
    assert "rum: --resume is for a run that was begun, and none is there" in str(refused.exception)
    assert not exists or not list((folder / "rum").iterdir())
    assert (folder / "rum").exists() is exists


def test_a_resume_of_a_run_without_its_manifest_says_what_is_missing(folder: Path, command: None) -> None:
    write_experiment(folder)
    invoke(folder)
    (folder / "run" / MANIFEST).unlink()
    assert (folder / "run" / EVENTS).exists()
    assert "manifest.json is missing" in str(invoke(folder, "--resume").exception)


def test_lines_of_a_run_fit_into_80_columns(folder: Path, command: None) -> None:
    write_experiment(folder)
    assert max(map(len, invoke(folder).stderr.splitlines())) <= 80
