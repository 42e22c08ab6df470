"""`firsttoken profile synthesise`: a profile with rebuilt prompts beside one without text."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from profiles.profile import Profile
    from profiles.ratios import SlopeCheck
    from profiles.synthesise import Prompts, RoundTrip

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("path", metavar="PROFILE", type=_PATH)
@click.option("-o", "--out", required=True, type=_PATH, help="Directory to make; it must not exist.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Of the words.")
@click.option(
    "--calibrate",
    metavar="RUN",
    type=_PATH,
    help="A run that replayed rebuilt prompts: what its engine counted gives the tokens of the chat template.",
)
@click.option("--template-tokens", type=click.IntRange(min=0), help="The same, known.  [default: 0]")
@click.option("--tokens-per-word", type=click.FloatRange(0.2, 5), help="Of the engine's tokenizer.  [default: 1]")
@click.option("--force", is_flag=True, help="Replace OUT if it is a profile and holds nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print one strict JSON document.")
def synthesise(
    path: Path,
    out: Path,
    seed: int,
    calibrate: Path | None,
    template_tokens: int | None,
    tokens_per_word: float | None,
    force: bool,
    as_json: bool,
) -> None:
    """Rebuild prompts for a profile that holds none: as many words as they had tokens, sharing the same prefixes.

    Needs no tokenizer and no network. The load is real and its text is not: what depends on the text (acceptance of
    drafts, guided decoding, the natural length of answers) cannot be measured with it, and a replay refuses an arm that
    asks for it. Replay it with output_length = "forced".

    Prints the path of the new profile.

    \b
    Example:
      firsttoken profile synthesise monday.profile -o monday-words.profile

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from dataclasses import asdict

    from profiles.errors import FormatError, UsageError
    from profiles.files import encode_pretty
    from profiles.profile import REQUESTS, read_profile
    from profiles.profile_folder import check_free
    from profiles.shapes import bodies
    from profiles.synthesise import COLUMNS, Calibration, Prompts, measure

    if calibrate and (template_tokens is not None or tokens_per_word is not None):
        raise UsageError("--calibrate finds what --template-tokens and --tokens-per-word state", "Give one of the two.")
    check_free(out, force=force)
    source = read_profile(path)
    source.verify()
    check = _check(calibrate) if calibrate else None
    if check is not None:
        template_tokens, tokens_per_word = check.template_tokens, check.tokens_per_word
    calibration = Calibration(template_tokens or 0, tokens_per_word or 1.0)
    requests = source.frame().collect()
    try:
        prompts = Prompts(
            requests.select(COLUMNS),
            source.segments(),
            source.manifest.get("prefix"),
            seed=seed,
            calibration=calibration,
        )
    except ValueError as error:
        raise FormatError(source.path / REQUESTS, str(error), hint="Build or import the profile again.") from None
    if not prompts.asked.any():
        raise UsageError(
            f"{path}: no length of any prompt is known, so there is nothing to rebuild",
            "Record or import with token counts or characters.",
        )
    trip = measure(prompts)
    lost = list(_lost(source, prompts))
    if check is not None and check.warning:
        lost.append(check.warning)
    stated = {
        "kind": "synthesise",
        "inputs": [{"name": source.path.resolve().name, "sha256": source.sha256}],
        "seed": seed,
        "calibration": asdict(calibration),
        "ratios": [asdict(ratio) for ratio in prompts.lengths.ratios] if prompts.lengths.estimated.any() else [],
        "round_trip": asdict(trip),
        "notes": lost,
    }
    _write(out, source, prompts, requests, bodies(prompts), stated, force=force)
    if as_json:
        click.echo(encode_pretty({"profile": str(out), **stated}), nl=False)
        return
    for note in lost:
        click.echo(f"note: {note}", err=True)
    click.echo(_describe(trip, prompts), err=True)
    click.echo(out)


