"""The chance of each verdict under a design, before the first boot. Pure: a `Trial` in, shares of seeded draws out.

Block differences are drawn from a normal distribution around an assumed true effect. From there on everything is the
rule's own: the block t, the zones, the margins, the guards, the looks with their share of alpha, and `verdict.decide`.
Draws that look alike to the rule are decided once. What one measure alone says is exact: see `trial`.

Assumed besides: both measures and the guards scatter independently of each other, and nothing else goes wrong (no
fallback line, no failed boot, no invalid A/A).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.plan.trial import Trial, TrialGuard, TrialMeasure
from analysis.verdict import (
    MIN_BLOCKS,
    ClassFinding,
    Evidence,
    GuardFinding,
    GuardStatus,
    MeasureFinding,
    Word,
    decide,
)

EFFECTS: Final = (0.0, 0.03, 0.05, 0.10)
DRAWS: Final = 20_000
SEED: Final = 20_261_201
WORDS: Final[tuple[Word, ...]] = ("adopt", "reject", "workload-dependent", "inconclusive")

_ZONES: Final[tuple[stats.Zone, ...]] = ("gain", "no gain", "open")
_MARGINS: Final[tuple[stats.NoWorse, ...]] = ("no worse", "worse", "not shown")
_STATUSES: Final[tuple[GuardStatus, ...]] = ("pass", "fail", "not shown")

type Floats = NDArray[np.float64]
type Codes = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Chance:
    """How often each verdict is given. `effect` is the true relative gain on `measure`; the other measure is neutral.

    `mixed`: half of the traffic gains by it, class by class, and the other half loses as much.
    """

    measure: str
    effect: float
    shares: dict[Word, float]
    mixed: bool = False

    @property
    def decided(self) -> float:
        return 1 - self.shares["inconclusive"]


def chances(trial: Trial, *, draws: int = DRAWS, seed: int = SEED) -> tuple[Chance, ...]:
    """Each effect on each measure alone, then mixed arms on the last measure. The same draws for every effect."""
    noise = _draw(trial, draws, np.random.default_rng(seed))
    known: dict[bytes, int] = {}  # what the rule sees -> its verdict
    found = []
    for measure in trial.measures:
        for effect in EFFECTS:
            if effect == 0 and measure is not trial.measures[0]:
                continue  # nothing is nothing, on whichever measure
            shares = _shares(trial, noise, _uniform(trial, measure, effect), known)
            found.append(Chance(measure.name, effect, shares))
    if len(trial.weights) > 1:
        last = trial.measures[-1]
        for effect in EFFECTS[1:]:
            shares = _shares(trial, noise, _mixed(trial, last, effect), known)
            found.append(Chance(last.name, effect, shares, mixed=True))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Looked:
    """What one look sees of every draw, without effects: mean and half width of each measure, class and guard."""

    blocks: int
    mix: tuple[tuple[Floats, Floats], ...]
    classes: tuple[dict[str, tuple[Floats, Floats]], ...]
    guards: tuple[tuple[Floats, Floats], ...]
    errors: tuple[NDArray[np.int64] | None, ...]


def _draw(trial: Trial, draws: int, random: np.random.Generator) -> list[_Looked]:
    looks = trial.looks or (trial.blocks,)
    alpha = trial.alpha
    most = looks[-1]
    intervals = max(1, len(trial.weights) * len(trial.measures))
    mixes: list[list[tuple[Floats, Floats]]] = [[] for _ in looks]
    classes: list[list[dict[str, tuple[Floats, Floats]]]] = [[] for _ in looks]
    for measure in trial.measures:
        shared = random.normal(0, measure.sd, (draws, most))
        others = _others(trial, looks, measure.sd, draws, random)
        own = {
            name: shared + random.normal(0, measure.class_sd.get(name, 0.0), (draws, most)) for name in trial.weights
        }
        for at, look in enumerate(looks):
            level = alpha * measure.share
            mixes[at].append(interval(shared[:, :look], level, *others[at]))
            classes[at].append({name: interval(drawn[:, :look], level / intervals) for name, drawn in own.items()})
    guards: list[list[tuple[Floats, Floats]]] = [[] for _ in looks]
    errors: list[list[NDArray[np.int64] | None]] = [[] for _ in looks]
    for guard in trial.guards:
        drawn = random.normal(0, guard.sd, (draws, most))
        failed = random.binomial(guard.requests, guard.error_rate, (draws, most)) if guard.requests else None
        for at, look in enumerate(looks):
            guards[at].append(interval(drawn[:, :look], alpha))
            errors[at].append(None if failed is None else failed[:, :look].sum(axis=1))
    return [
        _Looked(look, tuple(mixes[at]), tuple(classes[at]), tuple(guards[at]), tuple(errors[at]))
        for at, look in enumerate(looks)
    ]


def interval(
    differences: Floats, alpha: float, other_squares: Floats | float = 0.0, other_df: int = 0
) -> tuple[Floats, Floats]:
    """Mean and half width of the block t, of every row: `stats.paired_block_t` for draws × blocks at once.

    With `other_squares` the spread is pooled with that of other arms: sums of squares and their degrees of freedom.
    """
    blocks = differences.shape[1]
    mean: Floats = differences.mean(axis=1)
    if blocks < 2:
        return mean, np.full_like(mean, np.inf)
    df = blocks - 1 + other_df
    squares = ((differences - mean[:, None]) ** 2).sum(axis=1) + other_squares
    half: Floats = stats.critical_t(df + 1, alpha) * np.sqrt(squares / df / blocks)
    return mean, half


def _others(
    trial: Trial, looks: Sequence[int], sd: float, draws: int, random: np.random.Generator
) -> list[tuple[Floats | float, int]]:
    """Of a pooled variance what the other arms add at each look: the residual of blocks × arms has
    (arms − 1)(blocks − 1) degrees of freedom, of which an arm's own differences are blocks − 1."""
    if not trial.pooled or trial.arms < 3:
        return [(0.0, 0) for _ in looks]
    found: list[tuple[Floats | float, int]] = []
    squares: Floats = np.zeros(draws)
    before = 0
    for look in looks:
        df = (trial.arms - 2) * (look - 1)
        if df > before:
            squares = squares + sd**2 * random.chisquare(df - before, draws)
        found.append((squares, df))
        before = df
    return found


