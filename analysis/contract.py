"""The form of verdict.json, version 1, as types: what a consumer may rely on. `schema()` makes the JSON Schema of it.

Every key is always there; a value that is not known, or that a relative document leaves out, is null. Within version 1
keys may be added anywhere, so the published schema lets objects hold others; no key is taken away, renamed or given
another meaning. `schema(closed=True)` refuses every other key: the tests hold what `document` writes against that one.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from analysis.contract_arm import Arm, BestSplit, Count, Interval, Share

SCHEMA_FILE: Final = Path(__file__).parent / "schema" / "verdict-1.json"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

type Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Blocks(Struct):
    planned: Count
    complete: Annotated[Count, Meta(description="Whole blocks before the first gap.")]
    whole: Count
    finished: bool


class BiasOf(Interval):
    """The baseline's second copy against the baseline, at 99 % over all measures together."""

    smallest_visible_bias: float | None


class MeasuredBias(BiasOf):
    measure: str


class Bias(BiasOf):
    """Of the first measure, and of each."""

    measures: list[MeasuredBias]


class OperatingPoint(Struct):
    """The load that decided, as the run's manifest states it. Keys of `weights` are levels of c, values are shares."""

    mode: Literal["observed", "timed", "closed"] | msgspec.UnsetType | None = msgspec.UNSET
    levels: list[int] | msgspec.UnsetType = msgspec.UNSET
    weights: dict[str, Share] | msgspec.UnsetType = msgspec.UNSET


class Check(Struct):
    """The baseline's load against the recorded one. Histograms have levels of c as keys; relative: shares."""

    check: Literal["arrivals", "cached", "ttft"]
    status: Literal["pass", "fail", "not checked"]
    difference: float | None
    limit: float
    recorded: dict[str, float] | float | None
    baseline: dict[str, float] | float | None
    text: str


class Bench(Struct):
    mode: str | None
    checks: list[Check]


class Lateness(Struct):
    p99_ns: int | None
    max_ns: int | None
    arm: str
    block: int
    window: str
    c: int | None


class OwnLateness(Struct):
    """Of this tool's own client, in the worst deciding window."""

    schedule: Lateness | None
    event_loop: Lateness | None


class DoubtfulWindow(Struct):
    arm: str
    block: int
    window: str
    c: int | None
    deciding: bool
    reason: str


class Order(Struct):
    """The baseline's boots against their place in the run."""

    measure: str
    boots: Count
    spearman: float | None
    p: Share | None
    drift_per_boot: float | None


class Skipped(Struct):
    arm: str
    reason: str


class Boot(Struct):
    """A boot that does not count."""

    arm: str
    block: int
    slot: int
    attempt: int
    diagnosis: str | None
    reason: str | None


class VerdictDocument(Struct):
    """A run of firsttoken, judged by the rule that was fixed before its first boot."""

    format: Literal["firsttoken/verdict"]
    version: Literal[1]
    tool: str
    relative: Annotated[bool, Meta(description="Absolute figures, host names and paths are left out.")]
    rule_id: str
    rule_sha256: Sha256
    rule_semantic_sha256: Sha256
    rule_fixed_before_s: int | None
    profile_sha256: str | None
    baseline: str
    engine_kind: Literal["real", "simulated"]
    operating_point: OperatingPoint
    variance: Literal["paired", "pooled"]
    aa: Bias
    machine_time_s: Count | None
    boots: Count
    blocks: Blocks
    cold: Annotated[bool, Meta(description="False: the engine was up already, and nothing was booted.")]
    bench: Bench
    own_lateness: OwnLateness
    doubtful_windows: list[DoubtfulWindow]
    order: list[Order]
    post_hoc: Annotated[str | None, Meta(description="Why nothing of this run may be adopted.")]
    invalid: list[str]
    warnings: list[str]
    not_measurable: list[str]
    not_checked: list[str]
    arms: list[Arm]
    best_split: list[BestSplit]
    skipped: list[Skipped]
    discarded: list[Boot]
    failed: list[Boot]


def schema(*, closed: bool = False) -> dict[str, Any]:
    """The JSON Schema, draft 2020-12. `closed` refuses keys that are not named, except where the manifest fills in."""
    made: dict[str, Any] = msgspec.json.schema(VerdictDocument)
    if closed:
        for name, form in made["$defs"].items():
            if form.get("type") == "object" and name != OperatingPoint.__name__:
                form["additionalProperties"] = False
    return {"$schema": _DIALECT, "title": "firsttoken verdict.json, version 1", **made}


def schema_text() -> str:
    """The published schema: the file that is kept beside this module."""
    return SCHEMA_FILE.read_text(encoding="utf-8")


def make_schema_file() -> None:
    """Write the file anew: `python -m analysis.contract`."""
    SCHEMA_FILE.parent.mkdir(exist_ok=True)
    SCHEMA_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n")


if __name__ == "__main__":
    make_schema_file()
