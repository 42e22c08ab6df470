"""TTFT and TPOT of single requests: k₁, censoring, coverage, and what has no value."""

import math
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from analysis import contrasts
from analysis.acceptance import acceptance_lengths
from analysis.load import SCHEMA
from analysis.measures import assumed_first_event_share, with_measures
from profiles.runs import Boot, BootFacts, WindowFacts

MS = 1_000_000


def row(**changed: object) -> dict[str, object]:
    """A request sent at 0 with its first token at 200 ms, 17 tokens, the last one at 1,800 ms."""
    facts = {
        "arm": "v0",
        "block": 1,
        "window": "closed-c1",
        "kind": "closed",
        "deciding": True,
        "c": 1,
        "index": 0,
        "request": 0,
        "workload": "chat",
        "outcome": "ok",
        "origin": None,
        "due_ns": -10 * MS,
        "send_started_ns": 0,
        "first_token_ns": 200 * MS,
        "last_token_ns": 1_800 * MS,
        "end_ns": 1_801 * MS,
        "token_events": 17,
        "first_event_tokens": None,
        "prompt_tokens": 100,
        "output_tokens": 17,
        "cached_tokens": None,
    }
    assert facts.keys() == SCHEMA.keys()
    return facts | changed


def frame(*rows: dict[str, object], min_tokens: int = 16) -> pl.DataFrame:
    return with_measures(pl.DataFrame(list(rows), schema=SCHEMA), min_tokens)


@pytest.mark.parametrize(
    ("changed", "ttft_ms"),
    [
        ({}, 200),
        ({"send_started_ns": 50 * MS}, 150),
        ({"outcome": "timeout", "first_token_ns": None, "end_ns": 30_000 * MS}, 30_000),  # censored at its limit
        ({"outcome": "timeout", "end_ns": 30_000 * MS}, 200),  # its first token came in time
        ({"outcome": "error"}, None),
        ({"outcome": "incomplete"}, None),
        ({"outcome": "empty", "first_token_ns": None}, None),
        ({"outcome": "cancelled", "first_token_ns": None}, None),
        ({"first_token_ns": None}, None),  # not streamed
        ({"send_started_ns": None}, None),
        ({"send_started_ns": 200 * MS}, None),  # an instant that cannot be is no measurement
        ({"send_started_ns": 300 * MS}, None),
    ],
)
def test_ttft(changed: dict[str, object], ttft_ms: float | None) -> None:
    value = frame(row(**changed))["ttft_ns"].item()
    assert value == (None if ttft_ms is None else ttft_ms * MS)


def test_ttft_from_due_time_shows_a_late_client() -> None:
    measured = frame(row())
    assert measured["ttft_due_ns"].item() == 210 * MS
    assert measured["send_lag_ns"].item() == 10 * MS


@pytest.mark.parametrize(
    ("changed", "tpot_ms"),
    [
        ({}, 100),  # 1,600 ms over 17 − 1 tokens
        ({"first_event_tokens": 1}, 100),
        ({"output_tokens": 19, "first_event_tokens": 3}, 100),  # what the first event brought took no decode time
        ({"output_tokens": 17, "first_event_tokens": 2}, None),  # 15 tokens after the first event
        ({"output_tokens": 16}, None),
        ({"output_tokens": None}, None),  # no usage: unknown, not counted by events
        ({"last_token_ns": 200 * MS}, None),  # all in one read
        ({"outcome": "timeout"}, None),
        ({"outcome": "error"}, None),
    ],
)
def test_tpot(changed: dict[str, object], tpot_ms: float | None) -> None:
    value = frame(row(**changed))["tpot_ns"].item()
    assert value == (None if tpot_ms is None else pytest.approx(tpot_ms * MS))


def test_min_tokens_is_the_rule_s() -> None:
    assert frame(row(output_tokens=9), min_tokens=8)["tpot_ns"].item() == pytest.approx(200 * MS)
    assert frame(row(output_tokens=9), min_tokens=9)["tpot_ns"].item() is None


def test_an_assumed_first_event_is_flagged_where_events_carry_several_tokens() -> None:
    packed = row(token_events=8)
    told = row(index=1, token_events=8, first_event_tokens=1)
    plain = row(index=2)
    assert assumed_first_event_share(frame(packed, told, plain)) == pytest.approx(1 / 3)
    assert assumed_first_event_share(frame(row(output_tokens=None))) is None


def two_arms(*pairs: tuple[Mapping[str, object], Mapping[str, object]]) -> pl.DataFrame:
    rows = []
    for index, (base, arm) in enumerate(pairs):
        rows += [row(index=index, **base), row(index=index, arm="v1", **arm)]
    return frame(*rows)


def test_block_difference_is_the_mean_log_ratio_of_pairs() -> None:
    faster = ({"first_token_ns": 200 * MS}, {"first_token_ns": 100 * MS})
    slower = ({"first_token_ns": 300 * MS}, {"first_token_ns": 600 * MS})
    found = contrasts.contrast(two_arms(faster, slower, faster), "v1", "v0", 3)
    means = contrasts.block_means(found.pairs)
    assert means["ttft"].differences == {1: pytest.approx(-math.log(2) / 3)}
    assert means["ttft"].base_geomean_ms == pytest.approx((200 * 300 * 200) ** (1 / 3))


def test_class_means_are_those_of_the_class_alone() -> None:
    chat = ({"first_token_ns": 200 * MS}, {"first_token_ns": 100 * MS})
    code = tuple(side | {"workload": "code", "last_token_ns": None} for side in chat[::-1])
    found = contrasts.contrast(two_arms(chat, (code[0], code[1])), "v1", "v0", 2)
    means = contrasts.class_means(found.pairs)
    assert list(means) == ["chat", "code"]
    assert means["chat"]["ttft"].differences == {1: pytest.approx(-math.log(2))}
    assert means["code"]["ttft"].differences == {1: pytest.approx(math.log(2))}
    assert means["code"]["tpot"].differences == {}
    assert means["code"]["tpot"].base_geomean_ms is None


