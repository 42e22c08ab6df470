"""What a page says about each arm beside its verdict, folded: functions, guards, boot log, caches, the split."""

from collections.abc import Iterator

from analysis.acceptance_gain import acceptance_gain_lines
from analysis.arm_points import clean_log, discard_lines, sameness
from analysis.crossover import crossover_lines
from analysis.described import load_points, rates_role
from analysis.findings import ArmReport, Report
from analysis.functional.guard import functional_lines
from analysis.lines import format_estimate
from analysis.page.parts import Cell, Details, Lines, Table, Words, change, estimate_cells, number, share, text
from analysis.parity import parity_lines
from analysis.sensitivity import sensitivity_lines
from analysis.sequences import anytime_lines
from analysis.split.shown import split_lines
from analysis.verdict import GuardFinding
from profiles.units import format_duration, format_percent


def arm_details(report: Report, tell: Words) -> list[Details]:
    """One fold per arm, in the order of the rule."""
    return [_details(place, arm, report, tell) for place, arm in enumerate(report.arms, start=1)]


def _details(place: int, arm: ArmReport, report: Report, tell: Words) -> Details:
    shown = arm.shown
    parts = [
        Lines("Ladder", [*_ladder(arm, report)]),
        Lines("Functional guard", [*functional_lines(arm.functional, arm.log.compared)]),
        *_log(arm, report),
        Lines("Prefix cache", [*_cached(arm)]),
        Lines("Output length", [*parity_lines(shown.output_lengths)]),
        Lines("Other weights of the arrivals", [*sensitivity_lines(shown.sensitivity)]),
        Lines("One engine per class", [*split_lines(shown.split)]),
        Lines("Acceptance against gain", [*acceptance_gain_lines(shown.acceptance_gain)]),
        Lines("Crossover", [*crossover_lines(shown.crossover)]),
        Lines("If the looks were not declared", [*(anytime_lines(arm.measures) if report.course.undeclared else ())]),
        Lines("Load and remarks", [*load_points(arm, report)]),
    ]
    lines = [Lines(part.title, [tell(row) for row in part.rows], part.code) for part in parts if part.rows]
    tables = [_guards(place, arm, tell)] if arm.guards else []
    tables += [_throughput(place, arm, report.relative)] if shown.throughput else []
    return Details(f"arm-{place}", f"{arm.arm}: {arm.verdict.word}", lines, tables)


def _ladder(arm: ArmReport, report: Report) -> Iterator[str]:
    yield from sameness(arm, report)
    if arm.step:
        for item in arm.step.measures:
            shown = f"{item.title} {format_estimate(item.estimate)}, {item.zone}"
            yield f"this step alone, against {arm.step.against}: {shown}"
    yield from discard_lines(arm)
    for item in arm.measures:
        if item.coverage is not None and item.coverage < 1:
            yield f"{item.title} covers {format_percent(item.coverage, 0)} of the paired requests"


def _log(arm: ArmReport, report: Report) -> Iterator[Lines]:
    log = arm.log
    if not report.cold:
        yield Lines("Boot log", ["not seen, the engine was up already"])
    elif log.clean:
        yield Lines("Boot log", [clean_log(log)])
    yield Lines("Boot log, new fallback lines", log.new, code=True)
    yield Lines("Boot log, other new lines", log.noted, code=True)
    yield Lines(
        "Boot log, new and allowed by the rule", [f"{line} ({reason})" for line, reason in log.allowed], code=True
    )
    yield Lines("Boot log, notes", [*log.notes, *log.blockers])


def _cached(arm: ArmReport) -> Iterator[str]:
    if arm.cached is not None:
        ours, theirs = (format_percent(part) for part in arm.cached)
        by = {"counters": ", by the engine's counters", "windows": ", by the sums of the windows"}
        yield f"cached prompt tokens {ours}, baseline {theirs}{by.get(arm.shown.cached_source or '', '')}"


def _guards(place: int, arm: ArmReport, tell: Words) -> Table:
    head = ("guard", "status", "role", "value", "low", "high", "limit", "note")
    rows = [_guard(guard, tell) for guard in arm.guards]
    return Table(f"guards-{place}", "Guards: what the arm must not make worse.", head, rows)


def _guard(guard: GuardFinding, tell: Words) -> list[Cell]:
    rate = guard.metric == "error_rate"
    values = (guard.value, guard.low, guard.high)
    cells = [share(value, 2) for value in values] if rate else [change(value) for value in values]
    limit = share(guard.limit, 2) if rate else share(guard.limit, 0)
    return [text(guard.metric), text(guard.status), text(guard.role), *cells, limit, text(tell(guard.reason))]


def _throughput(place: int, arm: ArmReport, relative: bool) -> Table:
    rows = []
    for item in arm.shown.throughput:
        rates = [] if relative else [_rate(item.base_tokens_per_s), _rate(item.tokens_per_s)]
        where = [text(item.workload or "the mix"), Cell(str(item.c), item.c)]
        length = [] if relative else [Cell(format_duration(item.limit_ns), item.limit_ns)]
        rows.append([*where, *length, *rates, *estimate_cells(item.estimate)])
    absolute = [] if relative else ["window", "tokens/s, baseline", "tokens/s, arm"]
    head = ("class", "c", *absolute, "change", "low", "high")
    roles = {item.c: rates_role(arm, item.c) for item in arm.shown.throughput}
    if len(set(roles.values())) == 1:
        told = next(iter(roles.values()))
    else:
        told = "; ".join(f"at c = {c}: {role}" for c, role in roles.items())
    return Table(f"throughput-{place}", f"Output tokens per second at a fixed c; {told}.", head, rows)


def _rate(tokens_per_s: float) -> Cell:
    return number(tokens_per_s, f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}")
