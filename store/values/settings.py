"""The broker's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WhenFull(StrEnum):
    """The treatment of slots that a group has not finished when there is no room for them."""

    DROP_UNREAD = "drop_unread"
    """They are dropped like the others, with a warning."""
    KEEP_UNREAD = "keep_unread"
    """They are kept, with a warning; the broker grows over its limit."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of a broker.

    Attributes:
        retention_bytes: above this size the oldest slots go before their retention ends; None is no limit.
        when_full: the treatment of slots that a group has not finished, above that size.
        message_bytes: the size of all slots on disk now, indexes included.
    """

    retention_bytes: int | None
    when_full: WhenFull
    message_bytes: int
