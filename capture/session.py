"""The proxy's side of one recording: it starts the scribe, beats once a second, starts another when one dies, and ends.

The scribe is a process of its own, in a session of its own: Ctrl-C reaches the proxy alone, and a kill of the proxy
leaves the scribe to write down what is in the pipe. They share a counter in memory, so that the records which a dying
scribe took with it can be counted.
"""

import asyncio
import fcntl
import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import orjson

from capture.frames import BEAT, BOOKED, CLOSE, OPEN, Opening, tell
from capture.headers import headers_read
from capture.outbox import GONE, Outbox
from capture.recorder import Recorder
from capture.settings import Settings
from profiles.errors import FirsttokenError, UsageError
from profiles.units import MILLISECOND_NS, SECOND_NS

BEAT_EVERY_NS = SECOND_NS
REPLACE_EVERY_NS = 5 * SECOND_NS
# How often the loop's lateness is looked at: often enough that a stall of a tenth of a second cannot hide.
LAG_EVERY_NS = 50 * MILLISECOND_NS
# A pipe of the largest size that a user may ask for without privileges: about ten seconds of eight busy streams.
PIPE_BYTES = 1024 * 1024
# At the end the scribe may still have to write down what waits, on a slow disk.
DRAIN_S = 30.0

_ROOT = Path(__file__).resolve().parent.parent


