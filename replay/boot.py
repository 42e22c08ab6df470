"""One cold boot of one arm, from a free port to the proof that the engine is gone.

    caches and cool-down → spawn → ready → identity → isolation → warm-up → windows → stop → memory back → boot.json

Every step is recorded with what proves it. What an engine does ends as a status and not as an exception: `failed`
counts against the arm, `discarded` is a fault of the surroundings and is replaced. Only an interruption leaves without
a boot.json, and then the engine is stopped first. The part in which the engine is alive is in `session`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from profiles.errors import EngineFailed, FirsttokenError
from profiles.experiment import Arm, Experiment
from profiles.experiment_file import Engine as EngineRules
from profiles.runs import DISCARDED, DONE, FAILED, BootFacts, LagFacts, Step, Telemetry, WindowFacts
from profiles.units import parse_duration
from replay import caches, memory, surroundings
from replay.bootlog import LogFacts, Pattern, scan_log
from replay.clock import Clock
from replay.discards import spoilt
from replay.engines import Engine, Launch, PortTaken, Stopped, launch, to_the_end, wipe
from replay.environment import inherited, stated
from replay.guard import Guard
from replay.host import memory_available_bytes
from replay.launch_plan import plan_launch
from replay.load import Load
from replay.rundir import BootFolder
from replay.session import Found, Session
from replay.telemetry import Sampler
from replay.watch import Watch

GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a boot stands in the design. Block 0 is a pilot, which is never measured."""

    block: int
    slot: int
    name: str  # of the arm, with the suffix of the second baseline copy

    @property
    def pilot(self) -> bool:
        return self.block == 0


@dataclass(slots=True)
class Bench:
    """What every boot of a run shares."""

    experiment: Experiment
    load: Load
    patterns: tuple[Pattern, ...]
    run_id: str
    clock: Clock
    warmup_rounds: int = 0  # 0: this boot finds it


async def run_boot(bench: Bench, arm: Arm, place: Place, folder: BootFolder, note: Callable[..., None]) -> BootFacts:
    """Boot, measure, stop. Returns the facts, already written.

    Raises PortTaken before anything was started, EngineFailed if the engine will not go away, and FirsttokenError if
    the disk is full. `note(event, **fields)` hears what happens. Cancelling stops the engine and leaves no boot.json.
    """
    boot = _Boot(bench, arm, place, folder, note)
    return await boot.run()


