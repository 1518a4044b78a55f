"""The common base of the triggers: each takes part in the one stream of its connection.

Airflow shares streams between event triggers only, so the trigger of a deferred task is an event trigger,
too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from duewheel.triggers.wheel_stream import doorbell_stream

if TYPE_CHECKING:
    from collections.abc import Hashable

    from duewheel.triggers.polling import DoorbellSnapshot


class StreamTrigger(BaseEventTrigger):
    """Base of the triggers: waits for news on the stream of its connection.

    Args:
        duewheel_conn_id: the connection to the broker.
    """

    def __init__(self, duewheel_conn_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        self.duewheel_conn_id = duewheel_conn_id

    def shared_stream_key(self) -> Hashable:
        """One stream, and so one wheel, for each connection."""
        return ("duewheel", self.duewheel_conn_id)

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[DoorbellSnapshot, None]:
        """Run the wheel of the connection and yield the news of all triggers. Never ends."""
        return doorbell_stream(kwargs["duewheel_conn_id"])

    @abstractmethod
    def filter_shared_stream(
        self, shared_stream: AsyncIterator[DoorbellSnapshot]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield this trigger's events from the stream's news of all triggers."""

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the same events from a separate wheel, for an Airflow that does not share streams."""
        async with aclosing(self.open_shared_stream(self.serialize()[1])) as stream:
            async with aclosing(self.filter_shared_stream(stream)) as events:
                async for event in events:
                    yield event
