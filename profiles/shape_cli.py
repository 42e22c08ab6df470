"""The command `profile shape`: a profile in, a shaped one out, and on stderr what that did to the load."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from profiles.profile import Profile
    from profiles.shape import Load

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("path", metavar="PROFILE", type=_PATH)
@click.option("-o", "--out", required=True, type=_PATH, help="Directory to make; it must not exist.")
@click.option("--window", metavar="FROM,TO", help="Keep the arrivals of this span: 10min,70min or instants or a date.")
@click.option("--classes-only", metavar="NAME,...", help="Keep the requests of these classes.")
@click.option("--thin", type=float, metavar="SHARE", help="Keep this share of the sessions, whole.")
@click.option("--users", type=int, metavar="K", help="K times the users: K shifted copies of all sessions.")
@click.option("--rate", type=float, metavar="K", help="K times the rate: sessions start K times as often.")
@click.option("--mix", metavar="c=8[,CLASS=W...]", help="Closed loop of c slots, classes by share of requests.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of all random draws; stands in the manifest.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it is a profile and holds nothing else.")
def shape(
    path: Path,
    out: Path,
    window: str | None,
    classes_only: str | None,
    thin: float | None,
    users: int | None,
    rate: float | None,
    mix: str | None,
    seed: int,
    force: bool,
) -> None:
    """Make another load of a profile: a part of it, less, more, or a closed loop.

    Steps are done in the order of the options above. Sessions are moved whole and keep their think times. Recorded
    durations are kept as well, so what is then in flight is an estimate: an engine under more load is slower.

    FROM and TO are durations since the profile's zero (10min,70min), instants
    (2026-07-01T08:00,2026-07-01T12:30; UTC unless they name a zone), or dates:
    2026-07-01 is that day, 2026-07-01,2026-07-03 is three days.

    Prints the path of the new profile.

    \b
    Example:
      firsttoken profile shape week.profile -o twice.profile --users 2 --seed 1
      firsttoken profile shape week.profile -o mix.profile --mix c=8

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from profiles import shape as steps
    from profiles.errors import UsageError
    from profiles.profile import read_profile
    from profiles.profile_folder import check_free

    if all(option is None for option in (window, classes_only, thin, users, rate, mix)):
        raise UsageError(
            "nothing is to be done to the profile", "Give one of --window, --thin, --users, --rate, --mix."
        )
    if users is not None and rate is not None:
        raise UsageError("--users and --rate are two ways to get more load", "Give one of them.")
    profile = read_profile(path)
    profile.verify()
    check_free(out, force=force)
    block = profile.manifest.get("prefix") or {}
    load = before = steps.load_of(
        profile.frame().collect(),
        [(opened, close) for opened, close in profile.manifest["windows"]],
        zero_wall_ns=profile.manifest.get("zero_wall_ns"),
        block_chars=block.get("block") if block.get("unit") == "chars" else None,
    )
    try:
        if window is not None:
            load = steps.cut(load, *span_of(window, load.zero_wall_ns))
        if classes_only is not None:
            load = steps.only(load, classes_only.split(","))
        if thin is not None:
            load = steps.thin(load, thin, seed)
        if users is not None:
            load = steps.superpose(load, users, seed)
        if rate is not None:
            load = steps.compress(load, rate)
        if mix is not None:
            c, weights = mix_of(mix)
            load = steps.closed_mix(load, c, seed, weights)
    except ValueError as error:
        raise UsageError(f"{path} cannot be shaped so: {error}", "See `firsttoken profile shape --help`.") from None
    if not load.requests.height:
        raise UsageError(f"{path}: no request is left", "Shape it less, or try another seed.")
    _write(profile, load, out, seed=seed, force=force)
    click.echo(_table(before, load), err=True)
    click.echo(out)


def span_of(text: str, zero_wall_ns: int | None) -> tuple[int, int]:
    """Start and end of `--window`, in nanoseconds from the profile's zero. Raises UsageError."""
    from profiles.errors import UsageError
    from profiles.units import parse_duration

    start, comma, end = (part.strip() for part in text.partition(","))
    try:
        span = parse_duration(start), parse_duration(end)
    except ValueError:
        first, last = _wall_span(start), _wall_span(end if comma else start)
        if first is None or last is None or (not comma and first[1] == first[0]):
            raise UsageError(
                f"--window {text}: neither two durations, nor two instants, nor a date",
                "Write 10min,70min or 2026-07-01T08:00,2026-07-01T12:30 or 2026-07-01.",
            ) from None
        if zero_wall_ns is None:
            raise UsageError(
                f"--window {text}: nobody knows the wall clock of this profile",
                "Write two durations since its start, such as 10min,70min.",
            ) from None
        span = first[0] - zero_wall_ns, last[1] - zero_wall_ns
    if span[0] >= span[1]:
        raise UsageError(f"--window {text}: it ends before it begins", "Write FROM,TO.")
    return span


def _wall_span(text: str) -> tuple[int, int] | None:
    """A date as its first instant and the next day's, an instant as itself twice; wall clock in nanoseconds."""
    from datetime import UTC, date, datetime, timedelta

    try:
        day = date.fromisoformat(text)
        start, length = datetime(day.year, day.month, day.day, tzinfo=UTC), timedelta(days=1)
    except ValueError:
        try:
            start, length = datetime.fromisoformat(text), timedelta()
        except ValueError:
            return None
        if start.tzinfo is None:
            start = start.replace(tzinfo=UTC)
    since = start - datetime(1970, 1, 1, tzinfo=UTC)
    return _ns(since), _ns(since + length)


