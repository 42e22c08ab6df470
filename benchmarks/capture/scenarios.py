"""Which jobs each scenario plays on which variants, and for how many rounds.

Batches are short and rounds are many: the speed of a machine drifts within seconds, so only what runs close together
compares well. A round plays each step on its variants in a random order, those that the claims compare side by side.
"""

import random
from collections.abc import Collection
from typing import NamedTuple

from benchmarks.capture.jobs import Job
from benchmarks.capture.shapes import BURST, SHORT, Shape, paced

CHUNKS = 100  # token events of a stream in the scenario `chunks`
ALL = ("direct", "nginx", "stock", "mitmdump", "pass", "record", "record_hashed", "record_full")
STREAMED = ("direct", "nginx", "stock", "pass", "record")
PROXIES = STREAMED[1:]
# The claims compare these, so they play in every round and next to each other.
CLAIMED = ("direct", "stock", "pass", "record")
MEGABYTE = 1_000_000


class Step(NamedTuple):
    """One job of a round. `mode` names it within its scenario."""

    mode: str
    variants: tuple[str, ...]
    requests: int
    concurrency: int
    shape: Shape = SHORT
    body_bytes: int = 1024
    keep: bool = True

    def job(self, port: int) -> Job:
        return Job(port, self.requests, self.concurrency, self.shape, self.body_bytes, self.keep)


class Scenario(NamedTuple):
    """So many rounds, or as many as fit into `limit_s`, at least one.

    Variants that no claim names play in one round of `others_every`.
    """

    rounds: int
    limit_s: int
    others_every: int
    steps: tuple[Step, ...]


SCENARIOS: dict[str, Scenario] = {
    # Time to first token of one client, on a kept connection and on a new one each time.
    "ttft": Scenario(60, 90, 3, (Step("keep", ALL, 20, 1), Step("new", ALL, 8, 1, keep=False))),
    # CPU per request. Connections are open before the batch begins.
    "requests": Scenario(130, 90, 3, (Step("c=8", ALL, 24, 8),)),
    # CPU per chunk: a paced stream less what its request costs, and a stream that comes at once.
    "chunks": Scenario(
        36,
        120,
        3,
        (
            Step("short", PROXIES, 24, 8),
            Step("paced", PROXIES, 8, 8, paced(CHUNKS)),
            Step("burst", PROXIES, 8, 8, BURST),
        ),
    ),
    # First chunk at 50 ms, 200 chunks 5 ms apart, one stream per connection.
    "paced": Scenario(3, 120, 1, tuple(Step(f"c={c}", STREAMED, c, c, paced(200)) for c in (1, 3, 8, 32))),
    # Request bodies of 1 MB, one at a time.
    "bodies": Scenario(12, 40, 2, (Step("1 MB", ALL, 4, 1, body_bytes=MEGABYTE),)),
}


def draw_order(
    scenario: Scenario, step: Step, number: int, running: Collection[str], order: random.Random
) -> list[str]:
    """The variants of one step in round `number`, of those that run."""
    side_by_side = [name for name in CLAIMED if name in step.variants and name in running]
    others = [name for name in step.variants if name not in CLAIMED and name in running]
    order.shuffle(side_by_side)
    groups = [side_by_side, *([name] for name in others if number % scenario.others_every == 0)]
    order.shuffle(groups)
    return [name for group in groups for name in group]


WARM = Step("warm", ALL, 50, 8)


class MemoryPlan(NamedTuple):
    """Memory of fresh processes: after `warm` requests, every `slice` up to `requests`, and after `bodies` of 1 MB."""

    variants: tuple[str, ...] = ("stock", "record")
    warm: int = 500
    requests: int = 10_000
    slice: int = 1_000
    bodies: int = 200
