"""The command `concurrency`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from profiles.sweep import Stays
    from profiles.view import LoadView

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("paths", metavar="CAPTURE|PROFILE...", nargs=-1, required=True, type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one strict JSON document.")
@click.option("--html", metavar="FILE", type=_PATH, help="Write one self-contained page, and print its path.")
@click.option("--svg", metavar="FILE", type=_PATH, help="Write the chart of shares alone, and print its path.")
@click.option("--zone", default="UTC", show_default=True, metavar="NAME", help="Time zone of hours and days.")
@click.option("--experiment", metavar="FILE", type=_PATH, help="Mark the levels that this experiment measures.")
@click.option(
    "--skew",
    "skews",
    multiple=True,
    metavar="NAME=+2s",
    help="How far the clock of a capture's host was ahead. Can be given again.",
)
@click.option(
    "--service-time",
    metavar="TIME,RATE,TIME",
    help="For an imported trace without ends: overhead, prompt tokens per second, time per output token. The result"
    " is an estimate.",
)
def concurrency(
    paths: tuple[Path, ...],
    as_json: bool,
    html: Path | None,
    svg: Path | None,
    zone: str,
    experiment: Path | None,
    skews: tuple[str, ...],
    service_time: str | None,
) -> None:
    """How many requests are in flight, by time and by arrival, and at which c to measure.

    Give one or more captures, which are laid over each other by their clocks, or one profile. A capture may still be
    growing. c is the concurrency that a request meets, itself included.

    \b
    Example:
      firsttoken concurrency captures/monday
      firsttoken concurrency captures/monday --json | jq .max
      firsttoken concurrency week.profile --html week.html --zone Europe/Budapest
      firsttoken concurrency azure.profile --service-time 50ms,8000,20ms

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from profiles import load_report
    from profiles.errors import UsageError
    from profiles.files import encode_pretty

    if as_json and (html is not None or svg is not None):
        raise UsageError("--json and a file exclude each other", "Run the command once for each.")
    view = _look_at(paths, zone, experiment, skews, service_time)
    if html is not None:
        from profiles.page import write_page

        title = ", ".join(path.resolve().name for path in paths)
        write_page(view, html, title=title, inputs=[_input(path) for path in paths])
        click.echo(html)
    if svg is not None:
        from profiles.page import write_picture

        write_picture(view, svg)
        click.echo(svg)
    if html is not None or svg is not None:
        return
    if as_json:
        click.echo(encode_pretty(load_report.document(view)), nl=False)
    else:
        click.echo(load_report.render(view))


def _look_at(
    paths: tuple[Path, ...], zone: str, experiment: Path | None, skews: tuple[str, ...], service_time: str | None
) -> "LoadView":
    from profiles.calendar import find_zone
    from profiles.concurrency import COVER
    from profiles.experiment import load_experiment
    from profiles.origin import is_shaped, say_origin
    from profiles.view import marked_by, read_view

    find_zone(zone)  # a wrong name is said before hours of reading
    rule = None if experiment is None else load_experiment(experiment)
    cover = COVER if rule is None else rule.file.profile.operating_point.cover
    stays, manifest, estimate = _read(paths, skews, service_time)
    view = read_view(
        stays,
        zone,
        cover=cover,
        synthetic=bool(manifest.get("synthetic")),
        estimate=estimate,
        origin=say_origin(manifest),
        shaped=is_shaped(manifest),
    )
    return view if rule is None else marked_by(view, rule)


def _read(
    paths: tuple[Path, ...], skews: tuple[str, ...], service_time: str | None
) -> "tuple[Stays, dict[str, Any], str | None]":
    """The stays of captures or of a profile, the manifest of the profile, and the service time that was stated."""
    from profiles.build import read_stays
    from profiles.errors import UsageError
    from profiles.profile import read_profile
    from profiles.service_time import estimated_stays, parse_service_time
    from profiles.skew import read_skews

    service = None if service_time is None else parse_service_time(service_time)
    profiles = [path for path in paths if _is_profile(path)]
    if profiles and len(paths) > 1:
        raise UsageError(
            f"{profiles[0]} is a profile, and a profile is looked at alone",
            "Build one profile of all the captures, or name the captures.",
        )
    if not profiles:
        if service is not None:
            raise UsageError("--service-time is for imported traces: a capture knows its ends", "Leave it out.")
        stays, warnings = read_stays(paths, read_skews(skews, paths))
        _warn(warnings)
        return stays, {}, None
    if skews:
        raise UsageError("--skew is for captures: a profile is of one clock", "State it when you build the profile.")
    profile = read_profile(profiles[0])
    if service is None:
        return profile.stays(), profile.manifest, None
    if profile.manifest.get("synthetic"):
        raise UsageError(
            f"{profiles[0]} is synthetic: its arrivals are an order and no load, so concurrency is not measurable",
            "Record production, or import a log of times: `firsttoken profile import intervals`.",
        )
    stays, warnings = estimated_stays(profile, service)
    _warn(warnings)
    return stays, profile.manifest, str(service)


def _input(path: Path) -> tuple[str, str]:
    """Name and sha256 of what was looked at: its manifest, which holds the sha256 of the tables of a profile."""
    from profiles.files import sha256_of
    from profiles.profile import MANIFEST

    return path.resolve().name, sha256_of(path / MANIFEST)


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


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
