"""Compressed streams: what was compressed and flushed event by event comes out event by event."""

import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from profiles.encodings import Undecodable, decoder_of

EVENTS = [b'data: {"n":%d,"text":"' % number + b"x" * number + b'"}\n\n' for number in range(20)]


def deflated(wbits: int) -> list[bytes]:
    press = zlib.compressobj(wbits=wbits)
    pieces = [press.compress(event) + press.flush(zlib.Z_SYNC_FLUSH) for event in EVENTS]
    return [*pieces, press.flush()]


def zstandard_pieces() -> list[bytes]:
    press = zstandard.ZstdCompressor().compressobj()
    pieces = [press.compress(event) + press.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for event in EVENTS]
    return [*pieces, press.flush()]


def brotli_pieces() -> list[bytes]:
    press = brotli.Compressor()
    return [*(press.process(event) + press.flush() for event in EVENTS), press.finish()]


ENCODED: dict[str, Callable[[], list[bytes]]] = {
    "gzip": lambda: deflated(31),
    "x-gzip": lambda: deflated(31),
    "deflate": lambda: deflated(15),
    " DEFLATE ": lambda: deflated(-15),
    "zstd": zstandard_pieces,
    "br": brotli_pieces,
}


@pytest.mark.parametrize("encoding", ENCODED)
def test_each_flushed_event_comes_out_with_the_piece_that_brought_it(encoding: str) -> None:
    decode = decoder_of(encoding)
    assert decode is not None
    assert [decode(piece) for piece in ENCODED[encoding]()][: len(EVENTS)] == EVENTS


@pytest.mark.parametrize("encoding", ENCODED)
@given(step=st.integers(1, 200))
def test_any_cut_gives_the_same_bytes(encoding: str, step: int) -> None:
    decode = decoder_of(encoding)
    assert decode is not None
    whole = b"".join(ENCODED[encoding]())
    assert b"".join(decode(whole[at : at + step]) for at in range(0, len(whole), step)) == b"".join(EVENTS)


@pytest.mark.parametrize("encoding", ["", "identity", " Identity ", "identity, "])
def test_nothing_to_undo(encoding: str) -> None:
    assert decoder_of(encoding) is None


def test_two_encodings_are_undone_from_the_last() -> None:
    decode = decoder_of("br, gzip")
    assert decode is not None
    assert decode(zlib.compress(brotli.compress(b"text"), wbits=31)) == b"text"


def test_an_unknown_encoding_and_broken_bytes_say_so() -> None:
    with pytest.raises(Undecodable, match="content-encoding snappy"):
        decoder_of("snappy")
    for encoding in ENCODED:
        decode = decoder_of(encoding)
        assert decode is not None
        with pytest.raises(Undecodable):
            decode(b"\xfe\xfd this is no such thing" * 40)
