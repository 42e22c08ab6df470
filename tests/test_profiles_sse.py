"""Bytes of a stream become the same events wherever the reads cut them."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.sse import Event, Splitter

# Every rule of the module in one stream: BOM, comment, each line end, no blank after the colon, U+2028 raw, names.
STREAM = (
    "\ufeff: keep-alive\r\n\r\n"
    'data: {"a":"日本"}\n\n'
    "data:no blank\r\r"
    "event: ping\r\ndata: x\r\n\r\n"
    "data: one\ndata:  two\n\n"
    'data: "\u2028\u0085\u2029\ufeff"\n\n'
    "retry: 5\nid: 7\n\n"
    'error: {"code":400}\n\n'
    "data: last, without its blank line"
).encode()

EVENTS = [
    Event("", ('{"a":"日本"}'.encode(),)),
    Event("", (b"no blank",)),
    Event("ping", (b"x",)),
    Event("", (b"one", b" two")),
    Event("", ('"\u2028\u0085\u2029\ufeff"'.encode(),)),
    Event("", (), b'{"code":400}'),
    Event("", (b"last, without its blank line",)),
]


def split(*reads: bytes) -> list[Event]:
    splitter = Splitter()
    events = [event for read in reads for event in splitter.feed(read)]
    return events + splitter.close()


def test_every_rule_in_one_stream() -> None:
    assert split(STREAM) == EVENTS


def test_one_byte_a_read_gives_the_same_events() -> None:
    assert split(*(bytes([byte]) for byte in STREAM)) == EVENTS


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_a_cut_at_any_byte_gives_the_same_events(at: int) -> None:
    assert split(STREAM[:at], b"", STREAM[at:]) == EVENTS


@settings(max_examples=40)
@given(
    st.lists(
        st.sampled_from([b"data: a", b"data:b", b"event: e", b": c", b"", b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf"])
    ),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_every_split_of_any_stream_gives_the_same_events(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert split(*(stream[a:b] for a, b in pairwise(edges))) == split(stream)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_line_end_gives_the_same_events(end: bytes) -> None:
    assert split(b"data: a" + end + b"data: b" + end * 2 + b"data: c" + end * 2) == [
        Event("", (b"a", b"b")),
        Event("", (b"c",)),
    ]


def test_a_cr_and_its_lf_in_two_reads_end_one_line() -> None:
    splitter = Splitter()
    assert splitter.feed(b"data: a\r") == []
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"\r") == [Event("", (b"a",))]
    assert splitter.feed(b"\ndata: b\n\n") == [Event("", (b"b",))]


def test_comments_are_counted_and_are_no_events() -> None:
    splitter = Splitter()
    assert splitter.feed(b": one\n\n:two\n\n") == []
    assert splitter.comments == 2


def test_a_name_without_data_does_not_leak_into_the_next_event() -> None:
    assert split(b"event: ping\n\ndata: x\n\n") == [Event("", (b"x",))]


def test_an_empty_data_field_is_an_event_with_an_empty_line() -> None:
    assert split(b"data\n\ndata:\n\n") == [Event("", (b"",)), Event("", (b"",))]


def test_a_byte_order_mark_alone_is_kept_back_and_then_no_event() -> None:
    splitter = Splitter()
    assert splitter.feed(b"\xef\xbb") == []
    assert splitter.feed(b"\xbf") == []
    assert splitter.close() == []


def test_a_line_of_a_megabyte_in_small_reads_arrives_whole() -> None:
    text = b"x" * 1_000_000
    stream = b"data: " + text + b"\n\n"
    assert split(*(stream[at : at + 4096] for at in range(0, len(stream), 4096))) == [Event("", (text,))]
