"""The form of verdict.json, version 1: what it says about an arm. The whole is in `contract`.

A class of the workload stands under the key `class`; null there is the mix.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

type Share = Annotated[float, Meta(ge=0, le=1)]
type Count = Annotated[int, Meta(ge=0)]
type Change = Annotated[float, Meta(description="Relative to the baseline: −0.05 is 5 % less.")]
type Level = Annotated[Share, Meta(description="Of the interval beside it, two-sided: 0.9 is 90 %.")]
type LineOf = Annotated[float | None, Meta(description="The material line; null: none can be had, or left out.")]
type Word = Literal["adopt", "reject", "workload-dependent", "inconclusive", "invalid"]
type Zone = Literal["gain", "no gain", "open"]
type NoWorse = Literal["no worse", "worse", "not shown"]


class Interval(Struct):
    """Bounds of a relative change; null where there are too few blocks for an interval."""

    low: Change | None
    high: Change | None


class Effect(Interval):
    """A relative change with its interval; null where it was not measured."""

    change: Change | None


class ClassEffect(Effect):
    """One workload class, its interval simultaneous over classes and measures: wider than that of a `Choice`."""

    workload: str = field(name="class")
    level: Level
    line: LineOf
    direction: Literal["gain", "loss", "open"]


class Measure(Effect):
    """A listed measure on the recorded mix at the observed operating point."""

    measure: str
    zone: Zone
    no_worse: NoWorse
    level: Level
    line: LineOf
    margin: float
    anytime: Annotated[Interval, Meta(description="A confidence sequence: holds whenever one looks. Shown only.")]
    p_no_change: Share | None
    p_not_material: Share | None
    coverage: Share | None
    baseline_ms: float | None
    classes: list[ClassEffect]


class Guard(Interval):
    """`value` and its bounds are relative changes, of an error rate the pooled rate."""

    metric: str
    role: Literal["deciding", "advisory"]
    status: Literal["pass", "fail", "not shown"]
    limit: float
    value: float | None
    reason: str | None


class Allowed(Struct):
    signature: str
    reason: str


class BootLog(Struct):
    """Against the boots of the baseline. Each text is a line's signature or a sentence. `clean` is null while one of
    the two sides has no boot."""

    clean: bool | None
    new: list[str]
    noted: list[str]
    allowed: list[Allowed]
    notes: list[str]
    blockers: list[str]
    changes_nothing: bool
    same_as_baseline: bool


class Step(Struct):
    """The arm against its predecessor on the ladder."""

    against: str
    measures: list[Measure]


class Drafts(Struct):
    length: float | None
    rate: Share | None
    position_rates: list[float] | None
    source: Literal["counters", "gauge", "answers"]
    problem: str | None


class DraftsOf(Struct):
    baseline: Drafts | None
    arm: Drafts | None


class Acceptance(Struct):
    """Mean acceptance length of a class; the bare rate is not comparable between draft lengths."""

    workload: str = field(name="class")
    baseline: float | None
    arm: float | None
    drafts: DraftsOf


class CachedShare(Struct):
    arm: Share
    baseline: Share


class DiscardedBlock(Struct):
    block: int
    reason: str


class Functional(Struct):
    """One trait of the answers to the fixed prompts, arm and the baseline's own second copy."""

    trait: str
    status: Literal["kept", "broken", "not shown", "not offered", "not measured"]
    own: Count
    own_asked: Count
    copy: Count
    copy_asked: Count
    sentence: str
    probes: list[str]


class Stopped(Struct):
    look: Annotated[int, Meta(description="Blocks that the look saw which decided the arm.")]
    verdict: Word
    later_boots: Count


class OutputLengths(Effect):
    """Output tokens of the same requests, at 99 %."""

    status: Literal["same", "differs", "not known"]
    tokens: Count | None
    baseline_tokens: Count | None
    capped: bool


class ClassAcceptance(Struct):
    workload: str = field(name="class")
    baseline_length: float | None
    arm_length: float | None
    baseline_rate: Share | None
    arm_rate: Share | None
    more_tokens: Change | None
    tpot: Effect | None
    step: Annotated[Effect | None, Meta(description="Change of what one step of the engine costs.")]


class RankCorrelation(Struct):
    value: float
    p: Share | None
    classes: Count
    length_of: str


class AcceptanceGain(Struct):
    classes: list[ClassAcceptance]
    rank_correlation: RankCorrelation | None


class Scenario(Effect):
    """The same pairs under other weights."""

    measure: str
    weights: str
    zone: Zone
    same: bool


class Beside(Effect):
    measure: str


class Choice(Effect):
    """The arm that a class would get. Its interval is of this class alone, that of a `ClassEffect` of all together."""

    workload: str = field(name="class")
    level: Level
    arm: str
    share: Share
    same_choice_in_blocks: Count
    blocks: Count


class Line(Struct):
    """From which share of the gaining classes on one engine for all gains."""

    classes: list[str]
    share: Share | None
    low: Share | None
    high: Share | None
    share_no_slower: Share | None
    share_now: Share
    change: Change | None


class Split(Effect):
    """What separate engines per class would be worth on the recorded mix."""

    measure: str
    arm_for_all: Effect
    beside: list[Beside]
    classes: list[Choice]
    line: Line
    limits: list[str]


class BestSplit(Effect):
    """The same over several arms."""

    measure: str
    beside: list[Beside]
    classes: list[Choice]


class CrossoverLevel(Effect):
    c: int
    shown: str


class Crossover(Struct):
    """The c of a sweep at which the sign turns; class null is the mix."""

    workload: str | None = field(name="class")
    measure: Literal["ttft", "decode_rate"]
    turn: float | None
    low: float | None
    high: float | None
    text: str
    reach: float | None
    levels: list[CrossoverLevel]


class SweepPoint(Effect):
    workload: str | None = field(name="class")
    c: int
    measure: Literal["ttft", "decode_rate"]
    blocks: Count


class Throughput(Effect):
    """Output tokens per second at a fixed c; class null is the mix."""

    workload: str | None = field(name="class")
    c: int
    limit_ns: int | None
    tokens_per_s: float | None
    baseline_tokens_per_s: float | None
    blocks: Count


class Settle(Struct):
    blocks: Count
    hours: float | None


class Arm(Struct):
    arm: str
    verdict: Word
    action: str
    reasons: list[str]
    measures: list[Measure]
    blocks: Count
    boots: Count
    guards: list[Guard]
    boot_log: BootLog
    step: Step | None
    acceptance: list[Acceptance]
    cached_share: CachedShare | None
    discarded_blocks: list[DiscardedBlock]
    functional: list[Functional]
    stopped: Stopped | None
    remarks: list[str]
    arrivals_at: dict[str, Count] | None
    batch_cap: int | None
    queue: str | None
    cached_source: str | None
    output_lengths: OutputLengths | None
    acceptance_gain: AcceptanceGain | None
    sensitivity: list[Scenario]
    split: list[Split]
    crossover: list[Crossover]
    sweep: list[SweepPoint]
    throughput: list[Throughput]
    settle: Annotated[Settle | None, Meta(description="What would settle an inconclusive arm.")]
    settle_otherwise: str | None
