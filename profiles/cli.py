"""The commands `concurrency` and `profile`. The front door loads this module only when one of them is asked for."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from profiles.concurrency import Concurrency
    from profiles.profile import ClassSummary, Profile

_PATH = click.Path(path_type=Path)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one strict JSON document.")


@click.command()
@click.argument("paths", metavar="CAPTURE|PROFILE...", nargs=-1, required=True, type=_PATH)
@_AS_JSON
def concurrency(paths: tuple[Path, ...], as_json: bool) -> None:
    """How many requests are in flight, by time and by arrival, and at which c to measure.

    Give one or more captures, which are laid over each other by their clocks, or one profile. A capture may still be
    growing. c is the concurrency that a request meets, itself included.

    \b
    Example:
      firsttoken concurrency captures/monday
      firsttoken concurrency captures/monday --json | jq .max
    """
    from profiles import histogram
    from profiles.files import encode_pretty

    measured, windows = _measure(paths)
    if as_json:
        click.echo(encode_pretty(histogram.document(measured)), nl=False)
    else:
        click.echo(histogram.render(measured, windows))


def _measure(paths: tuple[Path, ...]) -> "tuple[Concurrency, int]":
    """Concurrency of captures or of a profile, and of how many windows it is made."""
    from profiles.build import read_traffic
    from profiles.concurrency import measure
    from profiles.errors import UsageError
    from profiles.profile import read_profile

    profiles = [path for path in paths if _is_profile(path)]
    if profiles and len(paths) > 1:
        raise UsageError(
            f"{profiles[0]} is a profile, and a profile is looked at alone",
            "Build one profile of all the captures, or name the captures.",
        )
    if profiles:
        profile = read_profile(profiles[0])
        return profile.concurrency(), len(profile.manifest.get("windows", ()))
    traffic = read_traffic(paths)
    _warn(traffic.warnings)
    return measure(traffic.stays, traffic.windows), len(traffic.windows)


def _is_profile(path: Path) -> bool:
    """Whether a directory says that it is a profile. Whatever else it is, the reader of captures names its fault."""
    from profiles.errors import FormatError
    from profiles.files import read_document
    from profiles.profile import FORMAT, MANIFEST

    try:
        # Any version: which of them can be read is for the reader to say.
        return read_document(path / MANIFEST, FORMAT, versions=tuple(range(1, 1000))) is not None
    except FormatError:
        return False


@click.group()
def profile() -> None:
    """Make a profile of captures, and look at one.

    \b
    Example:
      firsttoken profile build captures/monday captures/tuesday -o week.profile
      firsttoken profile show week.profile
    """


@profile.command()
@click.argument("captures", metavar="CAPTURE...", nargs=-1, required=True, type=_PATH)
@click.option("-o", "--out", required=True, type=_PATH, help="Directory to make; it must not exist.")
@click.option("--force", is_flag=True, help="Replace OUT if it is a profile and holds nothing else.")
def build(captures: tuple[Path, ...], out: Path, force: bool) -> None:
    """Make a profile of one or more captures: what was asked, when, of which class, at which concurrency.

    Prints the path of the profile.

    \b
    Example:
      firsttoken profile build captures/monday -o monday.profile
    """
    from profiles.build import build_profile
    from profiles.histogram import format_levels
    from profiles.profile import read_profile

    traffic = build_profile(captures, out, force=force)
    _warn(traffic.warnings)
    made = read_profile(out).manifest
    levels = format_levels(made["operating_point"]["levels"]) or "none"
    click.echo(
        f"{made['requests']} requests in {len(made['workloads'])} classes, observed c = {levels},"
        f" content {made['content']}",
        err=True,
    )
    click.echo(out)


@profile.command()
@click.argument("path", metavar="PROFILE", type=_PATH)
@_AS_JSON
def show(path: Path, as_json: bool) -> None:
    """What a profile holds, and what cannot be measured with it.

    \b
    Example:
      firsttoken profile show monday.profile
    """
    from profiles.files import encode_pretty
    from profiles.profile import read_profile, summarise

    opened = read_profile(path)
    opened.verify()
    rows = opened.rows()
    classes = summarise(rows)
    if as_json:
        from dataclasses import asdict

        click.echo(
            encode_pretty(opened.manifest | {"sha256": opened.sha256, "classes": [*map(asdict, classes)]}), nl=False
        )
    else:
        click.echo(_describe(opened, classes))


def _describe(opened: "Profile", classes: "list[ClassSummary]") -> str:
    from profiles.histogram import format_point
    from profiles.units import format_duration

    manifest = opened.manifest
    measured = opened.concurrency()
    point = measured.operating_point()
    missing = manifest["not_measurable"]
    facts = {
        "profile": str(opened.path),
        "requests": f"{manifest['requests']} ({_counts(manifest['outcomes'])})",
        "observed": f"{format_duration(manifest['observed_ns'])} in {len(manifest['windows'])} window(s)",
        "dropped": _counts({why: count for why, count in manifest["dropped"].items() if count}) or "nothing",
        "models": _counts({name or "(none named)": count for name, count in manifest["models"].items()}),
        "in flight": f"{format_point(point)}; at most {measured.max}" if point.levels else "no arrivals",
        "content": f"{manifest['content']}; cannot be measured: {', '.join(missing) if missing else 'nothing of it'}",
    }
    return "\n".join([*(_labelled(*fact) for fact in facts.items()), "", *_class_table(classes)])


def _class_table(classes: "list[ClassSummary]") -> list[str]:
    from profiles.units import format_duration, format_percent

    def pair(low: Any, high: Any, form: Any = str) -> str:
        return "–" if low is None else f"{form(low)} / {form(high)}"

    total = sum(each.requests for each in classes)
    lines = [
        f"{'':20}{'':7}{'':8}{'prompt tokens':>15}{'output tokens':>15}{'TTFT':>15}".rstrip(),
        f"{'class':20}{'n':>7}{'share':>8}{'p50 / p90':>15}{'p50 / p90':>15}{'p50 / p90':>15}",
    ]
    for each in classes:
        # A quantile near the end of a handful of values is only one of them; n stands beside it.
        ttft = pair(each.ttft_p50_ns, each.ttft_p90_ns, lambda ns: format_duration(ns).replace(" ", ""))
        lines.append(
            f"{each.workload:20}{each.requests:>7}{format_percent(each.requests / total, 0):>8}"
            f"{pair(each.prompt_tokens_p50, each.prompt_tokens_p90):>15}"
            f"{pair(each.output_tokens_p50, each.output_tokens_p90):>15}{ttft:>15}"
        )
    return [*lines, "", "TTFT as captured: first token − arrival at the recorder."]


def _labelled(label: str, text: str) -> str:
    import textwrap

    return textwrap.fill(text, 80, initial_indent=f"{label:11}", subsequent_indent=" " * 11, break_on_hyphens=False)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
