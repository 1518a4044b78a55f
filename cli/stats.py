"""`duewheel stats`: what waits, what is due, what is being worked on."""

from __future__ import annotations

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.store import Broker

_TOPIC_COLUMNS = ("topic", "message_type", "waiting", "next_due_at", "released_to", "stragglers")
_GROUP_COLUMNS = ("group", "topic", "ready", "oldest_deliver_at", "inflight", "waiting_retry", "dead")


@click.command()
@with_broker
def stats(broker: Broker, answer: Answer) -> None:
    """Show what waits on each topic, and how far each consumer group is.

    Cheap with any number of waiting messages: above some thousands the number is an estimate, marked with ~.

    \b
    duewheel stats --json
    """
    found = broker.stats()
    if answer.as_json:
        answer.record(as_mapping(found))
        return
    topics = [
        as_mapping(topic) | {"waiting": topic.waiting if topic.waiting_is_exact else f"~{topic.waiting}"}
        for topic in found.topics
    ]
    answer.rows(topics, columns=_TOPIC_COLUMNS, empty="There are no topics.")
    groups = [as_mapping(group) | {"topic": topic.topic} for topic in found.topics for group in topic.groups]
    if groups:
        click.echo()
        answer.rows(groups, columns=_GROUP_COLUMNS, empty="")
