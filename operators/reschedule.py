"""Move a waiting message to another instant."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from duewheel.hooks.arguments.declared import check_named_message, check_when
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.arguments.rendered import as_instant, as_span
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import MessageLink, TopicLink
from duewheel.hooks.task_name import task_key
from duewheel.store.values.errors import AlreadyReleased, InvalidArgument, UnknownMessage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from duewheel.store.values.instants import Instant


class RescheduleMessageOperator(CheckedWhenMapped, BaseOperator):
    """Move one waiting message by its id, or all by topic and key, to another instant in one step.

    A second try finds the messages that the first has moved, and returns their new ids, even if the first try
    was lost before it could return them.

    Args:
        message_id: the id that sending returned. Either this, or ``topic`` and ``key``.
        topic: the topic of the messages.
        key: the key that they were sent with.
        delay: the time from now, by the database's clock. Text may be an ISO 8601 duration or ``H:MM:SS``.
        deliver_at: the new instant, instead of ``delay``: an aware datetime, Unix milliseconds, or either as
            text.
        duewheel_conn_id: the connection to the broker.

    Returns:
        The new id, or with a key the list of new ids, as the task's XCom.

    Raises:
        InvalidArgument: neither an id nor topic and key is given, or both are; or not exactly one new
            instant.
        AirflowFailException: the message was released already or does not exist; another try would not help.

    Example::

        RescheduleMessageOperator(
            task_id="an_hour_more", topic="order-timeout", key="order-{{ params.order_id }}", delay="PT1H"
        )
    """

    template_fields: Sequence[str] = (
        "message_id",
        "topic",
        "key",
        "delay",
        "deliver_at",
        "duewheel_conn_id",
    )
    ui_color = "#dfe9f5"
    operator_extra_links = (TopicLink(), MessageLink())

    def __init__(
        self,
        *,
        message_id: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        delay: timedelta | str | None = None,
        deliver_at: Instant | str | None = None,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_named_message(message_id, topic, key)
        if (delay is None) == (deliver_at is None):
            raise InvalidArgument("Give either delay or deliver_at: the new delivery time.")
        check_when(delay, deliver_at, None)
        self.message_id = message_id
        self.topic = topic
        self.key = key
        self.delay = delay
        self.deliver_at = deliver_at
        self.duewheel_conn_id = duewheel_conn_id
        self.linked_message_id: str | None = None

    def execute(self, context: Context) -> str | list[str]:
        """Move the message or messages."""
        delay, deliver_at = as_span(self.delay), as_instant(self.deliver_at)
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            try:
                if self.message_id is not None:
                    move = self._idempotency_key(self.message_id, context)
                    receipts = [
                        broker.reschedule(
                            self.message_id, delay=delay, deliver_at=deliver_at, idempotency_key=move
                        )
                    ]
                else:
                    # A key may be as long as an idempotency key.
                    key = sha256(str(self.key).encode()).hexdigest()[:32]
                    receipts = broker.reschedule_key(
                        str(self.topic),
                        str(self.key),
                        delay=delay,
                        deliver_at=deliver_at,
                        idempotency_key=self._idempotency_key(key, context),
                    )
            except (AlreadyReleased, UnknownMessage) as error:
                raise AirflowFailException(str(error)) from error
        for receipt in receipts:
            self.log.info(
                "Message %s is due at %s%s",
                receipt.message_id,
                receipt.deliver_at.isoformat(),
                "; an earlier try of this task had moved it" if receipt.outcome == "duplicate" else "",
            )
        self.linked_message_id = receipts[0].message_id
        ids = [receipt.message_id for receipt in receipts]
        return ids if self.message_id is None else ids[0]

    def _idempotency_key(self, moved: str, context: Context) -> str | None:
        """The idempotency key of this move; a task that is run again with another instant is another move."""
        name = task_key(context)
        when = self.delay if self.deliver_at is None else self.deliver_at
        return None if name is None else f"{name}/move/{moved}/{sha256(str(when).encode()).hexdigest()[:16]}"
