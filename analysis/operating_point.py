"""The load that decides, in words: what was played, at which concurrency, and how that stands to the profile."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from analysis import stats
from analysis.bench_check import RECORDED_PACE, levels
from profiles.experiment import Experiment
from profiles.runs import Run
from profiles.units import format_duration, format_percent, parse_duration

# A person reads so many levels in a row; what is above them is one share.
SHOWN_LEVELS: Final = 6


def describe_point(run: Run, experiment: Experiment, *, relative: bool = False) -> str:
    """The line `Load` of a report. `relative`: without the number of arrivals."""
    point: dict[str, Any] = run.manifest.get("operating_point") or {}
    profile: dict[str, Any] = run.manifest.get("profile") or {}
    shaped = "shaped, not as recorded: " if (profile.get("source") or {}).get("kind") == "shape" else ""
    if point.get("mode") in RECORDED_PACE:
        return shaped + _recorded_pace(point, profile, experiment, relative)
    why = f". Not at the recorded pace: {point['mode_reason']}" if point.get("mode_reason") else ""
    return _closed(point, profile, shaped, relative) + why


def format_levels(counts: Mapping[int, float]) -> str:
    """`c=1 62 %, c=2 28 %, c≥3 10 %`: shares of a histogram, those above the sixth level together."""
    total = sum(counts.values())
    rising = sorted(counts)
    few = rising if len(rising) <= SHOWN_LEVELS else rising[: SHOWN_LEVELS - 1]
    parts = [f"c={c} {format_percent(counts[c] / total, 0)}" for c in few]
    if len(few) < len(rising):
        rest = sum(counts[c] for c in rising[len(few) :])
        parts.append(f"c≥{rising[len(few)]} {format_percent(rest / total, 0)}")
    return ", ".join(parts)


def never_above(arrivals: Mapping[int, float], relative: bool = False) -> str:
    """`never above 3 (0 of 70 arrivals, so at most 4.2 %)`: what was not seen is bounded (exact, 95 %), not ruled out.

    Of `relative` the bound would tell the number of arrivals. Shares have no number at all.
    """
    highest = max((c for c, count in arrivals.items() if count), default=0)
    total = sum(arrivals.values())
    if relative:
        return f"never above {highest} in what was recorded"
    if total < 1 or any(count != round(count) for count in arrivals.values()):
        return f"never above {highest}"
    most = stats.binomial_upper(0, round(total))
    digits = 1 if most >= 0.001 else 3
    return f"never above {highest} (0 of {round(total)} arrivals, so at most {format_percent(most, digits)})"


def _recorded_pace(point: Mapping[str, Any], profile: Mapping[str, Any], experiment: Experiment, relative: bool) -> str:
    pace: dict[str, Any] = point.get("pace") or {}
    requests, replayable = pace.get("requests"), pace.get("replayable")
    some = f"{requests} of {replayable}" if requests != replayable and replayable else f"{requests}"
    if point["mode"] == "observed":
        cap = format_duration(parse_duration(experiment.file.load.idle_cap))
        pieces = ""
        if pace.get("pieces") and not pace.get("whole"):
            pieces = f" in {pace['pieces']} pieces" if pace["pieces"] > 1 else " in one piece"
        played = f"observed: recorded busy periods, {some} requests per boot{pieces}, idle gaps cut to {cap}"
    else:
        played = f"timed: the recorded timeline uncut, {some} requests per boot"
    planned = levels(pace.get("arrivals_at") or {})
    met = "the planned concurrency is not known, the profile lacks ends of requests"
    if planned:
        met = f"arrivals at {_span(sorted(planned))} as planned: {format_levels(planned)}"
    sentences = [f"{played}; {met}"]
    recorded = levels(profile.get("arrivals_at") or {})
    if recorded:
        sentences.append(f"The profile's: {format_levels(recorded)}, {never_above(recorded, relative)}")
    sentences += _pieces(pace)
    unknown = pace.get("sessions_unknown")
    if unknown:
        sentences.append(f"{format_percent(unknown, 0)} of the requests have no known session and arrive on their own")
    return ". ".join(sentences)


def _pieces(pace: Mapping[str, Any]) -> Iterator[str]:
    """What was cut where only a part of the profile is played, and what became of the places."""
    pieces, busy = pace.get("pieces") or 1, pace.get("joined_busy") or 0
    if pieces > 1:
        among = f"; {busy} of them begin while others are in flight, as recorded" if busy else ""
        yield f"Each piece keeps the gap that was recorded before it, no pause is added{among}"
    cut, sessions, missing = (pace.get(key) or 0 for key in ("sessions_cut", "sessions", "parents_missing"))
    if cut:
        yield f"{cut} of {sessions} sessions are cut"
    if missing:
        yield f"{missing} requests come without the turn before them, each at its recorded place"


def _closed(point: Mapping[str, Any], profile: Mapping[str, Any], shaped: str, relative: bool) -> str:
    arrivals = profile.get("arrivals_at") or {}
    at_levels = [int(level) for level in point.get("levels") or []]
    total = sum(arrivals.values())
    if at_levels and point.get("basis") == "declared":
        weights = ", ".join(f"c={c} {format_percent(weight, 0)}" for c, weight in point["weights"].items())
        return f"not observed: the rule declares {weights} ({point['reason']}). Holds for such a load, and no other"
    if not at_levels or not total:
        return "operating point not recorded"
    share = sum(count for level, count in arrivals.items() if int(level) in at_levels) / total
    weights = ", ".join(
        f"c={level} {format_percent(weight, 0)}" for level, weight in (point.get("weights") or {}).items()
    )
    at = _span(at_levels)
    above = never_above(levels(arrivals), relative)
    left_out = ", ".join(
        f"c={level} {format_percent(weight, 0)}" for level, weight in (point.get("left_out") or {}).items()
    )
    thin = f"; left out, too few requests per boot to hold it: {left_out}" if left_out else ""
    return f"{shaped}arrivals at {at}: {format_percent(share)}; {above}. Decided at {weights or at}{thin}"


def _span(at_levels: list[int]) -> str:
    return f"c = {at_levels[0]}" if len(at_levels) == 1 else f"c = {at_levels[0]} to {at_levels[-1]}"
