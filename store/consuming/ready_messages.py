"""The messages that a group could receive now, without a lease: their names, to decide what to do with them.

It receives in a transaction that is rolled back. So it returns what a receive would return, with tags, filter
and the order of FIFO topics, and writes nothing. While the statement runs, other consumers skip the queues
that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duewheel.store.consuming.ticking import TICK_GROUPS
from duewheel.store.database.connections import BEGIN, fetch, translating_errors
from duewheel.store.values.content_types import value_of

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected

_RECEIVE = """
select r.message_id, r.key, r.tag, r.body, r.properties ->> 'content-type'
from duewheel.receive(%s, %s, %s, '1 second', null, %s, false) r
"""


@dataclass(frozen=True, slots=True)
class ReadyMessage:
    """A message that is ready for a group.

    Attributes:
        message_id: its id.
        key: the sender's own key.
        tag: its tag.
        body: its body, as bytes.
        content_type: the type of the body; None if the message has none.
    """

    message_id: str
    key: str | None
    tag: str | None
    body: bytes
    content_type: str | None

    @property
    def value(self) -> Any:
        """What was sent, as ``Message.value``."""
        return value_of(self.body, self.content_type, lambda: self.message_id)


def ready_messages(
    broker: Connected,
    topic: str,
    group: str,
    max_messages: int,
) -> list[ReadyMessage]:
    """Name messages that a group could receive now.

    Args:
        broker: the broker.
        topic: the topic.
        group: the consumer group, which must exist.
        max_messages: at most so many.

    Returns:
        The messages in the order in which they would be received; any consumer of the group may receive them.

    Raises:
        UnknownTopic, UnknownGroup: no such topic or group.
        BrokerUnreachable: the connection broke.

    Example::

        keys = [message.key for message in ready_messages(broker, "order-timeout", "canceller", 10)]
    """
    with broker.connection() as connection, translating_errors(connection), connection.cursor() as cursor:
        fetch(connection, TICK_GROUPS, ([topic], [group], broker.now()))
        cursor.execute(BEGIN)
        try:
            rows = fetch(connection, _RECEIVE, (topic, group, max_messages, broker.now()))
        finally:
            if not connection.closed:
                cursor.execute("rollback")
    return [
        ReadyMessage(message_id, key, tag, bytes(body), content_type)
        for message_id, key, tag, body, content_type in rows
    ]
