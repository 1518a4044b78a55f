"""Acks of many threads in one call: acks made while a call is running share the next one.

The call is refused as a whole if one of its leases was lost. Each of its messages is then acked separately.
An ack may be repeated, so none is answered twice.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from duewheel.store.values.errors import BrokerUnreachable

if TYPE_CHECKING:
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.values.messages import Message


class JointAcks:
    """The acks of the threads that share a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._changed = threading.Condition()
        self._is_calling = False
        self._next: list[Message] = []
        # The answer to each message whose thread has not taken it yet.
        self._answers: dict[Message, Exception | None] = {}

    def ack(self, message: Message) -> None:
        """Ack a message, together with those of other threads; returns when it is answered.

        Raises:
            LeaseLost, BrokerUnreachable: see :meth:`duewheel.store.consuming.consumer.Consumer.ack`.
        """
        with self._changed:
            self._next.append(message)
            self._changed.wait_for(lambda: message in self._answers or not self._is_calling)
            is_caller = message not in self._answers
            if is_caller:
                self._is_calling = True
                together, self._next = self._next, []
        answers = self._answers_to(together) if is_caller else {}
        with self._changed:
            if is_caller:
                self._is_calling = False
                self._answers |= answers
                self._changed.notify_all()
            error = self._answers.pop(message)
        if error is not None:
            raise error

    def _answers_to(self, together: list[Message]) -> dict[Message, Exception | None]:
        try:
            self._consumer.ack(together)
        except Exception as error:  # noqa: BLE001 -- each thread raises the one of its message
            if len(together) == 1 or isinstance(error, BrokerUnreachable):
                return dict.fromkeys(together, error)
            singly = [self._answers_to([message]) for message in together]
            return {message: answer for one in singly for message, answer in one.items()}
        return dict.fromkeys(together)
