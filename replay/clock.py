"""The clock, as an argument. This is the only file on the replay side that imports `time`.

Everything that waits or dates takes a `Clock` with `SystemClock` as its default, so that a whole replay can run in
virtual time in a test.
"""

import asyncio
import selectors
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic and wall time in nanoseconds, and a wait until an instant of the monotonic one."""

    def now_ns(self) -> int:
        """The monotonic clock. On one host all processes share it, so instants of two processes can be compared."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, for anchors and log lines. Never subtract two of them."""
        ...

    async def sleep_until_ns(self, instant_ns: int) -> None:
        """Return at `instant_ns` or as soon after it as the loop allows, never before. Always yields once."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    async def sleep_until_ns(self, instant_ns: int) -> None:
        # An absolute instant: a late wake-up does not push the ones after it.
        while (left_ns := instant_ns - time.monotonic_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)
            if time.monotonic_ns() >= instant_ns:
                return
        await asyncio.sleep(0)


def fine_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers keep microseconds; pass it as `loop_factory` to asyncio.Runner or asyncio.run.

    asyncio's default selector (epoll) and uvloop round every wait up to a whole millisecond, a tenth of a decode step.
    select() takes microseconds. Its limit of 1024 descriptors is far above what a replay at c = 8 opens.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
