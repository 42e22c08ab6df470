"""Text to nanoseconds, exactly. No instant goes through a float: 100 ns of a date of today are below its last digit."""

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from profiles.errors import UsageError
from profiles.units import HOUR_NS, MINUTE_NS, SECOND_NS

# Digits after the point of one unit that make a nanosecond.
DIGITS: Final = {"s": 9, "ms": 6, "us": 3, "ns": 0}
_LARGEST: Final = 2**63 - 1
_PLAIN: Final = r"^[+-]?[0-9]+(?:\.[0-9]*)?$"
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_DATE: Final = (
    r"^(?<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ](?<clock>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:[.,](?<fraction>[0-9]+))?(?: ?(?<zone>Z|[+-][0-9]{2}:?[0-9]{2}))?$"
)
_OFFSET: Final = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})")


def decimal_ns(text: pl.Series, unit: str) -> pl.Series:
    """Nanoseconds of numbers written in `unit`; null where the text is no number or the instant is out of range.

    Exact: a digit beyond the nanosecond rounds it half away from zero.
    """
    digits = DIGITS[unit]
    limit = _LARGEST // 10**digits - 1
    whole_numbers = text.cast(pl.Int64, strict=False)
    if not whole_numbers.null_count() and bool(whole_numbers.is_between(-limit, limit).all()):
        scaled: pl.Series = whole_numbers * 10**digits
        return scaled.alias(text.name)
    parts = pl.DataFrame({"text": text.cast(pl.String).str.strip_chars()}).with_columns(
        pl.col("text").str.split_exact(".", 1).struct.rename_fields(["whole", "fraction"]).alias("parts")
    )
    parts = parts.unnest("parts").with_columns(pl.col("fraction").fill_null(""))
    whole = pl.col("whole").str.strip_prefix("+").cast(pl.Int64, strict=False)
    below = _integer(pl.col("fraction").str.pad_end(digits, "0").str.slice(0, digits))
    up = (_integer(pl.col("fraction").str.slice(digits, 1)) >= 5).cast(pl.Int64)
    sign = pl.when(pl.col("text").str.starts_with("-")).then(-1).otherwise(1)
    usable = pl.col("text").str.contains(_PLAIN) & whole.is_between(-limit, limit)
    ns = parts.select(pl.when(usable).then(whole * 10**digits + sign * (below + up)).alias(text.name)).to_series()
    odd = parts["text"].filter(ns.is_null() & parts["text"].is_not_null()).unique()
    if not odd.len():
        return ns
    known = {each: number_ns(each, unit) for each in odd}
    if all(value is None for value in known.values()):
        return ns
    return ns.fill_null(parts["text"].replace_strict(known, default=None, return_dtype=pl.Int64).alias(text.name))


def _integer(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Int64, strict=False).fill_null(0)


def number_ns(text: str, unit: str) -> int | None:
    """The same of one text, which may also be `1.5e3` or `.5`."""
    digits = DIGITS[unit]
    if not _NUMBER.fullmatch(text):
        return None
    try:
        with localcontext(prec=400):
            ns = int(Decimal(text).scaleb(digits).to_integral_value(ROUND_HALF_UP))
    except InvalidOperation:
        return None
    return ns if abs(ns) <= _LARGEST else None


def date_ns(text: pl.Series, zone: str = "UTC") -> tuple[pl.Series, bool]:
    """Nanoseconds since 1970 of dates such as `2023-11-16 18:17:03.9799600`, and whether all of them name their zone.

    `T` or a blank stands between day and clock; the fraction has any number of digits. A date without `Z` or an offset
    is in `zone`. Null where the text is no date, or names a clock time that its zone skipped.
    """
    parts = pl.DataFrame({"text": text.cast(pl.String).str.strip_chars()}).with_columns(
        pl.col("text").str.extract_groups(_DATE).alias("parts")
    )
    parts = parts.unnest("parts")
    plain = pl.concat_str(["day", "clock"], separator=" ").str.to_datetime(
        "%Y-%m-%d %H:%M:%S", strict=False, time_unit="us"
    )
    local = plain
    if zone != "UTC" and not _OFFSET.fullmatch(zone):
        local = plain.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    own_zone = parts["zone"].is_not_null()
    offsets = {each: _offset_ns(each) for each in parts["zone"].drop_nulls().unique()}
    default_ns = _offset_ns(zone) if _OFFSET.fullmatch(zone) else 0
    parts = parts.with_columns(
        pl.col("zone").replace_strict(offsets, default=default_ns, return_dtype=pl.Int64).alias("offset_ns"),
        pl.when(pl.col("zone").is_null()).then(local.dt.epoch("us")).otherwise(plain.dt.epoch("us")).alias("second_us"),
    )
    fraction = pl.col("fraction").fill_null("")
    below = _integer(fraction.str.pad_end(9, "0").str.slice(0, 9))
    up = (_integer(fraction.str.slice(9, 1)) >= 5).cast(pl.Int64)
    within = pl.col("second_us").is_between(-_LARGEST // 1000 + 10**9, _LARGEST // 1000 - 10**9)
    ns = pl.when(within).then(pl.col("second_us") * 1000 + below + up - pl.col("offset_ns"))
    return parts.select(ns.alias(text.name)).to_series(), bool(own_zone.all())


def _offset_ns(zone: str) -> int:
    match = _OFFSET.fullmatch(zone)
    if match is None:  # Z
        return 0
    sign = -1 if match[1] == "-" else 1
    return sign * (int(match[2]) * HOUR_NS + int(match[3]) * MINUTE_NS)


def check_zone(zone: str) -> str:
    """A zone by its name (`Europe/Budapest`) or offset (`+02:00`). Raises UsageError."""
    if _OFFSET.fullmatch(zone) or zone == "UTC":
        return zone
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"{zone!r} is not a time zone", "Write a name such as Europe/Budapest, an offset such as +02:00, or UTC."
        ) from None
    return zone


def seconds_text(ns: int) -> str:
    """Seconds of an instant, exact, without zeros at the end."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    whole, below = divmod(ns, SECOND_NS)
    return f"{sign}{whole}.{below:09d}".rstrip("0").rstrip(".")
