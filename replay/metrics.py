"""/metrics as counters, and their difference around a window.

Names are matched whole, labels other than `position` are summed, `_created` twins are dropped. A counter that falls, or
a process that started anew, is a restart: the difference is void, not negative. An engine without /metrics gives None,
never zeros.
"""

import asyncio
import re

import httpx

from profiles.units import MILLISECOND_NS
from replay.clock import Clock

# What analysis needs; histograms are too coarse for a 3 % decision, and are kept in the .prom files only.
COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_cached_total",
    "num_preemptions_total",
    "request_success_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "tokens_predicted_total",
)
_PREFIXES = ("vllm:", "llamacpp:", "sglang:")
_STARTED = "process_start_time_seconds"
_IN_FLIGHT = ("num_requests_running", "num_requests_waiting", "requests_processing", "requests_deferred")
_KNOWN = frozenset((*COUNTERS, *_IN_FLIGHT, _STARTED))
_NAME = re.compile(r"^[\w:]*")


def read_counters(text: str) -> dict[str, float]:
    """The counters of an exposition by their full name, `{position="N"}` behind it where the engine gives one."""
    counters: dict[str, float] = {}
    for name, labels, value in _samples(text):
        bare = _bare(name)
        if bare in COUNTERS or name == _STARTED:
            position = labels.get("position")
            key = f'{name}{{position="{position}"}}' if position is not None else name
            counters[key] = counters.get(key, 0.0) + value
    return counters


def read_in_flight(text: str) -> int | None:
    """Requests that the engine runs or holds back, or None if it does not say."""
    found = [value for name, _, value in _samples(text) if _bare(name) in _IN_FLIGHT]
    return round(sum(found)) if found else None


def subtract(before: dict[str, float], after: dict[str, float]) -> tuple[dict[str, float] | None, str | None]:
    """Counter deltas, or None and the reason why they cannot be used."""
    if before.get(_STARTED) != after.get(_STARTED):
        return None, "the engine restarted inside the window"
    deltas = {name: value - before.get(name, 0.0) for name, value in after.items() if name != _STARTED}
    fell = sorted(name for name, delta in deltas.items() if delta < 0)
    if fell:
        return None, f"a counter fell inside the window: {fell[0]}"
    return deltas, None


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """The samples that this module knows. Only their lines are parsed: an engine prints hundreds of others, and the
    parser would hold up the loop for tens of milliseconds."""
    from prometheus_client.parser import text_string_to_metric_families

    known = [line for line in text.splitlines() if _bare(_NAME.findall(line)[0]) in _KNOWN]
    try:
        families = list(text_string_to_metric_families("\n".join(known) + "\n"))
    except ValueError:
        return []
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


async def scrape(client: httpx.AsyncClient) -> str | None:
    """The text of /metrics, or None where the engine has none."""
    try:
        answer = await client.get("/metrics", timeout=10)
    except httpx.HTTPError:
        return None
    return answer.text if answer.status_code == 200 else None


async def scrape_idle(client: httpx.AsyncClient, clock: Clock, patience_ns: int = 5000 * MILLISECOND_NS) -> str | None:
    """/metrics of an engine at rest: nothing in flight, and two scrapes that agree. None where it has no /metrics.

    Counters are updated behind the answers; taken too early they miss the last step. After `patience_ns` the last
    scrape is returned as it is.
    """
    deadline_ns = clock.now_ns() + patience_ns
    before = await scrape(client)
    while before is not None and clock.now_ns() < deadline_ns:
        await asyncio.sleep(0.02)
        after = await scrape(client)
        if after is None:
            return before
        if not read_in_flight(after) and read_counters(before) == read_counters(after):
            return after
        before = after
    return before
