"""The verdict of an arm, from what was found about it. Pure: the order of the rule, and nothing else.

First hit wins, all reasons are listed:

1. invalid              the run cannot be judged
2. inconclusive         too few blocks
3. reject               new fallback lines, instability, a guard proven worse, the first measure proven worse
4. workload-dependent   on one measure some class gains materially and another loses materially
5. the table            first measure × second measure; adopt also needs every deciding guard shown, and no finding
                        that blocks it
"""

from dataclasses import dataclass
from typing import Final, Literal

from analysis.measures import TITLES
from analysis.stats import Direction, Estimate, NoWorse, Zone

type Word = Literal["adopt", "reject", "workload-dependent", "inconclusive", "invalid"]
type GuardStatus = Literal["pass", "fail", "not shown"]

MIN_BLOCKS: Final = 3


@dataclass(frozen=True, slots=True)
class ClassFinding:
    """A measure restricted to one workload class, its interval simultaneous over classes and measures."""

    name: str
    estimate: Estimate | None
    direction: Direction


@dataclass(frozen=True, slots=True)
class MeasureFinding:
    """A listed measure of an arm against the baseline, on the mix. Log ratios, lower is better."""

    measure: str
    zone: Zone
    no_worse: NoWorse
    estimate: Estimate | None = None
    line: float = 0.0
    margin: float = 0.0
    classes: tuple[ClassFinding, ...] = ()
    coverage: float | None = None
    baseline_ms: float | None = None

    @property
    def title(self) -> str:
        return TITLES.get(self.measure, self.measure)


@dataclass(frozen=True, slots=True)
class GuardFinding:
    """A guard. `value` is a relative change, or for an error rate the pooled rate; the bounds likewise."""

    metric: str
    role: Literal["deciding", "advisory"]
    status: GuardStatus
    limit: float
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""  # why it could not be measured, or why it only advises
    settle_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the rule looks at for one arm. `measures` in the order of the rule, one or two of them."""

    arm: str
    baseline: str
    measures: tuple[MeasureFinding, ...]
    guards: tuple[GuardFinding, ...] = ()
    invalid: tuple[str, ...] = ()
    too_few: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()  # new fallback lines, instability: each a sentence
    blockers: tuple[str, ...] = ()  # findings that forbid adopt and prove nothing against the arm
    mixed_action: Literal["keep-baseline", "adopt-on-mix"] = "keep-baseline"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word, what to do, and every reason, the deciding one first."""

    word: Word
    action: str
    reasons: tuple[str, ...]


def decide(evidence: Evidence) -> Verdict:
    """Apply the order. See the module's docstring."""
    hits: list[tuple[Word, str]] = [("invalid", reason) for reason in evidence.invalid]
    hits += [("inconclusive", reason) for reason in evidence.too_few]
    hits += [("reject", reason) for reason in _rejections(evidence)]
    splits = workload_splits(evidence.measures)
    hits += [("workload-dependent", reason) for reason in splits]
    on_mix = _adopt_or_table(evidence)
    if not hits:
        hits.append(on_mix)
    elif on_mix[0] != hits[0][0] and not evidence.too_few and not evidence.invalid:
        hits.append((on_mix[0], f"on the mix alone: {on_mix[0]} ({on_mix[1]})"))
    word = hits[0][0]
    return Verdict(word, _action(word, evidence, on_mix[0]), tuple(reason for _, reason in hits))


def workload_splits(measures: tuple[MeasureFinding, ...]) -> list[str]:
    """One sentence per measure on which some class gains materially and another loses materially."""
    sentences = []
    for finding in measures:
        gains = [item.name for item in finding.classes if item.direction == "gain"]
        losses = [item.name for item in finding.classes if item.direction == "loss"]
        if gains and losses:
            won = f"{', '.join(gains)} {'gains' if len(gains) == 1 else 'gain'}"
            lost = f"{', '.join(losses)} {'loses' if len(losses) == 1 else 'lose'}"
            sentences.append(f"{finding.title}: {won}, {lost}")
    return sentences


def table(first: MeasureFinding, second: MeasureFinding | None) -> tuple[Word, str]:
    """The table of DESIGN §5: what the zones of the two measures say together.

    Without a second measure the first one decides alone. Where neither measure gains, a margin that was not shown
    changes nothing: there is no gain to adopt.
    """
    name = first.title
    if first.zone == "open":
        if first.estimate is None:
            return "inconclusive", f"{name} was not measured"
        if first.estimate.low is None:
            return "inconclusive", f"{name} is open: one block gives no interval"
        return "inconclusive", f"{name} is open: its interval straddles the material line"
    if second is None:
        if first.zone == "gain":
            return "adopt", f"{name} gains materially"
        return "reject", f"no material gain on {name}"
    other = second.title
    if first.zone == "gain":
        return {
            "no worse": ("adopt", f"{name} gains materially, {other} is no worse"),
            "worse": ("reject", f"the gain on {name} is bought with {other}"),
            "not shown": ("inconclusive", f"{name} gains, but {other} is not shown to be no worse"),
        }[second.no_worse]  # type: ignore[return-value]  # mypy widens the words of a literal dict to str
    if second.zone == "no gain":
        return "reject", f"no material gain on {name} or {other}"
    if first.no_worse == "no worse":
        if second.zone == "gain":
            return "adopt", f"{name} is no worse, {other} gains materially"
        return "inconclusive", f"no material gain on {name}, and {other} is open"
    return "inconclusive", f"no material gain on {name}, which is not shown to be no worse"


def _adopt_or_table(evidence: Evidence) -> tuple[Word, str]:
    second = evidence.measures[1] if len(evidence.measures) > 1 else None
    word, reason = table(evidence.measures[0], second)
    missing = [guard.metric for guard in evidence.guards if guard.role == "deciding" and guard.status != "pass"]
    blocks = [f"guard not shown: {', '.join(missing)}"] if missing else []
    blocks += evidence.blockers
    if word == "adopt" and blocks:
        return "inconclusive", f"{reason}, but adopt is blocked: {'; '.join(blocks)}"
    return word, reason


def _rejections(evidence: Evidence) -> list[str]:
    reasons = list(evidence.broken)
    for guard in evidence.guards:
        if guard.role == "deciding" and guard.status == "fail":
            reasons.append(f"guard {guard.metric} is proven worse")
    first = evidence.measures[0]
    if first.no_worse == "worse":
        reasons.append(f"slower: {first.title} of the mix is proven worse than the margin")
    return reasons


def _action(word: Word, evidence: Evidence, on_mix: Word) -> str:
    keep = f"keep {evidence.baseline}"
    if word == "adopt":
        return f"adopt {evidence.arm}"
    if word == "workload-dependent":
        if evidence.mixed_action == "adopt-on-mix" and on_mix == "adopt":
            return f"adopt {evidence.arm}: the rule lets the mix decide"
        return f"{keep}: on a mixed profile the worse case decides"
    if word == "inconclusive":
        return f"{keep} until more is known"
    return f"{keep}: nothing can be said from this run" if word == "invalid" else keep
