"""The verdict of an arm, from what was found about it. Pure: the order of the rule, and nothing else.

First hit wins, all reasons are listed:

1. invalid              the run cannot be judged
2. inconclusive         too few blocks
3. reject               new fallback lines, instability, a guard proven worse, the first measure proven worse
4. workload-dependent   on one measure some class gains materially and another loses materially
5. the table            first measure × second measure; adopt also needs every deciding guard shown, and no finding
                        that blocks it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from analysis.measures import higher_is_better, title_of
from analysis.stats import ALPHA, Direction, Estimate, NoWorse, Zone
from profiles.experiment_checks import LEAST_BLOCKS

type Word = Literal["adopt", "reject", "workload-dependent", "inconclusive", "invalid"]
type GuardStatus = Literal["pass", "fail", "not shown"]

MIN_BLOCKS: Final = LEAST_BLOCKS
_SAID: Final[dict[Word, str]] = {"reject": "rejected", "inconclusive": "inconclusive"}


@dataclass(frozen=True, slots=True)
class ClassFinding:
    """A measure restricted to one workload class, its interval simultaneous over classes and measures.

    `line` is the material line of the class, turned as that of the measure: milliseconds are laid on at the mean of the
    class, so it may lie elsewhere than the measure's. `alpha` is one-sided, that of the estimate.
    """

    name: str
    estimate: Estimate | None
    direction: Direction
    line: float = 0.0
    alpha: float = ALPHA
    line_left_out: bool = False  # as that of a measure


@dataclass(frozen=True, slots=True)
class MeasureFinding:
    """A listed measure of an arm against the baseline. Log ratios of the measure itself: of a throughput more is
    better, its material line lies above 0, and `zone`, `no_worse` and the directions of its classes know that already.

    `alpha` is one-sided, that of the estimate. `line_left_out`: the line tells a latency, and this is for other eyes.
    """

    measure: str
    zone: Zone
    no_worse: NoWorse
    estimate: Estimate | None = None
    line: float = 0.0
    margin: float = 0.0
    classes: tuple[ClassFinding, ...] = ()
    coverage: float | None = None
    baseline_ms: float | None = None
    alpha: float = ALPHA
    line_left_out: bool = False

    @property
    def title(self) -> str:
        return title_of(self.measure)

    @property
    def higher(self) -> bool:
        """More of it is better."""
        return higher_is_better(self.measure)


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
    """All that the rule looks at for one arm. `measures` in the order of the rule."""

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
    unsaid = [blocker for blocker in evidence.blockers if not any(blocker in reason for _, reason in hits)]
    if word == "inconclusive" and unsaid:
        hits.append((word, f"adopt would be blocked besides: {'; '.join(unsaid)}"))
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


def table(first: MeasureFinding, *others: MeasureFinding | None) -> tuple[Word, str]:
    """The table of DESIGN §5: what the zones of the measures say together, in their order.

    A gain on a measure is adopted if every measure before it and behind it is no worse, and rejected where it is bought
    with one of them. A single measure decides alone. Where no measure gains, a margin that was not shown changes
    nothing: there is no gain to adopt.
    """
    rest = [finding for finding in others if finding is not None]
    name = first.title
    if first.zone == "open":
        return "inconclusive", _why_open(first)
    if first.zone == "gain":
        return _bought(first, rest)
    if not rest:
        return "reject", f"no material gain on {name}"
    if all(finding.zone == "no gain" for finding in rest):
        return "reject", f"no material gain on {_listed([first, *rest], 'or')}"
    word, reason = table(*rest)
    gains = next((finding for finding in rest if finding.zone == "gain"), None)
    if word == "reject":
        return word, reason
    if first.no_worse != "no worse":
        if gains is not None and first.no_worse == "worse":
            return "reject", f"the gain on {gains.title} is bought with {name}"
        return "inconclusive", f"no material gain on {name}, which is not shown to be no worse"
    if word == "adopt":
        return "adopt", f"{name} is no worse, {reason}"
    if len(rest) == 1:
        reason = f"{rest[0].title} is open"
    return "inconclusive", f"no material gain on {name}, and {reason}"


def _bought(gained: MeasureFinding, rest: Sequence[MeasureFinding]) -> tuple[Word, str]:
    """What a gain costs on the measures behind it."""
    name = gained.title
    worse = [finding for finding in rest if finding.no_worse == "worse"]
    unknown = [finding for finding in rest if finding.no_worse == "not shown"]
    if worse:
        return "reject", f"the gain on {name} is bought with {_listed(worse, 'and')}"
    if unknown:
        are = "is" if len(unknown) == 1 else "are"
        return "inconclusive", f"{name} gains, but {_listed(unknown, 'and')} {are} not shown to be no worse"
    if not rest:
        return "adopt", f"{name} gains materially"
    return "adopt", f"{name} gains materially, {_listed(rest, 'and')} {'is' if len(rest) == 1 else 'are'} no worse"


def _why_open(finding: MeasureFinding) -> str:
    name, estimate = finding.title, finding.estimate
    if estimate is None:
        return f"{name} was not measured"
    if estimate.low is None:
        return f"{name} is open: one block gives no interval"
    if estimate.blocks < MIN_BLOCKS:
        return f"{name} is open: only {estimate.blocks} blocks have it, at least {MIN_BLOCKS} are needed"
    return f"{name} is open: its interval straddles the material line"


def _listed(findings: Sequence[MeasureFinding], last: str) -> str:
    *before, end = [finding.title for finding in findings]
    return f"{', '.join(before)} {last} {end}" if before else end


def _adopt_or_table(evidence: Evidence) -> tuple[Word, str]:
    word, reason = table(*evidence.measures)
    # A guard that is proven worse rejects by itself; here stands only what keeps an arm open.
    missing = [guard.metric for guard in evidence.guards if guard.role == "deciding" and guard.status == "not shown"]
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
        if evidence.mixed_action == "adopt-on-mix":
            if on_mix == "adopt":
                return f"adopt {evidence.arm}: the rule lets the mix decide"
            if table(*evidence.measures)[0] == "adopt":
                return f"{keep}: the mix would decide for {evidence.arm}, but adopt is blocked"
            return f"{keep}: the rule lets the mix decide, and on the mix alone {evidence.arm} is {_SAID[on_mix]}"
        return f"{keep}: on a mixed profile the worse case decides"
    if word == "inconclusive":
        return f"{keep} until more is known"
    return f"{keep}: nothing can be said from this run" if word == "invalid" else keep
