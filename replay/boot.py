"""One cold boot of one arm, from a free port to the proof that the engine is gone.

    spawn → a real token from the wanted model on our own process → warm-up → windows → stop → log scan → boot.json

What an engine does ends as a status and not as an exception: `failed` counts against the arm, `discarded` is a fault of
the surroundings and is replaced. Only an interruption leaves without a boot.json, and then the engine is stopped first.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from profiles.errors import EngineFailed
from profiles.experiment import Arm, Experiment
from profiles.experiment_checks import discard_condition
from profiles.profile import ProfileRow
from profiles.records import OK, Outcome
from profiles.runs import DISCARDED, DONE, FAILED, BootFacts, WindowFacts
from profiles.units import MILLISECOND_NS, SECOND_NS, format_duration, parse_duration
from replay.bodies import Override, prepare
from replay.bootlog import scan
from replay.client import Planned, Slot
from replay.clock import Clock
from replay.engine import EngineProcess, PortTaken, free_port, to_the_end
from replay.metrics import read_counters, scrape_idle, subtract
from replay.player import LoopLag, api_client, play_closed, tokens_until
from replay.rundir import BootFolder
from replay.schedule import REPLAYED_ENDPOINTS, ClosedLoop, Pick, Window

WARMUP = "warmup"
# What the embedded engine calls itself in /v1/models.
SIMULATED_OWNER = "firsttoken simulation"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a boot stands in the design."""

    block: int
    slot: int
    name: str  # of the arm, with the suffix of the second baseline copy


@dataclass(slots=True)
class Load:
    """What every boot is asked: the same windows with the same bodies, prepared once."""

    windows: Sequence[Window]
    bodies: dict[int, bytes]
    warmup: Sequence[ProfileRow]
    override: Override
    prepared: dict[str, list[Planned]] = field(default_factory=dict)

    def planned(self, window: Window) -> list[Planned]:
        """The requests of a window, made on first use, before the window starts."""
        if window.name not in self.prepared:
            self.prepared[window.name] = [self._plan(window, index, pick) for index, pick in enumerate(window.picks)]
        return self.prepared[window.name]

    def again(self, window: Window, index: int) -> Planned:
        """Request `index` of a window that goes round its list: in each round apart from itself in the prefix cache."""
        first = self.planned(window)
        rounds, position = divmod(index, len(first))
        if rounds == 0:
            return first[position]
        pick = window.picks[position]
        return self._plan(window, index, Pick(pick.row, pick.round + rounds))

    def warmup_request(self, index: int, first: int = 0) -> Planned:
        """Warm-up request `first` + `index`: the classes in turn, apart from what is measured in the prefix cache."""
        window = Window(WARMUP, "warmup", 1, False, tuple(Pick(row) for row in self.warmup))
        return replace(self.again(window, first + index), measured=False)

    def _plan(self, window: Window, index: int, pick: Pick) -> Planned:
        row = pick.row
        one_pass = "deciding" if window.deciding else window.name
        body = prepare(
            self.bodies[row.request],
            self.override,
            pass_name=f"{one_pass}-{pick.round}",
            # What was never answered has an estimate at best, which would cut JSON in its middle: its body has a limit.
            output_tokens=None if row.outcome is None else row.output_tokens,
        )
        return Planned(
            window=window.name,
            c=window.c,
            index=index,
            request=row.request,
            workload=row.workload,
            path=row.path or REPLAYED_ENDPOINTS[row.endpoint or "chat"],
            body=body,
        )


@dataclass(slots=True)
class _Progress:
    """What a boot has found out so far; becomes boot.json whatever happens."""

    spawned_ns: int | None = None
    ready_ns: int | None = None
    ready_line: int | None = None
    model: str | None = None
    engine_version: str | None = None
    simulated: bool = False
    windows: list[WindowFacts] = field(default_factory=list)
    lag: LoopLag | None = None
    status: str = DONE
    reason: str | None = None


