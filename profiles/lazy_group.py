"""A group of commands that are imported only when they are used, so that `--help` stays quick."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """`members` says of each command, in the order of the help, where it lives (`module:name`) and what it does in one
    line. A command that was added as usual comes before a member of its name.
    """

    def __init__(
        self, *args: Any, members: Mapping[str, tuple[str, str]], heading: str = "Commands", **kw: Any
    ) -> None:
        super().__init__(*args, **kw)
        self.members = dict(members)
        self.heading = heading

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in self.members:
            return self.commands.get(cmd_name)
        module, _, name = self.members[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self.heading):
            formatter.write_dl([(name, line) for name, (_, line) in self.members.items()])
