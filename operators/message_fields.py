"""A message to send: fields, checks and sending that an operator and a notifier share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.declared import check_message, check_topic
from duewheel.hooks.rendered import as_body, as_when

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from duewheel.store.values.instants import Instant
    from duewheel.store.values.messages import SendReceipt

MESSAGE_FIELDS = (
    "topic",
    "body",
    "delay",
    "deliver_at",
    "delay_level",
    "key",
    "tag",
    "properties",
    "message_group",
    "idempotency_key",
    "on_conflict",
    "duewheel_conn_id",
)
"""The fields of a message to send; all of them are templated."""


class MessageFields:
    """Sends the message that its fields describe."""

    topic: str
    body: Any
    delay: timedelta | str | None
    deliver_at: Instant | str | None
    delay_level: int | str | None
    key: str | None
    tag: str | None
    properties: Mapping[str, Any] | None
    message_group: str | None
    idempotency_key: str | None
    on_conflict: str
    duewheel_conn_id: str

    template_fields_renderers: ClassVar[dict[str, str]] = {"body": "json", "properties": "json"}

    def _set_message(self, *, topic: str, duewheel_conn_id: str, **said: Any) -> None:
        """Set the fields, after checking those that are known already.

        Raises:
            InvalidArgument, ...: those of ``hooks.declared.check_message``.
        """
        check_topic(topic)
        check_message(**said)
        self.topic = topic
        self.duewheel_conn_id = duewheel_conn_id
        for name, value in said.items():
            setattr(self, name, value)

    def _send_message(self, idempotency_key: str | None, task: str | None = None) -> SendReceipt:
        """Send the message. ``idempotency_key`` counts if the message has none of its own. ``task`` names the
        sender if it is not the running task."""
        with DueWheelHook(self.duewheel_conn_id).connected(task) as broker:
            return broker.send(
                self.topic,
                as_body(self.body),
                **as_when(self.delay, self.deliver_at, self.delay_level),
                key=self.key,
                tag=self.tag,
                properties=self.properties,
                message_group=self.message_group,
                idempotency_key=self.idempotency_key or idempotency_key,
                on_conflict=self.on_conflict,
            )
