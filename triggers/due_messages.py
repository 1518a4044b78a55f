"""Wake a deferred task when its messages are due.

It shares the stream, and so the wheel, of the connection with the asset watchers
(``duewheel.triggers.wheel_stream``): a thousand deferred sensors cost one wheel. Airflow shares streams
between event triggers only, hence the base class, though this trigger fires once and belongs to one task.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from duewheel.hooks.broker import DueWheelHook
from duewheel.triggers.wheel_stream import WATCHED, Look, doorbell_stream, ring_payload, stream_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Hashable


class DueMessagesTrigger(BaseEventTrigger):
    """Fire once, as soon as a consumer group has enough messages to fetch.

    The event's payload is that of ``TimingWheelTrigger``. By the time the task runs again somebody else may
    have fetched the messages, so the task looks again.

    Args:
        topic: the topic to watch.
        group: the consumer group to watch for.
        min_messages: how many messages have to be ready.
        duewheel_conn_id: the connection to the broker.

    Example::

        self.defer(trigger=DueMessagesTrigger("order-timeout", "canceller"), method_name="execute_complete")
    """

    def __init__(
        self,
        topic: str,
        group: str,
        min_messages: int = 1,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        self.topic = topic
        self.group = group
        self.min_messages = min_messages
        self.duewheel_conn_id = duewheel_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments, as Airflow stores them."""
        return (
            "duewheel.triggers.due_messages.DueMessagesTrigger",
            {
                "topic": self.topic,
                "group": self.group,
                "min_messages": self.min_messages,
                "duewheel_conn_id": self.duewheel_conn_id,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """The stream that the asset watchers of the connection use."""
        return stream_key(self.duewheel_conn_id)

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[Look, None]:
        """Run the wheel of the connection and yield the doorbells of all watched groups. Never ends."""
        return doorbell_stream(kwargs["duewheel_conn_id"])

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Look]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield one event when enough messages are ready, and end."""
        with WATCHED.watching(self.duewheel_conn_id, (self.topic, self.group)):
            async for look in shared_stream:
                doorbell = look.doorbells.get((self.topic, self.group))
                if doorbell is not None and doorbell.ready >= self.min_messages:
                    yield TriggerEvent(ring_payload(doorbell))
                    return

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Do the same with a wheel of its own, where Airflow does not share streams."""
        async with aclosing(self.open_shared_stream(self.serialize()[1])) as stream:
            async with aclosing(self.filter_shared_stream(stream)) as events:
                async for event in events:
                    yield event
