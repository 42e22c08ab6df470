"""The part of a boot in which the engine is alive: ready, identity, isolation, warm-up, windows.

After each window it is asked again whether this is still the same engine: a supervisor that restarts a crashed worker
leaves the port open and the requests mostly answered, and what is measured then is a warm-up.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import httpx
import msgspec

from profiles.errors import EngineFailed
from profiles.experiment import Arm, Experiment
from profiles.files import append_line
from profiles.functional import FunctionalOutcome
from profiles.records import OK, TIMEOUT, Outcome
from profiles.runs import FUNCTIONAL, Step, WindowFacts
from profiles.stream import ResponseReader
from profiles.units import MILLISECOND_NS, SECOND_NS, parse_duration
from replay.bootlog import Pattern, scan_log, slow_lines
from replay.client import Slot, Timeouts
from replay.clock import Clock
from replay.engines import Engine, log_size
from replay.environment import engine_key
from replay.functional import Asking, ask_probes
from replay.isolation import prove_isolation, reset_prefix_cache
from replay.load import Load
from replay.metrics import GaugeWatch, Scrape, needs_sampling, scrape_idle, window_metrics
from replay.player import Played, api_client, play_closed, play_window, tokens_until
from replay.readiness import Identity, check_alive, check_owner, identify, say_health, wait_ready
from replay.rundir import BootFolder
from replay.schedule import ClosedLoop, Window
from replay.slots import SlotPool
from replay.warmup import Round, describe_round, find_rounds

WARMUP = "warmup"
MAX_WARMUP_C = 8
DYING_NS = SECOND_NS


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
    identity: Identity = field(default_factory=Identity)
    owner: tuple[int, float] | None = None
    unmeasured: list[Outcome] = field(default_factory=list)

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
        self.identity, step = await identify(api, wanted, spawned_wall_ns, self.clock)
        found.steps.append(step)
        found.model, found.engine_version = self.identity.model, self.identity.version
        found.simulated = self.identity.simulated
        self.owner = engine.owner()

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
        self._check()
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
        """An engine that hangs or fails before it is measured is diagnosed at once. Raises EngineFailed."""
        outcomes, self.unmeasured = self.unmeasured, []
        if any(item.outcome != OK for item in outcomes):
            await self._check_death()
            await self._check_restart(api)
        hung = next((item for item in outcomes if item.outcome == TIMEOUT), None)
        if hung is not None:
            health = await say_health(api)
            raise EngineFailed(
                f"{what}: no token came any more ({hung.reason}); {health}",
                str(self.engine.log),
                self.engine.log_tail(),
                diagnosis="stalled",
            )
        if outcomes and all(item.outcome != OK for item in outcomes):
            reason = outcomes[-1].reason or outcomes[-1].outcome
            raise EngineFailed(
                f"{what}: none of {len(outcomes)} requests was answered well, the last: {reason}",
                str(self.engine.log),
                self.engine.log_tail(),
                diagnosis="errors",
            )

    async def _check_death(self) -> None:
        """Requests failed: a process that dies closes its connections before the system says that it is gone."""
        deadline_ns = self.clock.now_ns() + DYING_NS
        while self.engine.lives and self.clock.now_ns() < deadline_ns:
            await self.clock.sleep_until_ns(self.clock.now_ns() + 20 * MILLISECOND_NS)
        self._check()

    def _check(self) -> None:
        check_alive(self.engine, ready=self.found.ready_ns is not None)

    async def _warm_up(self, pool: SlotPool, api: httpx.AsyncClient) -> None:
        """Rounds of every class alone, then of all slots at once, so that each has its connection.

        Each request comes in a round of its own: one that found itself in the prefix cache would warm up no prefill.
        """
        began_ns = self.clock.now_ns()
        c = min(MAX_WARMUP_C, max(window.widest for window in self.load.windows))
        sent = 0
        self.found.phases.append((log_size(self.folder.log), WARMUP))

        async def play(_number: int) -> Round:
            nonlocal sent
            offset = log_size(self.folder.log)
            outcomes: list[Outcome] = []
            for at_once in sorted({1, c}):
                count = max(at_once, len(self.load.warmup))
                planned = partial(self.load.warmup_request, first=sent)
                slots = await pool.take(at_once)
                outcomes += await play_closed(
                    ClosedLoop(count), planned, slots, self.clock, self._hear_unmeasured, self._goes_on
                )
                pool.give_back(*slots)
                sent += count
                self._check()
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
            self._check()
        else:
            await self._check_death()
        await self._check_restart(api)

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
        await self._check_same(api, played)
        after = await self._scrape(number, api)
        facts = _window_facts(window, played, before, after, gauges.means() if gauges is not None else {})
        self.found.windows.append(facts)
        self.note("window_done", window=window.name, requests=facts.requests, failed=_failed(played.outcomes))
        return after

    async def _check_same(self, api: httpx.AsyncClient, played: Played) -> None:
        """It lives, it is the one that was ready, it answered. Raises EngineFailed; the first that holds names it."""
        if all(item.outcome == OK for item in played.outcomes):
            self._check()
        else:
            await self._check_death()
        await self._check_restart(api)
        check_owner(self.engine, ready=True)
        if played.stopped_early is None and any(item.outcome == OK for item in played.outcomes):
            return
        if played.stalled:
            health = await say_health(api)
            raise EngineFailed(f"{played.stopped_early}; {health}", str(self.engine.log), diagnosis="stalled")
        said = Counter(item.reason or item.outcome for item in played.outcomes if item.outcome != OK)
        ((most, _),) = said.most_common(1) or [("nothing was sent", 0)]
        problem = played.stopped_early or f"all {len(played.outcomes)} requests of a window failed"
        raise EngineFailed(f"{problem}, mostly: {most}", str(self.engine.log), diagnosis="errors")

    async def _check_restart(self, api: httpx.AsyncClient) -> None:
        """The process that answers is the one that was ready. Raises EngineFailed."""
        owner = self.engine.owner()
        moved = self.owner is not None and owner is not None and owner != self.owner
        identity, _ = await identify(api, "", None, self.clock)
        anew = (
            identity.started_s is not None
            and self.identity.started_s is not None
            and identity.started_s != self.identity.started_s
        )
        if moved or anew:
            raise EngineFailed(
                "the engine restarted while it served: another process answers than the one that was ready",
                f"Its log says why the first one ended: {self.engine.log}",
                self.engine.log_tail(),
                diagnosis="restarted",
            )
        if self.owner is not None and owner is None:
            check_owner(self.engine, ready=True)


def _window_facts(
    window: Window, played: Played, before: Scrape, after: Scrape, gauges: dict[str, float]
) -> WindowFacts:
    counters, void, server_ttft_ns = window_metrics(before, after)
    limited = window.limit_ns is not None
    deadline_ns = played.started_ns + window.limit_ns if window.limit_ns is not None else played.ended_ns
    return WindowFacts(
        name=window.name,
        kind=window.kind,
        c=window.c,
        deciding=window.deciding,
        workload=window.workload,
        limit_ns=window.limit_ns,
        started_ns=played.started_ns,
        ended_ns=played.ended_ns,
        steady_from_ns=played.steady_from_ns,
        steady_to_ns=min(played.steady_to_ns, deadline_ns) if limited and played.steady_to_ns else played.steady_to_ns,
        requests=len(played.outcomes),
        output_tokens=tokens_until(played.outcomes, deadline_ns),
        prompt_tokens=_sum_of(item.response.prompt_tokens for item in played.outcomes),
        cached_tokens=_sum_of((item.response.cached_tokens for item in played.outcomes), omitted_is_zero=True),
        counters=counters,
        counters_void=void,
        gauges=gauges,
        server_ttft_ns=server_ttft_ns,
        schedule_lag=played.schedule_lag,
        loop_lag=played.loop_lag,
        in_flight_mean=played.in_flight_mean,
        arrivals_at={str(c): count for c, count in sorted(played.arrivals_at.items())},
        invalid=played.invalid,
        stopped_early=played.stopped_early,
    )


def _sum_of(counts: Iterable[int | None], *, omitted_is_zero: bool = False) -> int | None:
    """The sum, or None where one is missing: a sum over some of the requests would be a number of nothing.

    vLLM leaves `cached_tokens` out where it is 0, so with `omitted_is_zero` one that says it speaks for all.
    """
    known = list(counts)
    present = [count for count in known if count is not None]
    if not present or (len(present) < len(known) and not omitted_is_zero):
        return None
    return sum(present)


def _failed(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.outcome != OK for outcome in outcomes)
