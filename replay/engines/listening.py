"""Which of the sockets that listen on a port are an engine's own, by the processes that hold them."""

from collections.abc import Sequence
from typing import Final

import psutil

from replay.engines import ports
from replay.engines.family import Family, Member
from replay.engines.proc_stat import read_stat

# What forwards a published port of a container, where it can be seen.
FORWARDERS: Final = frozenset("docker-proxy rootlesskit rootlessport slirp4netns pasta pasta.avx2 conmon exe".split())


def owner_of(port: int, family: Family, found: Sequence[ports.Listener] | None = None) -> tuple[int, float] | None:
    """Pid and start of the member that listens; None where none does or none can be seen.

    `found` are the listeners, where they are not those of our own network.
    """
    found = ports.listeners(port) if found is None else found
    if not found:
        return None
    members = family.look()
    pid, _ = ports.listening_pid(found, [member.pid for member in members])
    return next(((member.pid, member.started) for member in members if member.pid == pid), None)


def owns(port: int, family: Family, found: Sequence[ports.Listener] | None = None) -> bool | None:
    """A member listens on the port; None where the system does not let us see. `found` as for `owner_of`."""
    found = ports.listeners(port) if found is None else found
    if found is None:
        return _owns_by_psutil(family.look(), port)
    pid, all_seen = ports.listening_pid(found, [member.pid for member in family.look()])
    return True if pid is not None else False if all_seen else None


def beside(port: int, family: Family, leader: int) -> list[tuple[ports.Listener, bool]]:
    """Listeners beside the engine's, and whether they came from it. `leader` is its first process."""
    found = ports.listeners(port) or []
    members = family.look()
    held = {member.pid: ports.sockets_of(member.pid) for member in members}
    if None in held.values():  # one of ours that we may not see could have any of them
        return []
    attached = _below(leader, members)
    near = {inode for pid, sockets in held.items() if pid in attached for inode in sockets or ()}
    far = {inode for sockets in held.values() for inode in sockets or ()} - near
    # The only listener is the engine's, wherever it went.
    ours = near if any(item.inode in near for item in found) else near | far
    # A member may have left between the two reads: a stranger is still there at the second look.
    again = {item.inode for item in ports.listeners(port) or []}
    return [(item, item.inode in far) for item in found if item.inode not in ours and item.inode in again]


def beside_container(port: int, family: Family | None, *, published: bool) -> list[str]:
    """Listeners beside a container's own, in words; beside what forwards the port to it where it is published."""
    held = [ports.sockets_of(member.pid) for member in family.look()] if family is not None else []
    unseen = family is None or None in held
    if unseen and not published:  # one of ours that we may not see could have any of them
        return []
    ours = {inode for sockets in held if sockets is not None for inode in sockets}
    others = [ports.describe(item) for item in ports.listeners(port) or [] if item.inode not in ours]
    if published:
        return [said for said in others if "may not see" not in said and said.split(" (pid ")[0] not in FORWARDERS]
    return others


def _below(leader: int, members: list[Member]) -> set[int]:
    """Those whose parents lead up to the leader."""
    parents = {member.pid: stat.parent for member in members if (stat := read_stat(member.pid)) is not None}
    found = {leader}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return found


def _owns_by_psutil(members: list[Member], port: int) -> bool | None:
    for member in members:
        try:
            connections = member.process.net_connections(kind="inet")
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            return None
        if any(item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in connections):
            return True
    return False
