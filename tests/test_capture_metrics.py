"""The metrics page: a real scrape over loopback, read by Prometheus' own parser."""

import socket
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from capture.live import TTFT_BUCKETS_NS, Live
from capture.metrics_page import DROP_REASONS, MetricsPage, Page, serve
from profiles.errors import FirsttokenError, UsageError
from profiles.records import ERROR, OK, Exchange, RequestFacts, ResponseFacts
from profiles.units import MILLISECOND_NS, SECOND_NS

type Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def exchange(arrival_ns: int, end_ns: int, outcome: str = OK, ttft_ns: int | None = None) -> Exchange:
    return Exchange(
        id="x",
        endpoint="chat",
        method="POST",
        path="/v1/chat/completions",
        arrival_ns=arrival_ns,
        dispatch_ns=arrival_ns + 1,
        end_ns=end_ns,
        outcome=outcome,
        request=RequestFacts(),
        response=ResponseFacts(
            first_token_ns=None if ttft_ns is None else arrival_ns + ttft_ns,
            prompt_tokens=None if ttft_ns is None else 100,
            output_tokens=None if ttft_ns is None else 7,
            output=ttft_ns is not None,
        ),
    )


def tell(live: Live) -> None:
    """One request of 2 s alone, two that fail together, one in flight; then enough time for all to be settled."""
    live.window(0, "open")
    for arrivals, end, outcome, ttft in (
        ((10,), 12, OK, 180 * MILLISECOND_NS),
        ((20, 21), 22, ERROR, None),
        ((30,), None, OK, None),
    ):
        for at in arrivals:
            live.arrived(at * SECOND_NS)
            live.dispatched(at * SECOND_NS + 1)
        for at in arrivals:
            if end is not None:
                live.ended(exchange(at * SECOND_NS, end * SECOND_NS, outcome, ttft))
    live.dropped("disk full", 3)
    live.passed_through, live.upgrades, live.behind_bytes = 5, 2, 4096
    live.beat(50 * SECOND_NS, 1, 40 * MILLISECOND_NS)
    live.beat(60 * SECOND_NS, 1, 2 * MILLISECOND_NS)


