"""/metrics to counter deltas: the names of three engines, parser hazards, an engine at rest."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from virtual import VirtualClock, run_virtual

from profiles.counters import Acceptance, acceptance, cached_tokens, pooled, preemptions
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.metrics import (
    GaugeWatch,
    Reading,
    Scrape,
    needs_sampling,
    read,
    scrape,
    scrape_idle,
    subtract,
    window_metrics,
)

SHARED = Path(__file__).parents[2] / "shared"
CASES = SHARED / "cases" / "files"
REAL = SHARED / "real-engines"
needs_cases = pytest.mark.skipif(not CASES.exists(), reason="the collection of trouble reports is not beside this")
needs_real = pytest.mark.skipif(not REAL.exists(), reason="the answers of real engines are not beside this checkout")

BEFORE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 10.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 5.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.79e9
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 100.5
"""


def test_names_are_matched_whole_and_engines_summed() -> None:
    reading = read(BEFORE)
    assert reading.counters == {
        "vllm:prompt_tokens_total": 15.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 7.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 4.0,
    }
    assert reading.started_s == 100.5
    assert reading.in_flight == 3  # and not 5: waiting_by_reason is another metric


@pytest.mark.parametrize(
    ("text", "counters", "gauges"),
    [
        ("vllm:gpu_prefix_cache_hits_total 3\n", {"vllm:prefix_cache_hits_total": 3.0}, {}),
        ("vllm:gpu_prefix_cache_queries 4\n", {"vllm:prefix_cache_queries_total": 4.0}, {}),
        # In the years of the change both are printed: they are one metric and no sum.
        (
            "vllm:gpu_prefix_cache_hits_total 3\nvllm:prefix_cache_hits_total 3\n",
            {"vllm:prefix_cache_hits_total": 3.0},
            {},
        ),
        ("vllm:generation_tokens 8\n", {"vllm:generation_tokens_total": 8.0}, {}),
        (
            "vllm:time_per_output_token_seconds_sum 2\nvllm:inter_token_latency_seconds_sum 2\n",
            {"vllm:inter_token_latency_seconds_sum": 2.0},
            {},
        ),
        ('vllm:gpu_cache_usage_perc{engine="0"} 0.5\n', {}, {"vllm:kv_cache_usage_perc": 0.5}),
        (
            'sglang:cached_tokens_total{cache_source="device"} 5\nsglang:cached_tokens_total{cache_source="host"} 2\n',
            {"sglang:cached_tokens_total": 7.0},
            {},
        ),
        ("sglang:spec_accept_length 2.5\n", {}, {"sglang:spec_accept_length": 2.5}),
        ("llamacpp:tokens_predicted_total 9\n", {"llamacpp:tokens_predicted_total": 9.0}, {}),
        ("vllm:iteration_tokens_total_sum 9\nvllm:prompt_tokens_by_source_total 4\n", {}, {}),
        ("vllm:prompt_tokens_total NaN\n", {}, {}),
    ],
)
def test_the_history_of_a_name(text: str, counters: dict[str, float], gauges: dict[str, float]) -> None:
    assert (read(text).counters, read(text).gauges) == (counters, gauges)


@pytest.mark.parametrize("text", ["", "up 1\n", "<html>not found</html>", "vllm:prompt_tokens_total{broken\n"])
def test_an_engine_without_counters_has_none_and_not_zero(text: str) -> None:
    assert read(text) == Reading()


@needs_cases
def test_names_that_change_between_versions() -> None:
    """Case L10."""
    reading = read((CASES / "L10.metrics").read_text())
    assert reading.counters["vllm:prompt_tokens_total"] == 2000
    assert not {1200.0, 800.0} & set(reading.counters.values())
    assert max(reading.counters.values()) == 2000  # no Unix time among them
    assert reading.gauges == {"vllm:kv_cache_usage_perc": 0.25}  # not summed over engines
    assert not any("bucket" in name for name in reading.counters)


def scraped(*lines: str, started: float = 1.0, idle: bool = True, why: str | None = None) -> Scrape:
    return Scrape("\n".join((*lines, f"process_start_time_seconds {started}", "")), idle, why)


