"""`duewheel message receive`: lease due messages for one consumer group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from duewheel.cli.answer import Answer, end_with_nothing
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import group_option, limit_option, topic_option
from duewheel.cli.parameters import duration, start
from duewheel.store import Broker, ConsumeMode

_COLUMNS = ("message_id", "key", "tag", "deliver_at", "attempt", "body")
_FIELDS = (
    *("message_id", "topic", "key", "tag", "properties"),
    *("message_group", "born_at", "deliver_at", "attempt", "body"),
)


@click.command()
@topic_option("The topic to receive from.", required=True)
@group_option("The consumer group that receives; made if it is new.", required=True)
@limit_option(32)
@click.option(
    "--invisible", type=duration, default="60s", show_default=True, help="How long the lease lasts."
)
@click.option("--wait", type=duration, default="0s", show_default=True, help="Wait this long for a message.")
@click.option("--tags", help="The group reads only these tags: 'a || b'; set by its first consumer.")
@click.option("--filter", help="The group reads only matching messages: jsonpath, '$.amount > 100'.")
@click.option(
    "--start",
    type=start,
    default="earliest",
    show_default=True,
    help="Where a new group starts: `earliest`, `latest` or an instant.",
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in ConsumeMode]),
    default=ConsumeMode.CLUSTERING.value,
    show_default=True,
    help="With broadcasting, every instance of the group gets every message.",
)
@click.option(
    "--consumer",
    "name",
    help="The consumer's name in the messages' history; with --mode broadcasting, the instance.",
)
@click.option(
    "--ack", is_flag=True, help="Ack the messages once they are printed; otherwise they are delivered again."
)
@with_broker
def receive(
    broker: Broker,
    answer: Answer,
    topic: str,
    group: str,
    max_messages: int,
    invisible: timedelta,
    wait: timedelta,
    ack: bool,
    **subscription: Any,
) -> None:
    """Lease due messages and print them. Status 3 if none is due.

    \b
    duewheel message receive --topic order-timeout --group cancel-unpaid-orders --wait 30s --ack
    duewheel message receive -t order-timeout -g audit --filter '$.region == "north" && $.amount > 100'
    """
    consumer = broker.consumer(topic, group, **subscription)
    batch = consumer.receive(max_messages=max_messages, invisible=invisible, wait=wait)
    shown = ({name: getattr(message, name) for name in _FIELDS} for message in batch)
    answer.rows(shown, columns=_COLUMNS, empty="Nothing is due.")
    if not batch:
        end_with_nothing()
    if ack:
        consumer.ack(batch)
