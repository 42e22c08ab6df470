"""Whether a load has changed: one rule, its limits, what chance makes, and "cannot tell" with what would settle it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from profiles.characterise import characterise
from profiles.concurrency import Concurrency
from profiles.drift import Comparison, Finding, Load, compare
from profiles.units import HOUR_NS
from profiles.units import MINUTE_NS as MIN
from profiles.units import SECOND_NS as S

DAY_NS = 24 * HOUR_NS


def concurrency(arrivals_at: Mapping[int, int]) -> Concurrency:
    return Concurrency({0: DAY_NS}, dict(arrivals_at), DAY_NS, 0)


def load(
    requests: int = 4000,
    *,
    seed: int = 1,
    prompt: float = 1000.0,
    output: float = 200.0,
    classes: Mapping[str, float] | None = None,
    models: Mapping[str, float] | None = None,
    cached: float | None = None,
    seen: Mapping[int, float] | None = None,
    days: float = 1.0,
    sessions: int | None = None,
    synthetic: bool = False,
) -> Load:
    """A seeded load of log-normal lengths; shares become counts in order."""
    rng = np.random.default_rng(seed)
    span_ns = int(days * DAY_NS)
    rows: dict[str, Any] = {
        "arrival_ns": np.sort(rng.uniform(0, span_ns, requests).astype(np.int64)),
        "prompt_tokens": (prompt * rng.lognormal(0, 0.5, requests)).astype(np.int64) + 1,
        "output_tokens": (output * rng.lognormal(0, 0.5, requests)).astype(np.int64) + 1,
    }
    for column, shares in (("workload", classes or {"chat": 1.0}), ("model", models or {"m": 1.0})):
        names = np.repeat([*shares], [round(share * requests) for share in shares.values()])
        rows[column] = rng.permutation(names)
    if cached is not None:
        rows["cached_tokens"] = (rows["prompt_tokens"] * cached).astype(np.int64)
    if sessions is not None:
        # All turns of a session are of one length, so that they are as sure as one.
        rows["session"] = np.arange(requests) % sessions
        rows["prompt_tokens"] = rows["prompt_tokens"][rows["session"]]
    measured = None if seen is None else concurrency({c: round(share * requests) for c, share in seen.items()})
    character = characterise(pl.DataFrame(rows), [(0, span_ns)], None)
    return Load(f"{seed}.profile", character, measured, synthetic)


def finding(compared: Comparison, quantity: str) -> Finding:
    (found,) = (each for each in compared.findings if each.quantity == quantity)
    return found


LEVELS = {1: 0.6, 2: 0.3, 3: 0.1}
MIX = {"chat": 0.6, "code": 0.4}


def test_a_load_held_against_itself_is_kept() -> None:
    one = load(seen=LEVELS, classes=MIX, cached=0.4)
    compared = compare(one, one)
    assert compared.verdict == "keep"
    assert {each.found for each in compared.findings} == {"same"}
    assert compared.settle == ()


@pytest.mark.parametrize("seed", range(2, 4))
def test_another_sample_of_the_same_load_is_kept(seed: int) -> None:
    compared = compare(load(seen=LEVELS, classes=MIX), load(seen=LEVELS, classes=MIX, seed=seed))
    assert compared.verdict == "keep"


@pytest.mark.parametrize("requests", [30, 100, 300])
def test_few_requests_of_the_same_load_never_reopen(requests: int) -> None:
    one = load(requests, seen=LEVELS, classes=MIX)
    for seed in range(2, 8):
        assert compare(one, load(requests, seen=LEVELS, classes=MIX, seed=seed)).verdict in ("keep", "cannot tell")


@pytest.mark.parametrize(
    ("changed", "quantity", "said"),
    [
        ({"seen": {1: 0.5, 2: 0.3, 3: 0.1, 4: 0.1}}, "c of 95 % of arrivals", "c = 1–3 → c = 1–4 (+10.0 pt)"),
        ({"seen": {1: 0.3, 2: 0.6, 3: 0.1}}, "arrivals over c", "TV 0.300"),
        ({"models": {"m": 0.9, "other": 0.1}}, "model other", "0.0 % → 10.0 % (new)"),
        ({"classes": {"chat": 0.6, "code": 0.32, "rag": 0.08}}, "class rag", "(new)"),
        ({"classes": {"chat": 0.45, "code": 0.55}}, "class mix", "TV 0.150"),
        ({"prompt": 1400.0}, "all prompt p50", "→"),
        ({"output": 300.0}, "chat output p90", "→"),
        ({"cached": 0.6}, "cached prompt tokens", "40.0 % → 60.0 % (+20.0 pt)"),
        ({"days": 0.4}, "rate", "(+150 %)"),
    ],
)
def test_each_limit_reopens(changed: dict[str, Any], quantity: str, said: str) -> None:
    usual: dict[str, Any] = {"seen": LEVELS, "classes": MIX, "cached": 0.4}
    compared = compare(load(**usual), load(**(usual | changed), seed=2))
    assert compared.verdict == "reopen"
    assert finding(compared, quantity).found == "changed"
    (reason,) = (each for each in compared.reasons if each.startswith(f"{quantity}: "))
    assert said in reason.replace("39.9 %", "40.0 %").replace("59.9 %", "60.0 %")


@pytest.mark.parametrize(
    "changed",
    [
        {"seen": {1: 0.55, 2: 0.35, 3: 0.1}},
        {"seen": {1: 0.6, 2: 0.3, 3: 0.045, 4: 0.055}},  # c = 1–4 now, but by half a point
        {"classes": {"chat": 0.55, "code": 0.45}},
        {"classes": {"chat": 0.6, "code": 0.37, "rag": 0.03}},
        {"models": {"m": 0.97, "other": 0.03}},
        {"prompt": 1100.0, "output": 220.0},
        {"cached": 0.45},
        {"days": 0.7},
    ],
)
def test_a_difference_within_its_limit_is_kept(changed: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"seen": {1: 0.6, 2: 0.3, 3: 0.052, 4: 0.048}, "classes": MIX, "cached": 0.4}
    compared = compare(load(8000, **usual), load(8000, **(usual | changed), seed=2))
    assert compared.verdict == "keep", compared.reasons


def test_reasons_come_with_the_most_important_first() -> None:
    now = load(seen={2: 1.0}, classes={"rag": 1.0}, prompt=5000.0, models={"new": 1.0}, seed=2)
    compared = compare(load(seen=LEVELS, classes={"chat": 1.0}), now)
    heads = [reason.split(":")[0] for reason in compared.reasons]
    assert heads[:7] == [
        "model m", "model new", "c of 95 % of arrivals", "arrivals over c", "class chat", "class rag", "class mix",
    ]  # fmt: skip


def test_too_few_requests_cannot_tell_and_say_how_many_would() -> None:
    compared = compare(load(40, seen=LEVELS), load(40, seen=LEVELS, seed=2))
    assert compared.verdict == "cannot tell"
    assert finding(compared, "arrivals over c").needs == 200
    assert "arrivals over c: a side has fewer than 200 arrivals" in compared.reasons
    (way,) = compared.settle
    assert way.startswith("about ")
    assert way.endswith(" requests on each side")


def test_what_it_needs_is_about_enough() -> None:
    compared = compare(load(60), load(60, seed=2))
    needs = max(each.needs or 0 for each in compared.findings if each.found == "cannot tell")
    assert 60 < needs < 20_000
    again = compare(load(needs), load(needs, seed=2))
    assert finding(again, "all prompt p50").found == "same"


def test_turns_of_a_session_count_once() -> None:
    many = compare(load(4000), load(4000, prompt=1400.0, seed=2))
    few = compare(load(4000, sessions=8), load(4000, sessions=8, prompt=1400.0, seed=2))
    assert finding(many, "all prompt p50").found == "changed"
    assert finding(few, "all prompt p50").found == "cannot tell"


def test_a_big_change_shows_even_in_few_requests() -> None:
    compared = compare(load(60, seen=LEVELS), load(60, prompt=20_000.0, seen=LEVELS, seed=2))
    assert compared.verdict == "reopen"
    assert compared.reasons[0].startswith("all prompt p50: ")


def test_requests_without_a_model_are_no_model_that_went() -> None:
    was = load(seen=LEVELS, models={"m": 1.0})
    renamed = {"m": 3200, "unknown": 800}
    one = replace(was, character=replace(was.character, models=renamed))
    assert compare(one, load(seen=LEVELS, seed=2)).verdict == "keep"


def test_a_class_that_is_absent_from_few_requests_is_no_news() -> None:
    was = load(4000, classes={"chat": 0.94, "code": 0.06}, seen=LEVELS)
    compared = compare(was, load(40, seen=LEVELS, days=0.01, seed=2))
    found = finding(compared, "class code")
    assert (found.found, found.needs) == ("cannot tell", 93)  # ln(0.01 / 3) / ln(0.94)
    assert compared.verdict == "cannot tell"


def test_without_concurrency_the_rate_decides() -> None:
    compared = compare(load(4000), load(4000, days=0.7, seed=2))
    assert finding(compared, "rate").found == "changed"
    assert compared.verdict == "reopen"
    assert any("c of the arrivals" in caution for caution in compared.cautions)


def test_what_a_side_does_not_tell_is_said_and_decides_nothing() -> None:
    compared = compare(load(seen=LEVELS, cached=0.4), load(seen=LEVELS, seed=2))
    assert finding(compared, "cached prompt tokens").found == "not known"
    assert compared.verdict == "keep"
    assert compared.cautions == ("not compared, as a side does not tell: cached prompt tokens",)


def test_two_sides_that_tell_nothing_cannot_tell() -> None:
    empty = Load("e", characterise(pl.DataFrame({"arrival_ns": pl.Series([], dtype=pl.Int64)}), [(0, S)], None), None)
    compared = compare(empty, empty)
    assert compared.verdict == "cannot tell"
    assert compared.reasons == ("nothing is known of both sides",)
    assert compared.settle == ("record what both sides can be held by: token counts, ends of requests, classes",)


def test_a_short_or_a_synthetic_side_is_said() -> None:
    now = load(seen=LEVELS, days=20 * MIN / DAY_NS, seed=2, synthetic=True)
    cautions = compare(load(seen=LEVELS), now).cautions
    assert cautions[0] == "2.profile covers 20 min 00 s: a difference may be the hour, not the load"
    assert cautions[1] == "2.profile is synthetic: nobody asked for this load"


def test_a_seed_gives_the_same_comparison_again() -> None:
    sides = load(300, classes=MIX), load(300, classes=MIX, seed=2)
    assert compare(*sides, seed=3) == compare(*sides, seed=3)
    assert compare(*sides, seed=3) != compare(*sides, seed=4)
