"""Declared looks: which arms are booted on, what a resume restores, and what a failing look costs."""

import io
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
import pytest
from recorded import write_profile
from test_replay_run import replay as replay_command
from unbooted import CLOCK, Unbooted, events_of, ladder
from virtual import run_virtual

from firsttoken import ask_verdicts
from profiles.errors import FirsttokenError
from profiles.runs import DONE, FAILED, read_run
from profiles.units import SECOND_NS, format_duration
from replay.progress import Progress
from replay.standing import Standing, newly_decided


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profile(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    return tmp_path


@pytest.fixture
def unbooted(monkeypatch: pytest.MonkeyPatch) -> Unbooted:
    return Unbooted(monkeypatch)


def asked(*answers: Mapping[str, str]) -> tuple[list[int], Callable[[Path], Mapping[str, str]]]:
    """A report that gives these answers in turn, and after how many blocks it was asked."""
    waiting, when = list(answers), []

    def ask(run: Path) -> Mapping[str, str]:
        when.append(max(boot.facts.block for boot in read_run(run).boots))
        return waiting.pop(0)

    return when, ask


def blocks_of(unbooted: Unbooted, arm: str) -> list[int]:
    return sorted(block for block, name in unbooted.booted if name == arm)


def test_a_decided_arm_is_dropped_after_its_look_and_the_baseline_and_its_copy_never(
    folder: Path, unbooted: Unbooted
) -> None:
    when, ask = asked({"v1": "inconclusive", "v2": "reject"}, {"v1": "inconclusive", "v2": "reject"})
    unbooted.replay(ladder(folder, blocks=7, looks=[3, 5, 7]), folder / "run", ask=ask)
    assert when == [3, 5]  # nothing is left to drop after the last one
    assert blocks_of(unbooted, "v2") == [1, 2, 3]
    for name in ("v0", "v0.aa", "v1"):
        assert blocks_of(unbooted, name) == [1, 2, 3, 4, 5, 6, 7], name
    (first, second) = events_of(folder / "run", "look")
    assert (first["blocks"], first["verdicts"]) == (3, {"v1": "inconclusive", "v2": "reject"})
    assert second["blocks"] == 5
    (decided,) = events_of(folder / "run", "arm_decided")
    assert {key: decided[key] for key in ("arm", "look", "verdict", "needed_by")} == {
        "arm": "v2",
        "look": 3,
        "verdict": "reject",
        "needed_by": [],
    }
    assert events_of(folder / "run", "run_done")


@pytest.mark.parametrize("verdict", ["adopt", "workload-dependent"])
def test_a_predecessor_that_a_live_arm_leans_on_is_booted_on_until_that_arm_is_out(
    folder: Path, unbooted: Unbooted, verdict: str
) -> None:
    _, ask = asked({"v1": verdict, "v2": "inconclusive"}, {"v1": verdict, "v2": "adopt"})
    unbooted.replay(ladder(folder, blocks=7, looks=[3, 5, 7]), folder / "run", ask=ask)
    assert blocks_of(unbooted, "v1") == [1, 2, 3, 4, 5]
    (stays, _) = events_of(folder / "run", "arm_decided")
    assert (stays["arm"], stays["look"], stays["needed_by"]) == ("v1", 3, ["v2"])
    assert blocks_of(unbooted, "v0") == [1, 2, 3, 4, 5]  # all are decided: the run is done
    assert events_of(folder / "run", "run_done")


def test_without_steps_to_attribute_nothing_leans_on_an_arm(folder: Path, unbooted: Unbooted) -> None:
    path = ladder(folder, blocks=4, looks=[3, 4])
    text = path.read_text().replace("seed = 2", 'seed = 2\ncontrast = { attribute = "baseline" }')
    path.write_text(text)
    _, ask = asked({"v1": "reject", "v2": "inconclusive"})
    unbooted.replay(path, folder / "run", ask=ask)
    assert blocks_of(unbooted, "v1") == [1, 2, 3]


def test_an_arm_that_fails_frees_the_one_that_it_leant_on(folder: Path, unbooted: Unbooted) -> None:
    unbooted.status = lambda place: FAILED if (place.block, place.name) == (4, "v2") else DONE
    _, ask = asked({"v1": "reject", "v2": "inconclusive"})
    unbooted.replay(ladder(folder, blocks=6, looks=[3, 6]), folder / "run", ask=ask)
    assert set(blocks_of(unbooted, "v1")) <= {1, 2, 3, 4}
    assert max(block for block, _ in unbooted.booted) == 4  # v1 is decided, v2 is out: nothing is left


def test_nothing_decided_and_invalid_drop_nobody(folder: Path, unbooted: Unbooted) -> None:
    _, ask = asked({"v1": "invalid", "v2": "inconclusive"})
    unbooted.replay(ladder(folder, blocks=4, looks=[3, 4]), folder / "run", ask=ask)
    assert len(unbooted.booted) == 16
    assert not events_of(folder / "run", "arm_decided")


def test_a_look_that_fails_is_told_and_everything_is_booted(folder: Path, unbooted: Unbooted) -> None:
    def ask(run: Path) -> Mapping[str, str]:
        raise FirsttokenError("the report ended with exit code 1")

    unbooted.replay(ladder(folder, blocks=4, looks=[3, 4]), folder / "run", ask=ask)
    (failed,) = events_of(folder / "run", "look_failed")
    assert (failed["blocks"], failed["reason"]) == (3, "FirsttokenError: the report ended with exit code 1")
    assert len(unbooted.booted) == 16
    assert not events_of(folder / "run", "look")


def test_without_anybody_to_ask_everything_is_booted(folder: Path, unbooted: Unbooted) -> None:
    unbooted.replay(ladder(folder, blocks=4, looks=[3, 4]), folder / "run")
    assert len(unbooted.booted) == 16
    assert not events_of(folder / "run", "look", "look_failed")


def test_a_resume_restores_what_looks_decided(folder: Path, unbooted: Unbooted) -> None:
    path = ladder(folder, blocks=6, looks=[3, 6])
    unbooted.stop_before = (5, "v0")
    when, ask = asked({"v1": "inconclusive", "v2": "adopt"})
    with pytest.raises(KeyboardInterrupt):
        unbooted.replay(path, folder / "run", ask=ask)
    unbooted.stop_before = None
    unbooted.replay(path, folder / "run", resume=True, ask=ask)  # a second question would find no answer
    assert when == [3]
    assert blocks_of(unbooted, "v2") == []
    assert len(events_of(folder / "run", "arm_decided")) == 1
    done = Counter(boot.facts.arm for boot in read_run(folder / "run").boots)
    assert done == {"v0": 6, "v0.aa": 6, "v1": 6, "v2": 3}


def cut_after(run: Path, event: str) -> None:
    """As if a kill had come right behind this event."""
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    names = [orjson.loads(line)["event"] for line in lines]
    (run / "events.jsonl").write_bytes(b"".join(lines[: names.index(event) + 1]))


def test_a_kill_between_a_look_and_what_follows_from_it_loses_nothing(folder: Path, unbooted: Unbooted) -> None:
    path = ladder(folder, blocks=4, looks=[3, 4])
    unbooted.stop_before = (4, "v0")
    _, ask = asked({"v1": "reject", "v2": "reject"})
    unbooted.replay(path, folder / "run", ask=ask)  # all are decided: block 4 never comes
    cut_after(folder / "run", "look")
    unbooted.replay(path, folder / "run", resume=True, ask=ask)
    assert unbooted.booted == []
    assert [event["arm"] for event in events_of(folder / "run", "arm_decided")] == ["v1", "v2"]


def test_a_kill_before_a_look_leaves_it_to_the_resume(folder: Path, unbooted: Unbooted) -> None:
    path = ladder(folder, blocks=4, looks=[3, 4])

    def killed(run: Path) -> Mapping[str, str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unbooted.replay(path, folder / "run", ask=killed)
    when, ask = asked({"v1": "reject", "v2": "reject"})
    unbooted.replay(path, folder / "run", resume=True, ask=ask)
    assert (when, unbooted.booted) == ([3], [])


def test_a_look_that_failed_is_not_taken_again_behind_its_back(folder: Path, unbooted: Unbooted) -> None:
    """Boots of later blocks are there by then, and the rule looks at none of them before its next look."""
    path = ladder(folder, blocks=6, looks=[3, 6])

    def ask(run: Path) -> Mapping[str, str]:
        raise FirsttokenError("no")

    unbooted.stop_before = (5, "v0")
    with pytest.raises(KeyboardInterrupt):
        unbooted.replay(path, folder / "run", ask=ask)
    unbooted.stop_before = None
    when, ask_now = asked({"v1": "reject", "v2": "reject"})
    unbooted.replay(path, folder / "run", resume=True, ask=ask_now)
    assert when == []


def test_a_failed_arm_is_out_and_not_decided() -> None:
    standing = Standing([["v0", "v1"]], frozenset({"v0"}), frozenset({"v1", "v2"}), {}, failed={"v1": "dead"})
    assert newly_decided({"v1": "reject", "v2": "adopt", "v0": "adopt"}, standing) == {"v2": "adopt"}


def test_the_progress_line_counts_what_is_left_after_drops_and_its_eta_holds_after_a_failed_boot(
    folder: Path, unbooted: Unbooted
) -> None:
    stream = io.StringIO()
    unbooted.takes_s = lambda place: 7 if place.name == "v2" else 600
    unbooted.status = lambda place: FAILED if place.name == "v2" else DONE
    _, ask = asked({"v1": "reject", "v2": "reject"})

    async def begin() -> Progress:
        return Progress(0, CLOCK, stream)

    progress = run_virtual(begin())
    path = ladder(folder, blocks=4, looks=[3, 4])
    unbooted.replay(path, folder / "run", ask=ask, note=progress.note)
    lines = stream.getvalue().splitlines()
    ends = [line for line in lines if line.startswith("[")]
    assert ends[0].startswith("[1/16] block 1 ")
    # 13 boots in all once v2 is out: 4 blocks of three, and the one that failed.
    (failed,) = [line for line in ends if "v2: failed" in line]
    after = ends[ends.index(failed) + 1]
    assert "/13]" in after
    # Ten minutes a boot, whatever the failed one took.
    done = [line for line in ends if ": done in 10 min 00 s" in line]
    assert len(done) == 9
    for line in done:
        place, total = (int(part) for part in line[1 : line.index("]")].split("/"))
        left = format_duration(600 * SECOND_NS * (total - place))
        assert line.endswith(f"({left} left)"), line
    assert "look after 3 blocks: v1 reject, v2 reject" in lines
    assert "v1: decided, reject; not booted again" in lines
    assert progress.ended == progress.total == 10  # block 4 never came


def test_the_front_door_asks_the_report_in_a_process_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FirsttokenError, match=r"the report ended with exit code 2: .*"):
        ask_verdicts(tmp_path / "nowhere")


@pytest.mark.process
def test_a_whole_run_ends_at_the_look_that_decides_its_arm(folder: Path) -> None:
    slow = (
        f'[[arm]]\nname = "v1"\nargv = ["{sys.executable}", "-m", "firsttoken", "engine", "--port", "{{port}}", '
        '"--model", "{model}", "--boot-time", "10ms", "--time-scale", "0.4"]\n'
    )
    ladder(folder, blocks=4, looks=[3, 4], arms=slow)
    done = replay_command(folder)
    assert done.returncode == 0, done.stderr
    run = read_run(folder / "run")
    (look,) = events_of(folder / "run", "look")
    assert (look["blocks"], look["verdicts"]) == (3, {"v1": "reject"})
    assert Counter(boot.facts.arm for boot in run.boots) == {"v0": 3, "v0.aa": 3, "v1": 3}
    assert "v1: decided, reject; not booted again" in done.stderr
    assert not (folder / "run" / "verdict.json").exists()
    resumed = replay_command(folder, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "Every boot of this run is done" in resumed.stderr
