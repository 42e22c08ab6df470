"""The functional guard: an arm may not break what clients rely on, judged against the A/A copy's own disagreement.

Every boot answers the same probes (`profiles.functional`). The replicate is the boot, not the answer: a function that
works in one pass of a boot and not in the next has failed in that boot, for every arm alike. A probe counts for a trait
only where the baseline and its copy, taken together, have it right in more than half of their boots; else the trait is
`not offered` by that probe.

A trait is `broken` by a probe in one of two ways, and one probe is enough:

    always   it fails in all boots of the arm, two at least, and in none of the baseline's and its copy's, which are as
             many or more. Of fifteen boots of which any five fail, these are the arm's own once in 3003 cases, and with
             three blocks, three of nine, once in 84; a verdict on fewer blocks is inconclusive before this is asked.
    more     it fails in more boots than the baseline's and the copy's say, by Fisher's exact test at 1 %, divided by
             the probes that were tested on all traits (Bonferroni).

Length and identity are of another kind, since a backend with another rounding rightly answers in other words:

    output_length     broken if the mean log ratio over blocks is shown to be beyond 25 %, against the baseline and
                      against the copy (99 % intervals), and every probe drifts by more than 10 % in the same direction.
                      One answer that takes another turn is no drift. With `changes = ["output"]` it is only shown.
    identical_output  never broken; a share below the copy's is shown.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from analysis.bench import Bench
from analysis.functional.answers import (
    IDENTITY,
    LENGTH,
    RIGHT,
    WORDS,
    Boots,
    FunctionalFinding,
    Right,
    Sides,
    boots_of,
    ends_like,
)
from analysis.functional.drift import judge_identity, judge_length
from profiles.experiment import Arm
from profiles.runs import AA_SUFFIX

__all__ = [
    "FunctionalFinding",
    "functional_document",
    "functional_lines",
    "functional_rejections",
    "judge_functional",
    "more_failures_p",
]

ALPHA: Final = 0.01
LEAST_BOOTS: Final = 2


@dataclass(frozen=True, slots=True)
class _Tally:
    """One probe on one trait, in boots: failed and all, of the arm, the baseline and the copy."""

    probe: str
    own: tuple[int, int]
    base: tuple[int, int]
    copy: tuple[int, int]

    @property
    def reference(self) -> tuple[int, int]:
        return self.base[0] + self.copy[0], self.base[1] + self.copy[1]

    @property
    def offered(self) -> bool:
        failed, boots = self.reference
        return 2 * failed < boots

    @property
    def always(self) -> bool:
        return self.own[0] == self.own[1] >= LEAST_BOOTS and not self.reference[0] and self.reference[1] >= self.own[1]

    @property
    def p(self) -> float:
        return more_failures_p(*self.own, *self.reference)


def judge_functional(bench: Bench, arm: Arm) -> tuple[FunctionalFinding, ...]:
    """One finding per trait; empty where the run made no functional probes. Raises FormatError."""
    copy = str(bench.run.manifest.get("aa") or bench.baseline + AA_SUFFIX)
    sides = Sides(boots_of(bench, arm.name), boots_of(bench, bench.baseline), boots_of(bench, copy))
    traits = sides.traits()
    if not sides.base and not sides.copy:
        return ()
    plain = {trait: _tallies(sides, trait, probes) for trait, probes in traits.items() if trait in RIGHT}
    tests = sum(tally.offered for tallies in plain.values() for tally in tallies)
    findings = [_judge_plain(trait, tallies, tests) for trait, tallies in plain.items()]
    if LENGTH in traits:
        findings.append(judge_length(sides, traits[LENGTH], declared="output" in arm.changes))
    if IDENTITY in traits:
        findings.append(judge_identity(sides, traits[IDENTITY]))
    asked = (len({probe for probes in traits.values() for probe in probes}), len(sides.own))
    return tuple(replace(finding, asked=asked) for finding in findings)


def more_failures_p(failed: int, boots: int, base_failed: int, base_boots: int) -> float:
    """Fisher's exact test, one-sided: chance of so many failures or more on the first side, were both sides alike."""
    all_boots, all_failed = boots + base_boots, failed + base_failed
    ways = math.comb(all_boots, all_failed)
    more = range(failed, min(boots, all_failed) + 1)
    return float(sum(math.comb(boots, k) * math.comb(base_boots, all_failed - k) for k in more) / ways)


def _tallies(sides: Sides, trait: str, probes: Sequence[str]) -> list[_Tally]:
    return [_tally(sides, probe, RIGHT[trait] or ends_like(sides, probe)) for probe in probes]


