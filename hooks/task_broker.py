"""A broker for a task: its messages name the task instance that sent them.

The name is a property of the message, :data:`SENT_BY_TASK`. So a consumer can read it, and the page links to
the task instance, even when the idempotency key is no longer kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from duewheel.store import Broker
from duewheel.store.values.bodies import properties_to_json
from duewheel.store.values.content_types import with_content_type
from duewheel.store.values.errors import DueWheelError
from duewheel.store.values.messages import NewMessage, SendReceipt

SENT_BY_TASK = "sent_by_task"
"""The property that names the task instance. A message that sets this property itself keeps its own value."""


class TaskBroker(Broker):
    """A broker whose messages name the task instance that sent them.

    Args:
        dsn, listen, call_timeout: see :class:`duewheel.store.Broker`.
        task: the task instance, as :func:`duewheel.hooks.task_name.task_address` writes it.
    """

    def __init__(self, dsn: str, *, listen: bool, call_timeout: timedelta, task: str) -> None:
        super().__init__(dsn, listen=listen, call_timeout=call_timeout)
        self._name = task

    def send(self, topic: str, body: object, **what: Any) -> SendReceipt:
        """Send one message, as :meth:`duewheel.store.Broker.send` does."""
        return super().send(topic, body, **{**what, "properties": self._signed(body, what.get("properties"))})

    def send_many(self, topic: str, messages: Iterable[Any], connection: Any = None) -> Sequence[SendReceipt]:
        """Send many messages, as :meth:`duewheel.store.Broker.send_many` does."""
        return super().send_many(topic, map(self._signed_message, messages), connection)

    def begin_wait(
        self, topic: str, key: str, timeout: timedelta, body: object = b"", **what: Any
    ) -> SendReceipt:
        """Begin a wait for an answer, as :meth:`duewheel.store.Broker.begin_wait` does."""
        signed = self._signed(body, what.get("properties"))
        return super().begin_wait(topic, key, timeout, body, **{**what, "properties": signed})

    def _signed_message(self, message: Any) -> Any:
        if isinstance(message, NewMessage):
            return replace(message, properties=self._signed(message.body, message.properties))
        if isinstance(message, Mapping):
            return {**message, "properties": self._signed(message.get("body"), message.get("properties"))}
        return message

    def _signed(self, body: Any, properties: Any) -> Any:
        """The properties with the name added, if it fits; the broker reports mistakes in them."""
        properties = with_content_type(body, properties)
        if not properties and (properties is None or isinstance(properties, Mapping)):
            return {SENT_BY_TASK: self._name}
        if not isinstance(properties, Mapping) or SENT_BY_TASK in properties:
            return properties
        signed = {**properties, SENT_BY_TASK: self._name}
        try:
            properties_to_json(signed)
        except DueWheelError:
            return properties
        return signed
