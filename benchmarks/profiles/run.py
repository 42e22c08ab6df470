"""Plays the benchmark: `python -m benchmarks.profiles.run --sizes 100000,1000000`.

At each size the steps run one after another in an order drawn anew for each round, each in a process of its own, on two
cores. The profile that is swept comes from a build of its own, which counts where `build` is not among the steps. A
ratio is the median of the ratios of single rounds. Progress goes to stderr, the table to stdout.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import orjson

from benchmarks.profiles.make import make_capture
from benchmarks.profiles.steps import BUILT, CAPTURE, PROFILE, STEPS

# Each step with the floor that it is held against.
FLOORS = {
    "sweep_profile": "scan_columns",
    "sweep_classes": "scan_columns",
    "sweep_pandas": "scan_columns",
    "parse_lines": "scan_lines",
    "build": "scan_lines",
    "build_pandas": "scan_lines",
}
MIB = 1024 * 1024

type Rounds = list[dict[str, dict[str, float]]]


@click.command()
@click.option("--sizes", default="100000,1000000", show_default=True, help="Requests, with commas.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--steps", default=",".join(STEPS), show_default=True, help="Names and commas.")
@click.option("--seed", default=1, show_default=True)
@click.option("--raw", type=click.Path(path_type=Path, dir_okay=False), help="Append every measurement to this file.")
def main(sizes: str, rounds: int, steps: str, seed: int, raw: Path | None) -> None:
    """Measure build and sweep of a profile against the floor of scanning the same files, and against pandas."""
    click.echo(
        "| requests | step | seconds | / floor | µs / request | peak MiB |\n| ---: | --- | ---: | ---: | ---: | ---: |"
    )
    for size in map(int, sizes.split(",")):
        with tempfile.TemporaryDirectory(prefix="firsttoken-benchmark-", dir=os.environ.get("TMPDIR")) as folder:
            found = _measure(Path(folder), size, rounds, steps.split(","), random.Random(seed), raw)
        for line in _table(size, found):
            click.echo(line)


def _measure(folder: Path, size: int, rounds: int, steps: list[str], rng: random.Random, raw: Path | None) -> Rounds:
    click.echo(f"{size} requests: making the capture", err=True)
    make_capture(folder / CAPTURE, size, seed=rng.randrange(1_000_000))
    click.echo(f"{size} requests: making the profile", err=True)
    built = _run("build", folder)
    if built is None:
        raise click.ClickException("the profile could not be built")
    (folder / BUILT).rename(folder / PROFILE)
    _keep(raw, size, 0, built)
    found: Rounds = []
    for number in range(rounds):
        order = rng.sample(steps, len(steps))
        found.append({"build": built} if number == 0 and "build" not in steps else {})
        for name in order:
            said = _run(name, folder)
            if said is None:
                continue
            found[-1][name] = said
            click.echo(f"{size} requests, round {number + 1}: {name} {said['seconds']:.2f} s", err=True)
            _keep(raw, size, number, said)
        shutil.rmtree(folder / BUILT, ignore_errors=True)
    return found


def _keep(raw: Path | None, size: int, number: int, said: dict[str, float]) -> None:
    if raw is not None:
        with raw.open("ab") as file:
            file.write(orjson.dumps({"requests": size, "round": number, **said}) + b"\n")


def _run(name: str, folder: Path) -> dict[str, float] | None:
    """One step in a fresh process on two cores. None where it cannot run here: pandas need not be installed."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.profiles.steps", name, str(folder)],
        capture_output=True,
        env=os.environ | {"POLARS_MAX_THREADS": "2"},
        preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2]),
        check=False,
    )
    if done.returncode:
        click.echo(f"{name} left out: {done.stderr.decode().strip().splitlines()[-1]}", err=True)
        return None
    said: dict[str, float] = orjson.loads(done.stdout)
    return said


def _table(size: int, found: Rounds) -> list[str]:
    lines = []
    for name in STEPS:
        of_step = [each[name] for each in found if name in each]
        if not of_step:
            continue
        seconds = statistics.median(each["seconds"] for each in of_step)
        peak = max(each["peak_bytes"] for each in of_step) / MIB
        floor = FLOORS.get(name)
        pairs = [each[name]["seconds"] / each[floor]["seconds"] for each in found if floor in each and name in each]
        ratio = f"{statistics.median(pairs):.2f}" if pairs else "1" if floor is None else "-"
        lines.append(f"| {size} | {name} | {seconds:.2f} | {ratio} | {1e6 * seconds / size:.2f} | {peak:.0f} |")
    return lines


if __name__ == "__main__":
    main()
