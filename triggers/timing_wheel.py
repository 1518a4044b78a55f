"""The timing wheel as an asset watcher: it starts a DAG when messages of a group are ready.

All triggers of one connection share one stream (``duewheel.triggers.wheel_stream``), in which the wheel runs;
this trigger only decides when its group's doorbell rings (``duewheel.triggers.ringing``). Two triggerers with
the same triggers run two wheels. That is harmless, because each tick is made once. A trigger that moves or
restarts forgets when it rang last. That is harmless, too, because a ring too many starts a run that finds
nothing.

The arguments are stored in Airflow's database and read by later versions. So they are numbers and text; a
later version may add arguments with defaults, but never removes one.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf
from airflow.triggers.base import TriggerEvent

from duewheel.hooks.arguments.declared import check_not_given_later
from duewheel.hooks.broker import DueWheelHook
from duewheel.triggers.doorbell import DoorbellTrigger, as_seconds
from duewheel.triggers.ringing import Ringing
from duewheel.triggers.watched_groups import RINGS, WATCHED, ring_payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from duewheel.store.values.instants import Instant
    from duewheel.triggers.polling import DoorbellSnapshot

RING_AGAIN_SECONDS = 60.0
"""Longer than Airflow usually takes from an event to the first lease of the run that it starts."""


class TimingWheelTrigger(DoorbellTrigger):
    """Ring when a consumer group has ready messages.

    The event's payload is a dictionary with ``topic``, ``group``, ``ready`` (how many messages, counted up to
    10 000) and ``oldest_deliver_at`` (ISO 8601). It carries no messages: the DAG receives them under a lease.

    Args:
        topic: the topic to watch.
        group: the consumer group to watch for; made when it does not exist yet.
        duewheel_conn_id: the connection to the broker.
        ring_again: the wait for a run before ringing again: a timedelta, text with units such as
            ``PT1M``, or seconds, the form in which Airflow stores it. None is Airflow's option ``[duewheel]
            ring_again_seconds``, 60 s unless set.
        min_messages: ring only when at least this many messages are ready, up to 10 000.
        max_wait: ring for fewer once the oldest has been ready for this long by the database's clock; same
            forms as ``ring_again``. None: never.
        tags: the group receives only messages with one of these tags, as ``"a || b"``; ``*`` is all. Set if
            the group is new; None takes the tags of its subscription.
        filter: the group receives only messages with such properties, as ``$.amount > 100``; set as ``tags``.
        start: where the group begins if it does not exist yet: ``earliest``, ``latest``, or an instant, as
            text in ISO 8601, too. The trigger or the consuming task makes the group, so give both the same.

    Raises:
        InvalidArgument, InvalidTagExpression, InvalidFilter: an argument that the broker would refuse; raised
            when the DAG is read.

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
    """

    def __init__(
        self,
        topic: str,
        group: str,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        ring_again: timedelta | str | float | None = None,
        min_messages: int = 1,
        max_wait: timedelta | str | float | None = None,
        tags: str | None = None,
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        start: str | Instant = "earliest",
    ) -> None:
        super().__init__(topic, group, min_messages, duewheel_conn_id, tags, filter, start)
        check_not_given_later(self, ring_again=ring_again, max_wait=max_wait)
        if ring_again is None:
            ring_again = conf.getfloat("duewheel", "ring_again_seconds", fallback=RING_AGAIN_SECONDS)
        self.ring_again = as_seconds(ring_again, "ring_again")
        self.max_wait = None if max_wait is None else as_seconds(max_wait, "max_wait")

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
                "tags": self.tags,
                "filter": self.filter,
                "start": self.start,
            },
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[DoorbellSnapshot]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield an event each time the doorbell of this trigger's group rings."""
        bell = Ringing(
            ring_again_seconds=self.ring_again,
            min_messages=self.min_messages,
            max_wait_seconds=self.max_wait,
        )
        with WATCHED.watching(self.duewheel_conn_id, self.watched, self.watcher):
            async for snapshot in shared_stream:
                doorbell = snapshot.doorbells.get(self.watched)
                if doorbell is not None and bell.rings(
                    doorbell, polled_at=snapshot.at, at_seconds=time.monotonic()
                ):
                    RINGS.rang(self.duewheel_conn_id, self.topic, self.group)
                    yield TriggerEvent(ring_payload(doorbell))
