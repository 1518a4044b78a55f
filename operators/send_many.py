"""Send many messages in one task and one transaction.

A mapped task for each message costs Airflow a third of a second each; messages that another task has listed
are sent here by one, all of them or, with an error, none. A task that is tried again sends none twice: each
message's idempotency key is made of the task instance and the message's place in the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.declared import check_message, check_topic, check_when, is_given_later
from duewheel.hooks.rendered import as_when
from duewheel.operators.links import TopicLink
from duewheel.operators.task_key import task_key
from duewheel.store.errors import DueWheelError, InvalidArgument
from duewheel.store.messages import NewMessage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from duewheel.store.instants import Instant

FIELDS = frozenset(NewMessage.__dataclass_fields__)
"""What a message may say of itself: the parameters of a send."""


class SendDelayMessagesOperator(BaseOperator):
    """Send a list of messages, as another task returned it, all of them or none.

    Args:
        topic: the topic to send to.
        messages: the messages: mappings with the names of ``SendDelayMessageOperator``'s parameters, of which
            ``body`` is required. Templated; as a rule what another task returned.
        delay, deliver_at, delay_level: when to deliver those that do not say it themselves.
        idempotent: whether a try after one that was lost sends none twice (X07). Without, very many messages
            are sent by COPY: 20 000 in 2 s instead of 30.
        duewheel_conn_id: the connection to the broker.

    Returns:
        The message ids in the order of the list, as the task's XCom.

    Raises:
        InvalidArgument: a message without a body, or with a name that is not known; nothing is sent.
        UnknownTopic, DelayOutOfRange, ...: as ``SendDelayMessageOperator``; the message says which of them.

    Example::

        @task
        def unpaid() -> list[dict]:
            return [{"body": {"order": number}, "key": str(number)} for number in open_orders()]


        SendDelayMessagesOperator(
            task_id="remind", topic="reminders", messages=unpaid(), delay=timedelta(hours=1)
        )

    Rules: D12, D13, X07.
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
        messages: Iterable[Mapping[str, Any]],
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
            if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
                raise InvalidArgument(f"messages is a {type(messages).__name__}: give a list of mappings")
            # A generator would be used up by the look at it.
            messages = list(messages)
            for place, message in enumerate(messages):
                _checked(place, message)
        self.topic = topic
        self.messages = messages
        self.delay = delay
        self.deliver_at = deliver_at
        self.delay_level = delay_level
        self.idempotent = idempotent
        self.duewheel_conn_id = duewheel_conn_id

    def execute(self, context: Context) -> list[str]:
        """Send them."""
        when = as_when(self.delay, self.deliver_at, self.delay_level)
        name = task_key(context) if self.idempotent else None
        messages = [self._made(place, message, when, name) for place, message in enumerate(self.messages)]
        with DueWheelHook(self.duewheel_conn_id).get_conn() as broker:
            receipts = broker.send_many(self.topic, messages)
        self.log.info("Sent %d messages to topic %s", len(receipts), self.topic)
        return [receipt.message_id for receipt in receipts]

    @staticmethod
    def _made(
        place: int, message: Mapping[str, Any], when: Mapping[str, Any], name: str | None
    ) -> dict[str, Any]:
        given = _checked(place, message)
        own = as_when(*(given.pop(name, None) for name in ("delay", "deliver_at", "delay_level")))
        says_when = any(value is not None for value in own.values())
        made = {**given, **(own if says_when else when)}
        if name is not None:
            made.setdefault("idempotency_key", f"{name}/{place}")
        return made


def _checked(place: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as a dictionary of its own.

    Raises:
        DueWheelError: what is wrong with it, and its place.
    """
    if not isinstance(message, Mapping):
        raise InvalidArgument(
            f"is a {type(message).__name__}: give a mapping such as {{'body': ...}}", index=place
        )
    given = dict(message)
    if unknown := sorted(given.keys() - FIELDS):
        raise InvalidArgument(
            f"has the unknown name {', '.join(map(repr, unknown))}: there are {', '.join(sorted(FIELDS))}",
            index=place,
        )
    if "body" not in given:
        raise InvalidArgument("has no body", index=place)
    try:
        check_message(**{name: value for name, value in given.items() if name not in _CHECKED_BY_THE_BROKER})
    except DueWheelError as error:
        raise error.at(place) from error
    return given


_CHECKED_BY_THE_BROKER = frozenset({"tag", "message_group", "idempotency_key"})