def test_a_window_has_the_difference_and_what_appeared_in_it() -> None:
    before = scraped("vllm:prompt_tokens_total 10", "vllm:time_to_first_token_seconds_sum 1")
    after = scraped(
        "vllm:prompt_tokens_total 25",
        "vllm:generation_tokens_total 3",
        "vllm:time_to_first_token_seconds_sum 2",
        "vllm:time_to_first_token_seconds_count 4",
    )
    counters, void, server_ttft_ns = window_metrics(before, after)
    assert void is None
    assert counters is not None
    assert (counters["vllm:prompt_tokens_total"], counters["vllm:generation_tokens_total"]) == (15.0, 3.0)
    assert server_ttft_ns == 250 * MILLISECOND_NS


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (scraped("vllm:prompt_tokens_total 20", started=2.0), "the engine restarted inside the window"),
        (scraped("vllm:prompt_tokens_total 9"), "a counter fell inside the window, so the engine restarted"),
        (scraped("vllm:generation_tokens_total 9"), "a counter vanished inside the window: vllm:prompt_tokens_total"),
    ],
)
def test_a_restart_voids_the_difference(after: Scrape, says: str) -> None:
    before = scraped("vllm:prompt_tokens_total 10")
    counters, void, server_ttft_ns = window_metrics(before, after)
    assert (counters, server_ttft_ns) == (None, None)
    assert void is not None
    assert void.startswith(says)


def test_counters_of_an_engine_that_was_not_at_rest_are_marked() -> None:
    before = scraped("vllm:prompt_tokens_total 10")
    after = scraped("vllm:prompt_tokens_total 20", idle=False, why="1 requests in flight after 5.00 s")
    counters, void, _ = window_metrics(before, after)
    assert counters == {"vllm:prompt_tokens_total": 10.0}
    assert void == "the engine was not at rest after the window: 1 requests in flight after 5.00 s"


def test_an_exposition_without_a_known_counter_says_so() -> None:
    assert window_metrics(scraped("up 1"), scraped("up 1")) == (
        None,
        "/metrics has no counter that is known here",
        None,
    )
    assert window_metrics(None, None).void == "no /metrics"


def test_subtracting_a_reading_from_itself_gives_zeros() -> None:
    reading = read(BEFORE)
    deltas, why = subtract(reading, reading)
    assert why is None
    assert deltas is not None
    assert set(deltas.values()) == {0.0}


type Answer = Callable[[int], tuple[int, str]]


def client(answer: Answer) -> httpx.AsyncClient:
    """A server whose n-th look gets what `answer` says."""
    looks = 0

    def respond(request: httpx.Request) -> httpx.Response:
        nonlocal looks
        looks += 1
        status, text = answer(looks)
        return httpx.Response(status, text=text)

    return httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url="http://engine")


@pytest.mark.parametrize(("status", "why"), [(501, "HTTP 501"), (404, "HTTP 404"), (401, "HTTP 401")])
def test_an_engine_without_metrics_is_unavailable_with_the_reason(status: int, why: str) -> None:
    """Case L09: the reason is written down, the numbers are null, and the run goes on."""
    found = run_virtual(scrape_idle(client(lambda look: (status, '{"error":{}}')), VirtualClock()))
    assert found == Scrape(None, False, f"no /metrics ({why})")
    assert window_metrics(found, found) == (None, f"no /metrics ({why})", None)


def test_an_engine_that_is_gone_is_unavailable() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    gone = httpx.AsyncClient(transport=httpx.MockTransport(refuse), base_url="http://engine")
    assert run_virtual(scrape(gone)) == Scrape(None, False, "/metrics did not answer (ConnectError)")