class Scribe:
    """The scribe's process and the proxy's end of the pipe."""

    def __init__(self, settings: Settings) -> None:
        self._memory = os.memfd_create("firsttoken") if hasattr(os, "memfd_create") else -1
        if self._memory >= 0:
            os.ftruncate(self._memory, mmap.PAGESIZE)
        self._shared = mmap.mmap(self._memory, mmap.PAGESIZE) if self._memory >= 0 else mmap.mmap(-1, mmap.PAGESIZE)
        reading, self.descriptor = os.pipe()
        with suppress(OSError, AttributeError):  # a smaller pipe does too
            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        inherited = [reading] + ([self._memory] if self._memory >= 0 else [])
        try:
            # The parent's path is handed on, so that both run the same code.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "capture.scribe", str(reading), str(self._memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=inherited,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
            )
        except OSError:
            self._close_memory()
            os.close(self.descriptor)
            raise
        finally:
            os.close(reading)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(settings))
            self.process.stdin.close()

    @property
    def booked(self) -> tuple[int, int]:
        """How many ends it has taken, and how many of them it has written."""
        taken, written = BOOKED.unpack_from(self._shared)
        return int(taken), int(written)

    def wait_ready(self) -> None:
        """Wait until it can write. Raises what it could not do, as UsageError or FirsttokenError."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said.endswith(b"\n"):
            raise FirsttokenError("the scribe, which writes the capture, ended while it started", "Look at stderr.")
        told = orjson.loads(said)
        if problem := told.get("problem"):
            self.process.wait()
            raise (UsageError if told["usage"] else FirsttokenError)(problem, told["hint"])

    def close(self) -> None:
        """Close our end of everything. The process ends by itself when the pipe is empty."""
        with suppress(OSError):
            os.close(self.descriptor)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._close_memory()

    def _close_memory(self) -> None:
        self._shared.close()
        if self._memory >= 0:
            os.close(self._memory)


class Session:
    """A mitmproxy addon that holds the recorder. Make it inside a running event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        release_content: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
        start_scribe: Callable[[Settings], Scribe] = Scribe,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._start_scribe = start_scribe
        self._loop = asyncio.get_running_loop()
        self._scribe = start_scribe(settings)
        try:
            self._scribe.wait_ready()
        except FirsttokenError:
            self._scribe.close()
            raise
        outbox = Outbox(self._scribe.descriptor, self._loop)
        self.recorder = Recorder(
            outbox,
            self._loop,
            clock=clock,
            headers_read=headers_read(tenants=settings.tenants),
            release_content=release_content,
        )
        self.addons = [self.recorder]
        self._ended_before = 0  # ends handed to scribes before this one
        self._taken_before = self._written_before = 0  # and what they booked
        self._started = False
        self._listen = ""
        self._pulse: asyncio.Task[None] | None = None
        self._worst_lag_ns = 0  # since the last beat
        self._beat_at_ns = self._replace_at_ns = 0

    def start(self, listen: str) -> None:
        """The proxy listens, at scheme://host:port: open the window, and beat until `done`."""
        self._started = True
        self._listen = listen
        self._say(tell(OPEN, 0, self._clock(), Opening("", listen)))
        # The loop keeps only a weak reference to a task; this attribute is the strong one.
        self._pulse = self._loop.create_task(self._beat_on(), name="beats of the recorder")

    def done(self) -> None:
        """mitmproxy stops: finalise what is in flight, close the window. Safe to call twice, and it does not wait."""
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        if not self._started:
            return
        self._started = False
        if self.recorder.outbox.closed is not None:
            self._replace()
        self.recorder.stop()
        self.beat()  # the last counts
        self._say(tell(CLOSE, 0, self._clock(), Opening("stopped")))

    def finish(self) -> None:
        """Wait until the scribe has written everything and ended. Raises FirsttokenError where that takes too long.

        Call it when the event loop has ended. Whoever interrupts it leaves the scribe to itself.
        """
        outbox, process = self.recorder.outbox, self._scribe.process
        until_ns = self._clock() + round(DRAIN_S * SECOND_NS)
        with suppress(KeyboardInterrupt):
            while outbox.waiting_bytes and outbox.closed is None and self._clock() < until_ns:
                select.select([], [self._scribe.descriptor], [], 0.5)
                outbox.drain()
        with suppress(RuntimeError):  # it would tell an event loop that has ended to watch no more
            outbox.close()
        self._scribe.close()
        try:
            process.wait(max(0.1, (until_ns - self._clock()) / SECOND_NS))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            raise FirsttokenError(
                f"the scribe, process {process.pid}, has not finished writing {self.settings.folder}",
                "A disk may be stuck. It goes on by itself; when it has ended, look with: firsttoken capture check "
                f"{self.settings.folder}",
            ) from None

    def beat(self) -> None:
        """Tell the scribe once a second that we live, and what was counted. Start another scribe if it does not."""
        now_ns = self._clock()
        if self.recorder.outbox.closed is not None and now_ns >= self._replace_at_ns:
            self._replace_at_ns = now_ns + REPLACE_EVERY_NS
            self._replace()
        pulse = self.recorder.pulse(self._worst_lag_ns)
        self._worst_lag_ns = 0
        self._say(tell(BEAT, 0, now_ns, pulse))

    def _say(self, told: bytes) -> None:
        outbox = self.recorder.outbox
        if outbox.put(told) is None:
            outbox.flush()

    def _replace(self) -> None:
        """The scribe died. Start another, count what it took with it, tell the new one who is in flight."""
        recorder, dead = self.recorder, self._scribe
        taken, written = dead.booked
        settings = msgspec.structs.replace(
            self.settings, again=True, taken=self._taken_before + taken, written=self._written_before + written
        )
        try:
            self._scribe = self._start_scribe(settings)
        except OSError as problem:  # no process to be had just now: the next try is a few seconds away
            recorder.count_fault("scribe", problem)
            return
        lost = recorder.counts.ended - self._ended_before - taken
        if lost > 0:
            recorder.counts.dropped[GONE] += lost
        self._ended_before = recorder.counts.ended
        self._taken_before, self._written_before = settings.taken, settings.written
        dead.process.poll()
        dead.close()
        recorder.outbox = Outbox(self._scribe.descriptor, self._loop)
        self._say(tell(OPEN, 0, self._clock(), Opening(f"resumed after {GONE}", self._listen)))
        recorder.announce_again(GONE)
        recorder.outbox.flush()

    async def _beat_on(self) -> None:
        while True:
            due_ns = self._clock() + LAG_EVERY_NS
            await asyncio.sleep(LAG_EVERY_NS / SECOND_NS)
            now_ns = self._clock()
            try:
                lag_ns = max(0, now_ns - due_ns)
                self._worst_lag_ns = max(self._worst_lag_ns, lag_ns)
                self.recorder.observe_lag(lag_ns)
                if now_ns >= self._beat_at_ns:
                    self._beat_at_ns = now_ns + BEAT_EVERY_NS
                    self.beat()
            except Exception as problem:  # a beat that fails must not be the last one
                self.recorder.count_fault("beat", problem)
