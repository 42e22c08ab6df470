"""What a report of many requests costs: `python -m benchmarks.verdict.speed`.

A run of 25 boots with 4000 requests each is written as a replay would write it, the instants of all tokens included.
Then the whole command is timed, a process of its own each time: terminal, verdict.json and the page.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click
import msgspec

from profiles.records import Outcome

FORMS: Final = {
    "terminal, JSON and HTML": (),
    "terminal, JSON and static HTML": ("--static",),
    "terminal and JSON": ("--no-html",),
}
LIMIT_S: Final = 3.0
LIMIT_BYTES: Final = 2_000_000


def with_tokens(_arm: str, _block: int, outcome: Outcome) -> Outcome:
    """The same outcome with an event for each token."""
    response = outcome.response
    first, last, tokens = response.first_token_ns, response.last_token_ns, response.output_tokens
    if first is None or last is None or tokens is None:
        return outcome
    gaps = [(last - first) // (tokens - 1)] * (tokens - 1)
    facts = msgspec.structs.replace(response, token_gaps_ns=gaps, events=tokens + 3, reads=tokens + 2)
    return msgspec.structs.replace(outcome, response=facts)


def write_run(path: Path, requests: int) -> Path:
    """Five blocks of a baseline, its copy and three arms: `requests` outcomes in all."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from synthetic_run import Effect, Synthetic

    arms = {"v1": Effect(), "v2": Effect(tpot=-0.03), "v3": Effect(tpot={"json_extraction": -0.16, "short_qa": 0.09})}
    run = Synthetic(arms, blocks=5, requests=requests // 25, sweep=(1, 2, 4, 8), edit_outcome=with_tokens)
    return run.write(path)


def timed(run: Path, options: tuple[str, ...]) -> tuple[float, float]:
    """Wall and processor seconds of one report, its own processes included."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "firsttoken", "report", str(run), *options]
    done = subprocess.run(command, capture_output=True, check=False)
    wall = time.perf_counter() - started
    if done.returncode not in (0, 3):
        raise click.ClickException(done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@click.command()
@click.option("--requests", default=100_000, show_default=True)
@click.option("--times", default=5, show_default=True)
def main(requests: int, times: int) -> None:
    """Print seconds and sizes. Exit code 1 where the first form takes more than 3 s or its page more than 2 MB."""
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", requests)
        size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        click.echo(f"{requests:,} outcomes in 25 boots, {size / 1e6:.0f} MB")
        slow = False
        for name, options in FORMS.items():
            taken = [timed(run, options) for _ in range(times)]
            wall, spent = (statistics.median(side) for side in zip(*taken, strict=True))
            page = run / "report.html"
            told = f", page {page.stat().st_size:,} bytes" if "--no-html" not in options else ""
            click.echo(f"{name}: {wall:.2f} s wall, {spent:.2f} s processor{told}")
            slow = slow or (not options and (wall > LIMIT_S or page.stat().st_size > LIMIT_BYTES))
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
