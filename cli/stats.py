"""`duewheel stats`: the numbers of waiting, due and leased messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import topic_option
from duewheel.store import Broker, UnknownTopic
from duewheel.store.operations.statistics import Stats, TopicStats
from duewheel.store.wheel.upkeep import held_up_by

TOPIC_COLUMNS = ("topic", "message_type", "waiting", "next_due_at", "released_to", "stragglers")
GROUP_COLUMNS = (
    "group",
    "topic",
    "ready",
    "oldest_deliver_at",
    "inflight",
    "waiting_retry",
    "dead",
    "paused_at",
    "idle_since",
    "abandoned_since",
    "kept_messages",
    "kept_bytes",
)


@click.command()
@topic_option("Only this topic.")
@with_broker
def stats(broker: Broker, answer: Answer, topic: str | None) -> None:
    """Show how many messages wait on each topic, and how far each consumer group is.

    This is cheap with any number of waiting messages: above some thousands, the number is an estimate, marked
    with ~.

    \b
    duewheel stats --json
    """
    numbers = broker.stats()
    found = [as_mapping(each) for each in topics_of(numbers, topic)]
    upkeep = as_mapping(numbers.upkeep)
    if answer.as_json:
        answer.record({"topics": found, "upkeep": upkeep})
        return
    answer.rows(topic_rows(found), columns=TOPIC_COLUMNS, empty="There are no topics.")
    groups = group_rows(found)
    if groups:
        click.echo()
        answer.rows(groups, columns=GROUP_COLUMNS, empty="")
    left = (upkeep["slots_to_seal"], upkeep["slots_past_retention"], upkeep["messages_to_settle"])
    if any(left):
        click.echo("\nUpkeep has {} slots to seal, {} past retention, {} messages to settle.".format(*left))
    for holder in upkeep["held_up_by"]:
        click.echo(f"\nUpkeep is held up: {held_up_by(as_mapping(holder))}.")


def topics_of(numbers: Stats, topic: str | None) -> list[TopicStats]:
    """Return the numbers of all topics, or of one.

    Raises:
        UnknownTopic: no topic has this name.
    """
    found = [each for each in numbers.topics if topic in (None, each.topic)]
    if topic is not None and not found:
        raise UnknownTopic(f"there is no topic {topic!r}: `duewheel topic list` shows the topics")
    return found


def topic_rows(topics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each topic; an estimate is marked with ~."""
    return [
        {**topic, "waiting": topic["waiting"] if topic["waiting_is_exact"] else f"~{topic['waiting']}"}
        for topic in topics
    ]


def group_rows(topics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each group on each topic."""
    return [as_mapping(group) for topic in topics for group in topic["groups"]]
