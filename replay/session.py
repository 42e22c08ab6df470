"""The part of a boot in which the engine is alive: ready, identity, isolation, warm-up, windows.

After each window it is asked again whether this is still the same engine (`liveness`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import httpx
import msgspec

from profiles.experiment import Arm, Experiment
from profiles.files import append_line
from profiles.functional import FunctionalOutcome
from profiles.records import OK, TIMEOUT, Outcome
from profiles.runs import FUNCTIONAL, Step, WindowFacts
from profiles.stream import ResponseReader
from profiles.units import SECOND_NS, parse_duration
from replay.bootlog import Pattern, scan_log, slow_lines
from replay.client import Slot, Timeouts
from replay.clock import Clock
from replay.engines import Engine, log_size
from replay.environment import engine_key
from replay.functional import Asking, ask_probes
from replay.isolation import prove_isolation, reset_prefix_cache
from replay.liveness import Liveness
from replay.load import Load
from replay.metrics import GaugeWatch, Scrape, needs_sampling, scrape_idle
from replay.player import api_client, play_closed, play_window
from replay.readiness import identify, wait_ready
from replay.rundir import BootFolder
from replay.schedule import ClosedLoop, Window
from replay.slots import SlotPool
from replay.warmup import Round, describe_round, find_rounds
from replay.window_facts import window_facts

WARMUP = "warmup"
MAX_WARMUP_C = 8


@dataclass(slots=True)
class Found:
    """What a boot has found out so far; becomes boot.json whatever happens."""

    ready_ns: int | None = None
    ready_offset: int | None = None  # bytes of the log when the engine was ready
    model: str | None = None
    engine_version: str | None = None
    simulated: bool = False
    steps: list[Step] = field(default_factory=list)
    phases: list[tuple[int, str]] = field(default_factory=list)  # size of the log when a window began, and its name
    windows: list[WindowFacts] = field(default_factory=list)


@dataclass(slots=True)
class Session:
    """One life of an engine."""

    experiment: Experiment
    arm: Arm
    load: Load
    folder: BootFolder
    patterns: Sequence[Pattern]
    clock: Clock
    note: Callable[..., None]
    engine: Engine
    found: Found
    pilot: bool
    warmup_rounds: int
    unmeasured: list[Outcome] = field(default_factory=list)
    liveness: Liveness = field(init=False)  # once it was ready

    async def run(self) -> None:
        """To the end of the last window. Raises EngineFailed when the engine gives up."""
        pool = SlotPool(self._new_slot)
        try:
            async with api_client(self.engine.base_url, self._headers()) as api:
                await self._boot(pool, api)
                self.found.steps.append(await self._isolate(pool, api))
                await self._warm_up(pool, api)
                if not self.pilot:
                    await self._measure(pool, api)
                    await self._probe(api)
        finally:
            await pool.close()

    async def _boot(self, pool: SlotPool, api: httpx.AsyncClient) -> None:
        engine, found = self.engine, self.found
        limit_ns = parse_duration(self.arm.ready_timeout)
        (slot,) = await pool.take(1)
        wanted = self.experiment.file.engine.model if self.experiment.file.engine is not None else ""
        ready = await wait_ready(slot, engine, api, self.load.probe(), wanted, limit_ns, self.clock)
        pool.give_back(slot)
        found.ready_ns = ready.ended_ns
        found.ready_offset = log_size(self.folder.log)
        found.steps.append(ready)
        self.note("boot_ready", seconds=(found.ready_ns - engine.spawned_ns) / SECOND_NS)
        spawned_wall_ns = self.clock.wall_ns() - (self.clock.now_ns() - engine.spawned_ns) if engine.cold else None
        identity, step = await identify(api, wanted, spawned_wall_ns, self.clock)
        found.steps.append(step)
        found.model, found.engine_version = identity.model, identity.version
        found.simulated = identity.simulated
        self.liveness = Liveness(engine, self.clock, identity, engine.owner())

    def _headers(self) -> dict[str, str]:
        rules = self.experiment.file.engine
        assert rules is not None
        key = engine_key(rules.api_key_env, self.arm)
        return {"authorization": f"Bearer {key}"} if key else {}

    def _new_slot(self, new_reader: Callable[[str, str], ResponseReader] = ResponseReader) -> Slot:
        load = self.experiment.file.load
        timeouts = Timeouts(
            connect_ns=parse_duration(load.connect_timeout),
            write_ns=parse_duration(load.write_timeout),
            first_token_ns=parse_duration(load.first_token_timeout),
            gap_ns=parse_duration(load.gap_timeout),
            total_ns=parse_duration(load.request_timeout),
        )
        headers = self._headers() or None
        return Slot(self.engine.base_url, self.clock, timeouts=timeouts, headers=headers, new_reader=new_reader)

    async def _isolate(self, pool: SlotPool, api: httpx.AsyncClient) -> Step:
        rules = self.experiment.file.engine
        assert rules is not None
        so_far = await asyncio.to_thread(scan_log, self.folder.log, self.patterns)
        (slot,) = await pool.take(1)
        step = await prove_isolation(
            rules.cache_isolation, slot, api, self.load, so_far.selection, self.clock, self._hear_unmeasured
        )
        pool.give_back(slot)
        self.liveness.check()
        # One that is refused is none that hangs: it may be longer than the engine takes.
        self.unmeasured = [item for item in self.unmeasured if item.outcome in (OK, TIMEOUT)]
        await self._check_answers(api, "the probes of the prefix cache")
        return step

    def _hear_unmeasured(self, outcome: Outcome) -> None:
        """Of probes and warm-up: none of them is measured, and one that times out would be followed by all others."""
        self.folder.outcome(outcome)
        self.unmeasured.append(outcome)

    def _goes_on(self) -> bool:
        return self.engine.lives and all(item.outcome != TIMEOUT for item in self.unmeasured)

    async def _check_answers(self, api: httpx.AsyncClient, what: str) -> None:
        outcomes, self.unmeasured = self.unmeasured, []
        await self.liveness.check_answers(api, outcomes, what)

    async def _warm_up(self, pool: SlotPool, api: httpx.AsyncClient) -> None:
        """Rounds of every class alone, then of all slots at once, so that each has its connection.

        Each request comes in a round of its own: one that found itself in the prefix cache would warm up no prefill.
        """
        began_ns = self.clock.now_ns()
        c = min(MAX_WARMUP_C, max(window.widest for window in self.load.windows))
        sent = 0
        slowest_at: dict[str, list[int | None]] = {}  # by c: the slowest first token of each round
        self.found.phases.append((log_size(self.folder.log), WARMUP))

        async def play(_number: int) -> Round:
            nonlocal sent
            offset = log_size(self.folder.log)
            outcomes: list[Outcome] = []
            for at_once in sorted({1, c}):
                count = max(at_once, len(self.load.warmup))
                planned = partial(self.load.warmup_request, first=sent)
                slots = await pool.take(at_once)
                some = await play_closed(
                    ClosedLoop(count), planned, slots, self.clock, self._hear_unmeasured, self._goes_on
                )
                outcomes += some
                slowest_at.setdefault(str(at_once), []).append(describe_round(some, 0).slowest_ns)
                pool.give_back(*slots)
                sent += count
                self.liveness.check()
                await self._check_answers(api, "warm-up")
            slow = await asyncio.to_thread(slow_lines, self.folder.log, self.patterns, offset)
            return describe_round(outcomes, slow)

        if self.warmup_rounds:
            rounds = [await play(number) for number in range(self.warmup_rounds)]
        else:
            rounds = await find_rounds(play)
        facts = {
            "rounds": len(rounds),
            "requests": sent,
            "ttft_ns": [item.ttft_ns for item in rounds],
            "slowest_ttft_ns": [item.slowest_ns for item in rounds],
            "slowest_ttft_ns_at": slowest_at,
            "slow_lines": [item.slow_lines for item in rounds],
        }
        quiet = not rounds[-1].slow_lines
        proof = "no line of compilation in the last round" if quiet else "lines of compilation to the end"
        self.found.steps.append(
            Step(name="warm_up", began_ns=began_ns, ended_ns=self.clock.now_ns(), proof=proof, facts=facts)
        )

    async def _measure(self, pool: SlotPool, api: httpx.AsyncClient) -> None:
        rules = self.experiment.file.engine
        assert rules is not None
        # Between two windows the engine is at rest: what one leaves is what the next one finds.
        scraped = await self._scrape(0, api)
        one_pass = ""
        for number, window in enumerate(self.load.windows, start=1):
            name = self.load.pass_of(window)
            if rules.cache_isolation == "reset" and name != one_pass:
                self.found.steps.append(await reset_prefix_cache(api, self.engine.log, self.clock))
                scraped = await self._scrape(number - 1, api)
            one_pass = name
            scraped = await self._play(number, window, pool, api, scraped)

    async def _probe(self, api: httpx.AsyncClient) -> None:
        """The functional probes. What they show is judged by the report; only a dead engine fails its boot here."""
        rules = self.experiment.file.engine
        if not self.load.probes or rules is None:
            return

        def write(outcome: FunctionalOutcome) -> None:
            append_line(self.folder.path / FUNCTIONAL, msgspec.json.encode(outcome), sync=True)

        salt = self.load.apart if rules.cache_isolation == "salt" else None
        asking = Asking(rules.model or self.found.model, salt)
        step, outcomes = await ask_probes(
            self.load.probes, asking, self._new_slot, self.clock, write, lambda: self.engine.lives
        )
        self.found.steps.append(step)
        self.note("functional_done", asked=step.facts["asked"], answered=step.facts["answered"])
        if all(item.outcome == OK or item.status is not None for item in outcomes):
            self.liveness.check()
        else:
            await self.liveness.check_death()
        await self.liveness.check_restart(api)

    async def _scrape(self, number: int, api: httpx.AsyncClient) -> Scrape:
        scraped = await scrape_idle(api, self.clock)
        if scraped.text is not None:
            self.folder.metrics(number, scraped.text)
        return scraped

    async def _play(
        self, number: int, window: Window, pool: SlotPool, api: httpx.AsyncClient, before: Scrape
    ) -> Scrape:
        """Play a window. Takes the counters as the last one left them and returns them as this one does."""
        load = self.experiment.file.load
        self.found.phases.append((log_size(self.folder.log), window.name))
        # SGLang has acceptance as a gauge only. Looking at it takes time of ours, so never in a window that decides.
        sampled = not window.deciding and before.text is not None and needs_sampling(before.text)
        gauges = GaugeWatch(api, self.clock) if sampled else None
        looking = asyncio.ensure_future(gauges.watch()) if gauges is not None else None
        try:
            played = await play_window(
                window,
                self.load.requests_of(window),
                pool,
                self.clock,
                self.folder.outcome,
                stall_ns=parse_duration(load.stall_timeout),
                max_error_share=load.max_error_share,
                alive=lambda: self.engine.lives,
            )
        finally:
            if looking is not None:
                looking.cancel()
        self.found.phases.append((log_size(self.folder.log), ""))
        await asyncio.to_thread(self.folder.sync)
        await self.liveness.check_same(api, played)
        after = await self._scrape(number, api)
        facts = window_facts(window, played, before, after, gauges.means() if gauges is not None else {})
        self.found.windows.append(facts)
        self.note("window_done", window=window.name, requests=facts.requests, failed=_failed(played.outcomes))
        return after


def _failed(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.outcome != OK for outcome in outcomes)
