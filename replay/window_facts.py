"""What a window measured, as it stands in boot.json."""

from collections.abc import Iterable

from profiles.runs import WindowFacts
from replay.metrics import Scrape, window_metrics
from replay.player import Played, tokens_until
from replay.schedule import Window


def window_facts(
    window: Window, played: Played, before: Scrape, after: Scrape, gauges: dict[str, float]
) -> WindowFacts:
    """The facts of a played window, with the engine's counters between the scrapes before and after it."""
    counters, void, server_ttft_ns = window_metrics(before, after)
    limited = window.limit_ns is not None
    deadline_ns = played.started_ns + window.limit_ns if window.limit_ns is not None else played.ended_ns
    return WindowFacts(
        name=window.name,
        kind=window.kind,
        c=window.c,
        deciding=window.deciding,
        workload=window.workload,
        limit_ns=window.limit_ns,
        started_ns=played.started_ns,
        ended_ns=played.ended_ns,
        steady_from_ns=played.steady_from_ns,
        steady_to_ns=min(played.steady_to_ns, deadline_ns) if limited and played.steady_to_ns else played.steady_to_ns,
        requests=len(played.outcomes),
        output_tokens=tokens_until(played.outcomes, deadline_ns),
        prompt_tokens=_sum_of(item.response.prompt_tokens for item in played.outcomes),
        cached_tokens=_sum_of((item.response.cached_tokens for item in played.outcomes), omitted_is_zero=True),
        counters=counters,
        counters_void=void,
        gauges=gauges,
        server_ttft_ns=server_ttft_ns,
        schedule_lag=played.schedule_lag,
        loop_lag=played.loop_lag,
        in_flight_mean=played.in_flight_mean,
        arrivals_at={str(c): count for c, count in sorted(played.arrivals_at.items())},
        invalid=played.invalid,
        stopped_early=played.stopped_early,
    )


def _sum_of(counts: Iterable[int | None], *, omitted_is_zero: bool = False) -> int | None:
    """The sum, or None where one is missing: a sum over some of the requests would be a number of nothing.

    vLLM leaves `cached_tokens` out where it is 0, so with `omitted_is_zero` one that says it speaks for all.
    """
    known = list(counts)
    present = [count for count in known if count is not None]
    if not present or (len(present) < len(known) and not omitted_is_zero):
        return None
    return sum(present)
