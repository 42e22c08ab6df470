"""The last piece of an event stream is recognised in every dialect, wherever reads cut it, and nothing else is."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.terminal import TerminalWatch

BEFORE = b'data: {"choices":[{"delta":{"content":"[DONE] data: [DONE] response.completed message_stop"}}]}\n\n'
ENDS = {
    "openai": b"data: [DONE]\n",
    "no space": b"data:[DONE]\n",
    "carriage returns": b"data: [DONE]\r\n",
    "anthropic": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "anthropic, crlf": b'event: message_stop\r\ndata: {"type":"message_stop"}\r\n\r\n',
    "anthropic, no event field": b'data: {"type": "message_stop"}\n\n',
    "responses": b'event: response.completed\ndata: {"type":"response.completed","response":{"id":1}}\n\n',
    "responses, cut short": b'data: {"type":"response.incomplete","response":{}}\r\n\r\n',
    "responses, failed": b'event: response.failed\ndata: {"type":"response.failed"}\n\n',
    "a long last event": b'event: response.completed\ndata: {"text":"' + b"x" * 5000 + b'"}\n\n',
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@given(cuts=st.lists(st.integers(0, 600), max_size=8))
def test_a_stream_ends_with_the_piece_that_completes_its_last_event(end: bytes, cuts: list[int]) -> None:
    whole = BEFORE * 2 + end
    edges = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    watch = TerminalWatch()
    ended = next(stop for begin, stop in pairwise(edges) if watch.ends_with(whole[begin:stop]))
    assert whole[ended:] in (b"", b"\n")  # a lone carriage return ends a line too


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_one_byte_at_a_time(end: bytes) -> None:
    watch = TerminalWatch()
    whole = BEFORE + end
    ended = [watch.ends_with(whole[at : at + 1]) for at in range(len(whole))].index(True)
    assert ended == len(whole) - (2 if end.endswith(b"[DONE]\r\n") else 1)  # a lone carriage return ends a line too


@pytest.mark.parametrize(
    "text",
    [
        BEFORE,
        b": comment data: [DONE]\n\nid: [DONE]\n\n",
        b'data: "[DONE]"\n\n',
        b'data: {"type":"message_delta"}\n\n',
        b'data: {"text":"data: {\\"type\\":\\"message_stop\\"}\\n\\n"}\n\n',
        b"event: message_stopped\ndata: 1\n\n",
    ],
)
def test_what_only_looks_like_an_end_is_none(text: bytes) -> None:
    watch = TerminalWatch()
    assert not any(watch.ends_with(text[at : at + 7]) for at in range(0, len(text), 7))
    assert not TerminalWatch().ends_with(text * 3)
