"""Public traces against values that were computed elsewhere, in float seconds: concurrency under a stated service time
and under recorded durations. Skipped where the traces are not beside the repository.

Here instants are integers: decimal seconds of a file become nanoseconds by rounding, which is exact for every file
(at most 7 digits after the point), and so are the stated service times (125,000 ns for a prompt token, 20 ms for one of
the answer). So ties are real ties, and float values must agree to 1e-9.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from profiles.calendar import quantile_of
from profiles.service_time import ServiceTime, parse_service_time
from profiles.sweep import Stays, others_at_start, sweep
from profiles.units import MILLISECOND_NS, SECOND_NS

TRACES = Path(__file__).parents[2] / "shared" / "traces"
SERVICE = parse_service_time("50ms,8000,20ms")


def _seconds(name: str) -> pl.Expr:
    return (pl.col(name).cast(pl.Float64) * SECOND_NS).round().cast(pl.Int64)


def azure(path: Path) -> pl.DataFrame:
    instant = pl.col("TIMESTAMP").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns").dt.epoch("ns")
    return pl.read_csv(path).select(
        at=instant, prompt=pl.col("ContextTokens"), output=pl.col("GeneratedTokens"), lasts=pl.lit(0)
    )


def mooncake(path: Path) -> pl.DataFrame:
    return pl.read_ndjson(path).select(
        at=pl.col("timestamp") * MILLISECOND_NS,
        prompt=pl.col("input_length"),
        output=pl.col("output_length"),
        lasts=pl.lit(0),
    )


def burstgpt(path: Path) -> pl.DataFrame:
    table = pl.read_csv(path)
    lasts = _seconds("Elapsed time") if "Elapsed time" in table.columns else pl.lit(0)
    return table.select(
        at=_seconds("Timestamp"), prompt=pl.col("Request tokens"), output=pl.col("Response tokens"), lasts=lasts
    )


def weka(path: Path) -> pl.DataFrame:
    """A subagent's own t counts from its marker."""

    def rows(requests: list[dict[str, Any]], since: float) -> list[tuple[float, int, int, float]]:
        found = []
        for each in requests:
            if each["type"] == "subagent":
                found += rows(each["requests"], since + each["t"])
            else:
                found.append((since + each["t"], each["in"], each["out"], each["api_time"]))
        return found

    session = json.loads(path.read_text(encoding="utf-8"))
    names = ["at", "prompt", "output", "lasts"]
    table = pl.DataFrame(rows(session["requests"], 0.0), schema=names, orient="row")
    return table.with_columns(_seconds("at"), _seconds("lasts"))


WEKA = ("0022", "0128", "0265", "0277", "0291", "0620")
MEASURED = "concurrency"
# Name of the trace in the reference, how it is read, which of its blocks holds the values.
CASES: list[tuple[str, str]] = [
    ("azure2023_code", MEASURED),
    ("azure2023_conv", MEASURED),
    ("mooncake_conversation", MEASURED),
    ("mooncake_conversation_head500", MEASURED),
    ("mooncake_synthetic", MEASURED),
    ("mooncake_synthetic_head500", MEASURED),
    ("burstgpt1_head140_all", MEASURED),
    ("burstgpt1_head140_nonzero", MEASURED),
    ("burstgpt3_head96", MEASURED),
    ("burstgpt3_head96", "concurrency_with_recorded_elapsed"),
    *((f"weka_trace_{number}", MEASURED) for number in WEKA),
    *((f"weka_trace_{number}", "concurrency_with_recorded_api_time") for number in WEKA),
]


def read(name: str) -> pl.DataFrame:
    data = TRACES / "data"
    if name.startswith("azure2023_"):
        return azure(data / "azure" / f"AzureLLMInferenceTrace_{name.rpartition('_')[2]}.csv")
    if name.startswith("mooncake_"):
        table = mooncake(data / "mooncake" / f"{name.split('_')[1]}_trace.jsonl")
        return table.head(500) if name.endswith("head500") else table
    if name.startswith("burstgpt"):
        table = burstgpt(data / "burstgpt" / f"{'_'.join(name.split('_')[:2])}.csv")
        return table.filter(pl.col("output") > 0) if name.endswith("nonzero") else table
    return weka(data / "weka" / f"{name.removeprefix('weka_')}.json")


def expected(name: str, block: str) -> dict[str, Any]:
    path = TRACES / "reference" / "reference_values.json"
    if not path.is_file():
        pytest.skip(f"the reference values are not at {path}")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["traces"][name][block]
    return values


def stays_of(table: pl.DataFrame, block: str) -> Stays:
    rows = table.sort("at", maintain_order=True)
    start_ns = rows["at"].to_numpy() - int(rows["at"][0])
    if block == MEASURED:
        lasts_ns = SERVICE.lasts_ns(rows["prompt"].to_numpy(), rows["output"].to_numpy())
    else:
        lasts_ns = rows["lasts"].to_numpy()
    end_ns = start_ns + lasts_ns
    group = np.full(rows.height, -1, dtype=np.int32)
    return Stays(start_ns, end_ns, group, (), [(0, int(end_ns.max()))], None)


@pytest.mark.parametrize(("name", "block"), CASES)
def test_a_public_trace_has_the_concurrency_that_was_computed_elsewhere(name: str, block: str) -> None:
    values = expected(name, block)
    stays = stays_of(read(name), block)
    found = sweep(stays)
    assert found.observed_ns / SECOND_NS == pytest.approx(values["horizon_s"], rel=1e-9)
    assert found.share_wall == pytest.approx(
        {int(c): share for c, share in values["time_share"].items()}, rel=1e-9, abs=1e-9
    )
    assert found.mean == pytest.approx(values["tw_mean"], rel=1e-9)
    assert found.share_wall.get(0, 0.0) == pytest.approx(values["idle_share"], rel=1e-9, abs=1e-9)
    for share in (50, 90, 95, 99):
        assert quantile_of(found.time_ns_at, share / 100) == values[f"tw_p{share}"]
    assert max(found.time_ns_at) == values["max"]
    others = others_at_start(stays.start_ns, stays.end_ns)
    assert others.mean() == pytest.approx(values["arrival_seen_mean"], rel=1e-9)
    assert sum(k * time_ns for k, time_ns in found.time_ns_at.items()) == found.duration_sum_ns


def test_a_stated_service_time_is_exact() -> None:
    assert ServiceTime(50 * MILLISECOND_NS, 8000.0, 20 * MILLISECOND_NS) == SERVICE
    lasts_ns = SERVICE.lasts_ns(np.array([0, 1, 8000]), np.array([0, 1, 100]))
    assert lasts_ns.tolist() == [50_000_000, 70_125_000, 3_050_000_000]
