"""The replay client and a whole window in virtual time: exact instants, no tolerance."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from virtual import VirtualClock, run_virtual

from profiles.records import Outcome
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.client import Planned, Slot, Timeouts
from replay.loop_lag import LoopLag
from replay.player import play_closed, tokens_until
from replay.schedule import ClosedLoop

HEAD = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def token(text: str) -> bytes:
    return f'data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}\n\n'.encode()


def usage(output: int) -> bytes:
    return f'data: {{"choices":[],"usage":{{"prompt_tokens":7,"completion_tokens":{output}}}}}\n\n'.encode()


ANSWER = (
    (0.0, HEAD),
    (0.25, token("a")),
    (0.02, token("b")),
    (0.02, token("c") + END),
    (0.0, usage(6) + DONE),
)


class Script(httpx.AsyncByteStream):
    """Pieces with the pause before each; an exception instead of a piece breaks the stream."""

    def __init__(self, pieces: tuple[tuple[float, bytes | Exception], ...]) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for pause, piece in self.pieces:
            await asyncio.sleep(pause)
            if isinstance(piece, Exception):
                raise piece
            yield piece


def engine(pieces: tuple[tuple[float, bytes | Exception], ...] = ANSWER, status: int = 200) -> httpx.MockTransport:
    headers = {"content-type": "text/event-stream"}
    return httpx.MockTransport(lambda _: httpx.Response(status, headers=headers, stream=Script(pieces)))


def planned(index: int = 0) -> Planned:
    return Planned("closed-c1", 1, index, 40 + index, "chat", "/v1/chat/completions", b"{}")


def send(
    transport: httpx.AsyncBaseTransport,
    timeout_ns: int = 600 * SECOND_NS,
    *,
    timeouts: Timeouts | None = None,
    total_ns: int | None = None,
    streamed: bool = True,
) -> Outcome:
    async def main() -> Outcome:
        await asyncio.sleep(3600)  # an hour of schedule costs nothing
        limits = timeouts or Timeouts(total_ns=timeout_ns)
        slot = Slot("http://engine", VirtualClock(), timeouts=limits, transport=transport)
        return await slot.send(replace(planned(), streamed=streamed), total_ns=total_ns)

    return run_virtual(main())


def test_instants_are_those_of_the_reads() -> None:
    outcome = send(engine())
    start = 3600 * SECOND_NS
    facts = outcome.response
    assert (outcome.outcome, outcome.origin, outcome.status) == ("ok", None, 200)
    assert outcome.send_started_ns == start  # no trace event comes from a mock: then it is the call itself
    assert facts.first_byte_ns == start  # the role chunk is a byte but not a token
    assert facts.first_token_ns == start + 250 * MILLISECOND_NS
    assert facts.token_gaps_ns == [20 * MILLISECOND_NS, 20 * MILLISECOND_NS]
    assert outcome.end_ns == start + 290 * MILLISECOND_NS
    assert (facts.output_tokens, facts.prompt_tokens, facts.finish, facts.done) == (6, 7, "stop", True)


def test_a_timeout_keeps_what_was_known() -> None:
    outcome = send(engine((*ANSWER[:2], (9999.0, DONE))), timeout_ns=60 * SECOND_NS)
    assert (outcome.outcome, outcome.origin, outcome.reason) == ("timeout", "engine", "no end within 60 s")
    assert outcome.end_ns == 3660 * SECOND_NS
    assert outcome.response.first_token_ns == 3600 * SECOND_NS + 250 * MILLISECOND_NS


COMMENT = b": keep-alive\n\n"
# Each limit differs from the others, so that the one that struck can be told.
STAGES = Timeouts(first_token_ns=20 * SECOND_NS, gap_ns=7 * SECOND_NS, total_ns=60 * SECOND_NS)


@pytest.mark.parametrize(
    ("pieces", "at_s", "reason"),
    [
        # A head, a role and comments are no tokens, however often they come.
        (((0.0, HEAD), *((5.0, COMMENT),) * 99), 20, "no first token within 20 s"),
        (((99.0, HEAD),), 20, "no first token within 20 s"),
        # After the first token every read counts, one without a token too: the engine is alive.
        (((19.0, token("a")), *((6.0, COMMENT),) * 3, (8.0, DONE)), 19 + 18 + 7, "nothing came for 7 s"),
        (((1.0, token("a")), *((6.0, token("b")),) * 99), 60, "no end within 60 s"),
    ],
)
def test_a_timeout_names_the_stage_that_took_too_long(
    pieces: tuple[tuple[float, bytes | Exception], ...], at_s: int, reason: str
) -> None:
    outcome = send(engine(pieces), timeouts=STAGES)
    assert (outcome.outcome, outcome.origin, outcome.reason) == ("timeout", "engine", reason)
    assert outcome.end_ns == (3600 + at_s) * SECOND_NS
    assert outcome.status == 200


def test_a_slow_but_steady_answer_is_no_timeout() -> None:
    outcome = send(engine(((19.0, token("a")), *((6.5, token("b")),) * 5, (6.5, END + DONE))), timeouts=STAGES)
    assert (outcome.outcome, outcome.response.token_events) == ("ok", 6)


def test_what_was_not_asked_as_a_stream_has_no_first_token_to_wait_for() -> None:
    whole = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'
    pieces = ((50.0, whole),)
    assert send(engine(pieces), timeouts=STAGES).outcome == "timeout"
    asked = httpx.MockTransport(
        lambda _: httpx.Response(200, headers={"content-type": "application/json"}, stream=Script(pieces))
    )
    outcome = send(asked, timeouts=STAGES, streamed=False)
    assert (outcome.outcome, outcome.response.first_token_ns) == ("ok", None)


def test_a_limit_of_one_request_can_only_be_stricter() -> None:
    slow = ((1.0, token("a")), *((6.0, token("b")),) * 99)
    for total_s, at_s in ((30, 30), (90, 60)):
        outcome = send(engine(slow), timeouts=STAGES, total_ns=total_s * SECOND_NS)
        assert outcome.reason == f"no end within {at_s} s"
        assert outcome.end_ns == (3600 + at_s) * SECOND_NS


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpx.ConnectTimeout("no connection within 10 s"), ("timeout", "engine", "no connection within 10 s")),
        (httpx.ConnectError("refused"), ("error", "engine", "cannot connect: refused")),
        (httpx.ReadTimeout(""), ("timeout", "engine", "ReadTimeout")),
        (httpx.RemoteProtocolError("not HTTP"), ("incomplete", "engine", "not HTTP")),
        (httpx.WriteError("broken pipe"), ("incomplete", "engine", "WriteError: broken pipe")),
        (httpx.LocalProtocolError("a line break"), ("error", "client", "a line break")),
        (httpx.TooManyRedirects("a loop"), ("error", "client", "a loop")),
    ],
)
def test_every_end_that_a_transport_reports_has_its_outcome_and_a_reason(
    error: httpx.HTTPError, expected: tuple[str, str, str]
) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    outcome = send(httpx.MockTransport(fail))
    assert (outcome.outcome, outcome.origin, outcome.reason) == expected


@pytest.mark.parametrize(
    ("transport", "outcome", "reason"),
    [
        (engine(((0.1, b'{"error":{"type":"BadRequestError"}}'),), status=400), "error", "HTTP 400"),
        (engine((*ANSWER[:2], (0.1, httpx.ReadError("reset")))), "incomplete", "ReadError: reset"),
        (engine(ANSWER[:3]), "incomplete", None),
        (engine((ANSWER[0], (0.0, END + DONE))), "empty", None),
        (engine((*ANSWER[:2], (0.1, b'data: {"error":{"type":"InternalServerError"}}\n\n' + DONE))), "error",
         "InternalServerError"),
    ],
)  # fmt: skip
def test_http_200_is_not_success(transport: httpx.AsyncBaseTransport, outcome: str, reason: str | None) -> None:
    got = send(transport)
    assert (got.outcome, got.origin, got.reason) == (outcome, "engine", reason)


def test_an_engine_that_refuses_connections_is_an_error_of_the_engine() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    outcome = send(httpx.MockTransport(refuse))
    assert (outcome.outcome, outcome.status, outcome.response.first_token_ns) == ("error", None, None)


def test_two_slots_share_a_list_and_keep_the_concurrency() -> None:
    in_flight: list[int] = []
    now = 0

    class Counting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal now
            now += 1
            in_flight.append(now)
            await asyncio.sleep(float(request.content))
            now -= 1
            return httpx.Response(
                200,
                headers={"content-type": "text/event-stream"},
                stream=Script(((0.0, token("x") + END + usage(1) + DONE),)),
            )

    async def main() -> list[Outcome]:
        clock = VirtualClock()
        requests = [
            Planned("w", 2, index, index, "chat", "/v1/chat/completions", str(seconds).encode())
            for index, seconds in enumerate((3, 1, 1, 1, 1))
        ]
        seen: list[Outcome] = []
        outcomes = await play_closed(
            ClosedLoop(5),
            requests.__getitem__,
            [Slot("http://e", clock, timeouts=Timeouts(), transport=Counting()) for _ in range(2)],
            clock,
            seen.append,
        )
        assert seen == outcomes
        return outcomes

    outcomes = run_virtual(main())
    assert [outcome.index for outcome in outcomes] == [1, 2, 0, 3, 4]
    assert [outcome.end_ns // SECOND_NS for outcome in outcomes] == [1, 2, 3, 3, 4]
    assert max(in_flight) == 2


def test_a_limited_window_goes_on_with_fresh_indices_and_counts_only_its_own_time() -> None:
    async def main() -> list[Outcome]:
        clock = VirtualClock()
        return await play_closed(
            ClosedLoop(2, limit_ns=SECOND_NS),
            planned,
            [Slot("http://e", clock, timeouts=Timeouts(), transport=engine())],
            clock,
            lambda _: None,
        )

    outcomes = run_virtual(main())
    assert [(outcome.index, outcome.request) for outcome in outcomes] == [(0, 40), (1, 41), (2, 42), (3, 43)]
    assert outcomes[-1].end_ns == 1160 * MILLISECOND_NS
    # Three whole answers of 6 tokens; of the fourth no token came before the limit.
    assert tokens_until(outcomes, SECOND_NS) == 18
    # At 1.121 s one of its three events had come: a third of its tokens.
    assert tokens_until(outcomes, 1121 * MILLISECOND_NS) == 20


def test_the_lag_of_a_blocked_loop_is_seen() -> None:
    class Stalling(VirtualClock):
        """A clock whose sleeps return late once."""

        def __init__(self) -> None:
            self.sleeps = 0

        async def sleep_until_ns(self, instant_ns: int) -> None:
            self.sleeps += 1
            late_ns = 50 * MILLISECOND_NS if self.sleeps == 3 else 0
            await super().sleep_until_ns(instant_ns + late_ns)

    async def main() -> LoopLag:
        lag = LoopLag(Stalling())
        watcher = asyncio.ensure_future(lag.watch())
        await asyncio.sleep(0.2)
        watcher.cancel()
        return lag

    facts = run_virtual(main()).facts()
    assert facts is not None
    assert facts.max_ns == 50 * MILLISECOND_NS
    assert facts.p50_ns == 0
    assert LoopLag(VirtualClock()).facts() is None
