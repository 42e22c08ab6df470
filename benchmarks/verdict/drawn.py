"""An experiment of known effects, as the frame that `analysis.load` makes of a run.

Requests have sizes of their own, the same in all arms. An arm's effect multiplies TTFT or TPOT, for everybody or by
class. Everything from here on is the product's own judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from analysis import stats
from analysis.bench import Bench
from analysis.course import course_of
from analysis.load import SCHEMA
from analysis.measures import with_measures
from benchmarks.verdict.noise import Floats, Noise, draw_boots, draw_requests
from profiles.experiment import Experiment, load_experiment
from profiles.records import OK
from profiles.runs import AA_SUFFIX, DONE, Boot, BootFacts, Run
from profiles.units import MILLISECOND_NS

BASELINE: Final = "v0"
CLASSES: Final = ("chat", "short_qa", "code", "json", "rag")
SHARES: Final = (0.3, 0.2, 0.15, 0.2, 0.15)
TTFT_MS: Final = (300.0, 220.0, 400.0, 350.0, 2500.0)
TPOT_MS: Final = 20.0
TOKENS: Final = 120


@dataclass(frozen=True, slots=True)
class Effect:
    """True relative changes of an arm, by measure: one for all classes, or by class."""

    ttft: float | Mapping[str, float] = 0.0
    tpot: float | Mapping[str, float] = 0.0

    def logs(self, measure: str) -> Floats:
        """Per class, as log ratios."""
        change = self.ttft if measure == "ttft" else self.tpot
        by_class = change if isinstance(change, Mapping) else dict.fromkeys(CLASSES, change)
        return np.log1p(np.array([by_class.get(name, 0.0) for name in CLASSES]))


@dataclass(frozen=True, slots=True)
class Design:
    """Blocks and requests of each boot."""

    arms: Mapping[str, Effect]
    blocks: int = 5
    requests: int = 400
    noise: Noise = field(default_factory=Noise)

    def classes(self) -> Floats:
        """Index of the class of each request: fixed, as a deciding window is."""
        counts = np.floor(np.array(SHARES) * self.requests).astype(int)
        counts[0] += self.requests - counts.sum()
        return np.repeat(np.arange(len(CLASSES)), counts)

    def mixed(self, arm: str, measure: str) -> float:
        """The true log ratio of the mix."""
        return float(self.arms[arm].logs(measure)[self.classes()].mean())


def draw_bench(design: Design, experiment: Experiment, seed: int) -> Bench:
    """One data set, ready to be judged."""
    rng = np.random.default_rng(seed)
    names = [BASELINE, *design.arms, BASELINE + AA_SUFFIX]
    order = [[str(name) for name in rng.permutation(names)] for _ in range(design.blocks)]
    classes = design.classes()
    sizes = np.exp(rng.normal(0, 0.5, design.requests))
    slots = [(block, arm) for block, arms in enumerate(order, start=1) for arm in arms]
    columns: dict[str, list[Floats]] = {"ttft": [], "tpot": []}
    for measure, values in columns.items():
        boots = draw_boots(design.noise, len(slots), len(CLASSES), rng)[:, classes]
        requests = draw_requests(design.noise, len(slots), design.requests, rng)
        usual = np.log(np.array(TTFT_MS)[classes] * sizes) if measure == "ttft" else np.log(TPOT_MS)
        none = Effect()
        effects = np.array([design.arms.get(arm, none).logs(measure)[classes] for _, arm in slots])
        values.append(np.exp(usual + boots + requests + effects) * MILLISECOND_NS)
    frame = _frame(design, slots, classes, columns["ttft"][0], columns["tpot"][0])
    run = _run(design, order, slots)
    return Bench(
        run=run,
        experiment=experiment,
        frame=with_measures(frame),
        baseline=BASELINE,
        planned=design.requests,
        course=course_of(run, experiment),
        alpha=stats.ALPHA / len(experiment.looks),
    )


def _frame(design: Design, slots: list[tuple[int, str]], classes: Floats, ttft: Floats, tpot: Floats) -> pl.DataFrame:
    boots, requests = len(slots), design.requests
    rows = boots * requests
    index = np.tile(np.arange(requests), boots)
    first = ttft.astype(np.int64).ravel()
    last = first + (tpot * (TOKENS - 1)).astype(np.int64).ravel()
    columns: dict[str, Any] = {
        "arm": np.repeat([arm for _, arm in slots], requests),
        "block": np.repeat([block for block, _ in slots], requests),
        "window": ["closed-c1"] * rows,
        "kind": ["closed"] * rows,
        "deciding": np.full(rows, True),
        "c": np.ones(rows, dtype=np.int64),
        "index": index,
        "request": index,
        "workload": np.tile(np.array(CLASSES)[classes], boots),
        "outcome": [OK] * rows,
        "due_ns": np.zeros(rows, dtype=np.int64),
        "send_started_ns": np.zeros(rows, dtype=np.int64),
        "first_token_ns": first,
        "last_token_ns": last,
        "end_ns": last,
        "token_events": np.full(rows, TOKENS),
        "first_event_tokens": np.ones(rows, dtype=np.int64),
        "output_tokens": np.full(rows, TOKENS),
    }
    return pl.DataFrame({name: columns.get(name, pl.repeat(None, rows, eager=True)) for name in SCHEMA}, schema=SCHEMA)


def _run(design: Design, order: list[list[str]], slots: list[tuple[int, str]]) -> Run:
    """The bookkeeping of a finished run, without its outcomes: those are in the frame."""
    window = {"name": "closed-c1", "kind": "closed", "c": 1, "deciding": True, "requests": design.requests}
    manifest = {
        "baseline": BASELINE,
        "aa": BASELINE + AA_SUFFIX,
        "blocks": design.blocks,
        "order": order,
        "windows": [window],
        "profile": {"arrivals_at": {"1": 1000}},
        "operating_point": {"mode": "closed", "levels": [1], "weights": {"1": 1.0}},
    }
    boots = []
    for slot, (block, arm) in enumerate(slots, start=1):
        facts = BootFacts(arm=arm, block=block, slot=slot, status=DONE, argv=[], wall_ns=0, mono_ns=0, simulated=True)
        boots.append(Boot(Path(), facts, ()))
    return Run(Path(), manifest, tuple(boots), (), ({"event": "run_done"},))


@cache
def rule(path: Path) -> Experiment:
    """The rule of the calibration, read once."""
    return load_experiment(path)


def rule_text(design: Design, material: float | None = None) -> str:
    """An experiment.toml with the default measures, or with this material line on both."""
    lines = ['[rule]\nid = "calibration"\n[profile]\npath = "none"\n[engine]\nargv = ["engine"]']
    lines.append(f"[load]\nrequests_per_boot = {design.requests}\n[design]\nblocks = {design.blocks}")
    lines.append('ladder = "flat"')
    if material is not None:
        lines += [f'[[measure]]\nname = "{name}"\nmaterial = {{ relative = {material} }}' for name in ("ttft", "tpot")]
    lines += [f'[[arm]]\nname = "{name}"\nargs = ["--{name}"]' for name in (BASELINE, *design.arms)]
    lines.append('[[guard]]\nmetric = "ttft_p90"\nmargin = 0.10')
    return "\n".join(lines) + "\n"
