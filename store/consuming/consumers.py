"""Making consumers: pull consumers, which receive, and push consumers, which call a listener."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.store.consuming.signals import Signals
from duewheel.store.database.connected import Connected
from duewheel.store.values.bodies import check_text
from duewheel.store.values.instants import Instant
from duewheel.store.values.messages import ConsumeMode
from duewheel.store.values.tags import EVERY, parse

if TYPE_CHECKING:
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.consuming.push_consumer import Listener, PushConsumer
    from duewheel.store.values.bulk_results import SubscriptionChange
    from duewheel.store.values.retry_policy import RetryPolicy

_SET_SUBSCRIPTION = """
select old_tags, old_filter::text, missed, passed_over
from duewheel.set_subscription(%s, %s, %s, %s::jsonpath, %s)
"""


class Consumers(Connected):
    """Making consumers."""

    _signals: Signals

    def consumer(
        self,
        topic: str,
        group: str,
        tags: str | None = None,
        start: str | Instant = "earliest",
        *,
        name: str | None = None,
        filter: str | None = None,  # noqa: A002 -- the parameter's public name
        mode: ConsumeMode | str = ConsumeMode.CLUSTERING,
        retry: RetryPolicy | None = None,
        durable_acks: bool = True,
    ) -> Consumer:
        """A consumer that receives messages; makes its group's subscription if that is new.

        Args:
            topic: the topic to read.
            group: the consumer group: each message is delivered to one of its consumers.
            tags: the messages that the group reads: ``*`` for all, or tags joined by ``||``. The first
                consumer of the group on this topic sets them, ``*`` if it gives None. Later ones give None or
                the same tags; :meth:`set_subscription` changes them.
            start: where a new subscription begins: "earliest" with all messages that are kept, "latest" with
                those released from now on. An instant: with messages that are due from then on, or were due
                earlier and released only after it. It has no effect on an existing subscription;
                :meth:`rewind` moves that.
            name: the holder that leases show; None is host and process. In broadcasting it names the
                instance. An instance that starts again under the same name continues where it was, so give
                a name that stays.
            filter: the messages that the group reads, by their properties: a predicate of jsonpath, such as
            filter: the messages that the group reads, by their properties: a predicate of jsonpath, such as
                ``$.region == "north" && $.amount > 100``. It is set like ``tags``; both must choose a
                message. Messages that are not chosen count as read. Retries are not filtered again.
            mode: "clustering", or "broadcasting": each instance gets every message, and a message that fails
                there is skipped, without retry and dead letter. An instance that has not received for
            retry: how the whole group retries from now on; None changes nothing. The consumer started last
                decides; a warning in the log names its change.
            durable_acks: False lets acks return before they are on disk. A crash of the server then delivers
                the messages of about the last half second of acks again. An ack in a transaction of the
                caller is refused.

        Raises:
            UnknownTopic: no topic has this name.
            InvalidTagExpression: not such an expression.
            InvalidFilter: not such a predicate.
            InvalidArgument: ``start`` is none of the above, the group's name is not valid, the group has the
                other mode, other tags or another filter, or the policy does not fit the topic.

        Example::

            consumer = broker.consumer("orders.timeout", "cancel")
            batch = consumer.receive(wait=timedelta(seconds=20))
        """
        from duewheel.store.consuming.consumer import Consumer

        return Consumer(
            self._database,
            self._signals,
            topic,
            group,
            tags=tags,
            start=start,
            name=name,
            filter=filter,
            mode=mode,
            retry=retry,
            durable_acks=durable_acks,
        )

    def push_consumer(
        self,
        topic: str,
        group: str,
        listener: Listener,
        *,
        tags: str | None = None,
        start: str | Instant = "earliest",
        threads: int = 8,
        invisible: timedelta = timedelta(seconds=60),
        consume_timeout: timedelta = timedelta(minutes=15),
        name: str | None = None,
        filter: str | None = None,  # noqa: A002 -- the parameter's public name
        mode: ConsumeMode | str = ConsumeMode.CLUSTERING,
        retry: RetryPolicy | None = None,
        durable_acks: bool = True,
    ) -> PushConsumer:
        """A consumer that calls a listener with each message, in its own threads.

        Args:
            topic, group, tags, start, name, filter, mode, retry, durable_acks: see :meth:`consumer`.
            listener: called with each message. ``"success"`` acks it. After ``"reconsume_later"``, None, any
                other value or an exception, the message is retried.
            threads: how many messages are worked on at once, 1 to 256.
            invisible: the length of a lease; it is extended while a listener works.
            consume_timeout: a listener that takes longer has failed.

        Raises:
            UnknownTopic, InvalidTagExpression, InvalidFilter: see :meth:`consumer`.
            InvalidArgument: see :meth:`consumer`; or ``threads`` or a span of time is out of its limit.

        Example::

            def cancel(message: Message) -> str:
                ...
                return "success"

            with broker.push_consumer("orders.timeout", "cancel", cancel):
                stop.wait()
        """
        consumer = self.consumer(
            topic,
            group,
            tags,
            start,
            name=name,
            filter=filter,
            mode=mode,
            retry=retry,
            durable_acks=durable_acks,
        )
        from duewheel.store.consuming.push_consumer import PushConsumer

        return PushConsumer(
            consumer, listener, threads=threads, invisible=invisible, consume_timeout=consume_timeout
        )

    def set_subscription(
        self,
        topic: str,
        group: str,
        tags: str = EVERY,
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
    ) -> SubscriptionChange:
        """Set which messages all consumers of a group receive of a topic from now on.

        Messages that the group has passed are not delivered without a :meth:`rewind`. Leases and retries stay
        as they are.

        Args:
            topic: a topic that the group reads.
            group: the group; of a broadcasting group all instances, or one instance as ``group/instance``.
            tags: ``*`` for all, or tags joined by ``||``.
            filter: a predicate of jsonpath over the properties; None for none.

        Returns:
            What was set before, and how many messages the change concerns.

        Raises:
            UnknownTopic, UnknownGroup: no such topic or group, or the group does not read the topic.
            InvalidTagExpression: not such an expression.
            InvalidFilter: not such a predicate.
            GroupBusy: the group is changed in a transaction that has been open for 10 s.

        Example::

            change = broker.set_subscription("orders.timeout", "cancel", "paid || open")
            if change.missed:
                broker.rewind("orders.timeout", "cancel", "earliest")
        """
        from duewheel.store.consuming.filtering import check_filters
        from duewheel.store.values.bulk_results import SubscriptionChange

        check_text(topic, "topic")
        check_text(group, "group")
        parse(tags)
        check_filters(self._database.read, filter)
        ((old_tags, old_filter, missed, passed_over),) = self._database.rows(
            _SET_SUBSCRIPTION, (topic, group, tags, filter, self._database.now())
        )
        return SubscriptionChange(old_tags, old_filter, missed, passed_over)
