"""Send one message to be delivered later.

Airflow retries tasks, and a task may die after its message was committed but before Airflow has learnt of it.
The message therefore carries an idempotency key, made of DAG, run, task and map index, which stay the same
over all tries. The second try gets the receipt of the first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator

from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.links import MessageLink, TopicLink
from duewheel.hooks.task_name import task_key
from duewheel.operators.lineage import WrittenLineage
from duewheel.operators.message_fields import MESSAGE_FIELDS, MessageFields
from duewheel.operators.outlets import NEW, tell_outlets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

RECEIPT = "receipt"
"""The key of the XCom with the whole receipt."""


class SendDelayMessageOperator(CheckedWhenMapped, WrittenLineage, MessageFields, BaseOperator):
    """Send a message that is delivered at an instant, and return its id.

    All fields of the message are templated. At most one of ``delay``, ``deliver_at`` and ``delay_level`` may
    be given.

    Args:
        topic: the topic to send to. It has to exist (see ``CreateTopicOperator``).
        body: the message itself: text, bytes, or anything that can be written as JSON.
        delay: how long from now on, by the database's clock. Text may be an ISO 8601 duration or ``H:MM:SS``.
        deliver_at: the instant of delivery: an aware datetime, Unix milliseconds, or either as text.
        delay_level: one of the topic's levels; 1 (1 s) to 18 (2 h) unless the topic has its own.
        key: the name by which to find, recall or replace the message, 1 to 255 characters.
        tag: a word by which consumers filter.
        properties: further data, up to 16 KiB as JSON.
        message_group: on a FIFO topic, messages of one group are delivered in order.
        idempotency_key: two sends with the same key make one message. By default made of DAG, run, task and
            map index, so that a retried or cleared task sends once.
        on_conflict: what to do when a message with the same key waits: ``allow``, ``keep`` or ``replace``.
        duewheel_conn_id: the connection to the broker.

    Returns:
        The message id, as the task's XCom. The whole receipt is its XCom ``receipt``: a dictionary with
        ``message_id``, ``deliver_at`` (ISO 8601) and ``outcome``.

    Raises:
        UnknownTopic, WrongMessageType, DelayOutOfRange, InvalidInstant, ...: the errors of ``Broker.send``;
            nothing was sent. Arguments that are no templates are checked when the DAG is read.

    Example::

        SendDelayMessageOperator(
            task_id="remind_in_15_minutes",
            topic="order-timeout",
            key="order-{{ params.order_id }}",
            body={"order": "{{ params.order_id }}"},
            delay=timedelta(minutes=15),
        )
    """

    template_fields: Sequence[str] = MESSAGE_FIELDS
    ui_color = "#dfe9f5"
    operator_extra_links = (MessageLink(), TopicLink())

    #: The message that the task links to, once it is sent.
    linked_message_id: str | None = None

    def execute(self, context: Context) -> str:
        """Send the message."""
        receipt = self._send_message(task_key(context))
        self.log.info(
            "Message %s on topic %s is due at %s (%s)",
            receipt.message_id,
            self.topic,
            receipt.deliver_at.isoformat(),
            receipt.outcome,
        )
        self.linked_message_id = receipt.message_id
        self._done = int(receipt.outcome in NEW)
        tell_outlets(self, context, topic=self.topic, messages=self._done)
        task_instance = context.get("ti")
        if task_instance is not None and self.do_xcom_push:
            task_instance.xcom_push(
                key=RECEIPT,
                value={
                    "message_id": receipt.message_id,
                    "deliver_at": receipt.deliver_at.isoformat(),
                    "outcome": receipt.outcome.value,
                },
            )
        return receipt.message_id
