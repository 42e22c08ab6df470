"""A profile as text for an 80-column terminal, and as the document of `profile show --json`.

Short labelled lines first, in the order in which a load is read: what was seen, how it comes, how long it is, how it
ends, who talks. Then one line per class. What is not known is said in the last line, with the reason.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from profiles.arrivals import Arrivals
from profiles.character import Character, ClassLoad, Day, Sessions
from profiles.characterise import COLUMNS, characterise
from profiles.concurrency import Concurrency
from profiles.drift import Load
from profiles.errors import UsageError
from profiles.histogram import WIDTH, bound, format_point, unbound
from profiles.lengths import Distribution, Joint, Quantile
from profiles.measurable import NO_CONCURRENCY
from profiles.origin import say_origin
from profiles.profile import Profile
from profiles.units import format_change, format_duration, format_percent

_LABEL = 11
_LISTED = 6
# The cells of the joint table that is printed; the document holds all powers of two.
_PROMPT_STEPS = (0, 128, 512, 2048, 8192, 32768, 131072)
_OUTPUT_STEPS = (0, 16, 64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """What a class asked for and got, by nearest-rank quantiles. None where nothing was measured."""

    workload: str
    requests: int
    prompt_tokens_p50: int | None
    prompt_tokens_p90: int | None
    output_tokens_p50: int | None
    output_tokens_p90: int | None
    measured_ttft: int  # requests with a first token
    ttft_p50_ns: int | None
    ttft_p90_ns: int | None


def read_load(profile: Profile) -> Load:
    """What a profile says about its load. Raises FormatError where a table cannot be read."""
    manifest = profile.manifest
    return Load(
        name=str(profile.path),
        character=characterise(
            profile.frame([*COLUMNS]),
            [(opened, close) for opened, close in manifest["windows"]],
            manifest.get("zero_wall_ns"),
        ),
        concurrency=_concurrency(profile),
        synthetic=bool(manifest.get("synthetic")),
        sha256=profile.sha256,
        origin=say_origin(manifest),
    )


def _concurrency(profile: Profile) -> Concurrency | None:
    try:
        return profile.concurrency()
    except UsageError:
        if NO_CONCURRENCY in profile.manifest["not_measurable"]:
            return None
        raise


def summarise(classes: Iterable[ClassLoad]) -> list[ClassSummary]:
    """One summary per class, in the order given."""
    return [
        ClassSummary(
            workload=each.workload,
            requests=each.requests,
            prompt_tokens_p50=_value(each.prompt_p50),
            prompt_tokens_p90=_value(each.prompt_p90),
            output_tokens_p50=_value(each.output_p50),
            output_tokens_p90=_value(each.output_p90),
            measured_ttft=each.measured_ttft,
            ttft_p50_ns=_value(each.ttft_p50_ns),
            ttft_p90_ns=_value(each.ttft_p90_ns),
        )
        for each in classes
    ]


def show_document(profile: Profile) -> dict[str, Any]:
    """The manifest, its sha256, the classes, and `character`: strict JSON."""
    character = read_load(profile).character
    classes = [asdict(each) for each in summarise(character.classes)]
    return profile.manifest | {"sha256": profile.sha256, "classes": classes, "character": asdict(character)}


def render_show(profile: Profile, *, full: bool = False) -> str:
    """The whole text, without a final newline. `full` adds the joint table, the days, the languages, the tenants."""
    load = read_load(profile)
    character = load.character
    lines = [*_facts(profile, load), *_character(character), *_prefix(profile), *_said(profile.manifest)]
    parts = ["\n".join(_labelled(label, text) for label, text in lines), "\n".join(_class_table(character))]
    if full:
        parts += ["\n".join(table) for table in _full(character) if table]
    return "\n\n".join(parts)


# Names of `Character.unknown`, for people.
_UNKNOWN = {
    "joint": "lengths of both sides",
    "limit": "a limit of the answer",
    "token_sources": "where its tokens are counted",
    "cached": "cached tokens",
}


def _facts(profile: Profile, load: Load) -> Iterator[tuple[str, str]]:
    manifest = profile.manifest
    missing = manifest["not_measurable"]
    outcomes = f" ({_counts(manifest['outcomes'])})" if manifest["outcomes"] else ""
    yield "profile", f"{profile.path}{' — SYNTHETIC: nobody asked for this load' if load.synthetic else ''}"
    yield "requests", f"{manifest['requests']}{outcomes}"
    if source := say_origin(manifest):
        yield "source", source
    windows = len(manifest["windows"])
    yield "observed", f"{format_duration(manifest['observed_ns'])} in {windows} window(s)" if windows else "no time"
    yield "dropped", _dropped(manifest["dropped"])
    yield "models", _counts({name or "(none named)": count for name, count in manifest["models"].items()}) or "–"
    yield "in flight", _in_flight(load.concurrency)
    bodies = manifest.get("bodies", 0)
    of = f", bodies of {bodies} of {manifest['requests']}" if 0 < bodies < manifest["requests"] else ""
    yield (
        "content",
        f"{manifest['content']}{of}; cannot be measured: {', '.join(missing) if missing else 'nothing of it'}",
    )


def _dropped(dropped: Mapping[str, int]) -> str:
    """A reason in words is a sentence about rows, a name of ours is counted."""
    told = [f"{n} because {why}" if " " in why else f"{why} {n}" for why, n in dropped.items() if n]
    return ", ".join(told) or "nothing"


def _prefix(profile: Profile) -> Iterator[tuple[str, str]]:
    """How much of the prompts an infinite cache would have held, by blocks; nothing where nobody looked."""
    import polars as pl

    if profile.manifest.get("prefix") is None:
        return
    blocks, shared = profile.frame(["blocks", "prefix_blocks"]).select(pl.all().sum()).collect().row(0)
    if blocks:
        yield "prefix", f"{format_percent(shared / blocks)} of the prompts' blocks stand in an earlier prompt"


def _said(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What could not be seen, and what there is to know beside the numbers."""
    if told := manifest.get("sessions_told_by"):
        yield "evidence", told
    for sentence in manifest.get("unseen", ()):
        yield "unseen", sentence
    for sentence in manifest.get("warnings", ()):
        yield "warning", sentence


