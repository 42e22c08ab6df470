"""A slot whose engine is a script, and windows for it: load modes in virtual time, with exact instants."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from virtual import VirtualClock

from profiles.profile import ProfileRow
from profiles.records import CANCELLED, ENGINE, ERROR, OK, TIMEOUT, Outcome, ResponseFacts
from profiles.units import SECOND_NS
from replay.client import Planned, Slot
from replay.player import Played, play_window
from replay.schedule import Pick, Window
from replay.slots import SlotPool


@dataclass(frozen=True)
class Answer:
    """When its tokens come after the request was sent, and when it ends. `outcome` is what comes of it."""

    end_ns: int
    tokens_ns: tuple[int, ...] = ()
    outcome: str = OK


def after(seconds: float) -> Answer:
    """Its only token comes with its end."""
    return Answer(round(seconds * SECOND_NS), (round(seconds * SECOND_NS),))


@dataclass
class Engine:
    """What a script answers to each request, and what it saw."""

    answer: Callable[[Planned], Answer]
    late_ns: Callable[[Planned], int] = lambda _: 0  # how long the client takes to send
    clock: VirtualClock = field(default_factory=VirtualClock)
    slots: int = 0
    in_flight: int = 0
    most: int = 0
    seen: list[int] = field(default_factory=list)

    def new_slot(self) -> "ScriptedSlot":
        self.slots += 1
        return ScriptedSlot(self)


class ScriptedSlot(Slot):
    """The API of a slot, without a connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.interrupted: Outcome | None = None
        self._tokens: list[int] = []
        self._cut: asyncio.Future[str] | None = None

    @property
    def token_ns(self) -> int | None:
        return self._tokens[-1] if self._tokens else None

    async def connect(self) -> None:
        """There is nothing to connect."""

    async def close(self) -> None:
        """There is nothing to close."""

    def cut(self, reason: str) -> None:
        assert self._cut is not None
        self._cut.set_result(reason)

    async def send(self, planned: Planned, *, total_ns: int | None = None) -> Outcome:
        engine, clock = self.engine, self.engine.clock
        assert self._cut is None, "a slot sends one request at a time"
        if late_ns := engine.late_ns(planned):
            await clock.sleep_until_ns(clock.now_ns() + late_ns)
        started_ns = clock.now_ns()
        cut: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._cut = cut
        engine.seen.append(planned.index)
        engine.in_flight += 1
        engine.most = max(engine.most, engine.in_flight)
        answer = engine.answer(planned)
        tokens = self._tokens
        reason: str | None = None
        try:
            for at_ns in (*answer.tokens_ns, answer.end_ns):
                sleeping: asyncio.Future[Any] = asyncio.ensure_future(clock.sleep_until_ns(started_ns + at_ns))
                await asyncio.wait([sleeping, cut], return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    sleeping.cancel()
                    reason = cut.result()
                    break
                if len(tokens) < len(answer.tokens_ns):
                    tokens.append(clock.now_ns())
        except asyncio.CancelledError:
            self.interrupted = self._outcome(planned, started_ns, CANCELLED, "interrupted")
            raise
        finally:
            engine.in_flight -= 1
            self._cut, self._tokens = None, []
        return self._outcome(planned, started_ns, TIMEOUT if reason is not None else answer.outcome, reason, tokens)

    def _outcome(
        self, planned: Planned, started_ns: int, outcome: str, reason: str | None, tokens: Sequence[int] = ()
    ) -> Outcome:
        return Outcome(
            window=planned.window,
            c=planned.c,
            index=planned.index,
            request=planned.request,
            workload=planned.workload,
            due_ns=planned.due_ns,
            send_started_ns=started_ns,
            end_ns=self.engine.clock.now_ns(),
            status=503 if outcome == ERROR else 200,
            outcome=outcome,
            origin=None if outcome == OK else ENGINE,
            reason=reason,
            response=ResponseFacts(
                first_token_ns=tokens[0] if tokens else None,
                last_token_ns=tokens[-1] if tokens else None,
                token_gaps_ns=[later - earlier for earlier, later in pairwise(tokens)],
            ),
        )


def planned_by(window: Window) -> Callable[[int], Planned]:
    """The requests of a window, without bodies."""

    def plan(index: int) -> Planned:
        row = window.picks[index % len(window.picks)].row
        return Planned(window.name, window.c, index, row.request, row.workload, "/v1/chat/completions", b"{}")

    return plan


def closed(c: int, rows: list[ProfileRow], limit_ns: int | None = None) -> Window:
    return Window(f"closed-c{c}", "closed", c, True, tuple(Pick(row) for row in rows), limit_ns=limit_ns)


async def play(window: Window, engine: Engine, **limits: object) -> Played:
    """Play a window; `limits` are those of `play_window`. The loop's own lateness is none in virtual time."""
    given: dict[str, object] = {"stall_ns": 10**18, "max_error_share": 1.0, "probe_ns": 3600 * SECOND_NS} | limits
    on_outcome = given.pop("on_outcome", lambda _: None)
    pool = SlotPool(engine.new_slot)
    try:
        return await play_window(window, planned_by(window), pool, engine.clock, on_outcome, **given)  # type: ignore[arg-type]  # a table of defaults
    finally:
        await pool.close()
