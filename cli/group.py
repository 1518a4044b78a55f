"""`duewheel group`: consumer groups, how far they are, and going back in time (D08)."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.parameters import start
from duewheel.store import Broker, Group

_COLUMNS = ("group", "topic", "mode", "instances", "read_to", "lag", "retries", "retry_set_by")


@click.group()
def group() -> None:
    """Consumer groups: list, rewind.

    \b
    duewheel group list
    """


@group.command("list")
@click.option("--topic", help="Only those that read this topic.")
@with_broker
def list_groups(broker: Broker, answer: Answer, topic: str | None) -> None:
    """List the consumer groups: what they read, how far they are, how they retry and who said so (R12).

    `read to` and `lag` are of the queue that is furthest behind.

    \b
    duewheel group list --topic order-timeout
    """
    found = [_row(each) for each in broker.groups() if topic in (None, each.topic)]
    answer.rows(
        found,
        columns=_COLUMNS,
        empty="There are no consumer groups." if topic is None else f"No consumer group reads {topic}.",
    )


def _row(group: Group) -> dict[str, object]:
    retries: int | str | None = None if group.retry is None else group.retry.max_retries
    if group.retry is not None and retries is None:
        retries = "no limit"
    return as_mapping(group) | {"retries": retries}


@group.command()
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    type=start,
    required=True,
    help="Where it goes on: an instant, `earliest` (all that is kept), or `latest` (what is yet to come).",
)
@with_broker
def rewind(
    broker: Broker, answer: Answer, group: str, topic: str, to: datetime | Literal["earliest", "latest"]
) -> None:
    """Set consumer group GROUP back, or ahead, on TOPIC; other groups notice nothing (D08).

    Its leases on the topic end: what its consumers have in hand comes again, and their acks are refused.

    \b
    duewheel group rewind cancel-unpaid-orders order-timeout --to 2030-01-31T17:30:00Z
    """
    answer.record(as_mapping(broker.rewind(group, topic, to)))
