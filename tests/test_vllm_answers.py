"""What vLLM tells of a request's drafts in its answer (--per-request-spec-decode-metrics), and that it adds up.

The last chunk below is what vLLM 0.32.0 sent (CPU build, SmolLM2-135M, n-gram drafts of two tokens), byte for byte.
"""

from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.acceptance import acceptance_by_class
from profiles.counters import Acceptance, acceptance_told
from profiles.dialects import read_event
from profiles.records import OK, Outcome, ResponseFacts
from profiles.runs import Boot, BootFacts, WindowFacts
from profiles.stream import ResponseReader

LAST_CHUNK = (
    b'{"id":"chatcmpl-a3b400296b2bd12d","object":"chat.completion.chunk","created":1796126451,"model":"smollm2","choices":[],'
    b'"usage":{"prompt_tokens":44,"total_tokens":57,"completion_tokens":13,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}},'
    b'"system_fingerprint":"vllm-0.32.0-3b3cf9f4",'
    b'"metrics":{"speculative_decoding":{"mean_acceptance_length":2.6,"draft_acceptance_rate":0.8,'
    b'"acceptance_histogram":[1,0,4],"num_spec_steps":5,"num_accepted_draft_tokens":8,"num_draft_tokens":10,"num_spec_tokens":2}}}'
)


def answer(chunk: bytes) -> ResponseFacts:
    """A stream of one token and this last chunk, read."""
    reader = ResponseReader("text/event-stream")
    reader.feed(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', 1)
    reader.feed(b"data: " + chunk + b"\n\ndata: [DONE]\n\n", 2)
    return reader.finish()


def test_the_last_chunk_tells_drafts_and_steps_and_they_are_written_down() -> None:
    facts = answer(LAST_CHUNK)
    assert (facts.prompt_tokens, facts.output_tokens, facts.cached_tokens) == (44, 13, 0)
    assert (facts.draft_tokens, facts.accepted_tokens, facts.draft_steps) == (10, 8, [1, 0, 4])
    written = msgspec.json.encode(facts)
    assert msgspec.json.decode(written, type=ResponseFacts) == facts


def test_what_an_older_line_does_not_say_is_null() -> None:
    assert msgspec.json.decode(b'{"draft_tokens":34,"accepted_tokens":15}', type=ResponseFacts).draft_steps is None


@pytest.mark.parametrize(
    "metrics",
    [
        None,  # speculation is off, or the flag says none
        {},
        {"time_to_first_token_ms": 3.5},
        {"speculative_decoding": None},  # n > 1
        {"speculative_decoding": []},
        {"speculative_decoding": {}},
        {"speculative_decoding": {"num_draft_tokens": -1}},
        {"speculative_decoding": {"num_draft_tokens": True}},
        "fast",
    ],
)
def test_an_answer_that_does_not_tell_has_null_and_never_zero(metrics: Any) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    reading = read_event(msgspec.json.encode({"choices": [], "usage": usage, "metrics": metrics}))
    assert reading.usage is not None
    assert (reading.usage.prompt_tokens, reading.usage.output_tokens) == (3, 2)
    assert (reading.usage.draft_tokens, reading.usage.accepted_tokens, reading.usage.draft_steps) == (None, None, None)


@pytest.mark.parametrize("steps", [None, {}, "917", [9, -1], [9, 1.5], [True, 2]])
def test_steps_that_are_no_counts_are_null_beside_what_is_known(steps: Any) -> None:
    told = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 1, "acceptance_histogram": steps}
    reading = read_event(msgspec.json.encode({"choices": [], "metrics": {"speculative_decoding": told}}))
    assert reading.usage is not None
    assert (reading.usage.draft_tokens, reading.usage.accepted_tokens, reading.usage.draft_steps) == (4, 1, None)


def told(steps: list[int], drafted: int | None = None) -> ResponseFacts:
    held = sum(held * count for held, count in enumerate(steps))
    most = (len(steps) - 1) * sum(steps)
    return ResponseFacts(draft_tokens=most if drafted is None else drafted, accepted_tokens=held, draft_steps=steps)


def test_steps_add_up_to_what_the_counters_would_say() -> None:
    # 17 steps: 7 held both tokens, 1 the first one; and 4 steps: 1 held both, 2 the first one.
    found = acceptance_told([told([9, 1, 7]), told([1, 2, 1])])
    assert found == Acceptance(drafts=21, accepted=19, drafted=42, per_position=(11, 8))
    assert found is not None
    assert found.problem is None


def test_one_answer_that_does_not_tell_leaves_the_sum_unknown() -> None:
    assert acceptance_told([told([9, 1, 7]), ResponseFacts(draft_tokens=4, accepted_tokens=1)]) is None
    assert acceptance_told([]) is None
    assert acceptance_told([told([0, 0, 0])]) is None  # no step had a draft: no rate, never 0 of 0


@given(st.lists(st.lists(st.integers(0, 50), min_size=2, max_size=6), max_size=8))
def test_positions_add_up_and_never_rise_whatever_the_draft_lengths(answers: list[list[int]]) -> None:
    found = acceptance_told([told(steps) for steps in answers])
    steps = sum(map(sum, answers))
    if found is None:
        assert steps == 0
        return
    assert found.drafts == steps
    assert found.problem is None
    assert found.per_position is not None
    assert list(found.per_position) == sorted(found.per_position, reverse=True)
    # By counting each step's tokens one by one.
    by_hand: dict[int, int] = {}
    for histogram in answers:
        for held, count in enumerate(histogram):
            for position in range(held):
                by_hand[position] = by_hand.get(position, 0) + count
    assert [by_hand.get(position, 0) for position in range(len(found.per_position))] == list(found.per_position)
    assert all(total >= 0 for total in accumulate(found.per_position))


def test_a_report_takes_length_and_positions_from_the_answers_where_there_is_no_metrics_endpoint(tmp_path: Any) -> None:
    window = WindowFacts(
        name="single-code", kind="single", c=1, deciding=False, workload="code", started_ns=0, ended_ns=9, requests=2
    )
    facts = BootFacts(
        arm="v0", block=1, slot=1, status="done", argv=["vllm"], wall_ns=0, mono_ns=0, windows=[window]
    )  # fmt: skip
    outcomes = [
        Outcome(
            window="single-code",
            c=1,
            index=index,
            request=index,
            workload="code",
            end_ns=9,
            outcome=OK,
            response=response,
        )
        for index, response in enumerate([told([9, 1, 7]), told([1, 2, 1])])
    ]
    found = acceptance_by_class([Boot(tmp_path, facts, outcomes)])["code"]
    assert (found.source, found.problem) == ("answers", None)
    assert found.length == pytest.approx(1 + 19 / 21)
    assert found.rate == pytest.approx(19 / 42)
    assert found.position_rates == pytest.approx((11 / 21, 8 / 21))
