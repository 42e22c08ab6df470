"""A response body read as it arrives: instants, k₁, usage, and what makes an outcome."""

import json
import zlib
from typing import Any

import pytest

from profiles.records import ResponseFacts, outcome_of, token_instants_ns
from profiles.stream import LONGEST_KEPT_BODY_BYTES, ResponseReader

SSE = "text/event-stream; charset=utf-8"


def event(content: str = "", usage: dict[str, int] | None = None, **choice: Any) -> bytes:
    delta = {"delta": {"content": content}, **choice}
    return b"data: " + json.dumps({"choices": [delta], "usage": usage}).encode() + b"\n\n"


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}\n\n'
STOP = event(finish_reason="stop")
DONE = b"data: [DONE]\n\n"


def read(*reads: tuple[int, bytes], content_type: str = SSE, encoding: str = "") -> ResponseFacts:
    reader = ResponseReader(content_type, encoding)
    for at_ns, data in reads:
        reader.feed(data, at_ns)
    return reader.finish()


def test_the_role_chunk_and_comments_are_bytes_but_no_token() -> None:
    facts = read((1, b": wait\n\n"), (2, ROLE), (9, event("a")), (11, event("b")), (12, STOP), (13, USAGE + DONE))
    assert (facts.first_byte_ns, facts.first_token_ns, facts.first_content_ns, facts.last_token_ns) == (1, 9, 9, 11)
    assert facts.last_byte_ns == 13
    assert (facts.comments, facts.events, facts.reads, facts.token_events) == (1, 6, 6, 2)
    assert (facts.prompt_tokens, facts.output_tokens, facts.finish, facts.done) == (7, 4, "stop", True)
    assert token_instants_ns(facts) == [9, 11]
    assert outcome_of(200, facts, body_complete=True) == ("ok", None)


def test_reasoning_is_the_first_token_and_content_comes_later() -> None:
    thought = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
    facts = read((5, thought), (50, event("a")), (60, STOP))
    assert (facts.first_token_ns, facts.first_content_ns) == (5, 50)


def test_k1_comes_from_running_usage() -> None:
    facts = read(
        (1, event("abc", {"prompt_tokens": 7, "completion_tokens": 3})),
        (2, event("d", {"prompt_tokens": 7, "completion_tokens": 4})),
    )
    assert (facts.first_event_tokens, facts.output_tokens) == (3, 4)


def test_k1_comes_from_token_ids_and_they_count_the_output_without_usage() -> None:
    facts = read((1, event("ab", token_ids=[1, 2])), (2, event("cde", token_ids=[3, 4, 5])))
    assert (facts.first_event_tokens, facts.output_tokens) == (2, 5)


def test_token_ids_in_some_events_only_do_not_count_the_output() -> None:
    facts = read((1, event("ab", token_ids=[1, 2])), (2, event("c")))
    assert (facts.first_event_tokens, facts.output_tokens) == (2, None)


def test_k1_is_unknown_where_usage_comes_at_the_end_alone() -> None:
    facts = read((1, event("ab")), (2, USAGE))
    assert (facts.first_event_tokens, facts.output_tokens) == (None, 4)


def test_the_last_usage_wins_and_each_kind_of_count_on_its_own() -> None:
    start = b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
    delta = b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}\n\n'
    facts = read((1, start), (2, delta))
    assert (facts.prompt_tokens, facts.output_tokens) == (9, 5)


def test_events_of_one_read_share_an_instant_and_are_counted() -> None:
    facts = read((5, event("a") + event("b") + event("c")), (8, event("d")))
    assert (facts.token_gaps_ns, facts.coalesced, facts.token_events) == ([0, 0, 3], 2, 4)


def test_an_event_is_stamped_when_its_last_byte_arrives() -> None:
    data = event("日本")
    facts = read((1, data[:30]), (2, data[30:60]), (3, data[60:]))
    assert (facts.first_byte_ns, facts.first_token_ns) == (1, 3)


def test_glued_events_are_read_one_by_one() -> None:
    glued = event("a").rstrip(b"\n") + b"\n" + event("b").rstrip(b"\n") + b'\ndata: {"error":{"type":"upstream"}}\n\n'
    facts = read((1, glued))
    assert (facts.token_events, facts.malformed, facts.error) == (2, 1, "upstream")
    assert outcome_of(200, facts, body_complete=True) == ("error", "engine")


def test_an_error_field_is_an_error() -> None:
    facts = read((1, b'error: {"code":400,"message":"secret","type":"invalid_request_error"}\n\n'))
    assert facts.error == "invalid_request_error"


def test_an_unfinished_last_event_counts_with_the_instant_of_the_last_read() -> None:
    facts = read((1, ROLE), (7, event("a").rstrip(b"\n")))
    assert facts.first_token_ns == 7


