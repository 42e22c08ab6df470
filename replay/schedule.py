"""Which requests a boot sends, and when. Pure: no clock, no network; seeds are arguments.

A deciding window is a fixed list of requests, the same in every arm and run to completion, so that each request can be
paired with itself across arms. The lists keep the recorded order: turns that share a prefix stay in their order.

The deciding windows of a boot are one pass: what they share with each other stays shared in the prefix cache, as it was
in production. A row that comes again within a pass would find its own answer there, which production never did, so each
time it comes again it belongs to the next round, and rounds are kept apart.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from profiles.experiment import Experiment
from profiles.profile import ProfileRow


@dataclass(frozen=True, slots=True)
class Pick:
    """A row of the profile, and how many times its pass has sent it before."""

    row: ProfileRow
    round: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """What one window sends: rows of the profile, in order, at concurrency c."""

    name: str
    kind: str  # closed, single
    c: int
    deciding: bool
    picks: tuple[Pick, ...]
    workload: str | None = None
    limit_ns: int | None = None  # no new request after this time; None: the list, once


# With the path of each, where a row has none of its own.
REPLAYED_ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def replayable(rows: Sequence[ProfileRow]) -> list[ProfileRow]:
    """The rows that a replay can send: they ended well, their body is known, and an answer streams tokens.

    Of what was not recorded but generated or imported it is not known how it ended.
    """
    return [row for row in rows if row.outcome in ("ok", None) and row.body and row.endpoint in REPLAYED_ENDPOINTS]


def plan_windows(
    experiment: Experiment, rows: Sequence[ProfileRow], weights: dict[int, float], seed: int
) -> list[Window]:
    """The windows of one boot, in their fixed order: deciding ones, then `single`, then synthetic ones by rising c.

    `weights` is the share of arrivals at each level that the operating point covers. Requests are dealt to the levels
    by it, so a plain mean over all deciding requests weighs by arrivals.
    """
    file = experiment.file
    usable = replayable(rows)
    windows: list[Window] = []
    sent: Counter[int] = Counter()  # in the one pass of the deciding windows
    for position, (c, count) in enumerate(share_out(file.load.requests_per_boot, weights).items()):
        picks = choose(usable, count, seed=(seed, position), sent=sent)
        windows.append(Window(f"closed-c{c}", "closed", c, True, tuple(picks)))
    for also in experiment.also:
        if also.kind == "single":
            for workload in sorted({row.workload for row in usable}):
                alike = [row for row in usable if row.workload == workload]
                picks = choose(alike, min(len(alike), file.load.single_requests), seed=(seed, 1000))
                windows.append(Window(f"single-{workload}", "single", 1, False, tuple(picks), workload))
    synthetic = sorted((also for also in experiment.also if also.kind == "closed"), key=lambda also: also.c)
    for also in synthetic:
        # A window that goes round its list needs no more of it than holds the mix.
        enough = min(len(usable), max(file.load.requests_per_boot, 64 * also.c))
        picks = choose(usable, enough, seed=(seed, 2000 + also.c))
        name = f"closed-c{also.c}-for-{(also.limit_ns or 0) / 1e9:g}s"
        windows.append(Window(name, "closed", also.c, False, tuple(picks), limit_ns=also.limit_ns))
    return windows


# With fewer rounds than this per slot a window is all start and drain: it never holds its concurrency.
MIN_ROUNDS = 2


def share_out(count: int, weights: dict[int, float]) -> dict[int, int]:
    """Deal `count` requests to levels by weight, largest remainder first.

    A level whose share is below `MIN_ROUNDS` requests per slot is left out, the highest first, and its share goes to
    the others. The level with the largest weight always stays.
    """
    kept = dict(weights)
    while True:
        dealt = _deal(count, kept)
        heaviest = max(kept, key=lambda c: kept[c])
        thin = [c for c in kept if dealt[c] < MIN_ROUNDS * c and c != heaviest]
        if not thin:
            return dict(sorted(dealt.items()))
        del kept[max(thin)]


def _deal(count: int, weights: dict[int, float]) -> dict[int, int]:
    total = sum(weights.values())
    exact = {c: count * weight / total for c, weight in weights.items()}
    dealt = {c: int(share) for c, share in exact.items()}
    rest = count - sum(dealt.values())
    for c in sorted(exact, key=lambda level: exact[level] - dealt[level], reverse=True)[:rest]:
        dealt[c] += 1
    return dealt


def choose(
    rows: Sequence[ProfileRow], count: int, seed: tuple[int, ...], sent: Counter[int] | None = None
) -> list[Pick]:
    """`count` rows with the recorded mix of classes: drawn at random within a class, sent in recorded order.

    `sent` counts what the pass has sent so far and is kept up to date. Rows that were sent least come first, so that a
    row comes again only when the others of its class have come as often.
    """
    if not rows or count <= 0:
        return []
    sent = Counter() if sent is None else sent
    by_class: dict[str, list[ProfileRow]] = {}
    for row in rows:
        by_class.setdefault(row.workload, []).append(row)
    random = np.random.default_rng(seed)
    shares = _deal_to_classes(count, {name: len(alike) for name, alike in by_class.items()})
    picks: list[Pick] = []
    for name in sorted(by_class):
        alike = by_class[name]
        # Rows that were sent least, in random order; the place in that order decides between equals.
        waiting = [(sent[alike[at].request], place, at) for place, at in enumerate(random.permutation(len(alike)))]
        heapify(waiting)
        for _ in range(shares[name]):
            times, place, at = waiting[0]
            heapreplace(waiting, (times + 1, place, at))
            picks.append(Pick(alike[at], times))
            sent[alike[at].request] = times + 1
    return sorted(picks, key=lambda pick: (pick.round, pick.row.request))


def _deal_to_classes(count: int, sizes: dict[str, int]) -> dict[str, int]:
    total = sum(sizes.values())
    dealt = {name: count * size // total for name, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: (count * sizes[name] % total, name), reverse=True)
    for name in by_remainder[: count - sum(dealt.values())]:
        dealt[name] += 1
    return dealt


def order_of_boots(arms: Sequence[str], blocks: int, seed: int) -> list[list[str]]:
    """Each arm once per block, in random order; the second baseline copy is an arm like any other."""
    return [
        [arms[at] for at in np.random.default_rng((seed, block)).permutation(len(arms))]
        for block in range(1, blocks + 1)
    ]


class ClosedLoop:
    """What a window sends next: sans-I/O. c slots ask `next_index`; each takes the next one when it is free.

    Without a limit the list is sent once. With one it is cycled, and no request starts at or after the limit.
    """

    def __init__(self, requests: int, limit_ns: int | None = None) -> None:
        self._requests = requests
        self._limit_ns = limit_ns
        self._next = 0

    def next_index(self, elapsed_ns: int) -> int | None:
        """Index of the next request, or None when the slot is done. Past the list's end it goes on counting."""
        if self._requests == 0:
            return None
        if self._limit_ns is None:
            if self._next >= self._requests:
                return None
        elif elapsed_ns >= self._limit_ns:
            return None
        index = self._next
        self._next += 1
        return index
