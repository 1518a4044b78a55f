"""Send one message to be delivered later.

Airflow retries tasks, and a task may die after its message was committed but before Airflow has learnt of it.
The message therefore carries an idempotency key, made of DAG, run, task and map index, which stay the same
over all tries. The second try gets the receipt of the first message.

A cleared task may be meant to send again. Airflow raises ``max_tries`` then, which is part of the key of the
message that is sent again. So a retry of the cleared task does not send a third one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk import BaseOperator

from duewheel.hooks.arguments.declared import check_choice
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import MessageLink, TopicLink
from duewheel.hooks.task_name import task_key, tries_before_clear
from duewheel.operators.lineage import WrittenLineage
from duewheel.operators.message_fields import MESSAGE_FIELDS, MessageFields
from duewheel.operators.outlets import NEW, annotate_outlets
from duewheel.store.values.messages import SendOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from duewheel.store import Broker
    from duewheel.store.values.instants import Instant
    from duewheel.store.values.messages import SendReceipt

RECEIPT = "receipt"
"""The key of the XCom with the whole receipt."""

Resend = Literal["never", "if_recalled", "on_clear"]
"""When a cleared task sends again."""


class SendDelayMessageOperator(CheckedWhenMapped, WrittenLineage, MessageFields, BaseOperator):
    """Send a message that is delivered at an instant, and return its id.

    All fields of the message are templated. At most one of ``delay``, ``deliver_at`` and ``delay_level`` may
    be given.

    Args:
        topic: the topic to send to. It has to exist (see ``CreateTopicOperator``).
        body: the message itself: text, bytes, or anything that can be written as JSON.
        delay: the time from now, by the database's clock. Text may be an ISO 8601 duration or ``H:MM:SS``.
        deliver_at: the instant of delivery: an aware datetime, Unix milliseconds, or either as text.
        delay_level: one of the topic's levels; 1 (1 s) to 18 (2 h) unless the topic has its own.
        key: the name by which to find, recall or replace the message, 1 to 255 characters.
        tag: a word by which consumers filter.
        properties: further data, up to 16 KiB as JSON.
        message_group: on a FIFO topic, messages of one group are delivered in order.
        idempotency_key: two sends with the same key make one message. By default made of DAG, run, task and
            map index, so that a retried task sends once.
        on_conflict: what to do when a message with the same key waits: ``allow``, ``keep`` or ``replace``.
        resend: when a task that was cleared sends again: ``never``, ``if_recalled`` (if the message of its
            last send was recalled) or ``on_clear`` (always). A retry never sends again, and neither does a
            message with an ``idempotency_key``.
        duewheel_conn_id: the connection to the broker.

    Returns:
        The message id, as the task's XCom. The whole receipt is its XCom ``receipt``: a dictionary with
        ``message_id``, ``deliver_at`` (ISO 8601) and ``outcome``.

    Raises:
        UnknownTopic, WrongMessageType, DelayOutOfRange, InvalidInstant, ...: the errors of ``Broker.send``;
            nothing was sent. Arguments that are not templates are checked when the DAG is read.

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

    # All arguments by name: partial() and expand() look arguments up in the operator's own signature.
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
        message_group: str | None = None,
        idempotency_key: str | None = None,
        on_conflict: str = "allow",
        resend: Resend = "if_recalled",
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            topic=topic,
            body=body,
            delay=delay,
            deliver_at=deliver_at,
            delay_level=delay_level,
            key=key,
            tag=tag,
            properties=properties,
            message_group=message_group,
            idempotency_key=idempotency_key,
            on_conflict=on_conflict,
            duewheel_conn_id=duewheel_conn_id,
            **kwargs,
        )
        check_choice(resend, "resend", get_args(Resend))
        self.resend = resend

    def execute(self, context: Context) -> str:
        """Send the message."""
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            receipt = self._send(broker, context)
            if receipt.outcome is SendOutcome.DUPLICATE:
                self.log.info(
                    "Nothing was sent on topic %s: message %s was sent before and is %s",
                    self.topic,
                    receipt.message_id,
                    _state(broker, receipt.message_id),
                )
            else:
                self.log.info(
                    "Message %s on topic %s is due at %s (%s)",
                    receipt.message_id,
                    self.topic,
                    receipt.deliver_at.isoformat(),
                    receipt.outcome,
                )
        self.linked_message_id = receipt.message_id
        self._done = int(receipt.outcome in NEW)
        annotate_outlets(self, context, topic=self.topic, messages=self._done)
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

    def _send(self, broker: Broker, context: Context) -> SendReceipt:
        """Send, unless the task has sent since it was cleared, or ``resend`` says not to send again."""
        name = task_key(context)
        cleared_after = tries_before_clear(context, self.retries) if name else 0
        if self.idempotency_key or not cleared_after or self.resend == "never":
            return self._send_message(broker, name)
        keys = [str(name), *(f"{name}/cleared/{tries}" for tries in range(1, cleared_after + 1))]
        if self.resend == "if_recalled":
            # The newest message of the task. If this clear has sent a message, that stays recalled if it was.
            for key in reversed(keys):
                receipt = self._sent_before(broker, key)
                if receipt is None:
                    continue
                found = broker.find(receipt.message_id)
                if key == keys[-1] or found is None or not found.recalled or found.replaced_by is not None:
                    return receipt
                break
        return self._send_message(broker, keys[-1])

    def _sent_before(self, broker: Broker, idempotency_key: str) -> SendReceipt | None:
        """The receipt of an earlier send with this key. It is looked up by a send that is rolled back."""
        # An open transaction is rolled back at the end of the block.
        with broker.connection() as connection:
            connection.autocommit = False
            receipt = self._send_message(broker, idempotency_key, connection)
        return receipt if receipt.outcome is SendOutcome.DUPLICATE else None


def _state(broker: Broker, message_id: str) -> str:
    """The present state of a message, for a log."""
    found = broker.find(message_id)
    if found is None:
        return "no longer kept"
    if found.recalled:
        return f"replaced by {found.replaced_by}" if found.replaced_by else "recalled, so it is not delivered"
    if not found.released:
        return f"waiting until {found.deliver_at.isoformat()}"
    states = {entry.consumer_group: entry.state for entry in broker.history(message_id)}
    return ", ".join(f"{state} for group {group}" for group, state in states.items() if group) or "released"
