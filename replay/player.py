"""Play one window: c slots against the closed loop, each outcome handed on the moment it ends.

The loop's own lateness is measured beside it, because a client that is late makes every engine look slow.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
import numpy as np

from profiles.records import OK, Outcome, token_instants_ns
from profiles.runs import LagFacts
from profiles.units import MILLISECOND_NS
from replay.client import Planned, Slot
from replay.clock import Clock
from replay.schedule import ClosedLoop

LAG_PROBE_NS = 10 * MILLISECOND_NS


@dataclass(slots=True)
class LoopLag:
    """Lateness of the event loop, sampled every 10 ms against absolute deadlines."""

    clock: Clock
    samples_ns: list[int] = field(default_factory=list)

    async def watch(self) -> None:
        """Sample until cancelled."""
        due_ns = self.clock.now_ns()
        while True:
            due_ns += LAG_PROBE_NS
            await self.clock.sleep_until_ns(due_ns)
            late_ns = self.clock.now_ns() - due_ns
            self.samples_ns.append(max(0, late_ns))
            if late_ns > LAG_PROBE_NS:
                due_ns += late_ns  # one long stall is one sample, not a burst of them

    def facts(self) -> LagFacts | None:
        """Quantiles of the lateness, or None where nothing was sampled."""
        if not self.samples_ns:
            return None
        p50, p99 = np.percentile(self.samples_ns, (50, 99))
        return LagFacts(p50_ns=round(p50), p99_ns=round(p99), max_ns=max(self.samples_ns), samples=len(self.samples_ns))


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


def api_client(base_url: str) -> httpx.AsyncClient:
    """A plain client for /metrics and /v1/models; never used for what is measured."""
    plain = base_url.startswith("http://")
    return httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=10, verify=not plain)