def _write(
    out: Path,
    source: "Profile",
    prompts: "Prompts",
    requests: Any,
    made: Iterator[tuple[int, bytes]],
    stated: dict[str, Any],
    *,
    force: bool,
) -> None:
    import numpy as np
    import polars as pl

    from profiles.measurable import NEEDS_RECORDED_TEXT, NO_PREFIXES
    from profiles.shapes import REBUILT_ENDPOINTS
    from profiles.synthesise import ESTIMATED
    from profiles.write import write_profile

    manifest = source.manifest
    unshared = [] if prompts.linked else [NO_PREFIXES]
    estimated = pl.Series(prompts.lengths.estimated)
    tokens = pl.Series(np.nan_to_num(prompts.lengths.tokens)).cast(pl.Int64)
    has_body = pl.Series(prompts.asked > 0)
    requests = requests.with_columns(
        prompt_tokens=pl.when(estimated).then(tokens).otherwise(pl.col("prompt_tokens")),
        token_source=pl.when(estimated).then(pl.lit(ESTIMATED)).otherwise(pl.col("token_source")),
        body=has_body & pl.col("endpoint").is_in(REBUILT_ENDPOINTS),
    )
    write_profile(
        out,
        requests,
        source=stated,
        windows=[(opened, close) for opened, close in manifest["windows"]],
        zero_wall_ns=manifest.get("zero_wall_ns"),
        unfinished=[_interval(*stay) for stay in manifest.get("unfinished", [])],
        dropped=manifest["dropped"],
        bodies=made,
        segments=source.segments(),
        content="synthetic",
        synthetic=bool(manifest.get("synthetic")),
        not_measurable=list(dict.fromkeys([*manifest["not_measurable"], *NEEDS_RECORDED_TEXT, *unshared])),
        prefix=manifest.get("prefix"),
        force=force,
    )


def _interval(start_ns: int, end_ns: int | None) -> Any:
    from profiles.captures import Interval

    return Interval(start_ns, end_ns)


def _lost(source: "Profile", prompts: "Prompts") -> Iterator[str]:
    """One sentence for each thing that rebuilt prompts do not keep."""
    import polars as pl

    from profiles.shapes import REBUILT_ENDPOINTS

    requests = prompts.requests
    total = len(requests)
    whole = pl.col("response_format").is_not_null() & (pl.col("response_format") != "text")
    counts = requests.select(
        constrained=whole.sum(),
        tools=(pl.col("tools") > 0).sum(),
        images=(pl.col("images") > 0).sum(),
        other=(~pl.col("endpoint").is_in(REBUILT_ENDPOINTS)).sum(),
        unlinked=pl.col("blocks").is_null().sum(),
    ).row(0, named=True)
    if prompts.segments is None:
        yield "sizes of messages are not known: each prompt is one user message, behind a system message if it has one"
    if counts["unlinked"]:
        yield f"shared prefixes are not known of {counts['unlinked']} of {total} prompts: they share nothing"
    if counts["constrained"]:
        yield f"{counts['constrained']} of {total} asked for JSON, a schema or a grammar: their answers are free text"
    if counts["tools"]:
        yield f"{counts['tools']} of {total} had tools: as many empty functions, with descriptions of the same length"
    if counts["images"]:
        yield f"{counts['images']} of {total} had images: they are left out"
    if counts["other"]:
        yield f"{counts['other']} of {total} went to endpoints that a replay does not send to: they get no body"
    if estimated := int(prompts.lengths.estimated.sum()):
        learned = "learned from the others" if prompts.lengths.ratios else "taken as 4 characters a token"
        yield f"{estimated} of {total} have no token count: it is estimated from characters, {learned}"
    if unknown := total - int((prompts.asked > 0).sum()):
        yield f"{unknown} of {total} have no known length: they get no body"


def _describe(trip: "RoundTrip", prompts: "Prompts") -> str:
    from profiles.units import format_percent

    def share(value: float | None) -> str:
        return "unknown" if value is None else format_percent(value, 2)

    return (
        f"{trip.prompts} prompts, {trip.words} words; length error {trip.error_mean:.2f} words on average, at most"
        f" {trip.error_max}; prefix hits {share(trip.hit_rebuilt)} in blocks of 16, recorded {share(trip.hit_recorded)}"
    )


def _check(run_path: Path) -> "SlopeCheck":
    """What the engines of a run made of rebuilt prompts."""
    from profiles.errors import FormatError, UsageError
    from profiles.profile import read_profile
    from profiles.ratios import check_slope
    from profiles.runs import read_run
    from profiles.shapes import words_in

    run = read_run(run_path)
    replayed = read_profile(Path(run.manifest["profile"]["path"]))
    if replayed.manifest["content"] != "synthetic" or replayed.sha256 != run.manifest["profile"]["sha256"]:
        raise UsageError(
            f"{run_path}: it did not replay {replayed.path} with rebuilt prompts as they are now",
            "Replay a profile that `firsttoken profile synthesise` made, then calibrate with that run.",
        )
    words = {row: count for row, body in replayed.read_bodies() if (count := words_in(body)) is not None}
    pairs = [
        (words[outcome.request], outcome.response.prompt_tokens)
        for boot in run.boots
        for outcome in boot.outcomes
        if outcome.request in words and outcome.response.prompt_tokens is not None
    ]
    try:
        return check_slope(pairs)
    except ValueError as error:
        raise FormatError(run_path, str(error), hint="Does the engine send usage with its answers?") from None
