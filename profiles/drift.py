"""Whether a load differs enough from the one that a decision was made on. Pure: two characters in, a verdict out.

One rule for every quantity. `limit` is the difference that matters, `noise` the one that chance alone makes:

    changed       the difference is above the limit, and above what chance makes in 1 % of all such comparisons
    same          it is not, and a difference of the limit's size would have stood out (95 %)
    cannot tell   anything else; the requests it takes grow with the square of noise / limit

Limits, and why:

    operating point    its highest level moves and 2 points of the arrivals with it: an experiment measures at these
                       levels. Or the total variation of the arrivals over c is above 0.1, the line at which a bench
                       no longer counts as the same load. Both need 200 arrivals on each side.
    models             one of 5 % of the requests came or went: its prefill and decode are another's
    class mix          total variation above 0.1, or a class of 5 % came or went: verdicts weigh classes by request
    lengths            the median or p90 of prompt or output tokens moves by 25 %, of all requests and of each class
                       of 5 %: prefill time and decode time follow them about in proportion
    cached share       10 points of the prompt tokens: that much prefill comes or goes
    rate               25 % where the concurrency of a side is unknown. Else a factor of 2: what a rate does to a
                       request, the operating point shows; beyond that prefix caches and idle clocks age differently

Errors: quantiles by order statistics, a session counted once; the total variation by drawing both sides from their
sum, with a seed; two shares by the binomial; rates by counts whose variance is D(60 s) times Poisson's. Arrivals over
c are taken as independent; bursts make their noise larger than said here, which only makes "changed" too ready.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from profiles.character import UNKNOWN, Character, ClassLoad
from profiles.concurrency import COVER, Concurrency
from profiles.histogram import format_levels
from profiles.lengths import Quantile
from profiles.units import HOUR_NS, format_change, format_duration, format_percent

REOPEN, KEEP, CANNOT_TELL = "reopen", "keep", "cannot tell"
CHANGED, SAME, OPEN, NOT_KNOWN = "changed", "same", "cannot tell", "not known"

MIN_ARRIVALS = 200
LEVEL_SHARE = 0.02
MIX_DISTANCE = 0.1
SHARE_OF_NOTE = 0.05
LENGTH_CHANGE = 0.25
CACHED_POINTS = 0.10
RATE_CHANGE = 0.25
RATE_FACTOR = 2.0
# An open length of a class keeps a verdict open where the class holds this much; the p90 of a class never does, since
# it asks for thousands of requests, and that of all requests is asked as well.
DECIDING_SHARE = 0.2
ALPHA = 0.01
SEED = 0
_DRAWS = 2000
_SHORT_NS = 24 * HOUR_NS


@dataclass(frozen=True, slots=True)
class Load:
    """One side of a comparison."""

    name: str
    character: Character
    concurrency: Concurrency | None  # None where no request tells its end
    synthetic: bool = False
    sha256: str = ""  # of the profile
    origin: str = ""  # where the requests come from, if they were not recorded as they are


@dataclass(frozen=True, slots=True)
class Finding:
    """One quantity of both sides, as text for people and as numbers for the rule."""

    quantity: str
    a: str
    b: str
    change: str
    difference: float | None  # what is held against `limit`: a distance, |log ratio|, or points
    limit: float
    noise: float | None  # at 95 %
    found: str  # changed, same, cannot tell, not known
    decides: bool  # whether "cannot tell" here keeps the verdict open
    needs: int | None  # requests per side that would settle it
    why: str  # it cannot be told; empty where it can


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict with its reasons, the most important first, and what would settle an open one."""

    verdict: str
    reasons: tuple[str, ...]
    settle: tuple[str, ...]
    cautions: tuple[str, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Question:
    """A finding before the number of comparisons is known, and with it what chance makes of them."""

    quantity: str
    a: str
    b: str
    change: str
    difference: float | None
    limit: float
    mean: float = 0.0  # of the difference, if nothing changed
    error: float | None = None  # its standard error
    requests: int = 0  # of the smaller side
    decides: bool = True
    one_sided: bool = False
    too_few: bool = False
    needs: int | None = None  # requests per side, where they are known exactly


def compare(a: Load, b: Load, seed: int = SEED) -> Comparison:
    """Hold `b`, what the load is now, against `a`, what was decided on."""
    if a.sha256 and a.sha256 == b.sha256:
        return Comparison(KEEP, ("A and B are the same profile",), (), (), ())
    questions = [*_questions(a, b, seed)]
    asked = sum(question.error is not None for question in questions)
    findings = tuple(_answer(question, asked) for question in questions)
    changed = [finding for finding in findings if finding.found == CHANGED]
    still_open = [finding for finding in findings if finding.found == OPEN and finding.decides]
    if changed:
        verdict, reasons = REOPEN, [_sentence(finding) for finding in changed]
    elif still_open or not any(finding.found == SAME for finding in findings):
        verdict = CANNOT_TELL
        reasons = [f"{each.quantity}: {each.why}" for each in still_open] or ["nothing is known of both sides"]
    else:
        verdict = KEEP
        reasons = [f"{sum(each.found == SAME for each in findings)} quantities held against their limits, none beyond"]
    return Comparison(
        verdict=verdict,
        reasons=tuple(reasons),
        settle=tuple(_settling(still_open)) if verdict == CANNOT_TELL else (),
        cautions=tuple(_cautions(a, b, findings)),
        findings=findings,
    )


def _questions(a: Load, b: Load, seed: int) -> Iterator[_Question]:
    yield from _came_or_went("model", *(_named(side.character.models) for side in (a, b)))
    yield from _operating_point(a.concurrency, b.concurrency, seed)
    mixes = [{each.workload: each.requests for each in side.character.classes} for side in (a, b)]
    yield from _came_or_went("class", *mixes)
    yield _mix("class mix", *mixes, seed=seed)
    yield from _all_lengths(a.character, b.character)
    yield _cached(a.character, b.character)
    yield _rate(a, b)


def _named(models: Mapping[str, int]) -> dict[str, int]:
    """A request that names no model is no model that came or went."""
    return {name: count for name, count in models.items() if name != UNKNOWN}


def _came_or_went(kind: str, a: Mapping[str, int], b: Mapping[str, int]) -> Iterator[_Question]:
    """One question per name of 5 % on one side and absent on the other; otherwise none."""
    n_a, n_b = sum(a.values()), sum(b.values())
    if not n_a or not n_b:
        return
    shares = {name: (a.get(name, 0) / n_a, b.get(name, 0) / n_b) for name in a.keys() | b.keys()}
    gone = {name: pair for name, pair in shares.items() if min(pair) == 0 and max(pair) >= SHARE_OF_NOTE}
    for name, (in_a, in_b) in sorted(gone.items(), key=lambda item: (-max(item[1]), item[0])):
        empty_side = n_b if in_b == 0 else n_a
        share = max(in_a, in_b)
        # Of n requests none shows with probability (1 − share)ⁿ; beyond that, chance is no explanation.
        needs = math.ceil(math.log(ALPHA / (len(a) + len(b))) / math.log1p(-share)) if share < 1 else 1
        seen = empty_side >= needs
        yield _Question(
            f"{kind} {name}", format_percent(in_a), format_percent(in_b), "new" if in_a == 0 else "gone",
            share, SHARE_OF_NOTE, error=0.0 if seen else share, requests=min(n_a, n_b), needs=needs,
        )  # fmt: skip


def _operating_point(a: Concurrency | None, b: Concurrency | None, seed: int) -> Iterator[_Question]:
    if a is None or b is None or not a.requests or not b.requests:
        yield _Question("c of the arrivals", _levels(a), _levels(b), "–", None, MIX_DISTANCE)
        return
    too_few = min(a.requests, b.requests) < MIN_ARRIVALS
    tops = [side.operating_point(COVER).levels[-1] for side in (a, b)]
    above = min(tops) + 1
    reach = [side.reach(above) or 0.0 for side in (a, b)]
    pooled = (reach[0] * a.requests + reach[1] * b.requests) / (a.requests + b.requests)
    error = math.sqrt(pooled * (1 - pooled) * (1 / a.requests + 1 / b.requests))
    moved = abs(reach[1] - reach[0]) if tops[0] != tops[1] else 0.0
    yield _Question(
        f"c of {format_percent(COVER, 0)} of arrivals", _levels(a), _levels(b),
        _points(reach[1] - reach[0]) if tops[0] != tops[1] else "–",
        moved, LEVEL_SHARE, error=error if moved else 0.0, requests=min(a.requests, b.requests), too_few=too_few,
    )  # fmt: skip
    yield _mix("arrivals over c", a.arrivals_at, b.arrivals_at, seed=seed, too_few=too_few)


def _mix[Key](
    quantity: str, a: Mapping[Key, int], b: Mapping[Key, int], *, seed: int, too_few: bool = False
) -> _Question:
    """Total variation distance, and what it would be between two samples of one mix."""
    keys = [*dict.fromkeys([*a, *b])]
    counts = np.array([[side.get(key, 0) for key in keys] for side in (a, b)], np.int64).reshape(2, len(keys))
    sizes = counts.sum(axis=1)
    if not sizes.all():
        return _Question(quantity, "–", "–", "–", None, MIX_DISTANCE)
    pooled = counts.sum(axis=0) / counts.sum()
    rng = np.random.default_rng(seed)
    draws = [rng.multinomial(size, pooled, _DRAWS) / size for size in sizes]
    by_chance = np.abs(draws[0] - draws[1]).sum(axis=1) / 2
    found = float(np.abs(counts[0] / sizes[0] - counts[1] / sizes[1]).sum() / 2)
    return _Question(
        quantity, f"n = {sizes[0]}", f"n = {sizes[1]}", f"TV {found:.3f}", found, MIX_DISTANCE,
        mean=float(by_chance.mean()), error=float(by_chance.std()), requests=int(sizes.min()), one_sided=True,
        too_few=too_few,
    )  # fmt: skip


def _all_lengths(a: Character, b: Character) -> Iterator[_Question]:
    yield from _lengths("all", a.overall, b.overall, 1.0)
    classes = {each.workload: each for each in b.classes}
    n_a, n_b = (max(1, side.overall.requests) for side in (a, b))
    for each in a.classes:
        other = classes.get(each.workload)
        share = max(each.requests / n_a, other.requests / n_b) if other else 0.0
        if other and share >= SHARE_OF_NOTE and len(a.classes) + len(b.classes) > 2:
            yield from _lengths(each.workload, each, other, share)


def _lengths(name: str, a: ClassLoad, b: ClassLoad, share: float) -> Iterator[_Question]:
    sides = (
        ("prompt p50", a.prompt_p50, b.prompt_p50, share >= DECIDING_SHARE),
        ("prompt p90", a.prompt_p90, b.prompt_p90, share == 1.0),
        ("output p50", a.output_p50, b.output_p50, share >= DECIDING_SHARE),
        ("output p90", a.output_p90, b.output_p90, share == 1.0),
    )
    limit = math.log1p(LENGTH_CHANGE)
    for measure, was, now, decides in sides:
        quantity = f"{name} {measure}"
        if was is None or now is None:
            yield _Question(quantity, _value(was), _value(now), "–", None, limit, decides=decides)
            continue
        smaller = min(a.requests, b.requests)
        if was.value <= 0 or now.value <= 0:  # half a token, so that 0 has a logarithm
            ratio = math.log(max(0.5, now.value) / max(0.5, was.value))
        else:
            ratio = math.log(now.value / was.value)
        known = was.log_error is not None and now.log_error is not None
        yield _Question(
            quantity, _value(was), _value(now), format_change(math.expm1(ratio), 0), abs(ratio), limit,
            error=math.hypot(was.log_error or 0.0, now.log_error or 0.0) if known else math.inf, requests=smaller,
            decides=decides,
        )  # fmt: skip


def _cached(a: Character, b: Character) -> _Question:
    was, now = a.cached, b.cached
    told = [format_percent(side.share) if side and side.share is not None else "–" for side in (was, now)]
    if was is None or now is None or was.share is None or now.share is None:
        return _Question("cached prompt tokens", told[0], told[1], "–", None, CACHED_POINTS)
    known = was.error is not None and now.error is not None
    return _Question(
        "cached prompt tokens", told[0], told[1], _points(now.share - was.share), abs(now.share - was.share),
        CACHED_POINTS,
        error=math.hypot(was.error or 0.0, now.error or 0.0) if known else math.inf,
        requests=min(was.requests, now.requests),
    )  # fmt: skip


def _rate(a: Load, b: Load) -> _Question:
    both_seen = bool(a.concurrency and b.concurrency and a.concurrency.requests and b.concurrency.requests)
    limit = math.log(RATE_FACTOR) if both_seen else math.log1p(RATE_CHANGE)
    sides = [side.character.arrivals for side in (a, b)]
    told = [f"{side.per_minute.mean:.3g}/min" if side else "–" for side in sides]
    was, now = sides
    if was is None or now is None:
        return _Question("rate", told[0], told[1], "–", None, limit, decides=not both_seen)
    ratio = math.log(now.per_minute.mean / was.per_minute.mean)
    spreads = [max(1.0, side.dispersion["60"] or 1.0) / side.count for side in (was, now)]
    return _Question(
        "rate", told[0], told[1], format_change(math.expm1(ratio), 0), abs(ratio), limit, error=math.sqrt(sum(spreads)),
        requests=min(was.count, now.count), decides=not both_seen,
    )  # fmt: skip


def _answer(question: _Question, asked: int) -> Finding:
    difference, limit, error = question.difference, question.limit, question.error
    noise, needs, found, why = None, None, NOT_KNOWN, ""
    if difference is not None and error is not None:
        from scipy.stats import norm

        tails = 1 if question.one_sided else 2
        noise = question.mean + float(norm.isf(0.05 / tails)) * error
        beyond = question.mean + float(norm.isf(ALPHA / tails / max(1, asked))) * error
        if question.too_few:
            found, needs, why = OPEN, MIN_ARRIVALS, f"a side has fewer than {MIN_ARRIVALS} arrivals"
        elif difference > max(limit, beyond):
            found = CHANGED
        elif difference > limit:
            found, why = OPEN, f"{question.change}, which chance could make"
            needs = question.needs or _needed(question.requests, beyond / difference)
        elif noise > limit:
            found, why = OPEN, "a change that matters could hide in the noise"
            needs = question.needs or _needed(question.requests, noise / limit)
        else:
            found = SAME
        noise = noise if math.isfinite(noise) else None
    return Finding(
        question.quantity, question.a, question.b, question.change, difference, limit, noise, found,
        question.decides, needs, why,
    )  # fmt: skip


def _needed(requests: int, factor: float) -> int | None:
    """Chance falls with the root of the requests. In two digits, since it is a guess."""
    if not math.isfinite(factor) or not requests:
        return None
    needed = requests * factor * factor
    step = int(10 ** max(0, math.floor(math.log10(max(1.0, needed))) - 1))
    return math.ceil(needed / step) * step


def _sentence(finding: Finding) -> str:
    return f"{finding.quantity}: {finding.a} → {finding.b} ({finding.change})"


def _settling(still_open: list[Finding]) -> Iterator[str]:
    needs = [finding.needs for finding in still_open if finding.needs]
    if needs:
        yield f"about {max(needs)} requests on each side"
    elif still_open:
        yield "record more: so few requests do not even tell how many it takes"
    else:
        yield "record what both sides can be held by: token counts, ends of requests, classes"


def _cautions(a: Load, b: Load, findings: tuple[Finding, ...]) -> Iterator[str]:
    for side in (a, b):
        observed_ns = side.character.coverage.observed_ns
        if observed_ns < _SHORT_NS:
            yield f"{side.name} covers {format_duration(observed_ns)}: a difference may be the hour, not the load"
        if side.synthetic:
            yield f"{side.name} is synthetic: nobody asked for this load"
    unknown = [finding.quantity for finding in findings if finding.found == NOT_KNOWN]
    if unknown:
        yield f"not compared, as a side does not tell: {', '.join(unknown)}"


def _levels(side: Concurrency | None) -> str:
    levels = side.operating_point(COVER).levels if side else ()
    return f"c = {format_levels(levels)}" if levels else "–"


def _points(change: float) -> str:
    return f"{100 * change:+.1f} pt".replace("-", "−")


def _value(quantile: Quantile | None) -> str:
    return "–" if quantile is None else str(quantile.value)
