"""The broker's own settings: the limit on the size of all messages, and the treatment of slots above it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from duewheel.store.database.connections import Database
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.messages import named


class WhenFull(StrEnum):
    """The treatment of slots that a group has not finished when there is no room for them."""

    DROP_UNREAD = "drop_unread"
    """They are dropped like the others, with a warning."""
    KEEP_UNREAD = "keep_unread"
    """They are kept, with a warning; the broker grows over its limit."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a broker.

    Attributes:
        retention_bytes: above this size the oldest slots go before their retention ends; None is no limit.
        when_full: the treatment of slots that a group has not finished, above that size.
        message_bytes: the size of all slots on disk now, indexes included.
    """

    retention_bytes: int | None
    when_full: WhenFull
    message_bytes: int


def settings(database: Database) -> Settings:
    """The settings; see :meth:`duewheel.store.broker.Broker.settings`."""
    rows = database.read("select retention_bytes, when_full, message_bytes from duewheel.settings()", ())
    retention_bytes, when_full, message_bytes = rows[0]
    return Settings(retention_bytes, WhenFull(when_full), message_bytes)


def update_settings(
    database: Database, retention_bytes: int | None, when_full: WhenFull | str | None
) -> None:
    """Change settings; see :meth:`duewheel.store.broker.Broker.update_settings`."""
    if retention_bytes is not None and (type(retention_bytes) is not int or not 0 <= retention_bytes < 2**63):
        raise InvalidArgument(
            f"retention_bytes is {retention_bytes!r}: give a number of bytes, or 0 for no limit"
        )
    policy = None if when_full is None else named(WhenFull, when_full, "when_full").value
    database.rows("select duewheel.update_settings(%s, %s)", (retention_bytes, policy))
