"""Wakes a deferred task when its messages are due.

The trigger shares the stream of the connection, and so the wheel, with the asset watchers
(``duewheel.triggers.wheel_stream``): a thousand deferred sensors cost one wheel. Unlike a watcher it fires
once and belongs to one task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from duewheel.triggers.doorbell import DoorbellTrigger
from duewheel.triggers.watched_groups import RINGS, WATCHED, ring_payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from duewheel.triggers.polling import DoorbellSnapshot


class DueMessagesTrigger(DoorbellTrigger):
    """Fire once, as soon as a consumer group has enough ready messages.

    The event's payload is that of ``TimingWheelTrigger``. By the time the task runs again, another consumer
    may have received the messages, so the task asks the broker again. If the broker refuses the group, the
    trigger fails, and the task with it.

    For the arguments see :class:`~duewheel.triggers.doorbell.DoorbellTrigger`.

    Example::

        self.defer(trigger=DueMessagesTrigger("order-timeout", "canceller"), method_name="execute_complete")
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments, as Airflow stores them."""
        return (
            "duewheel.triggers.due_messages.DueMessagesTrigger",
            {
                "topic": self.topic,
                "group": self.group,
                "min_messages": self.min_messages,
                "duewheel_conn_id": self.duewheel_conn_id,
                "tags": self.tags,
                "filter": self.filter,
                "start": self.start,
            },
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[DoorbellSnapshot]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield one event when enough messages are ready, and end."""
        with WATCHED.watching(self.duewheel_conn_id, self.watched, self.watcher):
            async for snapshot in shared_stream:
                if (refusal := snapshot.refused.get(self.watched)) is not None:
                    raise refusal
                doorbell = snapshot.doorbells.get(self.watched)
                if doorbell is not None and doorbell.has(self.min_messages):
                    RINGS.rang(self.duewheel_conn_id, self.topic, self.group)
                    yield TriggerEvent(ring_payload(doorbell))
                    return
