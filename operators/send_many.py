"""Send many messages in one task and one transaction.

A mapped task for each message costs Airflow a third of a second. This operator sends all messages that
another task has listed, or, after an error, none of them.

A task that is tried again, or cleared, sends no message twice: each message's idempotency key is made of the
task instance and of all fields of the message. The place of a message in the list does not count, because the
list may have changed by then. Only messages with all fields equal are distinguished, by a running number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from duewheel.hooks.arguments.declared import (
    check_flags,
    check_message,
    check_topic,
    check_when,
    is_given_later,
)
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.arguments.rendered import as_when
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import TopicLink
from duewheel.hooks.task_name import task_key
from duewheel.operators.lineage import WrittenLineage
from duewheel.operators.message_fields import FIELDS_OF_SEND
from duewheel.operators.outlets import NEW, annotate_outlets
from duewheel.store.values.bodies import properties_to_json, to_bytes
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.store.values.kinds import a_kind
from duewheel.store.values.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow.sdk import Context, XComArg

    from duewheel.store.values.instants import Instant


class SendDelayMessagesOperator(CheckedWhenMapped, WrittenLineage, BaseOperator):
    """Send a list of messages, as another task returned it, all of them or none.

    Args:
        topic: the topic to send to.
        messages: the messages: mappings with the names of ``SendDelayMessageOperator``'s parameters, of which
            ``body`` is required. Templated; usually the result of another task.
        delay, deliver_at, delay_level: when to deliver messages that have none of these fields.
        idempotent: whether a task that is tried again or cleared sends only messages that it has not sent
            yet; messages with the same fields are the same. If False, very many messages are sent by COPY: 20
            000 in 2 s instead of 30.
        duewheel_conn_id: the connection to the broker.

    Returns:
        The message ids in the order of the list, as the task's XCom.

    Raises:
        InvalidArgument: a message has no body, or an unknown field; nothing was sent.
        UnknownTopic, DelayOutOfRange, ...: see ``SendDelayMessageOperator``; the error names the message.

    Example::

        @task
        def unpaid() -> list[dict]:
            return [{"body": {"order": number}, "key": str(number)} for number in open_orders()]


        SendDelayMessagesOperator(
            task_id="remind", topic="reminders", messages=unpaid(), delay=timedelta(hours=1)
        )
    """

    template_fields: Sequence[str] = (
        "topic",
        "messages",
        "delay",
        "deliver_at",
        "delay_level",
        "duewheel_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"messages": "json"}
    ui_color = "#dfe9f5"
    operator_extra_links = (TopicLink(),)

    def __init__(
        self,
        *,
        topic: str,
        messages: Iterable[Mapping[str, Any]] | XComArg,
        delay: timedelta | str | None = None,
        deliver_at: Instant | str | None = None,
        delay_level: int | str | None = None,
        idempotent: bool = True,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_topic(topic)
        check_when(delay, deliver_at, delay_level)
        if not is_given_later(messages):
            # The check would use up a generator.
            messages = list(_list_of(messages))
            for place, message in enumerate(messages):
                _checked(place, message)
        check_flags(idempotent=idempotent)
        self.topic = topic
        self.messages: Any = messages
        self.delay = delay
        self.deliver_at = deliver_at
        self.delay_level = delay_level
        self.idempotent = idempotent
        self.duewheel_conn_id = duewheel_conn_id

    def execute(self, context: Context) -> list[str]:
        """Send the messages."""
        when = as_when(self.delay, self.deliver_at, self.delay_level)
        if isinstance(self.messages, str):
            raise InvalidArgument(
                "messages was rendered to text: give the other task's result itself, as in messages=listed() "
                "or messages=listed.output, or set render_template_as_native_obj of the DAG"
            )
        given = [_checked(place, message) for place, message in enumerate(_list_of(self.messages))]
        name = task_key(context) if self.idempotent else None
        if name is not None:
            given = list(_named(given, name))
        messages = [self._made(message, when) for message in given]
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            receipts = broker.send_many(self.topic, messages)
        self._done = sum(receipt.outcome in NEW for receipt in receipts)
        duplicates = sum(receipt.outcome == "duplicate" for receipt in receipts)
        self.log.info(
            "Sent %s to topic %s; %d of the list had been sent before",
            counted(self._done, "message"),
            self.topic,
            duplicates,
        )
        annotate_outlets(self, context, topic=self.topic, messages=self._done)
        return [receipt.message_id for receipt in receipts]

    @staticmethod
    def _made(given: dict[str, Any], when: Mapping[str, Any]) -> dict[str, Any]:
        own = as_when(*(given.pop(name, None) for name in ("delay", "deliver_at", "delay_level")))
        says_when = any(value is not None for value in own.values())
        return {**given, **(own if says_when else when)}


def _list_of(messages: Any) -> Iterable[Any]:
    """The messages, after a check that they can be a list of mappings."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise InvalidArgument(f"messages is {a_kind(messages)}: give a list of mappings")
    return messages


def _named(messages: Iterable[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """The messages, each with an idempotency key: its own, or one made here."""
    alike: Counter[str] = Counter()
    for message in messages:
        if message.get("idempotency_key") is None:
            digest = _digest(message)
            message["idempotency_key"] = f"{name}/{digest}/{alike[digest]}"
            alike[digest] += 1
        yield message


def _digest(message: Mapping[str, Any]) -> str:
    said = {name: value for name, value in message.items() if value is not None and name != "body"}
    if "properties" in said:
        said["properties"] = properties_to_json(said["properties"])
    digest = sha256(json.dumps(said, sort_keys=True, default=str).encode())
    digest.update(b"\0" + to_bytes(message["body"]))
    return digest.hexdigest()[:32]


def _checked(place: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as a new dictionary.

    Raises:
        DueWheelError: the mistake in the message, and its place in the list.
    """
    if not isinstance(message, Mapping):
        raise InvalidArgument(f"is {a_kind(message)}: give a mapping such as {{'body': ...}}", index=place)
    given = dict(message)
    if unknown := sorted(given.keys() - FIELDS_OF_SEND):
        raise InvalidArgument(
            f"has the unknown name {', '.join(map(repr, unknown))}: choose from "
            f"{', '.join(sorted(FIELDS_OF_SEND))}",
            index=place,
        )
    if "body" not in given:
        raise InvalidArgument("has no body", index=place)
    try:
        check_message(**given)
    except DueWheelError as error:
        raise error.at(place) from error
    return given
