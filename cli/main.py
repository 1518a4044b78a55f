"""The root command and its nouns, each loaded from its own module on first use.

The language, decided once:

- `duewheel NOUN VERB`: `duewheel topic create`, `duewheel message send`. A verb is the name of the method of
  `Broker` that does it, less its noun: `create_topic` is `topic create`.
  Looking is `list` for many and `show` for one.
- The object of a noun is an argument and no option: the name of a topic, a group or a schedule, the id of a
  message, or the body of a new message. An object of another noun is an option of that name: `duewheel group
  rewind GROUP --topic TOPIC`.
- An option means the same everywhere: `--topic` (`-t`), `--group` (`-g`), `--key`, `--tag`, `--key-prefix`,
  `--max-messages`, `--delay`, `--deliver-at`, `--dry-run`, `--yes`, `--dsn`, `--json`.
- Only commands for the whole broker or for the program itself are at the top: `stats`, `doctor`, `watch`,
  `demo`, `completion`.
- An answer tells the effect: a command that changes nothing answers "unchanged".
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click
import psycopg2

import duewheel
from duewheel.cli.refusals import explained, one_line
from duewheel.store.values.errors import DueWheelError

# Each is the function of its name in the module of its name.
_COMMANDS = (
    "completion",
    "db",
    "dead-letter",
    "demo",
    "doctor",
    "group",
    "lease",
    "message",
    "schedule",
    "settings",
    "stats",
    "topic",
    "watch",
    "wheel",
)


def _is_there(name: str) -> bool:
    """Whether this installation has the command: the demo runs from a checkout only, and is in no wheel."""
    return name != "demo" or find_spec("duewheel.cli.demo") is not None


class RootGroup(click.Group):
    """Loads commands on first use; an error of the broker or of its database is one line on standard error
    and status 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click names it
        return [name for name in _COMMANDS if _is_there(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS or not _is_there(cmd_name):
            return None
        name = cmd_name.replace("-", "_")
        module = import_module("duewheel.cli.demo.command" if name == "demo" else f"duewheel.cli.{name}")
        command: click.Command = getattr(module, name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except DueWheelError as error:
            raise click.ClickException(one_line(str(error))) from error
        except psycopg2.Error as error:
            raise click.ClickException(explained(error)) from error
        except BrokenPipeError:
            # The reader of the output has closed the pipe; click ends quietly.
            raise
        except OSError as error:
            # For example, a data folder that cannot be made.
            raise click.ClickException(one_line(str(error))) from error


@click.group(
    cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(duewheel.__version__, prog_name="duewheel")
def main() -> None:
    """Delay messages for Airflow: send now, delivered at an instant.

    \b
    duewheel topic create order-timeout
    duewheel message send '{"order": 42}' --topic order-timeout --delay 30m --key 42
    duewheel message recall --topic order-timeout --key 42
    duewheel watch

    Exit status: 0 done; 1 refused, with the reason on standard error; 2 wrong usage; 3 nothing was due,
    found, recalled or redriven.
    """