def test_a_scrape_waits_until_the_engine_rests() -> None:
    def answer(look: int) -> tuple[int, str]:
        return 200, f"vllm:num_requests_running {int(look < 3)}\nvllm:prompt_tokens_total {min(look, 5)}\n"

    found = run_virtual(scrape_idle(client(answer), VirtualClock()))
    assert (found.idle, found.why) == (True, None)
    assert found.text is not None
    assert read(found.text).counters == {"vllm:prompt_tokens_total": 5.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm:num_requests_running 2\nvllm:prompt_tokens_total 1\n", "2 requests in flight"),
        ("vllm:num_requests_running 0\nvllm:prompt_tokens_total {look}\n", "its counters were still rising"),
    ],
)
def test_an_engine_that_never_rests_is_marked(text: str, says: str) -> None:
    busy = client(lambda look: (200, text.replace("{look}", str(look))))
    found = run_virtual(scrape_idle(busy, VirtualClock(), patience_ns=SECOND_NS))
    assert not found.idle
    assert found.text is not None
    assert found.why is not None
    assert found.why.startswith(says)


def test_acceptance_by_its_definitions() -> None:
    counters = {
        "vllm:spec_decode_num_drafts_total": 100.0,
        "vllm:spec_decode_num_draft_tokens_total": 300.0,
        "vllm:spec_decode_num_accepted_tokens_total": 150.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 90.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 50.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="2"}': 10.0,
    }
    found = acceptance(counters)
    assert found is not None
    assert (found.length, found.rate, found.position_rates) == (2.5, 0.5, (0.9, 0.5, 0.1))
    assert found.problem is None
    assert Acceptance(100, 150, 300, (90, 50)).problem == "the positions hold 140 accepted tokens, the total is 150"
    assert Acceptance(100, 150, 140).problem == "150 accepted tokens of 140 drafted ones"


def test_windows_are_pooled_by_their_counts() -> None:
    pool = pooled([Acceptance(100, 150, 300, (100, 50)), Acceptance(300, 290, 600, (200, 90))])
    assert pool == Acceptance(400, 440, 900, (300, 140))
    assert pooled([Acceptance(1, 1, None, (1,)), Acceptance(1, 2, 3, (1, 1))]) == Acceptance(2, 3, None, None)
    assert pooled([]) is None


@needs_real
def test_a_real_vllm_with_speculation() -> None:
    reading = read((REAL / "metrics-vllm.prom").read_text())
    found = acceptance(reading.counters)
    assert found is not None
    assert (found.drafts, found.drafted, found.accepted) == (230, 912, 687)
    assert list(found.per_position or ()) == [174, 174, 174, 165]
    assert found.problem is None
    assert found.length == pytest.approx(1 + 687 / 230)
    cached = cached_tokens(reading.counters)
    assert cached is not None
    assert (cached.cached, cached.asked) == (384, 12_699)
    assert (preemptions(reading.counters), reading.in_flight) == (0.0, 0)


@needs_real
def test_a_real_llama_cpp_has_its_speculation_at_zero_which_is_no_acceptance() -> None:
    counters = read((REAL / "metrics-llamacpp.prom").read_text()).counters
    assert counters["llamacpp:spec_decode_num_drafts_total"] == 0
    assert acceptance(counters) is None
    cached = cached_tokens(counters)
    assert cached is not None
    assert (cached.cached, cached.asked) == (
        31,
        64,
    )  # two prompts of 32 tokens; its prompt tokens leave cached ones out
    assert preemptions(counters) is None


@needs_real
@pytest.mark.parametrize(
    ("arm", "length", "cached"), [("ngram3", 1 + 1040 / 364, 2912), ("nospec", None, 2912), ("ngram2-noprefix", 3, 0)]
)
def test_real_windows_on_a_gpu(arm: str, length: float | None, cached: float) -> None:
    folder = REAL / "gpu" / "arms" / arm
    sides = [Scrape((folder / f"metrics-{side}.prom").read_text(), True) for side in ("before", "after")]
    counters, void, server_ttft_ns = window_metrics(*sides)
    assert void is None
    assert counters is not None
    found = acceptance(counters)
    assert (found and found.length) == (None if length is None else pytest.approx(length))
    hits = cached_tokens(counters)
    assert hits is not None
    assert hits.cached == cached
    # Where the prefix cache is off nothing is looked up, so there is no share, and it is not 0.
    assert (hits.share is None) == (arm == "ngram2-noprefix")
    assert server_ttft_ns is not None
    assert 10 * MILLISECOND_NS < server_ttft_ns < 200 * MILLISECOND_NS


