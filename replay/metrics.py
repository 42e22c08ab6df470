"""/metrics as counters, and their difference around a window.

Names are matched whole, and older names of a metric are read as today's: `_total` may be missing, `gpu_` may stand in
front. Counters are summed over engines and all labels but `position`; gauges are not summed; `_created` twins are
dropped. A counter that falls or vanishes, or a process that started anew, is a restart: the difference is void, not
negative. An engine without /metrics gives None with the reason, never zeros. What the counters mean is in
`profiles.counters`.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import httpx

from profiles.units import MILLISECOND_NS, SECOND_NS, format_duration
from replay.clock import Clock

_TTFT: Final = "time_to_first_token_seconds"
_HISTOGRAMS: Final = (
    _TTFT,
    "inter_token_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
)
# What analysis needs. Of a histogram only the sum and the count: its buckets are too coarse for a 3 % decision.
COUNTERS: Final = frozenset(
    (
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "prompt_tokens_cached_total",
        "cached_tokens_total",  # SGLang
        "num_preemptions_total",
        "num_retracted_requests_total",  # SGLang
        "request_success_total",
        "num_requests_total",  # SGLang
        "num_aborted_requests_total",
        "admission_rejections_total",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
        "tokens_predicted_total",  # llama.cpp
        "n_decode_total",
        "prompt_seconds_total",
        "tokens_predicted_seconds_total",
        *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("sum", "count")),
    )
)
# Older names, after `_total` was put behind those that lack it.
_TODAY: Final = {
    "gpu_prefix_cache_queries_total": "prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total": "prefix_cache_hits_total",
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "time_per_output_token_seconds_sum": "inter_token_latency_seconds_sum",
    "time_per_output_token_seconds_count": "inter_token_latency_seconds_count",
}
# Gauges of the whole engine: with several engines the highest one counts.
GAUGES: Final = frozenset(("kv_cache_usage_perc", "token_usage", "spec_accept_length", "spec_accept_rate"))
_IN_FLIGHT: Final = frozenset(
    "num_requests_running num_requests_waiting requests_processing requests_deferred num_running_reqs num_queue_reqs"
    " num_requests_swapped".split()
)
_STARTED: Final = "process_start_time_seconds"
# SGLang has acceptance as gauges of its latest steps only: they are looked at while it works.
SAMPLED: Final = ("sglang:spec_accept_length", "sglang:spec_accept_rate")
_NAME = re.compile(r"(?:(vllm|sglang|llamacpp)[:_])?(\w+)(?=[{ \t])")


@dataclass(frozen=True, slots=True)
class Reading:
    """One exposition. Names with the engine's prefix, `vllm:...`; `{position="N"}` behind it where there is one."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    in_flight: int | None = None  # requests that the engine runs or holds back; None where it does not say
    started_s: float | None = None  # when the process started, since 1970


