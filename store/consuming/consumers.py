"""Making consumers: those that ask for messages, and those that call a listener."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.store.consuming.signals import Signals
from duewheel.store.database.connected import Connected
from duewheel.store.values.instants import Instant
from duewheel.store.values.messages import ConsumeMode
from duewheel.store.values.tags import EVERY

if TYPE_CHECKING:
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.consuming.push_consumer import Listener, PushConsumer
    from duewheel.store.values.retry_policy import RetryPolicy


class Consumers(Connected):
    """Making consumers."""

    _signals: Signals

    def consumer(
        self,
        topic: str,
        group: str,
        tags: str = EVERY,
        start: str | Instant = "earliest",
        *,
        name: str | None = None,
        filter: str | None = None,  # noqa: A002 -- the parameter's public name
        mode: ConsumeMode | str = ConsumeMode.CLUSTERING,
        retry: RetryPolicy | None = None,
    ) -> Consumer:
        """A consumer that asks for messages; makes its group's subscription where that is new.

        Args:
            topic: the topic to read.
            group: the consumer group: each message goes to one of its consumers.
            tags: the messages to read: ``*``, or tags joined by ``||``.
            start: where a new subscription begins: "earliest" with all messages that are kept, "latest" with
                those released from now on, or an instant, with messages that are due from then on, or were
                due earlier and came only after it. It has no effect on an existing subscription;
                :meth:`rewind` moves that.
            name: the holder that leases show; None is host and process. In broadcasting it names the
                instance. An instance that starts again under the same name goes on where it was, so give a
                name that stays.
            filter: the messages to read, by their properties: a predicate of jsonpath, such as
                ``$.region == "north" && $.amount > 100``. With ``tags``, both must choose a message.
                Messages that are not chosen count as read. Retries are not filtered again.
            mode: "clustering", or "broadcasting": each instance gets every message, and a message that fails
                there is passed over, without retry and dead letter. An instance that has not received for
                longer than the topic's retention is forgotten, and messages are not kept for it.
            retry: how the whole group retries from now on; None changes nothing. The consumer started last
                decides; a warning in the log names its change.

        Raises:
            UnknownTopic: there is none of this name.
            InvalidTagExpression: not such an expression.
            InvalidFilter: not such a predicate.
            InvalidArgument: ``start`` is none of these, the group's name is not valid, the group has the
                other mode, or the policy does not fit the topic.

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
        )

    def push_consumer(
        self,
        topic: str,
        group: str,
        listener: Listener,
        *,
        tags: str = EVERY,
        start: str | Instant = "earliest",
        threads: int = 8,
        invisible: timedelta = timedelta(seconds=60),
        consume_timeout: timedelta = timedelta(minutes=15),
        name: str | None = None,
        filter: str | None = None,  # noqa: A002 -- the parameter's public name
        mode: ConsumeMode | str = ConsumeMode.CLUSTERING,
        retry: RetryPolicy | None = None,
    ) -> PushConsumer:
        """A consumer that calls a listener with each message, in threads of its own.

        Args:
            topic, group, tags, start, name, filter, mode, retry: as for :meth:`consumer`.
            listener: called with each message. ``"success"`` acks it; ``"reconsume_later"``, None, any other
                value, or an exception makes it come again.
            threads: how many messages are worked on at once, 1 to 256.
            invisible: the length of a lease; it is extended while a listener works.
            consume_timeout: a listener that takes longer has failed.

        Raises:
            UnknownTopic, InvalidTagExpression, InvalidFilter: as for :meth:`consumer`.
            InvalidArgument: as for :meth:`consumer`, or ``threads`` or a span of time is out of its limit.

        Example::

            def cancel(message: Message) -> str:
                ...
                return "success"

            with broker.push_consumer("orders.timeout", "cancel", cancel):
                stop.wait()
        """
        consumer = self.consumer(topic, group, tags, start, name=name, filter=filter, mode=mode, retry=retry)
        from duewheel.store.consuming.push_consumer import PushConsumer

        return PushConsumer(
            consumer, listener, threads=threads, invisible=invisible, consume_timeout=consume_timeout
        )
