"""Units. Inside the program times are integers in nanoseconds; only this module turns them into text and back."""

import re

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS

_UNITS_NS = {
    "ns": 1,
    "us": MICROSECOND_NS,
    "ms": MILLISECOND_NS,
    "s": SECOND_NS,
    "min": MINUTE_NS,
    "h": HOUR_NS,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|h)\s*")


def parse_duration(text: str) -> int:
    """Nanoseconds of a duration such as `250ms`, `60s` or `1.5h`. Raises ValueError with the accepted form."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a number and a unit, such as 250ms, 60s, 20min or 1.5h")
    return round(float(match[1]) * _UNITS_NS[match[2]])


def format_duration(ns: float) -> str:
    """A duration for people, in three significant digits or clock form: `12.3 ms`, `4.20 s`, `1 h 05 min`."""
    sign, ns = ("−", -ns) if ns < 0 else ("", ns)
    if ns >= HOUR_NS - 30 * SECOND_NS:
        minutes = round(ns / MINUTE_NS)
        return f"{sign}{minutes // 60} h {minutes % 60:02d} min"
    if ns >= 100 * SECOND_NS:
        seconds = round(ns / SECOND_NS)
        return f"{sign}{seconds // 60} min {seconds % 60:02d} s"
    for unit, scale in (("s", SECOND_NS), ("ms", MILLISECOND_NS), ("µs", MICROSECOND_NS)):
        value = ns / scale
        if value >= 0.9995:
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{sign}{value:.{digits}f} {unit}"
    return f"{sign}{ns:.0f} ns"


def format_percent(share: float, digits: int = 1) -> str:
    """A share as a percentage with a real minus sign: 0.1234 becomes `12.3 %`."""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %".replace("-", "−")  # + 0.0: no −0.0


def format_change(change: float, digits: int = 1) -> str:
    """A relative change with its sign: −0.0484 becomes `−4.8 %`."""
    return f"{round(100 * change, digits) + 0.0:+.{digits}f} %".replace("-", "−")  # + 0.0: no −0.0


def format_bytes(count: int) -> str:
    """A byte count for people, in powers of 1000."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
