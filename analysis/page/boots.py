"""The boots of a run on a page: the timeline, and which were failed, discarded or interrupted, with reasons."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from analysis import course
from analysis.boot_log import FALLBACKS, NOTED, findings_of
from analysis.endings import ending
from analysis.findings import Report
from analysis.page.charts.ecdf import distribution
from analysis.page.charts.timeline import BootRow, timeline
from analysis.page.parts import NONE, Cell, Section, Table, Words, number, share, span, text
from profiles.runs import AA_SUFFIX, DONE, BootFacts
from profiles.units import format_duration

# More rows than this make a picture that nobody reads; the table holds them all.
MOST_ROWS: Final = 120


def boots(report: Report, tell: Words) -> Section:
    """A row per slot, in the order of time. In a relative report lengths are shares and TTFT is a ratio."""
    relative = report.relative
    firsts = _first_ttfts_ns(report)
    base = _baseline_ttft(report) if relative else None
    known = {item.signature for item in findings_of(report.run, report.baseline, report.baseline + AA_SUFFIX)}
    ordered = sorted(report.run.boots, key=lambda boot: (boot.facts.block, boot.facts.slot, boot.facts.attempt))
    drawn, rows = [], []
    before = 0
    longest = max((_between(boot.facts.spawned_ns, boot.facts.gone_ns) or 0 for boot in ordered), default=0) or 1
    for boot in ordered:
        facts = boot.facts
        booted = _between(facts.spawned_ns, facts.ready_ns)
        spent = _between(facts.spawned_ns, facts.gone_ns)
        measured = sum(window.ended_ns - window.started_ns for window in facts.windows)
        first = firsts.get((facts.arm, facts.block)) if facts.status == DONE else None
        flags = _flags(facts, known)
        shown_first = NONE if first is None else format_duration(first)
        if relative:
            shown_first = NONE if first is None or not base else f"×{first / base:.2f}"
        again = f" (try {facts.attempt})" if facts.attempt > 1 else ""
        drawn.append(
            BootRow(
                name=f"{facts.block}·{facts.slot} {facts.arm}{again}",
                status=facts.status,
                boot_ns=booted,
                measured_ns=measured,
                spent_ns=spent,
                first=shown_first,
                flags=tell(flags),
                new_block=facts.block != before,
            )
        )
        before = facts.block
        length = (lambda ns: share(None if ns is None else ns / longest)) if relative else span
        ratio = number(None if first is None or not base else first / base, shown_first) if relative else span(first)
        rows.append(
            [
                Cell(f"{facts.block}", facts.block),
                Cell(f"{facts.slot}", facts.slot),
                text(facts.arm),
                text(facts.status),
                length(booted),
                length(measured if facts.windows else None),
                length(spent),
                ratio,
                text(tell(flags)),
                text(tell(ending(facts)) if facts.status != DONE else ""),
            ]
        )
    how = (
        "One row per slot (block·slot arm), in the order of time; the parts of a bar are sums."
        " Grey boots were not counted; their reasons are below."
        " Beside the bar: TTFT of the first measured request, and what the boot log says beyond the baseline's."
    )
    if not relative:
        total = format_duration(course.machine_time_ns(report.run))
        how += f" Machine time from spawn to proven death: {total} in {len(ordered)} boots."
    panel = timeline(drawn[:MOST_ROWS], relative=relative)
    said = "Lengths are shares of the longest boot, TTFT is a multiple of the baseline's median." if relative else ""
    head = (
        "block",
        "slot",
        "arm",
        "status",
        "boot",
        "windows",
        "spawn to gone",
        "first TTFT",
        "log",
        "why not counted",
    )
    table = Table("boots-numbers", f"Every boot that ended. {said}".strip(), head, rows)
    why = "" if len(drawn) <= MOST_ROWS else f"Drawn: the first {MOST_ROWS} of {len(drawn)} boots; the table has all."
    return Section("boots", "Boots", how, [panel] if panel else [], [table], why)


def _first_ttfts_ns(report: Report) -> dict[tuple[str, int], int]:
    """TTFT of the request that was measured first, of every boot that counts and has it."""
    first = report.data.frame.sort("send_started_ns").group_by("arm", "block", maintain_order=True).first()
    rows = first.drop_nulls("ttft_ns").select("arm", "block", "ttft_ns").iter_rows()
    return {(arm, block): ttft_ns for arm, block, ttft_ns in rows}


def not_counted(report: Report, tell: Words) -> Iterator[str]:
    """Failed, discarded and interrupted boots, each with its reason."""
    for facts in (*report.failed, *report.discarded):
        yield f"{facts.arm}, block {facts.block}, slot {facts.slot}, {facts.status}: {tell(ending(facts))}"
    for path in report.run.interrupted:
        yield f"{path.name}, interrupted: it has no boot.json"


def _baseline_ttft(report: Report) -> float | None:
    rows = report.data.frame.filter((report.data.frame["arm"] == report.baseline) & report.data.frame["deciding"])
    parts = rows.drop_nulls("ttft_ns").partition_by("block", as_dict=True)
    base = distribution(report.baseline, {int(block): part["ttft_ns"].to_numpy() for (block,), part in parts.items()})
    return base.median if base else None


def _flags(facts: BootFacts, known: set[str]) -> str:
    """What a boot's log holds: new fallback lines first, then other new ones, then compilation in a window."""
    told = []
    for severities, name in ((FALLBACKS, "new fallback"), (NOTED, "new warning")):
        count = sum(item.severity in severities and item.signature not in known for item in facts.findings)
        told += [f"{count} {name}{'s' if count > 1 else ''}"] if count else []
    inside = Counter(item.id for item in facts.findings if item.while_serving and item.window not in (None, "warmup"))
    told += [f"{sum(inside.values())} lines in windows"] if inside else []
    told += [f"compile cache {facts.compile_cache}"] if facts.compile_cache else []
    if facts.status != DONE:
        told.insert(0, facts.status)
    return ", ".join(told)


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start
