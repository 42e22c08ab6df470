"""Plays the benchmark: `python -m benchmarks.replay.run --peers FOLDER --out RAW.jsonl`.

First ten requests of each client from a fresh start, with every trap in them. Then rounds at the levels of concurrency,
until the time is up. Progress goes to stderr, the tables to stdout, every batch to the raw file.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from types import FrameType

import click

from benchmarks.children import environment
from benchmarks.raw_file import RawFile
from benchmarks.replay.clients import KINDS, OURS
from benchmarks.replay.command import COMMAND, play_command, read_first_boot, write_experiment
from benchmarks.replay.jobs import Batch, Job
from benchmarks.replay.pairs import Pair, pair_all, reading_of
from benchmarks.replay.peers import NAMES, PACKAGES, VLLM, VLLM_VERSION, Peers
from benchmarks.replay.processes import (
    REALTIME,
    Client,
    Engine,
    Ran,
    describe_machine,
    realtime_allowed,
    run_program,
)
from benchmarks.replay.raw import LEVELS, TEN, BatchLine, HelpLine, RunLine, SkippedLine, read_raw
from benchmarks.replay.schedule import TRAPS, Record, Schedule, Truth
from benchmarks.replay.table import render
from benchmarks.replay.tools import TOOLS, Load

ALL = (*KINDS, *NAMES)
# Gaps that are longer than any client's lateness, so that it is plain which chunk a TTFT points at.
TRAP_SCHEDULE = Schedule(first_ms=(50,), chunks=20, gap_ms=30, kinds=TRAPS)
TEN_REQUESTS = 10
PEER_LEVELS, OWN_LEVELS = (1, 3, 8), (16, 32)
PEER_REQUESTS = 24  # at each level
OWN_REQUESTS = {1: 15, 3: 24, 8: 48, 16: 64, 32: 96}
WARM = Job(0, 16, 8)
OWN_TENS, STARTS, HELPS, PEER_HELPS = 2, 5, 5, 1
QUICK = 0.25  # of the requests


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Raw file; a new one.")
@click.option("--peers", "folder", type=click.Path(path_type=Path, file_okay=False), help="Folder of `peers install`.")
@click.option("--clients", default=",".join(ALL), show_default=True, help="Names and commas.")
@click.option("--rounds", type=click.IntRange(min=1), default=12, show_default=True, help="At most so many.")
@click.option("--peers-every", type=click.IntRange(min=1), default=2, show_default=True, help="Rounds; the first too.")
@click.option("--minutes", type=float, default=23.0, show_default=True, help="No round begins that would end later.")
@click.option("--seed", type=int, help="Order of the clients. Without it, one is drawn and printed.")
@click.option("--quick", is_flag=True, help="One small round, to see that it works. Its figures prove nothing.")
@click.option("--realtime/--no-realtime", default=True, show_default=True, help="Priority, where it is allowed.")
def main(
    out: Path,
    folder: Path | None,
    clients: str,
    rounds: int,
    peers_every: int,
    minutes: float,
    seed: int | None,
    quick: bool,
    realtime: bool,
) -> None:
    """Compare how truly clients measure, against an engine that knows when it sent each token."""
    names = [name for name in clients.split(",") if name]
    for name in names:
        if name not in ALL:
            raise click.UsageError(f"there is no {name!r}; there are {', '.join(ALL)}")
    if out.exists():
        raise click.UsageError(f"{out} exists already; give a new file with --out")
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    rounds = 1 if quick else rounds
    realtime = realtime and realtime_allowed()
    os.environ[REALTIME] = "1" if realtime else "0"
    # A stop from outside unwinds, so that nothing outlives the benchmark.
    signal.signal(signal.SIGTERM, _leave)
    with ExitStack() as stack:
        raw = RawFile(out)
        stack.callback(raw.close)
        raw.add(RunLine(seed, quick, rounds, realtime, describe_machine(), _versions(), time.time_ns()))
        _say(f"seed {seed}; raw results go to {out}; real-time priority: {'yes' if realtime else 'no'}")
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firsttoken-benchmark-")))
        bench = Bench(raw, stack, scratch, Peers(folder) if folder else None, random.Random(seed), realtime, quick)
        bench.start(names)
        until_s = time.monotonic() + minutes * 60
        bench.play_ten()
        bench.play_rounds(rounds, peers_every, until_s)
    click.echo(render(list(read_raw(out))))


class Bench:
    """The clients that take part, the engine, and what is done with them."""

    def __init__(
        self,
        raw: RawFile,
        stack: ExitStack,
        scratch: Path,
        peers: Peers | None,
        order: random.Random,
        realtime: bool,
        quick: bool,
    ) -> None:
        self._raw = raw
        self._stack = stack
        self._scratch = scratch
        self._peers = peers
        self._order = order
        self._realtime = realtime
        self._quick = quick
        self._engine = stack.enter_context(Engine())
        self._own: dict[str, Client] = {}
        self._tools: list[str] = []
        self._starts = 0

    def start(self, names: list[str]) -> None:
        """Start and warm our own clients, look for the peers. What cannot run is left out with its reason."""
        for name in names:
            if name in KINDS:
                self._own[name] = self._stack.enter_context(Client(name))
                self._play_own(name, WARM.concurrency, WARM.count, Schedule())
            elif self._peers is None:
                self._leave_out(name, "no folder of peers was given (--peers)")
            elif (reason := self._peers.missing(name)) is not None:
                self._leave_out(name, reason)
            else:
                self._tools.append(name)

    def play_ten(self) -> None:
        """Ten requests of each client with all traps in them; of tools and of the real command from a fresh start."""
        for name in self._shuffled([*self._own, *self._tools]):
            if name in self._own:
                for number in range(1 if self._quick else OWN_TENS):
                    self._own_batch(TEN, number, name, 1, TEN_REQUESTS, TRAP_SCHEDULE)
            else:
                self._tool_batches(TEN, 0, name, (1,), TEN_REQUESTS, TRAP_SCHEDULE)
            _say(f"ten requests: {name}")
        if OURS in self._own:
            for number in range(1 if self._quick else STARTS):
                self._command_batch(number)
        self._time_help(1 if self._quick else HELPS)

    def play_rounds(self, rounds: int, peers_every: int, until_s: float) -> None:
        longest_s = {True: 0.0, False: 0.0}  # with peers, without
        for number in range(rounds):
            with_peers = number % peers_every == 0 and bool(self._tools)
            begun_s = time.monotonic()
            if number and begun_s + longest_s[with_peers] > until_s:
                _say(f"the time is up after {number} rounds")
                return
            # Ours, the floor and plain httpx side by side; each peer by itself.
            groups: list[str | None] = [None, *(self._tools if with_peers else [])]
            for name in self._shuffled(groups):
                if name is None:
                    for c in (*PEER_LEVELS, *OWN_LEVELS):
                        for own in self._shuffled(self._own):
                            self._own_batch(LEVELS, number, own, c, self._scaled(OWN_REQUESTS[c]), Schedule())
                elif name in self._tools:  # it may have failed in this round
                    self._peer_levels(number, name)
            took_s = time.monotonic() - begun_s
            longest_s[with_peers] = max(longest_s[with_peers], took_s)
            _say(f"round {number + 1} of {rounds}: {took_s:.0f} s")

    def _peer_levels(self, number: int, name: str) -> None:
        starts = [PEER_LEVELS] if TOOLS[name].many_levels else [(c,) for c in PEER_LEVELS]
        for levels in starts:
            if name in self._tools:
                self._tool_batches(LEVELS, number, name, levels, self._scaled(PEER_REQUESTS), Schedule())

    def _own_batch(self, scenario: str, number: int, name: str, c: int, requests: int, schedule: Schedule) -> None:
        batch, record = self._play_own(name, c, requests, schedule)
        readings = ((seen.marker, reading_of(seen)) for seen in batch.seen)
        pairs = pair_all(readings, ((truth.marker, truth) for truth in record.requests))
        faults = Counter(seen.fault for seen in batch.seen if seen.fault is not None)
        self._raw.add(
            BatchLine(
                scenario,
                number,
                name,
                c,
                requests,
                requests - len(pairs),
                pairs,
                faults=dict(faults),
                connections=record.connections,
                starts_requests=requests,
                cpu_ns=batch.cpu_ns,
                rss_bytes=batch.rss_bytes,
                processes=1,
            )
        )

    def _play_own(self, name: str, c: int, requests: int, schedule: Schedule) -> tuple[Batch, Record]:
        self._engine.play(schedule)
        batch = self._own[name].play(Job(self._engine.port, requests, c))
        return batch, self._engine.record()

    def _tool_batches(
        self, scenario: str, number: int, name: str, levels: tuple[int, ...], requests: int, schedule: Schedule
    ) -> None:
        """One start of a tool. Its levels follow each other, so the first `requests` that came are the first level."""
        assert self._peers is not None
        tool, folder = TOOLS[name], self._new_folder(name)
        load = Load(folder, self._engine.port, requests, levels)
        argv = [str(self._peers.program(name)), *tool.prepare(load, self._peers)]
        self._engine.play(schedule)
        log = folder / "log.txt"
        ran = run_program(argv, log, env=self._peers.environment(name), cwd=folder, realtime=self._realtime)
        record = self._engine.record()
        try:
            readings = dict(tool.read(folder))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._tools.remove(name)
            last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
            self._leave_out(name, f"exit code {ran.code}, no results ({error!r}): {last[0][:200]}")
            return
        served = sorted(record.requests, key=lambda truth: truth.received_ns)
        for place, c in enumerate(levels):
            truths = served[place * requests : (place + 1) * requests]
            pairs = pair_all(readings.items(), ((tool.key(truth), truth) for truth in truths))
            line = _line_of_start(scenario, number, name, c, requests, pairs, ran if place == 0 else None, record)
            self._raw.add(line)

    def _command_batch(self, number: int) -> None:
        """The real `firsttoken replay`, on this engine."""
        folder = self._new_folder(COMMAND)
        write_experiment(folder, self._engine.port, TEN_REQUESTS)
        self._engine.play(TRAP_SCHEDULE)
        ran = play_command(folder, realtime=self._realtime)
        record = self._engine.record()
        if ran.code:
            text = (folder / "log.txt").read_text(errors="replace").strip().splitlines()[-3:]
            self._leave_out(COMMAND, f"exit code {ran.code}: {' '.join(text)[:300]}")
            return
        truths, pairs = read_first_boot(folder, record.requests)
        first_boot = Record(truths, record.connections)
        self._raw.add(_line_of_start(TEN, number, COMMAND, 1, TEN_REQUESTS, pairs, ran, first_boot))

    def _time_help(self, times: int) -> None:
        for number in range(times):
            for name in self._shuffled([COMMAND, *(self._tools if number < PEER_HELPS else [])]):
                if name == COMMAND:
                    argv, env = [sys.executable, "-m", "firsttoken", "--help"], environment()
                else:
                    assert self._peers is not None
                    words = (word.format(source=self._peers.vllm_source) for word in TOOLS[name].help)
                    argv, env = [str(self._peers.program(name)), *words], self._peers.environment(name)
                ran = run_program(argv, self._new_folder("help") / "log.txt", env=env)
                if ran.code == 0:
                    self._raw.add(HelpLine(number, name, ran.wall_ns))

    def _scaled(self, requests: int) -> int:
        return max(6, round(requests * QUICK)) if self._quick else requests

    def _shuffled[T](self, items: Iterable[T]) -> list[T]:
        found = list(items)
        self._order.shuffle(found)
        return found

    def _new_folder(self, name: str) -> Path:
        self._starts += 1
        folder = self._scratch / f"{self._starts:03d}-{name}"
        folder.mkdir()
        return folder

    def _leave_out(self, name: str, reason: str) -> None:
        _say(f"{name} is left out: {reason}")
        self._raw.add(SkippedLine(name, reason))


def _line_of_start(
    scenario: str, number: int, name: str, c: int, requests: int, pairs: list[Pair], ran: Ran | None, record: Record
) -> BatchLine:
    """The line of a level. `ran` is None after the first level of a start."""
    if ran is None:
        return BatchLine(scenario, number, name, c, requests, requests - len(pairs), pairs)
    return BatchLine(
        scenario,
        number,
        name,
        c,
        requests,
        requests - len(pairs),
        pairs,
        connections=record.connections,
        starts_requests=len(record.requests),
        cpu_ns=ran.cpu_ns,
        rss_bytes=ran.rss_bytes,
        processes=ran.processes,
        to_last_byte_ns=max((truth.end_ns for truth in record.requests), default=ran.started_ns) - ran.started_ns,
        engine_ns=sum(end - start for start, end in busy_ns(record.requests)),
    )


def busy_ns(requests: Iterable[Truth]) -> Iterator[tuple[int, int]]:
    """The spans in which the engine had a request, without overlap."""
    start = end = None
    for truth in sorted(requests, key=lambda truth: truth.received_ns):
        if start is None or end is None:
            start, end = truth.received_ns, truth.end_ns
        elif truth.received_ns > end:
            yield start, end
            start, end = truth.received_ns, truth.end_ns
        else:
            end = max(end, truth.end_ns)
    if start is not None and end is not None:
        yield start, end


def _versions() -> dict[str, str]:
    own = {"firsttoken": version("firsttoken"), "httpx": version("httpx")}
    pinned = {name: packages[0].partition("==")[2] for name, packages in PACKAGES.items()}
    return own | pinned | {VLLM: VLLM_VERSION}


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _say(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    main()
