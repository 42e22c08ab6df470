"""Public trouble reports, played to the real client over a real socket, each with its right answer.

The streams of the collection are played byte for byte with their own timing, and skipped where it is not beside the
repository. A machine may be late for once, so an instant may come 40 ms after its plan (as the collection allows) and
is looked at again before it counts as wrong; a wrong definition is wrong each time. Reports that are told in steps have
servers of their own here.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from profiles.answers import AnswerKeeper
from profiles.records import ENGINE, OK, TIMEOUT, Outcome
from profiles.stream import ResponseReader
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.client import Planned, Slot, Timeouts
from replay.clock import SystemClock, fine_event_loop

pytestmark = pytest.mark.process
CASES = Path(__file__).parents[2] / "shared" / "cases"
LATE_MS = 40.0
# Our clock starts before the request is sent, theirs when it has come.
EARLY_MS = 2.0
PLAYS = 3
# A stream that ends well without a token is an outcome of its own here; the collection calls it an error.
OUR_OUTCOME = {"S10": "empty"}
# Words for people, checked by a test of its own, or refused: an error's message may quote the prompt, so its type and
# code are all that is kept; what was reasoned is never sent back, so the two instants show that it was seen.
NOT_OF_THE_CLIENT = {
    "rule", "forbidden", "counts_as_success", "error_kind", "error_message_kept", "twin", "client_bytes", "reasoning",
}  # fmt: skip

type Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run[T](main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main, loop_factory=fine_event_loop)


def cases(prefix: str) -> list[Any]:
    path = CASES / "cases.jsonl"
    if not path.is_file():
        reason = f"the public case collection is not at {CASES}"
        return [pytest.param({}, marks=pytest.mark.skip(reason=reason), id="no-collection")]
    found = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        pytest.param(case, id=case["id"])
        for case in found
        if case["input"]["kind"] == "http_body" and case["id"].startswith(prefix)
    ]


@pytest.fixture(scope="module")
def player() -> Iterator[str]:
    """The address of the collection's own player, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(CASES / "play.py"), str(port), str(CASES)])
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None
            asyncio.run(asyncio.sleep(0.05))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


class Reading(ResponseReader):
    """The reader of the client, which also keeps what was said."""

    last: "Reading"

    def __init__(self, content_type: str = "", content_encoding: str = "") -> None:
        super().__init__(content_type, content_encoding, keep_answer=True)
        Reading.last = self


def play(player: str, case: dict[str, Any]) -> Outcome:
    path = f"/play/{case['id']}{(case.get('request') or {}).get('path', '/v1/chat/completions')}"

    async def main() -> Outcome:
        slot = Slot(player, SystemClock(), timeouts=Timeouts(), new_reader=Reading)
        # The connection is made and warm; a first use of code is not what a case is about.
        await slot.connect()
        outcome = await slot.send(Planned("w", 1, 0, 0, "chat", path, b'{"stream":true}'))
        assert slot.connections == 1
        await slot.close()
        return outcome

    return run(main())


def after_ms(outcome: Outcome, instant_ns: int | None) -> float | None:
    assert outcome.send_started_ns is not None
    return None if instant_ns is None else (instant_ns - outcome.send_started_ns) / MILLISECOND_NS


def lateness(outcome: Outcome, expected: dict[str, Any]) -> list[str]:
    """The instants that are not where the case wants them, in words."""
    facts = outcome.response
    wrong = []
    for key, instant_ns in (
        ("first_byte_ms", facts.first_byte_ns),
        ("ttft_ms", facts.first_token_ns),
        ("record_ttft_ms", facts.first_token_ns),
        ("ttft_content_ms", facts.first_content_ns),
    ):
        if key not in expected:
            continue
        wanted = least = expected[key]
        if isinstance(wanted, str):  # "100..105" or "150 +- 40"
            least, wanted = (float(part.split("+-")[0]) for part in (wanted.split("..")[0], wanted.split("..")[-1]))
        found = after_ms(outcome, instant_ns)
        if wanted is None or found is None:
            if wanted != found:
                wrong.append(f"{key} is {found}, not {wanted}")
        elif not least - EARLY_MS <= found <= wanted + LATE_MS:
            wrong.append(f"{key} is {found:.1f}, not {wanted}")
    gaps_ms = [gap / MILLISECOND_NS for gap in facts.token_gaps_ns]
    if "itl_ms" in expected and not all(
        abs(found - wanted) <= LATE_MS for found, wanted in zip(gaps_ms, expected["itl_ms"], strict=True)
    ):
        wrong.append(f"gaps are {gaps_ms}, not {expected['itl_ms']}")
    if "tpot_ms" in expected:
        assert facts.output_tokens is not None
        # k1 is 1 in these files, as the collection says.
        tpot_ms = sum(gaps_ms) / (facts.output_tokens - 1)
        if abs(tpot_ms - expected["tpot_ms"]) > LATE_MS / (facts.output_tokens - 1):
            wrong.append(f"tpot_ms is {tpot_ms:.1f}, not {expected['tpot_ms']}")
    return wrong


