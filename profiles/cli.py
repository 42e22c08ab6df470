"""The group `profile`, and its command `build`."""

from pathlib import Path

import click

from profiles.lazy_group import LazyGroup

_PATH = click.Path(path_type=Path)

# In the order of the work: command, where it lives, what it does in one line.
MEMBERS = {
    "build": ("profiles.cli:build", "Make a profile of captures."),
    "import": ("profiles.traces.cli:import_", "Make a profile of a public trace, a log of times, or a HAR file."),
    "builtin": ("profiles.builtin.cli:builtin", "Make a profile of generated requests, for who has not recorded yet."),
    "show": ("profiles.show_cli:show", "Show what a profile holds, and what cannot be measured with it."),
    "diff": ("profiles.show_cli:diff", "Say whether the load has changed enough to reopen a decision."),
    "classes": (
        "profiles.classes_cli:classes",
        "Print the rules that tell classes apart, or check a file of your own.",
    ),
    "shape": ("profiles.shape_cli:shape", "Cut, thin, grow or mix a profile."),
    "synthesise": (
        "profiles.synthesise_cli:synthesise",
        "Rebuild prompts of the right length and sharing, without text.",
    ),
    "export": ("profiles.traces.cli:export", "Write a profile in the format of another tool."),
}


@click.group(cls=LazyGroup, members=MEMBERS)
def profile() -> None:
    """Make a profile of captures, look at one, and shape it.

    \b
    Example:
      firsttoken profile build captures/monday captures/tuesday -o week.profile
      firsttoken profile show week.profile
    """


@click.command()
@click.argument("captures", metavar="CAPTURE...", nargs=-1, required=True, type=_PATH)
@click.option("-o", "--out", required=True, type=_PATH, help="Directory to make; it must not exist.")
@click.option("--classes", type=_PATH, help="Rules of your own (see `firsttoken profile classes`).")
@click.option(
    "--skew", "skews", metavar="NAME=±TIME", multiple=True, help="How far the clock of a capture's host was ahead."
)
@click.option("--force", is_flag=True, help="Replace OUT if it is a profile and holds nothing else.")
def build(captures: tuple[Path, ...], out: Path, classes: Path | None, skews: tuple[str, ...], force: bool) -> None:
    """Make a profile of one or more captures: what was asked, when, of which class, at which concurrency.

    Several captures are laid over each other by their wall clocks. Where the clock of a host was ahead or behind, say
    so: `--skew tuesday=+2s` moves what tuesday recorded back by two seconds. Prints the path of the profile.

    \b
    Example:
      firsttoken profile build captures/monday -o monday.profile

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from profiles.build import build_profile
    from profiles.classify import read_rules
    from profiles.histogram import counted, format_levels
    from profiles.skew import read_skews

    built = build_profile(captures, out, skews_ns=read_skews(skews, captures), rules=read_rules(classes), force=force)
    for warning in built.warnings:
        click.echo(f"warning: {warning}", err=True)
    for note in built.notes:
        click.echo(f"note: {note}", err=True)
    made = built.profile.manifest
    levels = format_levels(made["operating_point"]["levels"]) or "none"
    click.echo(
        f"{counted(made['requests'], 'request')} in {counted(len(made['workloads']), 'class')}, observed c = {levels},"
        f" content {made['content']}",
        err=True,
    )
    click.echo(out)


profile.add_command(build)
