"""A starter for experiment.toml: every number in it comes from the profile, and its comment says which.

Pure: facts of a profile in, the text of the file out. What it writes loads and passes the checks against this profile,
where the profile can be replayed at all. What only the user knows is marked TODO.
"""

import textwrap
from collections.abc import Iterator
from typing import Final

import orjson

from profiles.concurrency import COVER, CROWD, Concurrency
from profiles.experiment_checks import MIN_REACH, QUANTILE_NEEDS, SENDABLE
from profiles.experiment_file import Design
from profiles.measurable import ACCEPTANCE, GUIDED_DECODING
from profiles.planned import ProfileFacts
from profiles.starter_engines import ENGINES, EngineText
from profiles.starter_numbers import (
    CLASS_REQUESTS,
    ERROR_CEILING,
    material_line_ms,
    observed_closed,
    observed_hours,
    plain,
    requests_per_boot,
)
from profiles.units import format_duration, format_percent

WIDTH: Final = 100


def starter(facts: ProfileFacts, *, path: str, engine: str, model: str = "") -> str:
    """The text of an experiment.toml. `path` is the profile's, from the directory of the file."""
    chosen = ENGINES[engine]
    requests, why = requests_per_boot(facts)
    parts = [
        [
            "# experiment.toml: the arms, the load, and the rule that decides. Fixed before the first boot: its sha256",
            "# goes into the run. An unknown key is an error. What firsttoken could not know is marked TODO.",
            "#   firsttoken validate FILE    firsttoken plan FILE    firsttoken doctor FILE    then: firsttoken replay",
        ],
        [
            "[rule]",
            f"id = {_quoted(_name_of(facts) + '-1')}",
            'question = "TODO: do the flags of this recipe help our traffic on our machine?"',
        ],
        list(_profile(facts, path)),
        list(_engine(facts, chosen, model)),
        list(_load(facts, chosen, requests, why)),
        list(_design(facts)),
        list(_measures(facts)),
        list(_guards(facts, requests)),
        [
            "[functional]",
            'prompts = "builtin"\t# asked in every boot, never timed: an arm that breaks a function is rejected',
        ],
        [
            "[mixed]",
            'action = "keep-baseline"\t# an arm that gains on one class and loses on another: the worse case decides',
        ],
        [
            "[[arm]]\t# the first arm is the baseline: what runs today",
            'name = "v0_baseline"',
            "baseline = true",
        ],
        list(_example_arm(facts, chosen)),
    ]
    return "\n\n".join("\n".join(map(_aligned, part)) for part in parts) + "\n"


def _profile(facts: ProfileFacts, path: str) -> Iterator[str]:
    yield "[profile]"
    yield f"path = {_quoted(path)}"
    if facts.content not in SENDABLE:
        yield from _comment(
            f"This profile holds no request bodies (content {facts.content}): nothing of it can be sent, and replay "
            "refuses it. Record with --bodies full where prompts may be stored, or make prompts of the same lengths "
            "with `firsttoken profile synthesise` and give its path here. With such prompts arms that change "
            "speculative or guided decoding are refused: acceptance depends on the text."
        )
    elif refused := [name for name in (ACCEPTANCE, GUIDED_DECODING) if name in facts.not_measurable]:
        yield from _comment(
            f"The recorded text is not in this profile, so {' and '.join(refused)} cannot be measured: arms that "
            "change speculative or guided decoding are refused. Move them to [[skipped]]."
        )
    if facts.synthetic or facts.measured is None:
        whose = "nobody produced this load" if facts.synthetic else "it holds no ends of requests"
        yield from _comment(
            f"This profile has no operating point of its own: {whose}. Declare the share of your arrivals at each c "
            "(requests in flight, itself included), and say where you know it from. The report repeats the reason."
        )
        yield "[profile.operating_point]"
        yield 'basis = "declared"'
        yield 'levels = { "1" = 0.7, "2" = 0.3 }\t# TODO: the share of your arrivals at each c'
        yield 'reason = "TODO: where these shares come from"'
        return
    told = format_duration(facts.observed_ns)
    yield f"min_observed_h = {observed_hours(facts.observed_ns):g}\t# it was observed for {told}"
    yield from _levels(facts.measured)
    yield f'operating_point = {{ basis = "arrivals", cover = {COVER} }}'


def _levels(measured: Concurrency) -> Iterator[str]:
    point = measured.operating_point(COVER)
    if not measured.requests:
        yield "# No request arrived while it was observed."
        return
    levels = f"c = {point.levels[0]}" + (f" to {point.levels[-1]}" if len(point.levels) > 1 else "")
    yield from _comment(
        f"{levels} hold{'' if len(point.levels) > 1 else 's'} {format_percent(point.reached)} of the "
        f"{measured.requests} arrivals; above c = {measured.max} never. Of the arrivals, by the c that they meet:"
    )
    shares = measured.share_arrivals
    told = [f"c = {c}: {format_percent(shares[c])}" for c in sorted(shares) if c in point.levels]
    rest = sum(share for c, share in shares.items() if c not in point.levels)
    if rest:
        told.append(f"above: {format_percent(rest)}, left out")
    tight = ", ".join(told).replace(" = ", "=").replace(" %", "\u00a0%")
    for line in textwrap.wrap(tight, WIDTH, initial_indent="#   ", subsequent_indent="#   "):
        yield line.replace("\u00a0", " ")


