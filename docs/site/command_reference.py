"""The page of the command line: the help of every command, as the program prints it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from duewheel.cli.main import main

PAGE = "reference/api/command-line.md"
_WIDTH = 96


def command_page() -> str:
    """The Markdown of the page."""
    sections = [
        "# Every command",
        "The help of each command. [The command line](../command-line.md) explains what they have in common.",
    ]
    for context in _contexts(
        click.Context(main, info_name="duewheel", max_content_width=_WIDTH, terminal_width=_WIDTH)
    ):
        sections += [f"## {context.command_path}", f"```text\n{context.command.get_help(context)}\n```"]
    return "\n\n".join(sections)


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from _contexts(_context(command, name, context))


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(command, parent, name, terminal_width=_WIDTH, max_content_width=_WIDTH)
