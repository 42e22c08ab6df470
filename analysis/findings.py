"""What a report holds: the findings about each arm and about the run. Data only; `judge` fills it."""

from dataclasses import dataclass

from analysis.acceptance import AcceptanceFinding
from analysis.acceptance_gain import AcceptanceGain
from analysis.bench import Bench
from analysis.bench_check import BenchCheck
from analysis.boot_log import LogJudgement
from analysis.course import Course
from analysis.crossover import Crossover
from analysis.doubt import DoubtfulWindow
from analysis.functional.guard import FunctionalFinding
from analysis.looks import Stopped
from analysis.order import OrderCheck
from analysis.parity import OutputLengths
from analysis.sensitivity import Scenario
from analysis.settle import Settle
from analysis.split.worth import BestSplit, WorkloadSplit
from analysis.stats import Estimate
from analysis.sweep import SweepPoint
from analysis.throughput import Throughput
from analysis.verdict import GuardFinding, MeasureFinding, Verdict
from profiles.experiment import Experiment
from profiles.runs import BootFacts, Run


@dataclass(frozen=True, slots=True)
class AaFinding:
    """The baseline's second copy against the baseline, on one measure; all intervals hold together at 99 %."""

    measure: str
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class StepFinding:
    """An arm against its predecessor on the ladder: what this step alone did."""

    against: str
    measures: tuple[MeasureFinding, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown beside the verdict of an arm and never decides."""

    remarks: tuple[str, ...]  # boots that were measured to their end and left something behind
    arrivals_at: dict[int, int]  # requests of the recorded pace by the concurrency that they met
    batch_cap: int | None  # requests that it runs at once, where it says so
    queue: str | None  # the levels at which that makes its windows measure a queue
    sweep: tuple[SweepPoint, ...]
    throughput: tuple[Throughput, ...]
    cached_source: str | None
    output_lengths: OutputLengths | None
    crossover: tuple[Crossover, ...]
    acceptance_gain: tuple[AcceptanceGain, ...]
    sensitivity: tuple[Scenario, ...]
    split: tuple[WorkloadSplit, ...]


@dataclass(frozen=True, slots=True)
class ArmReport:
    """All that the report says about an arm. `acceptance`: class → mean acceptance length, baseline and arm;
    `drafts` the same with rates and positions. `cached`: share of the prompt tokens, arm and baseline."""

    arm: str
    verdict: Verdict
    measures: tuple[MeasureFinding, ...]
    guards: tuple[GuardFinding, ...]
    blocks: int
    boots: int
    log: LogJudgement
    step: StepFinding | None
    acceptance: dict[str, tuple[float | None, float | None]]
    drafts: dict[str, tuple[AcceptanceFinding | None, AcceptanceFinding | None]]
    cached: tuple[float, float] | None
    discarded_pairs: tuple[tuple[int, str], ...]
    settle: Settle | None
    functional: tuple[FunctionalFinding, ...]
    stopped: Stopped | None  # decided at an earlier look and not booted again
    shown: Shown
    settle_otherwise: str | None = None  # what would settle an inconclusive arm where more blocks alone would not


@dataclass(frozen=True, slots=True)
class Report:
    """A run, judged."""

    run: Run
    experiment: Experiment
    baseline: str
    simulated: bool
    cold: bool  # False: the engine was up already, and nothing was booted
    course: Course
    aa: tuple[AaFinding, ...]
    bench: tuple[BenchCheck, ...]
    data: Bench  # what was judged: the frame of the requests and the pairs of arms, for pictures
    doubtful: tuple[DoubtfulWindow, ...]
    order: tuple[OrderCheck, ...]
    post_hoc: str | None  # why nothing of this run may be adopted: the rule was amended after boots were measured
    invalid: tuple[str, ...]
    warnings: tuple[str, ...]
    arms: tuple[ArmReport, ...]
    discarded: tuple[BootFacts, ...]
    failed: tuple[BootFacts, ...]
    best_split: tuple[BestSplit, ...] = ()  # where several arms depend on the workload
    relative: bool = False  # absolute figures, host names and paths are left out (`relative`)

    @property
    def exit_code(self) -> int:
        """0 every arm decided, 3 something inconclusive, 4 the run is invalid."""
        if self.invalid:
            return 4
        return 3 if any(arm.verdict.word == "inconclusive" for arm in self.arms) else 0
