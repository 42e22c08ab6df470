"""What a person sees of a recording: one live line on a terminal while it runs, and the summary at its end.

The line shows the most important parts that fit. What is wrong (records dropped, a late event loop) always comes first.
"""

import os
import select
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from capture.live import Live
from profiles.histogram import WIDTH, render
from profiles.units import MILLISECOND_NS, SECOND_NS, format_duration

DRAW_EVERY_NS = SECOND_NS
# Below this a late event loop is no news: the instants are good to a few milliseconds.
LATE_NS = 100 * MILLISECOND_NS

_ERASE = "\x1b[K"  # from the cursor to the end of the line
_SHOWN_LEVELS = 3
_ASCII: Final = str.maketrans({"µ": "u", "–": "-", "−": "-", "×": "x", "▏": "#"} | dict.fromkeys("█▎▍▌▋▊▉", "#"))


class StatusLine:
    """Draws on a terminal and nowhere else. `columns` tells its width; it may change at any time."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, columns: Callable[[], int] | None = None) -> None:
        self._stream = stream
        self._columns = columns or (lambda: os.get_terminal_size(stream.fileno()).columns or WIDTH)
        self._on = not quiet and stream.isatty()
        self._next_ns = 0
        self._drawn = False

    def draw(self, live: Live, at_ns: int) -> None:
        """Show the counts, if a second has passed since the last time."""
        if self._on and at_ns >= self._next_ns:
            self._next_ns = at_ns + DRAW_EVERY_NS
            try:
                width = self._columns() - 1  # a full line would wrap
            except (OSError, ValueError):
                width = WIDTH - 1
            self._write("\r" + line(live, width) + _ERASE)
            self._drawn = True

    def clear(self) -> None:
        """Take the line away, before something else is written to the terminal."""
        if self._drawn:
            self._drawn = False
            self._write("\r" + _ERASE)

    def _write(self, text: str) -> None:
        if not self._on or not _takes(self._stream):
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone: nobody looks any more
            self._on = False


def line(live: Live, width: int) -> str:
    """The counts in at most `width` columns of ASCII. Words and decimals go first, then the least important parts."""
    for gap, parts in _shorter_and_shorter(live):
        text = gap.join(part for part in parts if part)
        if len(text) <= width:
            return text
    return text[: max(0, width)]


def _shorter_and_shorter(live: Live) -> Iterable[tuple[str, list[str]]]:
    flight = f"{live.in_flight:,} in flight"
    arrivals_at = live.arrival.arrivals_at()
    count, tokens = live.ended_count, live.prompt_tokens + live.output_tokens
    ttft_ns = live.ttft.median_lately_ns
    ttft = "" if ttft_ns is None else f"TTFT p50 {format_brief(ttft_ns)}"
    drops, lag = live.dropped_by.total(), format_brief(live.lag_ns)
    late = live.lag_ns >= LATE_NS
    alarms = [f"DROPPED {drops:,}" if drops else "", f"LATE {lag}" if late else ""]
    drop, lag = "" if drops else "drop 0", "" if late else f"lag {lag}"

    wide, gap = " | ", "|"
    levels = _shares(arrivals_at)
    work = f"{count:,} req {format_count(tokens)} tok"
    yield (
        wide,
        [flight, *alarms, levels, f"{_counted(count, 'request')} {format_count(tokens)} tokens", ttft, drop, lag],
    )
    yield wide, [flight, *alarms, levels, work, ttft, drop, lag]
    yield gap, [flight, *alarms, _shares(arrivals_at, tight=True, highest=True), work, ttft, drop, lag]
    levels = _shares(arrivals_at, tight=True)
    yield gap, [flight, *alarms, levels, work, ttft, drop, lag]
    for digits in (1, 0):
        work = f"{format_count(count, digits)} req {format_count(tokens, digits)} tok"
        yield gap, [flight, *alarms, levels, work, ttft, drop, lag]
    for shown in range(_SHOWN_LEVELS - 1, 0, -1):
        levels = _shares(arrivals_at, shown, tight=True)
        yield gap, [flight, *alarms, levels, work, ttft, drop, lag]
    yield gap, [flight, *alarms, levels, work, ttft, drop]
    yield gap, [flight, *alarms, levels, work, ttft]
    yield gap, [flight, *alarms, work, ttft]
    yield gap, [flight, *alarms, ttft]
    yield gap, [flight, *alarms]
    yield gap, [alarms[0] or flight]


def _shares(
    arrivals_at: Mapping[int, int], shown: int = _SHOWN_LEVELS, *, tight: bool = False, highest: bool = False
) -> str:
    """`c=1 71% 2 22% 3 7% max 9`, or tight `c 1:71 2:22 3:7%`: share of the arrivals at the heaviest operating points.

    The highest point is told too where it is not among them and there is room.
    """
    total = sum(arrivals_at.values())
    if not total:
        return ""
    heaviest = sorted(sorted(arrivals_at, key=lambda c: -arrivals_at[c])[:shown])
    shares = [(c, 100 * arrivals_at[c] / total) for c in heaviest]
    listed = [(c, "<1" if share < 0.5 else f"{share:.0f}") for c, share in shares]
    if tight:
        text = "c " + " ".join(f"{c}:{share}" for c, share in listed) + "%"
    else:
        text = "c=" + " ".join(f"{c} {share}%" for c, share in listed)
    most = max(arrivals_at)
    return text + (f" max {most}" if most > heaviest[-1] and (highest or not tight) else "")


def summary(
    live: Live,
    folder: Path,
    *,
    listen: str = "",
    encoding: str | None = "utf-8",
    killed: bool = False,
    before: int = 0,
    since_wall_ns: int | None = None,
) -> str:
    """The text at the end of a recording, for stderr, without a final newline.

    `listen` is where clients connect, with or without a scheme. `killed`: the proxy ended without a word. A scribe that
    replaced another tells when its counts begin (`since_wall_ns`) and how many requests were recorded `before`.
    """
    head = "\n".join(map(_filled, _head(live, folder, killed, before, since_wall_ns)))
    if not live.arrived_count and not live.ended_count:
        parts = [head, "\n".join(map(_filled, _nothing(live, listen, asks=not before)))]
    else:
        parts = [head, _facts(live, killed), _table(live), _verdict(live, folder, killed)]
    return plain("\n\n".join(part for part in parts if part), encoding)


def _head(live: Live, folder: Path, killed: bool, before: int, since_wall_ns: int | None) -> Iterable[str]:
    """What must be known before the counts are read."""
    if killed:
        were = "was" if live.in_flight == 1 else "were"
        yield (
            f"The recorder was killed; {_counted(live.in_flight, 'request')} {were} in flight."
            " Nothing listens any more."
        )
        yield _to_check(folder)
    if before or since_wall_ns is not None:
        begin = "later" if since_wall_ns is None else f"at {_time_of_day(since_wall_ns)}"
        yield f"Scribe replaced: counts begin {begin}; {_counted(before, 'request')} recorded before"


def _time_of_day(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns // SECOND_NS, UTC).strftime("%H:%M:%S UTC")


def _to_check(folder: Path) -> str:
    return f"To see what the files hold: firsttoken capture check {shlex.quote(str(folder))}"


def plain(text: str, encoding: str | None) -> str:
    """The same text in ASCII where the terminal cannot show more."""
    if (encoding or "").lower().replace("-", "").replace("_", "") == "utf8":
        return text
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def format_count(count: int, digits: int = 1) -> str:
    """A count in at most four digits: 950, 9.5k, 402k, 1.2M. `digits` after the point: at most 1."""
    for unit, scale in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale - scale // 2000:  # 999,600 is 1.0M, not 1000k
            value = count / scale
            return f"{value:.{digits}f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"
    return str(count)


def format_brief(ns: int) -> str:
    """A duration in whole milliseconds, or in seconds from one second on: 0ms, <1ms, 182ms, 4.2s, 130s."""
    if ns < MILLISECOND_NS:
        return "<1ms" if ns else "0ms"
    if ns < SECOND_NS - MILLISECOND_NS // 2:  # what rounds to 1000ms is 1.0s
        return f"{ns / MILLISECOND_NS:.0f}ms"
    seconds = ns / SECOND_NS
    return f"{seconds:.1f}s" if seconds < 99.95 else f"{seconds:.0f}s"


def _nothing(live: Live, listen: str, *, asks: bool) -> Iterable[str]:
    span_ns = _observed_ns(live)
    yield f"No request to an endpoint that is recorded came in {format_duration(span_ns)}."
    if live.passed_through or live.upgrades:
        yield (
            f"{_passed(live)}, so clients do reach the recorder. It records chat/completions, completions, responses,"
            " messages and embeddings."
        )
    elif asks:  # where requests came before, the clients know the way
        where = listen if not listen or "://" in listen else f"http://{listen}"
        yield (
            f"Are the clients pointed at {where or 'the address of --listen'}?"
            + (f" While it records, this shows whether it answers: curl {where}/v1/models" if where else "")
        )
    yield from _dropped(live)


def _facts(live: Live, killed: bool) -> str:
    return "\n".join(map(_filled, _fact_lines(live, killed)))


def _fact_lines(live: Live, killed: bool) -> Iterable[str]:
    by_outcome = ", ".join(f"{count:,} {outcome}" for outcome, count in live.outcomes().most_common())
    span = format_duration(_observed_ns(live))
    yield f"{_counted(live.ended_count, 'request')} in {span}: {by_outcome or 'none ended'}"
    if live.reasons:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in live.reasons.most_common())
        yield f"unanswered by the engine: {reasons}"
    if live.in_flight and not killed:  # else the first line has told it
        yield f"{live.in_flight:,} still in flight"
    tokens = f"tokens by usage: {live.prompt_tokens:,} prompt, {live.output_tokens:,} output"
    if live.without_usage:
        tokens += f"; {_counted(live.without_usage, 'answer')} without usage"
    yield f"{tokens}; {_counted(live.token_events, 'event')} with tokens"
    quantiles_ns = live.ttft.quantiles_ns(0.5, 0.9)
    if quantiles_ns is None:
        yield "TTFT: no answer carried a token"
    else:
        p50, p90 = map(format_duration, quantiles_ns)
        of = f"{_counted(live.ttft.count, 'request')}" + (f", 1 in {live.ttft.every}" if live.ttft.every > 1 else "")
        yield f"TTFT p50 {p50}, p90 {p90} ({of})"
    if live.passed_through or live.upgrades:
        yield _passed(live)
    yield from _dropped(live)
    yield f"worst lag of the proxy {format_duration(live.worst_lag_ns)}"


def _table(live: Live) -> str:
    measured = live.measured()
    return "" if measured is None else render(measured, live.arrival.windows)


def _verdict(live: Live, folder: Path, killed: bool) -> str:
    found = live.check()
    if found:
        lines = [f"check: {problem}" for problem in found]
        if not killed:  # else the second line has told it
            lines.append(_to_check(folder))
    else:
        lines = ["check: sum of k x T_k = sum of durations, exactly, by arrival and by dispatch"]
    return "\n".join([*map(_filled, lines), f"Next: firsttoken concurrency {shlex.quote(str(folder))}"])


def _dropped(live: Live) -> Iterable[str]:
    if live.dropped_by:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in live.dropped_by.most_common())
        yield f"DROPPED {_counted(live.dropped_by.total(), 'record')}: {reasons}. The traffic was passed on."
    else:
        yield "dropped nothing"


def _passed(live: Live) -> str:
    upgrades = f" and {_counted(live.upgrades, 'upgraded connection')}" if live.upgrades else ""
    return f"{_counted(live.passed_through, 'other request')}{upgrades} passed through unrecorded"


def _observed_ns(live: Live) -> int:
    measured = live.measured()
    return 0 if measured is None else measured.observed_ns


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _takes(stream: TextIO) -> bool:
    """Whether a write would not wait: a terminal that is stopped by Ctrl-S must not stop the recorder."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return True
    watch = select.poll()
    watch.register(descriptor, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in watch.poll(0))
