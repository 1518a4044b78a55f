"""Messages as the broker stores them, and their past states."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duewheel.store.values.records import PROPERTIES, columns, records


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the broker stores it, apart from its consumers; instants in UTC.

    Attributes:
        topic, message_id, key, tag, properties, body, message_group: as it was sent.
        born_at: when it was sent.
        deliver_at: the delivery instant.
        asked_at: the instant that the sender asked for, if it differs.
        recalled: whether it was recalled, and so is never delivered.
        released: whether consumers have received it, or may at any moment.
        moved_from: the id that its sender got, if a move gave it a new id.
        moved_to: its present id, if ``message_id`` is an earlier one; then neither ``recalled`` nor
            ``released`` is true. ``find`` follows a message and ``find_key`` lists all ids.
        replaced_by: the id of the message that replaced it.
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
    moved_from: str | None
    moved_to: str | None
    replaced_by: str | None


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message in a list, without its body; instants in UTC.

    Attributes:
        topic, message_id, key, tag: as it was sent.
        born_at: when it was sent.
        deliver_at: the delivery instant.
        released: whether consumers have received it, or may at any moment.
        recalled: whether it was recalled, and so is never delivered.
        moved_to: its present id, if it was moved away from this one; then ``released`` and ``recalled`` are
            false.
        replaced_by: the id of the message that replaced it, if it was recalled for that.
    """

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    deliver_at: datetime
    released: bool
    recalled: bool
    moved_to: str | None
    replaced_by: str | None


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
        consumer_group: the group in this state; None for the message itself, before any group has it.
        state: Initialized, Timing, Moved, Ready, Inflight, Acked, Skipped, WaitingRetry, DLQ or Deleted.
            Skipped: left undone on purpose, passed by a rewind, or failed in a broadcasting group.
        at: since when, in UTC; None if the logs do not have it.
        until_at: for Timing, Moved and WaitingRetry the delivery instant, for Inflight the end of the lease.
        attempt: the number of the delivery, from 1.
        consumer: the present or past holder of the lease.
        reason: why it is in this state; for a retry the error of the previous attempt.
        known_as: the id that the message had at the time; each move changes it.
    """

    consumer_group: str | None
    state: str
    at: datetime | None
    until_at: datetime | None
    attempt: int | None
    consumer: str | None
    reason: str | None
    known_as: str


#: The select list for :func:`stored`.
STORED_COLUMNS = columns(StoredMessage, properties=PROPERTIES)


def stored(rows: Iterable[Sequence[Any]]) -> list[StoredMessage]:
    """A message for each row of the fields of :class:`StoredMessage`; the properties as JSON text."""
    return records(StoredMessage, rows, properties=json.loads, body=bytes)
