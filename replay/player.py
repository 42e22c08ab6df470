"""Play one window: slots of the client against the schedule, each outcome handed on the moment it ends.

1. `play_window`   a closed loop, or the recorded pace, with its early stops and its doubt
2. `play_closed`   the bare closed loop, for warm-up
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from profiles.records import OK, TIMEOUT, Outcome, token_instants_ns
from profiles.runs import LagFacts, ScheduleLag
from profiles.units import MILLISECOND_NS, SECOND_NS, format_duration, format_percent
from replay import doubt
from replay.client import MEASURED_TO_C, Planned, Slot
from replay.clock import Clock
from replay.loop_lag import LAG_PROBE_NS, LoopLag
from replay.schedule import ClosedLoop, Window
from replay.slots import Ahead, Silence, SlotPool
from replay.timeline import Pace

# A request is prepared, and has its connection, so long before it is due.
AHEAD_NS = 100 * MILLISECOND_NS
# Errors before this many requests ended are no share yet.
ERRORS_NEED = 20
# A dead engine is noticed so soon, also where nothing is due for long.
LOOK_EVERY_NS = 15 * SECOND_NS


@dataclass(slots=True)
class Played:
    """A window that has been played, with its own doubt."""

    outcomes: list[Outcome]
    started_ns: int
    ended_ns: int
    # From when all slots were first busy to when one first found nothing more to send; the whole of a recorded pace.
    steady_from_ns: int | None = None
    steady_to_ns: int | None = None
    schedule_lag: ScheduleLag | None = None
    loop_lag: LagFacts | None = None
    in_flight_mean: float | None = None  # over the steady part
    arrivals_at: dict[int, int] = field(default_factory=dict)
    stopped_early: str | None = None
    stalled: bool = False
    invalid: str | None = None


async def play_window(
    window: Window,
    planned: Callable[[int], Planned],
    pool: SlotPool,
    clock: Clock,
    on_outcome: Callable[[Outcome], None],
    *,
    stall_ns: int,
    max_error_share: float,
    alive: Callable[[], bool] = lambda: True,
    probe_ns: int = LAG_PROBE_NS,
) -> Played:
    """Play a window to its end, or until the engine is dead, stalls or fails too often; what has started runs to its
    end, unless it is a stall that cuts it.

    `planned(index)` gives the request of an index. If the window is cancelled, `on_outcome` still hears of those in
    flight, as cancelled. `probe_ns` is how often the loop's own lateness is looked at.
    """
    play = _Play(window, planned, pool, clock, on_outcome, stall_ns, max_error_share, alive, probe_ns)
    return await play.run()


class _Play:
    """One window while it is played."""

    def __init__(
        self,
        window: Window,
        planned: Callable[[int], Planned],
        pool: SlotPool,
        clock: Clock,
        on_outcome: Callable[[Outcome], None],
        stall_ns: int,
        max_error_share: float,
        alive: Callable[[], bool],
        probe_ns: int,
    ) -> None:
        self.window, self.planned, self.pool, self.clock = window, planned, pool, clock
        self.on_outcome, self.alive = on_outcome, alive
        self.stall_ns, self.max_error_share = stall_ns, max_error_share
        self.outcomes: list[Outcome] = []
        self.failed = 0
        self.busy: dict[Slot, None] = {}  # in the order in which they were sent
        self.silence = Silence()
        self.lag = LoopLag(clock, probe_ns)
        self.changed = asyncio.Event()  # something ended, or there is a reason to stop
        self.stopped: str | None = None
        self.stalled = False

    async def run(self) -> Played:
        self.lag.pause()
        watchers = [asyncio.ensure_future(self.lag.watch()), asyncio.ensure_future(self._watch())]
        try:
            played = await (self._closed() if self.window.starts is None else self._at_recorded_pace())
        except BaseExceptionGroup as group:
            raise _first_of(group) from None
        finally:
            for watcher in watchers:
                watcher.cancel()
            ended = await asyncio.gather(*watchers, return_exceptions=True)
        for problem in ended:
            if isinstance(problem, Exception):
                raise problem
        return self._doubted(played)

    def _doubted(self, played: Played) -> Played:
        played.stopped_early, played.stalled = self.stopped, self.stalled
        played.schedule_lag = doubt.schedule_lag(self.outcomes)
        played.loop_lag = self.lag.facts()
        steady = (played.steady_from_ns, played.steady_to_ns)
        played.in_flight_mean = doubt.in_flight_mean(self.outcomes, *steady)
        played.arrivals_at = doubt.arrivals_at(self.outcomes)
        played.invalid = doubt.why_invalid(
            c=self.window.c,
            loop_lag=played.loop_lag,
            lag=played.schedule_lag,
            in_flight=played.in_flight_mean,
            steady_requests=doubt.started_within(self.outcomes, *steady),
            measured_to_c=MEASURED_TO_C,
            planned_peak=self.window.widest,
        )
        return played

    def _goes_on(self) -> bool:
        return self.stopped is None and self.alive()

    async def _closed(self) -> Played:
        """c slots, each sends the next request as soon as it is free, which is when that one was due."""
        count, c = len(self.window.picks), self.window.c
        loop = ClosedLoop(count, self.window.limit_ns)
        ahead = Ahead(self.planned, c, None if self.window.limit_ns is not None and count else count)
        slots = await self.pool.take(c)
        ahead.fill()
        started_ns = self.clock.now_ns()
        first_ns: list[int] = []  # when each slot sent its first request
        done_ns: list[int] = []  # when each found nothing more to send

        async def work(slot: Slot) -> None:
            free_ns = started_ns
            sent = False
            while self._goes_on() and (index := loop.next_index(self.clock.now_ns() - started_ns)) is not None:
                request = replace(ahead.take(index), due_ns=free_ns)
                # In the next turn of the loop, when this one is on its way.
                asyncio.get_running_loop().call_soon(ahead.fill)
                outcome = await self._send(slot, request)
                free_ns = outcome.end_ns
                if not sent and outcome.send_started_ns is not None:
                    first_ns.append(outcome.send_started_ns)
                sent = True
            done_ns.append(self.clock.now_ns())

        async with asyncio.TaskGroup() as tasks:
            for slot in slots:
                tasks.create_task(work(slot))
        self.pool.give_back(*slots)
        played = Played(self.outcomes, started_ns, self.clock.now_ns())
        if len(first_ns) == c and max(first_ns) < min(done_ns):
            played.steady_from_ns, played.steady_to_ns = max(first_ns), min(done_ns)
        return played

    async def _at_recorded_pace(self) -> Played:
        """Each request when it is due, on a slot of its own; those that wait for others follow the ends of those."""
        assert self.window.starts is not None
        self.pool.give_back(*await self.pool.take(self.window.widest))
        started_ns = self.clock.now_ns() + AHEAD_NS
        pace = Pace(self.window.starts, started_ns)
        async with asyncio.TaskGroup() as tasks:

            async def send(slot: Slot, index: int, request: Planned) -> None:
                outcome = await self._send(slot, request)
                self.pool.give_back(slot)
                pace.ended(index, outcome.end_ns)

            async def depart(due_ns: int, indices: Sequence[int]) -> None:
                slots = await self.pool.take(len(indices))
                requests = [replace(self.planned(index), due_ns=due_ns) for index in indices]
                await self.clock.sleep_until_ns(due_ns)
                if not self._goes_on():
                    self.pool.give_back(*slots)
                    return
                for slot, index, request in list(zip(slots, indices, requests, strict=True))[1:]:
                    tasks.create_task(send(slot, index, request))
                await send(slots[0], indices[0], requests[0])

            while pace.left and self._goes_on():
                self.changed.clear()
                for due_ns, indices in pace.take(self.clock.now_ns() + AHEAD_NS):
                    tasks.create_task(depart(due_ns, indices))
                next_ns = pace.next_due_ns()
                if pace.left:
                    await self._until(None if next_ns is None else next_ns - AHEAD_NS)
        ended_ns = self.clock.now_ns()
        return Played(self.outcomes, started_ns, ended_ns, started_ns, max(started_ns, ended_ns))

    async def _until(self, instant_ns: int | None) -> None:
        """Until an instant, or until something has changed."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.changed.wait())]
        if instant_ns is not None:
            waits.append(asyncio.ensure_future(self.clock.sleep_until_ns(instant_ns)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _send(self, slot: Slot, request: Planned) -> Outcome:
        self.busy[slot] = None
        self.silence.begin(self.clock.now_ns())
        self.lag.go_on()
        try:
            outcome = await slot.send(request)
        except asyncio.CancelledError:
            if slot.interrupted is not None:
                self.on_outcome(slot.interrupted)
            raise
        finally:
            self.busy.pop(slot, None)
            if not self.busy:
                self.lag.pause()
        self._note(outcome)
        return outcome

    def _note(self, outcome: Outcome) -> None:
        # A request that we gave up is no sign of life, but for the tokens that it had.
        sign_ns = outcome.response.last_token_ns if outcome.outcome == TIMEOUT else outcome.end_ns
        if sign_ns is not None:
            self.silence.sign(sign_ns)
        if not self.busy:
            self.silence.rest(outcome.end_ns)
        self.outcomes.append(outcome)
        self.on_outcome(outcome)
        self.failed += outcome.outcome != OK
        ended = len(self.outcomes)
        if self.stopped is None and ended >= ERRORS_NEED and self.failed > self.max_error_share * ended:
            share = format_percent(self.failed / ended, 0)
            self.stopped = f"{self.failed} of {ended} requests failed ({share})"
        self.changed.set()

    async def _watch(self) -> None:
        """Stop a window in which no request gets a token any more, or whose engine is dead."""
        while True:
            for slot in self.busy:
                if slot.token_ns is not None:
                    self.silence.sign(slot.token_ns)
            now_ns = self.clock.now_ns()
            silent_ns = self.silence.lasted_ns(now_ns)
            if self.busy and silent_ns >= self.stall_ns and self.stopped is None:
                reason = (
                    f"no token from any of {len(self.busy)} requests in flight for {format_duration(self.stall_ns)}"
                )
                self.stopped, self.stalled = reason, True
                for slot in self.busy:
                    slot.cut(reason)
            if not self._goes_on():
                self.changed.set()
            left_ns = self.stall_ns - silent_ns
            await self.clock.sleep_until_ns(now_ns + (min(left_ns, LOOK_EVERY_NS) if left_ns > 0 else LOOK_EVERY_NS))


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


async def play_closed(
    loop: ClosedLoop,
    planned: Callable[[int], Planned],
    slots: Sequence[Slot],
    clock: Clock,
    on_outcome: Callable[[Outcome], None],
    alive: Callable[[], bool] = lambda: True,
) -> list[Outcome]:
    """Keep every slot busy until the loop is done, or the engine dead; what has started runs to its end.

    `planned` gives the request of an index.
    """
    started_ns = clock.now_ns()
    outcomes: list[Outcome] = []

    async def work(slot: Slot) -> None:
        while alive() and (index := loop.next_index(clock.now_ns() - started_ns)) is not None:
            outcome = await slot.send(planned(index))
            outcomes.append(outcome)
            on_outcome(outcome)

    async with asyncio.TaskGroup() as tasks:
        for slot in slots:
            tasks.create_task(work(slot))
    return outcomes


def tokens_until(outcomes: Sequence[Outcome], deadline_ns: int) -> int:
    """Output tokens that arrived by an instant: those of requests that ended well, in proportion to their events.

    A request that ends after the deadline gives the share of its token-bearing events that came before it.
    """
    total = 0.0
    for outcome in outcomes:
        count = outcome.response.output_tokens
        if outcome.outcome == OK and count:
            instants = token_instants_ns(outcome.response)
            if not instants:
                total += count if outcome.end_ns <= deadline_ns else 0
            else:
                total += count * sum(instant <= deadline_ns for instant in instants) / len(instants)
    return round(total)


def api_client(base_url: str, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """A plain client for /metrics and /v1/models; never used for what is measured."""
    plain = base_url.startswith("http://")
    return httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False, timeout=10, verify=not plain)
