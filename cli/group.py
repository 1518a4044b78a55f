"""`duewheel group`: list consumer groups with their positions, pause, retry, rewind and delete them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import click

from duewheel.cli.answer import Answer, as_mapping, end_with_nothing
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import group_argument, topic_option, yes_option
from duewheel.cli.parameters import start
from duewheel.cli.readable import text_of
from duewheel.store import Broker, Group
from duewheel.store.values.numbers import counted

_COLUMNS = (
    "group",
    "topic",
    "mode",
    "instances",
    "tags",
    "filter",
    "read_to",
    "lag",
    "stalled_since",
    "paused_at",
    "retries",
    "retry_set_by",
)

#: So many messages are given in one transaction.
_RETRIED_AT_ONCE = 1_000


@click.group()
def group() -> None:
    """Consumer groups: list, set-subscription, rename, pause, resume, retry-now, rewind, delete.

    \b
    duewheel group list
    """


@group.command("list")
@topic_option("Only groups that read this topic.")
@with_broker
def list_groups(broker: Broker, answer: Answer, topic: str | None) -> None:
    """List the consumer groups: topics, tags, filters, positions, retry settings and who set these.

    `read to` and `lag` are for the queue that is furthest behind. A group with `stalled since` has left
    messages unread for longer than the topic's retention; they stay on disk.

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


@group.command("set-subscription")
@group_argument()
@topic_option("The topic.", required=True)
@click.option("--tags", default="*", show_default=True, help="Only messages with these tags: 'a || b'.")
@click.option("--filter", help="Only messages that match: jsonpath over properties, '$.amount > 100'.")
@with_broker
def set_subscription(broker: Broker, answer: Answer, group: str, topic: str, **chosen: Any) -> None:
    """Set which messages consumer group GROUP receives of a topic from now on.

    Messages that it has passed are delivered only after a rewind. Leases and retries stay.

    \b
    duewheel group set-subscription cancel-unpaid-orders --topic order-timeout --tags 'late || unpaid'
    """
    change = broker.set_subscription(topic, group, **chosen)
    answer.done(
        f"Consumer group {group} received tags {change.old_tags} and {_filter(change.old_filter)} of topic "
        f"{topic}. It now skips {counted(change.passed_over, 'unread message')} that it would have "
        f"received. It has passed at least {counted(change.missed, 'message')} that it would receive now: "
        "rewind the group to receive them.",
        outcome="changed",
        group=group,
        topic=topic,
        **as_mapping(change),
    )


@group.command()
@click.argument("old")
@click.argument("new")
@with_broker
def rename(broker: Broker, answer: Answer, old: str, new: str) -> None:
    """Give consumer group OLD the name NEW; positions, leases, retries and dead letters are kept.

    Rename the group before a consumer with the new name starts. A consumer that starts with the old name
    is refused.

    \b
    duewheel group rename cancel-unpaid-orders cancel-orders
    """
    broker.rename_group(old, new)
    answer.done(f"Consumer group {old} is now {new}.", outcome="renamed", group=old, new_name=new)


def _filter(text: str | None) -> str:
    return "no filter" if text is None else f"filter {text}"


@group.command()
@group_argument()
@topic_option("Only on this topic; otherwise on all that it reads.")
@with_broker
def pause(broker: Broker, answer: Answer, group: str, topic: str | None) -> None:
    """Let consumer group GROUP get no messages until it is resumed; its position is kept.

    Leased messages may still be answered. Its leases end, and failed messages become retries or dead letters,
    as without a pause.

    \b
    duewheel group pause cancel-unpaid-orders
    """
    changed = broker.pause_group(group, topic=topic)
    words, outcome = ("is paused", "paused") if changed else ("was paused already: unchanged", "unchanged")
    answer.done(f"Consumer group {group} {words}.", outcome=outcome, group=group, topic=topic)


@group.command()
@group_argument()
@topic_option("Only on this topic; otherwise on all that it reads.")
@with_broker
def resume(broker: Broker, answer: Answer, group: str, topic: str | None) -> None:
    """Let paused consumer group GROUP continue from its position.

    \b
    duewheel group resume cancel-unpaid-orders
    """
    changed = broker.resume_group(group, topic=topic)
    words, outcome = ("continues", "resumed") if changed else ("was not paused: unchanged", "unchanged")
    answer.done(f"Consumer group {group} {words}.", outcome=outcome, group=group, topic=topic)


@group.command("retry-now")
@group_argument()
@click.argument("message_ids", nargs=-1, required=True, metavar="MESSAGE_ID...")
@with_broker
def retry_now(broker: Broker, answer: Answer, group: str, message_ids: tuple[str, ...]) -> None:
    """Make retries of messages due now in consumer group GROUP.

    No attempt is lost. Status 3 if none of the messages waits for a retry.

    \b
    duewheel group retry-now cancel-unpaid-orders 0000000100006955a7c3d00000000000000000000200
    """
    waited = [
        one
        for start in range(0, len(message_ids), _RETRIED_AT_ONCE)
        for one in broker.retry_now(group, message_ids[start : start + _RETRIED_AT_ONCE])
    ]
    answer.done(f"{counted(len(waited), 'retry', 'retries')} due now.", retried=waited)
    if not waited:
        end_with_nothing()


@group.command()
@group_argument()
@topic_option("The topic on which to move the group.", required=True)
@click.option(
    "--to",
    type=start,
    required=True,
    help=(
        "Where the group continues: an instant, `earliest` (all stored messages), or `latest` (only messages "
        "released from now on)."
    ),
)
@with_broker
def rewind(
    broker: Broker, answer: Answer, group: str, topic: str, to: datetime | Literal["earliest", "latest"]
) -> None:
    """Set consumer group GROUP back, or ahead, on a topic; other groups are not affected.

    Its leases on the topic end: messages that its consumers have leased are delivered again, and their acks
    are refused.

    \b
    duewheel group rewind cancel-unpaid-orders --topic order-timeout --to 2030-01-31T17:30:00Z
    """
    done = broker.rewind(topic, group, to)
    answer.done(
        f"Consumer group {group} continues from {text_of(to)} on topic {topic}: "
        f"{counted(done.leases_ended, 'lease')} ended; messages in them from before that instant, "
        f"delivered again: {done.messages_returned}; "
        f"{counted(done.retries_recalled, 'retry', 'retries')} recalled.",
        **as_mapping(done),
    )


@group.command()
@group_argument()
@topic_option("Delete it on this topic only.")
@yes_option
@with_broker
def delete(broker: Broker, answer: Answer, group: str, topic: str | None, yes: bool) -> None:
    """Delete consumer group GROUP with its position, retries and dead letters; messages stay.

    \b
    duewheel group delete cancel-unpaid-orders --topic order-timeout --yes
    """
    where = "" if topic is None else f" on topic {topic}"
    if not yes:
        click.confirm(
            f"Delete consumer group {group}{where}, its retries and dead letters?", abort=True, err=True
        )
    broker.delete_group(group, topic=topic)
    answer.done(f"Consumer group {group} is deleted{where}.", outcome="deleted", group=group, topic=topic)