def _engine(facts: ProfileFacts, engine: EngineText, model: str) -> Iterator[str]:
    yield "[engine]\t# what all arms share; {host}, {port} and {model} are filled in"
    yield from engine.lines
    served = model or next(iter(sorted(facts.models, key=lambda name: -facts.models[name])), "")
    said = "the name in the profile" if served and not model else "the served name"
    if not served:
        yield '# model = "TODO"            # the served name; no request of the profile says one'
        return
    yield f"model = {_quoted(served)}\t# {said}, put into every request"
    others = [name for name in facts.models if name != served]
    if others and not model:
        yield from _comment(f"The profile asks for {len(others)} more: {', '.join(map(_quoted, others[:4]))}.")


def _load(facts: ProfileFacts, engine: EngineText, requests: int, why: list[str]) -> Iterator[str]:
    closed = observed_closed(facts, requests)
    yield "[load]"
    if closed is None:
        yield 'deciding = "observed"\t# recorded busy periods, with their sessions and think time'
    else:
        yield from _comment(f'"observed" is closed: {closed}.')
        yield 'deciding = "closed"\t# the recorded mix at each c of the operating point'
    total = facts.to_send
    yield from _comment(f"Of the profile {total} of {facts.requests} requests can be sent. How many a boot needs:")
    yield from (f"#   {need}" for need in why)
    yield f"requests_per_boot = {requests}"
    dealt = {plain(name): requests * count / total for name, count in facts.sendable.items()}
    if dealt:
        told = ", ".join(f"{name} {count:.0f}" for name, count in dealt.items())
        yield from _comment(f"That is, of each class: {told}.")
    if thin := [name for name, count in dealt.items() if count < CLASS_REQUESTS]:
        yield from _comment(f"Too rare to be told apart, with less than {CLASS_REQUESTS} in a boot: {', '.join(thin)}.")
    yield from _comment(
        "Beside what decides: each class alone, the crossover from 1 to 8, and last the synthetic crowd. They describe "
        "and never decide. Leave one out to shorten each boot."
    )
    yield 'also = ["single", "sweep c=1..8", "closed c=8 for 60s"]'
    if engine.running_usage:
        yield "running_usage = true\t# token counts in every event: how many tokens the first one held"
    else:
        yield "running_usage = false\t# this engine does not count tokens in every event"


def _design(facts: ProfileFacts) -> Iterator[str]:
    yield "[design]"
    yield f"blocks = {Design().blocks}\t# cold boots of every arm, and of a second copy of the baseline"
    yield f"seed = {int(facts.sha256[:6], 16)}\t# of the order of boots and the choice of requests"
    yield 'ladder = "cumulative"\t# each arm adds to the one above it; "flat": each to the baseline'


def _measures(facts: ProfileFacts) -> Iterator[str]:
    yield "[[measure]]\t# the first token decides first"
    yield 'name = "ttft"'
    material_ms, reason = material_line_ms(facts.ttft_p50_ns)
    yield from _comment(reason)
    yield f"material = {{ relative = 0.02, absolute_ms = {material_ms:g} }}\t# the least gain worth a change: both"
    yield "margin = 0.05\t# slower by more than this is worse"
    yield ""
    yield "[[measure]]"
    yield 'name = "tpot"'
    yield "material = { relative = 0.03 }"
    yield "margin = 0.05"
    yield "min_tokens = 16\t# of answers with at least so many tokens after the first event"


def _guards(facts: ProfileFacts, requests: int) -> Iterator[str]:
    blocks = Design().blocks
    yield "[[guard]]\t# what an arm must be shown not to break"
    yield 'metric = "ttft_p90"'
    yield f"margin = 0.10\t# needs {QUANTILE_NEEDS['p90']} requests per boot"
    yield ""
    yield "[[guard]]"
    yield 'metric = "error_rate"'
    yield f"max = {ERROR_CEILING:g}\t# exact 95 % bound, over {blocks} × {requests} requests of an arm"
    yield ""
    yield "[[guard]]"
    yield 'metric = "throughput@c=8"'
    yield 'direction = "higher"'
    yield "margin = 0.05"
    reach = facts.measured.reach(CROWD) if facts.measured is not None and not facts.synthetic else None
    if reach is not None and reach >= MIN_REACH:
        why = f'{format_percent(reach)} of the arrivals reach c = 8: "deciding" is allowed'
    elif reach is not None:
        why = f"{format_percent(reach)} of the arrivals reach c = 8, so it may not decide"
    else:
        why = "nobody has seen this load reach c = 8"
    yield f'role = "advisory"\t# {why}'


def _example_arm(facts: ProfileFacts, engine: EngineText) -> Iterator[str]:
    yield "# [[arm]]\t# adds to the arm above it. Replay needs one at least"
    yield f'# name = "{engine.arm}"'
    yield f"# args = {engine.arm_args}"
    yield '# changes = []\t# "prefix_cache", "output", "kv_cache": what it is meant to change'
    yield ""
    yield "# [[skipped]]\t# an arm that is left out, with its reason: the report lists it"
    refused = ACCEPTANCE in facts.not_measurable
    yield f'# arm = "{"speculative_decoding" if refused else "fastsafetensors"}"'
    yield (
        '# reason = "the profile does not hold the recorded text, and acceptance depends on it"'
        if refused
        else '# reason = "runs out of memory while loading on this platform"'
    )


def _aligned(line: str) -> str:
    """A tab parts an entry from its comment; no quoted string holds one."""
    entry, tab, note = line.partition("\t")
    return f"{entry:<27} {note}" if tab else line


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _quoted(text: str) -> str:
    """A TOML basic string."""
    return orjson.dumps(text).decode().replace("\x7f", "\\u007f")


def _name_of(facts: ProfileFacts) -> str:
    return facts.name.rstrip("/").rpartition("/")[2] or "experiment"
