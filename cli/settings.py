"""`duewheel settings`: the settings of the whole broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.parameters import duration, size
from duewheel.store import Broker


@click.group()
def settings() -> None:
    """The settings of the whole broker: show, update.

    \b
    duewheel settings show
    """


@settings.command()
@with_broker
def show(broker: Broker, answer: Answer) -> None:
    """Show the settings, and how large the slots are whose time has begun.

    \b
    duewheel settings show
    """
    answer.record(as_mapping(broker.settings()))


@settings.command()
@click.option(
    "--retention-bytes",
    type=size,
    help="Above this size on disk of the slots whose time has begun, the oldest are dropped before their"
    " retention ends; 0, the default: no limit.",
)
@click.option(
    "--when-full",
    type=click.Choice(["keep_unread", "drop_unread"]),
    help="Then messages that a group has not read are kept, the default, or dropped, too, if that brings the"
    " size below the limit.",
)
@click.option(
    "--abandoned-after",
    type=duration,
    help="A group that receives nothing for this long loses messages past retention; 0s, the default: never.",
)
@with_broker
def update(broker: Broker, answer: Answer, **settings: Any) -> None:
    """Change the settings that are given.

    \b
    duewheel settings update --retention-bytes 20GiB --when-full keep_unread
    """
    if all(value is None for value in settings.values()):
        raise click.UsageError("Give at least one setting to change.")
    before = broker.settings()
    broker.update_settings(**settings)
    after = broker.settings()
    if replace(before, message_bytes=0) == replace(after, message_bytes=0):
        sentence, outcome = "The broker had these settings already: unchanged.", "unchanged"
    else:
        sentence, outcome = "The settings of the broker are changed.", "changed"
    answer.done(sentence, outcome=outcome, **as_mapping(after))
