"""The /metrics page: vLLM's names, labels and buckets, in Prometheus' text format.

The speculation series exist from boot when speculation is on and are absent otherwise, as in vLLM: a reader must take
a missing series for "unknown", never for 0.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from replay.simulator.cache import BLOCK_TOKENS
from replay.simulator.steps import Counts, Machine

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
FINISHES: Final = ("stop", "length", "abort", "error")

# vLLM's upper bounds, in seconds. They are far too coarse to tell two arms apart; sum and count are exact.
_TTFT_S = tuple(map(float, ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560".split()))
_TPOT_S = tuple(map(float, ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80".split()))
_LATENCY_S = tuple(map(float, ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680".split()))


class Histogram:
    """Counts by upper bound in seconds, with their sum."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * len(bounds_s)
        self._sum_s = 0.0
        self._count = 0

    def observe(self, ns: float) -> None:
        seconds = ns / 1e9
        self._sum_s += seconds
        self._count += 1
        for index, bound_s in enumerate(self._bounds_s):
            if seconds <= bound_s:
                self._counts[index] += 1

    def lines(self, name: str, labels: str) -> Iterable[str]:
        yield f"# TYPE {name} histogram"
        for bound_s, count in zip(self._bounds_s, self._counts, strict=True):
            yield f'{name}_bucket{{{labels},le="{bound_s}"}} {float(count)}'
        yield f'{name}_bucket{{{labels},le="+Inf"}} {float(self._count)}'
        yield f"{name}_count{{{labels}}} {float(self._count)}"
        yield f"{name}_sum{{{labels}}} {self._sum_s}"


class Tally:
    """What the front end counts: how requests ended, and their times from arrival."""

    def __init__(self) -> None:
        self.finished = dict.fromkeys(FINISHES, 0)
        self.ttft = Histogram(_TTFT_S)
        self.tpot = Histogram(_TPOT_S)
        self.e2e = Histogram(_LATENCY_S)
        self.queue = Histogram(_LATENCY_S)


def render(machine: Machine, counts: Counts, tally: Tally, model: str, start_s: float) -> bytes:
    """The whole page. `start_s` is when the process started, in seconds since 1970.

    The gauges are those of `machine` now; `counts` and `tally` may be older.
    """
    quoted = model.replace("\\", "\\\\").replace('"', '\\"')
    labels = f'engine="0",model_name="{quoted}"'
    lines: list[str] = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {start_s}"]
    lines += _gauges(machine, labels)
    for name, values in _counters(counts, tally).items():
        lines.append(f"# TYPE vllm:{name} counter")
        lines += (f"vllm:{name}{{{labels}{more}}} {float(value)}" for more, value in values)
    lines += tally.ttft.lines("vllm:time_to_first_token_seconds", labels)
    lines += tally.tpot.lines("vllm:request_time_per_output_token_seconds", labels)
    lines += tally.e2e.lines("vllm:e2e_request_latency_seconds", labels)
    lines += tally.queue.lines("vllm:request_queue_time_seconds", labels)
    return ("\n".join(lines) + "\n").encode()


def _gauges(machine: Machine, labels: str) -> Iterable[str]:
    settings = machine.settings
    for name, value in (
        ("num_requests_running", machine.running),
        ("num_requests_waiting", machine.waiting),
        ("kv_cache_usage_perc", machine.held_blocks / settings.kv_blocks),
    ):
        yield f"# TYPE vllm:{name} gauge"
        yield f"vllm:{name}{{{labels}}} {float(value)}"
    yield "# TYPE vllm:cache_config_info gauge"
    yield (
        f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",enable_prefix_caching="{settings.prefix_caching}",'
        f'engine="0",num_gpu_blocks="{settings.kv_blocks}"}} 1.0'
    )


def _counters(counts: Counts, tally: Tally) -> dict[str, list[tuple[str, int]]]:
    """Name without its prefix, to pairs of further labels and value."""
    counters: dict[str, list[tuple[str, int]]] = {
        "num_preemptions_total": [("", 0)],  # memory is reserved at admission: none ever happens
        "prompt_tokens_total": [("", counts.prompt)],
        "generation_tokens_total": [("", counts.generation)],
        "prefix_cache_queries_total": [("", counts.prefix_queries)],
        "prefix_cache_hits_total": [("", counts.prefix_hits)],
        "request_success_total": [(f',finished_reason="{why}"', count) for why, count in tally.finished.items()],
    }
    if counts.accepted_at:  # one per draft token: none without speculation
        counters |= {
            "spec_decode_num_drafts_total": [("", counts.draft_rounds)],
            "spec_decode_num_draft_tokens_total": [("", counts.drafted)],
            "spec_decode_num_accepted_tokens_total": [("", counts.accepted)],
            "spec_decode_num_accepted_tokens_per_pos_total": [
                (f',position="{position}"', count) for position, count in enumerate(counts.accepted_at)
            ],
        }
    return counters
