"""Content encodings of a response, undone piece by piece: gzip, deflate, zstd, br, and lists of them.

An engine or a gateway may compress an event stream and flush after each event, so that events arrive in time. Whoever
reads such a stream must undo it as it comes. No I/O.
"""

import zlib
from collections.abc import Callable

# What a piece is turned into. An empty result is normal: the decoder waits for more.
type Decode = Callable[[bytes], bytes]


class Undecodable(Exception):
    """The encoding is unknown here, or the bytes do not follow it."""


def decoder_of(content_encoding: str) -> Decode | None:
    """What undoes a content-encoding header's value; None where there is nothing to undo. Raises Undecodable."""
    names = [name.strip().lower() for name in content_encoding.split(",")]
    steps = [_step(name) for name in reversed(names) if name not in ("", "identity")]
    if not steps:
        return None

    def decode(data: bytes) -> bytes:
        try:
            for step in steps:
                data = step(data)
        except Exception as problem:  # each library has an error of its own
            raise Undecodable(type(problem).__name__) from None
        return data

    return decode


def _step(name: str) -> Decode:
    if name in ("gzip", "x-gzip"):
        return zlib.decompressobj(wbits=31).decompress
    if name == "deflate":
        return _deflate()
    if name == "zstd":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress
    if name == "br":
        import brotli

        decode: Decode = brotli.Decompressor().process
        return decode
    raise Undecodable(f"content-encoding {name[:20]}")


def _deflate() -> Decode:
    """zlib's format by the standard, raw deflate by many servers: the first two bytes tell."""
    chosen: list[Decode] = []

    def decode(data: bytes) -> bytes:
        if not chosen and data:
            is_zlib = data[0] & 0x0F == 8 and (len(data) < 2 or int.from_bytes(data[:2]) % 31 == 0)
            chosen.append(zlib.decompressobj(wbits=15 if is_zlib else -15).decompress)
        return chosen[0](data) if chosen else b""

    return decode
