"""A message whose retries are used up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duewheel.store.values.instants import to_datetime, utc
from duewheel.store.values.stored_messages import properties_of


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message whose last retry failed, kept for its group.

    Attributes:
        topic, message_id, key, tag, properties, body: of the message that was sent.
        born_at: when it was sent, in UTC.
        dead_at: when it became a dead letter, in UTC.
        attempt: how often it had been delivered.
        reason: why the last delivery failed: the text of the error, or that no answer came.
        redriven_at: when it was sent again, in UTC; None where it was not. If it failed again, there is
            another dead letter of the same message.
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


def letter_of(row: Sequence[Any]) -> DeadLetter:
    """A dead letter of the columns that :class:`DeadLetter` has, in their order; the properties as text."""
    topic, identity, key, tag, properties, body, born_at, dead_at, attempt, reason, redriven_at = row
    return DeadLetter(
        topic,
        identity,
        key,
        tag,
        properties_of(properties),
        bytes(body),
        to_datetime(born_at),
        to_datetime(dead_at),
        attempt,
        reason,
        utc(redriven_at),
    )