def read(text: str) -> Reading:
    """Read what is known of an exposition. What is not Prometheus text has nothing that is known.

    Only the lines with a known name are parsed: an engine prints hundreds of others, and the parser would hold up the
    loop for tens of milliseconds.
    """
    from prometheus_client.parser import text_string_to_metric_families

    names: dict[str, tuple[str, str, bool]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        match = _NAME.match(line)
        if match is not None and (bare := _known(match[2])):
            names[match[0]] = (match[1] or "", bare, bare != match[2])
            lines.append(line)
    try:
        samples = [
            sample
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for sample in family.samples
            if math.isfinite(sample.value)
        ]
    except ValueError:
        return Reading()
    counters: dict[str, float] = {}
    older: dict[str, float] = {}  # in the years of a change an engine prints a metric under both names
    gauges: dict[str, float] = {}
    in_flight: float | None = None
    started_s: float | None = None
    for sample in samples:
        engine, bare, renamed = names.get(sample.name, ("", "", False))
        name = f"{engine}:{bare}" if engine else bare
        if bare == _STARTED:
            started_s = sample.value
        elif bare in _IN_FLIGHT:
            in_flight = (in_flight or 0.0) + sample.value
        elif bare in GAUGES:
            gauges[name] = max(gauges.get(name, sample.value), sample.value)
        elif bare in COUNTERS:
            position = sample.labels.get("position")
            key = f'{name}{{position="{position}"}}' if position is not None else name
            side = older if renamed else counters
            side[key] = side.get(key, 0.0) + sample.value
    counters = older | counters
    return Reading(counters, gauges, None if in_flight is None else round(in_flight), started_s)


def _known(bare: str) -> str | None:
    """Today's name of a metric that this module knows, without the engine's prefix."""
    for name in (bare, f"{bare}_total"):
        today = _TODAY.get(name, name)
        if today in COUNTERS or today in GAUGES or today in _IN_FLIGHT or today == _STARTED:
            return today
    return None


def subtract(before: Reading, after: Reading) -> tuple[dict[str, float] | None, str | None]:
    """Counter deltas, or None and the reason why they cannot be used."""
    if before.started_s != after.started_s:
        return None, "the engine restarted inside the window"
    gone = sorted(before.counters.keys() - after.counters.keys())
    if gone:
        return None, f"a counter vanished inside the window: {gone[0]}"
    deltas = {name: value - before.counters.get(name, 0.0) for name, value in after.counters.items()}
    fell = sorted(name for name, delta in deltas.items() if delta < 0)
    if fell:
        return None, f"a counter fell inside the window, so the engine restarted: {fell[0]}"
    return deltas, None


class Scrape(NamedTuple):
    """/metrics once. `text` is None where the engine has none; `why` says so, or why it was not at rest."""

    text: str | None
    idle: bool
    why: str | None = None


class WindowMetrics(NamedTuple):
    """What the counters say about a window. `void`: why they cannot be used, or why there are none."""

    counters: dict[str, float] | None
    void: str | None
    # Mean by the engine's own histogram. It starts where the engine takes the request up and not at the client: a
    # cross-check only.
    server_ttft_ns: int | None


def window_metrics(before: Scrape | None, after: Scrape | None) -> WindowMetrics:
    """The difference of two scrapes. Taken while the engine worked, its numbers are kept and marked as void."""
    for scraped in (before, after):
        if scraped is None or scraped.text is None:
            return WindowMetrics(None, (scraped.why if scraped else None) or "no /metrics", None)
    assert before is not None
    assert before.text is not None
    assert after is not None
    assert after.text is not None
    counters, void = subtract(read(before.text), read(after.text))
    if counters is not None and not counters:
        return WindowMetrics(None, "/metrics has no counter that is known here", None)
    for scraped, when in ((before, "before"), (after, "after")):
        if void is None and not scraped.idle:
            void = f"the engine was not at rest {when} the window: {scraped.why or 'unknown why'}"
    return WindowMetrics(counters, void, _server_ttft_ns(counters) if counters and void is None else None)


def _server_ttft_ns(counters: dict[str, float]) -> int | None:
    for engine in ("vllm", "sglang"):
        count = counters.get(f"{engine}:{_TTFT}_count")
        if count:
            return round(counters.get(f"{engine}:{_TTFT}_sum", 0.0) / count * SECOND_NS)
    return None


async def scrape(client: httpx.AsyncClient) -> Scrape:
    """/metrics now. Whether the engine was at rest is not known from one look."""
    try:
        answer = await client.get("/metrics", timeout=10)
    except httpx.HTTPError as error:
        return Scrape(None, False, f"/metrics did not answer ({type(error).__name__})")
    if answer.status_code != 200:
        return Scrape(None, False, f"no /metrics (HTTP {answer.status_code})")
    return Scrape(answer.text, False)


# Counters that some engines update behind the answer came up to 60 ms late: at rest is who says the same for longer.
LOOK_AGAIN_NS: Final = 40 * MILLISECOND_NS
LOOKS_AGREE: Final = 2


async def scrape_idle(client: httpx.AsyncClient, clock: Clock, patience_ns: int = 5 * SECOND_NS) -> Scrape:
    """/metrics of an engine at rest: nothing in flight, and three scrapes in a row that agree.

    Counters are updated behind the answers; taken too early they miss the last step. After `patience_ns` the last
    scrape is returned with the reason why it is not one of an engine at rest.
    """
    deadline_ns = clock.now_ns() + patience_ns
    last = await scrape(client)
    if last.text is None:
        return last
    before = read(last.text)
    agreed = 0
    while True:
        await clock.sleep_until_ns(clock.now_ns() + LOOK_AGAIN_NS)
        again = await scrape(client)
        if again.text is None:
            return Scrape(last.text, False, again.why)
        after = read(again.text)
        agreed = agreed + 1 if not after.in_flight and before.counters == after.counters else 0
        if agreed == LOOKS_AGREE:
            return Scrape(again.text, True)
        last, before = again, after
        if clock.now_ns() >= deadline_ns:
            waited = format_duration(patience_ns)
            busy = f"{after.in_flight} requests in flight" if after.in_flight else "its counters were still rising"
            return Scrape(again.text, False, f"{busy} after {waited}")


def needs_sampling(text: str) -> bool:
    """Whether acceptance is there as gauges only, so that it must be looked at while the engine works."""
    reading = read(text)
    return any(name in reading.gauges for name in SAMPLED) and not any(
        "spec_decode_num_drafts_total" in name for name in reading.counters
    )


_SAMPLED_LINE = re.compile(r"^sglang[:_](spec_accept_length|spec_accept_rate|num_running_reqs)[{ ].*$", re.MULTILINE)


@dataclass(slots=True)
class GaugeWatch:
    """Gauges looked at while a window runs; `means` averages them over the looks at which the engine worked.

    Each look asks the engine for its whole /metrics: for windows that describe, not for those that decide.
    """

    client: httpx.AsyncClient
    clock: Clock
    every_ns: int = SECOND_NS
    looks: list[dict[str, float]] = field(default_factory=list)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await self.clock.sleep_until_ns(self.clock.now_ns() + self.every_ns)
            scraped = await scrape(self.client)
            if scraped.text is not None:
                self.look(scraped.text)

    def look(self, text: str) -> None:
        """Take one exposition."""
        reading = read("\n".join(match[0] for match in _SAMPLED_LINE.finditer(text)))
        # An idle engine shows the gauge of the steps before; 0 is one that has not drafted yet.
        if reading.in_flight != 0 and reading.gauges.get(SAMPLED[0]):
            self.looks.append({name: reading.gauges[name] for name in SAMPLED if name in reading.gauges})

    def means(self) -> dict[str, float]:
        """Gauge → mean; empty without a look."""
        found: dict[str, list[float]] = {}
        for look in self.looks:
            for name, value in look.items():
                found.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in found.items()}
