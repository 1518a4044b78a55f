"""The broker's own settings: the limit on the size of all messages, and the treatment of abandoned groups."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.store.database.connected import Connected
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import microseconds_to_span, to_span
from duewheel.store.values.messages import named

if TYPE_CHECKING:
    from duewheel.store.values.settings import BrokerSettings, WhenFull


class Configuring(Connected):
    """The operations on the broker's own settings."""

    def settings(self) -> BrokerSettings:
        """The broker's own settings, and how large its messages are on disk."""
        from duewheel.store.values.settings import BrokerSettings, WhenFull

        rows = self._database.read(
            "select retention_bytes, when_full, message_bytes,"
            " (extract(epoch from abandoned_after) * 1000000)::bigint from duewheel.settings(%s)",
            (self._database.now(),),
        )
        retention_bytes, when_full, message_bytes, abandoned_after = rows[0]
        return BrokerSettings(
            retention_bytes,
            WhenFull(when_full),
            message_bytes,
            None if abandoned_after is None else microseconds_to_span(abandoned_after),
        )

    def update_settings(
        self,
        *,
        retention_bytes: int | None = None,
        when_full: WhenFull | str | None = None,
        abandoned_after: timedelta | None = None,
    ) -> None:
        """Change settings of the broker; settings that are not given keep their values.

        Args:
            retention_bytes: above this size on disk of the slots whose time has begun, indexes included, the
                oldest are dropped before their retention ends; 0 is no limit, which is the default.
                :meth:`maintain` checks it, once an hour. Waiting messages of later days do not count.
            when_full: the treatment of a slot that a group has not finished: ``"keep_unread"``, the default,
                keeps it with a warning; ``"drop_unread"`` drops it with a warning, after the finished slots,
                and only if that brings the size below the limit. Broadcasting instances protect nothing.
            abandoned_after: a group that receives nothing from a topic for this long loses the messages past
                the topic's retention, with a warning that has their number; up to 3660 days. Zero is never,
                the default. A paused group loses nothing.

        Raises:
            InvalidArgument: a setting out of its limits.

        Example::

            broker.update_settings(retention_bytes=50 * 2**30, when_full="drop_unread")
        """
        from duewheel.store.values.settings import WhenFull

        if retention_bytes is not None and (
            type(retention_bytes) is not int or not 0 <= retention_bytes < 2**63
        ):
            raise InvalidArgument(
                f"retention_bytes is {retention_bytes!r}: give a number of bytes, or 0 for no limit"
            )
        policy = None if when_full is None else named(WhenFull, when_full, "when_full").value
        span = None if abandoned_after is None else to_span(abandoned_after, "abandoned_after")
        self._database.rows("select duewheel.update_settings(%s, %s, %s)", (retention_bytes, policy, span))
