"""What a page says about the run itself: the rule in full, when it was fixed, what was left out, the environment."""

from analysis import course
from analysis.doubt import left_out
from analysis.findings import Report
from analysis.heading import facts
from analysis.page.boots import not_counted
from analysis.page.parts import Lines, Words
from profiles.runs import RULE
from profiles.units import format_percent


def rule_text(report: Report) -> str | None:
    """experiment.toml as it lies in the run; None where it cannot be read."""
    try:
        return (report.run.path / RULE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def bench_lines(report: Report, tell: Words) -> list[tuple[str, str]]:
    """Label and sentence: what a reader must know beside the verdicts. A/A has rows of its own."""
    return [(label, tell(said)) for label, said in facts(report) if label != "A/A"]


def lists(report: Report, tell: Words) -> list[Lines]:
    """What was left out, each with its reason."""
    skipped = report.run.manifest.get("skipped") or []
    parts = [
        Lines("Skipped arms", [f"{item['arm']}: {tell(str(item['reason']))}" for item in skipped]),
        Lines("Failed, discarded and interrupted boots", [*not_counted(report, tell)]),
        Lines("Left out: the client would have shaped the number", [tell(row) for row in left_out(report.doubtful)]),
        Lines("Not checked", [tell(row) for row in course.not_checked(report.run, report.experiment)]),
    ]
    return [part for part in parts if part.rows]


def amendments(report: Report, tell: Words) -> list[Lines]:
    """Amendments of the rule, from the run's own record."""
    told = [event for event in report.run.events if event.get("event") == "rule_amended"]
    amended = (report.run.manifest.get("rule") or {}).get("amendments") or told
    rows = [str(item.get("reason") or "no reason recorded") for item in amended]
    return [Lines("Amendments of the rule", [tell(row) for row in rows])] if rows else []


def environment(report: Report) -> list[tuple[str, str]]:
    """Name and value. In a relative report nothing that names the host, a path, a model or a date."""
    relative = report.relative
    manifest = report.run.manifest
    done = [boot.facts for boot in report.run.boots]
    versions = sorted({facts.engine_version for facts in done if facts.engine_version})
    models = sorted({facts.model for facts in done if facts.model})
    rows = [
        ("engine", "simulated" if report.simulated else "real"),
        ("engine version", ", ".join(versions)),
        ("replayed by", str(manifest.get("tool") or "")),
        ("seed", str(manifest.get("seed", report.experiment.file.design.seed))),
        ("profile, sha256", str((manifest.get("profile") or {}).get("sha256") or "")),
    ]
    if not relative:
        rows += [
            ("model", ", ".join(models)),
            ("launcher", str(manifest.get("launcher") or "")),
            ("profile", str((manifest.get("profile") or {}).get("path") or "")),
            ("run", str(report.run.path)),
            *((str(key), _value(value)) for key, value in (manifest.get("environment") or {}).items()),
        ]
    rows += [(f"arm {arm.name}", " ".join(arm.argv)) for arm in report.experiment.arms if not relative]
    return [(name, value) for name, value in rows if value]


def looks(report: Report) -> str:
    """Which looks the rule declares, and the width of the intervals."""
    declared = report.experiment.looks
    level = format_percent(1 - 2 * report.data.alpha, 1).replace(".0 %", " %")
    many = (
        "one look, after the last block"
        if len(declared) == 1
        else f"looks after {', '.join(map(str, declared))} blocks"
    )
    return f"Intervals are two-sided {level} t intervals over blocks; {many}."


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
