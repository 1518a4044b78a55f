"""Every command of the command line, as it is called."""

from __future__ import annotations

from collections.abc import Iterator

import click

from duewheel.cli.main import main


def _below(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _below(command, (*path, name))


#: The commands and nouns by their words.
COMMANDS = dict(_below(main))
