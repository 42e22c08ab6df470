"""A plan as text for an 80-column terminal, and as the document of `plan --json`."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from analysis import stats
from analysis.lines import fold, labelled, wrap
from analysis.measures import TITLES, higher_is_better, title_of
from analysis.plan.chances import DRAWS, SEED, WORDS, Chance
from analysis.plan.design import ASSUMED_BOOT_NS, Plan
from analysis.plan.noise import ASSUMED, MEASURED, STATED, Noise
from analysis.plan.warnings import Hours, MeasurePlan
from analysis.settle import ASSUMED_BOOT_SD
from profiles.files import tool_version
from profiles.units import HOUR_NS, format_duration, format_percent

FORMAT: Final = "firsttoken/plan"
VERSION: Final = 1
_COLUMN: Final = 40


def format_plan(plan: Plan) -> str:
    """The whole text, without a final newline."""
    parts = [list(_head(plan)), list(_chances(plan)), list(_alone(plan))]
    if plan.guards:
        parts.append(list(_guards(plan)))
    parts.append(list(_assumes(plan)))
    if plan.warnings:
        parts.append([line for warning in plan.warnings for line in fold(f"! {warning}", "", "  ")])
    return "\n\n".join("\n".join(part) for part in parts)


def _head(plan: Plan) -> Iterator[str]:
    file, boots = plan.experiment.file, plan.boots
    yield from labelled("rule", f"{file.rule.id}, sha256 {plan.experiment.bytes_sha256[:12]}")
    deciding = [window for window in plan.windows if window.deciding]
    played = ", ".join(f"{window.name} {window.requests}" for window in deciding)
    yield from labelled("decides", f"{played} requests of each boot, the same in every boot")
    if plan.why_kind:
        yield from labelled("", f"{plan.why_kind}.")
    classes = ", ".join(f"{name} {count:.0f}" for name, count in plan.classes.items())
    if classes:
        yield from labelled("classes", classes)
    beside = list(_beside(plan))
    yield from labelled("beside", f"{'; '.join(beside) or 'nothing'}. They describe and never decide.")
    if plan.probes:
        yield from labelled("probes", f"{plan.probes} of the functional guard behind them, never timed")
    pilots = f", and {boots.pilots} pilot{'s' if boots.pilots > 1 else ''}" if boots.pilots else ""
    arms = f"{boots.arms - 1} arm{'s' if boots.arms > 2 else ''}"
    yield from labelled(
        "boots", f"{boots.total}: {arms} and the second copy of the baseline, in {boots.blocks} blocks{pilots}"
    )
    yield from labelled("time", _time(plan.hours, boots.total))
    yield from labelled("noise", _noise(plan.noise))
    looks = plan.trial.looks
    if len(looks) > 1:
        listed = ", ".join(map(str, looks))
        yield from labelled(
            "looks",
            f"after {listed} blocks, each at {format_percent(plan.trial.alpha, 2)} of one side. A decided arm is not "
            "booted again, so that it may take less.",
        )


def _beside(plan: Plan) -> Iterator[str]:
    rest = [window for window in plan.windows if not window.deciding]
    single = [window for window in rest if window.kind == "single"]
    if single:
        yield f"each of {len(single)} classes alone, {sum(window.requests for window in single)} requests"
    sweep = [window for window in rest if window.kind == "sweep"]
    if sweep:
        levels = [window.c for window in sweep]
        yield f"sweep c={min(levels)}..{max(levels)}, {sweep[0].requests} requests each"
    for window in rest:
        if window.kind == "closed":
            yield f"c={window.c} for {format_duration(window.limit_ns or 0)}"


def _time(hours: Hours, boots: int) -> str:
    whole = hours.of(boots)
    if whole is None or hours.per_boot is None:
        return "not known: the profile does not say how long requests take. Give --boot-time, or --run."
    each = format_duration(hours.per_boot * HOUR_NS)
    said = {
        "stated": f"{each} a boot, as you say",
        "run": f"{each} a boot, the mean of the earlier run",
        "estimated": f"{each} a boot. An estimate: requests at their recorded speed, and "
        f"{format_duration(ASSUMED_BOOT_NS)} assumed for boot, warm-up, probes and stop; --boot-time says better",
    }[hours.source]
    return f"{format_duration(whole * HOUR_NS)} of this machine, {said}"


def _noise(noise: Noise) -> str:
    if noise.source == MEASURED:
        seen = ", ".join(
            f"{title_of(name)} {format_percent(sd, 2)}"
            for name, sd in noise.observed.items()
            if name in noise.by_measure
        )
        used = ", ".join(f"{title_of(name)} {format_percent(sd, 2)}" for name, sd in noise.by_measure.items())
        return (
            f"measured: between two copies of the baseline {seen} (sd over {noise.blocks} blocks). Planned with the "
            f"upper 80 % limit of that: {used}."
        )
    if noise.source == STATED:
        return f"{format_percent(noise.sd, 2)} between two copies of the baseline, as you say"
    return (
        f"{format_percent(noise.sd, 2)} between two copies of the baseline: an ASSUMPTION (boots that scatter by "
        f"{format_percent(ASSUMED_BOOT_SD)}), not a measurement of this bench. --run takes that of an earlier run."
    )


def _chances(plan: Plan) -> Iterator[str]:
    names = [title_of(measure.name) for measure in plan.measures]
    yield f"{'Chance of each verdict, if in truth':{_COLUMN}}  adopt  reject   workload-     incon-"
    yield f"{'':{_COLUMN}}                  dependent    clusive"
    shown: bool | str = ""
    for chance in plan.chances:
        group = f"{chance.measure}{chance.mixed}"
        if shown and group != shown:
            yield ""
        shown = group
        adopt, reject, mixed, open_ = (_share(chance.shares[word]) for word in WORDS)
        yield f"{_truth(chance, names):{_COLUMN}}{adopt:>7}{reject:>8}{mixed:>12}{open_:>11}"


def _truth(chance: Chance, names: list[str]) -> str:
    name = title_of(chance.measure)
    if chance.mixed:
        return f"{name} ∓{100 * chance.effect:.0f} %: half gains, half loses"
    if chance.effect == 0:
        return f"{' and '.join(names)} unchanged"
    others = [other for other in names if other != name]
    sign = "+" if higher_is_better(chance.measure) else "−"
    return f"{name} {sign}{100 * chance.effect:.0f} %" + (f", {others[0]} unchanged" if others else "")


def _share(share: float) -> str:
    if 0 < share < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 < share < 1 else format_percent(share, 0)


def _alone(plan: Plan) -> Iterator[str]:
    yield f"{'Each measure by itself':24}{'line':>8}{'gain':>9}{'loss':>9}{'no effect':>12}  5 % gain"
    yield f"{'':24}{'':8}{'shown in 80 % of runs':>21}{'rejected':>9}  takes"
    for measure in plan.measures:
        yield _alone_line(measure)


def _alone_line(measure: MeasurePlan) -> str:
    better, worse = ("+", "−") if measure.higher else ("−", "+")
    size = math.expm1(-measure.line) if measure.higher else -math.expm1(measure.line)
    line = _signed(better, size) if math.isfinite(measure.line) else "none"
    gain = _signed(better, measure.smallest_gain) if measure.smallest_gain is not None else "never"
    loss = _signed(worse, measure.smallest_loss) if measure.smallest_loss is not None else "never"
    wanted = f"{measure.blocks_for_wanted} blocks" if measure.blocks_for_wanted is not None else "no design"
    name = f"{TITLES.get(measure.name, measure.name)}, sd {format_percent(measure.sd, 2)}"
    return f"{name:24}{line:>8}{gain:>9}{loss:>9}{_share(measure.null_rejected):>12}  {wanted}"


def _signed(sign: str, size: float) -> str:
    """`−2.0 %`; nothing has no sign."""
    shown = format_percent(abs(size))
    return shown if shown == format_percent(0.0) else f"{sign}{shown}"


def _guards(plan: Plan) -> Iterator[str]:
    yield "Guards: the chance that an arm which changes nothing passes"
    for guard in plan.guards:
        share = "–" if guard.chance is None else _share(guard.chance)
        note = "" if guard.role == "deciding" else "advisory, "
        if guard.requests is not None:
            allowed = "no" if guard.allowed is None else guard.allowed
            note += f"{allowed} of its {guard.requests} requests may fail"
        else:
            note += f"sd {format_percent(guard.sd or 0.0)}" + (
                "" if plan.noise.by_guard.get(guard.metric) else ", assumed"
            )
        yield f"  {guard.metric:20}{share:>6}   {note}"


def _assumes(plan: Plan) -> Iterator[str]:
    split = "from the same run" if plan.noise.source == MEASURED else "assumed: 0.6 % per boot, 8 % per request"
    looks = " over all looks" if len(plan.trial.looks) > 1 else ""
    yield from wrap(
        f"The chances{looks} are simulated: {DRAWS} draws of block differences (seed {SEED}), judged by the rule "
        "itself. What a measure shows by itself is exact (noncentral t"
        + (", at the share of alpha of the last look). " if looks else "). ")
        + "An arm is held against the mean of both boots of the baseline. Measures and guards scatter independently; "
        f"classes scatter around the mix ({split}). Nothing else goes wrong: no dead boot, no new fallback line."
    )


def plan_document(plan: Plan) -> dict[str, Any]:
    """The same as one strict JSON document."""
    experiment, boots, noise = plan.experiment, plan.boots, plan.noise
    return {
        "format": FORMAT,
        "version": VERSION,
        "tool": tool_version(),
        "rule": {
            "id": experiment.file.rule.id,
            "bytes_sha256": experiment.bytes_sha256,
            "semantic_sha256": experiment.semantic_sha256,
        },
        "profile": {"path": plan.facts.name, "sha256": plan.facts.sha256, "to_send": plan.facts.to_send},
        "mode": plan.kind,
        "mode_reason": plan.why_kind,
        "functional_probes": plan.probes,
        "windows": [asdict(window) for window in plan.windows],
        "requests_per_boot": plan.deciding_requests,
        "classes": plan.classes,
        "boots": {"arms": boots.arms, "blocks": boots.blocks, "pilots": boots.pilots, "total": boots.total},
        "hours": {
            "source": plan.hours.source,
            "per_boot": plan.hours.per_boot,
            "total": plan.hours.of(boots.total),
        },
        "noise": {
            "source": noise.source,
            "assumed": noise.source == ASSUMED,
            "sd": noise.sd,
            "by_measure": dict(noise.by_measure),
            "observed": dict(noise.observed),
            "blocks": noise.blocks or None,
        },
        "alpha": plan.trial.alpha,
        "looks": list(plan.trial.looks),
        "draws": DRAWS,
        "seed": SEED,
        "power": stats.POWER,
        "chances": [
            {"measure": chance.measure, "effect": chance.effect, "mixed": chance.mixed, "verdicts": chance.shares}
            for chance in plan.chances
        ],
        "measures": [
            asdict(measure) | {"line": measure.line if math.isfinite(measure.line) else None}
            for measure in plan.measures
        ],
        "guards": [asdict(guard) for guard in plan.guards],
        "warnings": list(plan.warnings),
    }
