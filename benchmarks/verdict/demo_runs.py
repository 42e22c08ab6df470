"""The demo's ladder again and again, with real processes: `python -m benchmarks.verdict.demo_runs --runs 20`.

A check of the whole pipeline where `calibrate` is one of the arithmetic. Each run records, builds, boots 15 engines and
judges, with a seed of its own. v1 and v2 change nothing; v3 drafts one token more.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click
import orjson

NULL_ARMS: Final = ("v1_flashinfer", "v2_async")
MIXED_ARM: Final = "v3_spec3"
FOUND_SHARE: Final = 0.9


def run_demo(folder: Path, seed: int) -> dict[str, Any]:
    """One demo; its verdict.json. Raises ClickException with the end of its output if it did not run through."""
    words = [sys.executable, "-m", "firsttoken", "demo", "--out", str(folder), "--seed", str(seed)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(
            f"seed {seed}: exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-500:]}"
        )
    document: dict[str, Any] = orjson.loads((folder / "run" / "verdict.json").read_bytes())
    return document


def row(seed: int, document: dict[str, Any]) -> str:
    """One run as a row of a Markdown table."""
    arms = {arm["arm"]: arm for arm in document["arms"]}
    cells = [arms[name]["verdict"] for name in (*NULL_ARMS, MIXED_ARM)]
    tpot = next(item for item in arms[MIXED_ARM]["measures"] if item["measure"] == "tpot")
    classes = {item["class"]: item["change"] for item in tpot["classes"]}
    split = ", ".join(f"{name} {100 * change:+.1f} %" for name, change in classes.items() if change is not None)
    return f"| {seed} | {' | '.join(cells)} | {split.replace('-', '−')} |"


@click.command()
@click.option("--runs", default=20, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the first run; each later one counts up.")
@click.option("--beside", default=1, show_default=True, help="Runs side by side; each wants about two cores.")
def main(runs: int, seed: int, beside: int) -> None:
    """Run the demo many times and count its verdicts. Exit code 1: a null arm was adopted, or v3 found too rarely."""
    words: Counter[tuple[str, str]] = Counter()
    click.echo(f"| seed | {NULL_ARMS[0]} | {NULL_ARMS[1]} | {MIXED_ARM} | TPOT of {MIXED_ARM} by class |")
    click.echo("| ---: | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(beside) as pool:
        seeds = range(seed, seed + runs)
        for number, document in zip(
            seeds, pool.map(lambda at: run_demo(Path(folder) / str(at), at), seeds), strict=True
        ):
            click.echo(row(number, document))
            words.update((arm["arm"], arm["verdict"]) for arm in document["arms"])
    adopted = sum(words[name, "adopt"] for name in NULL_ARMS)
    found = words[MIXED_ARM, "workload-dependent"]
    click.echo(f"\nnull arms adopted: {adopted} of {2 * runs}; v3 workload-dependent: {found} of {runs}")
    if adopted or found < FOUND_SHARE * runs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
