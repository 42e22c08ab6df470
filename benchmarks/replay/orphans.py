"""Counts what a replay leaves behind of a real engine: `python -m benchmarks.replay.orphans --engine E --model M`.

One run of many cold boots is left alone. Then short runs are stopped by Ctrl-C, each at a moment drawn from the length
of a run like it. After each the machine is searched for processes of it: by a mark in their environment, which all
descendants inherit, and by their working directory. What is found is named and ended, and the exit code is 1.
"""

import contextlib
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import orjson
import psutil

from benchmarks.children import environment
from benchmarks.replay.processes import describe_machine
from profiles.runs import read_run

MARK = "FIRSTTOKEN_ORPHANS_OF"
PATIENCE_S = 900.0
HELP = "llama-server, or a command with its flags."

EXPERIMENT = """
[rule]
id = "orphans"
[profile]
path = "../profile"
[profile.operating_point]
basis = "declared"
levels = {{ "1" = 0.5, "2" = 0.5 }}
reason = "nobody sends this load"
[engine]
argv = {argv}
model = "small"
cache_isolation = "nonce"
stop_timeout = "10s"
[load]
requests_per_boot = 8
also = []
warmup_per_class = 1
warmup_rounds = 1
[design]
blocks = 1
ladder = "flat"
[discard]
when = []
[functional]
prompts = "off"
"""
FLAGS = "--alias {model} --host {host} --port {port} -c 8192 -np 2 -t 1 --metrics --no-ui"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that has ended: how, how many boots it began, and what of it was alive then."""

    code: int
    seconds: float
    boots: int
    left: tuple[str, ...]


@click.command()
@click.option("--engine", required=True, help=HELP)
@click.option("--model", required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False), help="GGUF file.")
@click.option("--boots", type=click.IntRange(min=2), default=50, show_default=True, help="Of the run left alone.")
@click.option("--stops", type=click.IntRange(min=0), default=10, show_default=True, help="Runs stopped by Ctrl-C.")
@click.option("--stopped-boots", type=click.IntRange(min=2), default=4, show_default=True, help="Of each of these.")
@click.option("--seed", default=5, show_default=True, help="Of the moments.")
def main(engine: str, model: Path, boots: int, stops: int, stopped_boots: int, seed: int) -> None:
    """Boot a real engine many times, stop replays at random moments, and look for what is left."""
    argv = [*shlex.split(engine), "-m", str(model.resolve()), *FLAGS.split()]
    with tempfile.TemporaryDirectory(prefix="orphans-") as name:
        folder = Path(name)
        make = ["profile", "builtin", "short-qa", "--requests", "12", "--scale", "0.2", "-o", "profile"]
        subprocess.run(command(*make), cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)
        whole = play(folder / "whole", argv, boots)
        once = play(folder / "once", argv, stopped_boots)
        draws = random.Random(seed)
        stopped = []
        for number in range(stops):
            moment_s = draws.uniform(0.0, once.seconds)
            ran = play(folder / f"stopped-{number}", argv, stopped_boots, stop_after_s=moment_s)
            stopped.append(ran)
            say(f"Ctrl-C after {moment_s:.2f} s: exit code {ran.code}, {ran.boots} boots, {len(ran.left)} orphans")
    click.echo(f"{describe_machine()}\n\n| runs | boots | exit codes | orphans |\n| --- | ---: | --- | ---: |")
    click.echo(row("left alone", [whole, once]))
    if stopped:
        click.echo(row(f"{stops} × Ctrl-C within {once.seconds:.1f} s", stopped))
    found = [words for ran in (whole, once, *stopped) for words in ran.left]
    for words in found:
        say(f"left: {words}")
    sys.exit(bool(found) or whole.code != 0)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "firsttoken", *words]


def play(folder: Path, argv: list[str], boots: int, *, stop_after_s: float | None = None) -> Ran:
    """One run in a folder of its own. A block boots the baseline twice and each arm once."""
    folder.mkdir()
    arms = "".join(f'[[arm]]\nname = "v{number}"\n' for number in range(boots - 1))
    (folder / "experiment.toml").write_text(EXPERIMENT.format(argv=orjson.dumps(argv).decode()) + arms)
    mark = uuid.uuid4().hex
    begun_s = time.monotonic()
    with (folder / "said.log").open("wb") as said:
        process = subprocess.Popen(
            command("replay", "experiment.toml", "-o", "run"),
            cwd=folder,
            env=environment() | {MARK: mark},
            stdout=said,
            stderr=said,
        )
        if stop_after_s is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(stop_after_s)
            process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE_S)
    seconds = time.monotonic() - begun_s
    left = alive(folder, mark)
    words = tuple(" ".join([str(item.pid), *item.cmdline()[:4]]) for item in left)
    for item in left:
        item.kill()
    run = read_run(folder / "run") if (folder / "run" / "manifest.json").exists() else None
    return Ran(code, seconds, 0 if run is None else len(run.boots) + len(run.interrupted), words)


def alive(folder: Path, mark: str) -> list[psutil.Process]:
    """Processes with the mark in their environment, or at work below the folder, whoever is their parent now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            below = Path(process.cwd()).is_relative_to(folder)
            if below or process.environ().get(MARK) == mark:
                found.append(process)
    return found


def row(what: str, ran: Iterable[Ran]) -> str:
    items = list(ran)
    codes = ", ".join(f"{count} × {code}" for code, count in sorted(Counter(item.code for item in items).items()))
    return f"| {what} | {sum(item.boots for item in items)} | {codes} | {sum(len(item.left) for item in items)} |"


def say(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
