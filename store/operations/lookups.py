"""Looking up messages and their histories: nothing here changes anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duewheel.store.database.connections import Database
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import Instant, to_datetime

_COLUMNS = """
topic, message_id, key, tag, properties::text, body, born_at, deliver_at, asked_at, message_group, recalled,
released
"""
_FIND = f"select {_COLUMNS} from duewheel.find(%s)"
_FIND_KEY = f"select {_COLUMNS} from duewheel.find_key(%s, %s)"
_LIST = """
select topic_name, message_id, key, tag_name, born_at, deliver_at, released, recalled, listed
from duewheel.list_messages(%s, %s, %s, %s, %s, %s, %s, %s)
"""
_HISTORY = """
select consumer_group, state, at, until_at, attempt, consumer, reason from duewheel.history(%s, %s)
"""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the broker stores it, apart from its consumers; instants in UTC.

    Attributes:
        topic, message_id, key, tag, properties, body, message_group: as it was sent.
        born_at: when it was sent.
        deliver_at: the delivery instant.
        asked_at: the instant that was asked for, where it differs.
        recalled: whether it was recalled, and so is never delivered.
        released: whether consumers have received it, or may at any moment.
    """

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    properties: dict[str, Any]
    body: bytes
    born_at: datetime
    deliver_at: datetime
    asked_at: datetime | None
    message_group: str | None
    recalled: bool
    released: bool


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message in a list, without its body; instants in UTC.

    Attributes:
        topic, message_id, key, tag: as it was sent.
        born_at: when it was sent.
        deliver_at: the delivery instant.
        released: whether consumers have received it, or may at any moment.
        recalled: whether it was recalled, and so is never delivered.
    """

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    deliver_at: datetime
    released: bool
    recalled: bool


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a list.

    Attributes:
        messages: in the order of topic and instant, or with a key prefix of topic and key. There may be fewer
            than asked for, or none, before the end of the list.
        next: the value to give as ``after`` for the next page; None at the end.
    """

    messages: tuple[ListedMessage, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One state of a message, for one consumer group or for all.

    Attributes:
        consumer_group: the group whose state it is; None is the message's own, before any group has it.
        state: Initialized, Timing, Ready, Inflight, Acked, WaitingRetry, DLQ or Deleted; in broadcasting
            Skipped for a failed message.
        at: since when, in UTC; None where the logs do not say.
        until_at: for Timing and WaitingRetry the delivery instant, for Inflight the end of the lease.
        attempt: the number of the delivery, from 1.
        consumer: the present or past holder of the lease.
        reason: why it is in this state; for a retry the error of the previous attempt.
    """

    consumer_group: str | None
    state: str
    at: datetime | None
    until_at: datetime | None
    attempt: int | None
    consumer: str | None
    reason: str | None


def find(database: Database, message_id: str) -> StoredMessage | None:
    """One message; see :meth:`duewheel.store.broker.Broker.find`."""
    check_text(message_id, "message_id")
    rows = database.read(_FIND, (message_id,))
    return _stored(rows[0]) if rows else None


def find_key(database: Database, topic: str, key: str) -> list[StoredMessage]:
    """The messages of a key; see :meth:`duewheel.store.broker.Broker.find_key`."""
    check_text(topic, "topic")
    check_text(key, "key")
    return [_stored(row) for row in database.read(_FIND_KEY, (topic, key))]


def list_messages(
    database: Database,
    topic: str | None,
    state: str,
    due_from: Instant | None,
    due_until: Instant | None,
    key_prefix: str | None,
    tag: str | None,
    after: str | None,
    max_messages: int,
) -> MessagePage:
    """A page of messages; see :meth:`duewheel.store.broker.Broker.list_messages`."""
    for value, name in ((topic, "topic"), (key_prefix, "key_prefix"), (tag, "tag"), (after, "after")):
        check_text(value, name, optional=True)
    check_text(state, "state")
    if type(max_messages) is not int or not 1 <= max_messages <= 1_000:
        raise InvalidArgument(
            f"max_messages is {max_messages!r}, the limit is 1 to 1000: ask for further pages"
        )
    rows = database.read(
        _LIST,
        (
            topic,
            state,
            None if due_from is None else to_datetime(due_from, "due_from"),
            None if due_until is None else to_datetime(due_until, "due_until"),
            key_prefix,
            tag,
            after,
            max_messages,
        ),
    )
    listed = [row[:-1] for row in rows if row[-1]]
    # A full page, or one that ends with what does not match, may have more behind it.
    has_more = len(listed) == max_messages or len(listed) < len(rows)
    return MessagePage(
        tuple(
            ListedMessage(name, identity, key, tag, to_datetime(born_at), to_datetime(deliver_at), out, back)
            for name, identity, key, tag, born_at, deliver_at, out, back in listed
        ),
        rows[-1][1] if has_more else None,
    )


def history(database: Database, message_id: str) -> list[HistoryEntry]:
    """The history of a message; see :meth:`duewheel.store.broker.Broker.history`."""
    check_text(message_id, "message_id")
    return [
        HistoryEntry(group, state, _utc(at), _utc(until_at), attempt, consumer, reason)
        for group, state, at, until_at, attempt, consumer, reason in database.read(
            _HISTORY, (message_id, database.now())
        )
    ]


def _stored(row: tuple[Any, ...]) -> StoredMessage:
    topic, identity, key, tag, properties, body, born_at, deliver_at, asked_at, *rest = row
    group, recalled, released = rest
    return StoredMessage(
        topic,
        identity,
        key,
        tag,
        properties_of(properties),
        bytes(body),
        to_datetime(born_at),
        to_datetime(deliver_at),
        _utc(asked_at),
        group,
        recalled,
        released,
    )


def properties_of(text: str | None) -> dict[str, Any]:
    """Properties as a dictionary, from their JSON text; null means no properties."""
    return {} if text is None else json.loads(text)


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else to_datetime(at)
