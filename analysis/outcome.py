"""The outcome of a run in one sentence: what to adopt, or what to keep."""

from analysis.findings import Report


def outcome(report: Report) -> str | None:
    """`adopt v2; undecided: v1`. None where the run is invalid or has no arm."""
    if report.invalid or not report.arms:
        return None
    adopted = [arm.arm for arm in report.arms if arm.verdict.action.startswith(f"adopt {arm.arm}")]
    undecided = [arm.arm for arm in report.arms if arm.verdict.word == "inconclusive"]
    mixed = [arm.arm for arm in report.arms if arm.verdict.word == "workload-dependent"]
    if adopted:
        named = [f"{arm} (workload-dependent, by its mix)" if arm in mixed else arm for arm in adopted]
        first = f"adopt {', '.join(named)}"
        mixed = [arm for arm in mixed if arm not in adopted]
    else:
        first = f"keep {report.baseline}" if undecided else f"nothing survived; keep {report.baseline}"
    parts = [first]
    if undecided:
        parts.append(f"undecided: {', '.join(undecided)}")
    if mixed:
        parts.append(f"workload-dependent: {', '.join(mixed)}")
    failed = any(check.status == "fail" for check in report.bench)
    return "; ".join(parts) + (". For the load that was met here: the bench check failed" if failed else "")
