"""What the replay's client must hold, each with what was measured."""

from collections import Counter
from typing import NamedTuple

from benchmarks.estimates import ByRound, paired_ratio, quantile
from benchmarks.replay.clients import FLOOR, OURS, PLAIN
from benchmarks.replay.command import COMMAND
from benchmarks.replay.figures import (
    all_requests,
    batches,
    by_round,
    gap_errors_ns,
    help_ns,
    levels,
    median_of,
    over_engine_ns,
    percentile,
    starts,
    ttft_errors_ns,
    wrong_of,
)
from benchmarks.replay.raw import LEVELS, TEN, Line

MS, S, MB = 1e6, 1e9, 1e6
NOT_MEASURED = "not measured"
HELP_S, START_S, RSS_MB, P99_MS = 0.3, 1.0, 100, 5.0
TTFT_TIMES, GAP_TIMES = 2.0, 1.5


class Claim(NamedTuple):
    """A claim, its limit as text, and the figure as text. `holds` is None where it was not measured."""

    what: str
    limit: str
    measured: str
    holds: bool | None


def make_claims(lines: list[Line]) -> list[Claim]:
    """Every claim, in the order of the issue that made them."""
    claims = []
    ttft = {c: by_round(batches(lines, LEVELS, c), median_of(ttft_errors_ns)) for c in levels(lines)}
    for c, figures in ttft.items():
        claims += [
            _ratio(f"TTFT error p50 at c = {c}, ours / {peer}", "<", 1.0, figures, peer)
            for peer in sorted(figures)
            if peer not in (OURS, FLOOR, PLAIN)
        ]
    for c, figures in ttft.items():
        claims.append(_ratio(f"TTFT error p50 at c = {c}, ours / {FLOOR}", "≤", TTFT_TIMES, figures, FLOOR))
    for c in ttft:
        claims.append(_p99(lines, c))
    for c in ttft:
        gaps = by_round(batches(lines, LEVELS, c), median_of(gap_errors_ns))
        claims.append(_ratio(f"gap error p50 at c = {c}, ours / {FLOOR}", "≤", GAP_TIMES, gaps, FLOOR))
    return [*claims, *(_traps(lines, client) for client in (OURS, COMMAND)), *_weight(lines)]


def _ratio(what: str, sign: str, limit: float, figures: ByRound, below: str) -> Claim:
    ratio = paired_ratio(figures, OURS, below)
    if ratio is None:
        return Claim(what, f"{sign} {limit:.2f}", NOT_MEASURED, None)
    measured = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}; {ratio.rounds} rounds)"
    holds = ratio.median < limit if sign == "<" else ratio.median <= limit
    return Claim(what, f"{sign} {limit:.2f}", measured, holds)


def _p99(lines: list[Line], c: int) -> Claim:
    errors = all_requests(batches(lines, LEVELS, c), OURS, ttft_errors_ns)
    what, limit, value = f"TTFT error p99 at c = {c}, ours", f"≤ {P99_MS:.0f} ms", percentile(errors, 99)
    if value is None:
        return Claim(what, limit, NOT_MEASURED, None)
    return Claim(what, limit, f"{value / MS:.2f} ms ({len(errors)} requests)", value <= P99_MS * MS)


def _traps(lines: list[Line], client: str) -> Claim:
    pairs = [(pair, line) for line in batches(lines, TEN) if line.client == client for pair in line.pairs]
    lost = sum(line.lost for line in batches(lines, TEN) if line.client == client)
    what = f"definition traps, {client}: first token, chunks, tokens"
    if not pairs:
        return Claim(what, "0 off", NOT_MEASURED, None)
    wrong = Counter(f"{pair.kind}: {words}" for pair, _ in pairs for words in wrong_of(pair))
    if lost:
        wrong["no figure"] = lost
    shown = ", ".join(f"{count} × {words}" for words, count in wrong.items()) or "0 off"
    return Claim(what, "0 off", f"{shown} ({len(pairs)} answers)", not wrong)


def _weight(lines: list[Line]) -> list[Claim]:
    found = starts(lines)
    return [
        _at_most(f"`--help` of {COMMAND.split()[0]}", HELP_S, S, "s", help_ns(lines)),
        _at_most(
            f"{COMMAND}, ten requests to the last byte, over the engine's own time",
            START_S,
            S,
            "s",
            by_round(found, over_engine_ns),
        ),
        _at_most(f"{COMMAND}, processes", 1, 1, "", by_round(found, lambda line: line.processes)),
        _at_most(f"{COMMAND}, RSS at its peak", RSS_MB, MB, "MB", by_round(found, lambda line: line.rss_bytes)),
    ]


def _at_most(what: str, limit: float, unit: float, name: str, figures: ByRound) -> Claim:
    """The median over the rounds of the command."""
    value = quantile(figures, COMMAND, 50)
    shown = f"≤ {limit:g} {name}".strip()
    if value is None:
        return Claim(what, shown, NOT_MEASURED, None)
    digits = 0 if limit >= 1 and name != "s" else 2
    measured = f"{value / unit:.{digits}f} {name}".strip()
    return Claim(what, shown, f"{measured} ({len(figures[COMMAND])} runs)", value <= limit * unit)
