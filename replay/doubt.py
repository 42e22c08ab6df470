"""How far a window's result can be trusted: the client's own share in it. Pure; instants in nanoseconds.

Nothing here judges the engine. A slow engine piles up requests and lowers throughput, and that is its result; what is
looked for is a client that was late, or that did not hold the load which was planned.
"""

from collections import Counter
from collections.abc import Sequence
from math import fsum
from typing import Final

from profiles.captures import Interval
from profiles.concurrency import others_in_flight
from profiles.records import Outcome
from profiles.runs import LagFacts, ScheduleLag
from profiles.units import MILLISECOND_NS, format_duration

# Later than this a request is counted as late (reference: replay §5).
LATE_NS: Final = 10 * MILLISECOND_NS
# A slope through fewer points says nothing.
SLOPE_NEEDS: Final = 10

# The limits. One instant in a hundred that is 20 ms late moves a mean TTFT by 0.2 ms, a twenty-fifth of the 5 ms that
# the rule calls material; beyond it a comparison of p90 would compare clients.
LOOP_LAG_P99_NS: Final = 20 * MILLISECOND_NS
SCHEDULE_LAG_P99_NS: Final = 20 * MILLISECOND_NS
# A p99 of fewer samples is their maximum, which one page fault decides: 100 probes are a second of load.
LOOP_SAMPLES: Final = 100
REQUESTS: Final = 20
# A closed loop that holds less than nine tenths of its concurrency measures another operating point.
HELD: Final = 0.9


def schedule_lag(outcomes: Sequence[Outcome]) -> ScheduleLag | None:
    """send_started_ns − due_ns of every request that was due, absolute: a constant lateness is seen too.

    The slope is that of the least-squares line through lag over due time. None where nothing was due.
    """
    due = [item for item in outcomes if item.due_ns is not None and item.send_started_ns is not None]
    if not due:
        return None
    first_ns = min(item.due_ns or 0 for item in due)
    at_ns = [(item.due_ns or 0) - first_ns for item in due]
    lag_ns = [(item.send_started_ns or 0) - (item.due_ns or 0) for item in due]
    return ScheduleLag(
        p50_ns=round(percentile(lag_ns, 0.5)),
        p99_ns=round(percentile(lag_ns, 0.99)),
        max_ns=max(lag_ns),
        late_share=sum(lag > LATE_NS for lag in lag_ns) / len(due),
        slope=slope(at_ns, lag_ns) if len(due) >= SLOPE_NEEDS else None,
        requests=len(due),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie, interpolated between neighbours as numpy does it."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Slope of the least-squares line: Σ(x − x̄)(y − ȳ) / Σ(x − x̄)². None where all x are the same."""
    x_mean, y_mean = fsum(x) / len(x), fsum(y) / len(y)
    squares = fsum((at - x_mean) ** 2 for at in x)
    return fsum((at - x_mean) * (of - y_mean) for at, of in zip(x, y, strict=True)) / squares if squares else None


def arrivals_at(outcomes: Sequence[Outcome]) -> dict[int, int]:
    """Requests by the concurrency that they met as they were sent, with themselves."""
    stays = sorted(_stays(outcomes), key=lambda stay: stay.start_ns)
    met = Counter(others + 1 for others in others_in_flight(stays)) if stays else Counter[int]()
    return {c: met[c] for c in sorted(met)}


def in_flight_mean(outcomes: Sequence[Outcome], from_ns: int | None, to_ns: int | None) -> float | None:
    """Mean number in flight between two instants, weighted by time. None where they hold no time."""
    if from_ns is None or to_ns is None or to_ns <= from_ns:
        return None
    held_ns = 0
    for stay in _stays(outcomes):
        held_ns += max(0, min(stay.end_ns or 0, to_ns) - max(stay.start_ns, from_ns))
    return held_ns / (to_ns - from_ns)


def started_within(outcomes: Sequence[Outcome], from_ns: int | None, to_ns: int | None) -> int:
    """How many requests were sent in a stretch of time."""
    if from_ns is None or to_ns is None:
        return 0
    return sum(from_ns <= (item.send_started_ns or item.end_ns) < to_ns for item in outcomes)


def why_invalid(
    *,
    c: int,
    loop_lag: LagFacts | None,
    lag: ScheduleLag | None,
    in_flight: float | None,
    steady_requests: int,
    measured_to_c: int,
    planned_peak: int,
) -> str | None:
    """Why the client would shape this result, every reason, or None: it is within the limits above.

    `c` is 0 at the recorded pace. `planned_peak` is the most that the plan has in flight at once.
    """
    reasons: list[str] = []
    if planned_peak > measured_to_c:
        reasons.append(
            f"{planned_peak} at once is above {measured_to_c}, up to which this client was measured: it would shape the"
            " result"
        )
    if loop_lag is not None and loop_lag.samples >= LOOP_SAMPLES and loop_lag.p99_ns > LOOP_LAG_P99_NS:
        reasons.append(
            f"the client's event loop was {format_duration(loop_lag.p99_ns)} late (p99), the limit is"
            f" {format_duration(LOOP_LAG_P99_NS)}"
        )
    if lag is not None and lag.requests >= REQUESTS and lag.p99_ns > SCHEDULE_LAG_P99_NS:
        reasons.append(
            f"requests were sent {format_duration(lag.p99_ns)} late (p99), the limit is"
            f" {format_duration(SCHEDULE_LAG_P99_NS)}"
        )
    if c and in_flight is not None and steady_requests >= max(REQUESTS, 4 * c) and in_flight < HELD * c:
        reasons.append(f"only {in_flight:.2f} of c = {c} were in flight in the steady part")
    return "; ".join(reasons) or None


def _stays(outcomes: Sequence[Outcome]) -> list[Interval]:
    return [
        Interval(item.send_started_ns, max(item.send_started_ns, item.end_ns))
        for item in outcomes
        if item.send_started_ns is not None
    ]
