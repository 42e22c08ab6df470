"""How far the windows of a run can be trusted: the client's own lateness, and windows that it would shape.

The limits are those of the replay (`WindowFacts.invalid`). By default the rule discards a boot whose deciding window
broke one. Where it does not, such a window counts and is named. A window that only describes is left out: a number that
the client made is worse than none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.load import counting_boots
from profiles.runs import Boot, Run, WindowFacts
from profiles.units import format_duration


@dataclass(frozen=True, slots=True)
class DoubtfulWindow:
    """A window of a boot that counts, and why it is doubtful."""

    arm: str
    block: int
    window: str
    c: int | None  # None: as recorded
    deciding: bool
    reason: str

    @property
    def place(self) -> str:
        return f"{self.arm}, block {self.block}, {self.window}"


@dataclass(frozen=True, slots=True)
class Lateness:
    """The worst lateness of the client in any deciding window, and where it was."""

    p99_ns: int
    max_ns: int
    arm: str
    block: int
    window: str
    c: int | None

    @property
    def place(self) -> str:
        return f"{self.arm}, block {self.block}, {self.window}{', as recorded' if self.c is None else ''}"


def level(window: WindowFacts) -> int | None:
    """The concurrency that a window holds; None where it follows the recorded arrivals."""
    return window.c or None


def doubtful_windows(run: Run) -> tuple[DoubtfulWindow, ...]:
    """Every doubtful window of the boots that count, in their order."""
    found = []
    for boot, window in _windows(run):
        reason = window.invalid
        if window.stopped_early is not None:
            reason = "; ".join(filter(None, (f"stopped early: {window.stopped_early}", reason)))
        if reason is not None:
            facts = boot.facts
            found.append(DoubtfulWindow(facts.arm, facts.block, window.name, level(window), window.deciding, reason))
    return tuple(found)


def deciding_notes(windows: Sequence[DoubtfulWindow], conditions: Sequence[str]) -> list[str]:
    """One sentence for all deciding windows that count although they are doubtful; empty without one.

    `conditions` are those of discard.when.
    """
    deciding = [window for window in windows if window.deciding]
    if not deciding:
        return []
    first = deciding[0]
    many = f"{len(deciding)} deciding windows are" if len(deciding) > 1 else "a deciding window is"
    why = "" if "invalid_window" in conditions else ", for discard.when does not list invalid_window"
    such = "such as " if len(deciding) > 1 else ""
    return [f"{many} doubtful and count{'' if such else 's'}{why}: {such}{first.place}: {first.reason}"]


def left_out(windows: Sequence[DoubtfulWindow]) -> list[str]:
    """One sentence per window that only describes and is not shown where it was doubtful."""
    by_name: dict[str, list[DoubtfulWindow]] = {}
    for window in windows:
        if not window.deciding:
            by_name.setdefault(window.window, []).append(window)
    sentences = []
    for name, found in by_name.items():
        first = found[0]
        if len(found) == 1:
            sentences.append(f"{name} of {first.arm}, block {first.block}: {first.reason}")
        else:
            sentences.append(f"{name} in {len(found)} boots, such as {first.arm}, block {first.block}: {first.reason}")
    return sentences


def worst_schedule_lag(run: Run) -> Lateness | None:
    """The deciding window in which requests were sent the latest after they were due, by p99."""
    lags = [
        Lateness(lag.p99_ns, lag.max_ns, boot.facts.arm, boot.facts.block, window.name, level(window))
        for boot, window in _windows(run)
        if window.deciding and (lag := window.schedule_lag) is not None
    ]
    return max(lags, key=lambda lag: lag.p99_ns, default=None)


def worst_loop_lag(run: Run) -> Lateness | None:
    """The deciding window in which the client's event loop was the latest, by p99."""
    lags = [
        Lateness(lag.p99_ns, lag.max_ns, boot.facts.arm, boot.facts.block, window.name, level(window))
        for boot, window in _windows(run)
        if window.deciding and (lag := window.loop_lag) is not None
    ]
    return max(lags, key=lambda lag: lag.p99_ns, default=None)


def lateness_note(run: Run) -> str | None:
    """Our own lateness, as it stands beside the result. None where no window measured it."""
    sent, loop = worst_schedule_lag(run), worst_loop_lag(run)
    parts = []
    if sent is not None:
        parts.append(f"requests sent at most {format_duration(sent.p99_ns)} late ({sent.place})")
    if loop is not None:
        same = sent is not None and sent.place == loop.place
        where = "the same window" if same else loop.place
        parts.append(f"event loop at most {format_duration(loop.p99_ns)} late ({where})")
    return f"own lateness, p99 of the worst deciding window: {'; '.join(parts)}" if parts else None


def _windows(run: Run) -> Iterator[tuple[Boot, WindowFacts]]:
    for boot in counting_boots(run).values():
        for window in boot.facts.windows:
            yield boot, window