async def run_boot(
    experiment: Experiment,
    arm: Arm,
    place: Place,
    load: Load,
    folder: BootFolder,
    clock: Clock,
    note: Callable[..., None],
) -> BootFacts:
    """Boot, measure, stop. Returns the facts, already written. Raises EngineFailed only if the engine will not go away.

    `note(event, **fields)` hears what happens. Cancelling stops the engine and leaves no boot.json.
    """
    engine_rules = experiment.file.engine
    assert engine_rules is not None  # the caller checked that there is something to boot
    host = engine_rules.host
    port = engine_rules.port or free_port(host)
    argv = [_fill(part, host, port, engine_rules.model) for part in arm.argv]
    env = {**os.environ, **{name: _fill(value, host, port, engine_rules.model) for name, value in arm.env.items()}}
    wall_ns, mono_ns = clock.wall_ns(), clock.now_ns()
    found = _Progress()
    process: EngineProcess | None = None
    stopped: dict[str, Any] = {}
    cancelled = False
    try:
        cwd = experiment.path.parent / engine_rules.cwd
        process = await EngineProcess.start(argv, env=env, cwd=cwd, log=folder.log, host=host, port=port, clock=clock)
        found.spawned_ns = process.spawned_ns
        folder.remember_engine(process.pid, process.started_at())
        session = _Session(experiment, load, folder, clock, note, process, found, f"http://{host}:{port}", port)
        await session.run()
    except PortTaken:
        raise
    except EngineFailed as error:
        found.status, found.reason = FAILED, error.problem
    finally:
        if process is not None:
            stopped["stopped_ns"] = clock.now_ns()
            patience_ns = parse_duration(engine_rules.stop_timeout)
            # To its end, Ctrl-C or not: an engine that is only told to go may stay.
            end, cancelled = await to_the_end(process.stop(host=host, port=port, patience_ns=patience_ns))
            stopped |= {"gone_ns": end.gone_ns, "stop": end.how, "exit_code": end.exit_code}
    lag = found.lag.facts() if found.lag is not None else None
    if found.status == DONE:
        found.status, found.reason = _spoilt(experiment, lag.p99_ns if lag is not None else None)
    facts = BootFacts(
        arm=place.name,
        block=place.block,
        slot=place.slot,
        attempt=folder.attempt,
        status=found.status,
        reason=found.reason,
        argv=argv,
        wall_ns=wall_ns,
        mono_ns=mono_ns,
        spawned_ns=found.spawned_ns,
        ready_ns=found.ready_ns,
        processes=process.processes_seen if process is not None else 0,
        simulated=found.simulated,
        model=found.model,
        engine_version=found.engine_version,
        findings=scan(_log_lines(folder.log), found.ready_line),
        windows=found.windows,
        lag=lag,
        override=load.override.stated(),
        **stopped,
    )
    folder.finish(facts)
    if cancelled:  # while it stopped: everything was measured, so the boot is kept
        raise asyncio.CancelledError
    return facts


def _fill(text: str, host: str, port: int, model: str) -> str:
    """`{host}`, `{port}` and `{model}`; other braces stay, engines take JSON on the command line."""
    return text.replace("{host}", host).replace("{port}", str(port)).replace("{model}", model)


def _log_lines(log: Path) -> list[str]:
    try:
        # Progress bars end their lines with a bare CR.
        return log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").split("\n")
    except FileNotFoundError:
        return []


def _spoilt(experiment: Experiment, lag_p99_ns: int | None) -> tuple[str, str | None]:
    """Status of a boot that ran through: discarded if the surroundings spoilt it, by the rule's own conditions."""
    for entry in experiment.file.discard.when:
        name, limit_ms = discard_condition(entry) or ("", None)
        if name != "client_lag_p99_ms" or limit_ms is None or lag_p99_ns is None:
            continue
        if lag_p99_ns > limit_ms * MILLISECOND_NS:
            return DISCARDED, f"client_lag_p99_ms > {limit_ms:g}: it was {format_duration(lag_p99_ns)}"
    return DONE, None


