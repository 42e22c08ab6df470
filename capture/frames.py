"""What the proxy tells its scribe: frames in one direction through a pipe. Pure; the codec only.

A frame is a head of 21 bytes and a payload: length of the payload, kind, number of the request, instant. Its order in
the pipe is the order in which things happened in the proxy's event loop. A kill of the proxy leaves at most one torn
frame, the last, which the reader never sees.

    OPEN     the proxy takes traffic from here on                  Opening
    START    a request's headers are in                            Arrival
    ASKED    its body is complete                                  headers that may be read, and the body
    HEADERS  the response's headers are in                         Answer
    PIECES   parts of the response's body                          their instants, their sizes, the bytes as they came
    END      it ended                                              Ending
    BEAT     once a second: the proxy lives                        Pulse
    CLOSE    the proxy takes no more traffic                       Opening, for its reason
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

OPEN: Final = 1
START: Final = 2
ASKED: Final = 3
HEADERS: Final = 4
PIECES: Final = 5
END: Final = 6
BEAT: Final = 7
CLOSE: Final = 8

# A request body beyond this is only counted. It leaves half of the outbox for everybody else.
LARGEST_BODY_BYTES = 32 * 1024 * 1024

_HEAD = struct.Struct("<IBQq")  # payload bytes, kind, request number, instant in ns
_LENGTH = struct.Struct("<I")

type Headers = Sequence[tuple[bytes, bytes]]


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The proxy begins or ceases to take traffic. `reason` says why it was not there before."""

    reason: str = ""


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """A request. `path` is without its query. `again` says that the scribe before this one was told of it first."""

    method: str
    path: str
    endpoint: str
    in_flight: int  # others
    again: bool = False


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The head of a response."""

    status: int
    content_type: str
    content_encoding: str


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """How a request ended. `outcome` and `origin` are set where the engine did not end it; else the scribe tells."""

    body_complete: bool
    late_ns: int = 0
    status: int | None = None  # of an answer that the proxy itself gave
    outcome: str | None = None
    origin: str | None = None
    reason: str | None = None
    missing: str | None = None  # why pieces of this response are not among the frames


class Pulse(msgspec.Struct, frozen=True, array_like=True):
    """The proxy's counts since it started. `dropped` holds what never reached the pipe, by reason."""

    in_flight: int
    lag_ns: int  # the worst lateness of the event loop since the last pulse
    requests: int
    passed_through: int
    upgrades: int
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


_FORMS: Final[dict[int, type[msgspec.Struct]]] = {
    OPEN: Opening,
    START: Arrival,
    HEADERS: Answer,
    END: Ending,
    BEAT: Pulse,
    CLOSE: Opening,
}
_DECODERS = {kind: msgspec.msgpack.Decoder(form) for kind, form in _FORMS.items()}
_encode = msgspec.msgpack.Encoder().encode


def frame(kind: int, number: int, at_ns: int, payload: bytes = b"") -> bytes:
    """A frame with a raw payload."""
    return _HEAD.pack(len(payload), kind, number, at_ns) + payload


def tell(kind: int, number: int, at_ns: int, told: msgspec.Struct) -> bytes:
    """A frame that holds a struct."""
    payload = _encode(told)
    return _HEAD.pack(len(payload), kind, number, at_ns) + payload


def asked(number: int, at_ns: int, headers: Headers, body: bytes) -> list[bytes]:
    """An ASKED frame in parts, so that a large body is not copied. One beyond `LARGEST_BODY_BYTES` is not passed on."""
    packed = _encode((headers, len(body)))
    body = body if len(body) <= LARGEST_BODY_BYTES else b""
    head = _HEAD.pack(_LENGTH.size + len(packed) + len(body), ASKED, number, at_ns)
    return [head + _LENGTH.pack(len(packed)) + packed, body]


def read_asked(payload: bytes) -> tuple[list[tuple[bytes, bytes]], int, bytes | None]:
    """Headers, size of the body, and the body of an ASKED frame: None where it was too large to pass on."""
    start = _LENGTH.size
    end = start + _LENGTH.unpack_from(payload)[0]
    headers, size = msgspec.msgpack.decode(payload[start:end], type=tuple[list[tuple[bytes, bytes]], int])
    body = payload[end:]
    return headers, size, body if len(body) == size else None


def pieces(number: int, times_ns: list[int], data: list[bytes]) -> bytes:
    """A PIECES frame. Its own instant is that of the last piece."""
    sizes = list(map(len, data))
    payload = b"".join((_LENGTH.pack(len(data)), array("q", times_ns).tobytes(), array("I", sizes).tobytes(), *data))
    return _HEAD.pack(len(payload), PIECES, number, times_ns[-1]) + payload


def read_pieces(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Instant and bytes of each piece of a PIECES frame."""
    count = _LENGTH.unpack_from(payload)[0]
    times_ns, sizes = array("q"), array("I")
    sizes_at = _LENGTH.size + count * times_ns.itemsize
    data_at = sizes_at + count * sizes.itemsize
    times_ns.frombytes(payload[_LENGTH.size : sizes_at])
    sizes.frombytes(payload[sizes_at:data_at])
    for at_ns, size in zip(times_ns, sizes, strict=True):
        yield at_ns, payload[data_at : data_at + size]
        data_at += size


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