def _in_flight(measured: Concurrency | None) -> str:
    if measured is None:
        return "not known: no request tells its end"
    point = measured.operating_point()
    return f"{format_point(point)}; at most {measured.max}" if point.levels else "no arrivals"


def _character(character: Character) -> Iterator[tuple[str, str]]:
    if character.arrivals is not None:
        yield from _arrivals(character.arrivals)
    if (outside := character.coverage.outside_windows) and character.arrivals is not None:
        yield "outside", f"{outside} arrivals lie in no window: in no rate, in no spacing"
    yield from _lengths(character)
    if answers := _answers(character):
        yield "answers", "; ".join(answers)
    if character.sessions is not None:
        yield from _sessions(character.sessions)
    yield from _who(character)
    silent, others = [], []
    for name, reason in character.unknown.items():
        if reason.startswith("no request") and name != "arrivals":
            silent.append(_UNKNOWN.get(name, name.replace("_", " ")))
        else:
            others.append(f"{name}: {reason}")
    if silent or others:
        yield "not known", "; ".join([*([f"no request tells {', '.join(silent)}"] if silent else []), *others])


def _lengths(character: Character) -> Iterator[tuple[str, str]]:
    for label, found in (("prompt", character.prompt_tokens), ("output", character.output_tokens)):
        if found is not None:
            yield label, f"{_distribution(found)} tokens, of {found.n} requests"
    if character.joint is not None and character.joint.spearman is not None:
        yield "together", f"prompt and output length: Spearman {_signed(character.joint.spearman)}"
    if (cached := character.cached) is not None and cached.share is not None:
        share = format_percent(cached.share)
        yield "cached", f"{share} of the prompt tokens, a hit in {cached.hits} of {cached.requests} requests"
    if (limit := character.limit) is not None:
        half = format_percent(limit.used.quantiles["p50"] / 1000, 0)
        yield (
            "max_tokens",
            f"half of the answers use {half} of it or less; {limit.at_limit} of {limit.requests} reach it",
        )


def _who(character: Character) -> Iterator[tuple[str, str]]:
    if languages := _by_language(character):
        yield "languages", _counts(languages)
    if character.tenant_count is not None:
        largest = character.tenants[0]
        yield "tenants", f"{character.tenant_count}; the largest sends {format_percent(largest.share)}"
    if character.days:
        yield "days", _day_line(character.days)


