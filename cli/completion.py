"""`duewheel completion`: a script that makes a shell complete commands, options, topics and groups."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from duewheel.cli.answer import Answer
from duewheel.cli.options import json_option


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print a script that makes SHELL complete commands, options, and the names of topics and groups.

    Put the line for your shell into ~/.bashrc or ~/.zshrc. The names are read from the broker at --dsn or
    DUEWHEEL_DSN.

    \b
    source <(duewheel completion bash)
    source <(duewheel completion zsh)
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "duewheel", "_DUEWHEEL_COMPLETE").source()
    Answer(as_json=as_json).done(script, shell=shell, script=script)
