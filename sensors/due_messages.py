"""Wait until a consumer group has messages to fetch.

While it is deferred, the task holds no worker: the triggerer's wheel wakes it. Another consumer may take the
messages between the wake-up and the task's running again. So the sensor then asks the database, and defers
again if too few messages are ready. The sensor leases nothing: the task after it receives the messages under
a lease. With ``invisible``, the sensor instead hands on leased messages, for a task that is
not an operator of this package.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from duewheel.hooks.arguments.declared import (
    MOST_COUNTED,
    as_count,
    as_start,
    check_count,
    check_flags,
    check_not_given_later,
    check_reading,
    check_span,
    is_given_later,
)
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.arguments.rendered import as_span
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import TopicLink
from duewheel.hooks.task_name import task_key
from duewheel.store.leases import to_json
from duewheel.store.values.errors import BrokerUnreachable, GroupBusy, InvalidArgument, UnreadableBody
from duewheel.store.values.limits import LONGEST_INVISIBLE, SHORTEST_INVISIBLE
from duewheel.store.values.numbers import counted
from duewheel.triggers.due_messages import DueMessagesTrigger
from duewheel.triggers.watched_groups import ring_payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow.sdk import Context

    from duewheel.store import Broker
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.consuming.ready_messages import ReadyMessage
    from duewheel.store.values.instants import Instant
    from duewheel.store.values.messages import Batch, Message


MOST_HANDED_ON = 1_000
"""The largest number of messages that an XCom names."""

POLL_SECONDS = 10.0
"""The longest time of each statement of a poll. A poll that takes longer has no result."""


class DueMessagesSensor(CheckedWhenMapped, BaseSensorOperator):
    """Succeed as soon as a group has at least ``min_messages`` ready messages.

    A poll reads 10 000 messages of a queue at most, on a FIFO topic about 10 000 of all queues. Among them
    are recalled messages and messages that ``tags`` or ``filter`` do not choose. If more messages follow, one
    ready message is enough, because only a consumer moves past the messages that were read. If none is ready,
    the sensor moves the group past them, however many they are.

    Args:
        topic: the topic to poll.
        group: the consumer group to poll for; made when it does not exist yet.
        min_messages: how many messages have to be ready, that is released and not leased, up to 10 000;
            templated, too.
        deferrable: whether to wait in the triggerer instead of on a worker; None is the value of Airflow's
            option ``[operators] default_deferrable``. ``poke_interval`` and ``mode`` count only when it is
            off; ``timeout`` and ``soft_fail`` always.
        duewheel_conn_id: the connection to the broker.
        tags: the group receives only messages with one of these tags, as ``"a || b"``; ``*`` means all. Set
            if the group is new; None takes the tags of its subscription.
        filter: the group receives only messages with such properties, as ``$.amount > 100``; set as ``tags``.
        hand_on: the largest number of messages whose ids and keys it hands on, up to 1 000; 0 is none.
            Without ``invisible``, other consumers of the group may receive them first.
        hand_on_values: whether it hands on the value of each message, too, if that is JSON or text. All of
            them are one XCom in Airflow's database, so they are for few and short messages.
        invisible: with ``hand_on``, how long these messages are leased, 1 s to 12 h; None leases none. The
            task after the sensor answers them; messages that it does not answer are delivered again. If other
            consumers of the group leave fewer than ``min_messages``, or than ``hand_on`` if that is less, the
            sensor leases none and keeps waiting.
        start: where the group begins if it does not exist yet: ``earliest``, ``latest``, or an instant, as
            text in ISO 8601, too; templated, as ``{{ data_interval_start }}``.

    Returns:
        A dictionary with ``topic``, ``group``, ``ready`` and ``oldest_deliver_at``, as the task's XCom. With
        ``hand_on`` also ``messages``: a list of ``{"message_id", "key", "tag"}``. With ``hand_on_values``
        each has a ``value`` as well, as in ``Message.value``, or None if Airflow cannot store it, such as
        bytes, or text with a NUL character. With ``invisible`` also ``leases``, text for
        :func:`duewheel.store.leases.from_json`, and ``ready`` is the number of leased messages.

    Raises:
        UnknownTopic: the topic does not exist.
        InvalidArgument, InvalidTagExpression, InvalidFilter: an argument that the broker would refuse; raised
            when the DAG is read.
        BrokerUnreachable: the database does not answer the first query. Later ones are repeated.
        AirflowSensorTimeout: too few messages became ready within ``timeout``.

    Example::

        DueMessagesSensor(task_id="anything_due", topic="order-timeout", group="canceller") >> cancel
    """

    template_fields: Sequence[str] = (
        "topic",
        "group",
        "tags",
        "filter",
        "min_messages",
        "start",
        "duewheel_conn_id",
    )
    ui_color = "#dfe9f5"
    operator_extra_links = (TopicLink(),)

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        min_messages: int | str = 1,
        deferrable: bool | None = None,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        tags: str | None = None,
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        hand_on: int = 0,
        invisible: timedelta | str | None = None,
        start: str | Instant = "earliest",
        hand_on_values: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_reading(topic, group, tags, filter)
        check_count(min_messages, "min_messages", at_most=MOST_COUNTED)
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        check_flags(deferrable=deferrable)
        check_not_given_later(self, hand_on=hand_on, invisible=invisible)
        check_flags(hand_on_values=hand_on_values)
        if hand_on != 0:
            check_count(hand_on, "hand_on", at_most=MOST_HANDED_ON)
        check_span(invisible, "invisible", at_least=SHORTEST_INVISIBLE, at_most=LONGEST_INVISIBLE)
        if invisible is not None and not hand_on:
            raise InvalidArgument("invisible is for messages that are handed on: give hand_on with it")
        if hand_on_values and not hand_on:
            raise InvalidArgument("hand_on_values is for messages that are handed on: give hand_on with it")
        self.topic = topic
        self.group = group
        self.min_messages = min_messages
        self.deferrable = deferrable
        self.duewheel_conn_id = duewheel_conn_id
        self.tags = tags
        self.filter = filter
        self.hand_on = hand_on
        self.hand_on_values = hand_on_values
        self.invisible = invisible
        self.start = start if is_given_later(start) else as_start(start)

    def poke(self, context: Context) -> PokeReturnValue:
        """Ask once; a database that does not answer, or a group that is locked, counts as having no ready
        messages yet."""
        try:
            found, _ = self._poll(context)
        except (BrokerUnreachable, GroupBusy) as error:
            self.log.warning("No answer; trying again at the next poke: %s", error)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(found is not None, xcom_value=found)

    def execute(self, context: Context) -> Any:
        """Ask the database, and wait if too few messages are ready."""
        if not self.deferrable:
            return super().execute(context)
        try:
            return self._poll_or_defer(context, time.time() + self.timeout)
        except AirflowSensorTimeout as error:
            # Airflow itself turns only timeouts after a deferral into skips.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(
                    f"Skipping, because the sensor's timeout has passed: {error}"
                ) from error
            raise

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any],
        deadline: float | None = None,
    ) -> dict[str, Any]:
        """Ask again after a wake-up.

        Args:
            context: Airflow's context of the task.
            event: what the trigger saw.
            deadline: when the sensor's timeout ends, in Unix seconds, the same through all deferrals. None
                starts the timeout again, as ``dag.test()`` passes only the event.
        """
        self.log.info("Woken: ready on topic %s: %s", event["topic"], counted(event["ready"], "message"))
        deadline = time.time() + self.timeout if deadline is None else deadline
        try:
            return self._poll_or_defer(context, deadline)
        except BrokerUnreachable as error:
            self.log.warning("The database did not answer; waiting on: %s", error)
            return self._defer(deadline, ready=0)

    def _poll_or_defer(self, context: Context, deadline: float) -> dict[str, Any]:
        try:
            found, ready = self._poll(context)
        except GroupBusy as error:
            self.log.warning("No answer; waiting on: %s", error)
            found, ready = None, 0
        return self._defer(deadline, ready) if found is None else found

    def _defer(self, deadline: float, ready: int) -> dict[str, Any]:
        left_seconds = deadline - time.time()
        if left_seconds <= 0:
            raise AirflowSensorTimeout(
                f"On topic {self.topic} at most {self._wanted() - 1} messages were ready for group "
                f"{self.group} at any poll within {self.timeout:g} s; now there are {ready}."
            )
        return self.defer(
            trigger=DueMessagesTrigger(
                self.topic,
                self.group,
                self._wanted(),
                self.duewheel_conn_id,
                self.tags,
                self.filter,
                as_start(self.start),
            ),
            method_name="execute_complete",
            kwargs={"deadline": deadline},
            timeout=timedelta(seconds=left_seconds),
        )

    def _wanted(self) -> int:
        return as_count(self.min_messages, "min_messages", at_most=MOST_COUNTED)

    def _poll(self, context: Context) -> tuple[dict[str, Any] | None, int]:
        """The value to hand on, or None if too few messages are ready, and how many are ready."""
        # Imported here: see BrokerAddress.open.
        from duewheel.store.consuming.doorbells import Asked
        from duewheel.store.consuming.watching import poll, subscribe

        start = as_start(self.start)
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            subscribe(
                broker,
                self.topic,
                self.group,
                start,
                tags=self.tags,
                filter=self.filter,
                limit_seconds=POLL_SECONDS,
            )
            consumer = broker.consumer(
                self.topic,
                self.group,
                name=task_key(context),
                start=start,
            )
            ask = partial(
                poll,
                broker,
                [Asked(self.topic, self.group)],
                release=True,
                limit_seconds=POLL_SECONDS,
                turn_seconds=POLL_SECONDS,
            )
            (doorbell,), _ = ask()
            if doorbell.more and doorbell.oldest_deliver_at is None:
                # A receive moves the group past the messages that were read, a portion in each transaction.
                if passed := consumer.receive(1):
                    consumer.give_back(passed, reason="the sensor has looked for the first ready message")
                (doorbell,), _ = ask()
            told = ring_payload(doorbell)
            invisible = as_span(self.invisible, "invisible")
            if invisible is not None and (batch := self._left_behind(broker, consumer, invisible, context)):
                return self._leased(told, batch), doorbell.ready
            self.log.info(
                "Ready on topic %s for group %s: %s",
                self.topic,
                self.group,
                counted(doorbell.ready, "message"),
            )
            if not doorbell.has(self._wanted()):
                return None, doorbell.ready
            if invisible is not None:
                # Imported here: see BrokerAddress.open.
                from duewheel.store.consuming.leasing_enough import lease_enough

                # If further messages follow, the found ones are enough, and the lease moves past the rest.
                enough = min(self._wanted(), self.hand_on) if doorbell.ready >= self._wanted() else 1
                batch = lease_enough(broker, consumer, enough, self.hand_on, invisible)
                # None if other consumers of the group were faster.
                return (self._leased(told, batch) if batch else None), len(batch)
            if self.hand_on:
                # Imported here: see BrokerAddress.open.
                from duewheel.store.consuming.ready_messages import ready_messages

                told["messages"] = self._handed_on(
                    ready_messages(broker, self.topic, self.group, self.hand_on)
                )
            return told, doorbell.ready

    def _handed_on(self, messages: Iterable[Message | ReadyMessage]) -> list[dict[str, Any]]:
        return [
            {
                "message_id": message.message_id,
                "key": message.key,
                "tag": message.tag,
                **({"value": _storable_value(message)} if self.hand_on_values else {}),
            }
            for message in messages
        ]

    def _leased(self, told: dict[str, Any], batch: Batch) -> dict[str, Any]:
        return {
            **told,
            "ready": len(batch),
            "oldest_deliver_at": min(message.deliver_at for message in batch).isoformat(),
            "messages": self._handed_on(batch),
            "leases": to_json(batch.leases),
        }

    def _left_behind(
        self, broker: Broker, consumer: Consumer, invisible: timedelta, context: Context
    ) -> Batch | None:
        """The messages that an earlier query had leased, if its worker or the database's answer was lost.

        The first try asks, too, because its own earlier query may have committed a lease whose answer was
        lost.
        """
        if task_key(context) is None:
            # Outside a task, the name is that of the process, in which other code may hold leases under it.
            return None
        return broker.take_over(consumer, invisible)


def _storable_value(message: Message | ReadyMessage) -> Any:
    """The value of a message; None if Airflow cannot store it, so that the other values are kept."""
    try:
        value = message.value
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, UnreadableBody):
        return None
    return None if "\\u0000" in text.replace("\\\\", "") else value
