"""Thousands of experiments of known effect through the judge: `python -m benchmarks.verdict.calibrate`.

Each data set is one run: a baseline, its copy, and arms of which each has another true effect. Nothing waits for a
clock. Every count has the exact 95 % interval of its share beside it.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import click

from analysis.judge import judge_bench
from analysis.stats import binomial_lower, binomial_upper
from benchmarks.verdict.drawn import Design, Effect, draw_bench, rule, rule_text

# By the article: a longer draft helps where text is predictable.
MIXED: Final = {"chat": 0.09, "short_qa": 0.05, "code": -0.11, "json": -0.16, "rag": -0.14}
# Three arms to a run, as in a ladder: the more boots a block has, the further apart drift takes them.
RUNS: Final[tuple[dict[str, Effect], ...]] = (
    {"null": Effect(), "ttft_5_faster": Effect(ttft=-0.05), "mixed": Effect(ttft=MIXED)},
    {"ttft_3_faster": Effect(ttft=-0.03), "ttft_3_slower": Effect(ttft=0.03), "tpot_10_faster": Effect(tpot=-0.10)},
    {"ttft_10_faster": Effect(ttft=-0.10), "tpot_5_faster": Effect(tpot=-0.05), "mixed_decode": Effect(tpot=MIXED)},
)
MEASURES: Final = ("ttft", "tpot")
AT_A_TIME: Final = 25


@dataclass(slots=True)
class Counts:
    """What came out of some data sets."""

    sets: int = 0
    invalid: int = 0
    words: Counter[tuple[str, str]] = field(default_factory=Counter)  # arm, verdict; valid runs only
    covered: Counter[str] = field(default_factory=Counter)  # by measure
    intervals: Counter[str] = field(default_factory=Counter)

    def judged(self, arm: str) -> int:
        """Valid runs that held this arm."""
        return sum(count for (name, _), count in self.words.items() if name == arm)

    def add(self, other: "Counts") -> None:
        """Lay other counts on these."""
        self.sets += other.sets
        self.invalid += other.invalid
        for name in ("words", "covered", "intervals"):
            getattr(self, name).update(getattr(other, name))


def count(arms: dict[str, Effect], blocks: int, requests: int, seeds: Iterable[int], rule_path: Path) -> Counts:
    """Judge one data set per seed."""
    design = Design(arms, blocks, requests)
    found = Counts()
    for seed in seeds:
        report = judge_bench(draw_bench(design, rule(rule_path), seed))
        found.sets += 1
        found.invalid += bool(report.invalid)
        for arm in report.arms:
            for finding in arm.measures:
                estimate = finding.estimate
                if estimate is None or estimate.low is None or estimate.high is None:
                    continue
                found.intervals[finding.measure] += 1
                truth = design.mixed(arm.arm, finding.measure)
                found.covered[finding.measure] += estimate.low <= truth <= estimate.high
            if not report.invalid:
                found.words[arm.arm, arm.verdict.word] += 1
    return found


def calibrate(blocks: int, requests: int, sets: int, seed: int, workers: int) -> Counts:
    """Count over `sets` data sets of each of the `RUNS`, in so many processes. The same seed gives the same counts."""
    whole = Counts()
    jobs = []
    with tempfile.TemporaryDirectory() as folder:
        for number, arms in enumerate(RUNS):
            path = Path(folder) / f"experiment-{number}.toml"
            path.write_text(rule_text(Design(arms, blocks, requests)), encoding="utf-8")
            first = (seed * len(RUNS) + number) * 10_000_000
            for start in range(first, first + sets, AT_A_TIME):
                seeds = range(start, min(start + AT_A_TIME, first + sets))
                jobs.append((arms, blocks, requests, seeds, path))
        if workers == 1:
            for job in jobs:
                whole.add(count(*job))
            return whole
        # A thread of polars does not survive a fork.
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            for done in [pool.submit(count, *job) for job in jobs]:
                whole.add(done.result())
    return whole


@dataclass(frozen=True, slots=True)
class Claim:
    """What must hold, as shares."""

    text: str
    events: int
    trials: int
    least: float
    most: float

    @property
    def holds(self) -> bool:
        """Whether the share that was counted is within its bounds."""
        return self.trials > 0 and self.least <= self.events / self.trials <= self.most


def claims(found: Counts) -> list[Claim]:
    """The claims about five blocks."""
    words = found.words
    uniform = [name for arms in RUNS for name in arms if not name.startswith("mixed")]
    return [
        Claim("a null arm is adopted", words["null", "adopt"], found.judged("null"), 0.0, 0.005),
        *(
            Claim(
                f"90 % interval of {name.upper()} covers the truth",
                found.covered[name],
                found.intervals[name],
                0.88,
                0.92,
            )
            for name in MEASURES
        ),
        Claim("TTFT −5 % is found", words["ttft_5_faster", "adopt"], found.judged("ttft_5_faster"), 0.75, 1.0),
        Claim(
            "the mixed arm is called workload-dependent",
            words["mixed", "workload-dependent"],
            found.judged("mixed"),
            0.8,
            1.0,
        ),
        Claim(
            "a uniform arm is called so",
            sum(words[name, "workload-dependent"] for name in uniform),
            sum(map(found.judged, uniform)),
            0.0,
            0.005,
        ),
        Claim("A/A calls a sound run invalid", found.invalid, found.sets, 0.0, 0.02),
    ]


def table(found: Counts) -> list[str]:
    """Verdicts by arm, in per cent of the valid runs, as Markdown."""
    words = ("adopt", "reject", "workload-dependent", "inconclusive")
    lines = ["| true effect | " + " | ".join(words) + " |", "| --- |" + " ---: |" * len(words)]
    for name in (name for arms in RUNS for name in arms):
        cells = [f"{100 * found.words[name, word] / found.judged(name):.1f}" for word in words]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def claim_table(made: list[Claim]) -> list[str]:
    """Each claim with its count and the exact 95 % interval, as Markdown."""
    lines = ["| claim | must be | counted | 95 % interval | holds |", "| --- | --- | ---: | --- | --- |"]
    for claim in made:
        low = binomial_lower(claim.events, claim.trials, 0.025)
        high = binomial_upper(claim.events, claim.trials, 0.025)
        must = f"≤ {100 * claim.most:g} %" if claim.least == 0 else f"≥ {100 * claim.least:g} %"
        if claim.least > 0 and claim.most < 1:
            must = f"{100 * claim.least:g}–{100 * claim.most:g} %"
        share = claim.events / claim.trials if claim.trials else float("nan")
        lines.append(
            f"| {claim.text} | {must} | {100 * share:.2f} % of {claim.trials} | "
            f"{100 * low:.2f}–{100 * high:.2f} % | {'yes' if claim.holds else 'NO'} |"
        )
    return lines


@click.command()
@click.option("--blocks", default="3,5,10", show_default=True, help="Numbers and commas; the claims are about 5.")
@click.option("--requests", default=400, show_default=True, help="Deciding requests of each boot.")
@click.option("--sets", default=2000, show_default=True, help="Data sets of each run, at each number of blocks.")
@click.option("--seed", default=1, show_default=True)
@click.option("--workers", default=os.cpu_count() or 1, show_default="all cores")
def main(blocks: str, requests: int, sets: int, seed: int, workers: int) -> None:
    """Count verdicts over data sets of known effect. Tables go to stdout. Exit code 1: a claim does not hold."""
    broken = False
    for number in map(int, blocks.split(",")):
        found = calibrate(number, requests, sets, seed, workers)
        click.echo(f"\n{number} blocks, {requests} requests a boot, {sets} data sets of each run, seed {seed}\n")
        for line in table(found):
            click.echo(line)
        if number == 5:
            made = claims(found)
            broken = broken or not all(claim.holds for claim in made)
            click.echo("")
            for line in claim_table(made):
                click.echo(line)
    if broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
