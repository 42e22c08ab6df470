"""The demo, as `make demo` runs it: real processes from the recorder to the verdict."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from profiles.captures import read_capture
from profiles.profile import read_profile
from profiles.runs import read_run

pytestmark = [pytest.mark.process, pytest.mark.e2e]
ROOT = Path(__file__).parents[1]


def run_demo(folder: Path, seed: int) -> tuple[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "firsttoken", "demo", "--out", str(folder), "--seed", str(seed)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=420,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, orjson.loads((folder / "run" / "verdict.json").read_bytes())


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {arm["arm"]: arm["verdict"] for arm in document["arms"]}


def test_the_demo_reaches_the_verdicts_of_the_article_by_measuring(tmp_path: Path) -> None:
    shown, document = run_demo(tmp_path / "first", seed=7)
    folder = tmp_path / "first"
    if verdicts(document)["v3_spec3"] != "workload-dependent":
        # Three blocks of two dozen requests on shared cores may honestly fail to decide. Twice in a row they do not.
        shown, document = run_demo(tmp_path / "second", seed=8)
        folder = tmp_path / "second"
    assert verdicts(document)["v3_spec3"] == "workload-dependent"
    assert "adopt" not in verdicts(document).values()
    assert set(verdicts(document)) == {"v1_flashinfer", "v2_async", "v3_spec3"}
    (v3,) = [arm for arm in document["arms"] if arm["arm"] == "v3_spec3"]
    (tpot,) = [measure for measure in v3["measures"] if measure["measure"] == "tpot"]
    directions = {item["class"]: item["direction"] for item in tpot["classes"]}
    assert directions["json_extraction"] == "gain"
    assert directions["chat_single"] == "loss"
    assert "keep" in v3["action"]

    assert document["engine_kind"] == "simulated"
    assert shown.count("SIMULATED ENGINE") >= 2
    for part in ("observed operating point", "workload-dependent", "Skipped arms", "fastsafetensors", "verdict.json"):
        assert part in shown
    check_artefacts(folder)


def check_artefacts(folder: Path) -> None:
    capture = read_capture(folder / "capture")
    assert {exchange.outcome for exchange in capture.exchanges} == {"ok"}
    assert not capture.open
    profile = read_profile(folder / "profile")
    profile.verify()
    assert profile.manifest["operating_point"]["max"] <= 3
    run = read_run(folder / "run")
    assert len([boot for boot in run.boots if boot.facts.status == "done"]) == 15
    assert all(boot.facts.simulated for boot in run.boots)
