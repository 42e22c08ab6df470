"""Records on the wire: what is written reads back, and what a later version adds is ignored."""

import msgspec
import pytest

from profiles.records import Exchange, Outcome, RequestFacts, ResponseFacts, outcome_of, token_instants_ns

RESPONSE = ResponseFacts(
    first_byte_ns=1, first_token_ns=5, last_token_ns=12, token_gaps_ns=[0, 7], output=True, done=True
)
EXCHANGE = Exchange(
    id="a", endpoint="chat", method="POST", path="/v1/chat/completions", arrival_ns=0, end_ns=13, status=200,
    outcome="ok", request=RequestFacts(model="m", temperature=0.5), response=RESPONSE,
)  # fmt: skip
OUTCOME = Outcome(window="w", c=2, index=0, request=3, workload="code", end_ns=9, outcome="timeout", response=RESPONSE)


@pytest.mark.parametrize("record", [RESPONSE, EXCHANGE, OUTCOME])
def test_a_record_reads_back(record: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(record), type=type(record)) == record


def test_a_key_of_a_later_version_is_ignored() -> None:
    assert msgspec.json.decode(b'{"first_token_ns":5,"added_later":1}', type=ResponseFacts).first_token_ns == 5


def test_the_gaps_give_every_instant() -> None:
    assert token_instants_ns(RESPONSE) == [5, 5, 12]
    assert RESPONSE.token_events == 3


def test_no_token_gives_no_instant() -> None:
    assert token_instants_ns(ResponseFacts()) == ()
    assert ResponseFacts().token_events == 0


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (ResponseFacts(output=True, finish="stop"), "ok"),
        (ResponseFacts(output=True, done=True), "ok"),
        (ResponseFacts(output=True), "incomplete"),
        (ResponseFacts(done=True), "empty"),
        (ResponseFacts(output=True, done=True, error="x"), "error"),
        (ResponseFacts(unread="content-encoding br"), "ok"),
    ],
)
def test_status_200_is_not_yet_success(facts: ResponseFacts, outcome: str) -> None:
    assert outcome_of(200, facts, body_complete=True)[0] == outcome
    assert outcome_of(503, facts, body_complete=True) == ("error", "engine")
