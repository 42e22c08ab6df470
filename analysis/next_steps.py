"""What to do next, with the commands: where a run is invalid, unfinished or leaves an arm undecided."""

from collections.abc import Iterator

from analysis.findings import Report
from profiles.runs import RULE
from profiles.units import HOUR_NS, format_duration

_NEW = "`firsttoken replay experiment.toml -o NEW-RUN`"


def next_steps(report: Report) -> list[str]:
    """Sentences, each with its command; empty where every arm is decided."""
    if report.invalid:
        return list(dict.fromkeys(_after_invalid(reason, report) for reason in report.invalid))
    if not any(arm.verdict.word == "inconclusive" for arm in report.arms):
        return []
    if not report.cold:
        return [f"give [engine] an argv, so that every block is a cold boot, and measure anew: {_NEW}"]
    return list(_after_inconclusive(report))


def _after_invalid(reason: str, report: Report) -> str:
    if reason.startswith("rule changed"):
        where = RULE if report.relative else report.run.path / RULE
        return f"put back {where} as the first boot found it (sha256 in manifest.json), or measure anew: {_NEW}"
    if reason.startswith("A/A failed"):
        return (
            "find what makes two boots of the baseline differ (cooling, foreign load, caches, order), then measure "
            f"anew: {_NEW}"
        )
    if reason.startswith("too many replacements"):
        return f"remove what spoilt the boots, see Discarded boots, then measure anew: {_NEW}"
    if "production never reaches" in reason:
        return (
            "let a measure decide at a c that production reaches, or give this one a headroom_reason, in a new "
            "experiment file: `firsttoken replay NEW.toml -o NEW-RUN`"
        )
    return f"measure anew: {_NEW}"


def _after_inconclusive(report: Report) -> Iterator[str]:
    run = "RUN" if report.relative else report.run.path
    if not report.course.finished:
        yield f"let the run go on: `firsttoken replay experiment.toml -o {run} --resume`"
        return
    undecided = [arm for arm in report.arms if arm.verdict.word == "inconclusive"]
    known = [(arm.settle, arm.arm) for arm in undecided if arm.settle is not None]
    if known:
        most = max((settle for settle, _ in known), key=lambda settle: settle.blocks)
        names = ", ".join(name for _, name in known)
        hours = "" if report.relative else f", {format_duration(most.hours * HOUR_NS)} of machine time"
        yield (
            f"to decide {names}: `blocks = {most.blocks}` in [design] of a new experiment file{hours}; ask "
            f"`firsttoken plan NEW.toml` for its chances, then `firsttoken replay NEW.toml -o NEW-RUN`"
        )
    for arm in undecided:
        if arm.settle is None:
            yield f"to decide {arm.arm}: {arm.settle_otherwise or 'see its reasons; more blocks alone do not'}"
