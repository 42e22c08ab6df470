"""Every command explains itself in the same order, in 80 columns: text, Example, Exit codes, options."""

from collections.abc import Iterator

import click
import pytest

from firsttoken import cli


def commands(command: click.Command, name: str, above: click.Context | None = None) -> Iterator[click.Context]:
    """The context of a command and of all below it."""
    context = click.Context(command, info_name=name, parent=above)
    yield context
    if isinstance(command, click.Group):
        for member in command.list_commands(context):
            found = command.get_command(context, member)
            assert found is not None
            yield from commands(found, member, context)


PARTS = ("Example:", "Exit codes: 0 ", "Options:")
ALL = list(commands(cli, "firsttoken"))
LEAVES = [context for context in ALL if not isinstance(context.command, click.Group)]


def path_of(context: click.Context) -> str:
    return context.command_path


def test_the_group_was_walked() -> None:
    assert {path_of(context) for context in LEAVES} >= {"firsttoken replay", "firsttoken profile diff"}


@pytest.mark.parametrize("context", ALL, ids=path_of)
def test_help_fits_into_80_columns(context: click.Context) -> None:
    too_wide = [line for line in context.command.get_help(context).splitlines() if len(line) > 80]
    assert not too_wide


@pytest.mark.parametrize("context", LEAVES, ids=path_of)
def test_help_has_its_parts_in_the_same_order(context: click.Context) -> None:
    lines = [line.strip() for line in context.command.get_help(context).splitlines()]
    places = [next(at for at, line in enumerate(lines) if line.startswith(part)) for part in PARTS]
    assert places == sorted(places)
    assert places[0] > 2  # a text comes first
    assert not context.command.epilog


@pytest.mark.parametrize("context", LEAVES, ids=path_of)
def test_an_example_is_a_command_line_of_this_command(context: click.Context) -> None:
    lines = [line.strip() for line in context.command.get_help(context).splitlines()]
    example = lines[lines.index("Example:") + 1]
    assert example.startswith(path_of(context))
