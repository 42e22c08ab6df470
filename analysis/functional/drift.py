"""Length and identity of the answers to the functional probes: what another rounding may rightly change."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from analysis import stats
from analysis.functional.answers import IDENTITY, LENGTH, WORDS, Answers, Boots, FunctionalFinding, Sides, Status
from profiles.records import OK
from profiles.units import format_change, format_percent

# Two-sided 99 % intervals.
ALPHA: Final = 0.005
LEAST_BOOTS: Final = 2
DRIFT: Final = math.log(1.25)
DRIFT_OF_EACH: Final = math.log(1.10)


def judge_length(sides: Sides, probes: Sequence[str], *, declared: bool) -> FunctionalFinding:
    own, copy = (_drifts(boots, sides.base, probes) for boots in (sides.own, sides.copy))
    name = WORDS[LENGTH][0]
    counts = (*_within(own), *_within(copy))
    if not own or not any(own.values()):
        given = [answer for boot in sides.base.values() for probe in probes for answer in boot.get(probe, ())]
        offered = any(answer.outcome == OK for answer in given)
        status: Status = "not measured" if offered else "not offered"
        return FunctionalFinding(LENGTH, status, *counts, f"{name}: no pair of answers to compare")
    means = _means(own)
    shift = stats.paired_block_t(list(means.values()), ALPHA)
    assert shift is not None
    beyond = [means[block] - mean for block, mean in _means(copy).items() if block in means]
    extra = stats.paired_block_t(beyond, ALPHA)
    said = f"{format_change(math.expm1(shift.mean))} against the baseline"
    theirs = list(_means(copy).values())
    if theirs:
        said += f", the copy {format_change(math.expm1(sum(theirs) / len(theirs)))}"
    each = {probe: _mean([row[probe] for row in own.values() if probe in row]) for probe in probes}
    drifting = tuple(probe for probe, mean in each.items() if mean is not None and abs(mean) > DRIFT_OF_EACH)
    sign = math.copysign(1, shift.mean)
    alike = all(mean is None or sign * mean > DRIFT_OF_EACH for mean in each.values())
    if _beyond(shift, DRIFT) and (extra is None or _beyond(extra, 0.0)) and alike and shift.blocks >= LEAST_BOOTS:
        if declared:
            sentence = f'{name}: {said}, as the arm declares with changes = ["output"]'
            return FunctionalFinding(LENGTH, "not shown", *counts, sentence, drifting)
        return FunctionalFinding(LENGTH, "broken", *counts, f"{WORDS[LENGTH][1]}: {said}", drifting)
    if not shift.blocks >= LEAST_BOOTS or _outside(shift):
        return FunctionalFinding(LENGTH, "not shown", *counts, f"{name}: {said}", drifting)
    return FunctionalFinding(LENGTH, "kept", *counts, f"{name}: {said}", drifting)


def _drifts(boots: Boots, base: Boots, probes: Sequence[str]) -> dict[int, dict[str, float]]:
    """Block → probe → ln of its mean length over that of the baseline's answers in the same block."""
    found: dict[int, dict[str, float]] = {}
    for block in sorted(boots.keys() & base.keys()):
        row = found.setdefault(block, {})
        for probe in probes:
            ours, theirs = (_length(side[block].get(probe, ())) for side in (boots, base))
            if ours and theirs:
                row[probe] = math.log(ours / theirs)
    return found


def _length(answers: Answers) -> float | None:
    """Mean output tokens of the answers that came well; characters where no usage tells. Streamed ones only."""
    good = [answer for answer in answers if answer.outcome == OK and answer.streamed]
    tokens = [answer.output_tokens for answer in good if answer.output_tokens is not None]
    return _mean(tokens if len(tokens) == len(good) else [answer.text_chars for answer in good])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _means(drifts: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    return {block: sum(row.values()) / len(row) for block, row in drifts.items() if row}


def _within(drifts: Mapping[int, Mapping[str, float]]) -> tuple[int, int]:
    values = [value for row in drifts.values() for value in row.values()]
    return sum(abs(value) <= DRIFT for value in values), len(values)


def _beyond(estimate: stats.Estimate, line: float) -> bool:
    """The whole interval lies further from 0 than the line, on one side."""
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.low > line or estimate.high < -line


def _outside(estimate: stats.Estimate) -> bool:
    if estimate.low is None or estimate.high is None:
        return abs(estimate.mean) > DRIFT
    return estimate.low < -DRIFT or estimate.high > DRIFT


def judge_identity(sides: Sides, probes: Sequence[str]) -> FunctionalFinding:
    own, copy = (_identical(boots, sides.base, probes) for boots in (sides.own, sides.copy))
    name = WORDS[IDENTITY][0]
    (same, asked), (copy_same, copy_asked) = _counts(own), _counts(copy)
    if not asked:
        return FunctionalFinding(IDENTITY, "not measured", 0, 0, copy_same, copy_asked, f"{name}: nothing to compare")
    differ = tuple(probe for probe, (hits, count) in own.items() if hits < count)
    sentence = f"{name} {_share(same, asked)}"
    if copy_asked:
        sentence += f", the copy {_share(copy_same, copy_asked)}"
    twice, both = _counts(_in_one_boot(sides.own, probes))
    if twice < both:
        sentence += f"; twice in one boot {_share(twice, both)}"
    fewer = same * max(1, copy_asked) < asked * (copy_same if copy_asked else 1)
    status: Status = "not shown" if fewer else "kept"
    return FunctionalFinding(IDENTITY, status, same, asked, copy_same, copy_asked, sentence, differ)


def _identical(boots: Boots, base: Boots, probes: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Probe → answers that are the baseline's of the same block, pass and way, and all that both sides have."""
    found: dict[str, tuple[int, int]] = {}
    for probe in probes:
        hits = count = 0
        for block in boots.keys() & base.keys():
            theirs = {(answer.repeat, answer.streamed): answer.sha256 for answer in base[block].get(probe, ())}
            for answer in boots[block].get(probe, ()):
                other = theirs.get((answer.repeat, answer.streamed))
                if other is not None and answer.sha256 is not None:
                    count += 1
                    hits += answer.sha256 == other
        if count:
            found[probe] = (hits, count)
    return found


def _in_one_boot(boots: Boots, probes: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Probe → answers of a later pass that are those of the first one of the same boot, and all of them."""
    found: dict[str, tuple[int, int]] = {}
    for probe in probes:
        pairs = [
            (answer.sha256, first.sha256)
            for boot in boots.values()
            for answer in boot.get(probe, ())
            for first in boot.get(probe, ())
            if first.repeat == 1 < answer.repeat and first.streamed == answer.streamed
        ]
        if pairs:
            found[probe] = (sum(later == first for later, first in pairs), len(pairs))
    return found


def _counts(found: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    return sum(hits for hits, _ in found.values()), sum(count for _, count in found.values())


def _share(part: int, whole: int) -> str:
    return format_percent(part / whole, 0 if part in (0, whole) else 1)
