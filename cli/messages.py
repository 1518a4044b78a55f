"""`duewheel send`, `receive`, `recall`, `find`, `history`: one message at a time, from a shell."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Any, Literal

import click

from duewheel.cli.answer import Answer, as_mapping, counted, end_with_nothing
from duewheel.cli.broker_command import with_broker
from duewheel.cli.parameters import duration, instant, name_and_value, start
from duewheel.store import Broker, ConsumeMode, Message, RecallOutcome, UnknownMessage

_FOUND_COLUMNS = ("message_id", "key", "tag", "deliver_at", "recalled", "released", "body")
_RECEIVED_COLUMNS = ("message_id", "key", "tag", "deliver_at", "attempt", "body")
_HISTORY_COLUMNS = ("consumer_group", "state", "at", "until_at", "attempt", "consumer", "reason")


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--delay", type=duration, help="Deliver after this long: 250ms, 45s, 1h30m, 7d (D02).")
@click.option(
    "--at", "deliver_at", type=instant, help="Deliver at this instant: ISO 8601 with zone, or Unix ms (D01)."
)
@click.option("--level", "delay_level", type=int, help="Deliver after this delay level, 1 is 1 s (L01).")
@click.option("--key", help="Your own name for the message, to find and recall it by (X02).")
@click.option("--tag", help="What consumers can filter by (D12).")
@click.option(
    "--property", "properties", type=name_and_value, multiple=True, metavar="NAME=VALUE", help="A property."
)
@click.option(
    "--message-group",
    help="Messages of one group share a queue; on a FIFO topic they keep their order (R07).",
)
@click.option("--idempotency-key", help="The same key again sends nothing (X07).")
@click.option(
    "--on-conflict",
    type=click.Choice(["allow", "keep", "replace"]),
    default="allow",
    show_default=True,
    help="What to do if a message with this key is waiting (X04).",
)
@with_broker
def send(
    broker: Broker,
    answer: Answer,
    topic: str,
    body: str,
    delay: timedelta | None,
    deliver_at: datetime | None,
    delay_level: int | None,
    key: str | None,
    tag: str | None,
    properties: tuple[tuple[str, str], ...],
    message_group: str | None,
    idempotency_key: str | None,
    on_conflict: str,
) -> None:
    """Send BODY to TOPIC; `-` reads the body from standard input.

    \b
    duewheel send order-timeout '{"order": 42}' --delay 30m --key 42
    """
    receipt = broker.send(
        topic,
        sys.stdin.buffer.read() if body == "-" else body,
        delay=delay,
        deliver_at=deliver_at,
        delay_level=delay_level,
        key=key,
        tag=tag,
        properties=dict(properties) or None,
        message_group=message_group,
        idempotency_key=idempotency_key,
        on_conflict=on_conflict,
    )
    answer.record(as_mapping(receipt))


@click.command()
@click.argument("topic")
@click.argument("group")
@click.option("--max", "max_messages", type=int, default=32, show_default=True, help="At most this many.")
@click.option(
    "--invisible", type=duration, default="60s", show_default=True, help="How long they are leased (D07)."
)
@click.option("--wait", type=duration, default="0s", show_default=True, help="Wait this long for one (D15).")
@click.option("--tags", default="*", show_default=True, help="Only these tags: 'a || b'.")
@click.option("--filter", "properties_filter", help='Only these: SQL-92 over properties, "amount > 100".')
@click.option(
    "--start",
    "starts_at",
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
    help="Broadcasting: every instance of the group gets every message (R02).",
)
@click.option("--name", help="Who has the messages, in the history; with --mode broadcasting the instance.")
@click.option("--ack", is_flag=True, help="Ack them once they are printed; else they come again.")
@with_broker
def receive(
    broker: Broker,
    answer: Answer,
    topic: str,
    group: str,
    max_messages: int,
    invisible: timedelta,
    wait: timedelta,
    tags: str,
    properties_filter: str | None,
    starts_at: datetime | Literal["earliest", "latest"],
    mode: str,
    name: str | None,
    ack: bool,
) -> None:
    """Receive what is due on TOPIC for consumer group GROUP; status 3 if nothing is.

    \b
    duewheel receive order-timeout cancel-unpaid-orders --wait 30s --ack
    duewheel receive order-timeout audit --filter "region = 'north' AND amount > 100"
    """
    consumer = broker.consumer(
        topic, group, tags=tags, start=starts_at, name=name, filter=properties_filter, mode=mode
    )
    batch = consumer.receive(max_messages=max_messages, invisible=invisible, wait=wait)
    answer.rows((_received(message) for message in batch), columns=_RECEIVED_COLUMNS, empty="Nothing is due.")
    if not batch:
        end_with_nothing()
    if ack:
        consumer.ack(batch)


@click.command()
@click.argument("message_id", required=False)
@click.option("--topic", help="Instead of a message id: the topic, with one or more of the options below.")
@click.option("--key", help="The key it was sent with (X02).")
@click.option("--tag", help="All that wait with this tag (X05).")
@click.option("--key-prefix", help="All that wait under keys that begin so (X05).")
@click.option("--due-from", type=instant, help="All that are due at this instant or later (X05).")
@click.option("--due-until", type=instant, help="All that are due before this instant (X05).")
@click.option("--everything", is_flag=True, help="All that wait on the topic (X05).")
@click.option("--dry-run", is_flag=True, help="Only count those that would be recalled.")
@with_broker
def recall(
    broker: Broker,
    answer: Answer,
    message_id: str | None,
    topic: str | None,
    key: str | None,
    tag: str | None,
    key_prefix: str | None,
    due_from: datetime | None,
    due_until: datetime | None,
    everything: bool,
    dry_run: bool,
) -> None:
    """Recall a waiting message by MESSAGE_ID, or by --topic and --key; or all that match, by --topic.

    The answer is the truth: `recalled` (it will never be delivered), `already_released` or `not_found` (X01);
    status 3 if nothing is recalled.

    \b
    duewheel recall --topic order-timeout --key 42
    duewheel recall --topic order-timeout --tag trial --due-until 2030-01-31T17:30:00Z --dry-run
    """
    criteria = {"tag": tag, "key_prefix": key_prefix, "due_from": due_from, "due_until": due_until}
    in_bulk = everything or any(given is not None for given in criteria.values())
    if in_bulk and topic is not None and message_id is None and key is None:
        _recall_in_bulk(broker, answer, topic, dry_run, everything=everything, **criteria)
    elif in_bulk or dry_run:
        raise click.UsageError(
            "Give --topic, without MESSAGE_ID and --key, and at least one of --tag, --key-prefix, "
            "--due-from, --due-until and --everything."
        )
    elif message_id is not None and topic is None and key is None:
        _tell(answer, broker.recall(message_id))
    elif message_id is None and topic is not None and key is not None:
        _tell(answer, broker.recall_key(topic, key))
    else:
        raise click.UsageError(
            "Give MESSAGE_ID, or --topic and --key, or --topic and what is to be recalled."
        )


def _tell(answer: Answer, outcome: RecallOutcome) -> None:
    answer.done(outcome.value, outcome=outcome)
    if outcome is not RecallOutcome.RECALLED:
        end_with_nothing()


def _recall_in_bulk(broker: Broker, answer: Answer, topic: str, dry_run: bool, **criteria: Any) -> None:
    done = broker.recall_many(topic, dry_run=dry_run, **criteria)
    recalled = done.matched - done.already_released
    late = f"{counted(done.already_released, 'message')} had been released before."
    verb = "would be recalled" if dry_run else "recalled"
    answer.done(f"{counted(recalled, 'message')} {verb}; {late}", **as_mapping(done))
    if not recalled:
        end_with_nothing()


@click.command()
@click.argument("message_id", required=False)
@click.option("--topic", help="With --key: the topic.")
@click.option("--key", help="Instead of a message id: the key it was sent with (X02).")
@click.option("--delay", type=duration, help="Deliver after this long, counted from now.")
@click.option("--at", "deliver_at", type=instant, help="Deliver at this instant.")
@with_broker
def reschedule(
    broker: Broker,
    answer: Answer,
    message_id: str | None,
    topic: str | None,
    key: str | None,
    delay: timedelta | None,
    deliver_at: datetime | None,
) -> None:
    """Move a waiting message by MESSAGE_ID, or those of --topic and --key, to another instant (X03).

    It has a new id then. Status 1 if it was released before.

    \b
    duewheel reschedule --topic order-timeout --key 42 --delay 1h
    """
    if (delay is None) == (deliver_at is None):
        raise click.UsageError("Give either --delay or --at.")
    if message_id is not None and topic is None and key is None:
        receipts = [broker.reschedule(message_id, delay=delay, deliver_at=deliver_at)]
    elif message_id is None and topic is not None and key is not None:
        receipts = broker.reschedule_key(topic, key, delay=delay, deliver_at=deliver_at)
    else:
        raise click.UsageError("Give either MESSAGE_ID, or --topic and --key.")
    answer.rows(map(as_mapping, receipts), columns=("message_id", "deliver_at", "outcome"), empty="")


@click.command()
@click.argument("message_id", required=False)
@click.option("--topic", help="With --key: the topic.")
@click.option("--key", help="Instead of a message id: the key it was sent with (X02).")
@with_broker
def find(broker: Broker, answer: Answer, message_id: str | None, topic: str | None, key: str | None) -> None:
    """Find a message by MESSAGE_ID, or messages by --topic and --key; status 3 if there is none.

    \b
    duewheel find --topic order-timeout --key 42 --json
    """
    if message_id is not None and topic is None and key is None:
        message = broker.find(message_id)
        found = [] if message is None else [message]
    elif message_id is None and topic is not None and key is not None:
        found = broker.find_key(topic, key)
    else:
        raise click.UsageError("Give either MESSAGE_ID, or --topic and --key.")
    answer.rows((as_mapping(message) for message in found), columns=_FOUND_COLUMNS, empty="Nothing found.")
    if not found:
        end_with_nothing()


@click.command()
@click.argument("message_id")
@with_broker
def history(broker: Broker, answer: Answer, message_id: str) -> None:
    """Show what happened to MESSAGE_ID: every state, for every consumer group (D06, X08).

    \b
    duewheel history 000000010000000651f2...
    """
    entries = broker.history(message_id)
    if not entries:
        raise UnknownMessage(f"there is no message {message_id!r}: `duewheel find` looks one up by its key")
    answer.rows((as_mapping(entry) for entry in entries), columns=_HISTORY_COLUMNS, empty="")


def _received(message: Message) -> dict[str, object]:
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "key": message.key,
        "tag": message.tag,
        "properties": message.properties,
        "message_group": message.message_group,
        "born_at": message.born_at,
        "deliver_at": message.deliver_at,
        "attempt": message.attempt,
        "body": message.body,
    }
