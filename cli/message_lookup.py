"""`duewheel message find`, `list` and `history`: stored messages and their states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from duewheel.cli.answer import Answer, as_mapping, end_with_nothing
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import id_or_key, limit_option, topic_option
from duewheel.cli.parameters import instant
from duewheel.store import Broker, UnknownMessage
from duewheel.store.values.stored_messages import ListedMessage

_FOUND_COLUMNS = ("message_id", "key", "tag", "deliver_at", "recalled", "released", "moved_to", "body")
_LISTED_COLUMNS = ("message_id", "topic", "key", "tag", "deliver_at", "released", "recalled", "moved_to")
_HISTORY_COLUMNS = ("consumer_group", "state", "at", "until_at", "attempt", "consumer", "reason", "known_as")
# The words that people read for the states, as on the page; programs get the names in JSON.
_STATE_WORDS = {
    "Initialized": "sent",
    "Timing": "waiting",
    "Moved": "moved",
    "Ready": "released",
    "Inflight": "in flight",
    "Acked": "acked",
    "Skipped": "skipped",
    "WaitingRetry": "waiting for a retry",
    "DLQ": "dead letter",
    "Deleted": "recalled",
}
# The largest page that the broker returns.
_PAGE = 1_000


@click.command()
@id_or_key
@with_broker
def find(broker: Broker, answer: Answer, sought: str | tuple[str, str]) -> None:
    """Find a message by MESSAGE_ID, or the messages of a key by --topic and --key. Status 3 if none is found.

    A message that was moved is found by every id that it has had.

    \b
    duewheel message find --topic order-timeout --key 42 --json
    """
    if isinstance(sought, str):
        message = broker.find(sought)
        found = [] if message is None else [message]
    else:
        found = broker.find_key(*sought)
    answer.rows(map(as_mapping, found), columns=_FOUND_COLUMNS, empty="Nothing found.")
    if not found:
        end_with_nothing()


@click.command("list")
@topic_option("Only messages of this topic.")
@click.option(
    "--state",
    type=click.Choice(["waiting", "released", "recalled", "moved", "all"]),
    default="waiting",
    show_default=True,
    help="Only messages in this state.",
)
@click.option("--tag", help="Only messages with this tag.")
@click.option("--key-prefix", help="Only messages whose key begins with this; then sorted by key.")
@click.option("--due-from", type=instant, help="Only messages due at this instant or later.")
@click.option("--due-until", type=instant, help="Only messages due before this instant.")
@limit_option(100)
@with_broker
def list_messages(
    broker: Broker, answer: Answer, topic: str | None, max_messages: int, **criteria: Any
) -> None:
    """List messages without their bodies, by topic and delivery instant.

    \b
    duewheel message list --topic order-timeout --key-prefix shop-7/ --max-messages 20
    """

    def listed() -> Iterator[ListedMessage]:
        after: str | None = None
        left = max_messages
        while left:
            page = broker.list_messages(topic, after=after, max_messages=min(left, _PAGE), **criteria)
            yield from page.messages
            left -= len(page.messages)
            after = page.next
            if after is None:
                return

    answer.rows(map(as_mapping, listed()), columns=_LISTED_COLUMNS, empty="No messages match.")


@click.command()
@click.argument("message_id")
@with_broker
def history(broker: Broker, answer: Answer, message_id: str) -> None:
    """Show the history of MESSAGE_ID: every state, for every consumer group.

    The table has the words for the states ("in flight"), and JSON their names ("Inflight").

    \b
    duewheel message history 000000010000000651f2...
    """
    entries = broker.history(message_id)
    if not entries:
        raise UnknownMessage(
            f"there is no message {message_id!r}: `duewheel message find` looks one up by its key"
        )
    rows = [as_mapping(entry) for entry in entries]
    if not answer.as_json:
        rows = [row | {"state": _STATE_WORDS[row["state"]]} for row in rows]
    answer.rows(rows, columns=_HISTORY_COLUMNS, empty="")
