"""`duewheel topic`: create, show, change and delete topics."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import topic_argument, yes_option
from duewheel.cli.parameters import duration
from duewheel.store import Broker, MessageType
from duewheel.store.operations.topics import find_topic
from duewheel.store.values.errors import UnknownTopic

_COLUMNS = ("name", "message_type", "queues", "max_delay", "out_of_range", "granularity", "retention")
_TYPES = [kind.value for kind in MessageType]


def _settings(without_levels: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of `create` and `update`; `without_levels` describes the levels if none is given."""
    options = (
        click.option("--retention", type=duration, help="How long messages are kept after delivery."),
        click.option("--dead-letter-retention", type=duration, help="How long dead letters are kept."),
        click.option("--granularity", type=duration, help="A busy topic is released at most this often."),
        click.option(
            "--out-of-range",
            type=click.Choice(["reject", "deliver"]),
            help="A longer delay is refused, or delivered at once.",
        ),
        click.option("--max-delay", type=duration, help="The longest delay."),
        click.option(
            "--delay-level",
            "delay_levels",
            type=duration,
            multiple=True,
            help=f"A delay level; repeat it for each, from level 1. Without it: {without_levels}.",
        ),
    )
    return lambda command: reduce(lambda made, option: option(made), options, command)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value not in (None, ())}


@click.group()
def topic() -> None:
    """Topics: create, list, show, update, delete.

    \b
    duewheel topic create order-timeout --max-delay 7d
    """


@topic.command()
@click.argument("name")
@click.option(
    "--type",
    "message_type",
    type=click.Choice(_TYPES, case_sensitive=False),
    default="DELAY",
    show_default=True,
    help="The kind of messages that the topic takes.",
)
@click.option(
    "--queues", type=click.IntRange(min=1), help="How many consumers of a group can work at the same time."
)
@_settings("RocketMQ's 18 levels, 1 s to 2 h")
@with_broker
def create(broker: Broker, answer: Answer, name: str, message_type: str, **settings: Any) -> None:
    """Create topic NAME; if it exists with the same settings, nothing changes.

    \b
    duewheel topic create order-timeout --max-delay 7d --granularity 10ms
    duewheel topic create reminders --delay-level 1m --delay-level 1h --delay-level 1d
    """
    is_new = find_topic(broker, name) is None
    broker.create_topic(name, message_type=message_type.upper(), **_given(settings))
    if is_new:
        sentence, outcome = f"Topic {name} is created.", "created"
    else:
        sentence, outcome = f"Topic {name} exists already, with these settings: unchanged.", "unchanged"
    answer.done(sentence, outcome=outcome, **_found(broker, name))


@topic.command("list")
@with_broker
def list_topics(broker: Broker, answer: Answer) -> None:
    """List the topics.

    \b
    duewheel topic list --json
    """
    answer.rows(
        (as_mapping(found) for found in broker.topics()), columns=_COLUMNS, empty="There are no topics."
    )


@topic.command()
@topic_argument()
@with_broker
def show(broker: Broker, answer: Answer, name: str) -> None:
    """Show the settings of topic NAME.

    \b
    duewheel topic show order-timeout
    """
    answer.record(_found(broker, name))


@topic.command()
@topic_argument()
@_settings("the levels stay")
@with_broker
def update(broker: Broker, answer: Answer, name: str, **settings: Any) -> None:
    """Change settings of topic NAME; its type and queues cannot change.

    \b
    duewheel topic update order-timeout --retention 7d
    """
    settings = _given(settings)
    if not settings:
        raise click.UsageError("Give at least one setting to change.")
    before = _found(broker, name)
    broker.update_topic(name, **settings)
    after = _found(broker, name)
    if after != before:
        sentence, outcome = f"Topic {name} is changed.", "changed"
    else:
        sentence, outcome = f"Topic {name} had these settings already: unchanged.", "unchanged"
    answer.done(sentence, outcome=outcome, **after)


@topic.command()
@topic_argument()
@yes_option
@with_broker
def delete(broker: Broker, answer: Answer, name: str, yes: bool) -> None:
    """Delete topic NAME and all its messages.

    \b
    duewheel topic delete order-timeout --yes
    """
    if not yes:
        click.confirm(f"Delete topic {name} and all its messages?", abort=True, err=True)
    broker.delete_topic(name)
    answer.done(f"Topic {name} is deleted, with its messages.", outcome="deleted", name=name)


def _found(broker: Broker, name: str) -> dict[str, Any]:
    found = find_topic(broker, name)
    if found is None:
        raise UnknownTopic(f"there is no topic {name!r}: `duewheel topic list` shows the topics")
    return as_mapping(found)
