"""What a recording has seen so far: running counts for the status line, the summary and the metrics page. Pure.

The scribe tells of every event in the order of its frames. All instants are theirs, on the proxy's monotonic clock;
this module has no clock. Numbers that other threads read are published whole, as one value, at each beat.
"""

from array import array
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from capture.levels import Levels
from profiles.concurrency import Concurrency
from profiles.records import Exchange
from profiles.units import MILLISECOND_NS, SECOND_NS

# Upper bounds of the TTFT histogram; above the last one there is no bound.
TTFT_BUCKETS_NS: Final = tuple(
    ms * MILLISECOND_NS for ms in (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000)
)
LATELY = 512  # requests that the running median looks at
KEPT = 131_072  # TTFTs that are kept for the quantiles at the end: one megabyte


class FirstTokens:
    """TTFT of the requests that had a first token: a histogram, the latest ones, and an even sample of all."""

    def __init__(self, kept: int = KEPT) -> None:
        self.count = 0
        self.sum_ns = 0
        self.every = 1  # one in this many is kept; 1 as long as all are
        self.buckets = [0] * (len(TTFT_BUCKETS_NS) + 1)  # by upper bound, each request in one of them
        self._limit = kept
        self._kept = array("q")
        self._lately: deque[int] = deque(maxlen=LATELY)

    def add(self, ttft_ns: int) -> None:
        """One more request."""
        self.buckets[bisect_left(TTFT_BUCKETS_NS, ttft_ns)] += 1
        self.sum_ns += ttft_ns
        self._lately.append(ttft_ns)
        if self.count % self.every == 0:
            if len(self._kept) == self._limit:
                del self._kept[1::2]
                self.every *= 2
            if self.count % self.every == 0:
                self._kept.append(ttft_ns)
        self.count += 1

    @property
    def median_lately_ns(self) -> int | None:
        """p50 of the last 512 requests with a first token. None without any."""
        return _quantile(sorted(self._lately), 0.5) if self._lately else None

    def quantiles_ns(self, *shares: float) -> list[int] | None:
        """Quantiles over the whole recording, of every `every`-th request. None without any."""
        kept = sorted(self._kept)
        return [_quantile(kept, share) for share in shares] if kept else None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the metrics page shows, all of one moment. Every counter in it only rises."""

    in_flight: int = 0
    in_flight_dispatched: int = 0
    in_flight_max: int = 0
    in_flight_dispatched_max: int = 0
    time_ns_at: dict[int, int] = field(default_factory=dict)  # arrival clock; this and the next are seconds behind
    arrivals_at: dict[int, int] = field(default_factory=dict)
    ended: dict[tuple[str, str], int] = field(default_factory=dict)  # by endpoint and outcome
    ttft_buckets: tuple[int, ...] = (0,) * (len(TTFT_BUCKETS_NS) + 1)
    ttft_sum_ns: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    token_events: int = 0
    without_usage: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # by reason
    lag_ns: int = 0
    worst_lag_ns: int = 0
    passed_through: int = 0
    upgrades: int = 0
    behind_bytes: int = 0


class Live:
    """Running counts of one recording. Told by one thread; only `published` may be read by others."""

    def __init__(self) -> None:
        self.arrival = Levels()  # in flight since the request's headers were in
        self.dispatch = Levels()  # in flight since its body was complete
        self.arrived_count = 0
        self.ended_by: Counter[tuple[str, str]] = Counter()  # endpoint and outcome
        self.reasons: Counter[str] = Counter()  # why a request failed without an answer of the engine to tell it
        self.ttft = FirstTokens()
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.token_events = 0  # chunks that carried tokens: never a count of tokens
        self.without_usage = 0  # answers with output whose engine did not count their tokens
        self.dropped_by: Counter[str] = Counter()
        self.unseen_starts = 0  # ended, and nobody had told that they arrived
        self.lag_ns = 0  # of the proxy's event loop, at the last beat
        self.worst_lag_ns = 0
        self.adrift = 0  # in flight by what we were told, minus by the proxy's own count, at the last beat
        # The scribe sets these to what the proxy counted, and to what waits in the pipe.
        self.passed_through = 0
        self.upgrades = 0
        self.behind_bytes = 0
        self.published = Numbers()

    def window(self, at_ns: int, event: str) -> None:
        """Traffic is seen from here on ("open") or not any more ("close"). Of a gap both ends must be told."""
        self.arrival.window(at_ns, event)
        self.dispatch.window(at_ns, event)
        self.publish()

    def arrived(self, at_ns: int) -> None:
        """A request's headers are in. Its `Exchange` must say the same `arrival_ns`."""
        self.arrived_count += 1
        self.arrival.start(at_ns)

    def dispatched(self, at_ns: int) -> None:
        """A request's body is complete. Its `Exchange` must say the same `dispatch_ns`."""
        self.dispatch.start(at_ns)

    def ended(self, exchange: Exchange) -> None:
        """A request ended, whether or not its record could be written."""
        self.left(exchange.arrival_ns, exchange.dispatch_ns, exchange.end_ns)
        self.ended_by[exchange.endpoint, exchange.outcome] += 1
        if exchange.reason is not None:
            self.reasons[exchange.reason] += 1
        answer = exchange.response
        self.prompt_tokens += answer.prompt_tokens or 0
        self.output_tokens += answer.output_tokens or 0
        self.token_events += answer.token_events
        if answer.output and answer.prompt_tokens is None and answer.output_tokens is None:
            self.without_usage += 1
        if answer.first_token_ns is not None:
            self.ttft.add(answer.first_token_ns - exchange.arrival_ns)

    def left(self, arrival_ns: int, dispatch_ns: int | None, at_ns: int) -> None:
        """A request is no more in flight, and nothing else is known of it: its record was lost."""
        if not self.arrival.end(arrival_ns, at_ns):
            self.unseen_starts += 1
        if dispatch_ns is not None:
            self.dispatch.end(dispatch_ns, at_ns)

    def beat(self, at_ns: int, in_flight: int, lag_ns: int) -> None:
        """The proxy lives: what it counts in flight, and its event loop's worst lateness since the last beat."""
        self.adrift = self.in_flight - in_flight
        self.lag_ns = lag_ns
        self.worst_lag_ns = max(self.worst_lag_ns, lag_ns)
        self.arrival.passed(at_ns)
        self.dispatch.passed(at_ns)
        self.publish()

    def dropped(self, reason: str, n: int = 1) -> None:
        """Records that will never be written."""
        if n > 0:
            self.dropped_by[reason] += n

    def publish(self) -> None:
        """Make the numbers of this moment the ones that other threads read."""
        self.published = Numbers(
            in_flight=self.arrival.in_flight,
            in_flight_dispatched=self.dispatch.in_flight,
            in_flight_max=self.arrival.highest,
            in_flight_dispatched_max=self.dispatch.highest,
            time_ns_at=self.arrival.settled_time_ns_at,
            arrivals_at=self.arrival.settled_arrivals_at,
            ended=dict(self.ended_by),
            ttft_buckets=tuple(self.ttft.buckets),
            ttft_sum_ns=self.ttft.sum_ns,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            token_events=self.token_events,
            without_usage=self.without_usage,
            dropped=dict(self.dropped_by),
            lag_ns=self.lag_ns,
            worst_lag_ns=self.worst_lag_ns,
            passed_through=self.passed_through,
            upgrades=self.upgrades,
            behind_bytes=self.behind_bytes,
        )

    @property
    def in_flight(self) -> int:
        """How many have arrived and not ended."""
        return self.arrival.in_flight

    @property
    def ended_count(self) -> int:
        """How many have ended."""
        return self.ended_by.total()

    def outcomes(self) -> Counter[str]:
        """Ended requests by outcome."""
        counts: Counter[str] = Counter()
        for (_, outcome), count in self.ended_by.items():
            counts[outcome] += count
        return counts

    def measured(self) -> Concurrency | None:
        """Concurrency by the arrival clock up to the latest event. None as long as no time was observed."""
        return self.arrival.measured()

    def check(self) -> list[str]:
        """What is wrong with the counts: empty where, for both clocks, the sum of k x T_k is the sum of durations."""
        found = []
        for name, levels in (("arrival", self.arrival), ("dispatch", self.dispatch)):
            measured = levels.measured()
            if measured is None:
                continue
            area_ns = sum(k * time_ns for k, time_ns in measured.time_ns_at.items())
            if area_ns != measured.duration_sum_ns:
                off_s = (area_ns - measured.duration_sum_ns) / SECOND_NS
                found.append(f"{name} clock: sum of k x T_k is off the sum of durations by {off_s:+.9f} s")
            if levels.moved:
                found.append(f"{name} clock: {levels.moved} events were told too late to be put in their place")
        if self.unseen_starts:
            found.append(f"{self.unseen_starts} requests ended whose arrival was lost: they are not in the concurrency")
        if self.adrift:
            found.append(f"{abs(self.adrift)} {'more' if self.adrift > 0 else 'fewer'} in flight than the proxy counts")
        return found


def _quantile(ordered: list[int], share: float) -> int:
    """The nearest-rank quantile of sorted values: always one of them."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
