"""What each boot of an experiment plays, as far as its file and its profile say. Pure, but for `read_facts`.

`check_profile` refuses what a profile cannot carry; `planned_windows` lists the windows of a boot in their order, with
how many requests each sends at most and how long that takes at the recorded speed. What an engine answers to, only
`replay` knows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from profiles.concurrency import Concurrency
from profiles.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from profiles.errors import RuleError
from profiles.experiment import Experiment
from profiles.experiment_checks import (
    QUANTILE_NEEDS,
    LoadFacts,
    check_against_profile,
    guard_parts,
    load_facts,
    requests_for_error_rate,
)
from profiles.measurable import NO_CONCURRENCY
from profiles.profile import Profile
from profiles.toml_lines import line_of
from profiles.units import parse_duration

# With fewer rounds than this per slot a window is all start and drain: it never holds its concurrency.
MIN_ROUNDS: Final = 2


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """What a profile holds, as it bears on an experiment. `sendable` are requests that ended well and have a body."""

    name: str
    sha256: str
    synthetic: bool
    measured: Concurrency | None  # None where nobody knows who was in flight
    observed_ns: int
    content: str
    not_measurable: tuple[str, ...]
    requests: int
    sendable: dict[str, int]  # by class, most first
    models: dict[str, int]
    ttft_p50_ns: int | None  # of the sendable ones, as recorded
    ttft_geomean_ns: float | None
    lasts_ns: float | None  # mean time from arrival to end
    lasts_ns_of: dict[str, float]  # the same by class
    idle_gaps_ns: tuple[int, ...]  # between two busy periods

    @property
    def to_send(self) -> int:
        return sum(self.sendable.values())


def read_facts(profile: Profile) -> ProfileFacts:
    """Read them from a profile. Raises FormatError."""
    import polars as pl

    manifest = profile.manifest
    columns = ["arrival_ns", "end_ns", "ttft_ns", "outcome", "endpoint", "workload", "body"]
    rows = profile.frame(columns).collect()
    good = pl.col("body").fill_null(False) & pl.col("outcome").fill_null("ok").eq("ok")
    usable = rows.filter(good & pl.col("endpoint").is_in([CHAT, COMPLETIONS, MESSAGES, RESPONSES]))
    ttft = usable.filter(pl.col("ttft_ns") > 0)["ttft_ns"]
    median, logs = ttft.median(), ttft.log().mean()
    lasts = usable.select("workload", (pl.col("end_ns") - pl.col("arrival_ns")).alias("lasts")).drop_nulls()
    counts = usable.group_by("workload").len().sort(["len", "workload"], descending=[True, False])
    by_class = lasts.group_by("workload").agg(pl.col("lasts").mean())
    whole = lasts["lasts"].mean()
    known = NO_CONCURRENCY not in manifest["not_measurable"]
    return ProfileFacts(
        name=str(profile.path),
        sha256=profile.sha256,
        synthetic=bool(manifest.get("synthetic")),
        measured=profile.concurrency() if known else None,
        observed_ns=int(manifest["observed_ns"]),
        content=str(manifest["content"]),
        not_measurable=tuple(map(str, manifest["not_measurable"])),
        requests=rows.height,
        sendable=dict(counts.iter_rows()),
        models={str(name): int(count) for name, count in manifest["models"].items()},
        ttft_p50_ns=round(median) if isinstance(median, float) else None,
        ttft_geomean_ns=math.exp(logs) if isinstance(logs, float) else None,
        lasts_ns=whole if isinstance(whole, float) else None,
        lasts_ns_of=dict(by_class.iter_rows()),
        idle_gaps_ns=_idle_gaps(rows["arrival_ns"].to_list(), rows["end_ns"].to_list()) if known else (),
    )


def _idle_gaps(arrivals: Sequence[int], ends: Sequence[int | None]) -> tuple[int, ...]:
    gaps, busy_until = [], None
    for arrival, end in zip(arrivals, ends, strict=True):
        if busy_until is not None and arrival > busy_until:
            gaps.append(arrival - busy_until)
        busy_until = max(busy_until or 0, end if end is not None else arrival)
    return tuple(gaps)


def check_profile(experiment: Experiment, facts: ProfileFacts) -> LoadFacts:
    """Refuse what this profile cannot carry, guards that its requests cannot support included. Raises RuleError."""
    load = load_facts(experiment, measured=facts.measured, synthetic=facts.synthetic)
    check_against_profile(experiment, load=load, content=facts.content, not_measurable=facts.not_measurable)
    windows = planned_windows(experiment, facts, load)
    check_guards(experiment, sum(window.requests for window in windows if window.deciding))
    return load


def check_guards(experiment: Experiment, requests: int) -> None:
    """Refuse guards that so many deciding requests of a boot cannot support. Raises RuleError.

    A profile may hold fewer than `requests_per_boot` asks for, and at the recorded pace each is sent once.
    """
    path = experiment.path
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    blocks = experiment.file.design.blocks
    for index, guard in enumerate(experiment.file.guard):
        parts = guard_parts(guard.metric) or {}
        needed, planned, of = 0, requests, "per boot"
        if "quantile" in parts:
            needed = QUANTILE_NEEDS[parts["quantile"].removeprefix("ttft_")]
        elif "errors" in parts and guard.max:
            needed = requests_for_error_rate(guard.max, len(experiment.looks))
            planned, of = requests * blocks, "per arm"
        if planned < needed:
            raise RuleError(
                path,
                f"guard[{index}].metric",
                f"{guard.metric} needs {needed} requests {of}, and this profile gives {planned}",
                line=line_of(text, f"guard[{index}].metric"),
                hint='Record for longer, or write deciding = "closed": its requests come again until there are enough.',
            )


def deciding_kind(experiment: Experiment, *, arrivals: bool, ends: bool) -> tuple[str, str | None]:
    """The kind of the windows that decide, and why it is not the one that was asked for.

    `arrivals`: somebody really sent these requests at these instants. `ends`: it is known when each of them ended.
    Raises RuleError where the load cannot be had from this profile.
    """
    asked = experiment.file.load.deciding
    if asked == "timed" and not arrivals:
        text = experiment.path.read_text(encoding="utf-8") if experiment.path.exists() else ""
        raise RuleError(
            experiment.path,
            "load.deciding",
            "the profile was generated: it has no recorded arrivals that could be timed",
            line=line_of(text, "load.deciding"),
            hint='Write deciding = "closed", or record production.',
        )
    if asked != "observed":
        return asked, None
    declared = experiment.file.profile.operating_point.basis == "declared"
    if not arrivals:
        return "closed", "nobody recorded these arrivals, so there are no busy periods: closed loops decide"
    if not ends:
        return "closed", "the profile holds no ends of requests, so its busy periods are not known: closed loops decide"
    return ("closed", "the operating point is declared, so closed loops decide") if declared else ("observed", None)


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


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """A window of each boot. `requests`: how many it sends; a limited one sends what fits, from a list of so many."""

    name: str
    kind: str  # observed, timed, closed, single, sweep
    c: int  # 0 at the recorded pace
    deciding: bool
    requests: int
    limit_ns: int | None = None
    lasts_ns: float | None = None  # at the recorded speed; None where nobody knows how long a request takes


def planned_windows(experiment: Experiment, facts: ProfileFacts, load: LoadFacts) -> tuple[PlannedWindow, ...]:
    """The windows of one boot in their order. Raises RuleError as `deciding_kind`."""
    rules = experiment.file.load
    kind, _ = deciding_kind(experiment, arrivals=not facts.synthetic, ends=facts.measured is not None)
    each = facts.lasts_ns

    def closed(name: str, of: str, c: int, requests: int, one_ns: float | None, *, deciding: bool) -> PlannedWindow:
        lasts_ns = None if one_ns is None else one_ns * requests / c
        return PlannedWindow(name, of, c, deciding, requests, lasts_ns=lasts_ns)

    if kind == "closed":
        dealt = share_out(rules.requests_per_boot, load.point.weights) if load.point.weights and facts.to_send else {}
        windows = [closed(f"closed-c{c}", kind, c, count, each, deciding=True) for c, count in dealt.items()]
    else:
        count = facts.to_send if kind == "timed" else min(facts.to_send, rules.requests_per_boot)
        windows = [PlannedWindow(kind, kind, 0, True, count, lasts_ns=_paced_ns(experiment, facts, count))]
    also = experiment.also
    if any(window.kind == "single" for window in also):
        for name in sorted(facts.sendable):
            count = min(facts.sendable[name], rules.single_requests)
            windows.append(
                closed(f"single-{name}", "single", 1, count, facts.lasts_ns_of.get(name, each), deciding=False)
            )
    for c in sorted({window.c for window in also if window.kind == "sweep"}):
        windows.append(closed(f"sweep-c{c}", "sweep", c, rules.sweep_requests, each, deciding=False))
    limited = dict.fromkeys(window for window in also if window.kind == "closed")
    for window in sorted(limited, key=lambda item: (item.c, not item.per_class, item.limit_ns or 0)):
        limit_ns = window.limit_ns or 0
        name = f"closed-c{window.c}-for-{limit_ns / 1e9:g}s"
        for part in [f"-{workload}" for workload in sorted(facts.sendable)] if window.per_class else [""]:
            lasts_ns = limit_ns + (each or 0)
            windows.append(PlannedWindow(name + part, "closed", window.c, False, 0, limit_ns, lasts_ns))
    return tuple(windows)


def _paced_ns(experiment: Experiment, facts: ProfileFacts, count: int) -> float | None:
    """The recorded pace, as a share of the whole recording: its busy time, and its idle gaps cut as the rule says."""
    if facts.measured is None or not facts.requests:
        return None
    if experiment.file.load.deciding == "timed":
        return float(facts.observed_ns)
    cap_ns = parse_duration(experiment.file.load.idle_cap)
    idle_ns = sum(min(gap_ns, cap_ns) for gap_ns in facts.idle_gaps_ns)
    return (facts.measured.busy_ns + idle_ns) * count / facts.requests
