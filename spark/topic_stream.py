"""One topic of a stream: the questions that its driver asks the broker.

Each may be asked twice with the same effect. So the driver waits through an outage of the broker, as a
restart or a failover is, and asks again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import InputPartition

from duewheel.spark.message_columns import StreamHandle
from duewheel.spark.outages import through_outage
from duewheel.spark.statements import statement
from duewheel.spark.stream_place import Place, StreamOffset
from duewheel.store.consuming.filtering import check_filters
from duewheel.store.consuming.ticking import TICK_GROUP
from duewheel.store.database.connections import fetch
from duewheel.store.values.errors import DueWheelError, InvalidArgument, UnknownGroup, UnknownTopic

if TYPE_CHECKING:
    from duewheel.spark.read_options import StreamRead
    from duewheel.store.broker import Broker

_START = statement("stream_start")
_LAG = statement("stream_lag")
_COMMIT = statement("stream_commit")
_CUTS = statement("stream_cuts")
_LOST = statement("stream_lost")
_SUBSCRIPTION = statement("stream_subscription")
_TOPICS = statement("stream_topics")
_FIFO_TOPICS = statement("fifo_topics")

#: When a group goes that a stream had drawn for itself, and that takes nothing of what is kept for it. Its
#: checkpoint was deleted: a stream that is only stopped returns within days.
DRAWN_GROUP_REST = timedelta(days=30)

log = logging.getLogger(__name__)


class StreamDataLost(DueWheelError):
    """Retention has dropped messages that the stream had not read; see ``failOnDataLoss``."""


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """The messages that one task reads: those between two places of a queue."""

    topic: str
    topic_id: int
    queue: int
    start: Place
    end: Place
    handle: StreamHandle


class StreamBroker:
    """The driver's connections, opened when the first question is asked."""

    def __init__(self, options: StreamRead) -> None:
        self._options = options
        self._broker: Broker | None = None

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The answer to a statement."""

        def asked() -> list[tuple[Any, ...]]:
            with self._opened().connection() as connection:
                return fetch(connection, statement, parameters)

        return through_outage(asked, self._options.reconnect)

    def subscription(self, topic: str, group: str) -> tuple[int, int]:
        """The numbers of a group, which is made where it is missing, and of the topic.

        A stream names its tags and filter even if it reads all messages. So a micro-batch that is read again
        has the same messages, or the stream ends with an error if the group's subscription was changed.

        Raises:
            InvalidArgument: the group has other tags or another filter.
        """
        tags, filter_ = self._options.tags, self._options.filter
        consumer = through_outage(
            lambda: self._opened().consumer(topic, group, tags, filter=filter_), self._options.reconnect
        )
        if filter_ is None and consumer.filter is not None:
            raise InvalidArgument(
                f"group {group!r} reads topic {topic!r} with filter {consumer.filter}: give the stream this "
                "filter or another group, or change the subscription: duewheel group set-subscription."
            )
        return consumer.group_id, consumer.topic_id

    def known_subscription(self, topic: str, group: str) -> tuple[int, int]:
        """The numbers of a group that was drawn by a stream before, and of the topic.

        Raises:
            UnknownGroup: it is gone.
            UnknownTopic: the topic is.
            InvalidArgument: the stream began with other tags or another filter.
        """
        if not self.ask(_SUBSCRIPTION, topic, group):
            _refuse_deleted(topic, group if topic in self.topics() else None)
        try:
            return self.subscription(topic, group)
        except InvalidArgument as error:
            raise InvalidArgument(f"{error} A new checkpoint gives the stream another group.") from error

    def refuse_fifo(self, topics: Sequence[str]) -> None:
        """Refuse topics of type FIFO, before a group is made on one of several."""
        for (topic,) in self.ask(_FIFO_TOPICS, list(topics)):
            raise InvalidArgument(
                f"topic {topic!r} is of type FIFO: a stream cannot keep the order of each message group over "
                "retries. Receive its messages in batches"
            )

    def check_filter(self) -> None:
        """Check the filter, before a group is made."""
        check_filters(lambda statement, given: self.ask(statement, *given), self._options.filter)

    def topics(self) -> list[str]:
        """The topics that a stream can read."""
        return [topic for (topic,) in self.ask(_TOPICS)]

    def close(self) -> None:
        """Close the connections."""
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def _opened(self) -> Broker:
        if self._broker is None:
            from duewheel.store.broker import Broker

            self._broker = Broker(self._options.dsn, listen=False)
        return self._broker


class TopicStream:
    """What a stream reads of one topic, for its group."""

    def __init__(self, broker: StreamBroker, options: StreamRead, topic: str, group: str) -> None:
        self._broker = broker
        self._options = options
        self._ids: tuple[int, int] | None = None
        self.topic = topic
        self.group = group

    @property
    def key(self) -> tuple[int, int]:
        """The numbers of the topic and of the group."""
        group_id, topic_id = self._subscription()
        return topic_id, group_id

    def begin(self, *, is_found_later: bool = False) -> StreamOffset:
        """Begin to read and make the group its own; the same answer until the first micro-batch is finished.

        Of a topic that is found later nothing is passed over.
        """
        options = self._options
        start = "earliest" if is_found_later and options.start == "latest" else options.start
        self._ids = self._broker.subscription(self.topic, self.group)
        self.release()
        rows = self._broker.ask(
            _START,
            *self._subscription(),
            secrets.token_hex(8),
            start,
            options.start_at,
            None if options.group else DRAWN_GROUP_REST,
        )
        return StreamOffset.of_rows(rows[0][0], [row[1:] for row in rows])

    def owns(self, offset: StreamOffset) -> bool:
        """Whether an offset is of this topic."""
        _, topic_id = self._subscription()
        return any(of_topic == topic_id for of_topic, _ in offset.places)

    def lag(self, offset: StreamOffset) -> tuple[int, float]:
        """How many messages, and how many seconds, a stream at this position is behind."""
        ((messages, seconds),) = self._broker.ask(_LAG, *self._subscription(), *offset.parameters())
        return messages, seconds or 0.0

    def commit(self, offset: StreamOffset) -> None:
        """Let the group's position follow."""
        self._broker.ask(_COMMIT, *self._subscription(), offset.stream, *offset.parameters())

    def release(self) -> None:
        """Release due messages if no wheel does."""
        self._broker.ask(TICK_GROUP, *self._subscription(), None)

    def refuse_deleted(self, *, with_topic: bool) -> NoReturn:
        """End the stream, whose topic or whose group there was deleted."""
        _refuse_deleted(self.topic, None if with_topic else self.group)

    def refuse_foreign(self, begin: StreamOffset, known: StreamOffset) -> None:
        """Refuse an offset with places that the topic and the group do not have."""
        if set(begin.places) - set(known.places):
            raise InvalidArgument(
                f"the checkpoint is of another topic than {self.topic!r} or another group than "
                f"{self.group!r}, or of one that was deleted and made again: give the stream a "
                "checkpoint of its own"
            )

    def ranges(self, begin: StreamOffset, until: StreamOffset) -> list[StreamRange]:
        """The queues with messages between two offsets."""
        handle = StreamHandle.of(until.stream, self._subscription()[0])
        return [
            StreamRange(
                self.topic,
                topic_id,
                queue,
                begin.places.get((topic_id, queue), Place.beginning()),
                place,
                handle,
            )
            for (topic_id, queue), place in sorted(until.places.items())
            if begin.places.get((topic_id, queue), Place.beginning()) != place
        ]

    def require_kept(self, ranges: Sequence[StreamRange]) -> None:
        """Refuse to go on where retention has dropped messages of these ranges; or warn, if so asked."""
        ((queues, messages),) = self._broker.ask(
            _LOST,
            *self._subscription(),
            [part.topic_id for part in ranges],
            [part.queue for part in ranges],
            [part.start.at for part in ranges],
        )
        if not queues:
            return
        # Messages dropped after a group has finished them, or was deleted, are not counted.
        many = "messages" if messages is None else f"up to {messages} messages"
        said = (
            f"retention has dropped {many} of topic {self.topic!r} that the stream had not read, in "
            f"{queues} of {len(ranges)} queues"
        )
        if self._options.fail_on_data_loss:
            raise StreamDataLost(
                f"{said}: set failOnDataLoss to false to go on with the messages that remain, and give the "
                "topic a longer retention"
            )
        log.warning("%s", said)

    def cut(self, part: StreamRange, messages: int) -> list[tuple[StreamRange, int]]:
        """A range in parts of at most so many messages, and how many each has."""
        start, end = part.start, part.end
        places = (start.at, start.seq, end.at, end.seq, start.straggler, end.straggler)
        wanted = (messages, self._options.partition_bytes, self._options.min_partitions > 1)
        cuts = self._broker.ask(_CUTS, part.topic_id, part.queue, *places, *wanted)
        parts = []
        before = part.start
        for at, seq, straggler, count in cuts:
            place = Place(at, seq, straggler)
            parts.append((replace(part, start=before, end=place), count))
            before = place
        return parts

    def _subscription(self) -> tuple[int, int]:
        if self._ids is None:
            # A group that the checkpoint names was made when the stream began.
            known = self._broker.subscription if self._options.group else self._broker.known_subscription
            self._ids = known(self.topic, self.group)
        return self._ids


def _refuse_deleted(topic: str, group: str | None) -> NoReturn:
    """Refuse to go on without the topic, or without its group."""
    if group is None:
        raise UnknownTopic(
            f"topic {topic!r} was deleted while the stream read it: once the topic exists again, restart the "
            "stream with a new checkpoint"
        )
    raise UnknownGroup(
        f"group {group!r} of topic {topic!r} was deleted while the stream read it: restart the stream with a "
        "new checkpoint"
    )