def _ns(since: "timedelta") -> int:
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def mix_of(text: str) -> tuple[int, dict[str, float] | None]:
    """Slots and weights of `--mix`. Raises UsageError."""
    from profiles.errors import UsageError

    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (each.strip() for each in part.partition("="))
        try:
            found[name] = float(number)
        except ValueError:
            found = {}
            break
    c = found.pop("c", None)
    if c is None or c != int(c):
        raise UsageError(f"--mix {text}: it needs c and may name classes", "Write c=8 or c=8,chat_single=3,code=1.")
    return int(c), found or None


def _write(profile: "Profile", load: "Load", out: Path, *, seed: int, force: bool) -> None:
    from profiles.shape import finish
    from profiles.write import write_profile

    manifest = profile.manifest
    warnings = list(load.notes)
    if manifest.get("unfinished"):
        warnings.append(f"{len(manifest['unfinished'])} requests whose end nobody saw are left out")
    if "end_ns" in load.requests.columns:
        warnings.append("shaped: what is in flight follows from recorded durations and is an estimate")
    unmarked: list[int] = []
    frame = finish(load)
    source = {
        "kind": "shape",
        "inputs": [{"name": profile.path.name, "sha256": profile.sha256}],
        "of": profile.sha256,
        "of_source": manifest.get("source"),
        "of_dropped": manifest["dropped"],
        "steps": list(load.steps),
        "seed": seed,
        "notes": list(load.notes),
    }
    write_profile(
        out,
        frame.drop("capture", strict=False),
        source=source,
        windows=load.windows,
        zero_wall_ns=load.zero_wall_ns,
        bodies=_bodies(profile, load, unmarked, warnings),
        segments=_segments(profile, load),
        content=manifest["content"],
        # A mix holds a concurrency that nobody produced.
        synthetic=bool(manifest.get("synthetic")) or load.mixed,
        prefix=manifest.get("prefix"),
        warnings=warnings,
        force=force,
    )
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _bodies(
    profile: "Profile", load: "Load", unmarked: list[int], warnings: list[str]
) -> "Iterator[tuple[int, bytes]]":
    """The bodies of the new requests by position. Those of copies are other users' texts, and marked as such."""
    from profiles.shape_bodies import mark

    rows, copies = load.requests["row_of"].to_list(), load.requests["copy"].to_list()
    made_of: dict[int, list[int]] = {}
    for position, row in enumerate(rows):
        made_of.setdefault(row, []).append(position)
    for row, body in profile.read_bodies():
        for position in made_of.get(row, ()):
            marked = mark(body, copies[position]) if copies[position] else body
            if marked is None:
                unmarked.append(position)
            yield position, body if marked is None else marked
    if unmarked:
        warnings.append(f"{len(unmarked)} bodies of copies could not be marked: they share their whole prefix")


def _segments(profile: "Profile", load: "Load") -> Any:
    import polars as pl

    segments = profile.segments()
    if segments is None:
        return None
    made = load.requests.select(
        pl.col("row_of").cast(segments.schema["request"]), pl.int_range(pl.len(), dtype=pl.Int64).alias("position")
    )
    joined = segments.join(made, left_on="request", right_on="row_of", maintain_order="left")
    return joined.with_columns(pl.col("position").alias("request")).drop("position")


def _table(before: "Load", after: "Load") -> str:
    """Statistics of two loads side by side."""
    lines = [f"{'':18}{'before':>12}{'after':>12}"]
    for (label, old), (_, new) in zip(_measures(before), _measures(after), strict=True):
        lines.append(f"{label:18}{old:>12}{new:>12}")
    return "\n".join(lines)


def _measures(load: "Load") -> "Iterator[tuple[str, str]]":
    from profiles.arrivals import measure_arrivals
    from profiles.units import format_percent

    arrivals = measure_arrivals(load.arrival_ns, load.windows) if load.windows else None
    dispersion = arrivals.dispersion if arrivals is not None else {}
    yield "requests", str(load.requests.height)
    yield "rate", "–" if arrivals is None or arrivals.rate_per_s is None else f"{arrivals.rate_per_s:.4g}/s"
    yield "CV of gaps", _number(arrivals.iat_cv if arrivals is not None else None)
    yield "dispersion 1 s", _number(dispersion.get("1"))
    yield "dispersion 10 s", _number(dispersion.get("10"))
    reached = _reach(load)
    for c in (1, 3, 8):
        share = reached and reached.reach(c)
        yield f"arrivals at c ≥ {c}", "–" if share is None else format_percent(share)


def _reach(load: "Load") -> Any:
    """Concurrency by recorded durations; None where the ends or the windows are not known."""
    import numpy as np

    from profiles.sweep import Stays, sweep

    frame = load.requests
    if "end_ns" not in frame.columns or frame["end_ns"].null_count() or not load.windows:
        return None
    nobody = np.full(frame.height, -1, np.int32)
    return sweep(Stays(load.arrival_ns, frame["end_ns"].to_numpy(), nobody, (), list(load.windows), None))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
