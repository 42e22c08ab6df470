"""The end of an engine that hooks started, proved; also of one that a killed program of ours left."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from profiles.errors import EngineFailed
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.engines import ports
from replay.engines.commands import Called, call, end_left
from replay.engines.contract import wait_refused
from replay.engines.family import end, recall
from replay.engines.proc_stat import host_boot

STOP_EXTRA_NS: Final = 60 * SECOND_NS
ALIVE_LIMIT_NS: Final = 10 * SECOND_NS


async def prove_gone(
    host: str,
    port: int,
    says_alive: Callable[[], Awaitable[bool]] | None,
    called: Called,
    patience_ns: int,
    clock: Clock,
) -> None:
    """The port refuses and `alive` says no. Raises EngineFailed when it does not come to that."""
    deadline_ns = clock.now_ns() + patience_ns
    while says_alive is not None and await says_alive():
        if clock.now_ns() > deadline_ns:
            code = "was cut" if called.code is None else f"ended with exit code {called.code}"
            raise EngineFailed(
                f"the hook stop {code} and `alive` still says that the engine lives",
                "Make `stop` return when it is gone, or raise stop_timeout.",
                diagnosis="not_stopped",
            )
        await clock.sleep_until_ns(clock.now_ns() + SECOND_NS // 5)
    await wait_refused(host, port, clock, patience_ns=max(deadline_ns - clock.now_ns(), SECOND_NS))


async def stop_leftover(identity: Mapping[str, Any], clock: Clock, *, patience_ns: int) -> bool:
    """End what an interrupted boot left: a hook that still runs, the engine, and what printed its log. True if any of
    it was there. Raises EngineFailed.

    `stop` is called whatever can be seen of the engine: one that loads its model answers on no port.
    """
    here = identity.get("host_boot") == host_boot()
    calling = identity.get("calling")
    found = bool(calling and here and end_left((calling[0], calling[1])))
    try:
        return await _stop_engine(identity, clock, patience_ns) or found
    finally:
        if here and identity.get("members") is not None:
            await _end_logs(identity, clock)


async def _stop_engine(identity: Mapping[str, Any], clock: Clock, patience_ns: int) -> bool:
    host, port = str(identity["host"]), int(identity["port"])
    cwd, said = Path(str(identity["cwd"])), Path(str(identity["hooks_log"]))

    async def run(argv: Sequence[str], limit_ns: int) -> Called:
        try:
            return await call(argv, env=os.environ, cwd=cwd, limit_ns=limit_ns, output=said)
        except OSError as error:
            raise EngineFailed(f"cannot run {argv[0]}: {error.strerror}", diagnosis="hook_failed") from None

    async def says_alive() -> bool:
        return (await run(identity["alive"], ALIVE_LIMIT_NS)).code == 0

    asks = says_alive if identity.get("alive") else None
    found = not ports.port_refuses(host, port) or (asks is not None and await asks())
    called = await run(identity["stop"], patience_ns + STOP_EXTRA_NS)
    await prove_gone(host, port, asks, called, patience_ns, clock)
    return found


async def _end_logs(identity: Mapping[str, Any], clock: Clock) -> None:
    family = recall(identity)
    await end(family, clock)
    left = family.look(thorough=True)
    if left:
        raise EngineFailed(f"the hook logs will not end: {', '.join(map(str, left))}", diagnosis="not_stopped")
