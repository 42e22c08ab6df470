"""Which boots the surroundings spoilt, by the rule's own conditions. Pure.

Only what no arm can cause is listed here; what an arm causes counts against it (DESIGN §5).
"""

from collections.abc import Sequence

from profiles.experiment_checks import discard_condition
from profiles.runs import NOT_CHECKED, Telemetry, WindowFacts
from profiles.units import MILLISECOND_NS, format_duration
from replay import surroundings


def spoilt(
    conditions: Sequence[str], windows: Sequence[WindowFacts], samples: Sequence[Telemetry]
) -> tuple[str | None, dict[str, str]]:
    """The sentence of the first condition that holds, or None; and for each condition what was seen.

    Only deciding windows count, and only samples that were taken in them.
    """
    deciding = [window for window in windows if window.deciding]
    during = [sample for sample in samples if any(w.started_ns <= sample.at_ns <= w.ended_ns for w in deciding)]
    reason: str | None = None
    checked: dict[str, str] = {}
    for entry in conditions:
        name, limit_ms = discard_condition(entry) or (entry, None)
        broken, seen = _look(name, limit_ms, deciding, during)
        checked[name] = seen
        if broken and reason is None:
            reason = f"{entry}: {seen}"
    return reason, checked


def _look(
    name: str, limit_ms: float | None, deciding: Sequence[WindowFacts], during: Sequence[Telemetry]
) -> tuple[bool, str]:
    if name == "invalid_window":
        invalid = [f"{window.name}: {window.invalid}" for window in deciding if window.invalid is not None]
        return bool(invalid), "; ".join(invalid) or "all windows within their limits"
    if name == "thermal_throttle":
        return surroundings.throttled(during)
    if name == "foreign_load":
        return surroundings.foreign_load(during)
    lags = [
        facts.p99_ns
        for window in deciding
        if (facts := window.loop_lag if name == "client_lag_p99_ms" else window.schedule_lag) is not None
    ]
    if not lags or limit_ms is None:
        return False, f"{NOT_CHECKED}no deciding window measured it"
    worst_ns = max(lags)
    return worst_ns > limit_ms * MILLISECOND_NS, f"p99 was {format_duration(worst_ns)}"
