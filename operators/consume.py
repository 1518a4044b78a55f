"""Receive a batch, work on it in Python, and ack it only after the work (X09).

The lease on the batch is kept alive by a thread while the function runs, however long it takes. When the
function returns, the batch is acked as a whole; when it raises, the batch is nacked and the task fails, so
that the messages come back after the retry interval of their group (R03). When the task is killed, the lease
is pulled back: the messages are ready again at once, for the task's next try or for anyone else of the group.

A worker that dies without a word stops extending, and the lease ends by itself. So a message is worked on at
least once, never lost, and the function should stand being given a message again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.rendered import as_span
from duewheel.store import Broker
from duewheel.store.errors import DueWheelError
from duewheel.store.lease_keeper import LeaseKeeper
from duewheel.store.reasons import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

    from duewheel.store.consumer import Consumer
    from duewheel.store.messages import Batch


@dataclass(frozen=True)
class HeldBatch:
    """What a killed task needs to give its messages back over a connection of its own."""

    dsn: str
    messages: Batch
    keeper: LeaseKeeper


class ConsumeMessagesOperator(BaseOperator):
    """Receive up to ``max_messages`` messages of a group and hand them to a Python function.

    Args:
        topic: the topic to read.
        group: the consumer group that reads; made when it does not exist yet, from the earliest message on.
        python_callable: called once with the batch, a sequence of ``Message``, and with ``op_kwargs``. Not
            called when nothing is ready.
        tags: only messages with one of these tags, as ``"a || b"``; ``*`` means all (D12).
        filter: only messages with such properties, as ``"region = 'north' AND amount > 100"`` (D12).
        max_messages: how many to take at most, up to 10 000.
        invisible: how long a lease lasts without a sign of life of the worker, 1 s to 12 h (D07).
        wait: how long to wait for the first message when none is ready.
        op_kwargs: further arguments of the function, templated.
        skip_if_empty: whether to skip the task, and what depends on it, when nothing is ready.
        duewheel_conn_id: the connection to the broker.

    Returns:
        What the function returned, as the task's XCom; None when nothing was ready.

    Raises:
        LeaseLost: the lease ended before the work did; what was worked on is delivered again (X10).
        Exception: whatever the function raised; the batch is nacked before.

    Example::

        def cancel(messages: Sequence[Message]) -> int:
            return cancel_orders([message.key for message in messages])

        ConsumeMessagesOperator(
            task_id="cancel_unpaid", topic="order-timeout", group="canceller", python_callable=cancel,
            max_messages=500
        )

    Rules: D07, D15, R03, X09, X10, X11.
    """

    template_fields: Sequence[str] = ("topic", "group", "tags", "filter", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_kwargs": "py"}
    ui_color = "#dfe9f5"

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        python_callable: Callable[..., Any],
        tags: str = "*",
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        max_messages: int = 32,
        invisible: timedelta | str = timedelta(seconds=60),
        wait: timedelta | str = timedelta(0),
        op_kwargs: Mapping[str, Any] | None = None,
        skip_if_empty: bool = False,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.group = group
        self.python_callable = python_callable
        self.tags = tags
        self.filter = filter
        self.max_messages = max_messages
        self.invisible = invisible
        self.wait = wait
        self.op_kwargs = dict(op_kwargs or {})
        self.skip_if_empty = skip_if_empty
        self.duewheel_conn_id = duewheel_conn_id
        self._held: HeldBatch | None = None
        self._killed = False

    def execute(self, context: Context) -> Any:  # noqa: ARG002 - Airflow's signature
        """Receive, call the function, ack."""
        invisible = as_span(self.invisible, "invisible") or timedelta(seconds=60)
        wait = as_span(self.wait, "wait") or timedelta(0)
        with DueWheelHook(self.duewheel_conn_id).get_conn() as broker:
            consumer = broker.consumer(self.topic, self.group, tags=self.tags, filter=self.filter)
            batch = consumer.receive(max_messages=self.max_messages, invisible=invisible, wait=wait)
            if not batch:
                self.log.info("Nothing is ready on topic %s for group %s", self.topic, self.group)
                if self.skip_if_empty:
                    raise AirflowSkipException(
                        f"Nothing is ready on topic {self.topic} for group {self.group}."
                    )
                return None
            self.log.info("Received %d messages from topic %s", len(batch), self.topic)
            keeper = LeaseKeeper(consumer, batch, invisible)
            self._held = HeldBatch(broker.dsn, batch, keeper)
            try:
                with keeper:
                    result = self.python_callable(batch, **self.op_kwargs)
            except BaseException as error:
                self._held = None
                if not self._killed:
                    self._nack(consumer, batch, error)
                raise
            self._held = None
            consumer.ack(batch)
        self.log.info("Acked %d messages", len(batch))
        return result

    def _nack(self, consumer: Consumer, batch: Batch, cause: BaseException) -> None:
        """Give the batch back after ``cause``, which stays the error the task fails with."""
        try:
            consumer.nack(batch, reason=reason_of(cause))
        except DueWheelError as error:
            self.log.warning(
                "Could not nack %d messages; they come back when their lease ends: %s", len(batch), error
            )
        else:
            self.log.info("Nacked %d messages after %s: %s", len(batch), type(cause).__name__, cause)

    def on_kill(self) -> None:
        """Pull the lease back: the messages are ready again at once.

        Runs in the middle of whatever the task was doing, so it uses a broker of its own and shares no lock
        with it.
        """
        self._killed = True
        held, self._held = self._held, None
        if held is None:
            return
        held.keeper.stop()
        try:
            with Broker(held.dsn) as broker:
                consumer = broker.consumer(self.topic, self.group, tags=self.tags, filter=self.filter)
                consumer.nack(held.messages, delay=timedelta(0), reason="the task was killed")
        except DueWheelError as error:
            self.log.warning(
                "The lease on %d messages could not be pulled back: %s", len(held.messages), error
            )
        else:
            self.log.info("Pulled the lease on %d messages back", len(held.messages))
