"""First uses are shown apart; windows that find what an earlier one left are said to be warm."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic_run import Effect, Synthetic
from test_analysis_report import judged, squeeze

from analysis.bench import make_bench
from analysis.first_use import first_uses
from analysis.judge import judge
from analysis.table import format_report
from profiles.experiment import load_experiment
from profiles.runs import RULE, BootFacts, Step, read_run
from profiles.units import SECOND_NS


def warmed(ready_s: float, *rounds_s: float | None, arm: str = "v1") -> Synthetic:
    """A run in which one arm's first tokens took so long; those of all others a millisecond."""

    def edit(facts: BootFacts) -> BootFacts:
        own = facts.arm == arm
        ready_ns = round((ready_s if own else 0.001) * SECOND_NS)
        rounds = [None if s is None else round((s if own else 0.001) * SECOND_NS) for s in rounds_s]
        steps = [
            Step(name="ready", began_ns=0, ended_ns=1, facts={"first_token_ns": ready_ns}),
            Step(name="warm_up", began_ns=1, ended_ns=2, facts={"slowest_ttft_ns_at": {"1": rounds, "8": rounds}}),
        ]
        return msgspec.structs.replace(facts, steps=steps)

    return Synthetic({"v1": Effect()}, edit_boot=edit)


def test_a_first_use_is_shown_with_its_place_and_stands_in_no_result(tmp_path: Path) -> None:
    plain, _ = judged(tmp_path / "plain", warmed(0.001, 0.001))
    document, result = judged(tmp_path / "slow", warmed(12, 8, None))
    line = "Warm-up first uses, the slowest, in no result: v1 12.0 s before it was ready, 8.00 s alone, 8.00 s at c = 8"
    assert line in squeeze(result.stdout)
    assert document["arms"][0]["measures"] == plain["arms"][0]["measures"]


@pytest.mark.parametrize(("seconds", "found"), [(0.001, {}), (60, {"v1": {"ready", "1", "8"}})])
def test_what_is_no_slower_than_what_was_measured_is_no_first_use(
    tmp_path: Path, seconds: float, found: dict[str, Any]
) -> None:
    path = warmed(seconds, seconds).write(tmp_path / "run")
    uses = first_uses(make_bench(read_run(path), load_experiment(path / RULE)))
    assert {arm: set(places) for arm, places in uses.items()} == found


def test_the_line_is_twice_the_slowest_measured_first_token_of_the_same_boot(tmp_path: Path) -> None:
    path = warmed(1, 1).write(tmp_path / "run")
    bench = make_bench(read_run(path), load_experiment(path / RULE))
    slowest_ns = bench.frame.filter(arm="v1")["ttft_ns"].max()
    assert isinstance(slowest_ns, int)
    for factor, shown in ((1.5, False), (2.1, True)):
        seconds = factor * slowest_ns / SECOND_NS
        path = warmed(seconds, seconds).write(tmp_path / str(factor))
        uses = first_uses(make_bench(read_run(path), load_experiment(path / RULE)))
        assert bool(uses) is shown


def test_a_relative_report_and_a_run_that_does_not_say_have_no_such_line(tmp_path: Path) -> None:
    path = warmed(12, 8).write(tmp_path / "run")
    report = judge(read_run(path), load_experiment(path / RULE))
    assert "first uses" not in format_report(report, relative=True)
    assert "Warm-up" not in judged(tmp_path / "plain", Synthetic({"v1": Effect()}))[1].stdout


@pytest.mark.parametrize(("isolation", "said"), [("none", True), ("salt", False)])
def test_cells_are_said_to_be_warm_where_passes_share_a_cache(tmp_path: Path, isolation: str, said: bool) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["override"] = {"cache_isolation": isolation}

    def cells(facts: BootFacts) -> BootFacts:
        found = [
            msgspec.structs.replace(window, prompt_tokens=1000, cached_tokens=0 if window.deciding else 970)
            for window in facts.windows
        ]
        return msgspec.structs.replace(facts, windows=found)

    run = Synthetic({"v1": Effect()}, edit_manifest=edit, edit_boot=cells)
    document, _ = judged(tmp_path, run)
    notes = [text for text in document["warnings"] if text.startswith("passes are not kept apart")]
    assert bool(notes) is said
    if said:
        assert "cached prompt tokens closed-c1 0 %, closed-c2 0 %, closed-c3 0 %, closed-c8 97 %" in notes[0]
