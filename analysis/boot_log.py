"""What the boot logs say about an arm, judged against the baseline's own boots and against its predecessor's.

A warning that the baseline prints too proves nothing, and the absence of a warning proves nothing either: a GB10 says
"performance might be sub-optimal" in every configuration, and a backend that was passed over in silence shows only in
the line that names the chosen one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from analysis.selection import differences, shows_no_difference
from profiles.experiment import Arm, Experiment, ExperimentFile
from profiles.runs import AA_SUFFIX, DONE, BootFacts, LogFinding, Run
from profiles.units import format_change, format_percent

# Severities of the pattern table. A new line of the first kind counts against the arm, one of the second is shown.
FALLBACKS: Final = frozenset({"fallback", "chronic-fallback"})
NOTED: Final = frozenset({"fallback-intended", "config-warn", "kernel-warn", "hardware-warn"})
RUNTIME_SLOW: Final = "runtime-slow"
# What is compiled before the windows is what a warm-up is for (`LogFinding.window`; between windows it is None).
WARMUP: Final = "warmup"


@dataclass(frozen=True, slots=True)
class LogJudgement:
    """The logs of one arm's boots against the baseline's. Each text is a sentence or a signature."""

    new: tuple[str, ...]  # fallback lines that no boot of the baseline has
    noted: tuple[str, ...]  # other lines that no boot of the baseline has
    allowed: tuple[tuple[str, str], ...]  # new fallback lines that the rule's allow-list silences, with its reason
    notes: tuple[str, ...]
    blockers: tuple[str, ...]  # forbid adopt, and prove nothing against the arm
    changes_nothing: str | None  # the predecessor, where nothing tells the arm from it
    same_as_baseline: bool
    compared: bool  # both sides have boots; without them nothing of these is known

    @property
    def clean(self) -> bool | None:
        """Whether the arm has no fallback line that the baseline lacks; None where they could not be compared."""
        return not self.new if self.compared else None


def judge_logs(run: Run, experiment: Experiment, arm: Arm) -> LogJudgement:
    """All that the boot logs say about an arm."""
    file, baseline = experiment.file, experiment.baseline
    predecessor = next((item for item in experiment.arms if item.name == arm.extends), baseline)
    own = _boots(run, arm.name)
    theirs = [*_boots(run, baseline.name), *_boots(run, baseline.name + AA_SUFFIX)]
    before = theirs if predecessor is baseline else _boots(run, predecessor.name)
    tolerance = file.boot_log.kv_tolerance

    def alike(other: Sequence[BootFacts], env: Mapping[str, str]) -> bool:
        return shows_no_difference(own, other, arm.env, env) and not _kv_apart((*own, *other), tolerance)

    nothing = predecessor is not arm and alike(before, predecessor.env)
    # A boot of the arm that failed shows its lines too. Only one that was measured to its end shows all of them, and
    # what the baseline does not print is known from such a one.
    booted = any(boot.facts.arm == arm.name for boot in run.boots)
    lacking = [name for name, found in ((arm.name, booted), (baseline.name, theirs)) if not found]
    if lacking:
        note = f"not compared, no boot of {' and of '.join(lacking)} has ended well yet"
        return LogJudgement((), (), (), (note,), (), None, False, compared=False)
    slow_notes, slow_blockers = _slow(run, own, theirs)
    kv_blockers = _kv_sizes(arm, own, theirs, baseline.name, tolerance)
    return LogJudgement(
        new=tuple(new_lines(run, file, arm.name, baseline.name)),
        noted=tuple(new_lines(run, file, arm.name, baseline.name, NOTED)),
        allowed=tuple(allowed_lines(run, file, arm.name, baseline.name)),
        notes=(
            *differences(own, before, predecessor.name),
            *slow_notes,
            *_compile_caches(own, theirs, baseline.name),
            *_downloads(own),
        ),
        blockers=(*kv_blockers, *slow_blockers),
        changes_nothing=predecessor.name if nothing else None,
        same_as_baseline=nothing if predecessor is baseline else alike(theirs, baseline.env),
        compared=True,
    )


def findings_of(run: Run, *arms: str) -> list[LogFinding]:
    """Every finding in the boots of these arms that ended, failed and discarded ones included."""
    return [finding for boot in run.boots if boot.facts.arm in arms for finding in boot.facts.findings]


def new_lines(
    run: Run, file: ExperimentFile, arm: str, baseline: str, severities: frozenset[str] = FALLBACKS
) -> list[str]:
    """Signatures of these severities in the arm's boots that no boot of the baseline or its copy has, allowed ones
    left out. Sorted."""
    return [line for line in _unknown(run, arm, baseline, severities) if _allowing(file, line) is None]


def allowed_lines(run: Run, file: ExperimentFile, arm: str, baseline: str) -> list[tuple[str, str]]:
    """What an allow-list entry silences, with its reason: a silenced line is still one that the arm prints."""
    found = ((line, _allowing(file, line)) for line in _unknown(run, arm, baseline, FALLBACKS | NOTED))
    return [(line, reason) for line, reason in found if reason is not None]


def _unknown(run: Run, arm: str, baseline: str, severities: frozenset[str]) -> list[str]:
    known = {finding.signature for finding in findings_of(run, baseline, baseline + AA_SUFFIX)}
    found = {finding.signature for finding in findings_of(run, arm) if finding.severity in severities}
    return sorted(found - known)


def _allowing(file: ExperimentFile, line: str) -> str | None:
    return next((entry.reason for entry in file.boot_log.allow if entry.signature in line), None)


def _boots(run: Run, arm: str) -> list[BootFacts]:
    return [boot.facts for boot in run.boots if boot.facts.arm == arm and boot.facts.status == DONE]


def _slow(run: Run, own: Sequence[BootFacts], theirs: Sequence[BootFacts]) -> tuple[list[str], list[str]]:
    """Kernels compiled while requests were measured: notes, and blockers.

    An arm that compiles inside a window is slowed by it, which is its own doing. A baseline that does so more often
    makes the arm look faster than it is, and a longer warm-up would tell.
    """
    deciding = {window["name"] for window in run.manifest.get("windows") or () if window.get("deciding")}
    notes = []
    for kernel, windows in sorted(_compiled(own).items()):
        where = ", ".join(sorted({name for name, _ in windows}))
        boots = len({boot for _, boot in windows})
        notes.append(f"compiled while it served, in {where} of {_of_boots(boots, len(own))}: {kernel}")
    shares = [_share_compiling(boots, deciding) for boots in (own, theirs)]
    if shares[1] > shares[0]:
        kernels = sorted(
            kernel for kernel, windows in _compiled(theirs).items() if any(name in deciding for name, _ in windows)
        )
        return notes, [
            f"the baseline compiled inside a deciding window in {format_percent(shares[1], 0)} of its boots, the arm "
            f"in {format_percent(shares[0], 0)} ({', '.join(kernels)}): a longer warm-up would tell"
        ]
    return notes, []


def _compiled(boots: Iterable[BootFacts]) -> dict[str, list[tuple[str, tuple[int, int, int]]]]:
    """Kernel → window and boot of each finding that may have delayed a measured request."""
    found: dict[str, list[tuple[str, tuple[int, int, int]]]] = {}
    for facts in boots:
        for finding in facts.findings:
            if finding.severity == RUNTIME_SLOW and finding.window and finding.window != WARMUP:
                kernel = finding.fields[0] if finding.fields else finding.signature
                found.setdefault(kernel, []).append((finding.window, (facts.block, facts.slot, facts.attempt)))
    return found


def _share_compiling(boots: Sequence[BootFacts], deciding: set[str]) -> float:
    hit = {boot for windows in _compiled(boots).values() for name, boot in windows if name in deciding}
    return len(hit) / len(boots) if boots else 0.0


def _of_boots(count: int, of: int) -> str:
    return f"{count} of {of} boots"


def _kv_apart(boots: Iterable[BootFacts], tolerance: float) -> bool:
    """Whether the KV caches of these boots differ by more than the rule allows, declared or not."""
    found = [facts.kv_tokens for facts in boots if facts.kv_tokens]
    return bool(found) and max(found) > min(found) * (1 + tolerance)


def _kv_sizes(
    arm: Arm, own: Sequence[BootFacts], theirs: Sequence[BootFacts], baseline: str, tolerance: float
) -> list[str]:
    """Where the KV caches that are compared differ by more than the rule allows.

    A boot with less room preempts and forgets earlier. So a difference that nobody meant leaves the comparison open,
    and what the arm means to change it declares.
    """
    reasons = []
    sizes = [[facts.kv_tokens for facts in boots if facts.kv_tokens] for boots in (own, theirs)]
    for name, found in zip((arm.name, baseline), sizes, strict=True):
        if found and max(found) > min(found) * (1 + tolerance):
            reasons.append(
                f"the KV cache of {name} differs between its boots, {min(found):,} to {max(found):,} tokens "
                f"(tolerance {format_percent(tolerance, 0)}); fix its size, such as --kv-cache-memory-bytes"
            )
    if all(sizes) and "kv_cache" not in arm.changes:
        ours, base = (median(found) for found in sizes)
        if abs(ours / base - 1) > tolerance:
            reasons.append(
                f"its KV cache holds {ours:,.0f} tokens, that of {baseline} {base:,.0f} "
                f"({format_change(ours / base - 1)}, tolerance {format_percent(tolerance, 0)}), which is not declared; "
                f'declare changes = ["kv_cache"] if the arm means to do that'
            )
    return reasons


def _compile_caches(own: Sequence[BootFacts], theirs: Sequence[BootFacts], baseline: str) -> list[str]:
    """Where cold and warm compile caches are mixed: such boots are compiled differently, and start differently."""
    states = [Counter(facts.compile_cache for facts in boots if facts.compile_cache) for boots in (own, theirs)]
    alike = 'cache = "wipe" or "prewarm" in [engine] makes them alike'
    notes = []
    for whose, found in zip(("of its boots", f"of {baseline}"), states, strict=True):
        if len(found) > 1:
            parts = " and ".join(f"{state} in {count}" for state, count in sorted(found.items()))
            notes.append(f"the compile cache {whose} was {parts} boots; {alike}")
    if all(len(found) == 1 for found in states) and states[0].keys() != states[1].keys():
        (ours,), (base,) = states
        notes.append(f"its compile cache was {ours}, that of {baseline} {base}; {alike}")
    return notes


def _downloads(own: Sequence[BootFacts]) -> list[str]:
    count = sum((facts.selection.get("download_ns") or 0) > 0 for facts in own)
    return [f"weights were downloaded in {_of_boots(count, len(own))}: their time is the network's"] if count else []
