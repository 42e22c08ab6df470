"""A request on its way: how long each of its stages may take, what is known of it, and the outcome that it becomes."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx

from profiles.records import CLIENT, ENGINE, ERROR, INCOMPLETE, TIMEOUT, Outcome, ResponseFacts, outcome_of
from profiles.stream import ResponseReader
from profiles.units import SECOND_NS
from replay.clock import Clock
from replay.connection import WireStamps


@dataclass(frozen=True, slots=True)
class Planned:
    """What is sent and how its outcome is labelled. `streamed` is False where the body asks for no stream."""

    window: str
    c: int
    index: int
    request: int
    workload: str
    path: str
    body: bytes
    measured: bool = True
    due_ns: int | None = None
    streamed: bool = True


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each stage of a request may take. The first token of a prefill of 128k takes more than a minute."""

    connect_ns: int = 10 * SECOND_NS
    write_ns: int = 120 * SECOND_NS  # while the engine takes nothing of the body
    first_token_ns: int = 300 * SECOND_NS  # from the first byte sent; of an answer in a stream
    gap_ns: int = 120 * SECOND_NS  # between two reads, once a token was seen
    total_ns: int = 600 * SECOND_NS  # from the call of `send`, the connection included


class Flight:
    """A request on its way: what is known of it, and the stage that may take too long."""

    def __init__(self, planned: Planned, clock: Clock, timeouts: Timeouts, total_ns: int | None) -> None:
        self._planned = planned
        self._clock = clock
        self._timeouts = timeouts
        self._total_ns = timeouts.total_ns if total_ns is None else min(total_ns, timeouts.total_ns)
        self._asked_ns = clock.now_ns()
        self._timer: asyncio.TimerHandle | None = None
        self.limit = asyncio.timeout(None)
        self.cut_for: str | None = None
        self.stamps = WireStamps()
        self.status: int | None = None
        self.reader: ResponseReader | None = None
        self.resent = 0
        self.end_ns: int | None = None

    @property
    def started_ns(self) -> int:
        started_ns = self.stamps.send_started_ns
        return started_ns if started_ns is not None else self._asked_ns

    @property
    def progress_ns(self) -> int:
        token_ns = self.reader.last_token_ns if self.reader is not None else None
        return token_ns if token_ns is not None else self.started_ns

    async def trace(self, event: str, _info: Mapping[str, object]) -> None:
        """Instants of a transport that is not ours, as httpcore tells them."""
        if event == "http11.send_request_headers.started":
            self.stamps.send_started_ns = self._clock.now_ns()
        elif event == "http11.send_request_body.complete":
            self.stamps.send_done_ns = self._clock.now_ns()
        elif event == "http11.receive_response_headers.complete":
            self.stamps.headers_ns = self._clock.now_ns()

    # One timer for all stages: it looks when the nearest limit would be over, and nothing is paid at a read.

    def watch(self) -> None:
        """Cut the request as soon as its stage is over its limit, else look again when it would be."""
        due_ns, reason = min(self._limits())
        left_ns = due_ns - self._clock.now_ns()
        if left_ns <= 0:
            self.cut(reason)
        else:
            self._timer = asyncio.get_running_loop().call_later(left_ns / SECOND_NS, self.watch)

    def unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def cut(self, reason: str) -> None:
        if self.cut_for is None:
            self.cut_for = reason
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _limits(self) -> Iterator[tuple[int, str]]:
        limits, stamps = self._timeouts, self.stamps
        yield self._asked_ns + self._total_ns, f"no end within {_seconds(self._total_ns)}"
        if self.reader is not None and self.reader.last_token_ns is not None:
            yield (stamps.read_ns or 0) + limits.gap_ns, f"nothing came for {_seconds(limits.gap_ns)}"
        elif self._planned.streamed:
            yield self.started_ns + limits.first_token_ns, f"no first token within {_seconds(limits.first_token_ns)}"

    def ended(self) -> Outcome:
        """The outcome of an answer that came to its end."""
        facts = self._facts()
        outcome, origin = outcome_of(self.status, facts, body_complete=True)
        refused = self.status is not None and self.status >= 400
        return self._outcome(facts, outcome, origin, f"HTTP {self.status}" if refused else facts.error)

    def broken_off(self, outcome: str, origin: str, reason: str) -> Outcome:
        """The outcome of one that did not, with what was known of it."""
        return self._outcome(self._facts(), outcome, origin, reason)

    def _facts(self) -> ResponseFacts:
        return self.reader.finish() if self.reader is not None else ResponseFacts()

    def _outcome(self, facts: ResponseFacts, outcome: str, origin: str | None, reason: str | None) -> Outcome:
        planned, stamps = self._planned, self.stamps
        return Outcome(
            window=planned.window,
            c=planned.c,
            index=planned.index,
            request=planned.request,
            workload=planned.workload,
            measured=planned.measured,
            due_ns=planned.due_ns,
            send_started_ns=self.started_ns,
            send_done_ns=stamps.send_done_ns,
            headers_ns=stamps.headers_ns,
            end_ns=self.end_ns if self.end_ns is not None else self._clock.now_ns(),
            status=self.status,
            resent=self.resent,
            outcome=outcome,
            origin=origin,
            reason=reason,
            response=facts,
        )


def what_ended(error: httpx.HTTPError) -> tuple[str, str, str]:
    """Outcome, origin and reason of a request that a transport gave up. No reason is ever empty."""
    said = str(error) or type(error).__name__
    match error:
        case httpx.TimeoutException():
            return TIMEOUT, ENGINE, said
        case httpx.ConnectError():
            return ERROR, ENGINE, f"cannot connect: {said}"
        case httpx.RemoteProtocolError():
            return INCOMPLETE, ENGINE, said
        case httpx.LocalProtocolError() | httpx.UnsupportedProtocol():
            return ERROR, CLIENT, said  # nothing was sent
        case httpx.TransportError():
            return INCOMPLETE, ENGINE, f"{type(error).__name__}: {said}"
    return ERROR, CLIENT, said


def _seconds(ns: int) -> str:
    return f"{ns / SECOND_NS:g} s"
