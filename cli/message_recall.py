"""`duewheel message recall`, `recall-many` and `reschedule`: recall or reschedule waiting messages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from duewheel.cli.answer import Answer, as_mapping, end_with_nothing
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import at_option, delay_option, dry_run_option, id_or_key, topic_option
from duewheel.cli.parameters import instant
from duewheel.cli.progress import progress
from duewheel.store import Broker, BulkRecall, RecallOutcome
from duewheel.store.operations.recalling import recall_portion
from duewheel.store.values.numbers import counted


@click.command()
@id_or_key
@with_broker
def recall(broker: Broker, answer: Answer, sought: str | tuple[str, str]) -> None:
    """Recall a waiting message by MESSAGE_ID, or all messages of a key by --topic and --key.

    The answer is final: `recalled` (it will never be delivered), `already_released`, `replaced` (by the
    message whose id follows) or `not_found`. A key is `recalled` only if none of its messages had been
    released. Status 3 if the answer is not `recalled`. A message that was moved is recalled by every id
    that it has had.

    \b
    duewheel message recall --topic order-timeout --key 42
    """
    identity = recalled = already_released = None
    if isinstance(sought, str):
        receipt = broker.recall(sought)
        outcome, identity = receipt.outcome, receipt.message_id
        more = "" if identity in (None, sought) else f" {identity}"
    else:
        found = broker.recall_key(*sought)
        outcome, recalled, already_released = found.outcome, found.recalled, found.already_released
        both = recalled and already_released
        more = f" (recalled: {recalled}, already released: {already_released})" if both else ""
    answer.done(
        outcome.value + more,
        outcome=outcome,
        message_id=identity,
        recalled=recalled,
        already_released=already_released,
    )
    if outcome is not RecallOutcome.RECALLED:
        end_with_nothing()


@click.command("recall-many")
@topic_option("The topic they were sent to.", required=True)
@click.option("--tag", help="All that wait with this tag.")
@click.option("--key-prefix", help="All that wait under keys that begin with this.")
@click.option("--due-from", type=instant, help="All that are due at this instant or later.")
@click.option("--due-until", type=instant, help="All that are due before this instant.")
@click.option("--everything", is_flag=True, help="All that wait on the topic.")
@dry_run_option
@with_broker
def recall_many(
    broker: Broker, answer: Answer, topic: str, everything: bool, dry_run: bool, **criteria: Any
) -> None:
    """Recall all waiting messages of a topic that match. Status 3 if none does.

    They are recalled in portions of 10 000, each in a separate transaction. If the command is interrupted,
    run it again for the rest.

    \b
    duewheel message recall-many --topic order-timeout --tag trial --due-until 2030-01-31T17:30:00Z --dry-run
    """
    if everything != all(given is None for given in criteria.values()):
        raise click.UsageError(
            "Give at least one of --tag, --key-prefix, --due-from and --due-until, or --everything alone."
        )
    matched = recalled = already_released = 0
    after: str | None = None
    with progress("Recalling") as advance:
        while True:
            portion, after = recall_portion(broker, topic, dry_run=dry_run, after=after, **criteria)
            matched += portion.matched
            recalled += portion.recalled
            already_released += portion.already_released
            advance(portion.matched)
            if after is None:
                break
    done = BulkRecall(matched, recalled, already_released)
    verb = "would be recalled" if dry_run else "recalled"
    answer.done(
        f"{counted(matched - already_released, 'message')} {verb}; "
        f"{counted(already_released, 'message')} had been released before.",
        **as_mapping(done),
    )
    if matched == already_released:
        end_with_nothing()


@click.command()
@id_or_key
@delay_option
@at_option
@with_broker
def reschedule(
    broker: Broker,
    answer: Answer,
    sought: str | tuple[str, str],
    delay: timedelta | None,
    deliver_at: datetime | None,
) -> None:
    """Move a waiting message by MESSAGE_ID, or the messages of --topic and --key, to another instant.

    The message then has a new id, and its earlier ids still find it. Status 1 if it was released
    before.

    \b
    duewheel message reschedule --topic order-timeout --key 42 --delay 1h
    """
    if (delay is None) == (deliver_at is None):
        raise click.UsageError("Give either --delay or --deliver-at.")
    if isinstance(sought, str):
        receipts = [broker.reschedule(sought, delay=delay, deliver_at=deliver_at)]
    else:
        receipts = broker.reschedule_key(*sought, delay=delay, deliver_at=deliver_at)
    answer.rows(map(as_mapping, receipts), columns=("message_id", "deliver_at", "outcome"), empty="")
