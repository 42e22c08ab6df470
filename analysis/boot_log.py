"""What the boot logs say about an arm, judged against the baseline's own boots and against its predecessor's.

A warning that the baseline prints too proves nothing, and the absence of a warning proves nothing either: a GB10 says
"performance might be sub-optimal" in every configuration, and a backend that was passed over in silence shows only in
the line that names the chosen one.
"""

from collections.abc import Iterable
from typing import Final

from profiles.experiment import ExperimentFile
from profiles.runs import AA_SUFFIX, LogFinding, Run

# Severities of the pattern table. A new line of the first kind counts against the arm, one of the second is shown.
FALLBACKS: Final = frozenset({"fallback", "chronic-fallback"})
NOTED: Final = frozenset({"fallback-intended", "runtime-slow", "config-warn", "kernel-warn", "hardware-warn"})
# Attention backend (chosen, forced), MoE backend, linear kernel, scheduling, attention block size.
SELECTION: Final = frozenset({"P01", "P02", "P04", "P05", "P17", "P18"})
RESOLVED_CONFIG: Final = "P20"


def findings_of(run: Run, *arms: str) -> list[LogFinding]:
    """Every finding in the boots of these arms that ended, failed and discarded ones included."""
    return [finding for boot in run.boots if boot.facts.arm in arms for finding in boot.facts.findings]


def new_lines(
    run: Run, file: ExperimentFile, arm: str, baseline: str, severities: frozenset[str] = FALLBACKS
) -> list[str]:
    """Signatures of these severities in the arm's boots that no boot of the baseline or its copy has, allowed ones
    left out. Sorted."""
    known = {finding.signature for finding in findings_of(run, baseline, baseline + AA_SUFFIX)}
    allowed = [line.signature for line in file.boot_log.allow]
    found = {finding.signature for finding in findings_of(run, arm) if finding.severity in severities}
    return sorted(line for line in found - known if not any(entry in line for entry in allowed))


def shows_no_change(run: Run, arm: str, predecessor: str) -> bool:
    """Whether the selection facts of both are known and equal, and so is the resolved configuration where it is
    stable between the boots of one arm."""
    ours, theirs = (_facts(findings_of(run, name)) for name in (arm, predecessor))
    if not ours or ours != theirs:
        return False
    configs = [_configs(findings_of(run, name)) for name in (arm, predecessor)]
    stable = all(len(config) == 1 for config in configs)
    return not stable or configs[0] == configs[1]


def _facts(findings: Iterable[LogFinding]) -> set[tuple[str, ...]]:
    facts: set[tuple[str, ...]] = set()
    for finding in findings:
        if finding.id not in SELECTION or finding.severity != "fact":
            continue
        if finding.id in ("P01", "P02"):  # chosen or forced, it is the same backend
            facts.add(("attention", finding.fields[0].upper() if finding.fields else ""))
        else:
            facts.add((finding.id, *finding.fields))
    return facts


def _configs(findings: Iterable[LogFinding]) -> set[tuple[str, ...]]:
    return {tuple(finding.fields) for finding in findings if finding.id == RESOLVED_CONFIG}
