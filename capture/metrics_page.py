"""The counts of a recording as a Prometheus page, on an address of its own.

Its thread reads one published value (`Live.published`) and touches nothing else, so a scrape can neither see half of an
event nor hold up the recorder. Times are seconds here, as Prometheus wants them.
"""

import errno
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.server import HTTPServer
from threading import Thread
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from capture.journal import NOT_OPEN, VANISHED
from capture.live import TTFT_BUCKETS_NS, Live, Numbers
from capture.outbox import BEHIND, FAULT, GONE, UNANNOUNCED
from profiles.errors import FirsttokenError, UsageError
from profiles.units import SECOND_NS

# Levels with a label of their own; all above share one, so that the page stays as long as it is.
LAST_LEVEL: Final = 32
_ABOVE: Final = f"{LAST_LEVEL + 1}+"
# These have a series from the start: a rate over one that appears with its first drops misses them. Other error codes
# of the system may come later.
DROP_REASONS: Final = (BEHIND, GONE, FAULT, UNANNOUNCED, VANISHED, NOT_OPEN, "ENOSPC", "EIO")


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """A page that is being served at http://HOST:PORT/metrics."""

    host: str
    port: int
    _server: HTTPServer
    _thread: Thread

    def close(self) -> None:
        """Serve no more, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(live: Live, host: str, port: int) -> MetricsPage:
    """Serve the page from a thread of its own. Port 0 takes a free one.

    Raises UsageError if `host` is no address of this machine, FirsttokenError if the port cannot be taken.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page(live))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    hint = "Stop what listens there, or give another address with --metrics-listen."
    try:
        server, thread = start_http_server(port, host, registry)
    except socket.gaierror:
        raise UsageError(f"--metrics-listen {host!r} is not a host of this machine", hint) from None
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            raise FirsttokenError(f"the metrics page cannot have {where}: it is already in use", hint) from None
        raise FirsttokenError(f"the metrics page cannot listen on {where} ({problem.strerror})", hint) from None
    return MetricsPage(host, server.server_port, server, thread)


class Page(Collector):
    """A collector for `prometheus_client`: the published numbers as metric families."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def collect(self) -> Iterable[Metric]:
        """All families, of one moment."""
        numbers = self._live.published
        yield from _concurrency(numbers)
        yield from _requests(numbers)
        yield from _recorder(numbers)


def _concurrency(numbers: Numbers) -> Iterable[Metric]:
    in_flight = GaugeMetricFamily(
        "firsttoken_in_flight",
        "Requests in flight, since their headers were in (arrival) or since their body was complete (dispatch).",
        labels=["clock"],
    )
    in_flight.add_metric(["arrival"], numbers.in_flight)
    in_flight.add_metric(["dispatch"], numbers.in_flight_dispatched)
    yield in_flight
    most = GaugeMetricFamily(
        "firsttoken_in_flight_max",
        "The most that were in flight at once since the start, between two scrapes too, by clock.",
        labels=["clock"],
    )
    most.add_metric(["arrival"], numbers.in_flight_max)
    most.add_metric(["dispatch"], numbers.in_flight_dispatched_max)
    yield most
    time_at = CounterMetricFamily(
        "firsttoken_time_at_concurrency_seconds",
        "Observed time with exactly c requests in flight, by the arrival clock; settled, so some seconds behind.",
        labels=["c"],
    )
    for c, time_ns in _by_level(numbers.time_ns_at, 0).items():
        time_at.add_metric([c], _seconds(time_ns))
    yield time_at
    arrivals_at = CounterMetricFamily(
        "firsttoken_arrivals_at_concurrency",
        "Requests that arrived at the operating point c, themselves included; settled, so some seconds behind.",
        labels=["c"],
    )
    for c, arrivals in _by_level(numbers.arrivals_at, 1).items():
        arrivals_at.add_metric([c], arrivals)
    yield arrivals_at


def _requests(numbers: Numbers) -> Iterable[Metric]:
    ended = CounterMetricFamily("firsttoken_requests", "Requests that ended.", labels=["endpoint", "outcome"])
    for (endpoint, outcome), count in sorted(numbers.ended.items()):
        ended.add_metric([endpoint, outcome], count)
    yield ended
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound_ns, count in zip((*TTFT_BUCKETS_NS, None), numbers.ttft_buckets, strict=True):
        below += count
        buckets.append(("+Inf" if bound_ns is None else str(_seconds(bound_ns)), below))
    yield HistogramMetricFamily(
        "firsttoken_ttft_seconds",
        "From the request's headers to the first event with generated output, of requests that had one.",
        buckets=buckets,
        sum_value=_seconds(numbers.ttft_sum_ns),
    )
    yield _count("firsttoken_prompt_tokens", "Prompt tokens, as the engine's usage says.", numbers.prompt_tokens)
    yield _count("firsttoken_output_tokens", "Output tokens, as the engine's usage says.", numbers.output_tokens)
    yield _count("firsttoken_token_events", "Events that carried tokens; one may carry several.", numbers.token_events)
    yield _count("firsttoken_without_usage", "Answers with output and without usage.", numbers.without_usage)


def _recorder(numbers: Numbers) -> Iterable[Metric]:
    dropped = CounterMetricFamily("firsttoken_dropped", "Records that were not written.", labels=["reason"])
    for reason, count in sorted((dict.fromkeys(DROP_REASONS, 0) | numbers.dropped).items()):
        dropped.add_metric([reason], count)
    yield dropped
    yield GaugeMetricFamily(
        "firsttoken_event_loop_lag_seconds",
        "Worst lateness of the proxy's event loop in the last second.",
        value=_seconds(numbers.lag_ns),
    )
    yield GaugeMetricFamily(
        "firsttoken_event_loop_lag_worst_seconds",
        "Worst lateness of the proxy's event loop since the start.",
        value=_seconds(numbers.worst_lag_ns),
    )
    yield _count(
        "firsttoken_passed_through", "Requests to other endpoints: passed on, not recorded.", numbers.passed_through
    )
    yield _count("firsttoken_upgrades", "Upgraded connections: passed on, not recorded.", numbers.upgrades)
    yield GaugeMetricFamily(
        "firsttoken_scribe_behind_bytes", "What the proxy told and the scribe has not read.", value=numbers.behind_bytes
    )


def _count(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _by_level(values: Mapping[int, int], first: int) -> dict[str, int]:
    """Every label from the start, so that a rate over one that just appeared is not missing its first step."""
    named = {str(level): values.get(level, 0) for level in range(first, LAST_LEVEL + 1)}
    return named | {_ABOVE: sum(value for level, value in values.items() if level > LAST_LEVEL)}


def _seconds(ns: int) -> float:
    return ns / SECOND_NS
