"""`firsttoken record`."""

import errno
import ipaddress
import socket
import ssl
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from capture.settings import BODY_MODES, FULL, HASHED, NONE, Settings
from profiles.errors import FirsttokenError, UsageError
from profiles.units import HOUR_NS, MINUTE_NS

_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


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
    type=_PATH,
    help="Directory of the capture: a new one, or one to go on with.",
)
@click.option(
    "--bodies",
    type=click.Choice(BODY_MODES),
    default=NONE,
    show_default=True,
    help="none: lengths and parameters. hashed: and keyed hashes, which show shared prefixes and sessions."
    " full: request bodies as sent, prompts included; arms with speculative or guided decoding need them.",
)
@click.option(
    "--sample-bodies",
    type=click.FloatRange(0, 1),
    default=1.0,
    metavar="SHARE",
    help="Keep the bodies of this share of the sessions, 0 to 1. Concurrency stays exact.",
)
@click.option(
    "--hash-key",
    type=_FILE,
    metavar="FILE",
    help="Share this key with other recorders; without it the capture has its own.",
)
@click.option("--tenants", is_flag=True, help="Keep a keyed id of each client's API key.")
@click.option("--ca", type=_FILE, metavar="FILE", help="Trust this certificate authority for an https engine.")
@click.option("--insecure-upstream", is_flag=True, help="Do not verify the certificate of an https engine.")
@click.option(
    "--certs", type=_FILE, metavar="PEM", help="Clients speak TLS to us: key and certificate chain in one file."
)
@click.option(
    "--rotate-mb",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    metavar="MB",
    help="Begin a new segment after this size.",
)
@click.option(
    "--rotate-minutes",
    type=click.FloatRange(0, min_open=True),
    default=60,
    show_default=True,
    metavar="MIN",
    help="Begin a new segment after this time.",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(0, min_open=True),
    metavar="DAYS",
    help="Delete closed segments that are older.",
)
@click.option(
    "--keep-gb",
    type=click.FloatRange(0, min_open=True),
    metavar="GB",
    help="Delete the oldest closed segments beyond this size.",
)
@click.option("--metrics-listen", metavar="HOST:PORT", help="Serve Prometheus metrics here.")
@click.option("--quiet", is_flag=True, help="No live line and no summary.")
def record(upstream: str, listen: str, out: Path, **asked: Any) -> None:
    """Pass requests on to an engine and write down their instants, lengths and outcomes.

    Point the clients at --listen. Responses stream through untouched. By default neither text nor header values are
    stored. Stop with Ctrl-C; the path of the capture is printed on stdout.

    \b
    Example:
      firsttoken record --upstream http://127.0.0.1:8000 --out CAPTURE
      firsttoken record --upstream http://127.0.0.1:8000 --out CAPTURE \\
        --listen 127.0.0.1:8100 --bodies full

    Exit codes: 0 told to stop, 1 failure, 2 wrong usage or input.
    """
    from capture.journal import check_folder

    url, engine = parse_upstream(upstream)
    door = parse_address("--listen", listen)
    metrics = parse_address("--metrics-listen", asked["metrics_listen"]) if asked["metrics_listen"] else None
    if door == engine:
        raise UsageError(f"--listen and --upstream are both {door}", "Let the recorder listen on another port.")
    _check_together(url, door, metrics, asked)
    check_folder(out)
    for option, address in (("--listen", door), ("--metrics-listen", metrics)):
        if address is not None:
            check_free(option, address)
            if not _is_loopback(address.host):
                _say(f"Warning: {address} may be reached from other machines.")
    if asked["insecure_upstream"]:
        _say("Warning: the engine's certificate is not verified.")
    if not _answers(engine):
        _say(f"Warning: nothing answers at {engine} yet. Recording starts anyway; clients get a 502 until it does.")

    settings = Settings(
        folder=str(out.absolute()),
        upstream=url,
        listen=str(door),
        prefix=f"{time.time_ns():x}",
        bodies=asked["bodies"],
        hash_key=None if asked["hash_key"] is None else str(asked["hash_key"].absolute()),
        sample_bodies=asked["sample_bodies"],
        tenants=asked["tenants"],
        rotate_bytes=asked["rotate_mb"] * 1024 * 1024,
        rotate_ns=round(asked["rotate_minutes"] * MINUTE_NS),
        keep_ns=None if asked["keep_days"] is None else round(asked["keep_days"] * 24 * HOUR_NS),
        keep_bytes=None if asked["keep_gb"] is None else round(asked["keep_gb"] * 1e9),
        quiet=asked["quiet"],
        metrics_listen=None if metrics is None else str(metrics),
    )
    _record(settings, door, out, (asked["ca"], asked["insecure_upstream"], asked["certs"]))
    click.echo(str(out))


