"""Take a waiting message back.

A recall has three possible answers. "Too late" is one of them, and not a failure unless the author of the DAG
asks for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from duewheel.hooks.arguments.declared import WHAT_NAMES_A_MESSAGE, check_flags, check_named_message
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import MessageLink, TopicLink
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


COUNTS = "counts"
"""The key of the XCom that counts the messages of a key."""


class RecallMessageOperator(CheckedWhenMapped, BaseOperator):
    """Recall a message by its id, or by topic and key, and return the outcome.

    Args:
        message_id: the id that sending returned. Either this, or ``topic`` and ``key``.
        topic: the topic of the message.
        key: the key the message was sent with.
        fail_on_already_released: whether to fail, without retries, when consumers may have the message
            already.
        duewheel_conn_id: the connection to the broker.

    Returns:
        ``recalled``, ``already_released``, ``replaced`` or ``not_found``, as the task's XCom. A message that
        is ``recalled`` or ``replaced`` is never delivered. A key is ``recalled`` only if none of its messages
        had been released; the XCom ``counts`` is ``{"recalled": ..., "already_released": ...}``. A message
        that was moved is recalled by every id that it has had; the task's log and its link have the present
        id.

    Raises:
        InvalidArgument: neither an id nor topic and key, or both.
        AirflowFailException: the message was released already and ``fail_on_already_released`` is set.

    Example::

        RecallMessageOperator(
            task_id="order_is_paid", topic="order-timeout", key="order-{{ params.order_id }}"
        )
    """

    template_fields: Sequence[str] = ("message_id", "topic", "key", "duewheel_conn_id")
    ui_color = "#dfe9f5"
    operator_extra_links = (TopicLink(), MessageLink())

    def __init__(
        self,
        *,
        message_id: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        fail_on_already_released: bool = False,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_named_message(message_id, topic, key)
        check_flags(fail_on_already_released=fail_on_already_released)
        self.message_id = message_id
        self.topic = topic
        self.key = key
        self.fail_on_already_released = fail_on_already_released
        self.duewheel_conn_id = duewheel_conn_id
        self.linked_message_id: str | None = None

    def execute(self, context: Context) -> str:
        """Recall the message."""
        # The fields are rendered by now.
        self.linked_message_id = self.message_id
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            if self.message_id is not None:
                receipt = broker.recall(self.message_id)
                answer = receipt.outcome.value
                named = f"message {self.message_id}"
                if receipt.message_id not in (None, self.message_id):
                    self.linked_message_id = receipt.message_id
                    named += f" (now {receipt.message_id})"
            elif self.topic is not None and self.key is not None:
                named = f"key {self.key!r} on topic {self.topic}"
                found = broker.recall_key(self.topic, self.key)
                answer = found.outcome.value
                counts = {"recalled": found.recalled, "already_released": found.already_released}
                named += f" ({found.recalled} recalled, {found.already_released} released before)"
                if self.do_xcom_push and (task_instance := context.get("ti")) is not None:
                    task_instance.xcom_push(key=COUNTS, value=counts)
            else:
                raise InvalidArgument(WHAT_NAMES_A_MESSAGE)
        self.log.info("Recall of %s: %s", named, answer)
        if answer == "already_released" and self.fail_on_already_released:
            raise AirflowFailException(
                f"The {named} was released before it could be recalled, so a consumer may have it or get it. "
                "Let the handler check whether its work is still needed, or recall earlier."
            )
        return answer