def test_a_whole_json_answer_has_usage_and_no_first_token() -> None:
    answer = b'"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]'
    body = b"{" + answer + b',"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    facts = read((4, body[:20]), (9, body[20:]), content_type="application/json")
    assert (facts.first_byte_ns, facts.last_byte_ns, facts.first_token_ns) == (4, 9, None)
    assert (facts.prompt_tokens, facts.output_tokens, facts.output, facts.done) == (1, 2, True, True)
    assert outcome_of(200, facts, body_complete=True) == ("ok", None)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', "empty"),
        (b'{"object":"list","data":[{"embedding":[0.1]}]}', "ok"),
        (b'{"error":{"type":"x"}}', "error"),
        (b"<html>", "empty"),
        (b"", "empty"),
    ],
)
def test_the_outcome_of_a_whole_answer(body: bytes, outcome: str) -> None:
    facts = read((1, body), content_type="application/json")
    assert outcome_of(200, facts, body_complete=True)[0] == outcome


@pytest.mark.parametrize(
    ("encoding", "why"), [("snappy", "content-encoding snappy"), ("gzip", "content-encoding broken: error")]
)
def test_a_body_that_cannot_be_decoded_is_unread_and_says_why(encoding: str, why: str) -> None:
    facts = read((1, b"\x1f\x8b..."), (2, b"..."), encoding=encoding)
    assert facts.unread == why
    assert (facts.first_byte_ns, facts.last_byte_ns, facts.first_token_ns, facts.body_bytes) == (1, 2, None, 8)
    assert outcome_of(200, facts, body_complete=True) == ("ok", None)


def test_a_compressed_stream_is_read_as_it_comes() -> None:
    press = zlib.compressobj(wbits=31)
    pieces = [press.compress(event(text)) + press.flush(zlib.Z_SYNC_FLUSH) for text in ("a", "b")]
    facts = read((1, pieces[0]), (5, pieces[1]), encoding="GZIP")
    assert (facts.first_token_ns, facts.token_gaps_ns) == (1, [4])
    assert facts.body_bytes == len(pieces[0]) + len(pieces[1])  # as they came


@pytest.mark.parametrize("encoding", ["", "identity", "Identity "])
def test_the_identity_encoding_is_read(encoding: str) -> None:
    assert read((1, event("a")), encoding=encoding).token_events == 1


def test_a_body_beyond_the_limit_is_counted_but_not_kept() -> None:
    facts = read((1, b"{"), (2, b" " * LONGEST_KEPT_BODY_BYTES), (3, b"}"), content_type="application/json")
    assert facts.unread == "body larger than 8388608 bytes"
    assert facts.body_bytes == LONGEST_KEPT_BODY_BYTES + 2


def test_the_terminal_event_ends_the_answer() -> None:
    reader = ResponseReader(SSE)
    reader.feed(event("a") + STOP, 1)
    assert not reader.ended
    reader.feed(DONE, 2)
    assert reader.ended


@pytest.mark.parametrize(
    ("status", "reads", "complete", "outcome"),
    [
        (200, event("a") + STOP, True, ("ok", None)),
        (200, event("a") + DONE, True, ("ok", None)),
        (200, event("a"), True, ("incomplete", "engine")),
        (200, ROLE, False, ("incomplete", "engine")),
        (200, ROLE + DONE, True, ("empty", "engine")),
        (500, event("a") + STOP, True, ("error", "engine")),
        (None, b"", False, ("incomplete", "engine")),
    ],
)
def test_outcomes(status: int | None, reads: bytes, complete: bool, outcome: tuple[str, str | None]) -> None:
    assert outcome_of(status, read((1, reads)), body_complete=complete) == outcome


def timings(**given: int) -> bytes:
    return b'data: {"choices":[],"timings":%b}\n\n' % json.dumps(given).encode()


def test_llama_cpp_tells_of_drafts_and_cached_tokens_beside_usage() -> None:
    facts = read(
        (1, event("a")), (2, timings(cache_n=30, prompt_n=2, predicted_n=8, draft_n=46, draft_n_accepted=39) + DONE)
    )
    assert (facts.prompt_tokens, facts.cached_tokens, facts.output_tokens) == (32, 30, 8)
    assert (facts.draft_tokens, facts.accepted_tokens) == (46, 39)


def test_drafts_that_an_answer_does_not_tell_of_are_unknown() -> None:
    facts = read((1, event("a")), (2, timings(cache_n=0, prompt_n=2, predicted_n=8) + DONE))
    assert (facts.cached_tokens, facts.draft_tokens, facts.accepted_tokens) == (0, None, None)
