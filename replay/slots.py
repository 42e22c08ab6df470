"""Connections, and what is made ready for them, beside the schedule."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from replay.client import Planned, Slot


class SlotPool:
    """The connections of a boot. The one that was used last is given out first: it is warm."""

    def __init__(self, new_slot: Callable[[], Slot]) -> None:
        self._new_slot = new_slot
        self._idle: list[Slot] = []
        self._all: list[Slot] = []

    async def take(self, count: int = 1) -> list[Slot]:
        """So many slots, new ones where too few are idle. Each has its connection, also where the engine closed it
        while it was idle (uvicorn does after 5 s)."""
        taken = [self._idle.pop() for _ in range(min(count, len(self._idle)))]
        fresh = [self._new_slot() for _ in range(count - len(taken))]
        self._all += fresh
        await asyncio.gather(*(slot.connect() for slot in taken + fresh))
        return taken + fresh

    def give_back(self, *slots: Slot) -> None:
        """They are idle again; the first of them is given out first."""
        self._idle += reversed(slots)

    async def close(self) -> None:
        """Close every connection."""
        slots, self._all, self._idle = self._all, [], []
        for slot in slots:
            await slot.close()


class Ahead:
    """Requests in the order of their indices, a few of them made before they are asked for."""

    def __init__(self, planned: Callable[[int], Planned], depth: int, count: int | None) -> None:
        self._planned, self._depth = planned, depth
        self._count = count  # None: without an end
        self._made: dict[int, Planned] = {}
        self._next = 0  # to be asked for

    def fill(self) -> None:
        """Make the next ones."""
        if self._count == 0:
            return
        end = self._next + self._depth if self._count is None else min(self._next + self._depth, self._count)
        for index in range(self._next, end):
            if index not in self._made:
                self._made[index] = self._planned(index)

    def take(self, index: int) -> Planned:
        """Request `index`, made by now or not."""
        self._next = index + 1
        made = self._made.pop(index, None)
        return made if made is not None else self._planned(index)


@dataclass(slots=True)
class Silence:
    """For how long requests have been in flight without a sign of life. Time with nobody in flight does not count."""

    total_ns: int = 0
    since_ns: int | None = None

    def begin(self, at_ns: int) -> None:
        """A request was sent."""
        if self.since_ns is None:
            self.since_ns = at_ns

    def sign(self, at_ns: int) -> None:
        """A token came, or an answer ended by itself."""
        self.total_ns = 0
        if self.since_ns is not None:
            self.since_ns = max(self.since_ns, at_ns)

    def rest(self, at_ns: int) -> None:
        """Nobody is in flight any more."""
        self.total_ns = self.lasted_ns(at_ns)
        self.since_ns = None

    def lasted_ns(self, at_ns: int) -> int:
        """The silence by an instant."""
        return self.total_ns + (max(0, at_ns - self.since_ns) if self.since_ns is not None else 0)