def test_coverage_counts_pairs_with_a_value_on_both_sides() -> None:
    short = {"output_tokens": 5}
    found = contrasts.contrast(two_arms(({}, {}), (short, {}), ({}, short), (short, short)), "v1", "v0", 4)
    assert contrasts.coverage(found.pairs, "tpot") == 0.25
    assert contrasts.coverage(found.pairs, "ttft") == 1.0
    assert contrasts.fewest_values(found.pairs, "tpot") == 1


def test_a_pair_is_discarded_if_requests_are_missing_through_nobody_s_engine() -> None:
    cut = {"outcome": "cancelled", "origin": "client"}
    whole: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {})] * 97
    spoilt = contrasts.contrast(two_arms(*whole, *[({}, cut)] * 3), "v1", "v0", 100)
    assert spoilt.blocks == ()
    assert spoilt.discarded == ((1, "v1 lost 3 of 100 requests through no fault of its engine"),)
    fine = contrasts.contrast(two_arms(*whole, ({}, {}), *[({}, cut)] * 2), "v1", "v0", 100)
    assert fine.blocks == (1,)


def test_what_the_arm_broke_does_not_discard_its_pair() -> None:
    broken = {"outcome": "error", "origin": "engine"}
    found = contrasts.contrast(two_arms(*[({}, {})] * 6, *[({}, broken)] * 4), "v1", "v0", 10)
    assert found.blocks == (1,)
    assert found.pairs.height == 6
    assert contrasts.contrast(two_arms(*[({}, broken)] * 4), "v1", "v0", 4).broken == (1,)


def test_what_the_baseline_broke_discards_the_pair() -> None:
    broken = {"outcome": "error", "origin": "engine"}
    found = contrasts.contrast(two_arms(*[({}, {})] * 6, *[(broken, {})] * 4), "v1", "v0", 10)
    assert found.blocks == ()


def test_cached_share_is_null_where_no_engine_tells_and_zero_where_vllm_leaves_it_out() -> None:
    silent = contrasts.contrast(two_arms(({}, {})), "v1", "v0", 1)
    assert contrasts.cached_shares(silent.pairs) is None
    told = contrasts.contrast(two_arms(({"cached_tokens": 40}, {}), ({}, {})), "v1", "v0", 2)
    assert contrasts.cached_shares(told.pairs) == (0.0, 0.2)


def test_quantiles_are_taken_per_boot_and_never_pooled() -> None:
    pairs = [({"first_token_ns": n * MS}, {"first_token_ns": 2 * n * MS}) for n in range(1, 101)]
    found = contrasts.contrast(two_arms(*pairs), "v1", "v0", 100)
    assert contrasts.quantile_differences(found.pairs, "ttft", 0.9) == {1: pytest.approx(math.log(2))}


def test_a_request_without_a_value_in_one_boot_of_the_base_is_in_no_quantile() -> None:
    """The copy answers its long requests without a token that could be timed: they are out of all three quantiles."""
    rows = []
    for index in range(100):
        ttft = {"first_token_ns": (10 if index < 10 else 1) * 100 * MS}
        rows += [row(index=index, **ttft), row(index=index, arm="v1", **ttft)]
        rows.append(row(index=index, arm="v0.aa", **(ttft if index >= 10 else {"first_token_ns": None})))
    found = contrasts.contrast(frame(*rows), "v1", "v0", 100, "v0.aa")
    assert found.served == {1: ("v0", "v0.aa")}
    assert contrasts.quantile_differences(found.pairs, "ttft", 0.95) == {1: pytest.approx(0.0)}
    assert contrasts.fewest_values(found.pairs, "ttft") == 90


def window(counters: dict[str, float] | None, **changed: object) -> WindowFacts:
    facts: dict[str, object] = {
        "name": "single-code",
        "kind": "single",
        "c": 1,
        "deciding": False,
        "workload": "code",
        "started_ns": 0,
        "ended_ns": 1,
        "requests": 1,
        "counters": counters,
    }
    return WindowFacts(**(facts | changed))  # type: ignore[arg-type]  # a table row of a test


def boot(*windows: WindowFacts) -> Boot:
    facts = BootFacts(arm="v0", block=1, slot=1, status="done", argv=[], wall_ns=0, mono_ns=0, windows=list(windows))
    return Boot(path=None, facts=facts, outcomes=())  # type: ignore[arg-type]  # no folder behind it


def counters(drafts: float, accepted: float) -> dict[str, float]:
    return {
        "vllm:spec_decode_num_drafts_total": drafts,
        "vllm:spec_decode_num_accepted_tokens_total": accepted,
    }


def test_acceptance_length_is_one_plus_accepted_per_draft_over_boots() -> None:
    boots = [boot(window(counters(100, 150))), boot(window(counters(300, 290)))]
    assert acceptance_lengths(boots) == {"code": pytest.approx(1 + 440 / 400)}


@pytest.mark.parametrize(
    "unusable",
    [
        window(None),
        window({}),
        window(counters(0, 0)),
        window(counters(10, 10), counters_void="the engine restarted inside the window"),
        window(counters(10, 10), kind="closed", workload=None),
    ],
)
def test_absent_counters_give_no_acceptance_and_never_a_zero(unusable: WindowFacts) -> None:
    assert acceptance_lengths([boot(unusable)]) == {}