def text_of(reading: Reading) -> str | None:
    answer = reading.answer()
    if answer is None:
        return None
    texts = []
    for message in answer.messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        texts += [part.get("text") or "" for part in parts]
    return "".join(texts)


@pytest.mark.parametrize("case", cases("S") + cases("C02"))
def test_a_case_has_its_right_answer(case: dict[str, Any], player: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiles.stream.AnswerKeeper", lambda: AnswerKeeper(1 << 22))
    expected = case["expected"]
    for _ in range(PLAYS):
        outcome = play(player, case)
        wrong = lateness(outcome, expected)
        if not wrong:
            break
    assert not wrong
    facts = outcome.response
    assert outcome.outcome == OUR_OUTCOME.get(case["id"], expected["outcome"])
    assert outcome.origin == (None if outcome.outcome == OK else ENGINE)
    assert outcome.resent == 0
    if expected.get("counts_as_success") is False:
        assert outcome.outcome != OK
    counted = facts.output_tokens if facts.output_tokens is not None else facts.token_events
    source = "chunks" if facts.output_tokens is None else "usage"
    text = text_of(Reading.last)
    found = {
        "output_tokens": counted,
        "output_tokens_source": source,
        "prompt_tokens": facts.prompt_tokens,
        "chunks": facts.token_events,
        "done_marker": facts.done and case["id"] != "S29",  # there it is response.completed that ends it
        "finish_reason": facts.finish,
        "error_type": facts.error,
        "error_code": facts.error_code,
        "malformed_events": facts.malformed,
        "text": text,
        "record_text": text,
        "text_length": len(text or ""),
        "requests_sent": 1 + outcome.resent,
        "no_replacement_characters": "\N{REPLACEMENT CHARACTER}" not in (text or ""),
        "tool_calls": _tool_calls(Reading.last),
        "empty_events": 0 if facts.malformed == 0 else None,
    }
    for key, value in expected.items():
        if key in found:
            assert found[key] == value, key
    assert facts.malformed >= expected.get("malformed_events_min", 0)
    if "text_either" in expected:
        assert text in expected["text_either"]


def _tool_calls(reading: Reading) -> int:
    answer = reading.answer()
    return 0 if answer is None else sum(len(message.get("tool_calls") or ()) for message in answer.messages)


def test_every_claim_of_a_case_is_looked_at() -> None:
    known = {
        "outcome", "text", "ttft_ms", "first_byte_ms", "ttft_content_ms", "itl_ms", "tpot_ms", "output_tokens",
        "prompt_tokens", "chunks", "done_marker", "finish_reason", "error_type", "error_code", "malformed_events",
        "malformed_events_min", "record_text", "record_ttft_ms", "text_length", "no_replacement_characters",
        "tool_calls", "empty_events", "text_either", "requests_sent", "output_tokens_source",
    }  # fmt: skip
    for param in cases("S") + cases("C02"):
        (case,) = param.values
        assert set(case.get("expected", ())) <= known | NOT_OF_THE_CLIENT, case.get("id")


# Reports told in steps. Their times are divided by ten or more.

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def served(answer: Serve) -> AsyncIterator[str]:
    """The address of a server that calls `answer` for each request, once its body has come."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                await reader.readexactly(next(int(line[15:]) for line in lines if line.startswith(b"content-length:")))
                await answer(reader, writer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0, backlog=256) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def planned(index: int = 0, due_ns: int | None = None) -> Planned:
    return Planned("w", 1, index, 0, "chat", "/v1/chat/completions", b'{"stream":true}', due_ns=due_ns)


@pytest.mark.parametrize("c", [8, 128])
def test_r01_as_many_are_in_flight_as_were_planned(c: int) -> None:
    """The limits of a connection pool cap the load without a word. Here a slot is a connection."""
    now = peak = 0
    all_there = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        if now == c:
            all_there.set()
        async with asyncio.timeout(30):
            await all_there.wait()
        writer.write(HEAD + chunk(TOKEN + END) + b"0\r\n\r\n")

    async def main() -> list[Outcome]:
        async with served(answer) as url:
            slots = [Slot(url, SystemClock(), timeouts=Timeouts()) for _ in range(c)]
            outcomes = await asyncio.gather(*(slot.send(planned(index)) for index, slot in enumerate(slots)))
            for slot in slots:
                await slot.close()
            return outcomes

    assert [outcome.outcome for outcome in run(main())] == [OK] * c
    assert peak == c


def test_r02_the_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TOKEN + END) + b"0\r\n\r\n")

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(100))
        writer.close()

    async def main() -> list[Outcome]:
        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for name, scheme in (("HTTP_PROXY", "http"), ("HTTPS_PROXY", "http"), ("ALL_PROXY", "socks5")):
                monkeypatch.setenv(name, f"{scheme}://{address}")
                monkeypatch.setenv(name.lower(), f"{scheme}://{address}")
            monkeypatch.setenv("NO_PROXY", "localhost,10.0.0.0/8")
            async with served(answer) as url:
                slot = Slot(url, SystemClock(), timeouts=Timeouts())
                outcomes = [await slot.send(planned(index)) for index in range(5)]
                await slot.close()
                return outcomes

    assert [outcome.outcome for outcome in run(main())] == [OK] * 5
    assert asked == []


def test_r03_waiting_in_the_client_is_seen_from_the_due_time_and_not_in_the_service_time() -> None:
    """Eight arrivals 10 ms apart, one at a time, 50 ms each: the waits are 0, 40, 80, ... 280 ms."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(HEAD + chunk(TOKEN + END) + b"0\r\n\r\n")

    async def main() -> list[Outcome]:
        clock = SystemClock()
        async with served(answer) as url:
            slot = Slot(url, clock, timeouts=Timeouts())
            await slot.connect()
            anchor_ns = clock.now_ns() + 10 * MILLISECOND_NS
            outcomes = []
            for index in range(8):
                due_ns = anchor_ns + index * 10 * MILLISECOND_NS
                await clock.sleep_until_ns(due_ns)
                outcomes.append(await slot.send(planned(index, due_ns)))
            await slot.close()
            return outcomes

    outcomes = run(main())
    service_ms = [(outcome.end_ns - (outcome.send_started_ns or 0)) / MILLISECOND_NS for outcome in outcomes]
    waits_ms = [((outcome.send_started_ns or 0) - (outcome.due_ns or 0)) / MILLISECOND_NS for outcome in outcomes]
    assert min(service_ms) >= 49
    # What a service took longer than 50 ms the next ones wait longer, and nothing else.
    for index, wait_ms in enumerate(waits_ms):
        assert wait_ms >= 39 * index - 1
        assert abs(wait_ms - max(0.0, sum(service_ms[:index]) - 10 * index)) < LATE_MS


def test_r05_a_refusal_is_an_outcome_and_nothing_is_tried_again() -> None:
    seen = 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        writer.write(b"HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n")

    async def main() -> list[Outcome]:
        async with served(answer) as url:
            slot = Slot(url, SystemClock(), timeouts=Timeouts())
            outcomes = [await slot.send(planned(index)) for index in range(10)]
            await slot.close()
            return outcomes

    outcomes = run(main())
    assert [(outcome.outcome, outcome.status, outcome.reason) for outcome in outcomes] == [
        ("error", 503, "HTTP 503")
    ] * 10
    assert seen == 10


def test_r06_a_slow_first_token_is_waited_for_and_a_missing_one_is_a_timeout_of_its_stage() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await asyncio.sleep(0.35)
        for data in (TOKEN, TOKEN + END):
            writer.write(chunk(data))
        writer.write(b"0\r\n\r\n")

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await reader.read()

    async def ask(serve: Serve) -> Outcome:
        async with served(serve) as url:
            limits = Timeouts(first_token_ns=SECOND_NS, total_ns=3 * SECOND_NS)
            slot = Slot(url, SystemClock(), timeouts=limits)
            outcome = await slot.send(planned())
            await slot.close()
            return outcome

    slow = run(ask(answer))
    assert slow.outcome == OK
    ttft_ms = after_ms(slow, slow.response.first_token_ns)
    assert ttft_ms is not None
    assert 349 <= ttft_ms <= 1000
    hung = run(ask(silent))
    assert (hung.outcome, hung.reason, hung.status) == (TIMEOUT, "no first token within 1 s", 200)
    # It stays in the data, with its limit.
    assert hung.end_ns - (hung.send_started_ns or 0) >= SECOND_NS
    assert hung.response.first_token_ns is None
