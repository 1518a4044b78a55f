"""A message whose retries are used up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duewheel.store.values.records import PROPERTIES, columns, records


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message whose last retry failed, kept for its group.

    Attributes:
        topic, message_id, key, tag, properties, body: of the message that was sent.
        born_at: when it was sent, in UTC.
        dead_at: when it became a dead letter, in UTC.
        attempt: how often it had been delivered.
        reason: why the last delivery failed: the text of the error, or that there was no answer.
        redriven_at: when it was sent again, in UTC; None if it was not. If it failed again, the same message
            has another dead letter.
        kept_until: when its retention ends, in UTC; upkeep drops it some time after.
    """

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    properties: dict[str, Any]
    body: bytes
    born_at: datetime
    dead_at: datetime
    attempt: int
    reason: str | None
    redriven_at: datetime | None
    kept_until: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters of a group a list shows: each meets every criterion.

    Attributes:
        group, topic: the group and the topic; None is all topics.
        redriven: True for dead letters that were sent again, False for all others.
        key_prefix: the beginning of the key, literally.
        reason_contains, reason_lacks: a literal text that the reason contains or does not contain.
        dead_from, dead_until: they became dead letters at or after the first instant and before the second.
    """

    group: str
    topic: str | None = None
    redriven: bool | None = None
    key_prefix: str | None = None
    reason_contains: str | None = None
    reason_lacks: str | None = None
    dead_from: datetime | None = None
    dead_until: datetime | None = None


#: The select list for :func:`letters_of`.
LETTER_COLUMNS = columns(DeadLetter, topic="topic_name", properties=PROPERTIES)


def letters_of(rows: Iterable[Sequence[Any]]) -> list[DeadLetter]:
    """A dead letter for each row of the fields of :class:`DeadLetter`; the properties as JSON text."""
    return records(DeadLetter, rows, properties=json.loads, body=bytes)