type _Effects = tuple[dict[str, float], dict[str, dict[str, float]]]


def _uniform(trial: Trial, measure: TrialMeasure, effect: float) -> _Effects:
    """The effect on one measure, in all classes."""
    shift = measure.shift(effect)
    return {measure.name: shift}, {measure.name: dict.fromkeys(trial.weights, shift)}


def _mixed(trial: Trial, measure: TrialMeasure, effect: float) -> _Effects:
    """Gains in one half of the traffic, losses in the other: the classes are dealt by weight, the largest first."""
    shift = measure.shift(effect)
    sides: dict[str, float] = {}
    balance = 0.0
    for workload, weight in sorted(trial.weights.items(), key=lambda item: -item[1]):
        sides[workload] = shift if balance <= 0 else -shift
        balance += weight if balance <= 0 else -weight
    total = sum(trial.weights.values())
    mix = sum(trial.weights[workload] * side for workload, side in sides.items()) / total
    return {measure.name: mix}, {measure.name: sides}


def _shares(trial: Trial, noise: list[_Looked], effects: _Effects, known: dict[bytes, int]) -> dict[Word, float]:
    """A draw that a look decides is not looked at again."""
    draws = len(noise[0].mix[0][0])
    verdicts = np.full(draws, WORDS.index("inconclusive"))
    for look in noise:
        if look.blocks < MIN_BLOCKS:
            continue
        words = _words(trial, look, effects, known)
        open_yet = verdicts == WORDS.index("inconclusive")
        verdicts[open_yet] = words[open_yet]
    return {word: float((verdicts == at).mean()) for at, word in enumerate(WORDS)}


def _words(trial: Trial, look: _Looked, effects: _Effects, known: dict[bytes, int]) -> NDArray[np.int64]:
    on_mix, on_classes = effects
    columns: list[Codes] = []
    for at, measure in enumerate(trial.measures):
        mean, half = look.mix[at]
        mean = mean + on_mix.get(measure.name, 0.0)
        columns.append(zones(mean, half, measure.line))
        columns.append(margins(mean, half, measure.limit))
        gains: Any = False
        losses: Any = False
        shifts = on_classes.get(measure.name, {})
        for name, (own, width) in look.classes[at].items():
            shifted = own + shifts.get(name, 0.0)
            gains = gains | (shifted + width < measure.line)
            losses = losses | (shifted - width > -measure.line)
        columns.append(np.broadcast_to(gains & losses, mean.shape).astype(np.int8))
    for at, guard in enumerate(trial.guards):
        failed = look.errors[at]
        if failed is None:
            mean, half = look.guards[at]
            columns.append(margins(mean + on_mix.get(guard.follows or "", 0.0), half, guard.limit))
        else:
            columns.append(_error_codes(failed, guard, look.blocks, trial.alpha))
    table = np.stack(columns, axis=1)
    # Rows of a few small codes: one number each, for np.unique sorts rows slowly.
    keys = table.astype(np.int64) @ (4 ** np.arange(table.shape[1], dtype=np.int64))
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    rows = [table[position] for position in first]
    for row in rows:
        key = row.tobytes()
        if key not in known:
            known[key] = WORDS.index(_decide(trial, row))
    return np.array([known[row.tobytes()] for row in rows])[which]


def zones(mean: Floats, half: Floats, line: float) -> Codes:
    """`stats.zone` of every draw, as a position in its words."""
    return np.where(mean + half < line, 0, np.where(mean - half > line, 1, 2)).astype(np.int8)


def margins(mean: Floats, half: Floats, limit: float) -> Codes:
    """`stats.against_limit` of every draw, as a position in its words; a guard's statuses stand in the same order."""
    return np.where(mean + half < limit, 0, np.where(mean - half > limit, 1, 2)).astype(np.int8)


def _error_codes(failed: NDArray[np.int64], guard: TrialGuard, blocks: int, alpha: float) -> Codes:
    requests = guard.requests * blocks
    counts, which = np.unique(failed, return_inverse=True)
    codes = []
    for count in counts.tolist():
        passed = stats.binomial_upper(count, requests, alpha) <= guard.limit
        codes.append(0 if passed else 1 if stats.binomial_lower(count, requests, alpha) > guard.limit else 2)
    return np.array(codes, dtype=np.int8)[which]


_SPLIT: Final = (ClassFinding("one", None, "gain"), ClassFinding("another", None, "loss"))
_MEASURED: Final = stats.Estimate(MIN_BLOCKS, 0.0, 1.0, 1.0)


def _decide(trial: Trial, row: Codes) -> Word:
    """The rule's own verdict on what a draw looks like."""
    measures = tuple(
        MeasureFinding(
            measure.name,
            _ZONES[row[3 * at]],
            _MARGINS[row[3 * at + 1]],
            _MEASURED,
            classes=_SPLIT if row[3 * at + 2] else (),
        )
        for at, measure in enumerate(trial.measures)
    )
    behind = 3 * len(measures)
    guards = tuple(
        GuardFinding(guard.metric, "deciding", _STATUSES[row[behind + at]], guard.limit)
        for at, guard in enumerate(trial.guards)
    )
    return decide(Evidence("arm", "baseline", measures, guards)).word
