"""The timing wheel as an asset watcher: it starts a DAG when messages of a group are ready.

All triggers of one connection share one stream (``duewheel.triggers.wheel_stream``), in which the wheel runs;
this trigger only decides when the doorbell of its own group rings (``duewheel.triggers.ringing``). Two
triggerers with the same triggers run two wheels side by side, and a trigger that moves or restarts forgets
when it rang last: both are harmless, because ticks are made once and a ring too many starts a run that finds
nothing.

The arguments are stored in Airflow's database and read by later versions. So they are numbers and text, and a
later version may add arguments with defaults, and takes none away.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from duewheel.hooks.broker import DueWheelHook
from duewheel.triggers.ringing import Ringing
from duewheel.triggers.wheel_stream import WATCHED, Look, doorbell_stream, ring_payload, stream_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Hashable

RING_AGAIN_SECONDS = 60.0
"""Longer than Airflow usually takes from an event to the first lease of the run it starts."""


class TimingWheelTrigger(BaseEventTrigger):
    """Ring when a consumer group has messages to fetch.

    The event's payload is a dictionary with ``topic``, ``group``, ``ready`` (how many messages, counted up to
    10 000) and ``oldest_deliver_at`` (ISO 8601). It carries no messages: the DAG receives them under a lease.

    Args:
        topic: the topic to watch.
        group: the consumer group to watch for; made when it does not exist yet, from the earliest message on.
        duewheel_conn_id: the connection to the broker.
        ring_again: how long until it rings again when nobody came, as a timedelta or in seconds.
        min_messages: ring only from so many ready messages on.
        max_wait: ring for fewer when the oldest of them has been ready for this long, as a timedelta or in
            seconds; None: never. The database's clock counts.

    Example::

        unpaid = Asset(
            "unpaid_orders",
            watchers=[
                AssetWatcher(
                    name="timeouts", trigger=TimingWheelTrigger(topic="order-timeout", group="canceller")
                )
            ],
        )

        with DAG("cancel_unpaid_orders", schedule=[unpaid]): ...

    Rules: D16, D18, D19, X14.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        ring_again: timedelta | float = RING_AGAIN_SECONDS,
        min_messages: int = 1,
        max_wait: timedelta | float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        self.topic = topic
        self.group = group
        self.duewheel_conn_id = duewheel_conn_id
        self.ring_again = as_seconds(ring_again)
        self.min_messages = min_messages
        self.max_wait = None if max_wait is None else as_seconds(max_wait)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments, as Airflow stores them."""
        return (
            "duewheel.triggers.timing_wheel.TimingWheelTrigger",
            {
                "topic": self.topic,
                "group": self.group,
                "duewheel_conn_id": self.duewheel_conn_id,
                "ring_again": self.ring_again,
                "min_messages": self.min_messages,
                "max_wait": self.max_wait,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """One stream, and so one wheel, for each connection."""
        return stream_key(self.duewheel_conn_id)

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[Look, None]:
        """Run the wheel of the connection and yield the doorbells of all watched groups. Never ends."""
        return doorbell_stream(kwargs["duewheel_conn_id"])

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Look]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield an event each time the doorbell of this trigger's group rings."""
        bell = Ringing(
            ring_again_seconds=self.ring_again,
            min_messages=self.min_messages,
            max_wait_seconds=self.max_wait,
        )
        with WATCHED.watching(self.duewheel_conn_id, (self.topic, self.group)):
            async for look in shared_stream:
                doorbell = look.doorbells.get((self.topic, self.group))
                if doorbell is not None and bell.rings(
                    doorbell, looked_at=look.at, at_seconds=time.monotonic()
                ):
                    yield TriggerEvent(ring_payload(doorbell))

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Do the same with a wheel of its own, where Airflow does not share streams."""
        async with aclosing(self.open_shared_stream(self.serialize()[1])) as stream:
            async with aclosing(self.filter_shared_stream(stream)) as events:
                async for event in events:
                    yield event


def as_seconds(span: timedelta | float) -> float:
    """Return a span of time as seconds, the form in which trigger arguments are stored."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)
