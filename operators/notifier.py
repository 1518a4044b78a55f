"""Send a delay message when a task or a DAG has succeeded or failed.

A delay message can stand for a later check: "look again in an hour", recalled if the problem has been solved.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.task_name import task_key, task_of
from duewheel.operators.message_fields import MESSAGE_FIELDS, MessageFields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from duewheel.store.values.instants import Instant


class SendDelayMessageNotifier(MessageFields, BaseNotifier):
    """Send a message from ``on_success_callback``, ``on_failure_callback`` or ``on_retry_callback``.

    Args:
        topic: the topic to send to.
        body: the message itself: text, bytes, or anything that can be written as JSON.
        delay, deliver_at, delay_level: when to deliver it, as for ``SendDelayMessageOperator``.
        key: the name by which to find, recall or replace the message.
        tag: a word by which consumers filter.
        properties: further data.
        on_conflict: what to do when a message with the same key waits: ``allow``, ``keep`` or ``replace``.
        duewheel_conn_id: the connection to the broker.

    Raises:
        InvalidArgument, ...: an argument that the broker would refuse; raised when the DAG is read.

    Example::

        ConsumeMessagesOperator(
            ...,
            on_failure_callback=SendDelayMessageNotifier(
                topic="alerts", key="{{ dag.dag_id }}", body="{{ ti.task_id }} has failed", delay="PT1H",
                on_conflict="keep",
            ),
        )
    """

    template_fields: Sequence[str] = tuple(
        name for name in MESSAGE_FIELDS if name not in ("message_group", "idempotency_key")
    )

    def __init__(
        self,
        *,
        topic: str,
        body: Any,
        delay: timedelta | str | None = None,
        deliver_at: Instant | str | None = None,
        delay_level: int | str | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        on_conflict: str = "allow",
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
    ) -> None:
        super().__init__()
        self._set_message(
            topic=topic,
            body=body,
            delay=delay,
            deliver_at=deliver_at,
            delay_level=delay_level,
            key=key,
            tag=tag,
            properties=properties,
            message_group=None,
            idempotency_key=None,
            on_conflict=on_conflict,
            duewheel_conn_id=duewheel_conn_id,
        )

    def notify(self, context: Context) -> None:
        """Send the message, once for each try of a task, however often Airflow calls this."""
        name = task_key(context)
        receipt = self._send_message(
            None if name is None else f"{name}/notify/{context['ti'].try_number}/{self._digest()}",
            task_of(context),
        )
        self.log.info(
            "Message %s is due at %s (%s)",
            receipt.message_id,
            receipt.deliver_at.isoformat(),
            receipt.outcome.value,
        )

    def _digest(self) -> str:
        """A digest that tells the messages of several notifiers of one task apart."""
        what = repr([str(getattr(self, name)) for name in self.template_fields])
        return sha256(what.encode()).hexdigest()[:16]
