"""The options that commands share, so that each means the same and completes the same everywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from duewheel.cli.completing import groups, topics
from duewheel.cli.parameters import duration, instant, name_and_value

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option: Option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
yes_option: Option = click.option("--yes", is_flag=True, help="Do not ask.")
dry_run_option: Option = click.option("--dry-run", is_flag=True, help="Only count them.")
delay_option: Option = click.option(
    "--delay", type=duration, help="Deliver after this long, counted from now: 250ms, 45s, 1h30m, 7d."
)
at_option: Option = click.option(
    "--deliver-at", type=instant, help="Deliver at this instant: ISO 8601 with zone, or Unix ms."
)
property_option: Option = click.option(
    "--property", "properties", type=name_and_value, multiple=True, metavar="NAME=VALUE", help="A property."
)


def topic_option(explanation: str, *, required: bool = False) -> Option:
    """Return the option `--topic`, which completes the names of topics."""
    return click.option("-t", "--topic", required=required, shell_complete=topics, help=explanation)


def group_option(explanation: str, *, required: bool = False) -> Option:
    """Return the option `--group`, which completes the names of groups."""
    return click.option("-g", "--group", required=required, shell_complete=groups, help=explanation)


def limit_option(default: int | None = None) -> Option:
    """Return the option `--max-messages`."""
    return click.option(
        "--max-messages",
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
        help="At most this many.",
    )


def id_or_key(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take MESSAGE_ID, or `--topic` and `--key`; it receives the id or the pair as `sought`."""

    @click.argument("message_id", required=False)
    @topic_option("With --key: the topic.")
    @click.option("--key", help="The key it was sent with.")
    @functools.wraps(command)
    def with_either(message_id: str | None, topic: str | None, key: str | None, **given: Any) -> None:
        match message_id, topic, key:
            case (str(), None, None):
                command(sought=message_id, **given)
            case (None, str(), str()):
                command(sought=(topic, key), **given)
            case _:
                raise click.UsageError("Give either MESSAGE_ID, or --topic and --key.")

    return with_either


def topic_argument() -> Option:
    """Return the argument of a verb of `topic`: the name of an existing topic."""
    return click.argument("name", shell_complete=topics)


def group_argument() -> Option:
    """Return the argument of a verb of `group`: the name of an existing group."""
    return click.argument("group", shell_complete=groups)
