"""Plays the benchmark: `python -m benchmarks.capture.run --out RAW.jsonl`.

Every variant runs from the beginning to the end and is warm before anything counts; an idle one costs nothing. Progress
goes to stderr, the tables to stdout, every batch to the raw file.
"""

import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

from benchmarks.capture.jobs import Batch
from benchmarks.capture.measure import read_memory, settled_cpu
from benchmarks.capture.processes import Engine, Player, describe_machine
from benchmarks.capture.raw import BatchLine, MemoryLine, RunLine, SkippedLine, read_raw
from benchmarks.capture.scenarios import ALL, MEGABYTE, SCENARIOS, WARM, MemoryPlan, Scenario, Step, draw_order
from benchmarks.capture.table import render
from benchmarks.capture.variants import Running, Unavailable, start
from benchmarks.raw_file import RawFile

MEMORY = "memory"
QUICK_SHARE = 0.15  # of the rounds
QUICK_MEMORY_SHARE = 0.03  # of the requests of `memory`


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Raw file; a new one.")
@click.option("--seed", type=int, default=None, help="Order of the variants. Without it, one is drawn and printed.")
@click.option("--quick", is_flag=True, help="A minute or two, to see that it works. Its figures prove nothing.")
@click.option("--scale", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Rounds, as a factor.")
@click.option("--scenarios", default=",".join([*SCENARIOS, MEMORY]), show_default=True, help="Names and commas.")
@click.option("--variants", default=",".join(ALL), show_default=True, help="Names and commas.")
def main(out: Path, seed: int | None, quick: bool, scale: float, scenarios: str, variants: str) -> None:
    """Measure what the recorder costs the traffic, side by side with other proxies."""
    chosen = _names(scenarios, [*SCENARIOS, MEMORY])
    names = _names(variants, ALL)
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    scale *= QUICK_SHARE if quick else 1
    rounds = {name: max(1, round(SCENARIOS[name].rounds * scale)) for name in chosen if name != MEMORY}
    if out.exists():
        raise click.UsageError(f"{out} exists already; give a new file with --out")
    # A stop from outside unwinds, so that no proxy outlives the benchmark.
    signal.signal(signal.SIGTERM, _leave)

    with ExitStack() as stack:
        raw = RawFile(out)
        stack.callback(raw.close)
        raw.add(RunLine(seed, quick, rounds, describe_machine(), time.time_ns()))
        _say(f"seed {seed}; raw results go to {out}")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firsttoken-benchmark-")))
        engine, player = stack.enter_context(Engine()), stack.enter_context(Player())
        bench = Bench(raw, engine, player, folder, random.Random(seed), stack)
        if rounds:
            bench.start(names)
        for name, number in rounds.items():
            bench.play(name, SCENARIOS[name], number, SCENARIOS[name].limit_s * scale)
        bench.stop()
        if MEMORY in chosen:
            bench.memory(_memory_plan(names, QUICK_MEMORY_SHARE if quick else min(1.0, scale)))
    click.echo(render(list(read_raw(out))))


class Bench:
    """The variants that run, and what is done with them."""

    def __init__(
        self, raw: RawFile, engine: Engine, player: Player, folder: Path, order: random.Random, stack: ExitStack
    ) -> None:
        self._raw = raw
        self._engine = engine
        self._player = player
        self._folder = folder
        self._order = order
        self._stack = stack
        self._running: dict[str, Running] = {}
        self._started = 0

    def start(self, names: list[str]) -> None:
        """Start and warm the variants. What cannot run is skipped with its reason."""
        for name in names:
            running = self._start(name)
            if running is not None:
                self._running[name] = running

    def stop(self) -> None:
        for running in self._running.values():
            running.stop()
        self._running.clear()

    def play(self, name: str, scenario: Scenario, rounds: int, limit_s: float) -> None:
        """The rounds of a scenario. On a slow machine it stops early, after a whole round."""
        begun_s = time.monotonic()
        done = 0
        for number in range(rounds):
            if number and time.monotonic() - begun_s > limit_s:
                break
            for step in scenario.steps:
                for variant in draw_order(scenario, step, number, self._running, self._order):
                    if variant in self._running:  # it may have ended in this round
                        self._batch(name, number, step, self._running[variant])
            done += 1
        _say(f"{name}: {done} of {rounds} rounds in {time.monotonic() - begun_s:.0f} s")

    def memory(self, plan: MemoryPlan) -> None:
        """Memory of fresh processes, one variant after the other."""
        for name in plan.variants:
            begun_s = time.monotonic()
            running = self._start(name)
            if running is None or running.pid is None:
                continue
            self._play(Step("warm", ALL, max(1, plan.warm - WARM.requests), 8), running)
            self._remember(running, plan.warm, 0, {})
            for done in range(plan.slice, plan.requests + 1, plan.slice):
                batch = self._play(Step("many", ALL, plan.slice, 8), running)
                self._remember(running, plan.warm + done, 0, batch.wrong)
            batch = self._play(Step("bodies", ALL, plan.bodies, 4, body_bytes=MEGABYTE), running)
            self._remember(running, plan.warm + plan.requests, plan.bodies, batch.wrong)
            running.stop()
            _say(f"{MEMORY} of {name}: {time.monotonic() - begun_s:.0f} s")

    def _start(self, name: str) -> Running | None:
        self._started += 1
        try:
            running = start(name, self._engine.port, self._folder / f"{self._started:02d}-{name}")
        except Unavailable as why:
            self._skip(name, str(why))
            return None
        self._stack.callback(running.stop)
        self._play(WARM, running)
        return running

    def _play(self, step: Step, running: Running) -> Batch:
        return self._player.play(step.job(running.port))

    def _batch(self, scenario: str, number: int, step: Step, running: Running) -> None:
        pid = running.pid
        try:
            before = None if pid is None else settled_cpu(pid)
            batch = self._play(step, running)
            after = None if pid is None else settled_cpu(pid)
        except ProcessLookupError:
            self._lose(running)
            return
        proxy_ns, all_ns = after.since(before) if after is not None and before is not None else (None, None)
        size = (step.requests, step.concurrency, step.shape.chunks)
        self._raw.add(BatchLine(scenario, step.mode, number, running.name, *size, proxy_ns, all_ns, batch))
        if running.ended() is not None:
            self._lose(running)

    def _remember(self, running: Running, requests: int, bodies: int, wrong: dict[str, int]) -> None:
        if running.pid is None or running.ended() is not None:
            self._lose(running)
            return
        settled_cpu(running.pid)
        self._raw.add(MemoryLine(running.name, requests, bodies, read_memory(running.pid), wrong))

    def _lose(self, running: Running) -> None:
        self._running.pop(running.name, None)
        self._skip(running.name, running.ended() or "the process cannot be read")

    def _skip(self, name: str, reason: str) -> None:
        _say(f"{name} is left out: {reason}")
        self._raw.add(SkippedLine(name, reason))


def _memory_plan(names: list[str], share: float) -> MemoryPlan:
    plan = MemoryPlan()
    size = max(10, round(plan.slice * share))
    variants = tuple(name for name in plan.variants if name in names)
    return MemoryPlan(variants, max(100, round(plan.warm * share)), size * 10, size, max(5, round(plan.bodies * share)))


def _names(text: str, known: list[str] | tuple[str, ...]) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no {name!r}; there are {', '.join(known)}")
    return names


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _say(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    main()
