"""Everything that the concurrency report shows, computed once. The terminal, the page and the JSON only draw it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from profiles.calendar import Day, HourCell, Span, find_zone, read_calendar
from profiles.concurrency import COVER, Concurrency, OperatingPoint
from profiles.confidence import Bound, Reach, read_bounds, read_reach
from profiles.sweep import Stays, merge, sweep, sweep_groups

if TYPE_CHECKING:
    from profiles.experiment import Experiment

# What an experiment does with a level: `LoadView.marked`.
DECIDING = "deciding"
SYNTHETIC = "synthetic"

NO_WALL_CLOCK = "nobody knows the wall clock of this load: its instants count from its first window"


@dataclass(frozen=True, slots=True)
class LoadView:
    """The load as it was observed.

    All instants are nanoseconds from the profile's zero; `zero_wall_ns` is the wall clock of that zero. `zone` is the
    name of the time zone of `cells` and `days`. Where the wall clock is unknown `zone` is None, `no_calendar` says why,
    `cells` is empty, and `days` are blocks of 24 hours from the zero ("day 1").
    """

    total: Concurrency
    classes: dict[str, Concurrency]  # most arrivals first; time: its own in flight, arrivals: by the total c
    windows: tuple[tuple[int, int], ...]  # observed, disjoint, in order
    point: OperatingPoint
    zero_wall_ns: int | None
    zone: str | None
    no_calendar: str  # "" where there is a calendar
    cells: tuple[HourCell, ...]  # hour of day × weekday, only those with observed time
    spans: tuple[Span, ...]  # N(t) over the whole time, in equal steps of `span_ns`, gaps included
    span_ns: int
    days: tuple[Day, ...]  # only those with observed time
    reach: tuple[Reach, ...]  # ascending c, from 1 to the maximum
    bounds: tuple[Bound, ...]  # what "never above c" rests on: of the maximum and of 8, by days and by hours
    seed: int  # of the bootstrap of days
    marked: dict[int, str] = field(default_factory=dict)  # level -> DECIDING or SYNTHETIC, of an experiment
    synthetic: bool = False  # a generated profile: nobody's production
    estimate: str | None = None  # the stated service time that stands in for unknown ends; the result is an estimate
    cover: float = COVER
    origin: str = ""  # where the requests come from, if they were not recorded as they are (`origin.say_origin`)
    shaped: bool = False  # recorded or imported, then cut, thinned, grown or mixed: in flight is an estimate


def read_view(
    stays: Stays,
    zone: str = "UTC",
    *,
    cover: float = COVER,
    marked: Mapping[int, str] | None = None,
    synthetic: bool = False,
    estimate: str | None = None,
    origin: str = "",
    shaped: bool = False,
    seed: int = 1,
) -> LoadView:
    """The view of some stays. `zone` names the time zone of hours and days; `seed` is that of the bootstrap.

    Raises UsageError for an unknown zone, and ValueError where the windows hold no time.
    """
    local = find_zone(zone)
    line = merge(stays)
    total = sweep(stays, line)
    calendar = read_calendar(line, stays.zero_wall_ns, local)
    groups = sweep_groups(stays, line).items()
    known = stays.zero_wall_ns is not None
    return LoadView(
        total=total,
        classes=dict(sorted(groups, key=lambda each: (-each[1].requests, each[0]))),
        windows=tuple(stays.windows),
        point=total.operating_point(cover),
        zero_wall_ns=stays.zero_wall_ns,
        zone=zone if known else None,
        no_calendar="" if known else NO_WALL_CLOCK,
        cells=calendar.cells,
        spans=calendar.spans,
        span_ns=calendar.span_ns,
        days=calendar.days,
        reach=read_reach(total, calendar.days, seed),
        bounds=read_bounds(total.max, calendar.days, calendar.hours),
        seed=seed,
        marked=dict(sorted((marked or {}).items())),
        synthetic=synthetic,
        estimate=estimate,
        cover=cover,
        origin=origin,
        shaped=shaped,
    )


def marked_by(view: LoadView, experiment: "Experiment") -> LoadView:
    """The same view with the levels that an experiment measures: those of the operating point decide, a closed loop at
    any other level is synthetic."""
    marked = {window.c: SYNTHETIC for window in experiment.also if window.kind == "closed"}
    marked |= dict.fromkeys(view.point.levels, DECIDING)
    return replace(view, marked=dict(sorted(marked.items())))
