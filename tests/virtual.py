"""An event loop on virtual time: whole replays in milliseconds, with exact instants.

When nothing is ready the loop jumps to its next timer. Valid only while nothing real is in flight.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout and self.loop is not None:
            self.loop.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and moves only when everything waits."""

    def __init__(self) -> None:
        self._now = 0.0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class VirtualClock:
    """The loop's own time in whole microseconds, as nanoseconds: a sum of floats is not exact, an instant should be."""

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e6) * 1000

    def wall_ns(self) -> int:
        return self.now_ns()

    async def sleep_until_ns(self, instant_ns: int) -> None:
        await asyncio.sleep(max(0, (instant_ns - self.now_ns()) / 1e9))


def run_virtual[T](main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
