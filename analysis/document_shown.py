"""The part of verdict.json that describes: the bench, our own lateness, doubtful windows, the sweep, throughput.

A concurrency is null where a window followed the recorded arrivals.
"""

from typing import Any

from analysis.acceptance_gain import acceptance_gain_document
from analysis.crossover import crossover_document
from analysis.doubt import Lateness, worst_loop_lag, worst_schedule_lag
from analysis.findings import ArmReport, Report
from analysis.guards import relative
from analysis.parity import parity_document
from analysis.sensitivity import sensitivity_document
from analysis.split.shown import split_document
from analysis.stats import Estimate


def bench_document(report: Report) -> dict[str, Any]:
    """The mode that decided, and the checks of the baseline; empty where nothing was played at the recorded pace."""
    point = report.run.manifest.get("operating_point") or {}
    checks = [
        {
            "check": check.name,
            "status": check.status,
            "difference": check.difference,
            "limit": check.limit,
            "recorded": _keyed(check.recorded),
            "baseline": _keyed(check.baseline),
            "text": check.text,
        }
        for check in report.bench
    ]
    return {"mode": point.get("mode"), "checks": checks}


def doubt_document(report: Report) -> dict[str, Any]:
    """`own_lateness` of the worst deciding window, and `doubtful_windows` with why."""
    return {
        "own_lateness": {
            "schedule": _lateness(worst_schedule_lag(report.run)),
            "event_loop": _lateness(worst_loop_lag(report.run)),
        },
        "doubtful_windows": [
            {
                "arm": window.arm,
                "block": window.block,
                "window": window.window,
                "c": window.c,
                "deciding": window.deciding,
                "reason": window.reason,
            }
            for window in report.doubtful
        ],
    }


def shown_document(arm: ArmReport) -> dict[str, Any]:
    """What is shown beside the verdict of an arm."""
    shown = arm.shown
    return {
        "remarks": list(shown.remarks),
        "arrivals_at": _keyed(shown.arrivals_at) or None,
        "batch_cap": shown.batch_cap,
        "queue": shown.queue,
        "cached_source": shown.cached_source,
        "output_lengths": parity_document(shown.output_lengths),
        "acceptance_gain": acceptance_gain_document(shown.acceptance_gain),
        "sensitivity": sensitivity_document(shown.sensitivity),
        "split": split_document(shown.split),
        "crossover": crossover_document(shown.crossover),
        "sweep": [
            {"class": point.workload, "c": point.c, "measure": point.measure, **_change(point.estimate)}
            for point in shown.sweep
        ],
        "throughput": [
            {
                "class": item.workload,
                "c": item.c,
                "limit_ns": item.limit_ns,
                "tokens_per_s": item.tokens_per_s,
                "baseline_tokens_per_s": item.base_tokens_per_s,
                **_change(item.estimate),
            }
            for item in shown.throughput
        ],
    }


def _change(estimate: Estimate) -> dict[str, Any]:
    change, low, high = relative(estimate)
    return {"change": change, "low": low, "high": high, "blocks": estimate.blocks}


def _lateness(late: Lateness | None) -> dict[str, Any] | None:
    if late is None:
        return None
    return {
        "p99_ns": late.p99_ns,
        "max_ns": late.max_ns,
        "arm": late.arm,
        "block": late.block,
        "window": late.window,
        "c": late.c,
    }


def _keyed(value: Any) -> Any:
    """A histogram with its levels as JSON keys; anything else as it is."""
    return {str(c): count for c, count in value.items()} if isinstance(value, dict) else value
