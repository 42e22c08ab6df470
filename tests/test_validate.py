"""`firsttoken validate`: every artefact is read wholly, and the first thing that is wrong is told with its place."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from recorded import write_profile
from synthetic_run import Effect, Synthetic, with_windows

from analysis.document import verdict_document
from analysis.judge import judge
from profiles.errors import FirsttokenError, FormatError, RuleError, UsageError
from profiles.experiment import load_experiment
from profiles.files import append_line, sha256_of, write_document
from profiles.planned import read_facts
from profiles.profile import read_profile
from profiles.runs import BootFacts, read_run
from profiles.starter import starter
from profiles.validate import validate
from profiles.validate_cli import validate as command


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture, its profile, a rule and a run."""
    folder = tmp_path_factory.mktemp("whole")
    profile = write_profile(folder / "profile", ["json", "rag", "qa"] * 14)
    text = starter(read_facts(read_profile(profile)), path="profile", engine="vllm")
    (folder / "experiment.toml").write_text(text, encoding="utf-8")
    run = Synthetic({"v1": Effect()}, blocks=3, requests=40, edit_boot=silent_at_8).write(folder / "run")
    report = judge(read_run(run), load_experiment(run / "experiment.toml"))
    write_document(run / "verdict.json", verdict_document(report))
    return folder


def silent_at_8(facts: BootFacts) -> BootFacts:
    """The synthetic window at c = 8 has sums and no requests."""
    return with_windows(facts, "closed-c8", requests=0)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """The same, to be broken."""
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def test_each_artefact_is_told_in_one_line(whole: Path) -> None:
    said = {name: validate(whole / name) for name in ("profile-capture", "profile", "experiment.toml", "run")}
    assert all("\n" not in line for line in said.values())
    segments = b"".join(path.read_bytes() for path in sorted((whole / "profile-capture").glob("segment-*")))
    assert said["profile-capture"].endswith(
        "firsttoken/capture version 1: 42 requests, 0 unfinished, 42 bodies, 1 window, 1 segment, 0 dropped; "
        f"sha256 {hashlib.sha256(segments).hexdigest()}"
    )
    assert said["profile"].endswith(
        "firsttoken/profile version 1: 42 requests, 3 classes, content full; "
        f"sha256 {sha256_of(whole / 'profile' / 'manifest.json')}"
    )
    assert "firsttoken/experiment version 1: 1 arm, 5 blocks, 2 measures, 3 guards; fits " in said["experiment.toml"]
    assert said["experiment.toml"].endswith(f"(42 requests to send); sha256 {sha256_of(whole / 'experiment.toml')}")
    assert "firsttoken/run version 1: 9 boots, 360 outcomes, 0 pilots, 2 events, the rule test-rule" in said["run"]
    assert said["run"].endswith(sha256_of(whole / "run" / "manifest.json"))


def spoil_line(pattern: str, line: int) -> Callable[[Path], Path]:
    """Break one line of the first file that matches."""

    def spoil(folder: Path) -> Path:
        path = min(folder.glob(pattern))
        lines = path.read_bytes().split(b"\n")
        lines[line - 1] = lines[line - 1].replace(b":", b": nonsense ", 1)
        path.write_bytes(b"\n".join(lines))
        return path

    return spoil


@pytest.mark.parametrize(
    ("artefact", "pattern", "line"),
    [
        ("profile-capture", "profile-capture/segment-*", 5),
        ("run", "run/boots/*/outcomes.jsonl", 7),
        ("run", "run/events.jsonl", 2),
    ],
)
def test_a_broken_line_is_told_with_its_place(copy: Path, artefact: str, pattern: str, line: int) -> None:
    path = spoil_line(pattern, line)(copy)
    with pytest.raises(FormatError) as caught:
        validate(copy / artefact)
    assert (caught.value.path, caught.value.line) == (path, line)


def test_telemetry_and_functional_probes_are_read_too(copy: Path) -> None:
    boot = min((copy / "run" / "boots").iterdir())
    append_line(boot / "telemetry.jsonl", {"at_ns": 5})
    validate(copy / "run")
    append_line(boot / "telemetry.jsonl", {"at_ns": "late"})
    with pytest.raises(FormatError, match=r"telemetry\.jsonl:2: .*at_ns"):
        validate(copy / "run")
    (boot / "telemetry.jsonl").unlink()
    append_line(boot / "functional.jsonl", {"nothing": "of the kind"})
    with pytest.raises(FormatError, match=r"functional\.jsonl:1"):
        validate(copy / "run")


def test_a_boot_that_lost_outcomes_is_told(copy: Path) -> None:
    outcomes = min((copy / "run" / "boots").glob("*/outcomes.jsonl"))
    lines = outcomes.read_bytes().splitlines(keepends=True)
    outcomes.write_bytes(b"".join(lines[:30]))
    with pytest.raises(FormatError, match=r"holds 6 outcomes of closed-c2, and boot\.json counts 12") as caught:
        validate(copy / "run")
    assert caught.value.path == outcomes
    # What a boot that failed holds is as much as it came to.
    boot = outcomes.parent / "boot.json"
    document = orjson.loads(boot.read_bytes())
    write_document(boot, document | {"status": "failed", "reason": "it died"})
    validate(copy / "run")
    write_document(boot, document)
    outcomes.write_bytes(b"".join(lines))
    validate(copy / "run")


