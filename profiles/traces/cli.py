"""The commands `profile import` and `profile export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiles.traces.formats import ExportFormat, ImportFormat
    from profiles.traces.imported import Imported

_PATH = click.Path(path_type=Path)
_AUTO = "auto"


@click.command("import")
@click.argument("format_name", metavar="FORMAT", required=False)
@click.argument("files", metavar="FILE...", nargs=-1, type=_PATH)
@click.option("-o", "--out", type=_PATH, help="Directory to make; it must not exist.")
@click.option("--list", "list_formats", is_flag=True, help="Show the formats and end.")
@click.option("--unit", type=click.Choice(["s", "ms", "us", "ns"]), help="Unit of the times in FILE.")
@click.option("--zone", default="UTC", show_default=True, help="Zone of dates that name none.")
@click.option("--window", "windows", metavar="START,END", multiple=True, help="When the log was kept. Repeatable.")
@click.option("--dequantise", metavar="SEED", type=click.IntRange(0), help="Spread arrivals within their step.")
@click.option("--bodies", type=click.Choice(["none", "full"]), default="none", show_default=True, help="Keep prompts.")
@click.option("--block", type=click.IntRange(1), help="Tokens that one block id stands for.")
@click.option("--label", "labels", metavar="FIELD=NAME", multiple=True, help="Name of a field in a timed trace.")
@click.option("--classes", type=_PATH, help="Rules of the classes, TOML.")
@click.option("--max-bad", metavar="PERCENT", type=click.FloatRange(0, 100), default=1, show_default=True)
@click.option("--trust-unit", is_flag=True, help="The unit is right, however odd the rate is.")
@click.option("--force", is_flag=True, help="Replace OUT if it is a profile and holds nothing else.")
def import_(
    format_name: str | None, files: tuple[Path, ...], out: Path | None, list_formats: bool, **given: Any
) -> None:
    """Make a profile of a trace that others recorded.

    Says on stderr what it took for granted: unit, zone, order, granularity, and what the format lacks. A row that
    cannot be read is dropped and named with its line. FORMAT `auto` takes the format from the file, where only one
    can be meant. Prints the path of the profile.

    \b
    Example:
      firsttoken profile import --list
      firsttoken profile import mooncake trace.jsonl -o trace.profile
      firsttoken profile import intervals log.csv --window 0,86400 -o l.profile

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from profiles.errors import UsageError
    from profiles.traces import formats

    if list_formats:
        click.echo(_listed(formats.IMPORTS))
        return
    if format_name is None or not files:
        raise UsageError("a format and a file are needed", "`firsttoken profile import --list` shows the formats.")
    if out is None:
        raise UsageError("--out is missing", "Name the directory to make with -o.")
    asked = _asked(given)
    if format_name == _AUTO:
        names = {formats.recognise(path) for path in files}
        if len(names) > 1:
            raise UsageError(f"the files are of several formats: {', '.join(sorted(names))}", "Import them one by one.")
        (format_name,) = names
        click.echo(f"format: {format_name}", err=True)
    chosen = formats.check(format_name, asked)
    parts = []
    for path in files:
        parts.append(chosen.read(path, asked))
        _tell(parts[-1])
    _write(parts, out, given)
    click.echo(out)


def _asked(given: "Mapping[str, Any]") -> Any:
    from profiles.errors import UsageError
    from profiles.traces.imported import Asked
    from profiles.traces.instants import check_zone

    labels = []
    for label in given["labels"]:
        ours, sign, theirs = label.partition("=")
        if not sign or not theirs:
            raise UsageError(f"--label {label}: not FIELD=NAME", "Write --label input_length=prompt_len.")
        labels.append((ours, theirs))
    return Asked(
        unit=given["unit"],
        zone=check_zone(given["zone"]),
        windows=given["windows"],
        dequantise=given["dequantise"],
        bodies=given["bodies"] == "full",
        block=given["block"],
        labels=tuple(labels),
        max_bad=given["max_bad"] / 100,
        trust_unit=given["trust_unit"],
    )


def _tell(part: "Imported") -> None:
    """On stderr, what the reader found."""
    click.echo(f"{part.path}: {part.rows_kept} of {part.rows_read} rows kept", err=True)
    for note in part.notes:
        click.echo(f"  {note}", err=True)
    for reason, count in part.dropped.items():
        click.echo(f"  left out: {count} ({reason})", err=True)
    for line, reason in part.dropped_lines:
        click.echo(f"warning: {part.path}:{line}: {reason}", err=True)


