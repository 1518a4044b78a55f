"""A topic, as it is listed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from duewheel.store.values.messages import MessageType, OutOfRange


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its settings.

    Attributes:
        name: 1 to 127 letters, digits, dots, hyphens and underscores.
        message_type: the type of its messages.
        queues: how many consumers of one group can read in parallel.
        max_delay: the longest delay.
        out_of_range: the treatment of a longer delay.
        granularity: the shortest time between two ticks (releases) of a busy topic.
        retention: how long a message is kept, counted from its delivery.
        created_at: when it was made, in UTC.
        delay_levels: the delay of level 1, of level 2 and so on.
        dead_letter_retention: how long a group's dead letter is kept, counted from ``dead_at``.
    """

    name: str
    message_type: MessageType
    queues: int
    max_delay: timedelta
    out_of_range: OutOfRange
    granularity: timedelta
    retention: timedelta
    created_at: datetime
    delay_levels: tuple[timedelta, ...]
    dead_letter_retention: timedelta
