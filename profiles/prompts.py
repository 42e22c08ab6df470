"""The prompt inside a request body, whatever dialect it is written in. Text goes in and comes out: nothing is stored.

    chat, messages   messages[]: role, content (a string, or parts of text, images, tool results)
    responses        input: a string, or items that are messages, tool calls, results of tools
    completions      prompt: a string or a list of them
    embeddings       input: a string or a list of them

All functions accept any JSON. What is not in one of these forms counts as absent.
"""

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

# Larger bodies are not parsed; their size is still known. It also limits what a compressed body may grow to.
LONGEST_READ_BODY_BYTES = 64 * 1024 * 1024
# Messages and parts looked at. A body of 20 MB can hold a million of them, each a few bytes; no chat does.
MOST_PARTS = 20_000
_DEEPEST_PART = 16  # a tool result holds parts; those of a real request hold no others
_LARGEST_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024

ENCODINGS: Final = ("gzip", "deflate", "zstd", "br")


@dataclass(frozen=True, slots=True)
class Reading:
    """A request body, read. `plain` is the body without its content coding; None where it could not be undone.

    `document` is None where `unread` says why: the reason is from a fixed list and quotes nothing.
    """

    plain: bytes | None = None
    document: dict[str, Any] | None = None
    unread: str | None = None


class Medium(NamedTuple):
    """An image, an audio clip or a video in a message: its data in base 64, or the address that it is fetched from."""

    kind: str
    payload: str
    bytes: int | None  # size of the data; None where the engine fetches it
    at: int  # its place, in characters of the message's text


@dataclass(slots=True)
class Message:
    """One message: its role as the dialect means it, and its text joined."""

    role: str
    text: str
    media: list[Medium] = field(default_factory=list)
    source: Any = None  # the message as sent; None where the prompt is a bare string


@dataclass(slots=True)
class Prompt:
    """All that the engine is given to read, in the order in which a chat template lays it out."""

    system: str  # outside the list of messages: Anthropic's `system`, `instructions` of Responses
    tools: list[Any]
    messages: list[Message]
    cut: bool = False  # more than MOST_PARTS messages and parts: the rest was not looked at


def read_body(body: bytes | None, encoding: str = "") -> Reading:
    """Undo the content coding and parse. Never raises. `encoding` is one of ENCODINGS, or "" for none."""
    if not body:
        return Reading(body, unread="no body" if body is None else "empty body")
    if len(body) > LONGEST_READ_BODY_BYTES:
        return Reading(body if not encoding else None, unread=f"body larger than {LONGEST_READ_BODY_BYTES} bytes")
    if encoding:
        try:
            body = _decoded(body, encoding)
        except Exception:  # three libraries, each with errors of its own; none may pass
            return Reading(unread=f"broken {encoding} coding" if encoding in ENCODINGS else "unknown content coding")
        if body is None:
            return Reading(unread=f"{encoding} coding is not read" if encoding in ENCODINGS else "unknown coding")
        if len(body) > LONGEST_READ_BODY_BYTES:
            return Reading(unread=f"body larger than {LONGEST_READ_BODY_BYTES} bytes")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Reading(body, unread="not JSON")
    return Reading(body, document) if isinstance(document, dict) else Reading(body, unread="not a JSON object")


def _decoded(body: bytes, encoding: str) -> bytes | None:
    """At most one byte more than we read, so that a small body cannot fill the memory."""
    if encoding in ("gzip", "deflate"):
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # either header
        plain = inflate.decompress(body, LONGEST_READ_BODY_BYTES + 1)
        if len(plain) <= LONGEST_READ_BODY_BYTES and (not inflate.eof or inflate.unused_data):
            raise ValueError("cut short, or something follows")
        return plain
    if encoding == "zstd":
        import zstandard  # few clients compress requests

        reader = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW_BYTES)
        with reader.stream_reader(io.BytesIO(body)) as stream:
            return stream.read(LONGEST_READ_BODY_BYTES + 1)
    return None


def prompt_of(document: dict[str, Any]) -> Prompt:
    """The prompt of a request."""
    parts = _Parts(MOST_PARTS)
    system = parts.read(document.get("system")).text + parts.read(document.get("instructions")).text
    tools = document.get("tools") or document.get("functions")
    messages = list(parts.messages(document))
    return Prompt(system, tools if isinstance(tools, list) else [], messages, parts.left < 0)


