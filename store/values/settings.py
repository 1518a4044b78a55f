"""The broker's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class WhenFull(StrEnum):
    """The treatment of slots that a group has not finished when the broker is over its size limit."""

    KEEP_UNREAD = "keep_unread"
    """They are kept, with a warning; the broker grows over its limit. The default."""
    DROP_UNREAD = "drop_unread"
    """They are dropped after the finished ones, with a warning, if that brings the size below the limit."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of a broker.

    Attributes:
        retention_bytes: above this size the oldest slots are dropped before their retention ends; None is no
            limit.
        when_full: the treatment of slots that a group has not finished, above that size.
        message_bytes: the size on disk of the slots whose time has begun, indexes included.
        abandoned_after: a group that receives nothing for this long loses messages past retention; None is
            never.
    """

    retention_bytes: int | None
    when_full: WhenFull
    message_bytes: int
    abandoned_after: timedelta | None
