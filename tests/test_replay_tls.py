"""The client over TLS: the certificate is checked, the instants are those of the reads."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from profiles.records import Outcome
from replay.client import Planned, Slot, Timeouts
from replay.clock import SystemClock, fine_event_loop
from replay.wire import StampedTransport

pytestmark = pytest.mark.process
ANSWER = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that signs itself, for 127.0.0.1 and nothing else, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an engine")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "engine.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def run[T](main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main, loop_factory=fine_event_loop)


async def ask(
    certificate: Path,
    *,
    times: int = 1,
    host: str = "127.0.0.1",
    trusted: bool = True,
    serves: int = 100,
    body: bytes = b"{}",
) -> tuple[list[Outcome], int]:
    """Outcomes and connections. The engine closes a connection after it has served so many requests on it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in range(serves):
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-len"))
                await reader.readexactly(length)
                for event in (HEAD, *(b"%x\r\n%s\r\n" % (len(event), event) for event in ANSWER), b"0\r\n\r\n"):
                    writer.write(event)
                    await writer.drain()
                    await asyncio.sleep(0.01)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    tls = ssl.create_default_context(cafile=str(certificate)) if trusted else None
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        clock = SystemClock()
        transport = StampedTransport(clock, tls=tls)
        slot = Slot(f"https://{host}:{port}", clock, timeouts=Timeouts(), transport=transport)
        outcomes = [
            await slot.send(Planned("w", 1, index, 0, "chat", "/v1/chat/completions", body)) for index in range(times)
        ]
        await slot.close()
        await asyncio.sleep(0.05)  # both sides say goodbye
    return outcomes, transport.connections


def test_the_instants_over_tls_are_those_of_the_reads(certificate: Path) -> None:
    (outcome,), _ = run(ask(certificate))
    facts = outcome.response
    assert (outcome.outcome, facts.token_events) == ("ok", 1)
    instants = [outcome.send_started_ns, outcome.send_done_ns, outcome.headers_ns, facts.first_token_ns, outcome.end_ns]
    known = [instant for instant in instants if instant is not None]
    assert len(known) == 5
    # The engine pauses between its writes: each of them is a read of its own, with an instant of its own.
    assert all(before < after for before, after in pairwise(known))
    assert facts.reads == 2


def test_a_connection_over_tls_is_kept(certificate: Path) -> None:
    """Session tickets, which an engine may send at any time, are no answer to anything."""
    outcomes, connections = run(ask(certificate, times=4))
    assert [(outcome.outcome, outcome.resent) for outcome in outcomes] == [("ok", 0)] * 4
    assert connections == 1


def test_a_connection_over_tls_that_the_engine_closed_is_not_used_again(certificate: Path) -> None:
    outcomes, connections = run(ask(certificate, times=3, serves=1))
    assert [outcome.outcome for outcome in outcomes] == ["ok"] * 3
    assert connections == 3


def test_a_large_body_goes_over_tls_whole(certificate: Path) -> None:
    (outcome,), _ = run(ask(certificate, body=b" " * 3_000_000))
    assert outcome.outcome == "ok"
    assert outcome.send_started_ns is not None
    assert outcome.send_done_ns is not None
    assert outcome.headers_ns is not None
    assert outcome.send_started_ns < outcome.send_done_ns <= outcome.headers_ns


@pytest.mark.parametrize(("host", "trusted"), [("127.0.0.1", False), ("localhost", True)])
def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path, host: str, trusted: bool) -> None:
    (outcome,), connections = run(ask(certificate, host=host, trusted=trusted))
    assert (outcome.outcome, outcome.origin, outcome.status) == ("error", "engine", None)
    assert outcome.reason is not None
    assert outcome.reason.startswith("cannot connect: TLS: ")
    assert connections == 0
