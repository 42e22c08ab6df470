"""TLS on either side of the recorder: whom it trusts, what it shows, and that no byte is lost when a side closes."""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from raw_http import (
    CHUNKED,
    JSON,
    SSE,
    Engine,
    Lab,
    Message,
    Wire,
    answer,
    ask,
    check_alike,
    digest,
    get,
    head_of,
    post,
    recording,
    streamed,
)

pytestmark = pytest.mark.process

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = (TOKEN, LAST, DONE)


class Authority:
    """A private certificate authority with its files in one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a private authority")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = self._builder(self._name, self._key).add_extension(usage, critical=True)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        self._cert = made.sign(self._key, hashes.SHA256())
        self.path = folder / "ca.pem"
        self.path.write_bytes(self._cert.public_bytes(Encoding.PEM))

    def issue(self, *names: str) -> Path:
        """Key and chain for these names, in one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        made = self._builder(subject, key).add_extension(
            x509.SubjectAlternativeName([_general(name) for name in names]), critical=False
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        cert = made.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        path = self._folder / f"{names[0]}.pem"
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(secret + cert.public_bytes(Encoding.PEM) + self._cert.public_bytes(Encoding.PEM))
        path.chmod(0o600)
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        return made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=2))


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def server_side(cert: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert)
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_side(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.path))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def secure_lab(authority: Authority, out: Path, *options: str, name: str = "127.0.0.1") -> Iterator[Lab]:
    """An engine behind TLS, called by an address, that shows a certificate for `name`."""
    with (
        Engine(server_side(authority.issue(name))) as engine,
        recording(f"https://127.0.0.1:{engine.port}", out, *options) as recorder,
    ):
        engine.on("chat", streamed(STREAM, SSE))
        engine.on("health", answer(b"{}", JSON))
        yield Lab(engine, recorder)


@pytest.fixture(scope="module")
def lab(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """TLS on both sides, each with the private authority."""
    certs = authority.issue("localhost", "127.0.0.1")
    options = ("--ca", str(authority.path), "--certs", str(certs))
    with secure_lab(authority, tmp_path_factory.mktemp("tls") / "c", *options) as lab:
        yield lab


def test_tls_on_both_sides_passes_the_same_bytes(lab: Lab, authority: Authority) -> None:
    tls = client_side(authority)
    for request in (post("chat"), get("health")):
        check_alike(ask(lab.recorder.port, request, tls), ask(lab.engine.port, request, tls))
    direct, through = lab.engine.seen["chat"]
    assert (through.start, through.body) == (direct.start, direct.body)
    record = lab.recorder.record_of("chat")
    assert (record.outcome, record.response.token_events) == ("ok", 1)


def test_a_client_sees_the_certificate_that_was_given(lab: Lab, authority: Authority) -> None:
    with Wire.to(lab.recorder.port, client_side(authority), "localhost") as client:
        assert isinstance(client.sock, ssl.SSLSocket)
        shown = client.sock.getpeercert()
        assert client.sock.selected_alpn_protocol() in (None, "http/1.1")
    assert shown is not None
    assert ("DNS", "localhost") in shown["subjectAltName"]


def test_a_client_that_speaks_no_tls_is_turned_away(lab: Lab, authority: Authority) -> None:
    with Wire.to(lab.recorder.port) as client:
        client.send(get("health", (b"connection", b"close")))
        said = client.rest()
    assert b"HTTP/" not in said
    assert ask(lab.recorder.port, get("health"), client_side(authority)).status == 200


def test_a_body_whose_sender_closes_at_once_is_whole_or_marked(lab: Lab, authority: Authority) -> None:
    pieces = (b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % (b"x" * (2 << 20)), LAST, DONE)
    sent = head_of(b"HTTP/1.1 200 OK", (SSE, CHUNKED, (b"connection", b"close")))
    sent += b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    def send_and_close(wire: Wire, _: Message) -> None:
        wire.send(sent)
        wire.close()

    lab.engine.on("huge", send_and_close)
    tls = client_side(authority)
    for _ in range(20):
        answered = ask(lab.recorder.port, post("huge", (b"connection", b"close")), tls)
        assert digest(answered.body) == digest(b"".join(pieces))
    records = lab.recorder.records_of("huge", 20)
    assert {(record.outcome, record.response.body_bytes) for record in records} == {("ok", sum(map(len, pieces)))}
    assert {record.in_flight for record in records} == {0}


@pytest.mark.parametrize(
    ("trusted", "name"), [(False, "127.0.0.1"), (True, "engine.example")], ids=["unknown authority", "other name"]
)
def test_an_engine_that_is_not_who_it_should_be_is_refused(
    authority: Authority, tmp_path: Path, trusted: bool, name: str
) -> None:
    options = ("--ca", str(authority.path)) if trusted else ()
    with secure_lab(authority, tmp_path / "c", *options, name=name) as lab:
        refused = lab.ask(post("chat"))
        assert (refused.status, refused.first(b"content-type")) == (502, b"application/json")
        assert "error" in orjson.loads(refused.body)
        record = lab.recorder.records(lambda record: True)[0]
        assert (record.status, record.outcome, record.origin) == (502, "error", "engine")
        assert record.reason == "engine's certificate not accepted"
        assert "chat" not in lab.engine.seen  # the request, and its key, went nowhere


def test_a_certificate_is_taken_unseen_only_on_request(authority: Authority, tmp_path: Path) -> None:
    with secure_lab(authority, tmp_path / "c", "--insecure-upstream", name="engine.example") as lab:
        assert lab.ask(post("chat")).body == b"".join(STREAM)
        assert "not verified" in "".join(lab.recorder.said)
