"""What the proxy tells its scribe: frames in one direction through a pipe. Pure; the codec only.

A frame is a head of 21 bytes and a payload: length of the payload, kind, number of the request, instant. Its order in
the pipe is the order in which things happened in the proxy's event loop. A kill of the proxy leaves at most one torn
frame, the last, which the reader never sees.

    OPEN     the proxy takes traffic from here on                       Opening
    STORY    what happened to a request since its last story, or all    Story
    ASKED    a large request body, told apart so that it is not copied  see `asked`
    BEAT     once a second: the proxy lives                             Pulse
    CLOSE    the proxy takes no more traffic                            Opening, for its reason
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

OPEN: Final = 1
STORY: Final = 2
ASKED: Final = 3
BEAT: Final = 4
CLOSE: Final = 5

# A request body beyond this is only counted. It leaves half of the outbox for everybody else.
LARGEST_BODY_BYTES = 32 * 1024 * 1024

# Not in the pipe but in memory that both processes see: the ends that a scribe has taken, and those it has written.
BOOKED: Final = struct.Struct("<qq")

_HEAD = struct.Struct("<IBQq")  # payload bytes, kind, request number, instant in ns
_LENGTH = struct.Struct("<I")


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The proxy begins or ceases to take traffic. `reason` says why it was not there before."""

    reason: str = ""
    listen: str = ""  # scheme://host:port


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """A request's headers are in. `path` is without its query."""

    at_ns: int
    path: str
    endpoint: str
    in_flight: int  # others


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """Its body is complete. `body` is None where it was too large to pass on."""

    at_ns: int
    headers: list[tuple[bytes, bytes]]  # those that may be read
    body_bytes: int
    body: bytes | None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The head of its response."""

    at_ns: int
    status: int
    content_type: str
    content_encoding: str


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """How it ended. `outcome` and `origin` are set where the engine did not end it; else the scribe tells."""

    at_ns: int
    body_complete: bool
    late_ns: int = 0
    status: int | None = None  # of an answer that the proxy itself gave
    outcome: str | None = None
    origin: str | None = None
    reason: str | None = None
    missing: str | None = None  # why parts of its story were not told


class Story(msgspec.Struct, frozen=True, array_like=True):
    """What happened to a request, in this order. A short request is one story; a long one is told as it goes on."""

    arrival: Arrival | None
    asked: Asked | None
    answer: Answer | None
    times_ns: list[int]  # of the pieces of its response
    pieces: list[bytes]
    ending: Ending | None


class Pulse(msgspec.Struct, frozen=True, array_like=True):
    """The proxy's counts since it started. `dropped` holds what never reached the pipe, by reason."""

    in_flight: int
    lag_ns: int  # the worst lateness of the event loop since the last pulse
    requests: int
    passed_through: int
    upgrades: int
    refused: int
    max_in_flight: int
    dropped: dict[str, int]
    errors: dict[str, int]
    waiting_bytes: int = 0  # for room in the pipe


class Frame(NamedTuple):
    """One frame as it came out of the pipe."""

    kind: int
    number: int
    at_ns: int
    payload: bytes


_FORMS: Final[dict[int, type[msgspec.Struct]]] = {OPEN: Opening, STORY: Story, BEAT: Pulse, CLOSE: Opening}
_DECODERS = {kind: msgspec.msgpack.Decoder(form) for kind, form in _FORMS.items()}
_encode = msgspec.msgpack.Encoder().encode


def frame(kind: int, number: int, at_ns: int, payload: bytes = b"") -> bytes:
    """A frame with a raw payload."""
    return _HEAD.pack(len(payload), kind, number, at_ns) + payload


def tell(kind: int, number: int, at_ns: int, told: msgspec.Struct) -> bytes:
    """A frame that holds a struct."""
    return frame(kind, number, at_ns, _encode(told))


def asked(number: int, told: Asked, body: bytes) -> list[bytes]:
    """An ASKED frame in parts: `told` without its body, and the body."""
    packed = _encode(told)
    head = _HEAD.pack(_LENGTH.size + len(packed) + len(body), ASKED, number, told.at_ns)
    return [head + _LENGTH.pack(len(packed)) + packed, body]


def read_asked(payload: bytes) -> Asked:
    """What an ASKED frame says."""
    end = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    told = msgspec.msgpack.decode(payload[_LENGTH.size : end], type=Asked)
    return msgspec.structs.replace(told, body=payload[end:])


def read_told(kind: int, payload: bytes) -> msgspec.Struct:
    """The struct of a frame of this kind."""
    told: msgspec.Struct = _DECODERS[kind].decode(payload)
    return told


class FrameReader:
    """Bytes in any pieces to frames. What is left at the end is a torn frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take one read; yield the frames that are whole now."""
        buffer = self._buffer
        buffer += data
        at, size = 0, len(buffer)
        try:
            while size - at >= _HEAD.size:
                length, kind, number, at_ns = _HEAD.unpack_from(buffer, at)
                end = at + _HEAD.size + length
                if end > size:
                    break
                payload = bytes(memoryview(buffer)[at + _HEAD.size : end])
                at = end
                yield Frame(kind, number, at_ns, payload)
        finally:
            del buffer[:at]