def samples_of(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(page: MetricsPage) -> Samples:
    with urllib.request.urlopen(f"http://{page.host}:{page.port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return samples_of(answer.read().decode("utf-8"))


@pytest.fixture
def live() -> Live:
    return Live()


@pytest.fixture
def page(live: Live) -> Iterator[MetricsPage]:
    page = serve(live, "127.0.0.1", 0)
    yield page
    page.close()


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"firsttoken_{name}", tuple(sorted(labels.items()))]


def test_a_scrape_tells_what_was_recorded(live: Live, page: MetricsPage) -> None:
    tell(live)
    samples = scrape(page)
    assert value(samples, "in_flight", clock="arrival") == 1
    assert value(samples, "in_flight", clock="dispatch") == 1
    assert value(samples, "in_flight_max", clock="arrival") == 2
    assert value(samples, "in_flight_max", clock="dispatch") == 2
    # Settled up to 55 s: 2 s at 1, 1 s at 1 and 1 s at 2, 25 s at 1.
    assert value(samples, "time_at_concurrency_seconds_total", c="0") == 26
    assert value(samples, "time_at_concurrency_seconds_total", c="1") == 28
    assert value(samples, "time_at_concurrency_seconds_total", c="2") == 1
    assert value(samples, "time_at_concurrency_seconds_total", c="33+") == 0
    assert value(samples, "arrivals_at_concurrency_total", c="1") == 3
    assert value(samples, "arrivals_at_concurrency_total", c="2") == 1
    assert value(samples, "requests_total", endpoint="chat", outcome="ok") == 1
    assert value(samples, "requests_total", endpoint="chat", outcome="error") == 2
    assert value(samples, "prompt_tokens_total") == 100
    assert value(samples, "output_tokens_total") == 7
    assert value(samples, "dropped_total", reason="disk full") == 3
    assert value(samples, "dropped_total", reason="scribe behind") == 0
    assert value(samples, "event_loop_lag_seconds") == 0.002
    assert value(samples, "event_loop_lag_worst_seconds") == 0.04
    assert value(samples, "passed_through_total") == 5
    assert value(samples, "upgrades_total") == 2
    assert value(samples, "scribe_behind_bytes") == 4096


def test_the_ttft_histogram_is_cumulative(live: Live, page: MetricsPage) -> None:
    tell(live)
    samples = scrape(page)
    assert value(samples, "ttft_seconds_bucket", le="0.1") == 0
    assert value(samples, "ttft_seconds_bucket", le="0.25") == 1
    assert value(samples, "ttft_seconds_bucket", le="120.0") == 1
    assert value(samples, "ttft_seconds_bucket", le="+Inf") == 1
    assert value(samples, "ttft_seconds_count") == 1
    assert value(samples, "ttft_seconds_sum") == 0.18


def test_a_page_before_the_first_event_has_every_family_and_only_zeros(page: MetricsPage) -> None:
    samples = scrape(page)
    assert set(samples.values()) == {0.0}
    assert {name for name, _ in samples} == {
        f"firsttoken_{name}"
        for name in (
            "in_flight time_at_concurrency_seconds_total arrivals_at_concurrency_total ttft_seconds_bucket"
            " ttft_seconds_count ttft_seconds_sum prompt_tokens_total output_tokens_total token_events_total"
            " without_usage_total event_loop_lag_seconds event_loop_lag_worst_seconds passed_through_total"
            " upgrades_total scribe_behind_bytes in_flight_max dropped_total"
        ).split()
    }
    levels = [dict(labels)["c"] for name, labels in samples if name == "firsttoken_time_at_concurrency_seconds_total"]
    assert levels == [*map(str, range(33)), "33+"]
    buckets = [labels for name, labels in samples if name == "firsttoken_ttft_seconds_bucket"]
    assert len(buckets) == len(TTFT_BUCKETS_NS) + 1


def test_every_known_reason_of_a_drop_has_a_series_from_the_start_and_counts_in_it(live: Live) -> None:
    known = {"scribe behind", "scribe gone", "recorder fault", "ENOSPC", "EIO", "vanished", "start missing"}
    assert known <= set(DROP_REASONS)
    for reason in known:
        assert value(samples_of(render(live)), "dropped_total", reason=reason) == 0
        live.dropped(reason, 2)
        live.publish()
        assert value(samples_of(render(live)), "dropped_total", reason=reason) == 2


def test_a_peak_between_two_scrapes_is_not_missed(live: Live) -> None:
    live.window(0, "open")
    for at in (1, 2, 3):
        live.arrived(at)
    for at in (1, 2, 3):
        live.ended(exchange(at, 10))
    live.beat(20 * SECOND_NS, 0, 0)
    samples = samples_of(render(live))
    assert value(samples, "in_flight", clock="arrival") == 0
    assert value(samples, "in_flight_max", clock="arrival") == 3
    assert value(samples, "in_flight_max", clock="dispatch") == 0


def test_levels_above_the_last_share_a_label(live: Live) -> None:
    live.window(0, "open")
    for at in range(40):
        live.arrived((at + 1) * SECOND_NS)
    live.beat(45 * SECOND_NS, 40, 0)
    samples = samples_of(render(live))
    # Settled strictly before 40 s: levels 1 to 39, one second each.
    assert value(samples, "time_at_concurrency_seconds_total", c="32") == 1
    assert value(samples, "time_at_concurrency_seconds_total", c="33+") == 7
    assert value(samples, "arrivals_at_concurrency_total", c="33+") == 7


def test_no_counter_ever_falls(live: Live) -> None:
    before: Samples = {}
    live.window(0, "open")
    for at in range(1, 60):
        live.arrived(at * SECOND_NS)
        if at % 3 == 0:  # ends that are told after younger arrivals
            live.ended(exchange((at - 2) * SECOND_NS, at * SECOND_NS - 300 * MILLISECOND_NS, ttft_ns=SECOND_NS))
        live.beat(at * SECOND_NS + 1, live.in_flight, at)
        now = samples_of(render(live))
        counters = {key: number for key, number in now.items() if key[0].endswith(("_total", "_bucket", "_sum"))}
        assert all(counters[key] >= number for key, number in before.items())
        before = counters


def test_no_label_holds_anything_of_a_request(live: Live) -> None:
    tell(live)
    labels = {name for name, _ in (pair for _, pairs in samples_of(render(live)) for pair in pairs)}
    assert labels == {"clock", "c", "endpoint", "outcome", "reason", "le"}


def test_a_port_that_is_taken_is_found_at_once(live: Live, page: MetricsPage) -> None:
    with pytest.raises(FirsttokenError, match="already in use") as caught:
        serve(live, "127.0.0.1", page.port)
    assert "--metrics-listen" in caught.value.hint


@pytest.mark.parametrize("host", ["203.0.113.7", "no host"])
def test_an_address_of_another_machine_is_refused(live: Live, host: str) -> None:
    with pytest.raises(FirsttokenError) as caught:
        serve(live, host, 0)
    assert host in str(caught.value)
    assert isinstance(caught.value, UsageError) == (host == "no host")


def test_a_closed_page_frees_its_port(live: Live) -> None:
    page = serve(live, "127.0.0.1", 0)
    page.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection((page.host, page.port), timeout=10):
        pass
    serve(live, "127.0.0.1", page.port).close()


def render(live: Live) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page(live))
    return generate_latest(registry).decode("utf-8")
