"""The proxy's side of a recording: a scribe that dies is replaced, and what it took with it is counted."""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any

import pytest

from capture.frames import OPEN, FrameReader, Opening, read_told
from capture.outbox import GONE
from capture.session import REPLACE_EVERY_NS, Session
from capture.settings import Settings
from profiles.errors import UsageError


class Process:
    pid = 1

    def poll(self) -> None:
        """Nothing to reap."""

    def wait(self, timeout: float) -> int:
        return 0


class Scribe:
    """A pipe whose other end is ours."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.reading, self.descriptor = os.pipe()
        self.booked = (0, 0)
        self.process = Process()

    def wait_ready(self) -> None:
        """It is."""

    def read(self) -> list[Any]:
        return list(FrameReader().feed(os.read(self.reading, 1 << 20)))

    def die(self) -> None:
        os.close(self.reading)

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass
class Starts:
    """Starts scribes, or fails to."""

    scribes: list[Scribe] = field(default_factory=list)
    failures: int = 0

    def __call__(self, settings: Settings) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("no process to be had")
        self.scribes.append(Scribe(settings))
        return self.scribes[-1]


SETTINGS = Settings(folder="c", upstream="http://127.0.0.1:1", prefix="p")


def test_a_scribe_that_dies_is_replaced_even_if_the_first_try_fails() -> None:
    now_ns = 0

    async def live() -> None:
        nonlocal now_ns
        starts = Starts()
        session = Session(SETTINGS, clock=lambda: now_ns, start_scribe=starts)
        session.start("http://127.0.0.1:2")
        (first,) = starts.scribes
        (opened,) = first.read()
        assert read_told(OPEN, opened.payload) == Opening("", "http://127.0.0.1:2")
        counts = session.recorder.counts
        counts.ended, first.booked = 7, (5, 4)
        first.die()
        starts.failures = 1
        session.beat()  # finds out
        dead = session.recorder.outbox
        assert dead.closed == GONE
        session.beat()  # and fails to start another
        assert counts.errors == {"scribe: OSError": 1}
        session.beat()
        assert len(starts.scribes) == 1, "the next try is a few seconds away"
        now_ns += REPLACE_EVERY_NS
        session.beat()
        second = starts.scribes[1]
        assert (second.settings.again, second.settings.taken, second.settings.written) == (True, 5, 4)
        assert counts.dropped == {GONE: 2}
        assert session.recorder.outbox.closed is None
        assert read_told(OPEN, second.read()[0].payload) == Opening(f"resumed after {GONE}", "http://127.0.0.1:2")
        counts.ended, second.booked = 10, (3, 3)
        second.die()
        session.beat()
        now_ns += REPLACE_EVERY_NS
        session.beat()
        assert (starts.scribes[2].settings.taken, starts.scribes[2].settings.written) == (8, 7)
        assert counts.dropped == {GONE: 2}
        session.done()
        session.done()
        session.finish()

    asyncio.run(live())


def test_a_scribe_that_cannot_write_says_so_at_the_start() -> None:
    class Refuses(Scribe):
        def wait_ready(self) -> None:
            raise UsageError("not a capture")

    async def live() -> None:
        with pytest.raises(UsageError, match="not a capture"):
            Session(SETTINGS, start_scribe=Refuses)  # type: ignore[arg-type]  # as far as the session is concerned

    asyncio.run(live())