def _write(parts: "Sequence[Imported]", out: Path, given: "Mapping[str, Any]") -> None:
    from profiles.captures import Interval
    from profiles.classify import read_rules
    from profiles.files import sha256_of
    from profiles.histogram import counted
    from profiles.measurable import NEEDS_CONTENT
    from profiles.traces.imported import join
    from profiles.traces.structure import structured
    from profiles.write import write_profile

    whole = join(parts)
    found = structured(whole)
    warnings: list[str] = []
    content = "full" if whole.bodies else "structure" if found.prefix is not None else "none"
    ordered = whole.unit == "order"
    made = write_profile(
        out,
        found.requests,
        source={
            "kind": whole.format,
            "inputs": [{"name": part.path.name, "sha256": sha256_of(part.path)} for part in parts],
            "unit": whole.unit,
            "notes": [*whole.notes, *found.notes],
            "rows_read": whole.rows_read,
            "rows_kept": whole.rows_kept,
            "dropped_lines": [list(line) for line in whole.dropped_lines],
            "seed": whole.seed,
        },
        windows=[] if ordered else whole.windows,
        zero_wall_ns=whole.zero_wall_ns,
        unfinished=[Interval(start, end) for start, end in whole.unfinished],
        dropped=whole.dropped,
        bodies=whole.bodies,
        content=content,
        not_measurable=[*([] if whole.bodies else NEEDS_CONTENT), *(["arrivals"] if ordered else [])],
        prefix=found.prefix,
        segments=found.segments if content == "structure" else None,
        warnings=warnings,
        rules=None if given["classes"] is None else read_rules(given["classes"]),
        force=given["force"],
    )
    for note in found.notes:
        click.echo(f"  {note}", err=True)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    manifest = made.manifest
    rows, classes = counted(manifest["requests"], "request"), counted(len(manifest["workloads"]), "class")
    missing = ", ".join(manifest["not_measurable"]) or "nothing of it"
    click.echo(
        f"{rows} in {classes}, content {manifest['content']}; cannot be measured: {missing}",
        err=True,
    )


@click.command("export")
@click.argument("format_name", metavar="FORMAT", required=False)
@click.argument("profile", metavar="PROFILE", required=False, type=_PATH)
@click.option("-o", "--out", type=_PATH, help="File to make; it must not exist.")
@click.option("--list", "list_formats", is_flag=True, help="Show the formats and end.")
@click.option("--block", type=click.IntRange(1), help="Tokens of a block id; 512 if not given.")
@click.option("--payload", is_flag=True, help="aiperf: whole bodies instead of lengths.")
@click.option("--force", is_flag=True, help="Replace the file.")
def export(
    format_name: str | None, profile: Path | None, out: Path | None, list_formats: bool, block: int | None,
    payload: bool, force: bool,
) -> None:  # fmt: skip
    """Write a profile as a trace that other tools read.

    Says on stderr what the format cannot hold. Prints the path of the file.

    \b
    Example:
      firsttoken profile export mooncake monday.profile -o monday.jsonl
      firsttoken profile export vllm-timed-trace monday.profile -o monday.jsonl

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from profiles.errors import UsageError
    from profiles.profile import read_profile
    from profiles.traces import formats
    from profiles.traces.export import ExportAsked

    if list_formats:
        click.echo(_listed(formats.EXPORTS))
        return
    if format_name is None or profile is None:
        raise UsageError("a format and a profile are needed", "`firsttoken profile export --list` shows the formats.")
    if out is None:
        raise UsageError("--out is missing", "Name the file to make with -o.")
    chosen = formats.check_export(format_name)
    opened = read_profile(profile)
    opened.verify()
    if opened.manifest.get("synthetic"):
        click.echo("warning: this profile is synthetic: nobody's production is like it", err=True)
    written = chosen.write(opened, out, ExportAsked(block, payload, force))
    click.echo(f"{written.rows} of {opened.manifest['requests']} requests written", err=True)
    for lost in written.lost:
        click.echo(f"  not in the file: {lost}", err=True)
    if written.use:
        click.echo(f"  use: {written.use}", err=True)
    click.echo(out)


def _listed(table: "Mapping[str, ImportFormat] | Mapping[str, ExportFormat]") -> str:
    return "\n".join(f"{name:17}{each.unit:10}{each.holds}" for name, each in table.items())
