"""The command `validate`."""

from pathlib import Path

import click


@click.command(short_help="Read an artefact wholly, and say what it is or what is wrong.")
@click.argument("path", metavar="EXPERIMENT|PROFILE|CAPTURE|RUN|VERDICT", type=click.Path(path_type=Path))
def validate(path: Path) -> None:
    """Read an experiment.toml, a profile, a capture, a run or a verdict.json wholly, and say in one line what it is.

    An experiment is also held against its profile, but for the one inside a run. Of what is wrong the first problem is
    told, with file, line and key.

    \b
    Example:
      firsttoken validate experiment.toml
      firsttoken validate my-run

    Exit codes: 0 it is sound, 2 it is not.
    """
    from profiles import validate as readers

    click.echo(readers.validate(path))