def test_a_verdict_is_told_by_its_arms(copy: Path) -> None:
    path = copy / "run" / "verdict.json"
    assert validate(path).endswith(f"firsttoken/verdict version 1: 1 arm, 1 reject; sha256 {sha256_of(path)}")
    document = orjson.loads(path.read_bytes())
    for broken, problem in (
        (document | {"version": 7}, "version 7 cannot be read"),
        (document | {"format": "other/thing"}, "other/thing"),
        (document | {"arms": None}, "its key arms is missing or no list"),
        (document | {"arms": [{"arm": "v1"}]}, r"arms\[0\]\.verdict is missing or no word"),
    ):
        write_document(path, broken)
        with pytest.raises(FormatError, match=problem):
            validate(path)
    path.write_bytes(b'{"format": "firsttoken/verdict", "version": 1, "arms": [NaN]}')
    with pytest.raises(FormatError, match="not JSON"):
        validate(path)


def test_the_rule_of_a_run_is_read_without_the_profile_that_it_came_from(copy: Path) -> None:
    path = copy / "run" / "experiment.toml"
    assert "; the rule of a run, not held against its profile; sha256 " in validate(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("margin = 0.10", "margin = 0.20"), encoding="utf-8")
    with pytest.raises(FormatError, match="its meaning was changed after the run began"):
        validate(path)


def test_a_line_that_a_kill_cut_off_is_no_fault(copy: Path) -> None:
    (segment,) = (copy / "profile-capture").glob("segment-*")
    with segment.open("ab") as file:
        file.write(b'{"line":"be')
    assert "1 last line cut off by a kill" in validate(copy / "profile-capture")


def test_a_pilot_is_read(copy: Path) -> None:
    source = min((copy / "run" / "boots").iterdir())
    shutil.copytree(source, copy / "run" / "pilots" / "v0")
    assert "1 pilot," in validate(copy / "run")
    write_document(copy / "run" / "pilots" / "v0" / "boot.json", {"format": "firsttoken/boot", "version": 9})
    with pytest.raises(FormatError, match="version 9 cannot be read"):
        validate(copy / "run")


def test_a_profile_is_held_against_its_own_hashes(copy: Path) -> None:
    bodies = copy / "profile" / "bodies.jsonl.zst"
    bodies.write_bytes(bodies.read_bytes()[:-1])
    with pytest.raises(FormatError, match="its sha256 is not the one in the manifest"):
        validate(copy / "profile")


def test_a_profile_with_a_wrong_count_is_told(copy: Path) -> None:
    path = copy / "profile" / "manifest.json"
    document = orjson.loads(path.read_bytes())
    write_document(path, document | {"requests": 41})
    with pytest.raises(FormatError, match=r"its key requests is 41, and requests\.parquet has 42 rows"):
        validate(copy / "profile")


def test_a_rule_is_told_with_line_and_key(copy: Path) -> None:
    path = copy / "experiment.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("requests_per_boot", "requests_per_bot"), encoding="utf-8")
    with pytest.raises(RuleError, match="Did you mean 'requests_per_boot'") as caught:
        validate(path)
    assert text.splitlines()[caught.value.line - 1].startswith("requests_per_boot")
    assert caught.value.exit_code == 2


def test_a_rule_is_held_against_its_profile(copy: Path) -> None:
    path = copy / "experiment.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("min_observed_h = 0.01", "min_observed_h = 72"), encoding="utf-8")
    with pytest.raises(RuleError, match="the rule asks for 72 h"):
        validate(path)
    path.write_text(text, encoding="utf-8")
    shutil.rmtree(copy / "profile")
    with pytest.raises(FormatError, match="no such directory"):
        validate(path)


def test_a_rule_that_changed_after_the_first_boot_is_told(copy: Path) -> None:
    path = copy / "run" / "experiment.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("margin = 0.10", "margin = 0.20"), encoding="utf-8")
    with pytest.raises(FormatError, match="its meaning was changed after the run began"):
        validate(copy / "run")
    path.write_text(f"# a comment\n{text}", encoding="utf-8")
    validate(copy / "run")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.mkdir(), "manifest.json: no such file"),
        (lambda path: path.write_text("{}"), "neither a directory nor a .toml or .json file"),
        (lambda path: _manifest(path, b"[]"), "its format is None, which is no artefact"),
        (lambda path: _manifest(path, b'{"format": "other/thing"}'), "its format is 'other/thing'"),
        (lambda path: _manifest(path, b"{"), "not JSON"),
    ],
)
def test_what_is_no_artefact_is_told(make: Callable[[Path], object], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "thing"
    make(path)
    with pytest.raises(UsageError) as caught:
        validate(path)
    assert problem in str(caught.value)
    assert caught.value.exit_code == 2


def _manifest(path: Path, data: bytes) -> None:
    path.mkdir()
    (path / "manifest.json").write_bytes(data)


def test_the_command_prints_the_line(whole: Path) -> None:
    result = CliRunner().invoke(command, [str(whole / "profile")])
    assert (result.exit_code, result.output) == (0, validate(whole / "profile") + "\n")
    broken = CliRunner().invoke(command, [str(whole / "nothing")])
    assert isinstance(broken.exception, FirsttokenError)
