"""A message to send: fields, checks and sending that an operator and a notifier share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from duewheel.hooks.arguments.declared import check_message, check_topic
from duewheel.hooks.arguments.rendered import as_body, as_when
from duewheel.hooks.broker import DueWheelHook
from duewheel.store.values.messages import NewMessage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from duewheel.store import Broker
    from duewheel.store.database.connections import DriverConnection
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

FIELDS_OF_SEND = frozenset(NewMessage.__dataclass_fields__)
"""The fields that ``Broker.send`` takes, too."""


class MessageFields:
    """Sends the message that its fields describe; known values are checked when the DAG is read."""

    template_fields_renderers: ClassVar[dict[str, str]] = {"body": "json", "properties": "json"}

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
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_topic(topic)
        self.topic = topic
        self.body = body
        self.delay = delay
        self.deliver_at = deliver_at
        self.delay_level = delay_level
        self.key = key
        self.tag = tag
        self.properties = properties
        self.message_group = message_group
        self.idempotency_key = idempotency_key
        self.on_conflict = on_conflict
        self.duewheel_conn_id = duewheel_conn_id
        check_message(**{name: getattr(self, name) for name in FIELDS_OF_SEND})

    def _send_message(
        self, broker: Broker, idempotency_key: str | None, connection: DriverConnection | None = None
    ) -> SendReceipt:
        """Send the message. ``idempotency_key`` counts if the message has none itself."""
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
            connection=connection,
        )
