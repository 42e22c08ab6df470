"""The claims that the benchmark must hold, each with what was measured."""

from typing import NamedTuple

from benchmarks.capture.estimates import (
    added,
    by_round,
    cpu_per_chunk,
    cpu_per_request,
    cpu_per_request_all,
    ttft_median,
)
from benchmarks.capture.raw import BatchLine, Line, MemoryLine
from benchmarks.estimates import Ratio, paired_ratio

MB = 1_000_000
ALONE, WHOLE = "proxy process alone", "with its scribe"
COSTS = {ALONE: cpu_per_request, WHOLE: cpu_per_request_all}


class Claim(NamedTuple):
    """A claim, its limit as text, and the figure as text. `holds` is None where it was not measured."""

    what: str
    limit: str
    measured: str
    holds: bool | None


def batches_of(lines: list[Line], scenario: str) -> list[BatchLine]:
    return [line for line in lines if isinstance(line, BatchLine) and line.scenario == scenario]


def make_claims(lines: list[Line]) -> list[Claim]:
    """Every claim, in the order of the issue that made them."""
    ttft = batches_of(lines, "ttft")
    claims = [
        _ratio(
            f"added TTFT at c = 1, {words}, record / stock",
            0.55,
            paired_ratio(added(by_round(ttft, mode, ttft_median)), "record", "stock"),
        )
        for mode, words in (("keep", "kept connection"), ("new", "new connections"))
    ]
    requests, chunks = batches_of(lines, "requests"), batches_of(lines, "chunks")
    for below, limit in (("stock", 0.55), ("pass", 1.05)):
        for words, cost in COSTS.items():
            ratio = paired_ratio(by_round(requests, "c=8", cost), "record", below)
            claims.append(_ratio(f"CPU per request, record / {below}, {words}", limit, ratio))
    for mode in ("paced", "burst"):
        for words, cost in COSTS.items():
            ratio = paired_ratio(cpu_per_chunk(chunks, mode, cost), "record", "pass")
            claims.append(_ratio(f"CPU per chunk ({mode}), record / pass, {words}", 1.05, ratio))
    return claims + _memory_claims([line for line in lines if isinstance(line, MemoryLine)])


def _ratio(what: str, limit: float, ratio: Ratio | None) -> Claim:
    if ratio is None:
        return Claim(what, f"≤ {limit:.2f}", "not measured", None)
    measured = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f}; {ratio.rounds} rounds; p10 {ratio.p10:.3f})"
    return Claim(what, f"≤ {limit:.2f}", measured, ratio.median <= limit)


def _memory_claims(lines: list[MemoryLine]) -> list[Claim]:
    ours = [line for line in lines if line.variant == "record"]
    many = [line for line in ours if not line.bodies]
    large = [line for line in ours if line.bodies]
    claims = []
    for words in (ALONE, WHOLE):
        size = {id(line): line.memory.rss_bytes if words == ALONE else line.memory.rss_all_bytes for line in ours}
        if len(many) > 1:
            first, last = many[0], many[-1]
            ratio = size[id(last)] / size[id(first)]
            what = f"RSS after {last.requests:,} requests / after {first.requests:,}, {words}"
            claims.append(Claim(what, "≤ 1.05", f"{ratio:.3f}", ratio <= 1.05))
        else:
            claims.append(Claim(f"RSS over 10,000 requests, {words}", "≤ 1.05", "not measured", None))
        if many and large:
            more = size[id(large[-1])] - size[id(many[-1])]
            what = f"RSS after {large[-1].bodies} bodies of 1 MB, {words}"
            claims.append(Claim(what, "≤ +20 MB", f"{more / MB:+.1f} MB".replace("-", "−"), more <= 20 * MB))
        else:
            claims.append(Claim(f"RSS after 200 bodies of 1 MB, {words}", "≤ +20 MB", "not measured", None))
    return claims
