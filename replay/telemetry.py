"""The machine once a second while a boot lives: GPUs, memory, load, who else computes, and how late we are ourselves.

All reading and writing happens in a thread; the event loop gives away some microseconds a second.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import psutil

from profiles.files import append_line
from profiles.runs import Telemetry
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.gpus import Feed, app_feed, gpu_feed
from replay.host import Host, OffLoop

EVERY_NS = SECOND_NS
# Which processes an engine has is asked anew at this distance: the question reads all of /proc, and after the boot the
# answer hardly changes.
MEMBERS_EVERY_NS = 5 * SECOND_NS
# A line of `nvidia-smi -lms 1000` that is older says nothing of now. Its list of processes comes every 5 s.
GPU_FRESH_NS = 3 * SECOND_NS
APPS_FRESH_NS = 12 * SECOND_NS


class Sampler:
    """Samples of one boot: in `samples`, and a line of `path` each. Run `watch` as a task and cancel it at the end."""

    def __init__(
        self,
        clock: Clock,
        path: Path,
        *,
        members: Callable[[], Sequence[psutil.Process]] = tuple,
        host: Host | None = None,
        gpus: Feed[dict[str, Any]] | None = None,
        apps: Feed[tuple[int, str]] | None = None,
        off_loop: OffLoop = asyncio.to_thread,
    ) -> None:
        """`members` gives the engine's living processes, [] where they are not known. It is called in a thread."""
        self._clock = clock
        self._path = path
        self._members = members
        self._host = host or Host()
        self._gpus = gpus or gpu_feed()
        self._apps = apps or app_feed()
        self._off_loop = off_loop
        self._lock = Lock()
        self._closed = False
        self._asked_ns: int | None = None
        self._engine: list[int] = []
        self._gpu_rows: dict[int, tuple[int, dict[str, Any]]] = {}
        self._app_rows: tuple[int, dict[int, str]] | None = None
        self.samples: list[Telemetry] = []
        self.unwritten: str | None = None  # why the file ends before the samples do

    async def watch(self) -> None:
        """Sample once a second until cancelled."""
        due_ns = self._clock.now_ns()
        try:
            while True:
                await self._clock.sleep_until_ns(due_ns)
                at_ns = self._clock.now_ns()
                sample = await self._off_loop(self._take, at_ns, max(0, at_ns - due_ns))
                if sample is not None:
                    self.samples.append(sample)
                # A second later, or on the next whole one after a stall.
                due_ns += EVERY_NS * max(1, -((due_ns - self._clock.now_ns()) // EVERY_NS))
        finally:
            await self._off_loop(self.close)

    def close(self) -> None:
        """Stop the tools. A sample that is being taken ends first."""
        taken = self._lock.acquire(timeout=2)
        try:
            self._closed = True
            self._gpus.close()
            self._apps.close()
        finally:
            if taken:
                self._lock.release()

    def _take(self, at_ns: int, late_ns: int) -> Telemetry | None:
        with self._lock:
            if self._closed:
                return None
            self._ask_members(at_ns)
            found = self._host.look(self._engine or None)
            sample = Telemetry(
                at_ns=at_ns,
                gpus=self._fresh_gpus(at_ns),
                gpu_strangers=self._strangers(at_ns),
                loop_lag_ns=late_ns,
                **found,
            )
            self._write(sample)
            return sample

    def _ask_members(self, at_ns: int) -> None:
        if self._asked_ns is not None and at_ns - self._asked_ns < MEMBERS_EVERY_NS:
            return
        self._asked_ns = at_ns
        # Whatever a launcher's answer costs it, a sample is taken: the last answer still names most of them.
        with contextlib.suppress(Exception):
            self._engine = [process.pid for process in self._members()]

    def _fresh_gpus(self, at_ns: int) -> list[dict[str, Any]]:
        for row in self._gpus.read():
            self._gpu_rows[row["index"]] = (at_ns, row)
        return [row for _, (seen_ns, row) in sorted(self._gpu_rows.items()) if at_ns - seen_ns <= GPU_FRESH_NS]

    def _strangers(self, at_ns: int) -> list[str] | None:
        """Programs on a GPU that are not the engine's; None where that cannot be told."""
        rows = self._apps.read()
        if rows:
            self._app_rows = (at_ns, dict(rows))
        if not self._engine or self._app_rows is None or at_ns - self._app_rows[0] > APPS_FRESH_NS:
            return None
        apps, known = self._app_rows[1], [*self._engine, os.getpid()]
        ours = {pid: self._host.descends(pid, known) for pid in apps}
        if True not in ours.values():
            return None  # the engine is elsewhere, or its pids count in a container: nobody is known from others
        return [f"{name} (pid {pid})" for pid, name in sorted(apps.items()) if ours[pid] is False]

    def _write(self, sample: Telemetry) -> None:
        if self.unwritten is None:
            try:
                append_line(self._path, msgspec.json.encode(sample))
            except OSError as error:
                self.unwritten = f"{self._path}: cannot be written ({error.strerror})"
