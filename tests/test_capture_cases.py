"""Public trouble reports and every endpoint through a real recorder: the bytes are right, and so are its records.

The engine sends the next piece of a case when the client has the one before. So every instant of a record must lie
between the engine's send and the client's read of one certain piece, whatever the speed of the machine.
"""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import pytest
from raw_http import (
    CHAT,
    CHUNKED,
    JSON,
    PATIENCE_S,
    SSE,
    Lab,
    Message,
    Wire,
    answer,
    check_alike,
    get,
    head_of,
    lab_in,
    post,
    streamed,
)

from profiles.capture_folder import segment_paths
from profiles.captures import read_capture
from profiles.records import Exchange

pytestmark = pytest.mark.process

CASES = Path(__file__).parents[2] / "shared" / "cases"
# A stream without any token is an outcome of its own here; the collection calls it an error.
OUR_OUTCOME = {"S10": "empty"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_in(tmp_path_factory.mktemp("cases") / "c") as lab:
        yield lab


def body_cases() -> list[Any]:
    path = CASES / "cases.jsonl"
    if not path.is_file():
        reason = f"the public case collection is not at {CASES}"
        return [pytest.param({}, marks=pytest.mark.skip(reason=reason), id="no-collection")]
    cases = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [pytest.param(case, id=case["id"]) for case in cases if case["input"]["kind"] == "http_body"]


@dataclass
class Play:
    """One case played over one connection, each piece sent when the client has the one before."""

    plan: dict[str, Any]
    body: bytes
    sent_ns: dict[int, int] = field(default_factory=dict)  # piece: before it was handed to the socket
    read_ns: dict[int, int] = field(default_factory=dict)  # piece: when the client had all of it

    def __post_init__(self) -> None:
        self._has = [threading.Event() for _ in self.plan["writes"]]

    @cached_property
    def fields(self) -> tuple[tuple[bytes, bytes], ...]:
        return (*((name.encode(), value.encode()) for name, value in self.plan["headers"].items()), CHUNKED)

    def send(self, wire: Wire, _: Message) -> None:
        wire.send(head_of(b"HTTP/1.1 %d X" % self.plan["status"], self.fields))
        for at, piece in enumerate(self.plan["writes"]):
            data = self.body[piece["from"] : piece["to"]]
            self.sent_ns[at] = time.monotonic_ns()
            if data:
                wire.send(b"%x\r\n%s\r\n" % (len(data), data))
                assert self._has[at].wait(PATIENCE_S)
        wire.send(b"0\r\n\r\n")

    def ask(self, port: int, request: bytes) -> Message:
        with Wire.to(port) as client:
            client.send(request)
            head, body = client.head(), b""
            for at, piece in enumerate(self.plan["writes"]):
                while len(body) < piece["to"]:
                    body += client.chunk()
                self.read_ns[at] = time.monotonic_ns()
                self._has[at].set()
            assert client.chunk() == b""
            return Message(head.start, head.fields, body, client.trailers())

    def holds(self, instant_ns: int, expected: Any) -> bool:
        """Whether this instant belongs to the piece that the plan sends at `expected` ms: a number or a range."""
        low, _, high = str(expected).split(" +-")[0].partition("..")
        pieces = [
            at for at, piece in enumerate(self.plan["writes"]) if float(low) <= piece["at_ms"] <= float(high or low)
        ]
        return any(self.sent_ns[at] <= instant_ns <= self.read_ns[at] for at in pieces)


def check_instant(lab: Lab, play: Play, instant_ns: int | None, expected: Any) -> None:
    if expected is None:
        assert instant_ns is None
    else:
        assert instant_ns is not None
        assert play.holds(instant_ns - shift_ns(lab), expected)


def shift_ns(lab: Lab) -> int:
    """From the monotonic clock, which all processes share, to that of the records that were read."""
    head = orjson.loads(segment_paths(lab.recorder.out)[0].read_bytes().split(b"\n", 1)[0])
    return int(head["wall_ns"] - head["mono_ns"])


@pytest.mark.parametrize("case", body_cases())
def test_a_case_passes_and_is_recorded_as_it_should(lab: Lab, case: dict[str, Any]) -> None:
    name, expected = case["id"], case["expected"]
    plan = json.loads((CASES / case["input"]["plan_file"]).read_text(encoding="utf-8"))
    body = (CASES / plan["body_file"]).read_bytes()
    path = case["input"].get("request", {}).get("path", "/v1/chat/completions")
    request = post(name, path=path)
    if path == "/metrics":
        request = get(name, path=path)

    direct, play = Play(plan, body), Play(plan, body)
    lab.engine.on(name, direct.send)
    wanted = direct.ask(lab.engine.port, request)
    lab.engine.on(name, play.send)
    check_alike(play.ask(lab.recorder.port, request), wanted)
    assert wanted.body == body

    if path == "/metrics":
        return  # passed through, not recorded
    record = lab.recorder.record_of(name)
    facts = record.response
    assert record.outcome == OUR_OUTCOME.get(name, expected["outcome"])
    assert record.status == plan["status"]
    for key, instant_ns in (
        ("first_byte_ms", facts.first_byte_ns),
        ("ttft_ms", facts.first_token_ns),
        ("record_ttft_ms", facts.first_token_ns),
        ("ttft_content_ms", facts.first_content_ns),
    ):
        if key in expected:
            check_instant(lab, play, instant_ns, expected[key])
    if "output_tokens" in expected:
        # Without usage the count of token-bearing events is all there is, and it is called an estimate.
        counted = facts.output_tokens if facts.output_tokens is not None else facts.token_events
        assert counted == expected["output_tokens"]
        if "output_tokens_source" in expected:
            assert (facts.output_tokens is None) == (expected["output_tokens_source"] == "chunks")
    for key, found in (
        ("prompt_tokens", facts.prompt_tokens),
        ("error_type", facts.error),
        ("finish_reason", facts.finish),
        ("malformed_events", facts.malformed),
        ("chunks", facts.token_events),
    ):
        if key in expected:
            assert found == expected[key], key
    assert facts.malformed >= expected.get("malformed_events_min", 0)
    check_order(record)


def check_order(record: Exchange) -> None:
    facts = record.response
    instants = [
        record.arrival_ns,
        record.dispatch_ns,
        record.headers_ns,
        facts.first_byte_ns,
        facts.first_token_ns,
        facts.first_content_ns,
        facts.last_token_ns,
        facts.last_byte_ns,
        record.end_ns,
    ]
    known = [instant for instant in instants if instant is not None]
    assert known == sorted(known)
    assert (facts.first_token_ns is None) == (facts.last_token_ns is None) == (facts.token_events == 0)


def event(name: str = "", **data: Any) -> bytes:
    named = b"event: %s\n" % name.encode() if name else b""
    return named + b"data: " + orjson.dumps({"type": name, **data} if name else data) + b"\n\n"


def delta(text: str, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}}], **more)


def usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


DONE = b"data: [DONE]\n\n"
FINISH = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
COMPLETION = event(choices=[{"text": "Hi", "finish_reason": None}])
COMPLETION_END = event(choices=[{"text": "", "finish_reason": "length"}], usage=usage(5, 1))
RESPONSES = (
    event("response.created", response={"status": "in_progress"}),
    event("response.output_text.delta", delta="Hel"),
    event("response.output_text.delta", delta="lo"),
    event("response.completed", response={"status": "completed", "usage": {"input_tokens": 8, "output_tokens": 9}}),
)
MESSAGES = (
    event("message_start", message={"usage": {"input_tokens": 11, "output_tokens": 1}}),
    event("ping"),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hel"}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "lo"}),
    event("content_block_stop", index=0),
    event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 12}),
    event("message_stop"),
)


DIALECTS = {
    # name: path, events, and what is to be read: prompt tokens, output tokens, events with tokens
    "usage-last": (CHAT, (delta("a"), delta("bc"), FINISH, event(choices=[], usage=usage(3, 7)), DONE), (3, 7, 2)),
    "usage-each": (CHAT, (delta("a", usage=usage(3, 2)), delta("b", usage=usage(3, 5)), FINISH, DONE), (3, 5, 2)),
    "usage-never": (CHAT, (delta("a"), delta("b"), delta("c"), FINISH, DONE), (None, None, 3)),
    "completions": ("/v1/completions", (COMPLETION, COMPLETION_END, DONE), (5, 1, 1)),
    "responses": ("/v1/responses", RESPONSES, (8, 9, 2)),
    "messages": ("/v1/messages", MESSAGES, (11, 12, 2)),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_stream_of_each_dialect_has_its_tokens(lab: Lab, name: str) -> None:
    path, events, tokens = DIALECTS[name]
    endpoint = "chat" if path == CHAT else path.rpartition("/")[2]
    lab.engine.on(name, streamed(events, SSE))
    assert lab.passes(name, post(name, path=path)).body == b"".join(events)
    record = lab.recorder.record_of(name)
    facts = record.response
    assert (record.endpoint, record.outcome, record.request.stream) == (endpoint, "ok", True)
    assert (facts.prompt_tokens, facts.output_tokens, facts.token_events) == tokens
    check_order(record)


FLOATS = [((number * 7919) % 20_011) / 20_011 - 0.5 for number in range(4096)]


SPENT = {"input_tokens": 4, "output_tokens": 2}
CHOICE = {"message": {"content": "Hi"}, "finish_reason": "stop"}
PART = {"type": "text", "text": "Hi"}
WHOLE: dict[str, dict[str, Any]] = {
    "chat": {"choices": [CHOICE], "usage": usage(4, 2)},
    "completions": {"choices": [{"text": "Hi", "finish_reason": "stop"}], "usage": usage(4, 2)},
    "responses": {
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "content": [PART]}],
        "usage": SPENT,
    },
    "messages": {"type": "message", "content": [PART], "stop_reason": "end_turn", "usage": SPENT},
    "embeddings": {
        "data": [{"embedding": FLOATS, "index": at} for at in range(16)],
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    },
}


@pytest.mark.parametrize("endpoint", WHOLE)
def test_a_whole_answer_of_each_dialect_has_its_tokens_and_no_first_token(lab: Lab, endpoint: str) -> None:
    name, body = f"whole-{endpoint}", orjson.dumps(WHOLE[endpoint])
    path = CHAT if endpoint == "chat" else f"/v1/{endpoint}"
    lab.engine.on(name, answer(body, JSON))
    assert lab.passes(name, post(name, path=path, body=b'{"model":"%s","input":"x"}' % name.encode())).body == body
    record = lab.recorder.record_of(name)
    facts = record.response
    assert (record.endpoint, record.outcome, record.request.stream) == (endpoint, "ok", False)
    assert (facts.prompt_tokens, facts.output_tokens, facts.body_bytes) == (
        4,
        None if endpoint == "embeddings" else 2,
        len(body),
    )
    assert (facts.first_token_ns, facts.first_content_ns) == (None, None)
    assert facts.first_byte_ns is not None
    check_order(record)


def test_every_request_of_this_file_ended_once_and_alone(lab: Lab) -> None:
    capture = read_capture(lab.recorder.out)
    assert capture.open == []
    assert len({record.id for record in capture.exchanges}) == len(capture.exchanges)
    assert {record.in_flight for record in capture.exchanges} <= {0}
