"""An arm's engine, from nothing to the proof that it is gone, whatever starts it.

1. `contract`   what every launcher takes (`Launch`) and gives (`Engine`, `Stopped`)
2. `ports`      who listens on a port, strangers and twins included
3. `proc_stat`  a line of the process table; `reaper`, whose parent this program is
4. `family`     which processes are the engine's, and who signals any; `listening`, which sockets are theirs
5. `process`    the launcher `process`: a program on this machine; `leftover`, what a killed program of ours left of it
6. `commands`   one command at a time, off the event loop; `follower`, a command whose output is the engine's log
7. `container`  the launchers `docker` and `podman`; `container_client`, their command line
8. `hooks`      the launcher `command`: the user's own commands, for systemd, ssh and anything else; `hook_leftover`
9. `external`   the launcher `external`: an engine that is up already
10. `check`     what can be refused before the first boot
"""

from collections.abc import Mapping
from typing import Any

from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.engines.check import check_launcher
from replay.engines.container import ContainerEngine
from replay.engines.container_client import bind_address
from replay.engines.container_client import stop_leftover as stop_left_container
from replay.engines.contract import (
    Engine,
    Launch,
    PortTaken,
    Stopped,
    log_size,
    tail,
    to_the_end,
    wait_listening,
)
from replay.engines.external import ExternalEngine
from replay.engines.hook_leftover import stop_leftover as stop_left_hooked
from replay.engines.hooks import HookedEngine, wipe
from replay.engines.leftover import stop_leftover as stop_left_process
from replay.engines.ports import find_program, free_port, port_refuses
from replay.engines.process import EngineProcess

__all__ = [
    "Engine",
    "EngineProcess",
    "Launch",
    "PortTaken",
    "Stopped",
    "bind_address",
    "check_launcher",
    "find_program",
    "free_port",
    "launch",
    "log_size",
    "port_refuses",
    "stop_leftover",
    "tail",
    "to_the_end",
    "wait_listening",
    "wipe",
]


# An engine that is left over measures nothing any more: it gets less than a stop_timeout.
LEFTOVER_PATIENCE_NS = 10 * SECOND_NS


async def launch(kind: str, launch: Launch, clock: Clock) -> Engine:
    """Start an engine, or find the one that is up. Raises PortTaken before anything is started, else EngineFailed.

    If the caller is cancelled meanwhile, what was started is stopped first.
    """
    if kind in ("docker", "podman"):
        return await ContainerEngine.launch(kind, launch, clock)
    if kind == "command":
        return await HookedEngine.launch(launch, clock)
    if kind == "external":
        return await ExternalEngine.launch(launch, clock)
    return await EngineProcess.launch(launch, clock)


async def stop_leftover(identity: Mapping[str, Any], clock: Clock, *, patience_ns: int = LEFTOVER_PATIENCE_NS) -> bool:
    """Stop what an interrupted boot left behind, by its `identity`. True if anything of it was there.

    Raises EngineFailed if it will not go. An external engine is never stopped.
    """
    kind = identity.get("launcher")
    if kind in ("docker", "podman"):
        return await stop_left_container(identity, clock, patience_ns=patience_ns)
    if kind == "command":
        return await stop_left_hooked(identity, clock, patience_ns=patience_ns)
    if kind == "process":
        return await stop_left_process(identity, clock, patience_ns=patience_ns)
    return False
