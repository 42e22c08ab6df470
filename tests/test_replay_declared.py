"""A load that nobody recorded: its operating point is declared, with a reason, and never taken for observed."""

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recorded import write_profile as record
from synthetic_run import Effect, Synthetic

from analysis.cli import report
from profiles.builtin.generate import generate
from profiles.errors import RuleError
from profiles.experiment import Experiment, load_experiment
from profiles.profile import read_profile
from profiles.write import write_profile
from replay.clock import SystemClock
from replay.plan import Plan, plan_run

DECLARED = 'operating_point = { basis = "declared", levels = { "1" = 3, "2" = 1 }, reason = "a team of four" }'
HEAD = """
[rule]
id = "declared"
[profile]
path = "profile"
{point}
[engine]
argv = ["{python}", "--port", "{{port}}"]
[load]
requests_per_boot = 16
also = []
[[arm]]
name = "v0"
[[arm]]
name = "v1"
{more}
"""


def rule(folder: Path, point: str, more: str = "") -> Experiment:
    path = folder / "experiment.toml"
    path.write_text(HEAD.format(python=sys.executable, point=point, more=more), encoding="utf-8")
    return load_experiment(path)


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    """A built-in profile: real bodies, and no arrivals that mean anything."""
    made = generate("short-qa", seed=3, requests=12)
    write_profile(
        tmp_path / "profile",
        made.requests,
        source=made.source,
        windows=[],
        zero_wall_ns=None,
        bodies=enumerate(made.bodies),
        content="full",
        synthetic=True,
    )
    return tmp_path


def plan(folder: Path, point: str, more: str = "") -> Plan:
    return plan_run(rule(folder, point, more), read_profile(folder / "profile"), SystemClock())


def test_a_generated_load_has_no_operating_point_of_its_own(generated: Path) -> None:
    with pytest.raises(RuleError, match="is synthetic: nobody produced this load") as caught:
        plan(generated, "")
    assert 'basis = "declared"' in caught.value.hint


def test_a_declared_point_is_planned_and_written_down(generated: Path) -> None:
    planned = plan(generated, DECLARED)
    point = planned.manifest["operating_point"]
    assert (point["basis"], point["reason"], point["max"]) == ("declared", "a team of four", None)
    assert point["levels"] == [1, 2]
    assert point["weights"] == {"1": 0.75, "2": 0.25}
    assert planned.manifest["profile"]["synthetic"] is True
    assert planned.manifest["profile"]["arrivals_at"] == planned.manifest["profile"]["time_ns_at"] == {}
    assert {pick.row.request for window in planned.load.windows for pick in window.picks} <= set(range(12))


def test_the_limit_of_a_generated_body_is_its_own(generated: Path) -> None:
    """`capped` means the recorded length; an estimated one would cut JSON in its middle."""
    import orjson

    planned = plan(generated, DECLARED)
    window = planned.load.windows[0]
    bodies = read_profile(generated / "profile").bodies()
    for index in range(len(window.picks)):
        sent = planned.load.requests_of(window)(index)
        assert orjson.loads(sent.body)["max_tokens"] == orjson.loads(bodies[sent.request])["max_tokens"]


def test_a_guard_at_a_level_that_was_not_declared_may_not_decide(generated: Path) -> None:
    guard = '[[guard]]\nmetric = "throughput@c=8"\ndirection = "higher"\nmargin = 0.1'
    also = 'also = ["closed c=8 for 1s"]'
    path = generated / "experiment.toml"
    path.write_text(
        HEAD.format(python=sys.executable, point=DECLARED, more=guard).replace("also = []", also), encoding="utf-8"
    )
    with pytest.raises(RuleError, match=r"0\.0 % of the arrivals reach c = 8"):
        plan_run(load_experiment(path), read_profile(generated / "profile"), SystemClock())


def test_what_production_does_is_not_declared_away(tmp_path: Path) -> None:
    record(tmp_path / "profile", ["qa", "json", "qa"])
    with pytest.raises(RuleError, match="was recorded and has an operating point of its own"):
        plan(tmp_path, DECLARED)
    manifest = plan(tmp_path, "").manifest
    assert manifest["operating_point"]["basis"] == "arrivals"
    measured = read_profile(tmp_path / "profile").concurrency()
    assert manifest["profile"]["time_ns_at"] == {str(c): ns for c, ns in sorted(measured.time_ns_at.items())} != {}


@pytest.mark.parametrize(
    ("point", "problem"),
    [
        ('operating_point = { basis = "declared", reason = "x" }', "levels are whole numbers"),
        ('operating_point = { basis = "declared", levels = { "0" = 1 }, reason = "x" }', "levels are whole numbers"),
        ('operating_point = { basis = "declared", levels = { "two" = 1 }, reason = "x" }', "levels are whole numbers"),
        ('operating_point = { basis = "declared", levels = { "1" = 0 }, reason = "x" }', "must be above 0"),
        ('operating_point = { basis = "declared", levels = { "1" = 1 } }', "needs its reason"),
        ('operating_point = { levels = { "1" = 1 } }', "levels are for a declared operating point"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(tmp_path: Path, point: str, problem: str) -> None:
    with pytest.raises(RuleError, match=problem) as caught:
        rule(tmp_path, point)
    assert caught.value.key.startswith("profile.operating_point")


def test_the_report_says_that_a_load_was_shaped(tmp_path: Path) -> None:
    def shape(manifest: dict[str, Any]) -> None:
        manifest["profile"]["source"] = {"kind": "shape"}

    Synthetic({"v1": Effect()}, blocks=3, edit_manifest=shape).write(tmp_path / "run")
    text = " ".join(CliRunner().invoke(report, [str(tmp_path / "run")]).stdout.split())
    assert "shaped, not as recorded: arrivals at c = 1" in text


def test_the_report_says_that_it_was_not_observed(tmp_path: Path) -> None:
    def declare(manifest: dict[str, Any]) -> None:
        manifest["operating_point"] = manifest["operating_point"] | {"basis": "declared", "reason": "a team of four"}

    Synthetic({"v1": Effect()}, blocks=3, edit_manifest=declare).write(tmp_path / "run")
    shown = CliRunner().invoke(report, [str(tmp_path / "run")])
    text = " ".join(shown.stdout.split())
    assert "not observed: the rule declares c=1" in text
    assert "(a team of four). Holds for such a load, and no other" in text
