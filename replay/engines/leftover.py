"""What a killed program left of an engine of the launcher `process`: written down while it lives, found again by it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.errors import EngineFailed
from replay.clock import Clock
from replay.engines.family import end, recall
from replay.engines.proc_stat import host_boot


def identity_of(
    marker: str, log: Path, since: float, host: str, port: int, members: tuple[tuple[int, float], ...]
) -> dict[str, Any]:
    """Enough to find it again. `members` are pids with their starts, as far as they are known."""
    return {
        "launcher": "process",
        "host_boot": host_boot(),
        "marker": marker,
        "log": str(log),
        "since": since,
        "host": host,
        "port": port,
        "members": [list(member) for member in members],
    }


async def stop_leftover(identity: Mapping[str, Any], clock: Clock, *, patience_ns: int) -> bool:
    """End what an interrupted boot left alive. True if there was anything. Raises EngineFailed if it will not go."""
    if identity.get("host_boot") != host_boot():
        return False
    family = recall(identity)
    if not family.members():
        return False
    await end(family, clock, patience_ns=patience_ns)
    left = family.look(thorough=True)
    if left:
        raise EngineFailed(
            f"what an interrupted boot left will not go: {', '.join(map(str, left))}", diagnosis="not_stopped"
        )
    return True
