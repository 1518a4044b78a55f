"""Send a delay message when a task or a DAG has succeeded or failed.

A delay message can be a later check: "look again in an hour", recalled if the problem has been solved.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.task_name import task_key, task_of
from duewheel.operators.message_fields import MESSAGE_FIELDS, MessageFields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from duewheel.hooks.broker import BrokerAddress


class SendDelayMessageNotifier(MessageFields, BaseNotifier):
    """Send a message from ``on_success_callback``, ``on_failure_callback`` or ``on_retry_callback``, or from
    a Deadline Alert, whose ``AsyncCallback`` runs in the triggerer.

    Args:
        topic, body, delay, deliver_at, delay_level: see
            :class:`~duewheel.operators.send.SendDelayMessageOperator`.
        key, tag, properties, message_group, on_conflict, duewheel_conn_id: see the operator, too.
        idempotency_key: two sends with the same key make one message. By default made of the message, and of
            the task instance and its try, or of the missed deadline.

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
        """Send the message, once for each try of a task or each missed deadline, even if called again."""
        self._notify(context)

    async def async_notify(self, context: Context) -> None:
        """Like :meth:`notify`, without blocking the event loop of the triggerer."""
        address = await DueWheelHook(self.duewheel_conn_id).aresolve()
        await asyncio.to_thread(self._notify, context, address)

    def _notify(self, context: Context, address: BrokerAddress | None = None) -> None:
        occasion = _occasion(context)
        with DueWheelHook(self.duewheel_conn_id).connected(task_of(context), address) as broker:
            receipt = self._send_message(broker, occasion and f"{occasion}/{self._digest()}")
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


def _occasion(context: Mapping[str, Any]) -> str | None:
    """A name for the callback's occasion: a try of a task, or a missed deadline; None if it is neither."""
    name = task_key(context)
    if name is not None:
        return f"{name}/notify/{context['ti'].try_number}"
    deadline = context.get("deadline")
    return deadline and f"airflow:deadline/{deadline['id']}/notify"
