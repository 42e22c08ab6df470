"""How much identical boots differ: measured on the A/A copy of an earlier run, stated by the user, or assumed.

What a plan needs is the spread of the block differences of an arm. A measured one is taken at its upper 80 % limit: the
spread of a few blocks is often a lucky one. A block boots the baseline twice, and an arm is held against the mean of
both boots, so its differences scatter by √¾ of those between the two copies.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from analysis import contrasts, stats
from analysis.bench import make_bench
from analysis.course import hours_per_block
from analysis.faults import count_errors
from analysis.measured import measured, pairs_at
from analysis.settle import ASSUMED_BLOCK_SD, ASSUMED_QUANTILE_SD, BOTH_BOOTS
from analysis.throughput import throughput_differences
from profiles.errors import UsageError
from profiles.experiment import Experiment, GuardRule, load_experiment
from profiles.experiment_checks import guard_parts
from profiles.runs import DONE, RULE, Run

# Assumptions of the reference simulation, where nothing was measured: how much a class differs from boot to boot beside
# its boot, and how much one request does.
CLASS_BOOT_SD: Final = 0.006
REQUEST_SD: Final = 0.08

ASSUMED: Final = "assumed"
STATED: Final = "stated"
MEASURED: Final = "measured"


@dataclass(frozen=True, slots=True)
class Noise:
    """Spreads of log differences between the two copies of the baseline. `source` is assumed, stated or measured.

    Of a measured one `blocks` and `observed` say where it comes from; `sd` is its upper limit. What was not measured is
    absent from the mappings.
    """

    source: str
    sd: float  # where nothing is known of a measure by itself
    by_measure: Mapping[str, float] = field(default_factory=dict)
    by_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # measure → class → on top of the mix
    by_guard: Mapping[str, float] = field(default_factory=dict)
    observed: Mapping[str, float] = field(default_factory=dict)
    blocks: int = 0
    baseline_ms: Mapping[str, float] = field(default_factory=dict)  # geometric means, for the material line
    error_rate: float = 0.0
    boot_hours: float | None = None  # mean machine time of a boot

    def of(self, measure: str) -> float:
        """The spread of an arm's block differences on a measure."""
        return BOTH_BOOTS * self.by_measure.get(measure, self.sd)

    def of_class(self, measure: str, workload: str, requests: float) -> float:
        """What a class scatters around the mix, with so many requests in a boot."""
        known = self.by_class.get(measure, {}).get(workload)
        if known is None:
            known = math.sqrt(2 * CLASS_BOOT_SD**2 + 2 * REQUEST_SD**2 / max(1.0, requests))
        return BOTH_BOOTS * known

    def of_guard(self, metric: str) -> float:
        """The spread of an arm's block differences on a guard."""
        known = self.by_guard.get(metric)
        if known is None:
            parts = guard_parts(metric) or {}
            times = ASSUMED_QUANTILE_SD.get(metric, ASSUMED_BLOCK_SD) / ASSUMED_BLOCK_SD
            known = times * self.by_measure.get(parts.get("measure", "ttft"), self.sd)
        return BOTH_BOOTS * known


def assumed_noise() -> Noise:
    """The reference's assumption: boots that scatter by 1.5 %."""
    return Noise(ASSUMED, ASSUMED_BLOCK_SD)


def stated_noise(sd: float) -> Noise:
    """What the user says, as a share: 0.02 is 2 %."""
    return Noise(STATED, sd)


def measured_noise(run: Run, experiment: Experiment) -> Noise:
    """From the A/A copy of an earlier run, for the measures and guards of a new rule. Raises UsageError without any."""
    bench = make_bench(run, load_experiment(run.path / RULE))
    copy = str(run.manifest.get("aa") or "")
    against = bench.contrast(copy, bench.baseline)
    found = measured(experiment.file.measure, run, against)
    blocks = len(against.blocks)
    spreads = {name: upper(_values(item.mix)) for name, item in found.items()}
    by_measure = {name: sd for name, sd in spreads.items() if sd is not None}
    if not by_measure:
        raise UsageError(
            f"{run.path}: its A/A copy has {blocks} usable block{'' if blocks == 1 else 's'}, so no noise was measured",
            "Give a run with at least two blocks, or leave --run out.",
        )
    by_class: dict[str, dict[str, float]] = {}
    for name, mix in by_measure.items():
        for workload, means in found[name].classes.items():
            sd = upper(_values(means))
            if sd is not None:
                by_class.setdefault(name, {})[workload] = math.sqrt(max(0.0, sd**2 - mix**2))
    by_guard = {}
    for guard in experiment.file.guard:
        sd = upper(_guard_differences(guard, run, against))
        if sd is not None:
            by_guard[guard.metric] = sd
    errors = count_errors(bench, bench.baseline)
    timed = any(boot.facts.status == DONE and boot.facts.gone_ns is not None for boot in run.boots)
    order: list[list[str]] = run.manifest.get("order") or []
    return Noise(
        MEASURED,
        max(by_measure.values()),
        by_measure,
        by_class,
        by_guard,
        observed={name: sd for name in by_measure if (sd := _sd(_values(found[name].mix))) is not None},
        blocks=blocks,
        baseline_ms={name: ms for name, item in found.items() if (ms := item.mix.base_geomean_ms) is not None},
        error_rate=errors.errors / errors.requests if errors.requests else 0.0,
        boot_hours=hours_per_block(run) / len(order[0]) if timed and order else None,
    )


def _guard_differences(guard: GuardRule, run: Run, against: contrasts.Contrast) -> list[float]:
    parts = guard_parts(guard.metric) or {}
    if "quantile" in parts:
        share = int(parts["quantile"].removeprefix("ttft_p")) / 100
        pairs = contrasts.deciding_pairs(against.pairs)
        return list(contrasts.quantile_differences(pairs, "ttft", share).values())
    if parts.get("measure") == "throughput":
        return list(throughput_differences(run, against, int(parts["c"])).values())
    if "c" in parts:
        return _values(contrasts.block_means(pairs_at(run, against, int(parts["c"])))[parts["measure"]])
    return []


def _values(means: contrasts.BlockMeans) -> list[float]:
    return list(means.differences.values())


def _sd(differences: Sequence[float]) -> float | None:
    estimate = stats.paired_block_t(differences)
    return estimate.sd if estimate is not None else None


def upper(differences: Sequence[float]) -> float | None:
    """The upper 80 % limit of their spread, s · √(ν / χ²(0.2, ν)); None below two values, or without any spread."""
    sd = _sd(differences)
    # Two rounding errors are no spread.
    return stats.sd_upper(sd, len(differences) - 1) if sd is not None and sd > 1e-9 else None
