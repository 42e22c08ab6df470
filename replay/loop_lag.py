"""How late the client's own event loop is: a client that is late makes every engine look slow."""

import asyncio
from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from profiles.runs import LagFacts
from profiles.units import MICROSECOND_NS, MILLISECOND_NS
from replay.clock import Clock

LAG_PROBE_NS = 10 * MILLISECOND_NS
# Lateness is counted in steps of this size: a day of probes fits into a few kilobytes.
LAG_STEP_NS = 10 * MICROSECOND_NS


class LoopLag:
    """Lateness of the event loop, sampled every 10 ms against absolute deadlines."""

    def __init__(self, clock: Clock, probe_ns: int = LAG_PROBE_NS) -> None:
        self._clock = clock
        self._probe_ns = probe_ns
        self._late: Counter[int] = Counter()  # in steps
        self._max_ns = 0
        self._going = asyncio.Event()
        self._going.set()

    def pause(self) -> None:
        """Nobody is in flight: a loop that idles would hide its lateness under load."""
        self._going.clear()

    def go_on(self) -> None:
        """Sample again."""
        self._going.set()

    async def watch(self) -> None:
        """Sample until cancelled."""
        due_ns = self._clock.now_ns()
        while True:
            if not self._going.is_set():
                await self._going.wait()
                due_ns = self._clock.now_ns()
            due_ns += self._probe_ns
            await self._clock.sleep_until_ns(due_ns)
            late_ns = max(0, self._clock.now_ns() - due_ns)
            self._late[late_ns // LAG_STEP_NS] += 1
            self._max_ns = max(self._max_ns, late_ns)
            if late_ns > self._probe_ns:
                due_ns += late_ns  # one long stall is one sample, not a burst of them

    def facts(self) -> LagFacts | None:
        """Quantiles of the lateness, or None where nothing was sampled."""
        if not self._late:
            return None
        steps = sorted(self._late)
        up_to = list(accumulate(self._late[step] for step in steps))
        p50, p99 = (steps[bisect_left(up_to, share * up_to[-1])] for share in (0.5, 0.99))
        return LagFacts(p50_ns=p50 * LAG_STEP_NS, p99_ns=p99 * LAG_STEP_NS, max_ns=self._max_ns, samples=up_to[-1])