@dataclass(slots=True)
class _Parts:
    """Reads messages until it has seen as many parts as it may."""

    left: int

    def messages(self, document: dict[str, Any]) -> Iterator[Message]:
        """Each message; a bare prompt or input is one message of the user."""
        listed = document.get("messages")
        if not isinstance(listed, list):
            listed = document.get("input")
        if not isinstance(listed, list):
            bare = self.read(document.get("prompt") or listed)
            if bare.text or bare.media:
                yield bare
            return
        for source in listed:
            self.left -= 1
            if self.left < 0:
                return
            if isinstance(source, str):  # a batch of inputs, as embeddings have
                yield Message("user", source)
            elif isinstance(source, dict):
                content = source.get("content")
                message = self.read(content or source.get("output") or source.get("text"))
                message.role = _role_of(source, content)
                message.source = source
                yield message

    def read(self, content: Any) -> Message:
        """A content value in any of its forms: a string, parts, parts inside parts."""
        if isinstance(content, str):
            return Message("user", content)
        texts: list[str] = []
        media: list[Medium] = []
        if isinstance(content, list):
            self._flatten(content, texts, media, 0)
        if len(texts) == 1:
            return Message("user", texts[0], media)
        return Message("user", "".join(texts), media)

    def _flatten(self, content: list[Any], texts: list[str], media: list[Medium], depth: int) -> None:
        for part in content:
            self.left -= 1
            if self.left < 0:
                return
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict):
                kind = _medium_of(part.get("type"))
                if kind is not None:
                    media.append(Medium(kind, *_payload_of(part), sum(map(len, texts))))
                inner = part.get("text", part.get("content"))
                if isinstance(inner, str):
                    texts.append(inner)
                elif isinstance(inner, list) and depth < _DEEPEST_PART:
                    self._flatten(inner, texts, media, depth + 1)


def _role_of(source: dict[str, Any], content: Any) -> str:
    role = source.get("role")
    if not isinstance(role, str):
        kind = source.get("type")  # items of Responses that are no messages
        if not isinstance(kind, str):
            return "user"
        if kind.endswith("_call_output"):
            return "tool"
        return "assistant" if kind == "reasoning" or kind.endswith("_call") else "user"
    if role == "user" and isinstance(content, list):
        parts = content[:MOST_PARTS]
        if any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts):
            return "tool"
    return role


def _medium_of(kind: Any) -> str | None:
    if not isinstance(kind, str) or kind in ("text", "input_text", "output_text"):
        return None
    for medium in ("image", "audio", "video"):
        if medium in kind:
            return medium
    return None


def _payload_of(part: dict[str, Any]) -> tuple[str, int | None]:
    """What identifies a medium, and the size of its data where it is sent along."""
    for key in ("image_url", "source", "input_audio", "audio_url", "video_url", "image", "file_id", "url", "data"):
        value = part.get(key)
        sent = key == "data"
        if isinstance(value, dict):
            sent = isinstance(value.get("data"), str)
            value = value["data"] if sent else value.get("url") or value.get("file_id")
        if isinstance(value, str):
            head, comma, data = value.partition(",") if value.startswith("data:") else ("", "", value)
            if sent or head.endswith(";base64"):
                return data, len(data) * 3 // 4 - data[-2:].count("=")
            return (data, len(data)) if comma else (value, None)
    return "", None


def calls_of(message: Message) -> Iterator[tuple[str, str]]:
    """Name and arguments of the tool calls that a message makes, without their ids, which differ from turn to turn."""
    source = message.source
    if not isinstance(source, dict):
        return
    if isinstance(source.get("tool_calls"), list):
        for call in source["tool_calls"][:MOST_PARTS]:
            if isinstance(call, dict) and isinstance(call.get("function"), dict):
                yield _call(call["function"], "arguments")
    if isinstance(source.get("function_call"), dict):
        yield _call(source["function_call"], "arguments")
    if source.get("type") == "function_call":
        yield _call(source, "arguments")
    if isinstance(source.get("content"), list):
        for part in source["content"][:MOST_PARTS]:
            if isinstance(part, dict) and part.get("type") == "tool_use":
                yield _call(part, "input")


def _call(source: dict[str, Any], arguments: str) -> tuple[str, str]:
    name, value = source.get("name"), source.get(arguments)
    if not isinstance(value, str):
        value = "" if value is None else (json_of(value) or b"").decode()
    return name if isinstance(name, str) else "", value


def constraint_of(document: dict[str, Any]) -> tuple[str, Any] | None:
    """The form that the answer must have: its kind as sent, and the schema, choices, expression or grammar."""
    wanted = document.get("response_format")
    if isinstance(wanted, dict) and isinstance(wanted.get("type"), str):
        schema = wanted.get("json_schema", wanted.get("schema"))
        return wanted["type"], schema.get("schema", schema) if isinstance(schema, dict) else schema
    text = document.get("text")  # Responses
    if isinstance(text, dict) and isinstance(text.get("format"), dict) and isinstance(text["format"].get("type"), str):
        return text["format"]["type"], text["format"].get("schema")
    outputs = document.get("structured_outputs")
    outputs = outputs if isinstance(outputs, dict) else {}
    for kind in ("json", "choice", "regex", "grammar"):
        value = document.get(f"guided_{kind}")
        if value is None:
            value = outputs.get(kind)
        if value is not None:
            return "guided_json" if kind == "json" else kind, value
    return None


def json_of(value: Any) -> bytes | None:
    """A value as JSON in its own order. None where it is nested too deeply to be written."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return None