# Arm → drafts, drafted and accepted tokens by position of all 57 requests; None where the arm does not draft.
REAL_DRAFTS: dict[str, tuple[float, float, list[float]] | None] = {
    "base-ngram2": (507, 1014, [507, 507]),
    "ngram3": (395, 1128, [395, 395, 338]),
    "ngram2-noprefix": (507, 1014, [507, 507]),
    "nospec": None,
    "moe-fp8": None,
}


@needs_real
@pytest.mark.parametrize("arm", REAL_DRAFTS)
def test_real_counters_hold_what_the_client_asked_for(arm: str) -> None:
    """57 requests and 1,808 tokens, of which 5 requests came before the first scrape."""
    folder = REAL / "gpu" / "arms" / arm
    before, after = (read((folder / f"metrics-{side}.prom").read_text()) for side in ("before", "after"))
    counters = after.counters
    assert counters["vllm:request_success_total"] == 57
    assert counters["vllm:time_to_first_token_seconds_count"] == 57
    assert counters["vllm:generation_tokens_total"] == 1808
    assert max(counters.values()) < 1e6  # no Unix time: the `_created` twins are left out
    assert after.in_flight == 0
    assert after.started_s is not None
    assert after.started_s == before.started_s
    deltas, void = subtract(before, after)
    assert void is None
    assert deltas is not None
    assert (deltas["vllm:request_success_total"], deltas["vllm:generation_tokens_total"]) == (52, 1664)
    found, expected = acceptance(counters), REAL_DRAFTS[arm]
    if expected is None:
        assert found is None
        assert not any("spec_decode" in name for name in counters)
        return
    assert found is not None
    assert (found.drafts, found.drafted, list(found.per_position or ())) == expected
    assert (found.problem, found.accepted) == (None, sum(expected[2]))


# As vLLM shows it after some requests with its prefix cache off, and drafts of two.
NO_PREFIX_CACHE = """\
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 0.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.79604e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="m"} {prompt}.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 50.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 7.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} {drafts}.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} {drafted}.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} {drafts}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} {drafts}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 0.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="1"} 1.79604e+09
process_start_time_seconds 1.79604e+09
"""


def test_with_the_prefix_cache_off_nothing_was_asked_and_the_share_is_unknown() -> None:
    def filled(prompt: int, drafts: int) -> Scrape:
        marks = {"{prompt}": prompt, "{drafts}": drafts, "{drafted}": 2 * drafts}
        text = NO_PREFIX_CACHE
        for mark, value in marks.items():
            text = text.replace(mark, str(value))
        return Scrape(text, True)

    counters, void, server_ttft_ns = window_metrics(filled(1000, 100), filled(3000, 150))
    assert (void, server_ttft_ns) == (None, None)
    assert counters is not None
    hits, found = cached_tokens(counters), acceptance(counters)
    assert hits is not None
    assert (hits.cached, hits.asked, hits.share) == (0, 0, None)
    assert found is not None
    assert (found.length, found.rate, found.position_rates, found.problem) == (2.0, 0.5, (1.0, 0.0), None)
    assert read(filled(1, 1).text or "").counters["vllm:request_success_total"] == 57  # all reasons together
    assert max(counters.values()) == 2000


SGLANG = """\
sglang:num_running_reqs{{tp_rank="0"}} {running}
sglang:spec_accept_length{{tp_rank="0"}} {length}
sglang:spec_accept_rate{{tp_rank="0"}} 0.5
sglang:generation_tokens_total 7
"""


def test_gauges_of_acceptance_are_averaged_while_the_engine_works() -> None:
    text = SGLANG.format(running=1, length=2.0)
    assert needs_sampling(text)
    assert not needs_sampling("vllm:spec_decode_num_drafts_total 0\n")
    watch = GaugeWatch(client(lambda look: (200, text)), VirtualClock())
    for running, length in ((1, 2.0), (2, 3.0), (0, 9.0), (1, 0.0)):
        watch.look(SGLANG.format(running=running, length=length))
    assert watch.means() == {"sglang:spec_accept_length": 2.5, "sglang:spec_accept_rate": 0.5}
    assert GaugeWatch(client(lambda look: (404, "")), VirtualClock()).means() == {}
