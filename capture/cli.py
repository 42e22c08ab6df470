"""`firsttoken record`."""

import asyncio
import errno
import ipaddress
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from profiles.errors import FirsttokenError, UsageError


class Address(NamedTuple):
    """A TCP address. Printed as host:port, an IPv6 host in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@click.command("record", short_help="Record the traffic in front of an engine.")
@click.option("--upstream", required=True, metavar="URL", help="The engine, such as http://127.0.0.1:8000.")
@click.option(
    "--listen",
    default="127.0.0.1:8100",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients connect instead. Port 0 takes a free one.",
)
@click.option(
    "--out",
    required=True,
    metavar="CAPTURE",
    type=click.Path(path_type=Path),
    help="Directory of the capture: a new one, or one to go on with.",
)
@click.option(
    "--bodies",
    type=click.Choice(["none", "full"]),
    default="none",
    show_default=True,
    help="full keeps each request body as sent, prompts included. Arms with speculative or guided decoding need it.",
)
def record(upstream: str, listen: str, out: Path, bodies: str) -> None:
    """Pass requests on to an engine and write down their instants, lengths and outcomes.

    Point the clients at --listen. Responses stream through untouched. By default neither text nor header values are
    stored. Stop with Ctrl-C; the path of the capture is printed on stdout.

    \b
    Example:
      firsttoken record --upstream http://127.0.0.1:8000 --listen 127.0.0.1:8100 --out CAPTURE
    """
    from capture.journal import check_folder

    url, engine = parse_upstream(upstream)
    door = parse_listen(listen)
    if door == engine:
        raise UsageError(f"--listen and --upstream are both {door}", "Let the recorder listen on another port.")
    check_folder(out)
    check_free(door)
    if not _is_loopback(door.host):
        _say(f"Warning: {door} may be reached from other machines, and so may the engine through it.")
    if not _answers(engine):
        _say(f"Warning: nothing answers at {engine} yet. Recording starts anyway; clients get a 502 until it does.")

    asyncio.run(_record(url, door, out, bodies))


async def _record(url: str, door: Address, out: Path, bodies: str) -> None:
    from capture.proxy import run_proxy
    from capture.session import Session

    session = Session(out, upstream=url, bodies=bodies)
    stored = "no text is stored" if bodies == "none" else "request bodies are stored as sent"

    def on_listening(listen: str) -> None:
        _say(f"Recording http://{listen} -> {url} into {out}; {stored}. Stop with Ctrl-C.")

    await run_proxy(session, door.host, door.port, on_listening)
    counts = session.recorder.counts
    lost = ", ".join(f"{number} {reason}" for reason, number in counts.dropped.items()) or "none"
    _say(
        f"Recorded {counts.written} of {counts.requests} requests, at most {counts.max_in_flight} in flight; "
        f"dropped: {lost}; {counts.passed_through} other requests passed through."
    )
    if counts.errors:
        faults = ", ".join(f"{number} x {fault}" for fault, number in counts.errors.items())
        _say(f"Warning: faults of the recorder: {faults}. Traffic was not affected.")
    click.echo(str(out))


def parse_upstream(text: str) -> tuple[str, Address]:
    """The engine's scheme://host:port, and its address. Raises UsageError."""
    hint = "Write it as http://HOST:PORT, without a path: paths are passed on as clients send them."
    wrong = UsageError(f"--upstream {text!r} is not the address of an engine", hint)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise wrong
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None or port == 0:
        raise wrong
    address = Address(parts.hostname, port or (443 if parts.scheme == "https" else 80))
    return f"{parts.scheme}://{address}", address


def parse_listen(text: str) -> Address:
    """The address to listen on. Raises UsageError."""
    wrong = UsageError(f"--listen {text!r} is not an address", "Write it as HOST:PORT, such as 127.0.0.1:8100.")
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        raise wrong from None
    if not parts.hostname or port is None or parts.netloc != text or parts.username is not None:
        raise wrong
    return Address(parts.hostname, port)


def check_free(door: Address) -> None:
    """Raise FirsttokenError unless this address can be listened on now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except socket.gaierror:
        raise UsageError(f"--listen {door.host!r} is not a host of this machine") from None
    except OSError as problem:
        hint = "Stop what listens there, or give another address with --listen."
        if problem.errno == errno.EADDRINUSE:
            raise FirsttokenError(f"{door} is already in use", hint) from None
        raise FirsttokenError(f"cannot listen on {door} ({problem.strerror})", hint) from None


def _answers(engine: Address) -> bool:
    try:
        with socket.create_connection(engine, timeout=2):
            return True
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _say(text: str) -> None:
    click.echo(text, err=True)
