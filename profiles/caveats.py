"""What the observed load cannot support, in sentences. Pure; the page prints them."""

from collections.abc import Iterator, Sequence
from typing import Final

from profiles.charts.course import gaps
from profiles.charts.weekly import WEEKDAYS
from profiles.confidence import BOOTSTRAP, ONE_DAY, RANGE, Bound
from profiles.histogram import counted, format_levels
from profiles.units import HOUR_NS, format_duration, format_percent
from profiles.view import DECIDING, LoadView

_FEW_HOURS_NS: Final = 24 * HOUR_NS
_FEW_ARRIVALS: Final = 200
_MOST_SAID: Final = 0.9


def caveats(view: LoadView) -> list[str]:
    """One sentence or two for each limit, the ones that change a decision first."""
    return [*_of_the_source(view), *_of_the_marks(view), *_of_the_time(view), *_of_the_maximum(view)]


def _of_the_source(view: LoadView) -> Iterator[str]:
    requests = view.total.requests
    if view.synthetic:
        yield "This load was generated. It is nobody's production, so it decides nothing."
    if view.origin:
        yield f"Source: {view.origin}."
    if view.estimate:
        yield f"The time is an estimate: nobody saw these requests end; they are taken to last {view.estimate}."
    if not requests:
        yield "No request arrived, so there is no operating point."
    elif requests < _FEW_ARRIVALS:
        yield f"Only {counted(requests, 'request')}: each of them is {format_percent(1 / requests)} of the arrivals."


def _of_the_marks(view: LoadView) -> Iterator[str]:
    deciding = [c for c, what in view.marked.items() if what == DECIDING]
    if unreached := [c for c in deciding if c not in view.total.arrivals_at]:
        yield (
            f"The experiment decides at c = {format_levels(unreached)}, where no request was observed:"
            " such a level cannot decide."
        )
    if left_out := [c for c in view.point.levels if view.marked and c not in deciding]:
        yield f"The experiment does not decide at c = {format_levels(left_out)}, which requests meet."


def _of_the_time(view: LoadView) -> Iterator[str]:
    observed_ns = view.total.observed_ns
    if observed_ns < _FEW_HOURS_NS:
        yield f"Only {format_duration(observed_ns)} observed: other hours and other days may look different."
    if view.no_calendar:
        yield f"No hours and weekdays: {view.no_calendar}."
    elif missing := [name for day, name in enumerate(WEEKDAYS) if day not in {cell.weekday for cell in view.cells}]:
        yield f"Not observed at all: {', '.join(missing)}."
    if between := gaps(view.windows):
        lost_ns = sum(close - opened for opened, close in between)
        yield (
            f"{counted(len(between), 'gap')} of {format_duration(lost_ns)} in all, while nothing was recorded:"
            " left out, and never counted as idle."
        )
    if view.reach:
        yield _reach_text(view.reach[0].how, view.reach[0].days)


def _of_the_maximum(view: LoadView) -> Iterator[str]:
    """What "never above" rests on, a sentence for each level that the maximum does not answer for."""
    for c in sorted({bound.c for bound in view.bounds if 0 < bound.c <= view.total.max}):
        never = c == view.total.max
        said = f"Never above c = {c}" if never else f"Above c = {c} at times"
        known = [bound for bound in view.bounds if bound.c == c and bound.share_high is not None]
        if not known:
            yield f"{said}; but no hour was observed for more than half of it, which tells nothing about other hours."
            continue
        counts = " and ".join(f"{bound.above} of {counted(bound.counted, bound.unit)}" for bound in known)
        yield f"{said}: {counts}{at_most(known)}{left_out(known)}."


def at_most(known: Sequence[Bound]) -> str:
    """What the clean days and hours of one level support, as the end of a sentence; empty where it is nothing."""
    # "At most 99 % of hours" tells nobody anything.
    shares = [
        f"{_two_digits(bound.share_high)} of {bound.unit}s"
        for bound in known
        if bound.share_high is not None and bound.share_high <= _MOST_SAID
    ]
    return f", so at most {' and '.join(shares)} go higher (95 %, if they were independent)" if shares else ""


def left_out(known: Sequence[Bound]) -> str:
    """The days and hours that do not count, as the end of a sentence."""
    fallen = [counted(bound.left_out, bound.unit) for bound in known if bound.left_out]
    return f"; left out, as half observed or less: {' and '.join(fallen)}" if fallen else ""


def _two_digits(share: float | None) -> str:
    share = share or 0.0
    return format_percent(share, 0 if share >= 0.1 else 1 if share >= 0.01 else 2)


def _reach_text(how: str, days: int) -> str:
    if how == BOOTSTRAP:
        return f"The bounds of “c or more” resample {days} whole days (95 %)."
    if how == RANGE:
        return (
            f"{days} days with requests are too few for a confidence bound: the lowest and the highest day are given."
        )
    assert how == ONE_DAY
    return "All requests came on one day: how the shares change from day to day is not known."
