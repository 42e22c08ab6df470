"""Secrets in every place where a client or an engine can put one, and a search for them in all that is left behind.

Each secret names its place, so a failure says where the leak is. In mode `full` the text of request bodies is stored
and nothing else; in the other modes nothing.
"""

import asyncio
import io
import re
import shutil
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from hard_traffic import PATIENCE_S, Recording, RefusedError, close, recording, until

from profiles.captures import Capture, read_capture
from profiles.files import FILE_MODE, FOLDER_MODE

_LEAK = re.compile(rb"seeded-([a-z0-9-]+?)-7f3a", re.IGNORECASE)

pytestmark = pytest.mark.process


def secret(place: str) -> str:
    return f"SEEDED-{place}-7f3a"


def leaks(data: bytes) -> set[str]:
    """The places whose secret is in these bytes."""
    return {place.decode().lower() for place in _LEAK.findall(data)}


CREDENTIALS = """authorization api-key x-api-key x-auth-token proxy-authorization cookie user-agent referer origin
    accept x-forwarded-for x-real-ip x-request-id x-session-id x-user-id openai-organization openai-project
    anthropic-beta traceparent baggage if-none-match from""".split()


def asking_head(path: str, body: bytes, *more: str) -> bytes:
    lines = [f"POST {path}?api_key={secret('query')}&{secret('query-name')}=1 HTTP/1.1", "Host: engine"]
    lines += [f"{name}: Bearer {secret(f'header-{name}')}" for name in CREDENTIALS]
    lines += [f"X-{secret('header-name')}: 1", f"Content-Type: application/json; note={secret('header-content-type')}"]
    lines += [f"Content-Length: {len(body)}", "Connection: close", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def asked(**more: Any) -> dict[str, Any]:
    """A body with secrets in every field that may hold words of a person."""
    schema = {"type": "object", "title": secret("body-schema"), "properties": {secret("body-schema-key"): {}}}
    function = {"name": secret("body-tool"), "description": secret("body-tool-text"), "parameters": schema}
    call = {
        "id": secret("body-call-id"),
        "type": "function",
        "function": {"name": secret("body-call"), "arguments": "{}"},
    }
    parts = [
        {"type": "text", "text": secret("body-part")},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{secret('body-image')}"}},
        {"type": secret("body-part-type"), "text": secret("body-part-unknown")},
    ]
    messages = [
        {"role": "system", "content": secret("body-system")},
        {"role": "user", "name": secret("body-name"), "content": parts},
        {"role": "assistant", "content": secret("body-assistant"), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": secret("body-call-id"), "content": secret("body-tool-result")},
        {"role": secret("body-role"), "content": secret("body-last")},
    ]
    credentials = {"authorization": f"Bearer {secret('body-credential')}"}
    return {
        "model": "m",
        "stream": True,
        "max_tokens": 5,
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": secret("body-tool")}},
        "response_format": {"type": "json_schema", "json_schema": {"name": secret("body-schema"), "schema": schema}},
        "guided_json": schema,
        "guided_regex": secret("body-regex"),
        "guided_choice": [secret("body-choice")],
        "guided_grammar": secret("body-grammar"),
        "structured_outputs": {"choice": [secret("body-choice")]},
        "stop": [secret("body-stop")],
        "user": secret("body-user"),
        "safety_identifier": secret("body-safety"),
        "prompt_cache_key": secret("body-cache-key"),
        "cache_salt": secret("body-cache-salt"),
        "session_id": secret("body-session"),
        "previous_response_id": secret("body-previous"),
        "metadata": {"headers": credentials, secret("body-metadata-key"): secret("body-metadata")},
        "extra_headers": credentials,
        "reasoning_effort": secret("body-effort"),
        "service_tier": secret("body-tier"),
        "chat_template": secret("body-template"),
        "chat_template_kwargs": {secret("body-template-key"): secret("body-template-value")},
        "logit_bias": {secret("body-bias"): 1},
        secret("body-field"): 1,
        **more,
    }


LEAKY_HEAD = (
    f"Set-Cookie: id={secret('answer-cookie')}\r\nX-Engine: {secret('answer-header')}\r\n"
    f"Location: /{secret('answer-location')}\r\nWWW-Authenticate: {secret('answer-authenticate')}\r\n"
).encode()
ERROR = {
    "message": secret("answer-error"),
    "type": f"invalid {secret('answer-error-type')}",
    "code": secret("answer-error-code"),
    "param": secret("answer-error-param"),
}


def answered(body: bytes, *, status: str = "200 OK", form: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {form}; note={secret('answer-content-type')}\r\n".encode()
    return head + LEAKY_HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def stream_of(*events: Any) -> bytes:
    body = b"".join(
        b"event: %s\ndata: %s\n\n" % (secret("answer-event").encode(), orjson.dumps(event)) for event in events
    )
    return answered(
        b": %s\n\n" % secret("answer-comment").encode() + body + b"data: [DONE]\n\n", form="text/event-stream"
    )


def choice(**more: Any) -> dict[str, Any]:
    return {
        "id": secret("answer-id"),
        "model": secret("answer-model"),
        "system_fingerprint": secret("answer-fingerprint"),
        "choices": [{"index": 0, "finish_reason": None, **more}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, secret("answer-usage"): 1},
    }


CALL = {"index": 0, "function": {"name": secret("answer-tool"), "arguments": secret("answer-arguments")}}
STREAM = stream_of(
    choice(delta={"role": secret("answer-role"), "content": secret("answer-text")}),
    choice(delta={"reasoning_content": secret("answer-reasoning"), "tool_calls": [CALL]}),
    choice(delta={}, finish_reason="stop", stop_reason=secret("answer-stop")),
)
ODD_FINISH = stream_of(choice(delta={"content": "x"}, finish_reason=secret("answer-finish")))
BROKEN_STREAM = stream_of(choice(delta={"content": "x"}), {"error": ERROR}) + b"data: {"
WHOLE = answered(
    orjson.dumps(choice(message={"role": "assistant", "content": secret("answer-text")}, finish_reason="stop"))
)
MESSAGE = answered(orjson.dumps({"type": "message", "content": [{"type": "text", "text": secret("answer-text")}],
                                 "stop_reason": "stop_sequence", "stop_sequence": secret("answer-stop")}))  # fmt: skip
REFUSED = answered(orjson.dumps({"error": ERROR}), status=f"400 {secret('answer-reason')}")
REFUSED_IN_WORDS = [
    answered(secret("answer-words").encode(), status="500 X", form="text/plain"),
    *(
        answered(orjson.dumps(said), status="422 X")
        for said in (
            {"error": secret("answer-error-string")},
            {"error": {"code": secret("answer-error-only-code")}},
            {"error": {"status": secret("answer-error-status")}},
            {"detail": [{"type": secret("answer-detail-type"), "input": secret("answer-detail"), "msg": "x"}]},
            {"object": "error", "message": secret("answer-message"), "type": secret("answer-error-type"), "code": 400},
        )
    ),
]


OK = b"HTTP/1.1 200 OK\r\n"


def posted(path: str, body: bytes, *more: str) -> bytes:
    return asking_head(path, body, *more) + body


def requests() -> list[tuple[bytes, bytes]]:
    """What a client sends and what the engine answers: all of it goes through."""
    chat, plain = orjson.dumps(asked()), orjson.dumps(asked(stream=False))
    path = f"/{secret('path-prefix')}/v1/chat/completions"
    text = secret("body-prompt")
    words = {name: secret(f"wire-answer-{name}").encode() for name in "status header chunk length noise".split()}
    garbled = [
        b"HTTP/9.9 abc " + words["status"] + b"\r\n\r\n",
        OK + words["header"] + b"\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + words["chunk"] + b"\r\n",
        OK + b"Content-Length: " + words["length"] + b"\r\n\r\n",
        words["noise"] * 9,
        b"",
    ]
    return [
        (posted("/v1/chat/completions", chat), STREAM),
        (posted(path, chat), STREAM),
        (posted("/v1/chat/completions", chat), ODD_FINISH),
        (posted("/v1/chat/completions", chat), BROKEN_STREAM),
        (posted("/v1/chat/completions", plain), WHOLE),
        (posted("/v1/chat/completions", plain), REFUSED),
        *((posted("/v1/chat/completions", plain), answer) for answer in REFUSED_IN_WORDS),
        (posted("/v1/chat/completions", orjson.dumps(asked(response_format={"type": secret("body-format")}))), STREAM),
        (posted("/v1/completions", orjson.dumps({"model": "m", "prompt": [text, text], "suffix": text})), WHOLE),
        (posted("/v1/embeddings", orjson.dumps({"model": "m", "input": [text, text]})), WHOLE),
        (posted("/v1/responses", orjson.dumps({"model": "m", "input": text, "instructions": text})), WHOLE),
        (posted("/v1/messages", orjson.dumps(asked(system=text, metadata={"user_id": text}, stream=False))), MESSAGE),
        # Bodies that cannot be read as JSON; the first breaks off at the secret, as an error message might quote it.
        (posted("/v1/chat/completions", b'{"model": "m", "prompt": %s' % text.encode()), REFUSED),
        (posted("/v1/chat/completions", b'{"prompt": "\xff%s"}' % text.encode()), REFUSED),
        (posted("/v1/chat/completions", b'["%s"]' % text.encode()), REFUSED),
        (posted("/v1/chat/completions", orjson.dumps({"model": {text: 1}, "messages": {text: text}})), REFUSED),
        # Not recorded, only passed on.
        (posted(f"/v1/files/{secret('path-other')}", chat), WHOLE),
        (posted(f"/{secret('path-other')}", chat), STREAM),
        # An engine that does not speak HTTP well.
        *((posted("/v1/chat/completions", chat), answer) for answer in garbled),
    ]


def client_hello() -> bytes:
    """The first bytes of a client that speaks TLS, with a secret as the name of the server."""
    context = ssl.create_default_context()
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=f"{secret('wire-server-name')}.example")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def malformed() -> list[bytes]:
    """What no engine ever sees."""
    chat = b"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\n"
    chunked = chat + b"Transfer-Encoding: chunked\r\n\r\n"
    words = {
        place: secret(f"wire-{place}").encode() for place in "line header chunk length host large path both".split()
    }
    return [
        words["line"] + b"\r\n\r\n",
        b"POST " + words["path"] + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions?" + words["path"] + b" HTTP/7.7\r\n\r\n",
        chat + words["header"] + b"\r\n\r\n",
        chat + b"bad name: " + words["header"] + b"\r\n\r\n",
        chat + b"x: a\x00" + words["header"] + b"\r\n\r\n",
        chat + b"Content-Length: " + words["length"] + b"\r\n\r\n",
        chat + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nX: " + words["both"] + b"\r\n\r\n",
        chat + b"Transfer-Encoding: " + words["both"] + b"\r\n\r\n",
        chunked + words["chunk"] + b"\r\n",
        chunked + b"5\r\n" + words["chunk"] + b"\r\n",
        chunked + b"5;" + words["chunk"] + b"\r\n12345\r\n0\r\n" + words["chunk"] + b": trailer\r\n\r\n",
        chat + b"X: " + words["large"] * 20_000 + b"\r\n\r\n",
        b"CONNECT " + words["host"] + b":443 HTTP/1.1\r\nHost: " + words["host"] + b"\r\n\r\n",
        b"GET http://" + words["host"] + b"/ HTTP/1.1\r\nHost: " + words["host"] + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + words["line"],
        client_hello(),
        b"\x16\x03\x01\x00\x50" + words["line"] * 4,
        b"\x16\x03\x03\xff\xff\x01" + words["line"] * 4,
        b"\x00\xff" + words["line"],
    ]


class Engine:
    """Answers each request with the bytes that are set, and closes."""

    def __init__(self) -> None:
        self.port = 0
        self.answer = b""
        self.seen = b""

    async def __aenter__(self) -> "Engine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            self.seen += head + await reader.readexactly(int(length[1]) if length else 0)
            writer.write(self.answer)
            await writer.drain()
        await close(writer)


async def send(port: int, data: bytes, *, leave: bool = False) -> bytes:
    """All that comes back for some bytes. With `leave` the client says at once that it has nothing more to say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    with suppress(ConnectionError):
        writer.write(data)
        if leave:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    await close(writer)
    return answer


@dataclass
class Left:
    """What a recorder left behind."""

    capture: Capture
    files: dict[str, set[str]] = field(default_factory=dict)  # name: places whose secret is in it
    said: set[str] = field(default_factory=set)
    text: str = ""

    @property
    def leaked(self) -> dict[str, set[str]]:
        return {name: places for name, places in self.files.items() if places}


def left_by(out: Path, run: Recording) -> Left:
    left = Left(read_capture(out), said=leaks((run.stdout + run.stderr).encode()), text=run.stderr)
    for path in sorted(out.rglob("*")):
        assert path.is_file()
        assert path.stat().st_mode & 0o777 == FILE_MODE, path
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        left.files[path.name] = leaks(data) | leaks(path.name.encode())
    assert out.stat().st_mode & 0o777 == FOLDER_MODE
    return left


async def record_all(out: Path, *options: str, faults: Path | None = None) -> Left:
    """Everything once, through one recorder."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        metrics_port = probe.getsockname()[1]
    options = (*options, "--metrics-listen", f"127.0.0.1:{metrics_port}")
    async with Engine() as engine, recording(engine.port, out, *options, path=[faults] if faults else ()) as run:
        for data, engine.answer in requests():
            await send(run.port, data)
        places = leaks(engine.seen)
        assert {"query", "header-authorization", "header-cookie", "body-prompt", "path-prefix"} <= places
        engine.answer = WHOLE
        for data in malformed():
            await send(run.port, data, leave=True)
        page = await send(metrics_port, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"firsttoken_" in page
        # A client that leaves in mid-upload, and one that is cut off by the end of the recorder.
        whole = posted("/v1/chat/completions", orjson.dumps(asked()))
        await send(run.port, whole[:-100], leave=True)
        engine.answer = STREAM[:-200]
        task = asyncio.ensure_future(send(run.port, whole))
        seen = len(engine.seen)
        await until(lambda: len(engine.seen) > seen, "the last request")
        assert await run.stop(signal.SIGTERM) == 0
        await task
    left = left_by(out, run)
    left.files["/metrics"] = leaks(page)
    return left


RECORDED = sum(b"/v1/files/" not in data and not data.startswith(b"POST /SEEDED-path-other") for data, _ in requests())


@pytest.fixture(scope="module")
def without_bodies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Left]:
    out = tmp_path_factory.mktemp("none") / "c"
    return out, asyncio.run(record_all(out))


def test_no_secret_is_in_any_file_or_in_what_is_said(without_bodies: tuple[Path, Left]) -> None:
    check_silence(without_bodies[1])


def test_hashes_of_bodies_hold_no_secret(tmp_path: Path) -> None:
    check_silence(asyncio.run(record_all(tmp_path / "c", "--bodies", "hashed", "--tenants")))


def check_silence(left: Left) -> None:
    assert len(left.capture.exchanges) >= RECORDED
    assert left.leaked == {}
    assert left.said == set()
    assert "Traceback" not in left.text


def test_full_bodies_are_bodies_and_nothing_else(tmp_path: Path) -> None:
    left = asyncio.run(record_all(tmp_path / "c", "--bodies", "full"))
    segments = {name: places for name, places in left.leaked.items() if name.startswith("segment-")}
    assert left.leaked == segments
    stored = set().union(*segments.values())
    assert {"body-part", "body-prompt", "body-tool", "body-metadata"} <= stored
    # The bodies of malformed requests are on the wire as well.
    assert {place for place in stored if not place.startswith("body-")} == set()
    assert left.said == set()
    assert "Traceback" not in left.text


FAULTY = """
import capture.redact
import profiles.stream

def quote(*arguments, **named):
    raise RuntimeError(f"cannot read {arguments!r} {named!r}")

capture.redact.read_body = quote
profiles.stream.ResponseReader.feed = quote
"""


def test_a_fault_of_the_recorder_quotes_nothing(tmp_path: Path) -> None:
    """Its exceptions quote what they could not read, as those of libraries do."""
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / "sitecustomize.py").write_text(FAULTY)
    left = asyncio.run(record_all(tmp_path / "c", faults=faults))
    assert sum(left.capture.manifest["errors"].values()) >= 2
    check_silence(left)


def refusal(out: Path) -> str:
    """Why a recorder does not start."""
    with pytest.raises(RefusedError) as refused:
        asyncio.run(record_nothing(out))
    code, said = refused.value.args
    assert code == 2, said
    assert "Traceback" not in said
    return str(said)


async def record_nothing(out: Path) -> None:
    async with Engine() as engine, recording(engine.port, out) as run:
        assert await run.stop() == 0


def test_a_symbolic_link_is_no_place_to_record(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    assert "link" in refusal(tmp_path / "link")
    assert list(target.iterdir()) == []


def plant_segment(out: Path, victim: Path) -> None:
    (out / "segment-000009.jsonl").symlink_to(victim)


def plant_manifest(out: Path, victim: Path) -> None:
    (out / "manifest.json").rename(victim)
    (out / "manifest.json").symlink_to(victim)


@pytest.mark.parametrize("plant", [plant_segment, plant_manifest])
def test_a_link_inside_a_capture_is_not_followed(
    tmp_path: Path, without_bodies: tuple[Path, Left], plant: Callable[[Path, Path], None]
) -> None:
    """Recorders often run with more rights than whoever may write to their directory."""
    out, victim = tmp_path / "c", tmp_path / "victim"
    shutil.copytree(without_bodies[0], out)
    victim.write_bytes(b"keep\nthis, which has no newline")
    plant(out, victim)
    before = victim.read_bytes()
    refusal(out)
    assert victim.read_bytes() == before
