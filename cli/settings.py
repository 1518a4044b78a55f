"""`duewheel settings`: the settings of the whole broker."""

from __future__ import annotations

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.parameters import size
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
    help="Then messages that a group has not read are kept, the default, or dropped, too, where that gets"
    " below the limit.",
)
@with_broker
def update(broker: Broker, answer: Answer, retention_bytes: int | None, when_full: str | None) -> None:
    """Change the settings that are given.

    \b
    duewheel settings update --retention-bytes 20GiB --when-full keep_unread
    """
    if retention_bytes is None and when_full is None:
        raise click.UsageError("Give at least one setting to change.")
    before = broker.settings()
    broker.update_settings(retention_bytes=retention_bytes, when_full=when_full)
    after = broker.settings()
    if (before.retention_bytes, before.when_full) == (after.retention_bytes, after.when_full):
        sentence, outcome = "The broker had these settings already: unchanged.", "unchanged"
    else:
        sentence, outcome = "The settings of the broker are changed.", "changed"
    answer.done(sentence, outcome=outcome, **as_mapping(after))
