"""A consumer group's subscription to a topic, as one of its consumers has it.

Making a consumer also makes the group's subscription, if that is new, and may set how the whole group
retries.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from duewheel.store.consuming.filtering import check_filters
from duewheel.store.values import tags as tag_expressions
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.messages import Batch, ConsumeMode, named

if TYPE_CHECKING:
    from duewheel.store.database.connections import Database, Rows
    from duewheel.store.values.retry_policy import RetryPolicy

log = logging.getLogger(__name__)

_SUBSCRIBE = """
select group_id, topic_id, tags, filter::text, created
from duewheel.subscribe(%s, %s, %s, %s, %s, %s, %s, %s, %s::jsonpath)
"""

_SUBSCRIBED = "select from duewheel.subscriptions_named(array[%s], array[%s], %s)"

_SET_RETRY_POLICY = """
select changed, old_max_retries,
    array(select (extract(epoch from i) * 1000000)::bigint
          from unnest(old_intervals) with ordinality w (i, place) order by place),
    old_jitter, old_set_by, old_set_at
from duewheel.set_retry_policy(%s, %s, %s, %s::interval[], %s, %s, %s, %s)
"""


class Subscription:
    """One consumer's share in the subscription of its group.

    Attributes:
        topic: the topic's name.
        group: the consumer group's name.
        tags, filter: the tag expression and the predicate over the properties that the group has, None for
            no predicate; :meth:`duewheel.store.broker.Broker.set_subscription` changes them.
        mode: clustering or broadcasting.
        name: the holder that leases and the history of a message show.
        durable_acks: whether an ack returns only when it is on disk.
        group_id: the number of the group, which its leases name.
        topic_id: the number of the topic.
    """

    def __init__(
        self,
        database: Database,
        topic: str,
        group: str,
        *,
        tags: str | None = None,
        start: str | Instant = "earliest",
        name: str | None = None,
        filter: str | None = None,  # noqa: A002 -- the parameter's public name
        mode: ConsumeMode | str = ConsumeMode.CLUSTERING,
        retry: RetryPolicy | None = None,
        durable_acks: bool = True,
    ) -> None:
        check_text(topic, "topic")
        check_text(group, "group")
        check_text(name, "name", optional=True)
        self.topic = topic
        self.group = group
        self.name = name or f"{socket.gethostname()}/{os.getpid()}"
        self.durable_acks = durable_acks
        self.mode = named(ConsumeMode, mode, "mode")
        if tags is not None:
            tag_expressions.parse(tags)
        check_filters(database.read, filter)
        if retry is not None and self.mode is ConsumeMode.BROADCASTING:
            raise InvalidArgument(
                "a broadcasting consumer does not retry failed messages: leave retry out, or use clustering"
            )
        self._database = database
        self._retry = retry
        self._is_fifo: bool | None
        self.group_id: int
        self.topic_id: int
        self.tags: str
        self.filter: str | None
        self._named = (tags, filter)
        self.subscribe(start)

    def subscribe(self, start: str | Instant = "earliest") -> None:
        """Make the group's subscription unless it exists: after its topic was deleted and created again.

        Args:
            start: where the group begins to read; see :meth:`duewheel.store.broker.Broker.consumer`.

        Raises:
            UnknownTopic: no topic has this name.
            InvalidArgument: the group's subscription has other tags or another filter.

        Example::

            try:
                batch = consumer.receive()
            except UnknownTopic:
                broker.create_topic("order-timeout")
                consumer.subscribe()
        """
        by_name = isinstance(start, str)
        check_text(start if by_name else "earliest", "start")
        ((group_id, topic_id, self.tags, self.filter, is_new),) = self._database.rows(
            _SUBSCRIBE,
            (
                self.topic,
                self.group,
                start if by_name else "earliest",
                None if isinstance(start, str) else to_datetime(start, "start"),
                self._database.now(),
                self.mode.value,
                self.name,
                *self._named,
            ),
        )
        self._is_fifo = None
        self.group_id, self.topic_id = group_id, topic_id
        if self._retry is not None:
            self._set_retry_policy(self._retry, is_new=is_new)

    def is_subscribed(self) -> bool:
        """Whether the group, or this instance of a broadcasting one, reads the topic; it may be deleted.

        Returns:
            Also True for a group that was made again. :meth:`subscribe` then joins the consumer to it.

        Example::

            while not consumer.is_subscribed():
                stop.wait(10)
        """
        name = self.group if self.mode is ConsumeMode.CLUSTERING else f"{self.group}/{self.name}"
        return bool(self._database.read(_SUBSCRIBED, (self.topic, name, self._database.now())))

    @property
    def is_fifo(self) -> bool:
        """Whether the topic is of type FIFO: each message group in order, to one holder at a time."""
        # Not a cached_property: up to Python 3.11 all of them share a lock, which a child of fork inherits.
        if self._is_fifo is None:
            self._is_fifo = self._database.read("select duewheel.is_fifo(%s)", (self.topic_id,))[0][0]
        return self._is_fifo

    def __repr__(self) -> str:
        return f"Consumer(topic={self.topic!r}, group={self.group!r}, tags={self.tags!r})"

    def _set_retry_policy(self, retry: RetryPolicy, *, is_new: bool) -> None:
        """Set the retry policy of the whole group, and log the policy that it overrides."""
        from duewheel.store.values.retry_policy import stored_policy

        changed, max_retries, waits, jitter, set_by, set_at = self._database.rows(
            _SET_RETRY_POLICY,
            (
                self.topic,
                self.group,
                retry.max_retries,
                list(retry.waits),
                retry.jitter,
                self.name,
                retry.is_ordered,
                self._database.now(),
            ),
        )[0]
        # A group that this consumer has just made had no settings before.
        if changed and (set_by is not None or not is_new):
            log.warning(
                "consumer %s set the retries of group %s: %s; before: %s, %s",
                self.name,
                self.group,
                retry,
                stored_policy(max_retries, waits, jitter, retry.is_ordered),
                "the default" if set_by is None else f"set by consumer {set_by} at {to_datetime(set_at)}",
            )


def batch_of(subscription: Subscription, rows: Rows) -> Batch:
    """The messages of rows that were received for the group of a subscription."""
    return Batch(rows, topic=subscription.topic, group=subscription.group, group_id=subscription.group_id)
