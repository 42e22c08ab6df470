"""Amended rules: what a run can carry, what it keeps of the old rule, and what a kill in the middle leaves."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from recorded import write_profile
from test_replay_run import replay as replay_command
from unbooted import LADDER, Unbooted, events_of, ladder

from analysis.course import course_of, rule_reasons
from analysis.looks import post_hoc_reason
from profiles.errors import UsageError
from profiles.experiment import load_experiment
from profiles.files import write_whole
from profiles.runs import FAILED, read_run
from replay import rundir
from replay.rundir import RunFolder

GUARD = '[[guard]]\nmetric = "throughput@c=8"\ndirection = "higher"\nmargin = 0.05\nrole = "advisory"\n'
WHY = "the machine is calmer at night"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profile(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    return tmp_path


@pytest.fixture
def unbooted(monkeypatch: pytest.MonkeyPatch) -> Unbooted:
    return Unbooted(monkeypatch)


def change(path: Path, *pairs: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    path.write_text(text)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def manifest_of(run: Path) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads((run / "manifest.json").read_bytes())
    return document


def begun(folder: Path, unbooted: Unbooted, *, stop: tuple[int, str] = (3, "v0"), blocks: int = 4) -> Path:
    """A run that was stopped before a boot of block 3. Its experiment."""
    path = ladder(folder, blocks=blocks, more=GUARD)
    unbooted.stop_before = stop
    with pytest.raises(KeyboardInterrupt):
        unbooted.replay(path, folder / "run")
    unbooted.stop_before = None
    return path


def test_a_changed_margin_goes_on_under_the_new_rule_and_keeps_the_old_one(folder: Path, unbooted: Unbooted) -> None:
    path = begun(folder, unbooted)
    run, old = folder / "run", path.read_bytes()
    before = manifest_of(run)
    boots = len(read_run(run).boots) + 1  # and the one that was cut off
    change(path, ("margin = 0.05", "margin = 0.08"))
    with pytest.raises(UsageError, match=r"the rule has changed since this run's first boot\n.*--amend"):
        unbooted.replay(path, run, resume=True)
    assert manifest_of(run) == before
    unbooted.replay(path, run, resume=True, amend=WHY)
    assert (run / "experiment.toml.1").read_bytes() == old
    assert (run / "experiment.toml").read_bytes() == path.read_bytes()
    now = manifest_of(run)
    (amendment,) = now["rule"]["amendments"]
    assert now["rule"]["bytes_sha256"] == sha256(path) == amendment["new"]["bytes_sha256"]
    assert amendment["old"]["bytes_sha256"] == sha256(run / amendment["kept_as"]) == before["rule"]["bytes_sha256"]
    assert amendment["old"]["semantic_sha256"] == before["rule"]["semantic_sha256"]
    assert (amendment["reason"], amendment["boots_before"]) == (WHY, boots)
    assert {**now, "rule": None} == {**before, "rule": None}
    (event,) = events_of(run, "rule_amended")
    assert event["old"] == amendment["old"]
    assert event["new"] == amendment["new"]
    assert event["wall_ns"] >= 0
    assert Counter(boot.facts.arm for boot in read_run(run).boots) == {"v0": 4, "v0.aa": 4, "v1": 4, "v2": 4}
    # What comes after it knows, and the run is judged post hoc.
    experiment, read = load_experiment(run / "experiment.toml"), read_run(run)
    assert rule_reasons(read, experiment) == ([], [])
    assert f"after {boots} boots ({WHY})" in (post_hoc_reason(read, experiment) or "")
    assert course_of(read, experiment).finished


def test_an_amended_run_is_resumed_like_any_other_and_can_be_amended_again(folder: Path, unbooted: Unbooted) -> None:
    path = begun(folder, unbooted)
    change(path, ("margin = 0.05", "margin = 0.08"))
    unbooted.replay(path, folder / "run", resume=True, amend=WHY)
    unbooted.replay(path, folder / "run", resume=True)
    assert unbooted.booted == []
    second = path.read_bytes()
    change(path, ("margin = 0.08", "margin = 0.09"))
    unbooted.replay(path, folder / "run", resume=True, amend="again")
    assert (folder / "run" / "experiment.toml.2").read_bytes() == second
    assert [event["reason"] for event in events_of(folder / "run", "rule_amended")] == [WHY, "again"]
    assert [item["reason"] for item in manifest_of(folder / "run")["rule"]["amendments"]] == [WHY, "again"]
    assert rule_reasons(read_run(folder / "run"), load_experiment(path)) == ([], [])


def test_added_blocks_come_behind_those_that_are_done(folder: Path, unbooted: Unbooted) -> None:
    path = ladder(folder, blocks=2, more=GUARD)
    unbooted.replay(path, folder / "run")
    order = manifest_of(folder / "run")["order"]
    done = list(unbooted.booted)
    change(path, ("blocks = 2", "blocks = 5"))
    unbooted.replay(path, folder / "run", resume=True, amend="three more blocks")
    now = manifest_of(folder / "run")
    assert (now["blocks"], len(now["order"]), now["order"][:2]) == (5, 5, order)
    assert not set(done) & set(unbooted.booted)
    assert unbooted.booted == [(block, arm) for block in (3, 4, 5) for arm in now["order"][block - 1]]


def test_a_new_arm_is_booted_in_blocks_that_have_not_begun(folder: Path, unbooted: Unbooted) -> None:
    path = begun(folder, unbooted)
    run, order = folder / "run", manifest_of(folder / "run")["order"]
    change(path, (LADDER, LADDER + '[[arm]]\nname = "v3"\nargs = ["--c"]\n'), ("blocks = 4", "blocks = 6"))
    unbooted.replay(path, run, resume=True, amend="one more idea")
    now = manifest_of(run)
    assert now["order"][:3] == order[:3]  # block 3 had begun
    assert all("v3" in block and len(block) == 5 for block in now["order"][3:])
    assert [arm["name"] for arm in now["arms"]] == ["v0", "v1", "v2", "v3"]
    done = Counter(boot.facts.arm for boot in read_run(run).boots)
    assert done == {"v0": 6, "v0.aa": 6, "v1": 6, "v2": 6, "v3": 3}
    unbooted.replay(path, run, resume=True)  # its order is not the one that a fresh plan would make
    assert unbooted.booted == []
    assert course_of(read_run(run), load_experiment(path)).complete == 6


def test_an_arm_that_is_taken_out_is_not_booted_again_and_what_it_left_stays(folder: Path, unbooted: Unbooted) -> None:
    unbooted.status = lambda place: FAILED if (place.block, place.name) == (2, "v2") else "done"
    path = begun(folder, unbooted)
    left = {(boot.facts.block, boot.facts.arm) for boot in read_run(folder / "run").boots}
    change(path, ('[[arm]]\nname = "v2"\nargs = ["--b"]\n', ""))
    unbooted.replay(path, folder / "run", resume=True, amend="v2 runs out of memory")
    assert "v2" not in {arm for _, arm in unbooted.booted}
    assert left <= {(boot.facts.block, boot.facts.arm) for boot in read_run(folder / "run").boots}
    assert all("v2" not in block for block in manifest_of(folder / "run")["order"][1:])
    assert course_of(read_run(folder / "run"), load_experiment(path)).complete == 4


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("requests_per_boot = 8", "requests_per_boot = 9"), "load.requests_per_boot"),
        (("seed = 2", "seed = 3"), "design.seed"),
        (('"--boot-time", "10ms"', '"--boot-time", "20ms"'), r"engine.argv; argv of v0, which was booted already"),
        (('args = ["--a"]', 'args = ["--z"]'), r"argv of v1, which was booted already \(give it another name\)"),
        (("blocks = 4", "blocks = 2"), "block 3 has begun, so there cannot be 2"),
        (('name = "v2"', 'name = "v2"\nbaseline = true'), "the baseline, v0"),
    ],
)  # fmt: skip
def test_what_a_run_cannot_carry_is_refused_and_leaves_it_as_it_was(
    folder: Path, unbooted: Unbooted, pair: tuple[str, str], said: str
) -> None:
    path = begun(folder, unbooted)
    before = {name: (folder / "run" / name).read_bytes() for name in ("manifest.json", "experiment.toml")}
    change(path, pair)
    with pytest.raises(UsageError, match=said):
        unbooted.replay(path, folder / "run", resume=True, amend=WHY)
    assert before == {name: (folder / "run" / name).read_bytes() for name in before}
    assert not (folder / "run" / "experiment.toml.1").exists()
    assert not events_of(folder / "run", "rule_amended")


def test_a_new_arm_without_a_block_left_is_refused(folder: Path, unbooted: Unbooted) -> None:
    path = ladder(folder, blocks=2, more=GUARD)
    unbooted.replay(path, folder / "run")
    change(path, (LADDER, LADDER + '[[arm]]\nname = "v3"\nargs = ["--c"]\n'))
    with pytest.raises(UsageError, match=r"no block is left for v3: all 2 have begun\n.*Raise design.blocks"):
        unbooted.replay(path, folder / "run", resume=True, amend=WHY)


def test_an_arm_that_was_never_booted_may_change(folder: Path, unbooted: Unbooted) -> None:
    apart = LADDER.replace('"v2"', '"v2"\nextends = ""')
    path = ladder(folder, blocks=2, arms=apart, more=GUARD)
    unbooted.replay(path, folder / "probe")
    later = max(("v1", "v2"), key=manifest_of(folder / "probe")["order"][0].index)
    unbooted.stop_before = next(place for place in unbooted.booted)
    with pytest.raises(KeyboardInterrupt):
        unbooted.replay(path, folder / "run")
    unbooted.stop_before = None
    change(path, (f'args = ["--{"a" if later == "v1" else "b"}"]', 'args = ["--z"]'))
    unbooted.replay(path, folder / "run", resume=True, amend=WHY)
    assert (1, later) in unbooted.booted
    (stated,) = [arm for arm in manifest_of(folder / "run")["arms"] if arm["name"] == later]
    assert stated["argv"][-1] == "--z"


def test_an_amendment_before_the_first_boot_makes_nothing_post_hoc(folder: Path, unbooted: Unbooted) -> None:
    path = ladder(folder, blocks=2, more=GUARD)

    def stop(event: str, **_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unbooted.replay(path, folder / "run", note=stop)
    change(path, ("margin = 0.05", "margin = 0.08"))
    unbooted.replay(path, folder / "run", resume=True, amend=WHY)
    assert manifest_of(folder / "run")["rule"]["amendments"][0]["boots_before"] == 0
    assert post_hoc_reason(read_run(folder / "run"), load_experiment(path)) is None


def test_only_other_bytes_are_an_event_and_nothing_else(folder: Path, unbooted: Unbooted) -> None:
    path = begun(folder, unbooted)
    run, kept = folder / "run", (folder / "run" / "experiment.toml").read_bytes()
    before = manifest_of(run)
    path.write_text(path.read_text() + "\n# a comment\n")
    with pytest.raises(UsageError, match="there is nothing to amend"):
        unbooted.replay(path, run, resume=True, amend=WHY)
    unbooted.replay(path, run, resume=True)
    unbooted.replay(path, run, resume=True)
    (event,) = events_of(run, "rule_reformatted")
    assert (event["old_sha256"], event["new_sha256"]) == (before["rule"]["bytes_sha256"], sha256(path))
    assert (manifest_of(run), (run / "experiment.toml").read_bytes()) == (before, kept)
    assert not events_of(run, "rule_amended")
    invalid, notes = rule_reasons(read_run(run), load_experiment(run / "experiment.toml"))
    assert (invalid, len(notes)) == ([], 1)


@pytest.mark.parametrize("point", ["kept", "rule", "manifest"])
def test_a_kill_in_the_middle_of_an_amendment_loses_nothing(
    folder: Path, unbooted: Unbooted, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    path = begun(folder, unbooted)
    run, old = folder / "run", path.read_bytes()
    change(path, ("margin = 0.05", "margin = 0.08"))

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def all_but_the_rule(at: Path, data: bytes) -> None:
        if at.name == "experiment.toml":
            raise KeyboardInterrupt
        write_whole(at, data)

    with monkeypatch.context() as patch:
        if point == "manifest":  # written, and the event was not
            patch.setattr(RunFolder, "event", killed)
        elif point == "rule":
            patch.setattr(rundir, "write_document", killed)
        else:
            patch.setattr(rundir, "write_whole", all_but_the_rule)
        with pytest.raises(KeyboardInterrupt):
            unbooted.replay(path, run, resume=True, amend=WHY)
    unbooted.replay(path, run, resume=True, amend=None if point == "manifest" else WHY)
    assert (run / "experiment.toml.1").read_bytes() == old
    assert (run / "experiment.toml").read_bytes() == path.read_bytes()
    assert len(events_of(run, "rule_amended")) == 1
    assert len(manifest_of(run)["rule"]["amendments"]) == 1
    assert rule_reasons(read_run(run), load_experiment(run / "experiment.toml")) == ([], [])


@pytest.mark.process
def test_the_command_wants_a_run_and_a_reason(folder: Path) -> None:
    ladder(folder, blocks=1)
    for flags, said in (
        (("--amend", "why"), "--amend is for a run that was begun"),
        (("--resume", "--amend", "why"), "--amend is for a run that was begun"),
    ):
        refused = replay_command(folder, *flags)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert not (folder / "run").exists()


@pytest.mark.process
def test_the_command_amends_a_run_and_the_report_says_so(folder: Path) -> None:
    path = ladder(folder, blocks=1, arms="", more=GUARD)
    assert replay_command(folder).returncode == 0
    change(path, ("margin = 0.05", "margin = 0.08"))
    refused = replay_command(folder, "--resume")
    assert refused.returncode == 2
    assert "--amend REASON" in refused.stderr
    amended = replay_command(folder, "--resume", "--amend", WHY)
    assert amended.returncode == 0, amended.stderr
    assert amended.stdout == "run\n"
    experiment, read = load_experiment(folder / "run" / "experiment.toml"), read_run(folder / "run")
    assert f"after 2 boots ({WHY})" in (post_hoc_reason(read, experiment) or "")
    assert len(read.boots) == 2


def test_an_empty_reason_is_none(folder: Path, unbooted: Unbooted) -> None:
    path = begun(folder, unbooted)
    change(path, ("margin = 0.05", "margin = 0.08"))
    with pytest.raises(UsageError, match="an amendment needs its reason"):
        unbooted.replay(path, folder / "run", resume=True, amend="  ")


def test_a_version_that_reads_the_same_rule_otherwise_does_not_go_on_with_it(folder: Path, unbooted: Unbooted) -> None:
    """A later version may know other defaults: half of a run under each would be two rules."""
    path = begun(folder, unbooted)
    manifest = folder / "run" / "manifest.json"
    document = manifest_of(folder / "run")
    document["rule"]["semantic_sha256"] = "0" * 64
    document["tool"] = "firsttoken 0.0.1"
    write_whole(manifest, orjson.dumps(document))
    for amend in (None, WHY):
        with pytest.raises(UsageError, match=r"reads the same experiment.toml otherwise than firsttoken 0.0.1"):
            unbooted.replay(path, folder / "run", resume=True, amend=amend)
