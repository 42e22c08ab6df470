"""The command `profile classes`: the rules that tell classes apart, to read, to take along and to check."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--check",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Check a file of rules; print its classes in order.",
)
@click.option("--columns", "list_columns", is_flag=True, help="List the columns that a condition may name.")
@click.option("--json", "as_json", is_flag=True, help="Print the checked rules as one strict JSON document.")
def classes(file: Path | None, list_columns: bool, as_json: bool) -> None:
    """Print the rules that tell workload classes apart, or check a file of your own.

    The rules are asked in order, and the first that holds takes the request. Put your own classes first.

    \b
    Example:
      firsttoken profile classes > my-classes.toml
      firsttoken profile classes --check my-classes.toml
      firsttoken profile build captures/monday -o monday.profile \\
        --classes my-classes.toml

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from profiles.class_conditions import COLUMNS
    from profiles.class_rules import DEFAULT_RULES, read_rules
    from profiles.errors import UsageError
    from profiles.files import encode_pretty

    if list_columns:
        if file is not None or as_json:
            raise UsageError("--columns is asked alone", "Leave out --check and --json.")
        width = max(map(len, COLUMNS))
        click.echo("\n".join(f"{column:{width}}  {kind}" for column, kind in sorted(COLUMNS.items())))
        return
    if file is None and not as_json:
        click.echo(DEFAULT_RULES.read_text(encoding="utf-8"), nl=False)
        return
    rules = read_rules(file)
    if as_json:
        click.echo(encode_pretty(rules.document()), nl=False)
        return
    for number, each in enumerate(rules.classes, start=1):
        click.echo(_line(number, each.name, each.why))
    click.echo(f"{file}: {len(rules.classes)} classes, sha256 {rules.sha256}", err=True)


def _line(number: int, name: str, why: str) -> str:
    import textwrap

    head = f"{number:3}  {name:16} "
    return textwrap.fill(why, 80, initial_indent=head, subsequent_indent=" " * len(head))
