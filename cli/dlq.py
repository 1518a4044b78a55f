"""`duewheel dlq`: messages that failed for the last time (R14, X12)."""

from __future__ import annotations

from datetime import datetime

import click

from duewheel.cli.answer import Answer, as_mapping, counted, end_with_nothing
from duewheel.cli.broker_command import with_broker
from duewheel.cli.parameters import instant
from duewheel.store import Broker

_COLUMNS = ("dead_at", "message_id", "topic", "key", "attempt", "redriven_at", "reason", "body")
_REDRIVEN = {None: None, "open": False, "redriven": True}


@click.group()
def dlq() -> None:
    """Dead letters: list, redrive.

    \b
    duewheel dlq list cancel-unpaid-orders
    """


@dlq.command("list")
@click.argument("group")
@click.option("--topic", help="Only those of this topic.")
@click.option("--max", "max_messages", type=int, default=100, show_default=True, help="At most this many.")
@click.option("--open", "which", flag_value="open", help="Only those that were not redriven.")
@click.option("--redriven", "which", flag_value="redriven", help="Only those that were.")
@with_broker
def list_dead_letters(
    broker: Broker, answer: Answer, group: str, topic: str | None, max_messages: int, which: str | None
) -> None:
    """List the dead letters of consumer group GROUP, the oldest first.

    \b
    duewheel dlq list cancel-unpaid-orders --topic order-timeout --open
    """
    letters = broker.dead_letters(group, topic=topic, max_messages=max_messages, redriven=_REDRIVEN[which])
    answer.rows(
        (as_mapping(letter) for letter in letters), columns=_COLUMNS, empty=f"{group} has no dead letters."
    )


@dlq.command()
@click.argument("group")
@click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]...")
@click.option("--topic", help="Only those of this topic.")
@click.option("--tag", help="Only those with this tag.")
@click.option("--key-prefix", help="Only those whose key begins so.")
@click.option("--reason", "reason_contains", help="Only those whose reason contains this text.")
@click.option("--dead-from", type=instant, help="Only those that died at this instant or later.")
@click.option("--dead-until", type=instant, help="Only those that died before this instant.")
@click.option(
    "--max", "max_messages", type=click.IntRange(min=1), help="At most this many, the oldest first."
)
@click.option(
    "--rate", "per_second", type=click.FloatRange(min=0, min_open=True), help="At most this many per second."
)
@click.option("--dry-run", is_flag=True, help="Only count them.")
@with_broker
def redrive(
    broker: Broker,
    answer: Answer,
    group: str,
    message_ids: tuple[str, ...],
    topic: str | None,
    tag: str | None,
    key_prefix: str | None,
    reason_contains: str | None,
    dead_from: datetime | None,
    dead_until: datetime | None,
    max_messages: int | None,
    per_second: float | None,
    dry_run: bool,
) -> None:
    """Give dead letters of consumer group GROUP to it again: all, some by MESSAGE_ID, or those that match.

    Each is redriven once, however often this is run or interrupted. Status 3 if none matches.

    \b
    duewheel dlq redrive cancel-unpaid-orders --reason timeout --rate 50 --dry-run
    """
    done = broker.redrive(
        group,
        topic,
        message_ids=message_ids or None,
        tag=tag,
        key_prefix=key_prefix,
        reason_contains=reason_contains,
        dead_from=dead_from,
        dead_until=dead_until,
        max_messages=max_messages,
        per_second=per_second,
        dry_run=dry_run,
    )
    if dry_run:
        sentence = f"{counted(done.matched, 'dead letter')} would be redriven."
    else:
        sentence = f"{counted(done.redriven, 'dead letter')} redriven."
    answer.done(sentence, **as_mapping(done))
    if not done.matched:
        end_with_nothing()
