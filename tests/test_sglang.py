"""SGLang, by what its edge is known to show: streams, counters, log lines, each read by the parsers of a run.

No SGLang was run for this. The texts are of our own making, in the forms of its documentation, public logs and reports.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.acceptance import acceptance_by_class
from profiles.counters import acceptance, cached_tokens, preemptions
from profiles.records import ResponseFacts, outcome_of
from profiles.runs import Boot, BootFacts, WindowFacts
from profiles.stream import ResponseReader
from profiles.units import MILLISECOND_NS
from replay.bootlog import scan_log
from replay.log_end import last_words, log_end
from replay.metrics import GAUGES, GaugeWatch, Scrape, needs_sampling, read, window_metrics

LOGS = Path(__file__).parent / "data" / "logs"

# -- streams -----------------------------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any] | None, *, finish: str | None = None, usage: dict[str, Any] | None = None) -> bytes:
    """An event with every key written out, null where there is nothing."""
    whole = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
    choice = {"index": 0, "delta": whole | (delta or {}), "logprobs": None, "finish_reason": finish}
    choices = [] if delta is None and finish is None else [choice | {"matched_stop": 151645 if finish else None}]
    document = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return b"data: " + json.dumps(document | {"usage": usage}).encode() + b"\n\n"


def usage(output: int, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": 40, "completion_tokens": output, "total_tokens": 40 + output}
    return counts | {"prompt_tokens_details": details, "reasoning_tokens": 0}


def answer(*events: bytes) -> ResponseFacts:
    """One event each millisecond."""
    reader = ResponseReader("text/event-stream", "")
    for at, data in enumerate(events, start=1):
        reader.feed(data, at * MILLISECOND_NS)
    return reader.finish()


ROLE = chunk({"role": "assistant", "content": ""})
DONE = b"data: [DONE]\n\n"


def test_an_answer_has_its_first_token_behind_the_role_and_its_counts_at_the_end() -> None:
    end = (chunk({}, finish="stop"), chunk(None, usage=usage(3, cached=32)), DONE)
    facts = answer(ROLE, chunk({"content": "A"}), chunk({"content": "BC"}), *end)
    assert (facts.first_token_ns, facts.last_token_ns) == (2 * MILLISECOND_NS, 3 * MILLISECOND_NS)
    assert (facts.prompt_tokens, facts.output_tokens, facts.cached_tokens) == (40, 3, 32)
    assert (facts.finish, facts.done, facts.first_event_tokens, facts.malformed) == ("stop", True, None, 0)
    assert outcome_of(200, facts, body_complete=True) == ("ok", None)


def test_without_a_cache_report_the_cached_tokens_are_unknown_and_not_zero() -> None:
    facts = answer(ROLE, chunk({"content": "A"}), chunk({}, finish="stop"), chunk(None, usage=usage(1)), DONE)
    assert facts.cached_tokens is None


def test_running_usage_says_how_many_tokens_the_first_chunk_of_a_draft_held() -> None:
    first, second = chunk({"content": "ABC"}, usage=usage(3)), chunk({"content": "DE"}, usage=usage(5))
    facts = answer(chunk({"role": "assistant", "content": ""}, usage=usage(0)), first, second, DONE)
    assert (facts.first_event_tokens, facts.output_tokens) == (3, 5)


def test_reasoning_and_tool_calls_are_tokens_as_text_is() -> None:
    facts = answer(ROLE, chunk({"reasoning_content": "hm"}), chunk({"content": "A"}), DONE)
    assert (facts.first_token_ns, facts.first_content_ns) == (2 * MILLISECOND_NS, 3 * MILLISECOND_NS)
    call = {"id": "call_1", "index": 0, "type": "function", "function": {"name": "f", "arguments": ""}}
    facts = answer(ROLE, chunk({"tool_calls": [call]}), chunk({}, finish="tool_calls"), DONE)
    assert (facts.first_token_ns, facts.first_content_ns, facts.finish) == (2 * MILLISECOND_NS, None, "tool_calls")


def test_an_error_behind_http_200_is_an_error_although_done_follows() -> None:
    failed = b'data: {"error":{"object":"error","message":"x","type":"InternalServerError","code":500}}\n\n'
    facts = answer(ROLE, chunk({"content": "A"}), failed, DONE)
    assert (facts.error_code, facts.done) == (500, True)
    assert outcome_of(200, facts, body_complete=True)[0] == "error"


# -- counters ----------------------------------------------------------------------------------------------------------

LABELS = 'engine_type="unified",model_name="m"'


def exposition(prompt: int, cached: tuple[int, int], running: int = 0, length: float = 0.0) -> str:
    return f"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{LABELS},tp_rank="0"}} {running}.0
sglang:num_queue_reqs{{{LABELS},tp_rank="0"}} 0.0
sglang:token_usage{{{LABELS},tp_rank="0"}} 0.28
sglang:token_usage{{{LABELS},tp_rank="1"}} 0.31
sglang:cache_hit_rate{{{LABELS},tp_rank="0"}} 0.5
sglang:gen_throughput{{{LABELS},tp_rank="0"}} 86.5
sglang:spec_accept_length{{{LABELS},tp_rank="0"}} {length}
sglang:spec_accept_rate{{{LABELS},tp_rank="0"}} 0.4
# TYPE sglang:prompt_tokens counter
sglang:prompt_tokens_total{{{LABELS}}} {prompt}.0
sglang:prompt_tokens_created{{{LABELS}}} 1.79e9
sglang:generation_tokens_total{{{LABELS}}} {prompt // 2}.0
sglang:cached_tokens_total{{cache_source="device",{LABELS}}} {cached[0]}.0
sglang:cached_tokens_total{{cache_source="host",{LABELS}}} {cached[1]}.0
sglang:num_requests_total{{{LABELS}}} {prompt // 10}.0
sglang:num_aborted_requests_total{{{LABELS}}} 0.0
sglang:time_to_first_token_seconds_bucket{{le="0.1",{LABELS}}} 1.0
sglang:time_to_first_token_seconds_sum{{{LABELS}}} {prompt / 100}
sglang:time_to_first_token_seconds_count{{{LABELS}}} {prompt // 10}.0
"""


