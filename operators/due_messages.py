"""One object for a topic and a group: the asset that starts a DAG, and the tasks that read the messages.

Airflow identifies an asset by its name, and each parsed file replaces the watchers that another file gave an
asset of the same name. So the name of a ``DueMessages`` is made of its watcher's arguments: the same name is
always the same trigger, whichever files use it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, overload
from urllib.parse import urlencode

from airflow.sdk import Asset, AssetWatcher

from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.decorators import due_messages_task, spark_due_messages_task
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Concatenate

    from duewheel.operators.decorated_types import (
        DecoratedTask,
        DecoratesBatchFunction,
        DecoratesMessageFunction,
        DecoratesSparkFunction,
    )
    from duewheel.store import Batch, Consumer
    from duewheel.store.values.instants import Instant

Parameters = ParamSpec("Parameters")

READING = ("topic", "group", "tags", "filter", "start", "duewheel_conn_id")
"""The arguments that the watcher and its tasks have to share."""

LONGEST_ARGUMENTS = 1_000
"""Longer arguments, such as a long filter, are a digest in the name, which Airflow limits to 1500
characters."""


class DueMessages(Asset):
    """The due messages of a consumer group: an asset for ``schedule``, and decorators for its tasks.

    The asset has a :class:`~duewheel.triggers.timing_wheel.TimingWheelTrigger` as its watcher, and is named
    after topic and group, such as ``order-timeout/canceller``. Arguments that are not the trigger's defaults
    are part of the name. Two DAGs with the same arguments share the asset, and each ring starts both.

    Args:
        topic: the topic to watch and read.
        group: the consumer group; made when it does not exist yet.
        duewheel_conn_id: the connection to the broker.
        tags: only messages with one of these tags, as ``"a || b"``; ``*`` is all. Set if the group is new;
            None takes the tags of its subscription.
        filter: only messages with such properties, as ``$.amount > 100``.
        start: where the group begins if it does not exist yet: ``earliest``, ``latest``, or an instant, as
            text in ISO 8601, too.
        ring_again, min_messages, max_wait: see the trigger.

    Raises:
        InvalidArgument, InvalidTagExpression, InvalidFilter: an argument that the broker would refuse; raised
            when the DAG is read.

    Example::

        due = DueMessages("order-timeout", "canceller")

        with DAG("cancel_unpaid_orders", schedule=[due]):

            @due.task(one_by_one=True)
            def cancel(message: Message) -> None: ...

            cancel()
    """

    def __init__(
        self,
        topic: str,
        group: str,
        *,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        tags: str | None = None,
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        start: str | Instant = "earliest",
        ring_again: timedelta | str | float | None = None,
        min_messages: int = 1,
        max_wait: timedelta | str | float | None = None,
    ) -> None:
        trigger = TimingWheelTrigger(
            topic, group, duewheel_conn_id, ring_again, min_messages, max_wait, tags, filter, start
        )
        # The asset's group, which Airflow's UI shows, is the consumer group.
        super().__init__(_name(trigger), group=group, watchers=[AssetWatcher("wheel", trigger)])
        arguments = trigger.serialize()[1]
        self._reading = {name: arguments[name] for name in READING}

    @overload
    def task(
        self, python_callable: Callable[Concatenate[Batch, Consumer, Parameters], object], /
    ) -> DecoratedTask[Parameters]: ...

    @overload
    def task(
        self, python_callable: Callable[Concatenate[Batch, Parameters], object], /
    ) -> DecoratedTask[Parameters]: ...

    @overload
    def task(self, /, *, one_by_one: Literal[True], **kwargs: Any) -> DecoratesMessageFunction: ...

    @overload
    def task(self, /, *, one_by_one: Literal[False] = ..., **kwargs: Any) -> DecoratesBatchFunction: ...

    def task(self, python_callable: Callable[..., object] | None = None, /, **kwargs: Any) -> Any:
        """Make a function a task that reads this group, as ``@task.due_messages`` does.

        Args:
            python_callable: the function, if the decorator has no arguments.
            kwargs: the parameters of :class:`~duewheel.operators.consume.ConsumeMessagesOperator`, except
                the parameters of this object.

        Raises:
            InvalidArgument: the function has no parameter for the messages.
            TypeError: an argument that this object has was given again.

        Example::

            @due.task(max_messages=1_000)
            def cancel(messages: Sequence[Message]) -> int:
                return cancel_orders([message.key for message in messages])
        """
        decorate: Any = due_messages_task(**self._reading, **kwargs)
        return decorate if python_callable is None else decorate(python_callable)

    def spark_task(self, **kwargs: Any) -> DecoratesSparkFunction:
        """Make a function a Spark task that reads this group, as ``@task.spark_due_messages`` does.

        Args:
            kwargs: the parameters of :class:`~duewheel.operators.spark.SparkConsumeMessagesOperator`, except
                the parameters of this object.

        Raises:
            InvalidArgument: the function has no parameter for the batch.
            TypeError: an argument that this object has was given again.

        Example::

            @due.spark_task(columns=["tag"])
            def count(batch: Batch) -> None:
                batch.messages.groupBy("tag").count().write.mode("append").saveAsTable("timeouts")
        """
        return spark_due_messages_task(**self._reading, **kwargs)


def _name(trigger: TimingWheelTrigger) -> str:
    """The asset's name: topic, group, and every argument of the trigger that is not its default."""
    usual = TimingWheelTrigger(trigger.topic, trigger.group).serialize()[1]
    given = trigger.serialize()[1]
    others = urlencode({name: value for name, value in given.items() if value != usual[name]})
    if len(others) > LONGEST_ARGUMENTS:
        others = sha256(others.encode()).hexdigest()
    return f"{trigger.topic}/{trigger.group}" + (f"?{others}" if others else "")
