"""A log that nobody can read: bytes that are not UTF-8, colours, progress bars that end in CR, lines of a megabyte.

Made of a seed. It says nothing that a pattern for boot logs would look for.
"""

import asyncio
import os
import random
from collections.abc import Iterator

PIECE_BYTES = 64 * 1024
MIB = 1024 * 1024
# While it serves: about 50 MiB a second, so that answering goes on beside it.
_PIECES_AT_ONCE = 4
_PAUSE_S = 0.005


def noise(size: int, seed: int, *, ends: bool = True) -> Iterator[bytes]:
    """`size` bytes of it, in pieces. With `ends` the last one closes its line."""
    draws = random.Random(seed)
    left = size
    for piece in _pieces(draws):
        if left <= len(piece):
            last = piece[: max(0, left - 1)] + b"\n"[:left]
            yield last if ends else piece[:left].rstrip(b"\r\n").ljust(left, b".")
            return
        left -= len(piece)
        yield piece


def _pieces(draws: random.Random) -> Iterator[bytes]:
    while True:
        # Half of a code point, a stray continuation, a byte that UTF-8 never has: what a C library prints in Latin-1.
        yield b"".join(b"loader \xe9\xff\x80\xc3 %s\n" % draws.randbytes(40).replace(b"\n", b" ") for _ in range(900))
        yield b"".join(
            b"\x1b[3%dm[rank%d]\x1b[0m \x1b[1mprofile\x1b[0m step\n" % (1 + at % 6, at % 4) for at in range(1500)
        )
        yield b"".join(b"\rLoading shards: %3d%%|%s|" % (at % 101, b"#" * (at % 60)) for at in range(900))
        for _ in range(MIB // PIECE_BYTES):  # no newline in a megabyte
            yield b"%x," % draws.getrandbits(64) * (PIECE_BYTES // 17)
        yield b"\n"


def write_all(data: bytes) -> None:
    """To stdout, past every buffer. It blocks when nobody drains the pipe, as any engine would."""
    while data:
        data = data[os.write(1, data) :]


async def flood(size: int, seed: int, *, ends: bool, hurried: bool) -> None:
    """Write `size` bytes of noise to the log. In a hurry it takes all the time there is."""
    for number, piece in enumerate(noise(size, seed, ends=ends)):
        write_all(piece)
        if number % _PIECES_AT_ONCE == _PIECES_AT_ONCE - 1:
            await asyncio.sleep(0 if hurried else _PAUSE_S)
