"""Send a delay message when a task or a DAG has succeeded or failed.

A delay message can stand for a later check: "look again in an hour", recalled if the problem has been solved.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier

from duewheel.hooks.task_name import task_key, task_of
from duewheel.operators.message_fields import MESSAGE_FIELDS, MessageFields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class SendDelayMessageNotifier(MessageFields, BaseNotifier):
    """Send a message from ``on_success_callback``, ``on_failure_callback`` or ``on_retry_callback``.

    Args:
        topic, body, delay, deliver_at, delay_level: as for
            :class:`~duewheel.operators.send.SendDelayMessageOperator`.
        key, tag, properties, message_group, on_conflict, duewheel_conn_id: as for the operator, too.
        idempotency_key: two sends with the same key make one message. By default made of the task instance,
            its try and the message.

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

    template_fields: Sequence[str] = MESSAGE_FIELDS

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