def _arrivals(found: Arrivals) -> Iterator[tuple[str, str]]:
    minute = found.per_minute
    ends = "" if minute.min is None else f", in a whole minute {minute.min} to {minute.max}"
    yield "arrivals", f"{_number(minute.mean)} per minute{ends}"
    if found.iat_cv is not None and found.granularity_ns is not None:
        five = found.five_minutes
        inside = f", {five.cv_median:.2f} in 5-minute pieces" if five.cv_median is not None else ""
        left_out = f"; {found.gaps_left_out} over a gap left out" if found.gaps_left_out else ""
        stamps = format_duration(found.granularity_ns)
        yield "spacing", f"CV {found.iat_cv:.2f}{inside}; stamps to {stamps}{left_out}"
    if (spread := found.spread) is not None and spread.iat_cv is not None:
        why = "batches of" if spread.kind == "batches" else "a clock of"
        yield (
            "evened",
            f"CV {spread.iat_cv:.2f}: arrivals come in {why} {format_duration(spread.quantum_ns)}, here spread"
            f" evenly over them (seed {spread.seed})",
        )
    told = [f"{value:.3g} at {width} s" for width, value in found.dispersion.items() if value is not None]
    if told:
        yield "dispersion", f"variance / mean of counts: {', '.join(told)} (Poisson: 1)"
    if (fits := found.fits) is not None:
        weibull = f", Weibull {fits.weibull_shape:.2g} ({fits.weibull_ks:.2f})" if fits.weibull_shape else ""
        yield (
            "burstiness",
            f"{found.burstiness or 'too few for a word'}; exponential (KS {fits.exponential_ks:.2f}), Gamma"
            f" {fits.gamma_shape:.2g} ({fits.gamma_ks:.2f}){weibull}",
        )


def _answers(character: Character) -> Iterable[str]:
    parts = []
    if character.finishes:
        parts.append(f"finish {_counts(character.finishes)}")
    if (errors := character.errors) is not None:
        zero = character.coverage.zero_token_requests
        of_zero = f" ({zero} of 0 tokens)" if zero else ""
        parts.append(f"{format_percent(errors.share)} errors{of_zero}")
    if character.streaming is not None:
        parts.append(f"{format_percent(character.streaming, 0)} streamed")
    if character.token_sources:
        parts.append(f"tokens by {_counts(character.token_sources)}")
    return parts


def _sessions(found: Sessions) -> Iterator[tuple[str, str]]:
    turns = found.turns
    yield (
        "sessions",
        f"{found.sessions}; turns p50 {_number(turns.quantiles['p50'])}, p90 {_number(turns.quantiles['p90'])}, at most"
        f" {turns.max}; branches {'–' if found.branches is None else found.branches}; {found.without_session} requests"
        " without",
    )
    kinds = (("human", found.think_human), ("tool", found.think_tool), ("other", found.think_other))
    told = [
        f"{kind} p50 {format_duration(each.quantiles['p50'])}, p90 {format_duration(each.quantiles['p90'])} ({each.n})"
        for kind, each in kinds
        if each is not None
    ]
    if told:
        yield "think time", "; ".join(told)


def _by_language(character: Character) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, language, count in character.languages:
        counts[language or "unknown"] = counts.get(language or "unknown", 0) + count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _day_line(days: tuple[Day, ...]) -> str:
    rates = [day.rate_per_s for day in days if day.rate_per_s is not None]
    low, high = (_number(60 * rate) for rate in (min(rates), max(rates)))
    odd = max(days, key=lambda day: abs(day.rate_change or 0.0))
    change = f"; furthest {_day(odd)}, {format_change(odd.rate_change, 0)}" if odd.rate_change is not None else ""
    mixes = [day.class_mix_distance for day in days if day.class_mix_distance is not None]
    mix = f"; class mix up to {max(mixes):.2f} from the rest" if mixes else ""
    return f"{len(days)}, {low} to {high} per minute{change}{mix}"


def _class_table(character: Character) -> Iterator[str]:
    def pair(low: Any, high: Any, form: Any = str) -> str:
        return "–" if low is None else f"{form(low)} / {form(high)}"

    classes = summarise(character.classes)
    total = sum(each.requests for each in classes)
    yield f"{'':19}{'':7}{'':8}{'prompt tokens':>15}{'output tokens':>15}{'TTFT':>16}".rstrip()
    yield f"{'class':19}{'n':>7}{'share':>8}{'p50 / p90':>15}{'p50 / p90':>15}{'p50 / p90':>16}"
    for each in classes:
        # A quantile near the end of a handful of values is only one of them; n stands beside it.
        ttft = pair(each.ttft_p50_ns, each.ttft_p90_ns, lambda ns: format_duration(ns).replace(" ", ""))
        yield (
            f"{each.workload:19}{each.requests:>7}{_small_share(each.requests / total):>8}"
            f"{pair(each.prompt_tokens_p50, each.prompt_tokens_p90):>15}"
            f"{pair(each.output_tokens_p50, each.output_tokens_p90):>15}{ttft:>16}"
        )
    if any(each.measured_ttft for each in classes):
        yield ""
        yield "TTFT as captured: first token − arrival at the recorder."


