"""Characterisation: the public traces against their reference values, gaps, quantised arrivals, and what is unknown."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.arrivals import Arrivals, measure_arrivals
from profiles.character import Character
from profiles.characterise import characterise
from profiles.days import DAY_NS
from profiles.files import encode
from profiles.lengths import describe, estimate, quantile, together
from profiles.units import MILLISECOND_NS as MS
from profiles.units import MINUTE_NS as MIN
from profiles.units import SECOND_NS as S

TRACES = Path(__file__).parents[2] / "shared" / "traces"
DATA = TRACES / "data"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not at {TRACES}")


def reference(name: str) -> Any:
    return json.loads((TRACES / "reference" / name).read_text(encoding="utf-8"))


def frame(at_ns: list[int], prompt: list[int], output: list[int]) -> pl.DataFrame:
    told = pl.DataFrame({"arrival_ns": at_ns, "prompt_tokens": prompt, "output_tokens": output})
    return told.sort("arrival_ns", maintain_order=True).with_columns(pl.col("arrival_ns") - min(at_ns))


def azure(name: str) -> pl.DataFrame:
    read = pl.read_csv(DATA / "azure" / f"AzureLLMInferenceTrace_{name}.csv")
    at = read["TIMESTAMP"].str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns").dt.timestamp("ns")
    return frame(at.to_list(), read["ContextTokens"].to_list(), read["GeneratedTokens"].to_list())


def mooncake(name: str, lines: int | None) -> pl.DataFrame:
    text = (DATA / "mooncake" / f"{name}_trace.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()[:lines]]
    at_ns = [row["timestamp"] * MS for row in rows]
    return frame(at_ns, [row["input_length"] for row in rows], [row["output_length"] for row in rows])


def burstgpt(name: str) -> pl.DataFrame:
    read = pl.read_csv(DATA / "burstgpt" / f"{name}.csv")
    at = (read["Timestamp"].cast(pl.Float64) * S).round().cast(pl.Int64)
    return frame(at.to_list(), read["Request tokens"].to_list(), read["Response tokens"].to_list())


def weka(number: str) -> pl.DataFrame:
    rows: list[tuple[float, int, int]] = []
    for request in json.loads((DATA / "weka" / f"trace_{number}.json").read_text(encoding="utf-8"))["requests"]:
        start = request["t"] if request["type"] == "subagent" else 0.0
        rows += [(start + inner["t"], inner["in"], inner["out"]) for inner in request.get("requests", [request])]
    at_ns, prompt, output = zip(*((round(t * S), a, b) for t, a, b in rows), strict=True)
    return frame(list(at_ns), list(prompt), list(output))


def read_trace(name: str) -> pl.DataFrame:
    if name.startswith("azure"):
        return azure(name.removeprefix("azure2023_"))
    if name.startswith("mooncake"):
        return mooncake(name.split("_")[1], 500 if name.endswith("head500") else None)
    if name.startswith("burstgpt"):
        return burstgpt(name.removesuffix("_all").removesuffix("_nonzero"))
    return weka(name.removeprefix("weka_trace_"))


def window_of(requests: pl.DataFrame) -> list[tuple[int, int]]:
    return [(0, int(requests["arrival_ns"].max()) + 1)]  # type: ignore[arg-type]


def close(expected: float | None) -> Any:
    return None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12)


TRACE_NAMES = [
    "azure2023_code", "azure2023_conv", "mooncake_conversation", "mooncake_conversation_head500",
    "mooncake_synthetic", "mooncake_synthetic_head500", "burstgpt1_head140_all", "burstgpt1_head140_nonzero",
    "burstgpt3_head96", "weka_trace_0022", "weka_trace_0128", "weka_trace_0265", "weka_trace_0277", "weka_trace_0291",
    "weka_trace_0620",
]  # fmt: skip


@needs_traces
@pytest.mark.parametrize("name", TRACE_NAMES)
def test_a_public_trace_has_its_reference_values(name: str) -> None:
    expected, requests = reference("reference_values.json")["traces"][name], read_trace(name)
    if name.endswith("_all"):  # with its failures of 0 tokens; `characterise` leaves them out
        arrivals = measure_arrivals(requests["arrival_ns"].to_numpy(), window_of(requests))
        prompt, output = (requests[side].to_numpy() for side in ("prompt_tokens", "output_tokens"))
        found = describe(prompt), describe(output), together(prompt, output)
    else:
        character = characterise(requests, window_of(requests), None)
        arrivals = character.arrivals
        found = character.prompt_tokens, character.output_tokens, character.joint
    assert arrivals is not None
    assert arrivals.count == expected["n"]
    assert arrivals.span_ns / S == close(expected["span_s"])
    assert arrivals.rate_per_s == close(expected["rate_rps"])
    assert arrivals.iat_mean_ns == close(expected["iat_mean_s"] * S)
    assert arrivals.iat_cv == close(expected["iat_cv"])
    assert arrivals.zero_gap_share == close(expected["iat_zero_fraction"])
    assert (arrivals.granularity_ns or 0) / S == close(expected["timestamp_granularity_s"])
    for width in (1, 10, 60):
        assert arrivals.dispersion[str(width)] == close(expected[f"dispersion_{width}s"])
    for side, distribution in zip(("input", "output"), found[:2], strict=True):
        assert distribution is not None
        told = expected[f"{side}_tokens"]
        assert distribution.sum == expected[f"{side}_tokens_sum"]
        got = distribution.quantiles | {key: getattr(distribution, key) for key in ("min", "max", "mean", "std")}
        assert got == {key: close(value) for key, value in told.items()}
    assert found[2] is not None
    assert found[2].pearson == close(expected["pearson"])
    assert found[2].spearman == close(expected["spearman"])


@needs_traces
@pytest.mark.parametrize(("name", "word"), [("azure_code", "on-off"), ("azure_conv", "Poisson-like")])
def test_fits_and_five_minute_windows_are_those_of_the_reference(name: str, word: str) -> None:
    expected, requests = reference("burstiness_scaling.json")[name], azure(name.removeprefix("azure_"))
    arrivals = measure_arrivals(requests["arrival_ns"].to_numpy(), window_of(requests))
    assert arrivals is not None
    assert arrivals.fits is not None
    fits, five = arrivals.fits, arrivals.five_minutes
    assert fits.of == "stamped"
    assert arrivals.spread is None
    assert (fits.gamma_shape, fits.gamma_scale_s) == (
        close(expected["gamma_mom"]["shape"]),
        close(expected["gamma_mom"]["scale"]),
    )
    assert (fits.weibull_shape, fits.weibull_scale_s) == (
        close(expected["weibull_mom"]["k"]),
        close(expected["weibull_mom"]["lambda"]),
    )
    assert (fits.exponential_ks, fits.weibull_ks) == (
        close(expected["ks_exponential"]),
        close(expected["ks_weibull_mom"]),
    )
    told = expected["windows_300s"]
    assert (five.pieces, five.measured) == (told["n"], told["n"])
    assert (five.rate_min_per_s, five.rate_max_per_s) == (close(told["rate_min"]), close(told["rate_max"]))
    assert (five.cv_min, five.cv_median, five.cv_max) == tuple(
        close(told[key]) for key in ("cv_min", "cv_median", "cv_max")
    )
    assert arrivals.burstiness == word


@needs_traces
def test_batches_are_spread_by_a_stated_seed() -> None:
    expected, requests = (
        reference("burstiness_scaling.json")["mooncake_conversation_dequantised"],
        mooncake("conversation", None),
    )
    arrivals = measure_arrivals(requests["arrival_ns"].to_numpy(), window_of(requests), seed=expected["seed"])
    assert arrivals is not None
    assert arrivals.spread is not None
    assert (arrivals.spread.kind, arrivals.spread.quantum_ns, arrivals.spread.seed) == ("batches", 3 * S, 0)
    assert arrivals.spread.iat_cv == close(expected["iat_cv"])
    assert arrivals.iat_cv == close(3.0338635413080794)  # the raw one stays beside it
    assert arrivals.fits is not None
    assert arrivals.fits.of == "spread"
    assert arrivals.burstiness == "Poisson-like"
    other = measure_arrivals(requests["arrival_ns"].to_numpy(), window_of(requests), seed=1)
    assert other is not None
    assert other.spread is not None
    assert other.spread.iat_cv != arrivals.spread.iat_cv


@needs_traces
def test_requests_of_no_tokens_count_as_errors_and_not_as_load() -> None:
    requests = read_trace("burstgpt1_head140")
    character = characterise(requests, window_of(requests), None)
    assert (character.coverage.requests, character.coverage.zero_token_requests) == (140, 8)
    assert character.errors is not None
    assert (character.errors.judged, character.errors.failed) == (140, 8)
    assert character.overall.requests == 132


def arrivals_of(at_ns: list[int], windows: list[tuple[int, int]]) -> Arrivals:
    found = measure_arrivals(np.array(at_ns, np.int64), windows)
    assert found is not None
    return found


def test_an_inter_arrival_time_never_reaches_over_a_gap() -> None:
    found = arrivals_of(
        [0, 1 * S, 3 * S, 1000 * S, 1001 * S, 5000 * S], [(0, 10 * S), (999 * S, 1010 * S), (5000 * S, 5001 * S)]
    )
    assert (found.count, found.gaps, found.gaps_left_out) == (6, 3, 2)
    assert found.iat_mean_ns == close(4 / 3 * S)
    assert found.span_ns == 4 * S
    assert found.iat_cv == close(math.sqrt(1 / 3) / (4 / 3))
    assert found.granularity_ns == S
    # Bins of 1 s: 0, 1, 2, 3 hold 1, 1, 0, 1; then 1, 1; then 1.
    assert found.dispersion["1"] == close(float(np.var([1, 1, 0, 1, 1, 1, 1], ddof=1) / np.mean([1, 1, 0, 1, 1, 1, 1])))


def test_arrivals_outside_all_windows_are_counted_apart() -> None:
    character = characterise(pl.DataFrame({"arrival_ns": [-5, 0, 5, 10, 12]}), [(0, 10), (11, 12)], None)
    assert character.coverage.outside_windows == 3
    assert character.arrivals is not None
    assert character.arrivals.count == 2


def test_a_rate_per_minute_counts_whole_minutes_from_each_opening() -> None:
    found = arrivals_of([0, 1, 2, 3 * MIN], [(0, 2 * MIN + 1), (3 * MIN, 4 * MIN - 1)])
    assert (found.per_minute.minutes, found.per_minute.min, found.per_minute.max) == (2, 0, 3)
    assert found.per_minute.mean == close(4 / 3)
    short = arrivals_of([0, 5], [(0, 10)])
    assert (short.per_minute.min, short.per_minute.max) == (None, None)


@pytest.mark.parametrize(
    ("gaps_ms", "word"),
    [
        ([1000 + step % 7 for step in range(200)], "regular"),
        (None, "Poisson-like"),
        ([10] * 20, None),
    ],
)
def test_the_word_for_burstiness(gaps_ms: list[int] | None, word: str | None) -> None:
    draws = np.random.default_rng(5).exponential(1000.0, 2000).round().astype(np.int64)
    at = np.cumsum(draws if gaps_ms is None else np.array(gaps_ms)) * MS
    assert arrivals_of(at.tolist(), [(0, int(at[-1]) + 1)]).burstiness == word


def test_bursts_inside_five_minutes_are_bursty_and_a_moving_rate_is_not() -> None:
    rng = np.random.default_rng(5)
    bursts = np.cumsum(rng.gamma(0.2, 5.0, 3000) * S).astype(np.int64)
    assert arrivals_of(bursts.tolist(), [(0, int(bursts[-1]) + 1)]).burstiness == "bursty"
    slow, fast = rng.exponential(10.0, 1000), rng.exponential(0.2, 1000)
    moving = np.cumsum(np.concatenate([slow, fast]) * S).astype(np.int64)
    found = arrivals_of(moving.tolist(), [(0, int(moving[-1]) + 1)])
    assert found.iat_cv is not None
    assert found.iat_cv > 1.5
    assert found.burstiness == "Poisson-like"


def test_a_clock_of_whole_seconds_is_spread_and_a_fine_one_is_not() -> None:
    rng = np.random.default_rng(3)
    fine = np.cumsum(rng.exponential(2.0, 3000) * S).astype(np.int64)
    coarse = fine // S * S
    assert arrivals_of(fine.tolist(), [(0, int(fine[-1]) + 1)]).spread is None
    found = arrivals_of(coarse.tolist(), [(0, int(coarse[-1]) + 1)])
    assert found.spread is not None
    assert found.spread.iat_cv is not None
    assert (found.spread.kind, found.spread.quantum_ns) == ("clock", S)
    assert found.spread.iat_cv == pytest.approx(1.0, abs=0.05)


def test_simultaneous_calls_at_odd_times_are_no_batches() -> None:
    starts = np.cumsum(np.random.default_rng(3).exponential(2.0, 500) * S).astype(np.int64)
    found = arrivals_of(np.repeat(starts, 4).tolist(), [(0, int(starts[-1]) + 1)])
    assert found.zero_gap_share is not None
    assert found.zero_gap_share > 0.7
    assert found.spread is None


@pytest.mark.parametrize("at_ns", [[5], [5, 5, 5]])
def test_arrivals_without_time_between_them_have_no_rate(at_ns: list[int]) -> None:
    found = arrivals_of(at_ns, [(0, 10)])
    assert (found.rate_per_s, found.iat_cv, found.granularity_ns, found.fits) == (None, None, None, None)
    assert found.dispersion == {"1": None, "10": None, "60": None}


def test_nothing_known_is_null_with_a_reason() -> None:
    character = characterise(pl.DataFrame({"arrival_ns": pl.Series([], dtype=pl.Int64)}), [(0, S)], None)
    assert character.arrivals is None
    assert character.prompt_tokens is None
    assert character.streaming is None
    assert character.unknown["arrivals"] == "no request arrived inside a window"
    assert set(character.unknown) >= {"cached", "errors", "sessions", "tenants", "days", "limit"}
    assert json.loads(encode(asdict(character)))["joint"] is None


ROWS = pl.DataFrame(
    {
        "arrival_ns": [at * S for at in range(8)],
        "workload": ["chat", "chat", "code", "chat", "code", "chat", "chat", "code"],
        "language": ["hu", None, None, "en", None, "hu", "hu", None],
        "outcome": ["ok", "ok", "error", "ok", "cancelled_by_client", "ok", "ok", "timeout"],
        "finish": ["stop", "stop", None, "length", None, "stop", "tool_calls", None],
        "prompt_tokens": [10, 20, 300, 40, None, 60, 70, 800],
        "output_tokens": [5, 50, None, 50, None, 6, 7, None],
        "max_tokens": [10, 50, 50, 50, 50, None, 0, 9],
        "cached_tokens": [0, 10, 0, 20, None, 30, None, None],
        "stream": [True, True, False, None, True, True, True, True],
        "ttft_ns": [100, 200, None, 300, None, 400, 500, None],
        "session": [0, 0, None, 1, None, 1, 1, None],
        "session_source": ["header", "header", None, "prefix", None, "prefix", "prefix", None],
        "link": ["root", "exact_reply", None, "root", None, "exact_reply", "branch", None],
        "deps": [None, None, None, None, None, [], [3, 5], None],
        "think_ns": [None, 5 * S, None, None, None, S, None, None],
        "think_kind": [None, "human", None, None, None, "tool", None, None],
        "tenant": [0, 0, 1, 1, 1, 1, None, 1],
    }
)  # fmt: skip


def small(rows: pl.DataFrame | pl.LazyFrame = ROWS) -> Character:
    return characterise(rows, [(0, 8 * S)], None)


def test_answers_limits_and_cached_tokens() -> None:
    character = small()
    assert character.finishes == {"stop": 3, "length": 1, "tool_calls": 1, "unknown": 3}
    assert character.outcomes == {"ok": 5, "cancelled_by_client": 1, "error": 1, "timeout": 1}
    assert character.errors is not None
    assert (character.errors.failed, character.errors.share) == (2, 0.25)
    assert character.streaming == close(6 / 7)
    assert character.limit is not None
    assert (character.limit.requests, character.limit.at_limit, character.limit.used.min) == (3, 2, 500)
    assert character.cached is not None
    assert (character.cached.requests, character.cached.hits, character.cached.share) == (5, 3, close(60 / 430))
    # By hand: residuals cached − share · prompt, their squares summed, 5/4, the root over the tokens.
    share = 60 / 430
    squares = sum((c - share * p) ** 2 for p, c in [(10, 0), (20, 10), (300, 0), (40, 20), (60, 30)])
    assert character.cached.error == close(math.sqrt(5 / 4 * squares) / 430)


def test_sessions_tell_turns_think_time_and_branches() -> None:
    sessions = small().sessions
    assert sessions is not None
    assert (sessions.sessions, sessions.with_session, sessions.without_session) == (2, 5, 3)
    assert (sessions.turns.min, sessions.turns.mean, sessions.turns.max) == (2, 2.5, 3)
    assert sessions.think_human is not None
    assert sessions.think_human.quantiles["p50"] == 5 * S
    assert sessions.think_tool is not None
    assert sessions.think_tool.n == 1
    assert sessions.think_other is None
    assert (sessions.branches, sessions.fan_in) == (1, 1)
    assert sessions.sources == {"prefix": 3, "header": 2}


def test_classes_languages_and_tenants() -> None:
    character = small()
    chat, code = character.classes
    assert (chat.workload, chat.requests, chat.independent, chat.measured_ttft) == ("chat", 5, 2, 5)
    assert (code.workload, code.requests, code.independent) == ("code", 3, 3)
    assert chat.prompt_p50 is not None
    assert chat.prompt_p90 is not None
    assert code.output_p50 is None
    assert (chat.prompt_p50.value, chat.prompt_p90.value) == (40, 70)
    assert character.languages == (("chat", "hu", 3), ("code", None, 3), ("chat", "en", 1), ("chat", None, 1))
    assert [(each.tenant, each.requests) for each in character.tenants] == [(1, 5), (0, 2)]
    assert character.tenants[0].share == close(5 / 7)
    assert character.tenants[0].iat_cv == close(float(np.std([1, 1, 1, 2], ddof=1) / 1.25))
    assert character.tenant_count == 2


def test_the_order_of_rows_and_a_lazy_frame_change_nothing() -> None:
    assert small(ROWS.lazy()) == small()
    shuffled = small(ROWS.reverse())
    assert (shuffled.arrivals, shuffled.classes, shuffled.cached) == (small().arrivals, small().classes, small().cached)


def test_the_joint_table_has_cells_of_powers_of_two() -> None:
    joint = together(np.array([0, 1, 3, 4, 1000, 1000]), np.array([0, 1, 2, 7, 15, 16]))
    assert joint is not None
    assert joint.cells == ((0, 0, 1), (1, 1, 1), (2, 2, 1), (4, 4, 1), (512, 8, 1), (512, 16, 1))
    constant = together(np.array([5, 5]), np.array([1, 2]))
    assert constant is not None
    assert (constant.pearson, constant.spearman) == (None, None)


def test_each_day_stands_against_the_rest() -> None:
    at_ns = [day * DAY_NS + k * MIN for day, count in enumerate((10, 10, 30)) for k in range(count)]
    rows = pl.DataFrame({
        "arrival_ns": at_ns,
        "prompt_tokens": [100] * 20 + [300] * 30,
        "workload": ["chat"] * 20 + ["code"] * 15 + ["chat"] * 15,
    })  # fmt: skip
    days = characterise(rows, [(0, 3 * DAY_NS)], None).days
    assert [(day.day, day.date, day.requests, day.prompt_p50) for day in days] == [
        (0, None, 10, 100), (1, None, 10, 100), (2, None, 30, 300),
    ]  # fmt: skip
    assert [day.rate_change for day in days] == [close(-0.5), close(-0.5), close(2.0)]
    assert [day.prompt_p50_change for day in days] == [close(-2 / 3), close(-2 / 3), close(2.0)]
    assert days[2].class_mix_distance == close(0.5)
    assert days[2].output_p50 is None
    assert days[2].output_p50_change is None


def test_days_are_utc_days_where_the_wall_clock_is_known_and_those_hardly_observed_are_left_out() -> None:
    """From ten in the morning: 14 h of the first day, 10 h of the second, which is not that day, 14 h of the third."""
    ten_ns, long_ns = 19_000 * DAY_NS + 600 * MIN, 840 * MIN
    windows = [(0, DAY_NS), (2 * DAY_NS, 2 * DAY_NS + long_ns)]
    days = characterise(pl.DataFrame({"arrival_ns": [0, long_ns + 1, 2 * DAY_NS]}), windows, ten_ns).days
    assert [(day.day, day.date, day.requests, day.observed_ns) for day in days] == [
        (0, "2022-01-08", 1, long_ns),
        (2, "2022-01-10", 1, long_ns),
    ]


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [([], 0.5, None), ([7], 0.9, 7), ([3, 1, 2], 0.5, 2), (list(range(1, 11)), 0.9, 9), ([1, 2], 0.0, 1)],
)
def test_a_nearest_rank_quantile_is_one_of_the_values(values: list[int], share: float, found: int | None) -> None:
    assert quantile(values, share) == found


def test_a_median_is_as_sure_as_its_independent_values() -> None:
    ordered = np.sort(np.random.default_rng(1).lognormal(6.0, 1.0, 100_000)).astype(np.int64)
    many, few = estimate(ordered, 0.5, 100_000), estimate(ordered, 0.5, 100)
    assert many is not None
    assert few is not None
    # The standard error of a median is √(π/2) σ / √n.
    assert many.log_error == pytest.approx(math.sqrt(math.pi / 2) / math.sqrt(100_000), rel=0.15)
    assert few.log_error == pytest.approx(math.sqrt(math.pi / 2) / math.sqrt(100), rel=0.15)
    alone = estimate(ordered[:3], 0.9, 3)
    assert alone is not None
    assert alone.log_error is None


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=4),
)
def test_every_arrival_is_in_a_window_or_counted_as_outside(at: list[int], spans: list[tuple[int, int]]) -> None:
    windows = [(opened * S, (opened + length) * S) for opened, length in spans]
    character = characterise(pl.DataFrame({"arrival_ns": [each * S for each in at]}), windows, 0)
    inside = sum(any(opened <= each * S < close_ns for opened, close_ns in windows) for each in at)
    assert character.coverage.outside_windows == len(at) - inside
    if inside:
        assert character.arrivals is not None
        assert character.arrivals.count == inside
        assert character.arrivals.gaps + character.arrivals.gaps_left_out == inside - 1
