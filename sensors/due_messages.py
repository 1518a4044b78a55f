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
from duewheel.hooks.declared import as_count, check_count, check_flags, check_reading
from duewheel.store.errors import BrokerUnreachable
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
        min_messages: how many messages have to be ready, that is due and not leased; templated, too.
        deferrable: whether to wait in the triggerer instead of on a worker. ``poke_interval`` and ``mode``
            count only when it is off; ``timeout`` and ``soft_fail`` always.
        duewheel_conn_id: the connection to the broker.
        tags: only messages with one of these tags count, as ``"a || b"``; ``*`` means all (D12). Give the
            task that consumes the same.
        filter: only messages with such properties count, as ``"amount > 100"`` (D12).

    Returns:
        A dictionary with ``topic``, ``group``, ``ready`` and ``oldest_deliver_at``, as the task's XCom.

    Raises:
        UnknownTopic: there is no such topic.
        InvalidArgument, InvalidTagExpression, InvalidFilter: an argument that the broker would refuse; said
            when the DAG is read.
        BrokerUnreachable: the database does not answer the first look. Later ones are made again.
        AirflowSensorTimeout: too little came within ``timeout``.

    Example::

        DueMessagesSensor(task_id="anything_due", topic="order-timeout", group="canceller") >> cancel

    Rules: X08, X13.
    """

    template_fields: Sequence[str] = ("topic", "group", "tags", "filter", "min_messages", "duewheel_conn_id")
    ui_color = "#dfe9f5"

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        min_messages: int | str = 1,
        deferrable: bool = True,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        tags: str = "*",
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_reading(topic, group, tags, filter)
        check_count(min_messages, "min_messages")
        check_flags(deferrable=deferrable)
        self.topic = topic
        self.group = group
        self.min_messages = min_messages
        self.deferrable = deferrable
        self.duewheel_conn_id = duewheel_conn_id
        self.tags = tags
        self.filter = filter

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look once; a database that does not answer has nothing ready yet."""
        try:
            doorbell = self._look()
        except BrokerUnreachable as error:
            self.log.warning("Could not look, and look again at the next poke: %s", error)
            return PokeReturnValue(is_done=False)
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
        deadline = time.time() + self.timeout if deadline is None else deadline
        try:
            return self._look_or_defer(deadline)
        except BrokerUnreachable as error:
            self.log.warning("Could not look, and wait on: %s", error)
            return self._defer(deadline, ready=0)

    def _look_or_defer(self, deadline: float) -> dict[str, Any]:
        doorbell = self._look()
        return ring_payload(doorbell) if self._is_enough(doorbell) else self._defer(deadline, doorbell.ready)

    def _defer(self, deadline: float, ready: int) -> dict[str, Any]:
        left_seconds = deadline - time.time()
        if left_seconds <= 0:
            raise AirflowSensorTimeout(
                f"On topic {self.topic} at most {self._wanted() - 1} messages were ready for group "
                f"{self.group} at any look within {self.timeout:g} s; now there are {ready}."
            )
        return self.defer(
            trigger=DueMessagesTrigger(
                self.topic, self.group, self._wanted(), self.duewheel_conn_id, self.tags, self.filter
            ),
            method_name="execute_complete",
            kwargs={"deadline": deadline},
            timeout=timedelta(seconds=left_seconds),
        )

    def _is_enough(self, doorbell: Doorbell) -> bool:
        return doorbell.ready >= self._wanted()

    def _wanted(self) -> int:
        return as_count(self.min_messages, "min_messages")

    def _look(self) -> Doorbell:
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            broker.consumer(self.topic, self.group)
            (doorbell,) = broker.doorbells([self.topic], [self.group], [self.tags], [self.filter])
        self.log.info(
            "%d messages are ready on topic %s for group %s", doorbell.ready, self.topic, self.group
        )
        return doorbell
