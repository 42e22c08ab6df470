"""Runs for the tests of the HTML report, small and complete: what each of them shows is known."""

from pathlib import Path
from typing import Any, Final

from synthetic_run import Effect, Synthetic

from analysis.findings import Report
from analysis.judge import judge
from profiles.experiment import load_experiment
from profiles.runs import RULE, LogFinding, read_run

MIXED: Final = {"chat": 0.0, "json_extraction": -0.16, "rag_long": -0.14, "short_qa": 0.09}
DRAFTS: Final = {"chat": 1.1, "json_extraction": 1.9, "rag_long": 1.6, "short_qa": 0.7}
LONGER: Final = {name: 1.3 * length for name, length in DRAFTS.items()}
FALLBACK: Final = "WARNING falling back to eager mode"
RISING: Final = {c: -0.1 + 0.02 * (c - 1) for c in range(1, 9)}  # turns at c = 6


def ladder(**more: Any) -> Synthetic:
    """A null arm, one with a new fallback line, and one that depends on the workload and turns in the sweep."""
    known: dict[str, Any] = {
        "arms": {
            "v1": Effect(),
            "v2": Effect(ttft=-0.12, findings=(LogFinding(id="x", severity="fallback", signature=FALLBACK),)),
            "v3": Effect(
                tpot=MIXED, acceptance={name: 1.3 * length for name, length in DRAFTS.items()}, ttft_at=RISING
            ),
        },
        "baseline": Effect(acceptance=DRAFTS),
        "sweep": tuple(range(1, 9)),
        "per_class": True,
    }
    return Synthetic(**(known | more))


def judged(path: Path) -> Report:
    """The report of a run directory."""
    return judge(read_run(path), load_experiment(path / RULE))
