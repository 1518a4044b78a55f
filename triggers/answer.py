"""Wakes a deferred task when its wait for an answer has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from duewheel.hooks.broker import DueWheelHook
from duewheel.triggers.stream_trigger import StreamTrigger
from duewheel.triggers.waits import WAITS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from duewheel.triggers.polling import DoorbellSnapshot


class AnswerTrigger(StreamTrigger):
    """Fire once, when a message was answered, recalled or released.

    The event carries the message's id alone; the task then reads the outcome from the broker.

    Args:
        message_id: the message that waits.
        topic: its topic.
        duewheel_conn_id: the connection to the broker.

    Example::

        self.defer(trigger=AnswerTrigger(receipt.message_id, "approvals"), method_name="execute_complete")
    """

    def __init__(
        self, message_id: str, topic: str, duewheel_conn_id: str = DueWheelHook.default_conn_name
    ) -> None:
        super().__init__(duewheel_conn_id)
        self.message_id = message_id
        self.topic = topic

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments, as Airflow stores them."""
        return (
            "duewheel.triggers.answer.AnswerTrigger",
            {
                "message_id": self.message_id,
                "topic": self.topic,
                "duewheel_conn_id": self.duewheel_conn_id,
            },
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[DoorbellSnapshot]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield one event when the wait has ended, and end."""
        with WAITS.waiting(self.duewheel_conn_id, self.message_id, self.topic):
            async for snapshot in shared_stream:
                if self.message_id in snapshot.ended:
                    yield TriggerEvent({"message_id": self.message_id})
                    return