@dataclass(slots=True)
class _Session:
    """The part of a boot in which the engine is alive."""

    experiment: Experiment
    load: Load
    folder: BootFolder
    clock: Clock
    note: Callable[..., None]
    process: EngineProcess
    found: _Progress
    base_url: str
    port: int

    async def run(self) -> None:
        """Ready, warm-up, windows. Raises EngineFailed when the engine gives up."""
        # Connections are made once: their set-up belongs to no request that is measured.
        slots = [self._new_slot() for _ in range(max(window.c for window in self.load.windows))]
        try:
            async with api_client(self.base_url) as api:
                await self._wait_ready(slots[0])
                await self._identify(api)
                self.found.ready_line = len(_log_lines(self.folder.log))
                self.note("boot_ready", seconds=(self.clock.now_ns() - self.process.spawned_ns) / SECOND_NS)
                await self._warm_up(slots)
                self.found.lag = LoopLag(self.clock)
                # Between two windows the engine is at rest: what one leaves is what the next one finds.
                scraped = await self._scrape(0, api)
                for number, window in enumerate(self.load.windows, start=1):
                    scraped = await self._play(number, window, slots[: window.c], api, scraped)
        finally:
            for slot in slots:
                await slot.close()

    def _new_slot(self) -> Slot:
        rules = self.experiment.file
        assert rules.engine is not None
        key = os.environ.get(rules.engine.api_key_env, "") if rules.engine.api_key_env else ""
        return Slot(
            self.base_url,
            self.clock,
            timeout_ns=parse_duration(rules.load.request_timeout),
            headers={"authorization": f"Bearer {key}"} if key else None,
        )

    def _lives(self) -> bool:
        return self.process.exit_code is None

    def _check_alive(self) -> None:
        code = self.process.exit_code
        if code is not None:
            lines = self.process.log_tail()
            when = "while it booted" if self.found.ready_ns is None else "while it served"
            said = f'; its last log line: "{lines[-1].strip()[:200]}"' if lines else "; its log is empty"
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            raise EngineFailed(f"the engine died {when} ({how}){said} ({self.folder.log})", log_tail=lines)

    async def _wait_ready(self, slot: Slot) -> None:
        """Ready means one real token from the wanted model, on a process of ours (reference: engines §3)."""
        rules = self.experiment.file.engine
        assert rules is not None
        limit_ns = parse_duration(rules.ready_timeout)
        deadline_ns = self.process.spawned_ns + limit_ns
        probe = self.load.warmup_request(0)
        while True:
            self._check_alive()
            left_ns = max(deadline_ns - self.clock.now_ns(), SECOND_NS)
            outcome = await slot.send(probe, timeout_ns=left_ns)
            if outcome.outcome == OK and outcome.response.first_token_ns is not None:
                break
            # A client error will not heal by waiting: the model's name is wrong, or the body is.
            if outcome.status is not None and 400 <= outcome.status < 500 and outcome.status != 429:
                raise EngineFailed(
                    f"the engine refuses the recorded requests: {outcome.reason} ({outcome.response.error})",
                    "Check `model` in [engine] and the engine's log.",
                )
            if self.clock.now_ns() > deadline_ns:
                raise EngineFailed(
                    f"no token within {format_duration(limit_ns)} ({outcome.reason})",
                    f"Raise engine.ready_timeout if the model loads longer. Its log: {self.folder.log}",
                )
            # A twentieth of the wait so far: ready is seen late by 5 % at most, and a long load is not pestered.
            waited_ns = self.clock.now_ns() - self.process.spawned_ns
            pause_ns = max(20 * MILLISECOND_NS, min(waited_ns // 20, SECOND_NS))
            await self.clock.sleep_until_ns(self.clock.now_ns() + pause_ns)
        if self.process.listens_on(self.port) is False:
            raise PortTaken(
                f"something else answers on port {self.port}", "The engine is alive but does not own the port."
            )
        self.found.ready_ns = self.clock.now_ns()

    async def _identify(self, api: httpx.AsyncClient) -> None:
        """Which model and which engine answered; what cannot be read stays None."""
        models = await _get_json(api, "/v1/models")
        listed = [item for item in models.get("data") or () if isinstance(item, dict)]
        if listed:
            self.found.model = str(listed[0].get("id"))
            self.found.simulated = listed[0].get("owned_by") == SIMULATED_OWNER
        version = (await _get_json(api, "/version")).get("version")
        self.found.engine_version = str(version) if version else None

    async def _warm_up(self, slots: Sequence[Slot]) -> None:
        """Every class alone, then all slots at once, so that each has its connection; none of it is measured.

        Each request comes in a round of its own: one that found itself in the prefix cache would warm up no prefill.
        """
        sent = 0
        for c in sorted({1, len(slots)}):
            count = max(c, len(self.load.warmup))
            planned = partial(self.load.warmup_request, first=sent)
            await play_closed(ClosedLoop(count), planned, slots[:c], self.clock, self.folder.outcome, self._lives)
            sent += count
            self._check_alive()

    async def _scrape(self, number: int, api: httpx.AsyncClient) -> dict[str, float] | None:
        text = await scrape_idle(api, self.clock)
        if text is None:
            return None
        self.folder.metrics(number, text)
        return read_counters(text)

    async def _play(
        self,
        number: int,
        window: Window,
        slots: Sequence[Slot],
        api: httpx.AsyncClient,
        before: dict[str, float] | None,
    ) -> dict[str, float] | None:
        """Play a window. Takes the counters as the last one left them and returns them as this one does."""
        loop = ClosedLoop(len(self.load.planned(window)), window.limit_ns)
        lag = self.found.lag
        assert lag is not None
        # Lag counts while a window that decides is played: reading /metrics between windows delays nobody, and eight
        # requests at once may keep the loop busy without touching a verdict.
        watcher = asyncio.ensure_future(lag.watch()) if window.deciding else None
        started_ns = self.clock.now_ns()
        try:
            planned = partial(self.load.again, window)
            outcomes = await play_closed(loop, planned, slots, self.clock, self.folder.outcome, self._lives)
        finally:
            if watcher is not None:
                watcher.cancel()
        ended_ns = self.clock.now_ns()
        self._check_alive()
        after = await self._scrape(number, api)
        counters, void = subtract(before, after) if before is not None and after is not None else (None, None)
        deadline_ns = started_ns + window.limit_ns if window.limit_ns is not None else ended_ns
        self.found.windows.append(_window_facts(window, outcomes, started_ns, ended_ns, deadline_ns, counters, void))
        self.note("window_done", window=window.name, requests=len(outcomes), failed=_failed(outcomes))
        return after


def _window_facts(
    window: Window,
    outcomes: Sequence[Outcome],
    started_ns: int,
    ended_ns: int,
    deadline_ns: int,
    counters: dict[str, float] | None,
    void: str | None,
) -> WindowFacts:
    return WindowFacts(
        name=window.name,
        kind=window.kind,
        c=window.c,
        deciding=window.deciding,
        workload=window.workload,
        limit_ns=window.limit_ns,
        started_ns=started_ns,
        ended_ns=ended_ns,
        requests=len(outcomes),
        output_tokens=tokens_until(outcomes, deadline_ns),
        counters=counters,
        counters_void=void,
    )


def _failed(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.outcome != OK for outcome in outcomes)


async def _get_json(api: httpx.AsyncClient, path: str) -> dict[str, Any]:
    try:
        answer = await api.get(path)
        found = answer.json() if answer.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
