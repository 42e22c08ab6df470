"""First uses: what an engine compiled or loaded for the first token of all, and for the first time that several were
in flight. It is shown apart, and stands in no result: the warm-up is there to take it.

A lazily compiling arm pays it in its warm-up, an eager one in its boot. The rule is the same for all: the slowest first
token by which a boot became ready, and of its warm-up at each c, where it took at least twice as long as the slowest
that was measured in that boot.
"""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from analysis.bench import Bench
from analysis.load import counting_boots
from profiles.runs import BootFacts
from profiles.units import format_duration

# So many times the slowest measured first token. The shapes are the same, so chance does not double it.
LEAST_FACTOR: Final = 2


def first_uses(bench: Bench) -> dict[str, dict[str, int]]:
    """Arm → where → nanoseconds, the slowest over its boots: `ready`, or the c of the warm-up. Arms without one are
    left out."""
    measured = bench.frame.group_by("arm", "block").agg(pl.col("ttft_ns").max())
    slowest = {(arm, block): ttft_ns for arm, block, ttft_ns in measured.iter_rows() if ttft_ns is not None}
    found: dict[str, dict[str, int]] = {}
    for (arm, block), boot in counting_boots(bench.run).items():
        for where, ns in _waits(boot.facts):
            if (arm, block) in slowest and ns >= LEAST_FACTOR * slowest[arm, block]:
                known = found.setdefault(arm, {})
                known[where] = max(known.get(where, 0), ns)
    return found


def first_use_line(bench: Bench) -> str | None:
    """`v1 12.0 s before it was ready, 8.00 s at c = 8`. None where no boot had one."""
    arms = [
        f"{arm} " + ", ".join(f"{format_duration(ns)} {_place(where)}" for where, ns in uses.items())
        for arm, uses in first_uses(bench).items()
    ]
    return f"first uses, the slowest, in no result: {'; '.join(arms)}" if arms else None


def _waits(facts: BootFacts) -> Iterator[tuple[str, int]]:
    steps: dict[str, dict[str, Any]] = {step.name: step.facts for step in facts.steps}
    ready = steps.get("ready", {}).get("first_token_ns")
    if ready is not None:
        yield "ready", int(ready)
    for c, rounds in steps.get("warm_up", {}).get("slowest_ttft_ns_at", {}).items():
        known = [int(ns) for ns in rounds if ns is not None]
        if known:
            yield str(c), max(known)


def _place(where: str) -> str:
    return "before it was ready" if where == "ready" else "alone" if where == "1" else f"at c = {where}"
