"""The root command and its groups, each loaded from its own module when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click
import psycopg2

import duewheel
from duewheel.cli.refusals import explained, one_line
from duewheel.store.errors import DueWheelError

_COMMANDS: dict[str, str] = {
    "db": "duewheel.cli.db:db",
    "demo": "duewheel.cli.demo.commands:demo",
    "dlq": "duewheel.cli.dlq:dlq",
    "find": "duewheel.cli.messages:find",
    "group": "duewheel.cli.group:group",
    "history": "duewheel.cli.messages:history",
    "recall": "duewheel.cli.messages:recall",
    "receive": "duewheel.cli.messages:receive",
    "reschedule": "duewheel.cli.messages:reschedule",
    "schedule": "duewheel.cli.schedule:schedule",
    "send": "duewheel.cli.messages:send",
    "stats": "duewheel.cli.stats:stats",
    "topic": "duewheel.cli.topic:topic",
    "wheel": "duewheel.cli.wheel:wheel",
}


class RootGroup(click.Group):
    """Loads commands on first use; an error of the broker or of its database is one line on standard error
    and status 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click names it
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except DueWheelError as error:
            raise click.ClickException(one_line(str(error))) from error
        except psycopg2.Error as error:
            raise click.ClickException(explained(error)) from error
        except BrokenPipeError:
            # Whoever reads the answer has enough of it; click ends quietly.
            raise
        except OSError as error:
            # Such as a data folder that cannot be made.
            raise click.ClickException(one_line(str(error))) from error


@click.group(
    cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(duewheel.__version__, prog_name="duewheel")
def main() -> None:
    """Delay messages for Airflow: send now, delivered at an instant.

    \b
    duewheel demo                                          everything, for real, in a few minutes
    duewheel topic create order-timeout
    duewheel send order-timeout '{"order": 42}' --delay 30m --key 42
    duewheel recall --topic order-timeout --key 42

    Exit status: 0 done; 1 refused, with the reason on standard error; 2 wrong usage; 3 nothing was due,
    found, recalled or redriven.
    """
