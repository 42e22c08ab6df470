"""The proxy's end of the pipe: it never waits, keeps the order, refuses beyond its limit and comes back."""

import os
from collections.abc import Iterator

import pytest
from capture_bench import Loop, Pipe
from hypothesis import given
from hypothesis import strategies as st

from capture.outbox import BEHIND, FLUSH_BYTES, GONE, Outbox


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def outbox_on(pipe: Pipe, loop: Loop | None = None, *, limit_bytes: int = 1 << 20) -> Outbox:
    return Outbox(pipe.writing, loop or Loop(), write=pipe.write, limit_bytes=limit_bytes)


def test_what_fits_is_handed_over_at_once_and_in_one_write(pipe: Pipe) -> None:
    outbox = outbox_on(pipe)
    assert [outbox.put(b"a"), outbox.put(b"b", b"c")] == [None, None]
    assert pipe.data == b""
    outbox.flush()
    assert pipe.data == b"abc"
    assert outbox.waiting_bytes == 0


def test_a_full_pipe_is_not_waited_for_and_the_rest_follows_when_there_is_room(pipe: Pipe) -> None:
    loop = Loop()
    outbox = outbox_on(pipe, loop)
    pipe.room = 5
    outbox.put(b"0123456789")
    outbox.flush()
    assert (bytes(pipe.data), outbox.waiting_bytes) == (b"01234", 5)
    assert loop.writer is not None
    pipe.room = 100
    loop.writer()
    assert (bytes(pipe.data), outbox.waiting_bytes) == (b"0123456789", 0)
    assert loop.writer is None


def test_beyond_its_limit_it_refuses_and_takes_again_when_there_is_room(pipe: Pipe) -> None:
    outbox = outbox_on(pipe, limit_bytes=10)
    pipe.room = 0
    assert outbox.put(b"0123456789") is None
    assert outbox.put(b"x") == BEHIND
    pipe.room = 100
    outbox.flush()
    assert outbox.put(b"y") is None
    outbox.flush()
    assert pipe.data == b"0123456789y"


def test_a_scribe_that_is_gone_closes_it(pipe: Pipe) -> None:
    outbox = outbox_on(pipe)
    pipe.error = BrokenPipeError()
    outbox.put(b"x")
    outbox.flush()
    assert outbox.closed == GONE
    assert outbox.put(b"y") == GONE
    assert outbox.waiting_bytes == 0
    outbox.flush()


def test_a_large_body_leaves_a_piece_at_a_time(pipe: Pipe) -> None:
    loop = Loop()
    outbox = outbox_on(pipe, loop, limit_bytes=1 << 30)
    body = bytes(range(256)) * (4 * FLUSH_BYTES // 256)
    outbox.put(b"head", body)
    assert pipe.data == b"", "it is not written while the request is being forwarded"
    turns = 0
    while loop.writer is not None:
        before = len(pipe.data)
        loop.writer()
        assert len(pipe.data) - before <= FLUSH_BYTES
        turns += 1
    assert pipe.data == b"head" + body
    assert turns >= 4


@given(
    frames=st.lists(st.binary(min_size=1, max_size=300), max_size=40),
    rooms=st.lists(st.integers(0, 500), max_size=40),
)
def test_bytes_keep_their_order_whatever_room_there_is(frames: list[bytes], rooms: list[int]) -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    seen = b""
    for frame, room in zip(frames, [*rooms, *[0] * len(frames)], strict=False):
        pipe.room = room
        outbox.put(frame)
        outbox.flush()
        seen += pipe.read()
    pipe.room = 1 << 30
    outbox.flush()
    seen += pipe.read()
    pipe.close()
    assert seen == b"".join(frames)


def test_it_works_on_a_real_pipe() -> None:
    reading, writing = os.pipe()
    outbox = Outbox(writing, Loop(), limit_bytes=1 << 24)
    body = os.urandom(1 << 20)
    outbox.put(body)
    outbox.flush()
    assert 0 < outbox.waiting_bytes < len(body)
    seen = b""
    while len(seen) < len(body):
        seen += os.read(reading, 1 << 16)
        outbox.flush()
    assert seen == body
    os.close(reading)
    outbox.put(b"x")
    outbox.flush()
    assert outbox.closed == GONE
    os.close(writing)
