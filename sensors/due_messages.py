"""Wait until a consumer group has messages to fetch.

Deferred, the task holds no worker while it waits: the triggerer's wheel wakes it. Between the wake-up and the
task's running again another consumer may have come first, so the sensor looks in the database again, and
defers again when there is too little. It takes nothing: the task behind it receives the messages under a
lease.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout

from duewheel.hooks.broker import DueWheelHook
from duewheel.triggers.due_messages import DueMessagesTrigger
from duewheel.triggers.wheel_stream import ring_payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from duewheel.store import Doorbell


class DueMessagesSensor(BaseSensorOperator):
    """Succeed as soon as a group has at least ``min_messages`` ready messages.

    Args:
        topic: the topic to look at.
        group: the consumer group to look for; made when it does not exist yet, from the earliest message on.
        min_messages: how many messages have to be ready, that is due and not leased.
        deferrable: whether to wait in the triggerer instead of on a worker. ``poke_interval`` and ``mode``
            count only when it is off; ``timeout`` and ``soft_fail`` always.
        duewheel_conn_id: the connection to the broker.

    Returns:
        A dictionary with ``topic``, ``group``, ``ready`` and ``oldest_deliver_at``, as the task's XCom.

    Raises:
        UnknownTopic: there is no such topic.
        AirflowSensorTimeout: too little came within ``timeout``.

    Example::

        DueMessagesSensor(task_id="anything_due", topic="order-timeout", group="canceller") >> cancel

    Rules: X08, X13.
    """

    template_fields: Sequence[str] = ("topic", "group")
    ui_color = "#dfe9f5"

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        min_messages: int = 1,
        deferrable: bool = True,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.group = group
        self.min_messages = min_messages
        self.deferrable = deferrable
        self.duewheel_conn_id = duewheel_conn_id

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look once."""
        doorbell = self._look()
        return PokeReturnValue(self._is_enough(doorbell), xcom_value=ring_payload(doorbell))

    def execute(self, context: Context) -> Any:
        """Look, and wait when there is too little."""
        if not self.deferrable:
            return super().execute(context)
        return self._look_or_defer(deadline=time.time() + self.timeout)

    def execute_complete(
        self,
        context: Context,  # noqa: ARG002 - Airflow's signature
        event: dict[str, Any],
        deadline: float | None = None,
    ) -> dict[str, Any]:
        """Look again after a wake-up.

        Args:
            context: Airflow's context of the task.
            event: what the trigger saw.
            deadline: when the sensor's timeout ends, in Unix seconds, through all deferrals. None begins it
                anew: ``dag.test()`` passes the event alone.
        """
        self.log.info("Woken: %d messages were ready on topic %s", event["ready"], event["topic"])
        return self._look_or_defer(time.time() + self.timeout if deadline is None else deadline)

    def _look_or_defer(self, deadline: float) -> dict[str, Any]:
        doorbell = self._look()
        if self._is_enough(doorbell):
            return ring_payload(doorbell)
        left_seconds = deadline - time.time()
        if left_seconds <= 0:
            raise AirflowSensorTimeout(
                f"On topic {self.topic} at most {self.min_messages - 1} messages were ready for group "
                f"{self.group} at any look within {self.timeout:g} s; now there are {doorbell.ready}."
            )
        return self.defer(
            trigger=DueMessagesTrigger(self.topic, self.group, self.min_messages, self.duewheel_conn_id),
            method_name="execute_complete",
            kwargs={"deadline": deadline},
            timeout=timedelta(seconds=left_seconds),
        )

    def _is_enough(self, doorbell: Doorbell) -> bool:
        return doorbell.ready >= self.min_messages

    def _look(self) -> Doorbell:
        with DueWheelHook(self.duewheel_conn_id).get_conn() as broker:
            broker.consumer(self.topic, self.group)
            (doorbell,) = broker.doorbells([self.topic], [self.group])
        self.log.info(
            "%d messages are ready on topic %s for group %s", doorbell.ready, self.topic, self.group
        )
        return doorbell
