"""Who listens on a port. A connection that is refused is not enough: with SO_REUSEPORT servers share a port.

On Linux the kernel is asked (sock_diag, /proc/PID/fd). Elsewhere who listens is not known: None.
"""

import contextlib
import os
import shutil
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

NET = Path("/proc/net")


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: its address, the number of its socket, the user that it belongs to."""

    address: str
    port: int
    inode: int
    uid: int


def resolve(host: str) -> str:
    """An address of this host. Raises OSError or UnicodeError where it has none of the kind that we connect to."""
    return str(socket.getaddrinfo(host, 0, _family(host), socket.SOCK_STREAM)[0][4][0])


def free_port(host: str) -> int:
    """A port of this host that nothing has bound now."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_refuses(host: str, port: int) -> bool:
    """Nothing accepts connections there. A bind would not prove it: servers with SO_REUSEPORT share a port."""
    with socket.socket(_family(host)) as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) != 0


def find_program(program: str, cwd: Path) -> str | None:
    """The file that would be run for argv[0], or None: on PATH, or a path from `cwd`."""
    if "/" in program:
        path = cwd / program
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(program)


def listeners(port: int, net: Path = NET, *, bound: bool = False) -> list[Listener] | None:
    """All sockets that listen on a port, on any address. None: not visible here.

    `bound` adds those that have the port and do not listen yet, as an engine that loads its model (Linux 6.8 and
    later). `net` is the folder of another network namespace.
    """
    if net == NET:
        with contextlib.suppress(OSError, AttributeError, struct.error):
            return _ask_kernel(port, _LISTENS | _IS_BOUND if bound else _LISTENS)
    return _read_tables(port, net)


# linux/inet_diag.h: a question of 56 bytes behind a header of 16, answers of 72 behind theirs.
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI2s2s44x")
_ANSWER = struct.Struct("=BBxx2s2s16s16s12x12xII")
_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_DONE, _ERROR = 3, 2
_LISTENS, _IS_BOUND = 1 << 10, 1 << 13


def _ask_kernel(port: int, states: int) -> list[Listener]:
    """By netlink, for the text of /proc/net/tcp walks a table of all that could be connected: 60 ms of one core."""
    found: list[Listener] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as asking:
        asking.settimeout(5)
        for family in (socket.AF_INET, socket.AF_INET6):
            question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, states, struct.pack("!H", port), b"\0\0")
            asking.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _DUMP, family, 0) + question)
            more = True
            while more:
                answer = asking.recv(1 << 16)
                at = 0
                while at < len(answer):
                    length, kind, *_ = _HEADER.unpack_from(answer, at)
                    if kind == _ERROR:
                        raise OSError("the kernel does not answer")
                    if kind == _DONE:
                        more = False
                        break
                    _, _, source, _, address, _, uid, inode = _ANSWER.unpack_from(answer, at + _HEADER.size)
                    if int.from_bytes(source) == port:
                        text = socket.inet_ntop(family, address[:4] if family == socket.AF_INET else address)
                        found.append(Listener(text, port, inode, uid))
                    at += (length + 3) & ~3
    return found


def _read_tables(port: int, net: Path) -> list[Listener] | None:
    found: list[Listener] = []
    seen_a_table = False
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        seen_a_table = True
        for line in lines:
            fields = line.split()
            address, _, hexadecimal = fields[1].rpartition(":")
            if fields[3] == "0A" and int(hexadecimal, 16) == port:
                found.append(Listener(_address(address), port, int(fields[9]), int(fields[7])))
    return found if seen_a_table else None


def sockets_of(pid: int) -> set[int] | None:
    """The numbers of a process's sockets; None where we may not see them."""
    found: set[int] = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(descriptor.readlink())
            except FileNotFoundError:  # closed meanwhile
                continue
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    except OSError:
        return None
    return found


def listening_pid(found: Iterable[Listener], pids: Iterable[int]) -> tuple[int | None, bool]:
    """The first of these processes that has one of the sockets, and whether all that were asked could be seen."""
    wanted = {listener.inode for listener in found}
    all_seen = True
    for pid in pids:
        sockets = sockets_of(pid)
        if sockets is None:
            all_seen = all_seen and not Path(f"/proc/{pid}").exists()
        elif sockets & wanted:
            return pid, True
    return None, all_seen


def describe(listener: Listener) -> str:
    """A listener in words: `nginx (pid 812) on 0.0.0.0:8000`. Asks every process that may be seen."""
    address = f"[{listener.address}]" if ":" in listener.address else listener.address
    where = f"on {address}:{listener.port}"
    pid, _ = listening_pid([listener], psutil.pids())
    if pid is None:
        return f"a process of user {listener.uid} that we may not see, {where}"
    return f"{name_of(pid)} (pid {pid}) {where}"


def name_of(pid: int) -> str:
    """What a process calls itself, at most 15 characters."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "a process"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _address(hexadecimal: str) -> str:
    """The kernel prints an address as 32-bit words in the machine's byte order."""
    words = [bytes.fromhex(hexadecimal[at : at + 8])[::-1] for at in range(0, len(hexadecimal), 8)]
    packed = b"".join(words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