def _check_together(url: str, door: Address, metrics: Address | None, asked: dict[str, Any]) -> None:
    """Raise UsageError for options that make no sense together, or whose files are not what they should be."""
    if (asked["ca"] or asked["insecure_upstream"]) and not url.startswith("https:"):
        raise UsageError("--ca and --insecure-upstream are for an https engine", "Give --upstream an https:// URL.")
    if asked["bodies"] == NONE and asked["sample_bodies"] < 1:
        raise UsageError("--sample-bodies is for bodies that are kept", "Add --bodies hashed or --bodies full.")
    if asked["bodies"] == NONE and asked["hash_key"] and not asked["tenants"]:
        raise UsageError("--hash-key has nothing to do", "Add --bodies hashed, --bodies full or --tenants.")
    if metrics is not None and (metrics == door or metrics.port == 0):
        raise UsageError(f"--metrics-listen {metrics} cannot be used", "Give it a port of its own, such as 9108.")
    if asked["certs"]:
        check_certs(asked["certs"])
    if asked["ca"]:
        check_ca(asked["ca"])


def _record(settings: Settings, door: Address, out: Path, certificates: tuple[Path | None, bool, Path | None]) -> None:
    from capture.options import drop_type_checks

    drop_type_checks()
    from capture.proxy import Tls, run, run_proxy
    from capture.session import Session

    def on_listening(listen: str) -> None:
        _say(f"Recording {listen} -> {settings.upstream} into {out}; {_stored(settings)}. Stop with Ctrl-C.")
        if settings.metrics_listen is not None:
            _say(f"Metrics: http://{settings.metrics_listen}/metrics")

    sessions: list[Session] = []

    async def main() -> None:
        session = Session(settings)
        sessions.append(session)
        await run_proxy(session, settings.upstream, door.host, door.port, on_listening, Tls(*certificates))

    try:
        run(main)
    finally:
        for session in sessions:
            session.finish()


def _stored(settings: Settings) -> str:
    """What is kept of requests, in half a sentence."""
    said = {
        NONE: "no text is stored",
        HASHED: "keyed hashes are stored, no text",
        FULL: "request bodies are stored, known credentials removed",
    }[settings.bodies]
    if settings.sample_bodies < 1:
        said += f", of {settings.sample_bodies:.0%} of the sessions"
    return f"{said}, and a keyed id of each API key" if settings.tenants else said


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


def parse_address(option: str, text: str) -> Address:
    """An address to listen on. Raises UsageError."""
    wrong = UsageError(f"{option} {text!r} is not an address", "Write it as HOST:PORT, such as 127.0.0.1:8100.")
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        raise wrong from None
    if not parts.hostname or port is None or parts.netloc != text or parts.username is not None:
        raise wrong
    return Address(parts.hostname, port)


def check_free(option: str, door: Address) -> None:
    """Raise FirsttokenError unless this address can be listened on now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except socket.gaierror:
        raise UsageError(
            f"{option} {door.host!r} is not a host of this machine", "Give one of its addresses, such as 127.0.0.1."
        ) from None
    except OSError as problem:
        hint = f"Stop what listens there, or give another address with {option}."
        if problem.errno == errno.EADDRINUSE:
            raise FirsttokenError(f"{door} is already in use", hint) from None
        raise FirsttokenError(f"cannot listen on {door} ({problem.strerror})", hint) from None


def check_certs(path: Path) -> None:
    """Raise UsageError unless a PEM file holds a private key and its certificate chain."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    except (OSError, ssl.SSLError):
        raise UsageError(
            f"--certs {path} does not hold a private key and its certificate",
            "Put both into one PEM file, the key first: cat key.pem chain.pem > both.pem",
        ) from None


def check_ca(path: Path) -> None:
    """Raise UsageError unless a PEM file holds a certificate to trust."""
    try:
        found = ssl.create_default_context(cafile=str(path)).get_ca_certs()
    except (OSError, ssl.SSLError):
        found = []
    if not found:
        raise UsageError(
            f"--ca {path} holds no certificate of an authority",
            "Give the authority's certificate as PEM, the file that begins with -----BEGIN CERTIFICATE-----.",
        )


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
