"""What the worth of a split cannot know, in plain words and in numbers where the run has them."""

from collections.abc import Iterator
from typing import Any

from analysis.bench import Bench
from profiles.runs import DONE


def split_limits(bench: Bench, arm: str, share: float) -> tuple[str, ...]:
    """For `share` of the requests on an instance of `arm` and the rest on one of the baseline."""
    return (
        "an upper bound, not measured: on one chip two engines share its compute",
        f"each holds the weights{_cache(bench, arm)}",
        f"each meets fewer requests at once{''.join(_levels(bench, share))}, with a prefix cache of its own",
        "a router has to know the class",
    )


def _cache(bench: Bench, arm: str) -> str:
    """What one engine had left for its KV cache."""
    sizes = [
        boot.facts.kv_tokens
        for boot in bench.run.boots
        if boot.facts.status == DONE and boot.facts.arm in (arm, bench.baseline) and boot.facts.kv_tokens
    ]
    return f", so that less is left for the KV cache than the {min(sizes):,} tokens of one engine" if sizes else ""


def _levels(bench: Bench, share: float) -> Iterator[str]:
    """Mean concurrency that a request meets, whole and thinned out: each request in flight beside it is of its instance
    with that instance's share, if the classes arrive independently of each other."""
    arrivals: dict[str, Any] = (bench.run.manifest.get("profile") or {}).get("arrivals_at") or {}
    total = sum(arrivals.values())
    if total:
        others = sum((int(c) - 1) * count for c, count in arrivals.items()) / total
        yield f" (mean c {1 + share * others:.1f} and {1 + (1 - share) * others:.1f}, now {1 + others:.1f})"
