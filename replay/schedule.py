"""Which requests a boot sends, and when. Pure: no clock, no network; seeds are arguments.

    observed   the recorded busy periods with their sessions and think time (`timeline`); idle gaps are cut
    timed      the recorded timeline, uncut
    closed     c slots, the next request as soon as one is free: a list once, or round and round for a limited time
    single     each class alone at c = 1
    sweep      one list at each c

A deciding window is a fixed list of requests, the same in every arm and run to completion, so that each request can be
paired with itself across arms. The lists keep the recorded order: turns that share a prefix stay in their order.

The deciding windows of a boot are one pass: what they share with each other stays shared in the prefix cache, as it was
in production. A row that comes again within a pass would find its own answer there, which production never did, so each
time it comes again it belongs to the next round, and rounds are kept apart.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any

from profiles.concurrency import Window as Span
from profiles.experiment import AlsoWindow, Experiment
from profiles.planned import deciding_kind as planned_kind
from profiles.planned import share_out as share_out
from profiles.profile import ProfileRow
from profiles.units import parse_duration
from replay.pieces import draws
from replay.timeline import Start, lay_out


@dataclass(frozen=True, slots=True)
class Pick:
    """A row of the profile, and how many times its pass has sent it before."""

    row: ProfileRow
    round: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """What one window sends: rows of the profile, in order, at concurrency c or at the recorded pace."""

    name: str
    kind: str  # observed, timed, closed, single, sweep
    c: int  # 0 at the recorded pace
    deciding: bool
    picks: tuple[Pick, ...]
    workload: str | None = None
    limit_ns: int | None = None  # no new request after this time; None: the list, once
    starts: tuple[Start, ...] | None = None  # the recorded pace, one per pick
    facts: dict[str, Any] = field(default_factory=dict)  # of the recorded pace: what was left out (`timeline.lay_out`)

    @property
    def pass_name(self) -> str:
        """Windows of one pass may share prefixes in the engine's cache."""
        return "deciding" if self.deciding else self.name

    @property
    def widest(self) -> int:
        """How many connections it needs at once: exact in a closed loop; at the recorded pace as many as there were."""
        return self.c if self.starts is None else max(1, self.facts.get("peak") or 1)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of a profile beside its rows."""

    arrivals: bool = True  # somebody really sent these requests at these instants
    ends: bool = True  # and it is known when each ended
    windows: Sequence[Span] = ()  # in which the recorder saw everything
    unfinished: Sequence[tuple[int, int]] = ()  # stays whose end nobody saw


def deciding_kind(experiment: Experiment, recorded: Recorded) -> tuple[str, str | None]:
    """The kind of the windows that decide, and why it is not the one that was asked for.

    Raises RuleError where the load cannot be had from this profile.
    """
    return planned_kind(experiment, arrivals=recorded.arrivals, ends=recorded.ends)


def plan_windows(
    experiment: Experiment,
    rows: Sequence[ProfileRow],
    weights: dict[int, float],
    seed: int,
    *,
    usable: Sequence[ProfileRow],
    recorded: Recorded | None = None,
) -> list[Window]:
    """The windows of one boot, in their fixed order: deciding ones, `single`, `sweep`, then limited ones by rising c.

    `rows` is everything that was recorded, `usable` what can be sent of it (`bodies.sendable`). `weights` is the share
    of arrivals at each level that the operating point covers: closed windows that decide are dealt by it, so a plain
    mean over all deciding requests weighs by arrivals. Raises RuleError as `deciding_kind`.
    """
    recorded = recorded if recorded is not None else Recorded()
    kind, _ = deciding_kind(experiment, recorded)
    sent: Counter[int] = Counter()  # in the one pass of the deciding windows
    if kind == "closed":
        windows = _closed_by_weight(experiment, usable, weights, seed, sent)
    else:
        windows = [_at_recorded_pace(kind, experiment, rows, usable, seed, recorded)]
    return windows + _also_windows(experiment, usable, seed)


def _closed_by_weight(
    experiment: Experiment,
    usable: Sequence[ProfileRow],
    weights: dict[int, float],
    seed: int,
    sent: Counter[int],
) -> list[Window]:
    windows: list[Window] = []
    for position, (c, count) in enumerate(share_out(experiment.file.load.requests_per_boot, weights).items()):
        picks = choose(usable, count, seed=(seed, position), sent=sent)
        windows.append(Window(f"closed-c{c}", "closed", c, True, tuple(picks)))
    return windows


def _at_recorded_pace(
    kind: str,
    experiment: Experiment,
    rows: Sequence[ProfileRow],
    usable: Sequence[ProfileRow],
    seed: int,
    recorded: Recorded,
) -> Window:
    load = experiment.file.load
    observed = kind == "observed"
    timeline = lay_out(
        rows,
        usable,
        idle_cap_ns=parse_duration(load.idle_cap),
        cut_idle=observed,
        most=load.requests_per_boot if observed else None,
        seed=(seed, 3000),
        unfinished=recorded.unfinished,
        recorded=recorded.windows,
    )
    picks = tuple(Pick(row) for row in timeline.rows)
    return Window(kind, kind, 0, True, picks, starts=timeline.starts, facts=timeline.facts)


def _also_windows(experiment: Experiment, usable: Sequence[ProfileRow], seed: int) -> list[Window]:
    load = experiment.file.load
    by_class: dict[str, list[ProfileRow]] = {}
    for row in usable:
        by_class.setdefault(row.workload, []).append(row)
    windows: list[Window] = []
    if any(also.kind == "single" for also in experiment.also):
        for workload, alike in sorted(by_class.items()):
            picks = choose(alike, min(len(alike), load.single_requests), seed=(seed, 1000))
            windows.append(Window(f"single-{workload}", "single", 1, False, tuple(picks), workload))
    for c in sorted({also.c for also in experiment.also if also.kind == "sweep"}):
        # The same requests at each c: what differs between two points of the curve is c alone.
        picks = choose(usable, load.sweep_requests, seed=(seed, 4000))
        windows.append(Window(f"sweep-c{c}", "sweep", c, False, tuple(picks)))
    closed = dict.fromkeys(also for also in experiment.also if also.kind == "closed")
    for also in sorted(closed, key=lambda also: (also.c, not also.per_class, also.limit_ns or 0)):
        if also.per_class:
            for workload, alike in sorted(by_class.items()):
                windows.append(_limited(also, workload, alike, load.requests_per_boot, seed))
        else:
            windows.append(_limited(also, None, usable, load.requests_per_boot, seed))
    return windows


def _limited(
    also: AlsoWindow, workload: str | None, alike: Sequence[ProfileRow], requests_per_boot: int, seed: int
) -> Window:
    # A window that goes round its list needs no more of it than holds the mix.
    enough = min(len(alike), max(requests_per_boot, 64 * also.c))
    picks = choose(alike, enough, seed=(seed, 2000 + also.c))
    name = f"closed-c{also.c}-for-{(also.limit_ns or 0) / 1e9:g}s" + (f"-{workload}" if workload else "")
    return Window(name, "closed", also.c, False, tuple(picks), workload, limit_ns=also.limit_ns)


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
    random = draws(seed)
    shares = _deal_to_classes(count, {name: len(alike) for name, alike in by_class.items()})
    picks: list[Pick] = []
    for name in sorted(by_class):
        alike = by_class[name]
        # Rows that were sent least, in random order; the place in that order decides between equals.
        waiting = [
            (sent[alike[at].request], place, at)
            for place, at in enumerate(random.sample(range(len(alike)), len(alike)))
        ]
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
    return [draws((seed, block)).sample(list(arms), len(arms)) for block in range(1, blocks + 1)]


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
