"""Public trouble reports of streams, played into the reader with their timing. Skipped where the collection is not
beside the repository."""

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.records import ResponseFacts, outcome_of
from profiles.stream import ResponseReader

CASES = Path(__file__).parents[2] / "shared" / "cases"
# A stream without any token is an outcome of its own here; the collection calls it an error.
OUR_OUTCOME = {"S10": "empty"}


def stream_cases() -> list[Any]:
    path = CASES / "cases.jsonl"
    if not path.is_file():
        reason = f"the public case collection is not at {CASES}"
        return [pytest.param({}, marks=pytest.mark.skip(reason=reason), id="no-collection")]
    cases = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [pytest.param(case, id=case["id"]) for case in cases if case["id"].startswith("S")]


def play(plan: dict[str, Any], body: bytes) -> ResponseFacts:
    headers = {name.lower(): value for name, value in plan["headers"].items()}
    reader = ResponseReader(headers.get("content-type", ""), headers.get("content-encoding", ""))
    for piece in plan["writes"]:
        reader.feed(body[piece["from"] : piece["to"]], piece["at_ms"] * 1_000_000)
    return reader.finish()


def lies_within(value: float | None, expected: Any) -> bool:
    """`expected` is a number, null, or a range such as `100..105`."""
    if isinstance(expected, str):
        low, _, high = expected.partition("..")
        return value is not None and float(low) <= value <= float(high)
    return bool(value == expected)


@pytest.mark.parametrize("case", stream_cases())
def test_a_case_reads_as_it_should(case: dict[str, Any]) -> None:
    plan = json.loads((CASES / case["input"]["plan_file"]).read_text(encoding="utf-8"))
    facts = play(plan, (CASES / plan["body_file"]).read_bytes())
    expected = case["expected"]

    outcome, _ = outcome_of(plan["status"], facts, body_complete=plan["end"] != "reset")
    assert outcome == OUR_OUTCOME.get(case["id"], expected["outcome"])
    for key, instant_ns in (
        ("first_byte_ms", facts.first_byte_ns),
        ("ttft_ms", facts.first_token_ns),
        ("ttft_content_ms", facts.first_content_ns),
    ):
        if key in expected:
            assert lies_within(None if instant_ns is None else instant_ns / 1e6, expected[key]), key
    if "output_tokens" in expected:
        # Without usage the count of token-bearing events is all there is, and it is called an estimate.
        counted = facts.output_tokens if facts.output_tokens is not None else facts.token_events
        assert counted == expected["output_tokens"]
    for key, found in (
        ("prompt_tokens", facts.prompt_tokens),
        ("error_type", facts.error),
        ("finish_reason", facts.finish),
        ("malformed_events", facts.malformed),
    ):
        if key in expected:
            assert found == expected[key], key
    assert facts.malformed >= expected.get("malformed_events_min", 0)


def test_a_responses_stream_without_its_last_event_is_incomplete() -> None:
    path = CASES / "files" / "S29.sse"
    if not path.is_file():
        pytest.skip(f"the public case collection is not at {CASES}")
    body = path.read_bytes()
    reader = ResponseReader("text/event-stream")
    reader.feed(body[: body.rindex(b"event: response.completed")], 1)
    assert outcome_of(200, reader.finish(), body_complete=True) == ("incomplete", "engine")