def _small_share(share: float) -> str:
    return "<1 %" if 0 < share < 0.005 else format_percent(share, 0)


def _full(character: Character) -> Iterator[list[str]]:
    yield [*_joint_table(character.joint)] if character.joint else []
    yield [*_days_table(character.days)] if character.days else []
    yield [*_language_table(character)] if character.languages else []
    if character.tenants:
        yield [
            f"{'tenant':>6}{'n':>10}{'share':>9}{'CV':>8}",
            *(
                f"{each.tenant:>6}{each.requests:>10}{format_percent(each.share):>9}"
                f"{'–' if each.iat_cv is None else f'{each.iat_cv:.2f}':>8}"
                for each in character.tenants
            ),
        ]


def _joint_table(joint: Joint) -> Iterator[str]:
    cells: dict[tuple[int, int], int] = {}
    for prompt, output, count in joint.cells:
        key = _step(_PROMPT_STEPS, prompt), _step(_OUTPUT_STEPS, output)
        cells[key] = cells.get(key, 0) + count
    yield "share of requests, prompt tokens (down) by output tokens (across)"
    yield f"{'from':>8}" + "".join(f"{step:>10}" for step in _OUTPUT_STEPS)
    for prompt in _PROMPT_STEPS:
        row = [cells.get((prompt, output), 0) for output in _OUTPUT_STEPS]
        yield f"{prompt:>8}" + "".join(f"{format_percent(n / joint.n) if n else '·':>10}" for n in row)


def _days_table(days: tuple[Day, ...]) -> Iterator[str]:
    """A day, and in brackets how far it is from all the others."""
    yield f"{'day':10}{'n':>9}{'observed':>13}{'per minute':>16}{'prompt p50':>16}{'output p50':>16}"
    for day in days:
        rate = None if day.rate_per_s is None else _number(60 * day.rate_per_s)
        yield (
            f"{_day(day):10}{day.requests:>9}{format_duration(day.observed_ns):>13}"
            f"{_against(rate, day.rate_change):>16}{_against(day.prompt_p50, day.prompt_p50_change):>16}"
            f"{_against(day.output_p50, day.output_p50_change):>16}"
        )
    yield "In brackets: against all other days."


def _language_table(character: Character) -> Iterator[str]:
    total = sum(count for _, _, count in character.languages)
    yield f"{'class':20}{'language':10}{'n':>9}{'share':>9}"
    for workload, language, count in character.languages:
        yield f"{workload:20}{language or '–':10}{count:>9}{format_percent(count / total):>9}"


def _step(steps: tuple[int, ...], value: int) -> int:
    return max(step for step in steps if step <= value)


def _against(value: Any, change: float | None) -> str:
    if value is None:
        return "–"
    return f"{value}" if change is None else f"{value} ({format_change(change, 0).replace(' ', '')})"


def _day(day: Day) -> str:
    return day.date or f"day {day.day}"


def _distribution(found: Distribution) -> str:
    told = ", ".join(f"{name} {_number(found.quantiles[name])}" for name in ("p50", "p90", "p99"))
    return f"{told}; mean {_number(found.mean)}, {found.min} to {found.max}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _value(quantile: Quantile | None) -> int | None:
    return None if quantile is None else quantile.value


def _labelled(label: str, text: str) -> str:
    filled = textwrap.fill(
        bound(text), WIDTH, initial_indent=f"{label:{_LABEL}}", subsequent_indent=" " * _LABEL, break_on_hyphens=False
    )
    return unbound(filled)


def _counts(counts: Mapping[str, int]) -> str:
    listed = [f"{name} {count}" for name, count in counts.items()]
    return ", ".join(listed if len(listed) <= 2 * _LISTED else [*listed[:_LISTED], f"{len(listed) - _LISTED} more"])