def _tally(sides: Sides, probe: str, right: Right) -> _Tally:
    def count(boots: Boots) -> tuple[int, int]:
        seen = [right(boot[probe]) for boot in boots.values() if probe in boot]
        return seen.count(False), len(seen) - seen.count(None)

    return _Tally(probe, count(sides.own), count(sides.base), count(sides.copy))


def _judge_plain(trait: str, tallies: Sequence[_Tally], tests: int) -> FunctionalFinding:
    name, problem = WORDS[trait]
    offered = [tally for tally in tallies if tally.offered]
    measured = [tally for tally in offered if tally.own[1]]
    own, copy = _right([tally.own for tally in measured]), _right([tally.copy for tally in measured])
    if not offered:
        return FunctionalFinding(trait, "not offered", *own, *copy, f"{name}: not offered, the baseline fails too")
    if not measured:
        return FunctionalFinding(trait, "not measured", *own, *copy, f"{name}: no boot of the arm was probed")
    broken = [tally for tally in measured if tally.always or tally.p < ALPHA / max(1, tests)]
    if broken:
        # The one that says it best: most boots, and the fewest of the baseline's.
        worst = max(broken, key=lambda tally: (tally.own[0] / tally.own[1], -tally.reference[0]))
        names = tuple(tally.probe for tally in broken)
        sentence = f"{problem} in {_of(worst.own)} boots (baseline {_of(worst.reference)})"
        return FunctionalFinding(trait, "broken", *own, *copy, sentence, names)
    worse = [tally for tally in measured if tally.own[0] and _rate(tally.own) > _rate(tally.copy)]
    if worse:
        names = tuple(tally.probe for tally in worse)
        worst = max(worse, key=lambda tally: _rate(tally.own))
        sentence = (
            f"{name}: wrong in {_of(worst.own)} boots (baseline {_of(worst.reference)}), which proves nothing yet"
        )
        return FunctionalFinding(trait, "not shown", *own, *copy, sentence, names)
    return FunctionalFinding(trait, "kept", *own, *copy, f"{name}: right in {_of(own)}, the copy in {_of(copy)}")


def _right(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(boots - failed for failed, boots in counts), sum(boots for _, boots in counts)


def _of(part: tuple[int, int]) -> str:
    return f"{part[0]} of {part[1]}"


def _rate(part: tuple[int, int]) -> float:
    return part[0] / part[1] if part[1] else 0.0


def functional_rejections(bench: Bench, found: Sequence[FunctionalFinding]) -> list[str]:
    """A sentence per broken function, if the rule lets it reject."""
    if bench.experiment.file.functional.on_broken != "reject":
        return []
    return [f"broken function: {finding.sentence}" for finding in found if finding.status == "broken"]


def functional_document(found: Sequence[FunctionalFinding]) -> list[dict[str, Any]]:
    """For verdict.json."""
    return [
        {
            "trait": finding.trait,
            "status": finding.status,
            "own": finding.own,
            "own_asked": finding.own_asked,
            "copy": finding.copy,
            "copy_asked": finding.copy_asked,
            "sentence": finding.sentence,
            "probes": list(finding.probes),
        }
        for finding in found
    ]


def functional_lines(found: Sequence[FunctionalFinding], compared: bool = True) -> Iterator[str]:
    """For a person. `compared`: whether there are boots of both sides."""
    if not found:
        yield "functions: not probed" if compared else "functions: not compared yet"
        return
    kept = [WORDS[item.trait][0] for item in found if item.status == "kept" and item.trait != IDENTITY]
    identity = [item.sentence for item in found if item.trait == IDENTITY]
    if kept or identity:
        probes, boots = found[0].asked
        names = ", ".join([*kept, f"{probes} probes × {boots} boots"]) if kept else "none"
        yield "; ".join([f"functions kept: {names}", *identity])
    for item in found:
        if item.status == "broken":
            right = f"right in {item.own} of {item.own_asked}, the copy in {item.copy} of {item.copy_asked}"
            yield f"function broken: {WORDS[item.trait][0]}, {right}; probes {', '.join(item.probes)}"
        elif item.status == "not shown" and item.trait != IDENTITY:
            yield f"function not shown to be kept: {item.sentence}; probes {', '.join(item.probes)}"
    for status in ("not offered", "not measured"):
        names = ", ".join(WORDS[item.trait][0] for item in found if item.status == status and item.trait != IDENTITY)
        if names:
            yield f"functions {status}: {names}"