@dataclass(slots=True)
class _Boot:
    bench: Bench
    arm: Arm
    place: Place
    folder: BootFolder
    note: Callable[..., None]
    found: Found = field(default_factory=Found)
    status: str = DONE
    reason: str | None = None
    diagnosis: str | None = None
    halt: FirsttokenError | None = None  # ends the run after this boot has been written
    gpu_memory: dict[int, int] = field(default_factory=dict)  # bytes in use before the spawn, by GPU

    async def run(self) -> BootFacts:
        rules = self.bench.experiment.file.engine
        assert rules is not None  # the caller checked that there is something to boot
        plan = plan_launch(self.bench.experiment, self.bench.run_id, self.arm, self.place.name, self.folder)
        if rules.launcher == "external":  # not ours to stop
            return await self._run(plan, rules)
        guard = Guard.start(self.folder.path, plan.env if rules.launcher == "command" else {})
        if guard is None:
            self.note("boot_unguarded")
        try:
            return await self._run(plan, rules)
        finally:
            if guard is not None:
                guard.dismiss()

    async def _run(self, plan: Launch, rules: EngineRules) -> BootFacts:
        clock = self.bench.clock
        wall_ns, mono_ns = clock.wall_ns(), clock.now_ns()
        memory_before = memory_available_bytes()
        engine: Engine | None = None
        sampler: Sampler | None = None
        stopped: Stopped | None = None
        stopped_ns: int | None = None
        cancelled = False
        await self._prepare(plan)
        try:
            if self.status == DONE:
                engine = await launch(rules.launcher, plan, clock)
                self.folder.remember_engine(engine.identity())
                self._step("spawn", engine.spawned_ns, self._spawn_proof(engine), {"processes": engine.processes_seen})
                sampler = Sampler(clock, self.folder.telemetry, members=engine.members)
                await self._live(engine, sampler)
        except EngineFailed as error:
            if engine is None and isinstance(error, PortTaken):
                raise
            self._failed(error)
        except FirsttokenError as error:
            self.halt = error
            self.status, self.reason, self.diagnosis = DISCARDED, error.problem, "halted"
        finally:
            if engine is not None:
                stopped_ns = clock.now_ns()
                stopped, cancelled = await self._stop(engine)
        if engine is not None and engine.cold and not cancelled:
            await self._wait_for_memory(memory_before, round(rules.memory_tolerance_gib * GIB))
        if sampler is not None and sampler.unwritten is not None:
            self.note("telemetry_cut", problem=sampler.unwritten)
        log = await self._read_log(self.found.ready_offset)
        samples: list[Telemetry] = sampler.samples if sampler is not None else []
        checked = self._judge_surroundings(samples, log)
        facts = BootFacts(
            arm=self.place.name,
            block=self.place.block,
            slot=self.place.slot,
            attempt=self.folder.attempt,
            status=self.status,
            reason=self.reason,
            diagnosis=self.diagnosis,
            launcher=rules.launcher,
            cold=engine.cold if engine is not None else True,
            pilot=self.place.pilot,
            boot_id=surroundings.boot_id(),
            argv=list(plan.argv),
            wall_ns=wall_ns,
            mono_ns=mono_ns,
            spawned_ns=engine.spawned_ns if engine is not None else None,
            ready_ns=self.found.ready_ns,
            stopped_ns=stopped_ns,
            gone_ns=stopped.gone_ns if stopped is not None else None,
            stop=stopped.how if stopped is not None else None,
            exit_code=stopped.exit_code if stopped is not None else None,
            processes=engine.processes_seen if engine is not None else 0,
            identity=engine.identity() if engine is not None else {},
            simulated=self.found.simulated,
            model=self.found.model,
            engine_version=self.found.engine_version or log.selection.get("version"),
            steps=self.found.steps,
            findings=log.findings,
            selection=log.selection,
            kv_tokens=log.kv_tokens,
            compile_cache=log.compile_cache,
            windows=self.found.windows,
            lag=worst_lag(self.found.windows),
            checked=checked,
            override=self.bench.load.override.stated(),
            env=inherited(rules.launcher) | stated(plan.env),
        )
        self.folder.finish(facts)
        if cancelled:  # while it stopped: everything was measured, so the boot is kept
            raise asyncio.CancelledError
        if self.halt is not None:
            raise self.halt
        return facts

    async def _prepare(self, plan: Launch) -> None:
        """What comes before the spawn: the same for every arm."""
        bench = self.bench
        rules = bench.experiment.file.engine
        assert rules is not None
        if rules.launcher == "external":
            return
        if rules.cool_down_c is not None:
            timeout_ns = parse_duration(rules.cool_down_timeout)
            cooled = await surroundings.cool_down(rules.cool_down_c, timeout_ns, bench.clock)
            self.found.steps.append(cooled)
            if cooled.proof is None:
                self.note("boot_not_cooled", reason=cooled.facts["missing"])
        free = await surroundings.gpu_free(bench.clock)
        self.found.steps.append(free)
        self.gpu_memory = {int(gpu): count for gpu, count in free.facts["memory_used_bytes"].items()}
        keep = (self.folder.path.parent.parent, bench.experiment.profile_path)
        dirs = caches.directories(bench.experiment)
        preparing = partial(caches.prepare, rules.cache, dirs, bench.clock, keep=keep)
        self.found.steps.append(await asyncio.to_thread(preparing))
        if rules.cache == "wipe":
            await wipe(plan, bench.clock)
        if rules.drop_page_cache:
            self.found.steps.append(await asyncio.to_thread(caches.drop_page_cache, bench.clock))
        floor = await memory.memory_floor(round(rules.min_available_gib * GIB), bench.clock)
        self.found.steps.append(floor)
        if "missing" in floor.facts:
            self.status, self.reason, self.diagnosis = DISCARDED, floor.facts["missing"], "low_memory"

    async def _live(self, engine: Engine, sampler: Sampler) -> None:
        """The session, under a watch that ends it when a limit is broken."""
        bench = self.bench
        rules = bench.experiment.file.engine
        assert rules is not None
        watch = Watch(
            engine=engine,
            log_limit_bytes=rules.log_limit_mib * MIB,
            memory=memory.MemoryWatch(round(rules.min_available_gib * GIB)),
            disk=partial(surroundings.disk_full, self.folder.path),
            clock=bench.clock,
        )
        session = Session(
            experiment=bench.experiment,
            arm=self.arm,
            load=bench.load if engine.cold else replace(bench.load, apart=f"{bench.run_id[:6]}-{self.folder.name}-"),
            folder=self.folder,
            patterns=bench.patterns,
            clock=bench.clock,
            note=self.note,
            engine=engine,
            found=self.found,
            pilot=self.place.pilot,
            warmup_rounds=bench.warmup_rounds,
        )
        sampling = asyncio.ensure_future(sampler.watch())
        watching = asyncio.ensure_future(watch.until_breached())
        living = asyncio.ensure_future(session.run())
        try:
            await asyncio.wait((living, watching), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                raise watching.result()
            living.result()
            broken = watch.look()  # what a quick boot did between two looks
            if broken is not None:
                raise broken
        finally:
            for task in (living, watching, sampling):
                task.cancel()
            await asyncio.gather(living, watching, sampling, return_exceptions=True)

    async def _stop(self, engine: Engine) -> tuple[Stopped | None, bool]:
        """To its end, Ctrl-C or not: an engine that is only told to go may stay. Says whether it was cancelled."""
        began_ns = self.bench.clock.now_ns()
        try:
            stopped, cancelled = await to_the_end(engine.stop(parse_duration(self.arm.stop_timeout)))
        except PortTaken as error:
            # Nothing of the engine is left, and a stranger answers. What was found before weighs more.
            if self.status == DONE:
                self._failed(error)
            return None, False
        self._note_stop(stopped, began_ns)
        return stopped, cancelled

    async def _wait_for_memory(self, before_bytes: int | None, tolerance_bytes: int) -> None:
        steps = [await memory.memory_back(before_bytes, tolerance_bytes, self.bench.clock)]
        if self.gpu_memory:
            steps.append(await memory.gpu_memory_back(self.gpu_memory, tolerance_bytes, self.bench.clock))
        self.found.steps += steps
        for held in filter(None, map(memory.memory_held, steps)):
            self._remark("memory_held", held)

    def _failed(self, error: EngineFailed) -> None:
        self.status = DISCARDED if isinstance(error, PortTaken) else FAILED
        self.reason, self.diagnosis = error.problem, error.diagnosis or "failed"

    def _spawn_proof(self, engine: Engine) -> str:
        return "the port refused before" if engine.cold else "it was up already: no cold boot"

    def _step(self, name: str, began_ns: int, proof: str | None, facts: dict[str, Any]) -> None:
        self.found.steps.append(
            Step(name=name, began_ns=began_ns, ended_ns=self.bench.clock.now_ns(), proof=proof, facts=facts)
        )

    def _note_stop(self, stopped: Stopped, began_ns: int) -> None:
        """A stop that was not clean is said, and is no fault of what was measured."""
        self._step("stop", began_ns, stopped.proof, {"how": stopped.how, "exit_code": stopped.exit_code})
        if stopped.how == "kill":
            self._remark("not_stopped", "it ignored SIGTERM and had to be killed")
        if stopped.outlived:
            self._remark("workers_left", stopped.outlived)

    def _remark(self, diagnosis: str, sentence: str) -> None:
        """What a boot that was measured to its end left behind. The last diagnosis stays: it weighs most."""
        if self.status == DONE:
            self.diagnosis = diagnosis
            self.reason = f"{self.reason}; {sentence}" if self.reason else sentence

    async def _read_log(self, ready_offset: int | None) -> LogFacts:
        """Off the loop, and to its end even when cancelled: a log may hold gigabytes."""
        reading = asyncio.to_thread(
            scan_log, self.folder.log, self.bench.patterns, ready_offset=ready_offset, phases=self.found.phases
        )
        facts, _ = await to_the_end(reading)
        return facts

    def _judge_surroundings(self, samples: list[Telemetry], log: LogFacts) -> dict[str, str]:
        """Discard what the surroundings spoilt, by the rule's own conditions. Returns what each condition saw."""
        conditions = self.bench.experiment.file.discard.when
        reason, checked = spoilt(conditions, self.found.windows, samples)
        if self.status == DONE and reason is not None:
            self.status, self.reason, self.diagnosis = DISCARDED, reason, "spoilt"
        return checked


def worst_lag(windows: list[WindowFacts]) -> LagFacts | None:
    """The loop's lag in the deciding window where it was worst."""
    lags = [window.loop_lag for window in windows if window.deciding and window.loop_lag is not None]
    return max(lags, key=lambda lag: lag.p99_ns, default=None)
