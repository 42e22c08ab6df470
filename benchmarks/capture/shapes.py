"""The answer of the mock engine, in the shape of vLLM's chat completions, byte for byte.

A shape travels as the query of the request. Each token event carries the instant it was sent (`sent_ns`, the monotonic
clock, which all processes of one machine share) in a fixed number of digits, so the length of an answer is known.
"""

import json
import re
from urllib.parse import parse_qsl, urlencode

import msgspec

PATH = "/v1/chat/completions"
MARK = b'"sent_ns":"'
STAMP = re.compile(MARK + rb'(\d{19})"')
ROLE = (
    b'data: {"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1700000000,"model":"mock","choices":'
    b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
FILLER = "The quick brown fox jumps over the lazy dog and wonders why the first token takes so long. "


class Shape(msgspec.Struct, frozen=True):
    """A stream of `chunks` token events: the first after `first_us`, the others `gap_us` apart (microseconds)."""

    chunks: int = 1
    first_us: int = 0
    gap_us: int = 0

    @property
    def query(self) -> str:
        return urlencode(msgspec.structs.asdict(self))


SHORT = Shape()
BURST = Shape(chunks=200)


def paced(chunks: int) -> Shape:
    """The first token at 50 ms, the others 5 ms apart."""
    return Shape(chunks=chunks, first_us=50_000, gap_us=5_000)


def parse_shape(target: bytes) -> Shape:
    """The shape that a request target asks for. Raises ValueError."""
    _, _, query = target.decode("ascii").partition("?")
    return Shape(**{name: int(value) for name, value in parse_qsl(query) if name in Shape.__struct_fields__})


def token_event(last: bool, sent_ns: int) -> bytes:
    finish = b'"stop"' if last else b"null"
    return (
        b'data: {"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1700000000,"model":"mock","choices":'
        b'[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":%b}],"sent_ns":"%019d"}\n\n'
        % (finish, sent_ns)
    )


def usage_event(body_bytes: int, chunks: int) -> bytes:
    """The last event but `[DONE]`. The prompt's tokens are the bytes of the body that the engine has received."""
    return (
        b'data: {"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1700000000,"model":"mock",'
        b'"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
        % (body_bytes, body_bytes + chunks, chunks)
    )


def whole_answer(shape: Shape, body_bytes: int) -> bytes:
    """The decoded body of an answer, its instants all zero."""
    tokens = token_event(False, 0) * (shape.chunks - 1) + token_event(True, 0)
    return ROLE + tokens + usage_event(body_bytes, shape.chunks) + DONE


def without_instants(body: bytes) -> bytes:
    """A body as received with its instants set to zero, to compare it with `whole_answer`."""
    return STAMP.sub(MARK + b"0" * 19 + b'"', body)


def request_body(size_bytes: int) -> bytes:
    """A chat request of exactly so many bytes (at least about 150)."""
    document = {
        "model": "mock",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 200,
        "messages": [{"role": "user", "content": ""}],
    }
    room = max(0, size_bytes - len(json.dumps(document)))
    document["messages"] = [{"role": "user", "content": (FILLER * (room // len(FILLER) + 1))[:room]}]
    return json.dumps(document).encode()


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP/1.1's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def dechunk(coded: bytes) -> bytes:
    """The body inside a chunked coding. Raises ValueError where the coding is broken or cut."""
    parts: list[bytes] = []
    at = 0
    while True:
        line_end = coded.index(b"\r\n", at)
        size = int(coded[at:line_end].partition(b";")[0], 16)
        at = line_end + 2
        if coded[at + size : at + size + 2] != b"\r\n":
            raise ValueError("a chunk is cut")
        if size == 0:
            return b"".join(parts)
        parts.append(coded[at : at + size])
        at += size + 2
