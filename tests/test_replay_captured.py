"""What the plan of a run states of the captured requests, for the report to hold the baseline against."""

from typing import Any

import pytest

from profiles.profile import ProfileRow
from replay.plan import captured
from replay.schedule import Pick, Window


def row(request: int, **changes: Any) -> ProfileRow:
    return ProfileRow(request=request, arrival_ns=request, workload="chat", workload_rule="test", **changes)


def window(*picks: Pick, deciding: bool = True) -> Window:
    return Window("observed", "observed", 0, deciding, picks)


def test_each_deciding_request_counts_once() -> None:
    once = [row(number, ttft_ns=100 * (number + 1), prompt_tokens=100, cached_tokens=None) for number in range(3)]
    told = row(3, ttft_ns=900, prompt_tokens=300, cached_tokens=120)
    windows = [
        window(*map(Pick, once)),
        window(Pick(once[2], 1), Pick(told)),
        window(Pick(row(9, ttft_ns=1, prompt_tokens=10**6, cached_tokens=10**6)), deciding=False),
    ]
    assert captured(windows) == {
        "requests": 4,
        "ttft_requests": 4,
        "ttft_p50_ns": 250,
        "cached_share": pytest.approx(0.2),  # vLLM leaves it out where it is 0
    }


def test_what_nobody_said_is_null() -> None:
    assert captured([window(Pick(row(0)), Pick(row(1, prompt_tokens=10)))]) == {
        "requests": 2,
        "ttft_requests": 0,
        "ttft_p50_ns": None,
        "cached_share": None,
    }
