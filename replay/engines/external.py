"""The launcher `external`: an engine that is up already. It is neither started nor stopped, and no boot of it is cold.

Two boots of it are two visits to the same process, so nothing that a boot would draw anew is drawn anew.
"""

import asyncio
import contextlib
import socket
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psutil

from profiles.errors import EngineFailed
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.engines.contract import Launch, Stopped, tail

LOOK_NS = 5 * SECOND_NS
REACH_TIMEOUT_S = 5.0


def host_and_port(url: str) -> tuple[str, int]:
    """Where the connection of a URL goes."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def reaches(host: str, port: int) -> bool:
    """Something accepts there."""
    try:
        with socket.create_connection((host, port), timeout=REACH_TIMEOUT_S):
            return True
    except OSError:
        return False


class ExternalEngine:
    """An engine that somebody else runs. Nothing of it is ever signalled."""

    kind: ClassVar[str] = "external"
    cold: ClassVar[bool] = False
    exit_code: ClassVar[None] = None
    processes_seen: ClassVar[int] = 0
    cause: ClassVar[None] = None

    def __init__(self, launch: Launch, clock: Clock) -> None:
        self._clock = clock
        self.log = launch.log
        self.base_url = launch.url.rstrip("/")
        self.host, self.port = host_and_port(launch.url)
        self.spawned_ns = clock.now_ns()
        self.lives = True
        self._watcher: asyncio.Future[None] | None = None

    @classmethod
    async def launch(cls, launch: Launch, clock: Clock) -> "ExternalEngine":
        """Find it up. Raises EngineFailed."""
        engine = cls(launch, clock)
        if launch.remember is not None:
            launch.remember(engine.identity())
        if not await asyncio.to_thread(reaches, engine.host, engine.port):
            raise EngineFailed(
                f"nothing answers at {engine.base_url}",
                "The launcher `external` measures an engine that is up already: start it first.",
                diagnosis="not_up",
            )
        engine._watcher = asyncio.ensure_future(engine._watch())
        return engine

    def identity(self) -> dict[str, Any]:
        return {"launcher": self.kind, "url": self.base_url, "cold": False}

    def members(self) -> list[psutil.Process]:
        """None: whose they are is not known."""
        return []

    def owner(self) -> tuple[int, float] | None:
        return None

    def owns_port(self) -> bool | None:
        return None

    def strangers(self) -> list[str]:
        return []

    def twins(self) -> list[str]:
        return []

    def log_tail(self) -> tuple[str, ...]:
        return tail(self.log)

    async def stop(self, patience_ns: int) -> Stopped:
        """Leave it as it is."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        return Stopped("left", None, None, "it was up before and was left as it was")

    async def _watch(self) -> None:
        """Two refusals in a row mean that it is gone."""
        refused = 0
        while refused < 2:
            await self._clock.sleep_until_ns(self._clock.now_ns() + LOOK_NS)
            refused = 0 if await asyncio.to_thread(reaches, self.host, self.port) else refused + 1
        self.lives = False