def test_a_window_has_its_tokens_and_no_acceptance_by_counters() -> None:
    before, after = (Scrape(exposition(*counts), True) for counts in ((100, (10, 0)), (300, (50, 20))))
    counters, void, server_ttft_ns = window_metrics(before, after)
    assert void is None
    assert counters is not None
    assert counters["sglang:prompt_tokens_total"] == 200
    assert counters["sglang:num_requests_total"] == 20
    assert not any("created" in name or "bucket" in name for name in counters)
    found = cached_tokens(counters)
    assert found is not None
    assert (found.cached, found.asked) == (60, 200)
    assert acceptance(counters) is None
    assert preemptions(counters) is None
    assert server_ttft_ns == 100 * MILLISECOND_NS


def test_gauges_are_the_highest_of_the_ranks_and_the_known_ones_only() -> None:
    reading = read(exposition(100, (0, 0), running=3, length=2.5))
    assert reading.in_flight == 3
    assert reading.gauges == {
        "sglang:token_usage": 0.31,
        "sglang:spec_accept_length": 2.5,
        "sglang:spec_accept_rate": 0.4,
    }
    assert {name.removeprefix("sglang:") for name in reading.gauges} <= GAUGES


@pytest.mark.parametrize(
    ("text", "today"),
    [
        ("sglang:prompt_tokens_total 5\n", "sglang:prompt_tokens_total"),
        ("sglang_prompt_tokens_total 5\n", "sglang:prompt_tokens_total"),  # some scrapers take no colon
        ("sglang:cached_tokens 5\n", "sglang:cached_tokens_total"),
        ("sglang:num_aborted_requests 5\n", "sglang:num_aborted_requests_total"),
        ("sglang:num_retracted_requests_total 5\n", "sglang:num_retracted_requests_total"),
        ("sglang:time_per_output_token_seconds_sum 5\n", "sglang:inter_token_latency_seconds_sum"),
    ],
)
def test_the_history_of_its_names(text: str, today: str) -> None:
    assert read(text).counters == {today: 5.0}


def test_acceptance_is_looked_at_while_it_works_and_includes_the_bonus_token() -> None:
    text = exposition(100, (0, 0), running=1, length=2.0)
    assert needs_sampling(text)
    watch = GaugeWatch(None, None)  # type: ignore[arg-type]  # it is only given texts
    for running, length in ((1, 2.0), (2, 3.0), (0, 9.0)):
        watch.look(exposition(100, (0, 0), running=running, length=length))
    window = WindowFacts(
        name="single-code", kind="single", c=1, deciding=False, workload="code", started_ns=0, ended_ns=1, requests=1,
        gauges=watch.means(),
    )  # fmt: skip
    facts = BootFacts(arm="v1", block=1, slot=1, status="done", argv=[], wall_ns=0, mono_ns=0, windows=[window])
    found = acceptance_by_class([Boot(Path(), facts, ())])["code"]
    assert (found.length, found.rate, found.source) == (2.5, 0.4, "gauge")


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_boot_tells_what_it_chose_and_what_it_gave_up() -> None:
    path = LOGS / "sglang.log"
    facts = scan_log(path, ready_offset=path.read_bytes().index(b"The server is fired up"))
    assert (facts.engine, facts.kv_tokens) == ("sglang", 350_257)
    chosen = facts.selection
    assert chosen["attention_backends"] == ["FLASHINFER"]
    assert (chosen["weights_ns"], chosen["graph_capture_ns"]) == (87_550_000_000, 54_610_000_000)
    assert chosen["config"]["speculative_algorithm"] == "'EAGLE'"
    assert chosen["config"]["api_key"] == "[removed]"
    assert [(item.id, item.severity, item.while_serving) for item in facts.findings if item.severity != "fact"] == [
        ("S04", "fallback", False),
        ("S01", "chronic-fallback", False),
        ("S02", "chronic-fallback", False),
        ("S05", "ready", False),
        ("S11", "reset-ok", True),
        ("S12", "reset-fail", True),
    ]
    (table,) = [item.signature for item in facts.findings if item.id == "S01"]
    assert table.endswith(".../E=256,N=512,device_name=NVIDIA_GB10,dtype=fp8_w8a8.json")
    assert "secret" not in repr(facts)


def test_a_scheduler_that_died_tells_its_cause_and_not_the_signal_that_followed() -> None:
    path = LOGS / "sglang_failed.log"
    assert last_words(log_end(path)).startswith("torch.OutOfMemoryError: CUDA out of memory.")
    fatal = [item.id for item in scan_log(path).findings if item.severity == "fatal"]
    assert fatal == ["S06"]
