"""The short way over events that repeat says the same as the full way, whatever the events and wherever reads cut."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiles.records import ResponseFacts
from profiles.repeats import Repeats
from profiles.stream import ResponseReader


def chunk(text: str, *, key: str = "content", more: str = "") -> bytes:
    said = orjson.dumps(text).decode()
    return f'data: {{"id":"c-1","choices":[{{"index":0,"delta":{{"{key}":{said}}}{more}}}]}}\n\n'.encode()


def anthropic(text: str) -> bytes:
    said = orjson.dumps({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}})
    return b"event: content_block_delta\ndata: " + said + b"\n\n"


def read(pieces: list[bytes], *, short_way: bool) -> ResponseFacts:
    reader = ResponseReader("text/event-stream")
    for at_ns, piece in enumerate(pieces):
        if not short_way:
            reader._repeats = Repeats()  # nothing was learnt
        reader.feed(piece, at_ns)
    return reader.finish()


EVENTS = st.one_of(
    st.text(max_size=12).map(chunk),
    st.sampled_from(["a", " b", "\n", "é", '"', "\\", "\u2028", "", "😀", "\x7f"]).map(chunk),
    st.text(max_size=4).map(lambda text: chunk(text, key="reasoning_content")),
    st.text(max_size=4).map(lambda text: chunk(text, more=',"finish_reason":"stop"')),
    st.text(max_size=4).map(lambda text: chunk(text, more=',"token_ids":[1,2]')),
    st.sampled_from(
        [
            b": ping\n\n",
            b": ping\n" + chunk("a"),
            b"data: [DONE]\n\n",
            b'data: {"error":{"type":"oom"}}\n\n',
            b"data: {broken\n\n",
            b'data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n',
            b'data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"a\tb"}}]}\n\n',
            b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
            anthropic("a"),
            anthropic("b"),
            b"id: 7\n" + chunk("c"),
            chunk("a").replace(b"\n", b"\r\n"),
            chunk("a")[:-1],
            b"\n",
        ]
    ),
)


@settings(max_examples=300)
@given(events=st.lists(EVENTS, max_size=30), cuts=st.lists(st.integers(0, 2000), max_size=6))
@example(events=[chunk("a"), chunk("b"), chunk(""), chunk('"'), chunk("c")], cuts=[])
def test_both_ways_say_the_same(events: list[bytes], cuts: list[int]) -> None:
    # Each event in a read of its own, as streams mostly come, but for some that are cut.
    pieces: list[bytes] = []
    at = 0
    for event in events:
        edges = sorted({0, len(event), *(cut - at for cut in cuts if 0 < cut - at < len(event))})
        pieces += [event[begin:end] for begin, end in pairwise(edges)]
        at += len(event)
    assert read(pieces, short_way=True) == read(pieces, short_way=False)
    glued = [b"".join(pieces[index : index + 3]) for index in range(0, len(pieces), 3)]
    assert read(glued, short_way=True) == read(glued, short_way=False)


def test_the_short_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    read_event = __import__("profiles.stream").stream.read_event

    def counted(data: bytes, name: str = "", keep: object = None) -> object:
        nonlocal parsed
        parsed += 1
        return read_event(data, name, keep)

    monkeypatch.setattr("profiles.stream.read_event", counted)
    facts = read([chunk(f" word{number}") for number in range(100)], short_way=True)
    assert facts.token_events == 100
    assert parsed == 2  # the first, and one of which it is known that it began where an event begins
