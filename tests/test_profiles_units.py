"""Durations and shares, into text and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.units import HOUR_NS, format_bytes, format_change, format_duration, format_percent, parse_duration


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0s", 0),
        ("1ns", 1),
        ("250ms", 250_000_000),
        (" 60 s ", 60_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("20min", 1_200_000_000_000),
        ("0.5us", 500),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1e3s", "1m", "1 day", "1s 2ms"])
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="write a number and a unit"):
        parse_duration(text)


@settings(max_examples=30)
@given(st.integers(0, 10**18), st.sampled_from(["ns", "us", "ms", "s", "min", "h"]))
def test_whole_numbers_of_a_unit_are_exact(count: int, unit: str) -> None:
    scale = parse_duration(f"1{unit}")
    assert parse_duration(f"{count % 10**6}{unit}") == count % 10**6 * scale


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (999_600, "1.00 ms"),
        (12_345_678, "12.3 ms"),
        (412_000_000, "412 ms"),
        (4_200_000_000, "4.20 s"),
        (99_960_000_000, "100 s"),
        (100_000_000_000, "1 min 40 s"),
        (HOUR_NS - 31 * 10**9, "59 min 29 s"),
        (HOUR_NS - 30 * 10**9, "1 h 00 min"),
        (HOUR_NS + 5 * 60 * 10**9, "1 h 05 min"),
        (-12_345_678, "−12.3 ms"),
    ],
)
def test_a_duration_for_people(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@settings(max_examples=30)
@given(st.integers(1, 99 * 10**9))
def test_what_is_printed_of_a_short_duration_reads_back_within_its_digits(ns: int) -> None:
    back = parse_duration(format_duration(ns).replace("µs", "us"))
    assert abs(back - ns) <= max(1, 0.0051 * ns)


def test_shares_changes_and_bytes() -> None:
    assert format_percent(0.1234) == "12.3 %"
    assert format_percent(-0.1234, 0) == "−12 %"
    assert format_change(-0.0484) == "−4.8 %"
    assert format_change(0.05) == "+5.0 %"
    assert [format_bytes(count) for count in (0, 999, 1_000, 2_500_000, 3 * 10**9)] == [
        "0 B", "999 B", "1.0 kB", "2.5 MB", "3.0 GB",
    ]  # fmt: skip
